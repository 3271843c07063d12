# SPDX-License-Identifier: Apache-2.0
"""collective://gloo and collective://nccl: a process group of torch."""

from __future__ import annotations

from typing import Final
from urllib.parse import SplitResult

from hopsum.agent import Communicator
from hopsum.config import Config, ConfigError
from hopsum.connection.open_agent import Hooks, codec_of
from hopsum.connection.url import UrlError, query_of
from hopsum.serial.collective import CollectiveCommunicator, require_group
from hopsum_wire import MAX_WORKERS

_KINDS: Final = ("gloo", "nccl")


def open_collective(config: Config, parts: SplitResult, hooks: Hooks) -> Communicator:
    """Return the communicator of this process in a process group of torch. All ranks call this at the same point.

    `hooks.group` is a torch process group that nothing else uses; it keeps its own timeout. Without one a group of all
    ranks is made, with the timeout `deadline_s`, and destroyed with the communicator.

    Raises:
        ConfigError: a malformed URL, torch.distributed is not initialised, the group is of another kind, or it has more
            ranks than a sum can have.
        CodecError: the codec's options do not fit it.
    """
    query_of(config, parts, {})
    kind = parts.netloc
    if kind not in _KINDS or parts.path:
        raise UrlError(f"URL {config.url!r}: {' or '.join(f'collective://{kind}' for kind in _KINDS)}")
    workers = require_group(kind, hooks.group)
    if workers > MAX_WORKERS:
        raise ConfigError(f"collective://{kind}: {workers} ranks; a sum has at most {MAX_WORKERS} workers")
    codec = codec_of(config, workers)
    return CollectiveCommunicator.create(kind, hooks.group, codec=codec, seed=config.seed, timeout_s=config.deadline_s)
