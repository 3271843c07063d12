# SPDX-License-Identifier: Apache-2.0
"""Jobs over a tree of switches: places, words for workers, life and end, and layer-2 forwarding."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Network
from typing import Any

import pytest

from hopsum_controlplane import ControlPlaneError, JobSpec
from hopsum_controlplane.cluster import JobState, Pending, PortRule
from hopsum_controlplane.cluster.cluster_config import LinkConfig
from hopsum_controlplane.devices.device import Capabilities
from hopsum_controlplane.entries import Delete, Insert, Modify, MulticastGroup, TableEntry
from hopsum_controlplane.errors import InvalidRequestError, ResourceExhaustedError, SwitchUnavailableError
from hopsum_controlplane.tables import forward
from hopsum_controlplane.web.prometheus_metrics import render_metrics
from hopsum_ptf.fake_device import Failure
from hopsum_wire import Event, Op

from ...support.jobs import spec_options
from ..conftest import TABLE2, TABLE3, TABLE4
from .conftest import MakeCluster
from .test_metrics import parse
from .world import (
    EVERYBODY,
    LEASE_S,
    TABLE,
    TREE_LINKS,
    Cluster,
    Worker,
    device,
    device_of,
    state_of,
    switch_config,
    time_passes,
    tree_configs,
)


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
    located = tree.controller.member_requests.locate("train", crew[0].token)
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
    time_passes(tree, 11.0, *crew)
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


def refused(cluster: Cluster, error: type[ControlPlaneError], **options: Any) -> str:
    """Return why a request is refused; nothing is reserved for it."""
    used = [view.slots_used for view in cluster.controller.switches()]
    with pytest.raises(error) as why:
        cluster.controller.create_job(JobSpec(**{"name": "new", "ranks": 4, "slots": 16, **spec_options(**options)}))
    assert [view.slots_used for view in cluster.controller.switches()] == used
    return str(why.value)


def test_a_job_that_no_switch_reaches_alone_goes_over_the_tree(tree: Cluster) -> None:
    tree.controller.create_job(JobSpec("first", ranks=2, slots=8, switch="s1"))
    made = tree.controller.create_job(JobSpec("train", ranks=4, slots=16))
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
    assert cluster.controller.create_job(JobSpec("flat", ranks=4, slots=16)).switches == ["s3"]
    assert cluster.controller.create_job(JobSpec("named", ranks=4, slots=16, switch="s3")).switches == ["s3"]
    asked = [JobSpec("tree", ranks=4, slots=16, tree=True), JobSpec("there", ranks=4, slots=16, switch="s3", tree=True)]
    assert [cluster.controller.create_job(each).switches for each in asked] == [["s1", "s2", "s3"]] * 2
    assert "switch 's1' has no leaves below it for a tree; name a spine: s3" in refused(
        cluster, InvalidRequestError, switch="s1", tree=True
    )


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
    asked = [JobSpec(name, ranks=2, slots=64, tree=True) for name in ("a", "b", "c")]
    assert [cluster.controller.create_job(each).switches for each in asked[:2]] == [["s2", "s4"], ["s1", "s3"]]
    assert cluster.controller.create_job(asked[2]).switches == ["s2", "s4"]
    assert refused(cluster, ResourceExhaustedError, tree=True) == (
        "no place for job 'new' with 16 slots: s1: the largest free range has 0 of 64 slots, 0 are free in all; "
        "s2: the largest free range has 0 of 128 slots, 0 are free in all; delete a job, or see to the switches"
    )


def test_no_room_on_one_switch_takes_none_on_the_others(tree: Cluster) -> None:
    tree.controller.create_job(JobSpec("full", ranks=2, slots=2040, switch="s2"))
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
    named = JobSpec("named", ranks=4, slots=16, switch="s3")
    assert cluster.controller.create_job(named).switches == ["s1", "s2", "s3"], "the spine has no workers of its own"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"quorum": 3}, "over a tree of switches: quorum 3 of 4 workers; all 4 workers complete a sum there"),
        ({"min_quorum": 2}, "over a tree of switches: min_quorum 2; one that asks closes the sum of its own rack"),
        ({"table3": TABLE3}, "over a tree of switches: table3: a leaf makes a PARTIAL of 1024 bytes from an"),
        ({"table2": TABLE2}, "from an UPDATE of 256 bytes for LOOKUP_ADD_LOOKUP2, and in bmv2 a frame"),
    ],
)
def test_what_a_tree_cannot_have(tree: Cluster, options: dict[str, Any], why: str) -> None:
    assert why in refused(tree, InvalidRequestError, **options)


def test_finished_sums_are_looked_up_at_the_spine_alone(tree: Cluster) -> None:
    crew = tree.run("train", 4, 16, table4=TABLE4)
    crew[0].generation = 0
    assert documents(crew[:1])[0]["table4"] == list(TABLE4)
    for table, counts in (("lookup", [1, 1, 0]), ("requantize", [0, 0, 1])):
        assert [len(device(tree, name).read_table(table)) for name in ("s1", "s2", "s3")] == counts
    tree.check()
    device(tree, "s3").entities = {
        key: entity for key, entity in device(tree, "s3").entities.items() if "requantize" not in key
    }
    time_passes(tree, 11.0, *crew)
    assert "switch s3 lost entries: job 'train'" in crew[0].beat().reason, "no sum may be finished without it"


def test_a_spine_needs_the_operations_that_look_finished_sums_up(tree: Cluster) -> None:
    lacking = {Op.LOOKUP_ADD8, Op.LOOKUP_ADD_LOOKUP4}
    device(tree, "s3").capabilities = Capabilities("fake", ops=tuple(op for op in Op if op not in lacking))
    why = refused(tree, ResourceExhaustedError, table4=TABLE4)
    assert "s3: job 'new': the program of fake has no LOOKUP_ADD_LOOKUP4" in why
    below = JobSpec("train", ranks=4, slots=16, tables={"table": TABLE})
    assert tree.controller.create_job(below).parts, "codes are looked up below it"


def test_a_quorum_of_all_workers_is_none(tree: Cluster) -> None:
    assert tree.controller.create_job(JobSpec("train", ranks=4, slots=16, quorum=4)).parts


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
    values = parse(render_metrics(tree.controller))
    assert values['job_packets_total{job_name="train",switch="s2",event="added"}'] == 10
    assert values['job_workers{job_name="train"}'] == 3
    assert [values[f'job_slots{{job_name="train",switch="{name}"}}'] for name in ("s1", "s2", "s3")] == [16] * 3
    assert [values[f'switch_jobs{{switch="{name}",state="running"}}'] for name in ("s1", "s2", "s3")] == [1, 1, 1]


def test_switches_forward_between_the_racks(make_cluster: MakeCluster) -> None:
    """Frames of workers for each other find their way over the spine."""
    cluster = make_cluster(*tree_configs(l2_forwarding=True), links=TREE_LINKS)
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


NETWORKS = {1: "10.0.1.1/32", 2: "10.0.1.2/32"}
FLOOD = [*forward.broadcast([1, 2])]
MACS = ("02:00:00:00:07:01", "02:00:00:00:07:02")


def join(crew: list[Worker], udp_port: int = 4000) -> None:
    for worker, mac in zip(crew, MACS, strict=True):
        worker.join(mac=mac, udp_port=udp_port + worker.rank)


def forwarding(cluster: Cluster) -> list[TableEntry | MulticastGroup]:
    entities = cluster.installed_entries().values()
    return [
        each
        for each in entities
        if (isinstance(each, TableEntry) and each.table == forward.L2)
        or (isinstance(each, MulticastGroup) and each.id == forward.FLOOD_GROUP)
    ]


def stations(*, first: int = 1) -> list[TableEntry | MulticastGroup]:
    return [*FLOOD, *forward.l2({MACS[0]: first, MACS[1]: 2})]


def same(cluster: Cluster, wanted: list[TableEntry | MulticastGroup]) -> bool:
    return sorted(map(str, forwarding(cluster))) == sorted(map(str, wanted))


def test_nothing_is_forwarded_unless_it_is_asked_for(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(switch_config(1, NETWORKS))
    join(cluster.make())
    assert state_of(cluster.controller.job("job")) is JobState.RUNNING
    assert forwarding(cluster) == []


def test_members_are_forwarded_to_from_their_joining_to_the_end_of_their_jobs(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(switch_config(1, NETWORKS, l2_forwarding=True))
    assert same(cluster, FLOOD)
    crew, other = cluster.make(), cluster.make("other")
    join(crew)
    assert same(cluster, stations())
    device = device_of(cluster)
    written = [update.entity for batch in device.batches for update in batch]
    jobs = [each for each in written if isinstance(each, TableEntry) and each.table == "jobs"]
    assert all(written.index(station) < written.index(jobs[0]) for station in stations())  # who is told of a generation
    join(other, 5000)  # from the same interfaces
    cluster.controller.delete_job("job")
    cluster.controller.tick()
    assert same(cluster, stations())
    cluster.controller.delete_job("other")
    cluster.controller.tick()
    assert same(cluster, FLOOD)


def test_what_others_changed_and_what_a_switch_forgot_is_written_again(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(switch_config(1, NETWORKS, l2_forwarding=True))
    crew = cluster.make()
    join(crew)
    for worker in crew:
        assert isinstance(worker.membership(), dict)
    device = device_of(cluster)
    stranger, moved = forward.l2({"02:00:00:00:08:01": 7, MACS[0]: 9})
    device.write([Insert(stranger), Modify(moved), Delete(forward.l2({MACS[1]: 2})[0])])
    time_passes(cluster, cluster.config.reconcile_interval_s, *crew)
    assert same(cluster, stations())
    assert crew[0].beat().generation == crew[0].generation
    device.entities.clear()
    cluster.start()
    assert same(cluster, stations())


def test_a_write_of_it_that_fails_is_made_again(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(switch_config(1, NETWORKS, l2_forwarding=True))
    device = device_of(cluster)
    crew = cluster.make()
    device.fail(at=device.updates, failure=Failure.UNANSWERED)
    join(crew)
    assert state_of(cluster.controller.job("job")) is JobState.FORMING
    device.repair()
    cluster.clock.sleep(LEASE_S / 5)
    cluster.controller.tick()
    assert state_of(cluster.controller.job("job")) is JobState.RUNNING
    assert same(cluster, stations())
