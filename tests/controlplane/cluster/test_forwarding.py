# SPDX-License-Identifier: Apache-2.0
"""A switch that is also its workers' Ethernet switch, where the configuration says so."""

from __future__ import annotations

from hopsum_controlplane.cluster import JobState
from hopsum_controlplane.entries import Delete, Insert, Modify, MulticastGroup, TableEntry
from hopsum_controlplane.tables import forward
from hopsum_ptf.fake_device import Failure

from .conftest import MakeCluster
from .world import LEASE_S, Cluster, Worker, device_of, state_of, switch_config

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
    cluster.clock.sleep(cluster.config.reconcile_interval_s / 2)
    for worker in crew:
        worker.beat()
    cluster.clock.sleep(cluster.config.reconcile_interval_s / 2)
    cluster.controller.tick()
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
