# SPDX-License-Identifier: Apache-2.0
"""Ranks that meet, find the others of their host, and open the job through one rank of each."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import hopsum
from hopsum.agent import Communicator
from hopsum.config import Config, ConfigError
from hopsum.connection import settings_of
from hopsum.connection.open_agent import codec_of
from hopsum.local_group import open_local_group
from hopsum.meeting import Arrival, Meeting, MeetingError, WaitLimit

from ..hosts.test_meeting import Store

RANKS, WAIT_S = 4, 300.0


def on_all(url: str, hosts: list[str], groups: list[str]) -> list[Any]:
    """Return what each rank, a thread, has of one sum over the leaders' job, or its error."""
    store = Store()

    def open_job(settings: Config, leaders: Meeting) -> tuple[Communicator, Config]:
        assert leaders.exchange("address", lambda: leaders.rank) == [*range(leaders.workers)]
        assert leaders.rank == settings.rank
        job = hopsum.connect(url, rank=settings.rank, codec="fixed", backend="numpy", deadline_s=WAIT_S)
        return job, settings_of(job)

    def one(rank: int) -> Any:
        config = Config(codec="fixed", backend="numpy", local_group=groups[rank], deadline_s=WAIT_S)
        meeting = Meeting(store, "1/all", rank, RANKS, WaitLimit(WAIT_S), "local_group")
        try:
            with (
                meeting.opening(Arrival({}, hosts[rank], groups[rank])),
                open_local_group(config, meeting, open_job=open_job, make_codec=codec_of) as comm,
            ):
                return comm.rank, comm.workers, comm.allreduce(np.full(5, rank, np.float32)).mean.tolist()
        except ConfigError as error:
            return error

    with ThreadPoolExecutor(RANKS) as pool:
        return list(pool.map(one, range(RANKS)))


@pytest.mark.parametrize(
    ("hosts", "groups"), [(["x", "y", "x", "y"], ["auto"] * RANKS), (["x"] * RANKS, ["a", "b", "a", "b"])]
)
def test_one_rank_of_each_host_takes_part_for_all(hosts: list[str], groups: list[str]) -> None:
    found = on_all(f"memory://opening{groups[0]}?workers=2", hosts, groups)
    assert found == [(rank, RANKS, [1.5] * 5) for rank in range(RANKS)]


def test_a_group_of_ranks_on_two_hosts_is_refused_on_all() -> None:
    found = on_all("memory://refused?workers=2", ["x", "y", "x", "y"], ["a", "a", "b", "b"])
    assert all(isinstance(each, MeetingError) for each in found)
    words = "local_group: ranks 0 and 1 have local_group='a', and are on different hosts"
    assert all(str(each).startswith(words) for each in found)


def test_a_job_of_another_size_is_refused_on_all() -> None:
    found = on_all("memory://size?workers=1", ["x"] * RANKS, ["a"] * RANKS)
    assert [type(each) for each in found] == [tuple] * RANKS
    found = on_all("memory://sizes?workers=3", ["x", "y"] * 2, ["auto"] * RANKS)
    words = "the job has 3 workers, and the 4 ranks are on 2 hosts"
    assert all(isinstance(each, MeetingError) and words in str(each) for each in found)
