# SPDX-License-Identifier: Apache-2.0
"""Places of jobs over a tree of switches, what is shown of them, and layer-2 forwarding there."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest

from hopsum_controlplane import ControlPlaneError
from hopsum_controlplane.cluster import InvalidRequestError, JobRequest, Pending, PortRule, ResourceExhaustedError
from hopsum_controlplane.cluster.cluster_config import LinkConfig
from hopsum_controlplane.devices.device import Capabilities
from hopsum_controlplane.prometheus_metrics import expose
from hopsum_controlplane.tables import forward
from hopsum_ptf.fake_device import FakeDevice
from hopsum_wire import Event

from .conftest import MakeCluster
from .noted import EVERYBODY, device
from .scraping import parse
from .world import TABLE, TREE_LINKS, Cluster, switch_config, tree_configs


def refused(cluster: Cluster, error: type[ControlPlaneError], **options: Any) -> str:
    """Return why a request is refused; nothing is reserved for it."""
    used = [view.slots_used for view in cluster.controller.switches()]
    with pytest.raises(error) as why:
        cluster.controller.create_job(JobRequest(**{"name": "new", "workers": 4, "slots": 16, **options}))
    assert [view.slots_used for view in cluster.controller.switches()] == used
    return str(why.value)


def test_a_job_that_no_switch_reaches_alone_goes_over_the_tree(tree: Cluster) -> None:
    tree.controller.create_job(JobRequest("first", 2, 8, switch="s1"))
    made = tree.controller.create_job(JobRequest("train", 4, 16))
    assert made.switches == ["s1", "s2", "s3"]
    assert [(part.switch, part.job_index, part.slot_base, part.slots) for part in made.parts] == [
        ("s1", 1, 8, 16), ("s2", 0, 0, 16), ("s3", 0, 0, 16),
    ]  # fmt: skip
    assert [view.slots_used for view in tree.controller.switches()] == [24, 16, 16]
    assert [view.jobs for view in tree.controller.switches()] == [2, 1, 1]
    tree.controller.delete_job("train")
    assert [view.slots_used for view in tree.controller.switches()] == [8, 0, 0]


def test_one_switch_is_enough_unless_a_tree_is_asked_for(make_cluster: MakeCluster) -> None:
    leaf, other, spine = tree_configs()
    flat = replace(spine, ports=(PortRule(1, IPv4Network(EVERYBODY)),))
    cluster = make_cluster(leaf, other, flat, links=TREE_LINKS)
    assert cluster.controller.create_job(JobRequest("flat", 4, 16)).switches == ["s3"]
    assert cluster.controller.create_job(JobRequest("named", 4, 16, switch="s3")).switches == ["s3"]
    asked = [JobRequest("tree", 4, 16, tree=True), JobRequest("there", 4, 16, switch="s3", tree=True)]
    assert [cluster.controller.create_job(each).switches for each in asked] == [["s1", "s2", "s3"]] * 2
    assert "switch 's1' has no leaves below it for a tree; name a spine: s3" in refused(
        cluster, InvalidRequestError, switch="s1", tree=True
    )


def test_a_spine_without_workers_of_its_own_means_its_tree(tree: Cluster) -> None:
    assert tree.controller.create_job(JobRequest("train", 4, 16, switch="s3")).switches == ["s1", "s2", "s3"]


def test_without_links_there_is_no_tree(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    assert "no switch has leaves below it for a tree; configure links" in refused(
        cluster, InvalidRequestError, tree=True
    )
    assert "switch 's1' has no leaves" in refused(cluster, InvalidRequestError, tree=True, switch="s1")


def test_of_two_spines_the_one_whose_fullest_switch_has_most_room(make_cluster: MakeCluster) -> None:
    leaves = (switch_config(1, {1: EVERYBODY}, slots=64), switch_config(2, {1: EVERYBODY}, slots=128))
    spines = (switch_config(3, {}), switch_config(4, {}))
    links = (LinkConfig("s1", 9, "s3", 1), LinkConfig("s2", 9, "s4", 1))
    cluster = make_cluster(*leaves, *spines, links=links)
    asked = [JobRequest(name, 2, 64, tree=True) for name in ("a", "b", "c")]
    assert [cluster.controller.create_job(each).switches for each in asked[:2]] == [["s2", "s4"], ["s1", "s3"]]
    assert cluster.controller.create_job(asked[2]).switches == ["s2", "s4"]
    assert refused(cluster, ResourceExhaustedError, tree=True) == (
        "no place for job 'new' with 16 slots: s1: the largest free range has 0 of 64 slots, 0 are free in all; "
        "s2: the largest free range has 0 of 128 slots, 0 are free in all; delete a job, or see to the switches"
    )


def test_no_room_on_one_switch_takes_none_on_the_others(tree: Cluster) -> None:
    tree.controller.create_job(JobRequest("full", 2, 2040, switch="s2"))
    why = refused(tree, ResourceExhaustedError)
    assert "s2: the largest free range has 8 of 2048 slots" in why
    assert "ask for up to 8 slots" in why
    assert "s1:" not in why
    device(tree, "s1").capabilities = Capabilities("fake", max_growth_bytes=512)
    assert "s1: job 'new': LOOKUP_ADD16 lets a frame grow" in refused(tree, ResourceExhaustedError, table16=TABLE)


def test_networks_that_no_tree_reaches(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(*tree_configs(), switch_config(4, {1: "10.7.0.0/16"}), links=TREE_LINKS)
    why = refused(cluster, InvalidRequestError)
    assert "s4 lacks 10.0.1.1/32; the leaves below s3 lack 10.7.0.0/16; name the switch" in why
    assert cluster.controller.create_job(JobRequest("named", 4, 16, switch="s3")).parts


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"quorum": 3}, "over a tree of switches: quorum 3 of 4 workers; all 4 workers complete a sum there"),
        ({"min_quorum": 2}, "over a tree of switches: min_quorum 2; one that asks closes the sum of its own rack"),
        ({"observers": 1}, "over a tree of switches: 1 observers"),
        ({"workers": 13, "table": TABLE}, "granularity 20 allows 12 workers, 13 workers allow granularity 19"),
    ],
)
def test_what_a_tree_cannot_have(tree: Cluster, options: dict[str, Any], why: str) -> None:
    assert why in refused(tree, InvalidRequestError, **options)


def test_a_quorum_of_all_workers_is_none(tree: Cluster) -> None:
    assert tree.controller.create_job(JobRequest("train", 4, 16, quorum=4)).parts


def test_views_have_every_switch(tree: Cluster) -> None:
    tree.run("train", 3, 16)
    for name, added, completed in (("s1", 20, 0), ("s2", 10, 0), ("s3", 2, 1)):
        cells = {Event.ADDED: added, Event.COMPLETED: completed}
        device(tree, name).counters["job_events"] = cells  # of job index 0
    assert tree.controller.job("train", counters=False).counters == {}
    view = tree.controller.job("train")
    assert view.switches == ["s1", "s2", "s3"]
    assert [part.switch for part in view.parts] == ["s1", "s2", "s3"]
    assert [part.counters["added"] for part in view.parts] == [20, 10, 2]
    assert (view.counters["added"], view.counters["completed"]) == (30, 1)
    values = parse(expose(tree.controller))
    assert values['job_packets_total{job_name="train",switch="s2",event="added"}'] == 10
    assert values['job_workers{job_name="train"}'] == 3
    assert [values[f'job_slots{{job_name="train",switch="{name}"}}'] for name in ("s1", "s2", "s3")] == [16] * 3
    assert [values[f'switch_jobs{{switch="{name}",state="running"}}'] for name in ("s1", "s2", "s3")] == [1, 1, 1]


def test_switches_forward_between_the_racks(tmp_path: Path) -> None:
    """Frames of workers for each other find their way over the spine."""
    configs = tree_configs(l2_forwarding=True)
    cluster = Cluster(tmp_path, configs, {each.name: FakeDevice() for each in configs}, TREE_LINKS)
    cluster.start()
    crew = cluster.make("train", 3, 16)
    for worker in crew:
        worker.join(mac=f"02:00:00:00:02:{worker.rank:02x}")
    assert not isinstance(crew[0].membership(), Pending)
    ports, floods = {}, {}
    for name, at in cluster.devices.items():
        entries = [entry for entry in at.read_table(forward.L2) if "port" in entry.params]
        ports[name] = {entry.match["dst"] & 0xFF: entry.params["port"] for entry in entries}
        (flood,) = [group for group in at.read_groups() if group.id == forward.FLOOD_GROUP]
        floods[name] = {replica.port for replica in flood.replicas}
    assert ports == {"s1": {0: 1, 1: 2, 2: 9}, "s2": {0: 9, 1: 9, 2: 1}, "s3": {0: 1, 1: 1, 2: 2}}
    assert floods == {"s1": {1, 2, 9}, "s2": {1, 2, 9}, "s3": {1, 2}}
    cluster.stop()
