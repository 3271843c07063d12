# SPDX-License-Identifier: Apache-2.0
"""Workers that train through the native switch, which is restarted or one of them killed: all end with one model."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest

from hopsum_controlplane import SwitchEndpoint
from hopsum_controlplane.artifacts import compiled_program
from hopsum_controlplane.cluster import ClusterConfig, ClusterController, PortRule, StateStore, SwitchConfig
from hopsum_controlplane.devices.device import Device, PipelineConfig
from hopsum_controlplane.devices.drivers import open_device
from hopsum_controlplane.devices.reconnecting import ReconnectingDevice
from hopsum_controlplane.service.grpc_service import Service
from hopsum_switch.management import ManagementClient
from hopsum_topologies import NativeSwitch
from hopsum_wire import HOPSUM_UDP_PORT

from .elastic_worker import WAIT_S, train
from .test_cluster import Controller

pytestmark = pytest.mark.system
ROOT = Path(__file__).parents[3]
SERVICE = SwitchEndpoint("02:00:00:00:00:fe", "10.0.0.254")
WORKERS, STEPS, SLOTS, PORT = 3, 60, 16, 1
Told = dict[str, Any]


class Switch:
    """The native switch's process; restarted, it is at the same addresses and knows nothing."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.program, self.p4info = compiled_program()
        self.bound, self.grpc = "127.0.0.1:0", "127.0.0.1:0"
        self.start()

    def start(self) -> None:
        self.process = self._stack.enter_context(
            NativeSwitch(self.program, self.p4info, grpc=self.grpc, extra=("--backend", "native"))
        )
        self.grpc = self.process.address
        with ManagementClient(self.grpc) as management:
            self.bound = management.bind_udp(PORT, self.bound, f"{SERVICE.ip}:{HOPSUM_UDP_PORT}")

    def restart(self) -> None:
        self.process.stop()
        self.start()


@dataclass
class Stage:
    """A controller at its switch, and what every rank told."""

    controller: Controller
    cluster: ClusterController
    switch: Switch
    told: dict[int, list[Told]] = field(default_factory=lambda: {rank: [] for rank in range(WORKERS)})
    changed: threading.Condition = field(default_factory=threading.Condition)

    def note(self, rank: int, told: Told) -> None:
        with self.changed:
            self.told[rank].append(told)
            self.changed.notify_all()

    def wait_for_step(self, rank: int, step: int) -> None:
        with self.changed:
            told = self.told[rank]
            assert self.changed.wait_for(lambda: any(each["step"] >= step for each in told), WAIT_S), self.told

    def create(self, quorum: int) -> str:
        """Make the job, and return its token."""
        with ExitStack() as stack:
            token: str = self.controller.operator(stack).create("train", WORKERS, SLOTS, quorum=quorum).token
            return token

    def generations_begun(self) -> int:
        return self.cluster.job("train").generations_begun

    def check(self) -> None:
        """All ranks have the same model after every step that they made, and every mean was right."""
        digests: dict[int, set[str]] = {}
        for told in self.told.values():
            made = [each for each in told if "digest" in each]
            assert all(each["right"] for each in made)
            assert [each["step"] for each in made] == list(range(made[0]["step"], STEPS + 1))
            for each in made:
                digests.setdefault(each["step"], set()).add(each["digest"])
        assert {step: len(each) for step, each in digests.items()} == dict.fromkeys(range(1, STEPS + 1), 1)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with ExitStack() as switches, ExitStack() as stack:  # the controller goes first, whatever was restarted
        switch = Switch(switches)
        pipeline = PipelineConfig.load(switch.program, switch.p4info)
        host, port = switch.bound.split(":")
        rules = (PortRule(PORT, IPv4Network("127.0.0.0/8")),)
        config = ClusterConfig(
            (SwitchConfig("leaf", "native", switch.grpc, 0, SERVICE, rules, service_address=(host, int(port))),),
            tmp_path / "state.sqlite",
            lease_s=60.0,  # a killed worker is known by its connection; a slow one is none that was lost
            heartbeat_s=0.2,
            reconcile_interval_s=0.5,
        )

        def opened() -> Device:
            return ReconnectingDevice(lambda: open_device("native", switch.grpc, election_id=(0, 1)), pipeline.cookie)

        store = StateStore(config.database)
        stack.callback(store.close)
        cluster = ClusterController(config, store, {"leaf": opened}, pipeline=pipeline)
        over = threading.Event()
        ticking = threading.Thread(target=_tick, args=(cluster, over))
        ticking.start()
        stack.callback(ticking.join)
        stack.callback(over.set)
        service = stack.enter_context(Service(cluster, "127.0.0.1:0"))
        yield Stage(Controller(config, {}, service.address), cluster, switch)


