# SPDX-License-Identifier: Apache-2.0
"""A switch process that is killed and started again at its address, in real time: nobody tells the controller."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hopsum.agent import Agent
from hopsum.protocol.worker import Timing
from hopsum.transport.udp_link import UdpLink
from hopsum_controlplane import artifacts
from hopsum_controlplane.cluster import JobState, Pending, device_factories
from hopsum_controlplane.devices.device import PipelineConfig
from hopsum_controlplane.service.controller_process import Pulse
from hopsum_topologies import NativeSwitch
from hopsum_topologies.free_port import free_port
from hopsum_wire import HOPSUM_UDP_PORT
from hopsum_wire.membership import parse_membership

from ...support.processes import await_that
from .world import Cluster, Worker, state_of, switch_config

pytestmark = pytest.mark.system
LOCALHOST, PORT, DEADLINE_S = "127.0.0.1", 1, 60.0
TIMING = Timing(retransmit_s=0.05, retransmit_max_s=0.2, deadline_s=DEADLINE_S)


class Machine:
    """The switch's process, which has the same addresses in all its lives, from its command line."""

    def __init__(self, folder: Path) -> None:
        self.address = f"unix:{folder}/p4runtime"
        self.udp_port = free_port(socket.SOCK_DGRAM)
        self.start()

    def start(self) -> None:
        udp = {PORT: f"{LOCALHOST}:{self.udp_port},as=10.9.0.1:{HOPSUM_UDP_PORT}"}
        self.switch = NativeSwitch(*artifacts.compiled_program(), udp=udp, grpc=self.address)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    found = Machine(tmp_path)
    yield found
    found.switch.stop()


@pytest.fixture
def cluster(machine: Machine, tmp_path: Path) -> Iterator[Cluster]:
    config = switch_config(1, {PORT: "127.0.0.0/8"}, service_address=(LOCALHOST, machine.udp_port))
    cluster = Cluster(tmp_path, (replace(config, address=machine.address),), {})
    cluster.config = replace(cluster.config, lease_s=DEADLINE_S)
    pipeline = PipelineConfig.load(*artifacts.compiled_program())
    cluster.devices = device_factories(cluster.config, pipeline, connect_timeout_s=3.0)  # type: ignore[assignment]
    cluster.start(pipeline=pipeline, clock=time.time, monotonic=time.monotonic)
    with Pulse(cluster.controller):
        yield cluster
    cluster.controller.close()


def check_sum(crew: list[Worker]) -> None:
    """Let workers that know nothing into the next generation, and sum."""
    with ExitStack() as stack:
        links = [UdpLink((LOCALHOST, 0), worker.cluster.config.switches[0].service) for worker in crew]
        for worker, link in zip(crew, links, strict=True):
            stack.callback(link.close)
            worker.lives, worker.generation = worker.lives + 1, 0
            worker.join(ip=LOCALHOST, udp_port=link.local[1], side_port=None)
        futures = []
        for worker, link in zip(crew, links, strict=True):
            document = worker.membership(timeout_s=DEADLINE_S)
            assert not isinstance(document, Pending), document
            agent = Agent(parse_membership(json.dumps(document)), worker.rank, codec="fixed", timing=TIMING, link=link)
            futures.append(stack.enter_context(agent).submit(np.full(100, worker.rank, dtype=np.float32)))
        for future in futures:
            assert np.allclose(future.result(DEADLINE_S).mean, 0.5, atol=1e-4)


def test_a_killed_switch_is_back(cluster: Cluster, machine: Machine) -> None:
    crew = cluster.make()
    check_sum(crew)
    os.kill(machine.switch.process.pid, signal.SIGKILL)
    machine.switch.stop()
    await_that(lambda: all(each.beat().generation for each in crew) and not cluster.controller.switches()[0].reachable)
    assert state_of(cluster.controller.job("job")) is JobState.RUNNING  # it may yet have its entries
    machine.start()
    await_that(lambda: not any(worker.beat().generation for worker in crew))
    assert crew[0].beat().reason == "switch s1 does not have it any more: it runs no program"
    check_sum(crew)
    assert cluster.controller.switches()[0].condition == ""
