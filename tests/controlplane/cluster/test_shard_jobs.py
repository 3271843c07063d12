# SPDX-License-Identifier: Apache-2.0
"""Jobs over several switches side by side, places of jobs, and tokens that are replaced while they run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hopsum_controlplane import ControlPlaneError, JobSpec, WorkerEndpoint
from hopsum_controlplane.cluster import JobState, Pending
from hopsum_controlplane.cluster.decision import Report
from hopsum_controlplane.cluster.requests import ShardEndpoint
from hopsum_controlplane.devices.device import Capabilities
from hopsum_controlplane.errors import (
    InvalidRequestError,
    JobExistsError,
    ResourceExhaustedError,
    SessionLostError,
    UnauthenticatedError,
    UnknownJobError,
)
from hopsum_ptf.fake_device import Failure
from hopsum_wire import Op
from hopsum_wire.membership import JobMembership

from ..conftest import TABLE2
from .conftest import MakeCluster
from .world import TABLE, TREE_LINKS, Cluster, Worker, device_of, enter, state_of, switch_config, tree_configs


@pytest.fixture
def three(make_cluster: MakeCluster) -> Cluster:
    """Three switches that reach all workers, the second one with few slots."""
    return make_cluster(*(switch_config(number, slots=64 if number == 2 else 2048) for number in (1, 2, 3)))


def places(rank: int, shards: int) -> tuple[ShardEndpoint, ...]:
    """Return where a worker is at shards 1 .. k - 1."""
    return tuple(
        ShardEndpoint(f"10.0.1.{rank + 1}", 4000 + 100 * shard + rank, None, 5000 + 100 * shard + rank)
        for shard in range(1, shards)
    )


def join(worker: Worker, shards: int, **changes: Any) -> None:
    worker.join(further=places(worker.rank, shards), **changes)


def run(cluster: Cluster, shards: int, **options: Any) -> list[Worker]:
    crew = cluster.make("train", 2, 16, shards=shards, **options)
    for worker in crew:
        join(worker, shards)
    for worker in crew:
        assert not isinstance(worker.membership(), Pending)
    return crew


def membership(cluster: Cluster, worker: Worker) -> JobMembership:
    found = cluster.controller.member_requests.await_membership("train", worker.rank, worker.secret)
    assert isinstance(found, JobMembership)
    return found


def report(generation: int, runs: list[tuple[tuple[int, int], ...]], *, begun: int) -> Report:
    """Return what a worker holds at each shard; it has submitted up to 40 at each."""
    first, *further = [Report(generation, 0, 40, held) for held in runs]
    return Report(generation, 0, 40, first.held, begun, further_shards=tuple(further))


# ---- where they go ---------------------------------------------------------------------------------------


def test_the_switches_with_most_room_are_chosen(three: Cluster) -> None:
    run(three, 2)
    view = three.controller.job("train")
    assert (view.shards, [*view.switches]) == (2, ["s1", "s3"])
    assert [part.switch for part in view.parts] == ["s1", "s3"]
    assert {each.name: each.slots_used for each in three.controller.switches()} == {"s1": 16, "s2": 0, "s3": 16}
    three.check()


def test_named_switches_are_the_shards_in_that_order(three: Cluster) -> None:
    crew = run(three, 2, shard_switches=("s3", "s2"), table=TABLE)
    told = membership(three, crew[1])
    assert [shard.switch.ip for shard in told.shards] == ["10.9.0.3", "10.9.0.2"]
    assert [shard.worker(1).endpoint.udp_port for shard in told.shards] == [4001, 4101]
    assert [(shard.side_channels or {})[0] for shard in told.shards] == [("10.0.1.1", 5000), ("10.0.1.1", 5100)]
    assert {shard.generation for shard in told.shards} == {told.generation}
    assert len({shard.side_key for shard in told.shards}) == 2
    located = three.controller.member_requests.locate("train", crew[0].token)
    assert (located.send_to.ip, [each.ip for each in located.further]) == ("10.9.0.3", ["10.9.0.2"])


def test_no_generation_begins_before_the_switch_of_every_shard_is_reached(
    three: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_answer(_: str) -> None:
        raise SessionLostError("nobody answers")

    crew = three.make("train", 2, 16, shards=2, shard_switches=("s1", "s3"))
    with monkeypatch.context() as patched:
        patched.setattr(device_of(three, "s3"), "read_table", no_answer)
        three.start()
        for worker in crew:
            join(worker, 2)
        three.controller.tick()
        assert all(isinstance(worker.membership(), Pending) for worker in crew)
        # Begun now, the generation would end when the switch is taken over.
        assert state_of(three.controller.job("train")) is JobState.FORMING
    three.clock.sleep(5)
    three.controller.tick()
    for worker in crew:
        assert not isinstance(worker.membership(), Pending)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"shards": 2, "shard_switches": ("s1", "s1")}, "switch 's1' twice in its 2 shards"),
        ({"shards": 3, "shard_switches": ("s1", "s2")}, "3 shards at 2 switches"),
        ({"shards": 2, "shard_switches": ("s1", "s9")}, "no switch 's9'"),
        ({"shards": 0}, "0 shards"),
        ({"shards": 65}, "65 shards"),
        ({"shards": 4}, "4 shards, and 3 of 3 switches reach the workers"),
        ({"shards": 2, "tree": True}, "2 shards, and a tree; a shard is one switch"),
        ({"shards": 2, "switch": "s1"}, "2 shards, and switch 's1'"),
        ({"shards": 1, "shard_switches": ("s1",)}, "one shard, at switch 's1'"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_values(three: Cluster, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        three.controller.create_job(JobSpec("train", ranks=2, slots=16, **options))
    assert not three.controller.jobs()


def test_a_spine_is_no_shard(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(*tree_configs(), links=TREE_LINKS)
    with pytest.raises(InvalidRequestError, match="no worker is connected to switch 's3'; a shard is one switch, not"):
        cluster.controller.create_job(JobSpec("train", ranks=4, slots=16, shards=2, shard_switches=("s1", "s3")))
    assert not cluster.controller.jobs()


def test_a_switch_without_room_is_named_with_what_would_fit(three: Cluster) -> None:
    with pytest.raises(ResourceExhaustedError, match="largest free range has 64 of 64 slots") as refused:
        three.controller.create_job(JobSpec("train", ranks=2, slots=100, shards=3))
    assert "up to 64 slots" in str(refused.value)
    assert {each.slots_used for each in three.controller.switches()} == {0}


def test_a_shard_whose_switch_lacks_the_operation_is_refused_by_name_or_left_out(three: Cluster) -> None:
    others = tuple(each for each in Op if each is not Op.LOOKUP_ADD_LOOKUP2)
    device_of(three, "s2").capabilities = Capabilities("fake", ops=others)
    for asked in ({"shards": 2, "shard_switches": ("s1", "s2")}, {"shards": 3}):
        with pytest.raises(ResourceExhaustedError) as refused:
            three.controller.create_job(JobSpec("train", ranks=2, slots=16, tables={"table2": TABLE2}, **asked))
        assert (
            "s2: job 'train': the program of fake has no LOOKUP_ADD_LOOKUP2 (leave table2 out: take the codec with "
            "bits=4 and result_bits=8); ask for a job that the switches can have, or see to the switches"
        ) in str(refused.value)
    assert not three.controller.jobs()
    assert {each.slots_used for each in three.controller.switches()} == {0}
    crew = run(three, 2, table2=TABLE2)
    assert three.controller.job("train").switches == ["s1", "s3"]
    assert [shard.tables for shard in membership(three, crew[0]).shards] == [{"table2": TABLE2}] * 2


def test_a_worker_joins_all_shards_or_none(three: Cluster) -> None:
    crew = three.make("train", 2, 16, shards=2)
    with pytest.raises(InvalidRequestError, match="places at 1 shards for job 'train', which has 2"):
        crew[0].join()
    with pytest.raises(InvalidRequestError, match=r"10\.7\.7\.7 is of no network of switch 's3'"):
        crew[0].join(further=(ShardEndpoint("10.7.7.7", 4100),))
    join(crew[0], 2)
    with pytest.raises(InvalidRequestError, match="rank 0 is at"):
        crew[1].join(further=places(0, 2))
    assert three.controller.job("train").missing_ranks == [1]


# ---- how they live ---------------------------------------------------------------------------------------


def test_the_narrowest_switch_limits_the_window_at_all_shards(three: Cluster) -> None:
    device_of(three, "s3").capabilities = Capabilities("fake", max_window=5)
    crew = run(three, 2)
    assert [shard.window for shard in membership(three, crew[0]).shards] == [5, 5]


def test_a_shard_whose_entries_are_lost_ends_the_generation_of_all(three: Cluster) -> None:
    crew = run(three, 2)
    before = three.controller.job("train").generation
    device_of(three, "s3").entities.clear()
    three.clock.sleep(60)
    for worker in crew:
        worker.beat()
    three.controller.tick()
    assert all(worker.has_ended() for worker in crew)
    runs = [[((0, 8),), ((0, 3),)], [((0, 8), (9, 12)), ()]]
    for worker, held in zip(crew, runs, strict=True):
        join(worker, 2, report=report(before, held, begun=4))
    three.controller.tick()
    resumes = [shard.resume for shard in membership(three, crew[0]).shards]
    assert [[(run.first, run.end) for run in resume.decided] for resume in resumes if resume] == [
        [(0, 8), (9, 12)],
        [(0, 3)],
    ]
    assert all(resume is not None and resume.further_shards == () for resume in resumes)
    three.check()


def test_newcomers_begin_at_all_shards_behind_the_same_all_reduce(three: Cluster) -> None:
    crew = run(three, 2)
    before = three.controller.job("train").generation
    crew[1].lives += 1
    crew[1].generation = 0
    join(crew[1], 2)
    held = Report(before, 0, 40, (), 7, further_shards=(Report(before, 0, 39, ()),))
    join(crew[0], 2, report=held)
    told = membership(three, crew[1])
    assert [(shard.resume.start, shard.resume.allreduces) for shard in told.shards if shard.resume] == [
        (40, 7),
        (39, 7),
    ]
    three.check()


def test_a_report_of_other_shards_is_refused(three: Cluster) -> None:
    crew = run(three, 2)
    before = three.controller.job("train").generation
    crew[1].leave(unfinished="it fell over")
    with pytest.raises(InvalidRequestError, match="report of 1 shards of job 'train'"):
        join(crew[0], 2, report=Report(before, 0, 0, (), 0))


def test_a_switch_that_fails_lets_no_generation_run(three: Cluster) -> None:
    crew = three.make("train", 2, 16, shards=2)
    device_of(three, "s3").fail(at=device_of(three, "s3").updates, failure=Failure.REFUSED)
    for worker in crew:
        join(worker, 2)
    assert state_of(three.controller.job("train")) is not JobState.RUNNING
    device_of(three, "s3").repair()
    for _ in range(8):
        three.clock.sleep(5)
        for worker in crew:
            worker.beat()
        three.controller.tick()
    assert state_of(three.controller.job("train")) is JobState.RUNNING
    three.check()


EVERYWHERE = {1: "10.0.0.0/16"}


def switch_of(cluster: Cluster, name: str, slots: int, **options: object) -> str:
    (switch,) = cluster.controller.create_job(JobSpec(name, ranks=2, slots=slots, **options)).switches  # type: ignore[arg-type]
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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": ""}, "job name ''; a name has 1 .. 64 letters"),
        ({"name": "a/b"}, "job name 'a/b'"),
        ({"ranks": 65}, "65 workers; a job has 1 .. 64"),
        ({"ranks": -1}, "-1 workers"),
        ({"workers": (WorkerEndpoint(0, 1, "02:00:00:00:01:00", "10.0.0.1", 4000),)}, "give their number as `ranks`"),
        ({"tables": {"table6": TABLE}}, "a table 'table6'; tables are table, table16, table4, table3, table2"),
        ({"slots": 2049}, r"2049 slots; a job has 1 \.\. 2048"),
        (
            {"ranks": 13, "tables": {"table": TABLE}},
            "granularity 20 allows 12 workers, 13 workers allow granularity 19",
        ),
        ({"lease_s": 0.1}, r"lease_s 0\.1; it is 1 \.\. 86400 seconds"),
        ({"lease_s": float("nan")}, "lease_s nan"),
    ],
)
def test_requests_that_can_never_be_granted(cluster: Cluster, changes: dict[str, object], message: str) -> None:
    request = replace(JobSpec("job", ranks=2, slots=16), **changes)  # type: ignore[arg-type]
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
    assert cluster.controller.member_requests.knows(old)
    assert cluster.controller.member_requests.knows(new)
    for token in (old, new):
        assert cluster.controller.member_requests.locate("train", token).workers == 2
    newcomer(cluster, crew, new).join()  # takes rank 1 over, which ends the generation
    assert crew[0].beat().generation == 0

    cluster.controller.revoke_earlier_token("train")
    if restart:
        cluster.start()
    assert not cluster.controller.member_requests.knows(old)
    with pytest.raises(UnauthenticatedError, match="wrong token for job 'train'"):
        cluster.controller.member_requests.locate("train", old)
    with pytest.raises(UnauthenticatedError, match="wrong token"):
        newcomer(cluster, crew, old).join()
    with pytest.raises(InvalidRequestError, match="has no token but the present one"):
        cluster.controller.revoke_earlier_token("train")


def test_a_worker_that_joined_with_a_revoked_token_continues_in_later_generations(cluster: Cluster) -> None:
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


def test_a_creation_whose_answer_was_lost_is_repeated(cluster: Cluster) -> None:
    request, token = JobSpec("train", ranks=2, slots=16), "t" * 43
    made = cluster.controller.create_job(request, token)
    assert cluster.controller.create_job(request, token) == made
    assert cluster.controller.rotate_token("train", token) == token
    assert made.token == token
    for again, with_token in ((replace(request, slots=8), token), (request, "u" * 43), (request, "")):
        with pytest.raises(JobExistsError):
            cluster.controller.create_job(again, with_token)
    new = cluster.controller.rotate_token("train", "v" * 43)
    # The token of another job, or of before, is nobody's to give again.
    for used in (token, new):
        with pytest.raises(InvalidRequestError, match="this token is a job's already"):
            cluster.controller.create_job(replace(request, name="other"), used)
    with pytest.raises(InvalidRequestError, match="this token is a job's already"):
        cluster.controller.rotate_token("train", token)
    device = device_of(cluster)
    enter([Worker(cluster, "train", new, rank) for rank in range(2)])
    device.fail(at=device.updates, failure=Failure.UNREACHABLE)
    with pytest.raises(ControlPlaneError, match="is ending"):
        cluster.controller.delete_job("train")
    with pytest.raises(JobExistsError):
        cluster.controller.create_job(request, new)
    for guessed in ("secret", "t" * 31, "t" * 257, " " * 43, "\n" * 43):
        with pytest.raises(InvalidRequestError, match="32 to 256 letters"):
            cluster.controller.create_job(replace(request, name="other"), guessed)
