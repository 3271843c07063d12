# SPDX-License-Identifier: Apache-2.0
"""hosts://: the ranks meet through torch's store, and each of their hosts runs a switch."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.parse import SplitResult

from hopsum.agent import Communicator
from hopsum.config import Config, ConfigError
from hopsum.connection.open_agent import Hooks, codec_of, open_agent
from hopsum.connection.url import UrlError, query_of, require_range
from hopsum.hosts.job_over_hosts import open_hosts
from hopsum.hosts.lost_hosts import MAX_SWITCHES, spare_switches
from hopsum.meeting import Meeting
from hopsum.rpc.channel import ControllerAddress
from hopsum.rpc.controller_job import open_job
from hopsum_wire import MAX_WORKERS


def query_of_hosts(config: Config, parts: SplitResult) -> dict[str, Any]:
    """Return the parameters that a hosts:// URL has, "slots" and "min_workers", as integers. Raises UrlError.

    Their ranges are not checked.
    """
    if parts.netloc or parts.path.strip("/"):
        raise UrlError(f"URL {config.url!r}: the ranks find each other; write hosts://, or hosts://?slots=N")
    return query_of(config, parts, {"slots": int, "min_workers": int})


def open_over_hosts(config: Config, parts: SplitResult, hooks: Hooks) -> Communicator:
    """Join a job over the ranks' own hosts and return the communicator. All ranks call this at the same point.

    Args:
        hooks: with the meeting of all ranks.

    Raises:
        ConfigError: a malformed URL, no meeting, or too many ranks or switches. Further errors as `open_hosts`.
    """
    query = query_of_hosts(config, parts)
    if hooks.meeting is None:
        raise UrlError(f"URL {config.url!r} needs torch: pip install 'hopsum[hosts]'")
    meeting: Meeting = hooks.meeting
    config = replace(config, rank=meeting.rank)
    if meeting.workers > MAX_WORKERS:
        raise ConfigError(f"hosts://: {meeting.workers} ranks; a sum has at most {MAX_WORKERS} workers")
    if (least_hosts := query.get("min_workers")) is not None:
        require_range(config, "min_workers", least_hosts, 1, meeting.workers)
        if (count := meeting.workers * (1 + spare_switches(meeting.workers, least_hosts))) > MAX_SWITCHES:
            raise ConfigError(
                f"hosts://?min_workers={least_hosts}: any {least_hosts} of {meeting.workers} hosts need {count} "
                f"switches in all, there are {MAX_SWITCHES} at most: raise min_workers"
            )
    # Tables and kernels first: from the meeting on, every rank waits for the slowest one.
    codec = codec_of(config, meeting.workers)

    def join(config: Config, address: ControllerAddress, job: str, token: str, kept: ExitStack) -> Communicator:
        make_agent = partial(open_agent, config, hooks)
        return open_job(config, address, job, token, make_codec=lambda _, __: codec, make_agent=make_agent, kept=kept)

    return open_hosts(config, meeting, codec, slots=query.get("slots"), least_hosts=least_hosts, open_job=join)
