# SPDX-License-Identifier: Apache-2.0
"""Jobs over several switches side by side: where they go, what their workers are told, how they live and end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hopsum_controlplane.cluster import InvalidRequestError, JobRequest, JobState, Pending, ResourceExhaustedError
from hopsum_controlplane.cluster.decision import Report
from hopsum_controlplane.cluster.requests import ShardEndpoint
from hopsum_controlplane.devices.device import Capabilities
from hopsum_ptf.fake_device import Failure, FakeDevice
from hopsum_wire import Op
from hopsum_wire.membership import JobMembership

from .world import TABLE, TREE_LINKS, Cluster, Worker, device_of, state_of, switch_config, tree_configs


@pytest.fixture
def three(tmp_path: Path) -> Cluster:
    """Three switches that reach all workers, the second one with few slots."""
    configs = tuple(switch_config(number, slots=64 if number == 2 else 2048) for number in (1, 2, 3))
    cluster = Cluster(tmp_path, configs, {config.name: FakeDevice() for config in configs})
    cluster.start()
    return cluster


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
    found = cluster.controller.await_membership("train", worker.rank, worker.secret)
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
    located = three.controller.locate("train", crew[0].token)
    assert (located.send_to.ip, [each.ip for each in located.further]) == ("10.9.0.3", ["10.9.0.2"])


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
        ({"shards": 2, "observers": 1}, "1 observers of 2 shards"),
        ({"shards": 1, "shard_switches": ("s1",)}, "one shard, at switch 's1'"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_values(three: Cluster, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        three.controller.create_job(JobRequest("train", 2, 16, **options))
    assert not three.controller.jobs()


def test_a_spine_is_no_shard(tmp_path: Path) -> None:
    configs = tree_configs()
    cluster = Cluster(tmp_path, configs, {config.name: FakeDevice() for config in configs}, TREE_LINKS)
    cluster.start()
    with pytest.raises(InvalidRequestError, match="no worker stands at switch 's3'; a shard is one switch, not"):
        cluster.controller.create_job(JobRequest("train", 4, 16, shards=2, shard_switches=("s1", "s3")))
    assert not cluster.controller.jobs()


def test_a_switch_without_room_is_named_with_what_would_fit(three: Cluster) -> None:
    with pytest.raises(ResourceExhaustedError, match="largest free range has 64 of 64 slots") as refused:
        three.controller.create_job(JobRequest("train", 2, 100, shards=3))
    assert "up to 64 slots" in str(refused.value)
    assert {each.slots_used for each in three.controller.switches()} == {0}


@pytest.mark.parametrize(("op", "options"), [(Op.LOOKUP_ADD6, {"table6": tuple(range(16))})])
def test_a_shard_whose_switch_lacks_the_operation_is_refused_by_name_or_left_out(
    tmp_path: Path, op: Op, options: dict[str, Any]
) -> None:
    lacking = Capabilities("fake", ops=tuple(each for each in Op if each is not op))
    configs = tuple(switch_config(number) for number in (1, 2, 3))
    devices = {config.name: FakeDevice(capabilities=lacking if config.name == "s2" else None) for config in configs}
    cluster = Cluster(tmp_path, configs, devices)
    cluster.start()
    why = rf"s2: job 'train': the program of fake has no {op.name}"
    for asked in ({"shards": 2, "shard_switches": ("s1", "s2")}, {"shards": 3}):
        with pytest.raises(ResourceExhaustedError, match=why):
            cluster.controller.create_job(JobRequest("train", 2, 16, **asked, **options))
    assert not cluster.controller.jobs()
    assert {each.slots_used for each in cluster.controller.switches()} == {0}
    crew = run(cluster, 2, **options)
    assert cluster.controller.job("train").switches == ["s1", "s3"]
    (name, given) = next(iter(options.items()))
    assert [getattr(shard, name) for shard in membership(cluster, crew[0]).shards] == [given, given]


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


def test_the_narrowest_switch_says_how_many_packets_are_in_flight_at_all(three: Cluster) -> None:
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
    assert all(worker.is_over() for worker in crew)
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


def test_shards_survive_the_controller(three: Cluster) -> None:
    crew = run(three, 3)
    before = membership(three, crew[0])
    three.start()
    assert membership(three, crew[0]) == before
    three.check()
    three.controller.delete_job("train")
    three.check()
    assert {each.slots_used for each in three.controller.switches()} == {0}
