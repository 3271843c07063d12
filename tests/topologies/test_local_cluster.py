# SPDX-License-Identifier: Apache-2.0
"""A cluster on this machine: its workers' sums, membership files, placements, and what is left behind."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hopsum.codec import job_tables, make_codec
from hopsum_controlplane import ControlPlaneError
from hopsum_switch.management import ManagementClient, ManagementError
from hopsum_topologies import DescriptionError, Link, LocalCluster, Topology, TopologyError, topology
from hopsum_topologies.local_cluster import links_unavailable
from hopsum_wire.membership import Endpoint, read_membership

WORKERS = 3
ELEMENTS = 5_000
WAIT_S = 120.0
needs_links = pytest.mark.skipif(links_unavailable() is not None, reason=str(links_unavailable()))


def require_sums(cluster: LocalCluster, *, peers: bool) -> None:
    before = cluster.read_interfaces()
    with cluster.open_job("thc", peers=peers) as job:
        comms = job.connect()
        vectors = [
            np.random.default_rng(rank).standard_normal(ELEMENTS, dtype=np.float32) for rank in range(cluster.workers)
        ]
        futures = [comm.submit(x) for comm, x in zip(comms, vectors, strict=True)]
        results = [future.result(WAIT_S) for future in futures]
        assert len({result.mean.tobytes() for result in results}) == 1
        mean = np.mean(vectors, axis=0)
        assert np.square(results[0].mean - mean).sum() < 0.1 * np.square(mean).sum()
        counted = job.counters()
        rounds = counted["completed"] + counted["taken"] // len(job.parts)
    # Of each chunk: a contribution of every worker, and one result. A tree's leaves take the results of its spine.
    assert counted["added"] == cluster.workers * rounds > 0
    assert (cluster.read_interfaces() - before).packets_up >= counted["added"]
    assert all(switch.controller.jobs == () for switch in cluster.switches)


@pytest.mark.parametrize("peers", [False, True])
def test_workers_of_this_process_sum(peers: bool) -> None:
    with LocalCluster(WORKERS) as cluster:
        require_sums(cluster, peers=peers)
        # A cluster outlives its jobs.
        require_sums(cluster, peers=peers)


@pytest.mark.parametrize(("call", "says"), [("bind_udp", "bind its UDP port"), ("list_ports", "tell its counters")])
def test_a_switch_that_refuses_management_is_a_topology_error(
    call: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise ManagementError("no such port")

    monkeypatch.setattr(ManagementClient, call, refuse)
    with pytest.raises(TopologyError, match=f"{says}: no such port"), LocalCluster(1) as cluster:
        cluster.read_interfaces()


def test_shards_on_loopback() -> None:
    with LocalCluster(WORKERS, switches=2) as cluster:
        assert len({switch.service for switch in cluster.switches}) == 2
        require_sums(cluster, peers=False)


@needs_links
@pytest.mark.system
@pytest.mark.parametrize("name", ["star", "two_rack"])
def test_a_network_in_place_of_a_placement(name: str) -> None:
    network = topology(name, 4)
    with LocalCluster(network=network) as cluster:
        assert len(cluster.switches) == len(network.switches)
        assert [seat.ip for seat in cluster.seats] == [network.ip(host) for host in network.hosts]
        require_sums(cluster, peers=True)


def test_a_network_without_a_job() -> None:
    described = Topology("bare", ("h1",), ("s1",), (Link(("h1", "s1")),))
    with pytest.raises(DescriptionError, match="'bare' has no job"):
        LocalCluster(network=described)


@needs_links
@pytest.mark.system
@pytest.mark.parametrize("placement", ["fabric", "server", "hosts"])
def test_every_placement(placement: str) -> None:
    with LocalCluster(WORKERS, placement=placement) as cluster:
        assert len(cluster.switches) == (WORKERS if placement == "hosts" else 1)
        require_sums(cluster, peers=True)


def test_a_file_tells_workers_of_other_processes(tmp_path: Path) -> None:
    codec = make_codec("thc", workers=2)
    with (
        LocalCluster(2) as cluster,
        cluster.create_job("train", [[("127.0.0.1", 24001)], [("127.0.0.1", 24002)]], job_tables(codec)) as job,
    ):
        found = read_membership(job.write(tmp_path / "job.json"))
        ip, port = cluster.switch.service
        assert all(worker.send_to == Endpoint(ip, port) for worker in found.workers)
        assert found == job.memberships[0]


def test_a_refused_job_leaves_nothing() -> None:
    with LocalCluster(2) as cluster:
        with pytest.raises(ControlPlaneError, match="slots"):
            cluster.open_job("thc", slots=1 << 20)
        assert cluster.switch.controller.jobs == ()
        # Its sockets are closed: pytest makes an error of a ResourceWarning.


def test_a_placement_that_is_none() -> None:
    with pytest.raises(ValueError, match="placement='rack': one of loopback, fabric, server, hosts"):
        LocalCluster(2, placement="rack")


@pytest.mark.parametrize(
    ("target", "told"),
    [("hardware", "one of native, bmv2, mininet"), ("mininet", "a Mininet is made of a description")],
)
def test_a_target_that_cannot_be(target: str, told: str) -> None:
    with pytest.raises(ValueError, match=f"target='{target}': {told}"):
        LocalCluster(2, target=target)


def test_links_need_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(TopologyError, match="placement hosts: network namespaces"):
        LocalCluster(2, placement="hosts")
