# SPDX-License-Identifier: Apache-2.0
"""Many threads at one ClusterController, as a service has them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress

from hopsum_controlplane import ControlPlaneError
from hopsum_controlplane.cluster import JobState, Pending
from hopsum_controlplane.cluster.pacing import LONGEST_S
from hopsum_controlplane.entries import Update
from hopsum_ptf.fake_device import FakeDevice
from hopsum_wire.control import control_pb2 as pb

from .conftest import MakeCluster
from .world import Cluster, Worker, enter, pending_of, state_of, switch_config

WAIT_S = 60.0


class SoloDevice(FakeDevice):
    """A switch that finds out when two threads are at it."""

    def __init__(self) -> None:
        super().__init__()
        self._busy = threading.Lock()
        self.together = 0

    def write(self, updates: Sequence[Update]) -> None:
        if not self._busy.acquire(blocking=False):
            self.together += 1
            return
        try:
            super().write(updates)
        finally:
            self._busy.release()


class SlowDevice(FakeDevice):
    """A switch that answers writes only when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting, self.free = threading.Event(), threading.Event()
        self.free.set()

    def write(self, updates: Sequence[Update]) -> None:
        self.waiting.set()
        assert self.free.wait(WAIT_S)
        super().write(updates)


def live(worker: Worker, lives: int) -> None:
    """Go through a few lives of a worker, whatever the others do."""
    for _ in range(lives):
        with suppress(ControlPlaneError):
            worker.start_again()
            for _ in range(5):
                if not isinstance(worker.membership(timeout_s=0.01), Pending):
                    worker.beat(sums=1.0)
                    break
                worker.join()
            worker.leave()


def test_workers_and_operators_at_once(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(switch_config(1), switch_config(2))
    devices = {"s1": SoloDevice(), "s2": SoloDevice()}
    cluster.devices = devices
    cluster.start()
    crews = [cluster.make(f"job{number}", workers=3) for number in range(6)]
    threads = [threading.Thread(target=live, args=(worker, 8)) for crew in crews for worker in crew]
    for thread in threads:
        thread.start()
    try:
        while any(thread.is_alive() for thread in threads):
            cluster.controller.tick()
            cluster.controller.jobs(counters=True)
            assert [switch.condition for switch in cluster.controller.switches()] == ["", ""]
            cluster.make("more")
            cluster.controller.delete_job("more")
    finally:
        for thread in threads:
            thread.join(WAIT_S)
    cluster.controller.tick()
    assert [device.together for device in devices.values()] == [0, 0]
    cluster.check()
    cluster.clock.sleep(LONGEST_S)  # after so many short generations
    for crew in crews:
        for worker in crew:
            worker.start_again()
        enter(crew)
    assert {state_of(job) for job in cluster.controller.jobs()} == {JobState.RUNNING}
    cluster.check()


def test_nobody_waits_for_a_slow_switch(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(switch_config(1), switch_config(2))
    slow = SlowDevice()
    cluster.devices = {"s1": slow, "s2": FakeDevice()}
    cluster.start()
    crew, other = cluster.make("job", switch="s1"), cluster.run("other", switch="s2")
    crew[0].join()
    slow.free.clear()
    slow.waiting.clear()
    last = threading.Thread(target=crew[1].join)  # writes the job
    last.start()
    try:
        look_around(cluster, slow, crew, other)
    finally:
        slow.free.set()
        last.join(WAIT_S)
    assert not last.is_alive()
    cluster.controller.tick()
    assert state_of(cluster.controller.job("job")) is JobState.FORMING
    cluster.check()


def look_around(cluster: Cluster, slow: SlowDevice, crew: list[Worker], other: list[Worker]) -> None:
    """Do what must not wait while the switch of `crew` does not answer."""
    assert slow.waiting.wait(WAIT_S)
    assert crew[0].beat().state == pb.JOB_STATE_INSTALLING
    assert crew[0].membership() == pending_of((), JobState.INSTALLING)
    other[0].start_again()
    other[1].join()
    assert isinstance(other[0].membership(), dict)
    assert state_of(cluster.controller.job("other")) is JobState.RUNNING
    crew[0].leave()  # the generation has ended before it has begun
    assert state_of(cluster.controller.job("job", counters=False)) is JobState.CHANGING
