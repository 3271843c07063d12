# SPDX-License-Identifier: Apache-2.0
"""Switch processes that a cluster can have, with places for workers around them: `native` on loopback, `bmv2` between
network namespaces. Both can be restarted."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Protocol

import numpy as np
import pytest

from hopsum.agent import Agent
from hopsum.protocol.worker import Timing
from hopsum.transport.udp_link import UdpLink
from hopsum_controlplane import artifacts
from hopsum_controlplane.cluster import SwitchConfig
from hopsum_controlplane.devices.device import Device, PipelineConfig
from hopsum_controlplane.devices.drivers import open_device
from hopsum_controlplane.devices.reconnecting import ReconnectingDevice
from hopsum_switch.management import ManagementClient
from hopsum_topologies import Bmv2Switch, Namespace, NativeSwitch, bmv2_unavailable
from hopsum_topologies.seat import Seat, open_link
from hopsum_topologies.switch_testbed import SWITCH, seats_around
from hopsum_wire import HOPSUM_UDP_PORT
from hopsum_wire.membership import parse_membership

from .world import Worker, switch_config

LOCALHOST, PORT = "127.0.0.1", 1
DEADLINE_S = 60.0


class Ground(Protocol):
    """Where a switch runs, and how workers stand to it."""

    def start(self) -> NativeSwitch | Bmv2Switch:
        """Start the switch, again at the same place."""

    def config(self) -> SwitchConfig:
        """Return what a controller is told of the switch."""

    def seat(self, rank: int) -> Seat:
        """Return where the workers of a rank are."""


class NativeGround:
    """The embedded switch; everybody is on loopback, behind one port."""

    def __init__(self, stack: ExitStack, workers: int) -> None:
        self.bound = f"{LOCALHOST}:0"

    def start(self) -> NativeSwitch:
        switch = NativeSwitch(*artifacts.compiled_program(), grpc="unix")
        with ManagementClient(switch.address) as management:
            self.bound = management.bind_udp(PORT, self.bound, f"{SWITCH.ip}:{HOPSUM_UDP_PORT}")
        return switch

    def config(self) -> SwitchConfig:
        host, port = self.bound.split(":")
        config = switch_config(1, {PORT: "127.0.0.0/8"}, service_address=(host, int(port)))
        return replace(config, driver="native", endpoint=SWITCH)

    def seat(self, rank: int) -> Seat:
        return Seat(rank, PORT, f"02:00:00:00:01:{PORT:02x}", LOCALHOST, self.config().service)


class Bmv2Ground:
    """simple_switch_grpc in a namespace, and one for each rank."""

    def __init__(self, stack: ExitStack, workers: int) -> None:
        self.home = stack.enter_context(Namespace())
        self.seats, self._interfaces = seats_around(stack, self.home, workers)

    def start(self) -> Bmv2Switch:
        return Bmv2Switch(self._interfaces, namespace=self.home, grpc="unix")

    def config(self) -> SwitchConfig:
        config = switch_config(1, {seat.port: f"{seat.ip}/32" for seat in self.seats})
        return replace(config, driver="bmv2", endpoint=SWITCH)

    def seat(self, rank: int) -> Seat:
        return self.seats[rank]


GROUNDS: dict[str, Callable[[ExitStack, int], Ground]] = {"native": NativeGround, "bmv2": Bmv2Ground}


class Rig:
    """A switch's process, which can be restarted, and what opens sessions with it."""

    def __init__(self, stack: ExitStack, target: str, workers: int) -> None:
        if target == "bmv2" and (reason := bmv2_unavailable()) is not None:
            pytest.skip(reason)
        self._stack = stack
        self.pipeline = PipelineConfig.load(*artifacts.compiled_program())
        self.ground = GROUNDS[target](stack, workers)
        self.process = stack.enter_context(self.ground.start())
        self.config = self.ground.config()

    def restart(self) -> None:
        self.process.stop()
        self.process = self._stack.enter_context(self.ground.start())

    def open(self, election_id: int = 1) -> Device:
        return ReconnectingDevice(
            lambda: open_device(self.config.driver, self.process.address, election_id=(election_id, 0)),
            self.pipeline.cookie,
        )

    def join(self, worker: Worker) -> UdpLink:
        """Let a worker that knows nothing (any more) join from its place; return the socket that it sends from."""
        seat = self.ground.seat(worker.rank)
        link = open_link(seat)
        self._stack.callback(link.close)
        if worker.joined is not None:
            worker.lives, worker.generation = worker.lives + 1, 0
        worker.join(ip=seat.ip, udp_port=link.local[1], mac=seat.mac, side_port=None)
        return link


def agents_of(stack: ExitStack, crew: list[Worker], links: list[UdpLink], timing: Timing) -> list[Agent]:
    """Return an agent for each of a crew that has joined, once their generation has begun."""
    agents = []
    for worker, link in zip(crew, links, strict=True):
        document = worker.membership()
        assert isinstance(document, dict), document
        agent = Agent(parse_membership(json.dumps(document)), worker.rank, codec="fixed", timing=timing, link=link)
        agents.append(stack.enter_context(agent))
    return agents


def check_sum(agents: list[Agent]) -> None:
    """Let all of them sum a vector: each ends with the mean, and all with the same bits."""
    vectors = [np.linspace(-1, 1, 3000, dtype=np.float32) * (agent.rank + 1) for agent in agents]
    futures = [agent.submit(vector) for agent, vector in zip(agents, vectors, strict=True)]
    means = [future.result(DEADLINE_S).mean for future in futures]
    assert len({mean.tobytes() for mean in means}) == 1
    assert np.allclose(means[0], np.mean(vectors, axis=0), atol=1e-4)
