# SPDX-License-Identifier: Apache-2.0
"""hosts://: the ranks meet through torch's store, and each of their hosts runs a switch."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from urllib.parse import SplitResult

from hopsum.agent import Communicator
from hopsum.config import Config, ConfigError
from hopsum.connection.open_agent import Hooks, codec_of, open_agent
from hopsum.connection.url import UrlError, query_of
from hopsum.hosts.job_over_hosts import open_hosts
from hopsum.hosts.meeting import Meeting
from hopsum.rpc.channel import ControllerAddress
from hopsum.rpc.controller_job import open_job
from hopsum_wire import MAX_WORKERS


def open_over_hosts(config: Config, parts: SplitResult, hooks: Hooks) -> Communicator:
    """Take part as one rank. All ranks call this at the same point."""
    slots = query_of(config, parts, {"slots": int}).get("slots")
    if parts.netloc or parts.path.strip("/"):
        raise UrlError(f"URL {config.url!r}: the ranks find each other; write hosts://, or hosts://?slots=N")
    meeting: Meeting = hooks.meeting
    if hooks.group is None and config.rank not in (None, meeting.rank):
        raise ConfigError(f"hosts://: rank={config.rank}, but torch says {meeting.rank}; leave rank out")
    config = replace(config, rank=meeting.rank)
    if meeting.workers > MAX_WORKERS:
        raise ConfigError(f"hosts://: {meeting.workers} ranks; a sum has at most {MAX_WORKERS} workers")
    # Tables and kernels first: from the meeting on, every rank waits for the slowest one.
    codec = codec_of(config, meeting.workers)
    make_agent = partial(open_agent, config, hooks)

    def join(config: Config, address: ControllerAddress, job: str, token: str, kept: ExitStack) -> Communicator:
        return open_job(config, address, job, token, make_codec=lambda _, __: codec, make_agent=make_agent, kept=kept)

    return open_hosts(config, meeting, codec, slots=slots, open_job=join)
