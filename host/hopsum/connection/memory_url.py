# SPDX-License-Identifier: Apache-2.0
"""memory://: a group of threads of this process."""

from __future__ import annotations

from urllib.parse import SplitResult

from hopsum.agent import Communicator
from hopsum.config import Config, shared_settings
from hopsum.connection.open_agent import Hooks, codec_of, rank_of
from hopsum.connection.url import UrlError, query_of, require_range
from hopsum.serial.memory import MemoryCommunicator
from hopsum_wire import MAX_WORKERS


def open_memory(config: Config, parts: SplitResult, hooks: Hooks) -> Communicator:
    """Join the URL's group of threads as one rank and return the communicator. Does not wait for the other ranks.

    Raises:
        ConfigError: a malformed URL, no rank, or (MeetingError) a taken rank or settings that differ from the group's.
    """
    query = query_of(config, parts, {"workers": int})
    name, workers = parts.netloc + parts.path, query.get("workers")
    if not name or workers is None:
        raise UrlError(f"URL {config.url!r}: an in-process group has a name and workers, memory://NAME?workers=N")
    require_range(config, "workers", workers, 1, MAX_WORKERS)
    rank = rank_of(config, workers)  # before a table is solved
    return MemoryCommunicator(
        name,
        rank,
        codec=codec_of(config, workers),
        settings=shared_settings(config),
        seed=config.seed,
        deadline_s=config.deadline_s,
    )
