# SPDX-License-Identifier: Apache-2.0
"""A network inside this process: frames find their way over several engines, and agents sum through it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from hopsum.agent import Agent
from hopsum.protocol.worker import Timing
from hopsum_topologies import TopologyError
from hopsum_topologies.catalogue import topology
from hopsum_topologies.control import WORKER_UDP_PORT, NetworkControl, write_job
from hopsum_topologies.in_process import InProcessNetwork

pytestmark = pytest.mark.system
DEADLINE_S = 60.0
HOSTS = ("h1", "h2", "h3", "h4")


@pytest.fixture(scope="module")
def network() -> Iterator[tuple[InProcessNetwork, NetworkControl]]:
    net = topology("two_rack", len(HOSTS)).without_timing()
    with InProcessNetwork(net) as made, NetworkControl(net, made.driver, made.addresses) as control:
        yield made, control


def octets(mac: str) -> bytes:
    return bytes.fromhex(mac.replace(":", ""))


def arrived(network: InProcessNetwork, count: int) -> dict[str, list[bytes]]:
    """Wait for so many frames and return them by host."""
    found: dict[str, list[bytes]] = {host: [] for host in network.topology.hosts}
    give_up = time.monotonic() + DEADLINE_S
    while sum(map(len, found.values())) < count and time.monotonic() < give_up:
        for host, frames in found.items():
            frames += network.receive(host)
    return found


def test_every_host_reaches_every_other_and_nobody_else_hears_it(
    network: tuple[InProcessNetwork, NetworkControl],
) -> None:
    net, _ = network
    mac = net.topology.mac
    pairs = [(here, there) for here in HOSTS for there in HOSTS if here != there]
    for here, there in pairs:
        net.send(here, octets(mac(there)) + octets(mac(here)) + b"\x88\xb5" + f"{here}>{there}".ljust(46).encode())
    for here in HOSTS:  # comes last wherever something of this host comes: nothing that went astray is still under way
        net.send(here, b"\xff" * 6 + octets(mac(here)) + b"\x88\xb5" + f"{here}>all".ljust(46).encode())
    found = arrived(net, 2 * len(pairs))
    for host in HOSTS:
        heard = sorted(frame[14:].decode().strip() for frame in found[host])
        assert heard == sorted(f"{other}>{to}" for other in HOSTS if other != host for to in (host, "all"))


def test_agents_sum_over_three_engines(network: tuple[InProcessNetwork, NetworkControl], tmp_path: Path) -> None:
    net, control = network
    plan = net.topology.jobs[0]
    job = control.install(plan, "spine", 16, {})
    membership = write_job(job, tmp_path)
    timing = Timing(retransmit_s=1.0, retransmit_min_s=0.5, deadline_s=DEADLINE_S)
    vectors = [np.random.default_rng(rank).normal(size=5000).astype(np.float32) for rank in range(len(HOSTS))]

    def work(rank: int) -> bytes:
        link = net.link(plan.workers[rank], "spine", WORKER_UDP_PORT + rank)
        with Agent(str(membership), rank, codec="fixed", timing=timing, link=link) as agent:
            return agent.allreduce(vectors[rank]).mean.tobytes()

    with ThreadPoolExecutor(len(HOSTS)) as pool:
        means = list(pool.map(work, range(len(HOSTS))))
    assert len(set(means)) == 1
    np.testing.assert_allclose(np.frombuffer(means[0], np.float32), np.mean(vectors, axis=0), atol=1e-5)
    events = control.controllers["spine"].job_counters(job)
    assert events["completed"] >= 5000 // 256, events
    control.controllers["spine"].delete_job(job)


def test_links_that_take_time_are_refused_by_name() -> None:
    with pytest.raises(TopologyError, match="links leaf1-spine, leaf2-spine have a rate or a delay"):
        InProcessNetwork(topology("two_rack", 2))
