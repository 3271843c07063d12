# SPDX-License-Identifier: Apache-2.0
"""Places of jobs on several switches, and tokens that are replaced while a job runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hopsum_controlplane import ControlPlaneError
from hopsum_controlplane.cluster import (
    InvalidRequestError,
    JobExistsError,
    JobRequest,
    JobState,
    ResourceExhaustedError,
    UnauthenticatedError,
    UnknownJobError,
)
from hopsum_controlplane.devices.device import Capabilities
from hopsum_ptf.fake_device import FakeDevice

from .conftest import MakeCluster
from .world import TABLE, Cluster, Worker, enter, state_of, switch_config

EVERYWHERE = {1: "10.0.0.0/16"}


def switch_of(cluster: Cluster, name: str, slots: int, **options: object) -> str:
    (switch,) = cluster.controller.create_job(JobRequest(name, 2, slots, **options)).switches  # type: ignore[arg-type]
    return switch


def test_the_one_with_most_room(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(switch_config(1, EVERYWHERE, slots=256), switch_config(2, EVERYWHERE, slots=512))
    assert [switch_of(cluster, f"j{number}", 128) for number in range(4)] == ["s2", "s2", "s1", "s2"]
    assert switch_of(cluster, "small", 8, switch="s1") == "s1"
    with pytest.raises(ResourceExhaustedError) as refused:
        switch_of(cluster, "big", 129)
    assert str(refused.value) == (
        "no place for job 'big' with 129 slots: "
        "s1: the largest free range has 120 of 256 slots, 120 are free in all; "
        "s2: the largest free range has 128 of 512 slots, 128 are free in all; ask for up to 128 slots, or delete a job"
    )
    with pytest.raises(
        ResourceExhaustedError, match=r"slots: s1: the largest free range has 120 of 256 .*up to 120 slots"
    ):
        switch_of(cluster, "big", 128, switch="s1")
    with pytest.raises(InvalidRequestError, match="no switch 's3'; there are s1, s2"):
        switch_of(cluster, "lost", 1, switch="s3")
    assert [view.slots_used for view in cluster.controller.switches()] == [136, 384]


def test_the_one_that_reaches_everybody(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(
        switch_config(1, {1: "10.0.0.0/25"}),
        switch_config(2, {1: "10.0.0.0/25", 2: "10.0.0.128/25", 3: "10.1.0.0/16"}, slots=64),
        switch_config(3, {1: "10.0.0.0/24", 2: "10.1.0.0/16"}, slots=32),
    )
    assert switch_of(cluster, "one", 32) == "s2"  # its two halves are the third one's whole
    assert switch_of(cluster, "two", 32) == "s2"
    assert switch_of(cluster, "three", 32) == "s3"
    with pytest.raises(ResourceExhaustedError):
        switch_of(cluster, "four", 1)
    assert switch_of(cluster, "four", 1, switch="s1") == "s1"


def test_nobody_reaches_everybody(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(switch_config(1, {1: "10.0.0.0/24"}), switch_config(2, {1: "10.0.1.0/24"}))
    with pytest.raises(InvalidRequestError, match=r"s1 lacks 10\.0\.1\.0/24; s2 lacks 10\.0\.0\.0/24; name the switch"):
        switch_of(cluster, "job", 1)


def test_slot_memory_is_full_and_then_not(cluster: Cluster) -> None:
    for number in range(4):
        switch_of(cluster, f"j{number}", 512)
    with pytest.raises(
        ResourceExhaustedError, match="largest free range has 0 of 2048 slots, 0 are free in all; delete a job"
    ):
        switch_of(cluster, "more", 1)
    cluster.controller.delete_job("j1")
    cluster.controller.delete_job("j3")
    with pytest.raises(ResourceExhaustedError, match="largest free range has 512 of 2048 slots, 1024 are free in all"):
        switch_of(cluster, "more", 513)
    assert switch_of(cluster, "more", 512) == "s1"


def test_64_jobs(cluster: Cluster) -> None:
    for number in range(64):
        switch_of(cluster, f"j{number}", 1)
    with pytest.raises(ResourceExhaustedError, match="s1: all 64 jobs are taken"):
        switch_of(cluster, "more", 1)
    cluster.controller.delete_job("j17")
    assert switch_of(cluster, "more", 1) == "s1"
    assert cluster.controller.job("more").job_index == 17
    with pytest.raises(JobExistsError, match="a job 'more' exists, forming"):
        switch_of(cluster, "more", 1)


def test_a_switch_that_cannot(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(switch_config(1, EVERYWHERE), switch_config(2, EVERYWHERE, slots=16))
    cluster.devices["s1"].capabilities = Capabilities("fake", max_growth_bytes=512)
    assert switch_of(cluster, "wide", 16, table16=TABLE) == "s2"
    with pytest.raises(ResourceExhaustedError, match="s1: job 'wider': LOOKUP_ADD16 lets a frame grow by 768 bytes"):
        switch_of(cluster, "wider", 16, table16=TABLE, switch="s1")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": ""}, "job name ''; a name has 1 .. 64 letters"),
        ({"name": "a/b"}, "job name 'a/b'"),
        ({"workers": 65}, "65 workers; a job has at most 64"),
        ({"workers": -1}, "-1 workers"),
        ({"slots": 2049}, r"2049 slots; a job has 1 \.\. 2048"),
        ({"workers": 13, "table": TABLE}, "granularity 20 allows 12 workers, 13 workers allow granularity 19"),
        ({"observers": 64}, "2 workers and 64 observers; the switch has room for 65"),
        ({"lease_s": 0.1}, r"lease_s 0\.1; it is 1 \.\. 86400 seconds"),
        ({"lease_s": float("nan")}, "lease_s nan"),
    ],
)
def test_requests_that_can_never_be_granted(cluster: Cluster, changes: dict[str, object], message: str) -> None:
    request = replace(JobRequest("job", 2, 16), **changes)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match=message):
        cluster.controller.create_job(request)
    assert cluster.controller.jobs() == []


def test_a_switch_with_fewer_slots_than_before(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    cluster.make("one", slots=16)
    cluster.make("two", slots=16)
    cluster.config = replace(cluster.config, switches=(switch_config(slots=24),))
    with pytest.raises(ControlPlaneError, match=r"job 'two' is in the database .* switch 's1' does not have"):
        cluster.start()
    cluster.config = replace(cluster.config, switches=(switch_config(2),))
    cluster.devices = {"s2": cluster.devices["s1"]}
    with pytest.raises(ControlPlaneError, match="job 'one' is in the database on switch 's1', which is not configured"):
        cluster.start()


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    made = Cluster(tmp_path, (switch_config(),), {"s1": FakeDevice()})
    made.start()
    return made


def newcomer(cluster: Cluster, crew: list[Worker], token: str) -> Worker:
    return Worker(cluster, crew[1].job, token, 1, lives=crew[1].lives + 1)


@pytest.mark.parametrize("restart", [False, True])
def test_two_tokens_are_valid_until_the_earlier_one_is_revoked(cluster: Cluster, restart: bool) -> None:
    crew = cluster.run("train")
    old, generation = crew[0].token, crew[0].generation
    new = cluster.controller.rotate_token("train")
    if restart:
        cluster.start()
    assert new != old
    assert [each.beat().generation for each in crew] == [generation] * 2
    assert cluster.controller.knows(old)
    assert cluster.controller.knows(new)
    for token in (old, new):
        assert cluster.controller.locate("train", token).workers == 2
    newcomer(cluster, crew, new).join()  # takes rank 1 over, which ends the generation
    assert crew[0].beat().generation == 0

    cluster.controller.revoke_earlier_token("train")
    if restart:
        cluster.start()
    assert not cluster.controller.knows(old)
    with pytest.raises(UnauthenticatedError, match="wrong token for job 'train'"):
        cluster.controller.locate("train", old)
    with pytest.raises(UnauthenticatedError, match="wrong token"):
        newcomer(cluster, crew, old).join()
    with pytest.raises(InvalidRequestError, match="has no token but the present one"):
        cluster.controller.revoke_earlier_token("train")
    cluster.stop()


def test_who_has_joined_with_a_revoked_token_goes_on_from_generation_to_generation(cluster: Cluster) -> None:
    crew = cluster.run("train")
    new = cluster.controller.rotate_token("train")
    cluster.controller.revoke_earlier_token("train")
    replaced = newcomer(cluster, crew, new)
    replaced.join()
    crew[0].join()  # with its report, and the token that it has
    enter([crew[0], replaced])
    assert state_of(cluster.controller.job("train")) is JobState.RUNNING
    with pytest.raises(UnauthenticatedError, match="wrong token"):
        crew[0].start_again()  # another life is another worker
    cluster.stop()


def test_a_job_that_is_none_has_no_token(cluster: Cluster) -> None:
    for change in (cluster.controller.rotate_token, cluster.controller.revoke_earlier_token):
        with pytest.raises(UnknownJobError):
            change("nobody")
    cluster.run("train")
    cluster.controller.rotate_token("train")
    cluster.controller.delete_job("train")
    cluster.run("train")  # begins without an earlier token
    with pytest.raises(InvalidRequestError):
        cluster.controller.revoke_earlier_token("train")
    cluster.stop()
