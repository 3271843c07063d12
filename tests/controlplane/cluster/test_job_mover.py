# SPDX-License-Identifier: Apache-2.0
"""Jobs that move between switches."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hopsum_controlplane.cluster import JobState, Pending
from hopsum_controlplane.cluster import lifecycle as life
from hopsum_controlplane.cluster.decision import Report
from hopsum_controlplane.cluster.records import JobRecord
from hopsum_controlplane.devices.device import Capabilities
from hopsum_controlplane.errors import (
    ControlPlaneError,
    InvalidRequestError,
    ResourceExhaustedError,
    UnknownJobError,
)
from hopsum_ptf.fake_device import Failure

from .conftest import MakeCluster
from .test_shard_jobs import join, run, three  # noqa: F401
from .world import Cluster, Worker, device_of, expected, switch_config


def standing(cluster: Cluster, name: str) -> bool:
    """Return whether entries of a job are installed on a switch, in addition to the switch's own address."""
    return len(device_of(cluster, name).entities) > 1


def record(cluster: Cluster, name: str = "train") -> JobRecord:
    return cluster.controller._cache.get(name)


def rejoin(crew: list[Worker], shards: int) -> None:
    """Join again with a report of the generation that has ended, and hear of the next one."""
    for worker in crew:
        further = tuple(Report(worker.generation, 0, 0, ()) for _ in range(1, shards))
        join(worker, shards, report=Report(worker.generation, 0, 0, (), 0, further_shards=further))
    for worker in crew:
        assert not isinstance(worker.membership(), Pending)


def cleared(cluster: Cluster) -> None:
    """Assert that every switch has installed what the database says, also where jobs have left something."""
    records = [cluster.controller._cache.get(view.name) for view in cluster.controller.jobs()]
    for switch in cluster.config.switches:
        jobs = [each.parts[switch.name] for each in records if switch.name in each.parts]
        assert not any(each.leftover(switch.name) for each in records)
        assert device_of(cluster, switch.name).entities == expected(switch, jobs)


@pytest.mark.parametrize(("away", "shard"), [("s1", 0), ("s3", 1)])
def test_a_shard_moves_and_the_workers_continue(three: Cluster, away: str, shard: int) -> None:  # noqa: F811
    crew = run(three, 2, shard_switches=("s1", "s3"))
    before = record(three).generation
    moved = three.controller.mover.move("train", away, "s2")
    assert (moved.from_switch, moved.to_switch, moved.slots) == (away, "s2", 16)
    assert "it moves from switch" in crew[0].beat().reason
    assert record(three).switches[shard] == "s2"
    three.controller.tick()
    rejoin(crew, 2)
    now = record(three)
    assert (now.state, now.departed) == (JobState.RUNNING, ())
    assert now.generation > before
    assert not standing(three, away)
    cleared(three)
    located = three.controller.member_requests.locate("train", crew[0].token)
    assert (located.send_to, *located.further)[shard].ip == "10.9.0.2"


def test_without_a_name_it_goes_where_most_room_is(three: Cluster) -> None:  # noqa: F811
    three.run("train", 2, 16, switch="s1")
    assert three.controller.mover.move("train").to_switch == "s3", "s2 has few slots"


def test_nobody_waits_for_a_switch_that_is_dead(three: Cluster) -> None:  # noqa: F811
    """Its slots stay the job's, and its entries are removed when it answers again; the job continued long before."""
    crew = run(three, 2, shard_switches=("s1", "s3"))
    dead = device_of(three, "s1")
    dead.fail(at=dead.updates, failure=Failure.UNREACHABLE)
    three.controller.mover.move("train", "s1", "s2")
    three.controller.tick()
    rejoin(crew, 2)
    assert (record(three).state, [left.switch for left in record(three).departed]) == (JobState.RUNNING, ["s1"])
    assert {view.name: view.slots_used for view in three.controller.switches()}["s1"] == 16
    with pytest.raises(InvalidRequestError, match="has slots on switch 's1' already"):
        three.controller.mover.move("train", "s2", "s1")
    dead.repair()
    three.clock.sleep(5)
    three.controller.reconcile("s1")
    assert record(three).departed == ()
    cleared(three)


