# SPDX-License-Identifier: Apache-2.0
"""A job over a tree of three bmv2 processes, two racks and a spine, of which a leaf is started again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from hopsum.agent import Agent
from hopsum.protocol.worker import Timing
from hopsum_controlplane import artifacts
from hopsum_controlplane.cluster import JobState, SwitchConfig
from hopsum_controlplane.devices.device import Device, PipelineConfig
from hopsum_controlplane.devices.drivers import open_device
from hopsum_controlplane.devices.reconnecting import ReconnectingDevice
from hopsum_topologies import Bmv2Switch, Namespace, bmv2_unavailable
from hopsum_topologies.netns import add_neighbour
from hopsum_topologies.seat import Seat, open_link

from .rigs import DEADLINE_S, agents_of, check_sum
from .world import LEASE_S, TREE_LINKS, Cluster, Worker, state_of, switch_config

pytestmark = pytest.mark.system
TIMING = Timing(retransmit_s=0.1, retransmit_max_s=0.4, deadline_s=DEADLINE_S)
LEAF_OF = (1, 1, 2)
"""By rank."""


class Racks:
    """Switches in one namespace, cables between them, and a namespace for each worker."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.home = stack.enter_context(Namespace())
        self.configs = tuple(self._config(number) for number in (1, 2, 3))
        self._interfaces: dict[str, dict[int, str]] = {
            "s1": {9: "up1"},
            "s2": {9: "up2"},
            "s3": {1: "down1", 2: "down2"},
        }
        for number in (1, 2):
            self.home.add_veth(f"up{number}", f"down{number}")
        self.seats = [self._seat(rank) for rank in range(len(LEAF_OF))]
        self.processes = {name: self._start(name) for name in self._interfaces}

    def _config(self, number: int) -> SwitchConfig:
        networks = {rank + 1: f"10.0.0.{rank + 1}/32" for rank, leaf in enumerate(LEAF_OF) if leaf == number}
        made = switch_config(number, networks)
        return SwitchConfig(made.name, "bmv2", made.address, 0, made.endpoint, made.ports)

    def _seat(self, rank: int) -> Seat:
        leaf = self.configs[LEAF_OF[rank] - 1]
        mac, away = f"02:00:00:00:02:{rank:02x}", self._stack.enter_context(Namespace())
        away.add_veth("eth0", f"w{rank}", self.home)
        away.ip("link", "set", "dev", "eth0", "address", mac)
        away.ip("addr", "add", f"10.0.0.{rank + 1}/8", "dev", "eth0")
        with away.inside():
            add_neighbour("eth0", leaf.endpoint.ip, leaf.endpoint.mac)
        self._interfaces[leaf.name][rank + 1] = f"w{rank}"
        return Seat(rank, rank + 1, mac, f"10.0.0.{rank + 1}", leaf.service, away.name)

    def _start(self, name: str) -> Bmv2Switch:
        return self._stack.enter_context(Bmv2Switch(self._interfaces[name], namespace=self.home, grpc="unix"))

    def restart(self, name: str) -> None:
        self.processes[name].stop()
        self.processes[name] = self._start(name)

    def opener(self, name: str, pipeline: PipelineConfig) -> Callable[[], Device]:
        return lambda: ReconnectingDevice(
            lambda: open_device("bmv2", self.processes[name].address, election_id=(1, 0)), pipeline.cookie
        )


@pytest.fixture
def racks() -> Iterator[Racks]:
    if (reason := bmv2_unavailable()) is not None:
        pytest.skip(reason)
    with ExitStack() as stack:
        yield Racks(stack)


def enter(stack: ExitStack, racks: Racks, crew: list[Worker]) -> list[Agent]:
    """Let workers that know nothing (any more) into the next generation."""
    links = []
    for worker, seat in zip(crew, racks.seats, strict=True):
        link = open_link(seat)
        stack.callback(link.close)
        worker.lives, worker.generation = worker.lives + 1, 0
        worker.join(ip=seat.ip, udp_port=link.local[1], mac=seat.mac, side_port=None)
        links.append(link)
    return agents_of(stack, crew, links, TIMING)


def test_a_leaf_restarts(racks: Racks, tmp_path: Path) -> None:
    pipeline = PipelineConfig.load(*artifacts.compiled_program())
    devices = {each.name: racks.opener(each.name, pipeline) for each in racks.configs}
    cluster = Cluster(tmp_path, racks.configs, devices, TREE_LINKS)  # type: ignore[arg-type]
    with ExitStack() as stack:
        cluster.start(pipeline=pipeline)
        stack.callback(lambda: cluster.controller.close())
        crew = cluster.make("train", 3, 16)
        check_sum(enter(stack, racks, crew))
        view, old = cluster.controller.job("train"), crew[0].generation
        assert view.parts[2].counters["added"] == 2 * view.parts[2].counters["completed"] > 0
        racks.restart("s2")
        give_up_s = time.monotonic() + DEADLINE_S
        while (
            state_of(cluster.controller.job("train")) is not JobState.FORMING
        ):  # sessions come back, and the program is pushed
            assert time.monotonic() < give_up_s, cluster.controller.switches()
            for worker in crew:
                worker.beat()
            cluster.clock.sleep(LEASE_S / 4)
            cluster.controller.tick()
            time.sleep(0.05)
        assert "switch s2 does not have it any more" in crew[0].beat().reason
        check_sum(enter(stack, racks, crew))
        assert crew[0].generation > old
        cluster.controller.delete_job("train")
        assert {view.slots_used for view in cluster.controller.switches()} == {0}