def _tick(cluster: ClusterController, over: threading.Event) -> None:
    while not over.wait(0.1):
        cluster.tick()


def _run(stage: Stage, token: str, rank: int, hold: threading.Event, hold_at: int) -> None:
    """Train in this thread; in one step wait for the test."""

    def before(step: int) -> None:
        if step == hold_at:
            assert hold.wait(WAIT_S)

    with stage.controller.connect("train", token, rank) as job:
        train(job, STEPS, lambda told: stage.note(rank, told), before)


@pytest.mark.parametrize("quorum", [WORKERS, WORKERS - 1])
def test_the_switch_is_restarted(stage: Stage, quorum: int) -> None:
    token, hold = stage.create(quorum), threading.Event()
    with ThreadPoolExecutor(WORKERS) as pool:
        try:
            # rank 0 waits in a step of its own, so that others are in the middle of theirs when the switch dies
            running = [pool.submit(_run, stage, token, rank, hold, 20 if rank == 0 else -1) for rank in range(WORKERS)]
            stage.wait_for_step(0, 20)
            stage.switch.restart()
        finally:
            hold.set()
        for each in running:
            each.result(2 * WAIT_S)
    assert stage.generations_begun() >= 2
    stage.check()
    assert not any("replaced" in each for told in stage.told.values() for each in told)


class Process:
    """A rank in a process of its own."""

    def __init__(self, stage: Stage, token: str, rank: int) -> None:
        url = f"hopsum://{stage.controller.address}/train"
        command = [sys.executable, "-m", "tests.host.rpc.elastic_worker", url, token, str(rank), str(STEPS)]
        self.child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self._reading = threading.Thread(target=self._read, args=(stage, rank))
        self._reading.start()

    def _read(self, stage: Stage, rank: int) -> None:
        assert self.child.stdout is not None
        for line in self.child.stdout:
            stage.note(rank, json.loads(line))

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.child.kill()
        self.child.wait()
        self._reading.join()
        for pipe in (self.child.stdout, self.child.stderr):
            assert pipe is not None
            pipe.close()


@pytest.mark.parametrize("quorum", [WORKERS, WORKERS - 1])
def test_a_worker_is_killed_and_replaced(stage: Stage, quorum: int) -> None:
    token, hold = stage.create(quorum), threading.Event()
    with ThreadPoolExecutor(WORKERS) as pool, ExitStack() as stack:
        try:
            running = [pool.submit(_run, stage, token, rank, hold, STEPS - 20) for rank in (0, 1)]
            victim = stack.enter_context(Process(stage, token, 2))
            stage.wait_for_step(2, 10)
            victim.child.kill()
            victim.child.wait()
            newcomer = stack.enter_context(Process(stage, token, 2))
            _until(lambda: stage.generations_begun() >= 2)
        finally:
            hold.set()
        for each in running:
            each.result(2 * WAIT_S)
        ended = newcomer.child.wait(WAIT_S)
        assert ended == 0, newcomer.child.stderr.read()  # type: ignore[union-attr]
    first = next(index for index, each in enumerate(stage.told[2]) if "new" in each)
    lost, stage.told[2] = stage.told[2][:first], stage.told[2][first:]
    stage.check()
    assert stage.told[2][0]["step"] >= max(each["step"] for each in lost if "right" in each)
    stopped = [next(each for each in stage.told[rank] if "replaced" in each) for rank in (0, 1)]
    assert stopped == [{"step": stage.told[2][0]["step"], "replaced": [2]}] * 2


def _until(condition: Any) -> None:
    over = threading.Event()
    for _ in range(int(WAIT_S / 0.05)):
        if condition():
            return
        over.wait(0.05)
    raise AssertionError("it did not come to that")
