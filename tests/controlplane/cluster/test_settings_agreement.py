# SPDX-License-Identifier: Apache-2.0
"""Workers whose settings differ: who is refused, who is evicted, and in which words."""

from __future__ import annotations

import re
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsum.config import Config, shared_settings
from hopsum.protocol.peer_messages import PEER_VERSION
from hopsum_controlplane.cluster import JobState, MemberPhase
from hopsum_controlplane.cluster.answers import Pending
from hopsum_controlplane.errors import InvalidRequestError, UnauthenticatedError
from hopsum_ptf.fake_device import FakeDevice

from .world import LEASE_S, Cluster, enter, phase_of, state_of, switch_config, time_passes

SEED_0 = {"codec": "thc()", "seed": "0"}
SEED_1 = {"codec": "thc()", "seed": "1"}
WORDS = r"rank 0 has seed 0; rank 1 has seed 1: all ranks need the same"


def phases(cluster: Cluster) -> dict[int, MemberPhase]:
    (view,) = cluster.controller.jobs()
    return {member.rank: phase_of(member) for member in view.members}


def test_while_the_job_forms_all_ranks_have_the_error(cluster: Cluster) -> None:
    crew = cluster.make(workers=3)
    crew[0].join(settings=SEED_0)
    with pytest.raises(InvalidRequestError, match=WORDS):
        crew[1].join(settings=SEED_1)
    with pytest.raises(UnauthenticatedError, match=WORDS):
        crew[0].membership()
    with pytest.raises(InvalidRequestError, match=WORDS):  # the one that comes late is told as well
        crew[2].join(settings=SEED_0)
    (view,) = cluster.controller.jobs()
    assert (state_of(view), view.joins_refused) == (JobState.FORMING, 2)
    for worker in crew:  # and once they have been corrected they run
        worker.lives += 1
        worker.join(settings=SEED_0)
    assert not any(isinstance(worker.membership(), Pending) for worker in crew)
    cluster.check()


def test_side_channels_that_differ_are_refused_by_name(cluster: Cluster) -> None:
    """Two source trees may have one version of hopsum. An older worker does not tell that of its side channels."""
    crew, newer = cluster.make(), shared_settings(Config())
    older = {name: value for name, value in newer.items() if name != "side_channel_version"}
    assert older["version"] == newer["version"]
    crew[0].join(settings=older)
    why = (
        rf"rank 0 has side_channel_version \(not told\); rank 1 has side_channel_version {PEER_VERSION}: all ranks need"
    )
    with pytest.raises(InvalidRequestError, match=why):
        crew[1].join(settings=newer)


def test_a_late_rank_is_not_told_of_what_is_long_over(cluster: Cluster) -> None:
    crew = cluster.make(workers=3)
    crew[0].join(settings=SEED_0)
    with pytest.raises(InvalidRequestError, match=WORDS):
        crew[1].join(settings=SEED_1)
    cluster.clock.sleep(LEASE_S + 1)
    cluster.controller.tick()
    crew[2].join(settings=SEED_0)
    assert phases(cluster)[2] is MemberPhase.WAITING


def test_a_newcomer_that_differs_harms_no_running_job(cluster: Cluster) -> None:
    crew = cluster.make()
    enter(crew, settings=SEED_0)
    generation = crew[0].generation
    crew[1].lives += 1
    with pytest.raises(InvalidRequestError, match=rf"{WORDS}; the job continues without this worker"):
        crew[1].join(settings=SEED_1)
    assert crew[0].beat().generation == generation
    assert phases(cluster) == {0: MemberPhase.IN, 1: MemberPhase.IN}


def test_survivors_wait_on_where_a_replacement_differs(cluster: Cluster) -> None:
    crew = cluster.make()
    enter(crew, settings=SEED_0)
    time_passes(cluster, LEASE_S + 1, crew[0])  # rank 1 is lost
    crew[0].join(settings=SEED_0)
    crew[1].lives += 1
    crew[1].generation = 0
    with pytest.raises(InvalidRequestError, match=WORDS):
        crew[1].join(settings=SEED_1)
    assert isinstance(crew[0].membership(), Pending)
    crew[1].join(settings=SEED_0)
    assert not isinstance(crew[0].membership(), Pending)


def test_settings_outlive_the_controller(cluster: Cluster) -> None:
    crew = cluster.make()
    crew[0].join(settings=SEED_0)
    cluster.start()
    with pytest.raises(InvalidRequestError, match=WORDS):
        crew[1].join(settings=SEED_1)


def test_who_tells_none_is_not_compared(cluster: Cluster) -> None:
    crew = cluster.make()
    crew[0].join(settings=SEED_0)
    crew[1].join()
    assert not isinstance(crew[0].membership(), Pending)


@pytest.mark.parametrize(
    "told",
    [
        {f"name{number}": "" for number in range(33)},
        {"seed": "7" * 257},
        {"seed": "\x1b]0;owned\x07"},
        {"seed\n": "7"},
        {"": "7"},
        {"seed": "ü"},
    ],
)
def test_settings_are_bounded(cluster: Cluster, told: dict[str, str]) -> None:
    crew = cluster.make()
    with pytest.raises(InvalidRequestError, match=r"settings; send at most 32|setting "):
        crew[0].join(settings=told)
    assert phases(cluster) == {}


SETTINGS = st.dictionaries(st.sampled_from(["codec", "seed", "on_nonfinite"]), st.sampled_from("ab"), min_size=1)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(told=st.lists(SETTINGS, min_size=3, max_size=3), order=st.permutations(range(3)))
def test_a_generation_begins_if_and_only_if_all_agree(told: list[dict[str, str]], order: list[int]) -> None:
    """In every order of arrival, each rank is in the generation, or an error names two ranks and their values."""
    with TemporaryDirectory() as folder:
        cluster = Cluster(Path(folder), (switch_config(),), {"s1": FakeDevice()})
        cluster.start()
        try:
            failed = failures_of(cluster, told, order)
        finally:
            cluster.stop()
    agree = told[0] == told[1] == told[2]
    assert set(failed) == (set() if agree else {0, 1, 2})
    assert len({why_of(text) for text in failed.values()}) == (0 if agree else 1)


def why_of(text: str) -> str:
    found = re.search(r"rank \d has .*; rank \d has .*: all ranks need the same", text)
    assert found, text
    return found[0]


def failures_of(cluster: Cluster, told: list[dict[str, str]], order: list[int]) -> dict[int, str]:
    """Let ranks join in this order; return what those were told that are in no generation."""
    crew = cluster.make(workers=3)
    failed: dict[int, str] = {}
    for rank in order:
        try:
            crew[rank].join(settings=told[rank])
        except InvalidRequestError as error:
            failed[rank] = str(error)
    for rank in {*order} - {*failed}:
        try:
            assert not isinstance(crew[rank].membership(), Pending)
        except UnauthenticatedError as error:
            failed[rank] = str(error)
    return failed
