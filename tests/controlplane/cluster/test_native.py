# SPDX-License-Identifier: Apache-2.0
"""A cluster of one embedded switch, a process, with workers that sum through it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from hopsum.agent import Agent
from hopsum.membership import parse_membership
from hopsum.protocol.worker import Timing
from hopsum.transport.link import UdpLink
from hopsum.wire import HOPSUM_UDP_PORT
from hopsum_controlplane import artifacts
from hopsum_controlplane.cluster import State, SwitchTrouble
from hopsum_controlplane.devices.base import Device, Pipeline
from hopsum_controlplane.devices.drivers import open_device
from hopsum_controlplane.devices.reconnecting import ReconnectingDevice
from hopsum_switch.management import ManagementClient
from hopsum_topologies import NativeSwitch

from .world import LEASE_S, Cluster, Worker, switch_config

LOCALHOST = "127.0.0.1"
PORT = 1
DEADLINE_S = 60.0
TIMING = Timing(retransmit_s=0.05, retransmit_max_s=0.2, deadline_s=DEADLINE_S)


class Rig:
    """The switch's process, which can be restarted, and what opens sessions with it."""

    def __init__(self, stack: ExitStack, pipeline: Pipeline) -> None:
        self._stack = stack
        self._pipeline = pipeline
        self.bound = f"{LOCALHOST}:0"
        self.start()

    def start(self) -> None:
        self.process = self._stack.enter_context(NativeSwitch(*artifacts.compiled_program()))
        with ManagementClient(self.process.address) as management:
            self.bound = management.bind_udp(PORT, self.bound, f"10.9.0.1:{HOPSUM_UDP_PORT}")

    def restart(self) -> None:
        self.process.stop()
        self.start()

    def open(self, election_id: int = 1) -> Device:
        return ReconnectingDevice(
            lambda: open_device("native", self.process.address, election_id=(election_id, 0)), self._pipeline.cookie
        )


@pytest.fixture
def rig() -> Iterator[Rig]:
    with ExitStack() as stack:
        yield Rig(stack, Pipeline.load(*artifacts.compiled_program()))


@pytest.fixture
def cluster(rig: Rig, tmp_path: Path) -> Iterator[Cluster]:
    host, port = rig.bound.split(":")
    config = switch_config(1, {PORT: "127.0.0.0/8"}, send_to=(host, int(port)))
    cluster = Cluster(tmp_path, (config,), {"s1": rig.open})  # type: ignore[dict-item]
    cluster.start(pipeline=rig._pipeline)
    yield cluster
    cluster.manager.close()


def enter(stack: ExitStack, crew: list[Worker]) -> list[Agent]:
    """Let a crew, as ones that know nothing any more, into the next epoch; return an agent for each."""
    links = []
    for worker in crew:
        link = UdpLink((LOCALHOST, 0), worker.cluster.config.switches[0].service)
        stack.callback(link.close)
        links.append(link)
        if worker.joined is not None:
            worker.lives, worker.epoch = worker.lives + 1, 0
        worker.join(ip=LOCALHOST, udp_port=link.local[1], side_port=None)
    agents = []
    for worker, link in zip(crew, links, strict=True):
        document = worker.membership()
        assert isinstance(document, dict), document
        agent = Agent(parse_membership(json.dumps(document)), worker.rank, codec="fixed", timing=TIMING, link=link)
        agents.append(stack.enter_context(agent))
    return agents


def check_sum(agents: list[Agent]) -> None:
    vectors = [np.linspace(-1, 1, 3000, dtype=np.float32) * (agent.rank + 1) for agent in agents]
    futures = [agent.submit(vector) for agent, vector in zip(agents, vectors, strict=True)]
    for future in futures:
        assert np.allclose(future.result(DEADLINE_S).mean, np.mean(vectors, axis=0), atol=1e-4)


def beat(*workers: Worker) -> None:
    """Let a lease pass in which only these are heard."""
    worker = workers[0]
    worker.cluster.clock.sleep(LEASE_S / 2)
    for each in workers:
        each.beat()
    worker.cluster.clock.sleep(LEASE_S / 2)
    worker.cluster.manager.tick()


def until(happened: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not happened():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_a_lease_runs_out_during_a_round(cluster: Cluster) -> None:
    with ExitStack() as stack:
        crew, other = cluster.make(), cluster.make("other")
        agents, others = enter(stack, crew), enter(stack, other)
        check_sum(agents)
        agents[0].submit(np.ones(3000, dtype=np.float32))  # the other one never does
        until(lambda: cluster.manager.job("job").counters["duplicate"] > 0)
        check_sum(others)
        beat(crew[0], *other)
        assert "lease of rank 1 ran out" in crew[0].beat().reason
        until(lambda: cluster.manager.switches()[0].drops["unknown_epoch"] > 0)  # it goes on asking, in vain
        check_sum(others)
        for agent in agents:
            agent.close()
        check_sum(enter(stack, crew))
        assert other[0].beat().epoch == other[0].epoch
        for worker in (*crew, *other):
            worker.leave()
        assert {job.state for job in cluster.manager.jobs()} == {State.FORMING}


def test_a_switch_restarts(cluster: Cluster, rig: Rig) -> None:
    with ExitStack() as stack:
        crew = cluster.make()
        check_sum(enter(stack, crew))
        old = crew[0].epoch
        rig.restart()
        for _ in range(8):  # sessions are lost, opened again, and the program is pushed
            beat(*crew)
            if cluster.manager.job("job").state is State.FORMING:
                break
            time.sleep(0.5)
        assert "switch s1 does not have it any more" in crew[0].beat().reason
        check_sum(enter(stack, crew))
        assert crew[0].epoch > old


def test_a_controller_restarts_during_a_job(cluster: Cluster, rig: Rig) -> None:
    with ExitStack() as stack:
        crew = cluster.make()
        agents = enter(stack, crew)
        check_sum(agents)
        added = cluster.manager.job("job").counters["added"]
        cluster.manager.close()
        check_sum(agents)  # nobody needs a controller for that
        cluster.start(pipeline=rig._pipeline)
        assert crew[0].beat().epoch == crew[0].epoch
        check_sum(agents)
        assert cluster.manager.job("job").counters["added"] == 3 * added > 0


def test_another_controller_takes_the_switch(cluster: Cluster, rig: Rig) -> None:
    with ExitStack() as stack:
        crew = cluster.make()
        agents = enter(stack, crew)
        theirs = rig.open(election_id=2)
        stack.callback(theirs.close)
        with pytest.raises(SwitchTrouble, match="primary"):
            cluster.manager.delete_job("job")
        assert "primary" in cluster.manager.switches()[0].trouble
        check_sum(agents)  # what stands there stays
        theirs.close()
        cluster.devices = {"s1": lambda: rig.open(election_id=3)}  # type: ignore[dict-item]
        cluster.start(pipeline=rig._pipeline)
        assert cluster.manager.jobs() == []
