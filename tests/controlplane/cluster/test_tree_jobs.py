# SPDX-License-Identifier: Apache-2.0
"""Jobs over a spine and two leaves: what their workers are told, and how they live and end."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Network
from typing import Any

import pytest

from hopsum_controlplane import ControlPlaneError
from hopsum_controlplane.cluster import (
    InvalidRequestError,
    JobState,
    Pending,
    PortRule,
    SwitchUnavailableError,
)
from hopsum_controlplane.devices.device import Capabilities
from hopsum_ptf.fake_device import Failure

from .conftest import MakeCluster
from .noted import EVERYBODY, device
from .world import LEASE_S, TABLE, TREE_LINKS, Cluster, Worker, state_of, tree_configs


def documents(crew: list[Worker]) -> list[dict[str, Any]]:
    """Return what all are told who do not know it yet."""
    found = [worker.membership() for worker in crew]
    assert not any(isinstance(each, Pending) for each in found), found
    return [each for each in found if isinstance(each, dict)]


# ---- what they are told ------------------------------------------------------------------------------------


def test_each_worker_is_at_its_leaf(tree: Cluster) -> None:
    crew = tree.run("train", 3, 16, table=TABLE)
    crew[2].start_again()
    for worker in crew[:2]:
        worker.join()
    found = documents(crew)
    assert len({each["generation"] for each in found}) == 1
    assert [each["switch"]["ip"] for each in found] == ["10.9.0.1", "10.9.0.1", "10.9.0.2"]
    for each in found:
        assert [worker["send_to"]["ip"] for worker in each["workers"]] == ["10.9.0.1", "10.9.0.1", "10.9.0.2"]
        assert [worker["leaf"] for worker in each["workers"]] == [0, 0, 2]
        assert [worker["side_port"] for worker in each["workers"]] == [5000, 5001, 5002]
        assert (each["slots"], each["window"], each["quorum"], each["table"]) == (16, 16, 3, list(TABLE))
    located = tree.controller.locate("train", crew[0].token)
    assert [(leaf.send_to.ip, tuple(leaf.networks)) for leaf in located.leaves] == [
        ("10.9.0.1", ("10.0.1.1/32", "10.0.1.2/32")),
        ("10.9.0.2", ("10.0.1.3/32", "10.0.1.4/32")),
    ]
    with pytest.raises(
        InvalidRequestError, match=r"10\.0\.7\.7 is of no network of the leaves of job 'train': s1 10\.0"
    ):
        crew[0].join(ip="10.0.7.7")


def test_nobody_joins_from_behind_a_link(make_cluster: MakeCluster) -> None:
    """A rule for the port towards the spine is for jobs at the leaf alone, and not for its rack."""
    leaf, other, spine = tree_configs()
    wide = replace(leaf, ports=(*leaf.ports, PortRule(9, IPv4Network(EVERYBODY))))
    cluster = make_cluster(wide, other, spine, links=TREE_LINKS)
    crew = cluster.run("train", 3, 16, tree=True)
    assert [member.port for member in cluster.controller.job("train").members] == [1, 2, 1]
    with pytest.raises(InvalidRequestError, match="of no network of the leaves"):
        crew[0].join(ip="10.0.1.77")


def test_the_narrowest_switch_says_how_many_packets_are_in_flight(tree: Cluster) -> None:
    device(tree, "s2").capabilities = Capabilities("fake", max_window=5)
    crew = tree.run("train", 3, 16)
    assert tree.controller._cache.get("train").window == 5
    crew[0].generation = 0
    assert documents(crew[:1])[0]["window"] == 5


# ---- how they live -----------------------------------------------------------------------------------------


def test_the_spine_is_first_and_last(tree: Cluster) -> None:
    notes = device(tree, "s1").notes
    crew = tree.run("train", 3, 16)
    assert notes == [("s3", "admits"), ("s1", "admits"), ("s2", "admits")]
    notes.clear()
    crew[0].start_again()
    assert notes == [("s1", "admits no more"), ("s2", "admits no more"), ("s3", "admits no more")]
    for worker in crew[1:]:
        worker.join()
    documents(crew)
    notes.clear()
    tree.controller.delete_job("train")
    assert [name for name, _ in notes] == ["s2", "s1", "s3"]
    tree.check()
    assert {view.slots_used for view in tree.controller.switches()} == {0}


def test_a_rack_without_workers_is_left_out(tree: Cluster) -> None:
    """Ranks stand where they come from, in any order; who comes again may come from elsewhere."""
    crew = tree.make("train", 2, 16)
    places = {0: "10.0.1.3", 1: "10.0.1.4"}
    for worker in crew:
        worker.join(ip=places[worker.rank])
    assert [each["switch"]["ip"] for each in documents(crew)] == ["10.9.0.2"] * 2
    assert [name for name, _ in device(tree, "s1").notes] == ["s3", "s2"]
    tree.check()
    crew[0].lives, crew[0].generation = 1, 0
    crew[0].join(ip="10.0.1.1")
    crew[1].join(ip=places[1])
    assert [each["switch"]["ip"] for each in documents(crew)] == ["10.9.0.1", "10.9.0.2"]
    tree.check()


@pytest.mark.parametrize("name", ["s1", "s3"])
def test_a_switch_that_restarts_ends_the_generation_of_all(tree: Cluster, name: str) -> None:
    crew = tree.run("train", 4, 16)
    first = crew[0].generation
    device(tree, name).entities.clear()
    tree.clock.sleep(11.0 - LEASE_S / 2)
    for worker in crew:
        worker.beat()
    tree.clock.sleep(LEASE_S / 2)
    tree.controller.tick()
    assert state_of(tree.controller.job("train")) is JobState.FORMING
    assert f"switch {name} lost entries" in crew[3].beat().reason
    tree.check()
    for worker in crew:
        worker.held = ((0, 4 + worker.rank),)
        worker.join()
    found = documents(crew)
    assert {each["generation"] for each in found} == {crew[0].generation}
    assert crew[0].generation > first
    runs = [(run["first"], run["end"], list(run["ranks"])) for run in found[0]["resume"]["decided"]]
    assert runs[0] == (0, 4, [0, 1, 2, 3])
    assert all(each["resume"] == found[0]["resume"] for each in found)
    tree.check()


def test_no_generation_begins_before_all_switches_answer(tree: Cluster) -> None:
    """Nothing is written to the others, so no generation is wasted while one is away."""
    crew = tree.make("train", 3, 16)
    device(tree, "s2").fail(at=device(tree, "s2").updates, failure=Failure.UNREACHABLE)
    for worker in crew:
        worker.join()
    assert state_of(tree.controller.job("train")) is JobState.CHANGING  # that is how it was found
    tree.clock.sleep(1.5)
    tree.controller.tick()
    assert isinstance(pending := crew[0].membership(), Pending)
    assert "s2: " in pending.condition
    begun = tree.controller.job("train").generations_begun
    device(tree, "s2").repair()
    tree.clock.sleep(1.5)
    tree.controller.tick()
    documents(crew)
    assert tree.controller.job("train").generations_begun == begun + 1
    tree.check()


def test_a_leaf_without_workers_is_not_waited_for(tree: Cluster) -> None:
    crew = tree.make("train", 2, 16)
    tree.run("other", 3, 16)
    device(tree, "s2").fail(at=device(tree, "s2").updates, failure=Failure.UNREACHABLE)
    with pytest.raises(SwitchUnavailableError):
        tree.controller.delete_job("other")
    assert not tree.controller.switches()[1].reachable
    for worker in crew:
        worker.join()
    documents(crew)
    assert state_of(tree.controller.job("train")) is JobState.RUNNING  # both are at the first leaf
    device(tree, "s2").repair()
    tree.controller.delete_job("other")
    tree.check()


# ---- the next controller -----------------------------------------------------------------------------------


def test_a_link_of_a_job_is_gone(tree: Cluster) -> None:
    tree.run("train", 3, 16)
    tree.config = replace(tree.config, links=TREE_LINKS[:1])
    with pytest.raises(ControlPlaneError, match=r"over s1, s2, then s3, and no link of 's2' to 's3' is configured"):
        tree.start()
    tree.config = replace(tree.config, links=())
    with pytest.raises(ControlPlaneError, match="switch 's3' has no ports"):
        tree.start()