def test_a_controller_that_starts_again_clears_what_was_left(three: Cluster) -> None:  # noqa: F811
    crew = run(three, 2, shard_switches=("s1", "s3"))
    three.controller.mover.move("train", "s3", "s2")
    assert [left.switch for left in record(three).departed] == ["s3"]
    assert standing(three, "s3")
    three.start()
    three.controller.tick()
    rejoin(crew, 2)
    assert record(three).departed == ()
    cleared(three)


@pytest.mark.parametrize("away", ["s1", "s3"])
def test_a_job_that_forms_moves_with_its_waiting_workers(three: Cluster, away: str) -> None:  # noqa: F811
    crew = three.make("train", 2, 16, shards=2, shard_switches=("s1", "s3"))
    join(crew[0], 2)
    three.controller.mover.move("train", away, "s2")
    assert (record(three).state, record(three).departed) == (JobState.FORMING, ())
    join(crew[1], 2)
    for worker in crew:
        assert not isinstance(worker.membership(), Pending)
    cleared(three)


def test_a_job_that_is_deleted_waits_for_the_switch_that_it_has_left(three: Cluster) -> None:  # noqa: F811
    run(three, 2, shard_switches=("s1", "s3"))
    before = record(three)
    to = before.branches[0]
    now = life.move(before, "s1", replace(to, switch="s2", job=None), {}, "it moves")
    assert now is not None
    assert (now.state, now.confirmed, now.next_switches) == (JobState.CHANGING, ("s2",), ("s3",))
    forming = life.on_removed(now, "s3")
    assert forming is not None
    assert forming.state is JobState.FORMING
    ending = life.delete_job(forming)
    assert ending is not None
    assert (ending.state, ending.job, ending.next_switches) == (JobState.ENDING, None, ())
    three.controller._store.put(ending)
    assert three.controller._store.load().records == (ending,)
    assert life.on_cleared(ending, "s1") is None
    both = life.delete_job(now)
    assert both is not None
    assert life.on_cleared(both, "s1") is not None, "s3 is still to be cleared"
    alone = life.on_removed(both, "s3")
    assert alone is not None
    assert life.on_cleared(alone, "s1") is None
    with pytest.raises(ControlPlaneError, match="cannot move from s3 to s1"):
        life.move(ending, "s3", replace(to, switch="s1"), {}, "no")


def test_moves_that_cannot_be_are_refused_and_change_nothing(three: Cluster) -> None:  # noqa: F811
    run(three, 2, shard_switches=("s1", "s3"))
    before = record(three)
    three.make("full", 2, 60, switch="s2")
    cases: list[tuple[tuple[str | None, str | None], type[Exception], str]] = [
        ((None, "s2"), InvalidRequestError, "has 2 shards; say which leaves: s1, s3"),
        (("s2", None), InvalidRequestError, "is not on switch 's2'; it is on s1, s3"),
        (("s1", "s3"), InvalidRequestError, "has slots on switch 's3' already"),
        (("s1", "s9"), InvalidRequestError, "no switch 's9'; there are s1, s2, s3"),
        (("s1", "s2"), ResourceExhaustedError, "s2: the largest free range has 4 of 64 slots"),
        (("s1", None), ResourceExhaustedError, "s2: the largest free range has 4 of 64 slots"),
    ]
    for (away, to), kind, told in cases:
        with pytest.raises(kind, match=told):
            three.controller.mover.move("train", away, to)
    with pytest.raises(UnknownJobError, match="no job 'other'"):
        three.controller.mover.move("other")
    assert record(three) == before


def test_a_switch_that_lacks_a_workers_network_is_refused(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(switch_config(1), switch_config(2, {1: "10.7.0.0/16"}))
    cluster.run("train", 2, 16, switch="s1")
    with pytest.raises(InvalidRequestError, match=r"10\.0\.1\.1 is of no network of switch 's2'"):
        cluster.controller.mover.move("train", to="s2")
    assert record(cluster).state is JobState.RUNNING


def test_a_switch_of_another_kind_is_refused(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(switch_config(1), switch_config(2))
    device_of(cluster, "s2").capabilities = Capabilities("small", max_window=8)
    cluster.run("train", 2, 16, switch="s1")
    with pytest.raises(InvalidRequestError, match=r"at most any packets, and switch 's2' .* at most 8 packets"):
        cluster.controller.mover.move("train", to="s2")


def test_a_job_over_a_tree_is_refused(tree: Cluster) -> None:
    tree.make("train", 4, 16, tree=True)
    with pytest.raises(InvalidRequestError, match="is over a tree of switches"):
        tree.controller.mover.move("train", "s1")
