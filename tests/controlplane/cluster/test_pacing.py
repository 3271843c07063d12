# SPDX-License-Identifier: Apache-2.0
"""Jobs whose workers come and go all the time: they wait for their own generations, and nobody else does."""

from __future__ import annotations

import pytest

from hopsum_controlplane.cluster import JobState, Pending
from hopsum_controlplane.cluster.pacing import FREE, LONGEST_S, SHORT_S, Pace

from ...support.clock import FakeClock
from .conftest import MakeCluster
from .world import Cluster, state_of

pytestmark = pytest.mark.system


def test_short_generations_make_the_next_one_wait_longer_and_longer() -> None:
    clock = FakeClock()
    pace, waits = Pace(clock), []
    for _ in range(FREE + 8):
        pace.record_begin("job")
        waited = 0.0
        while not pace.is_due("job"):
            assert f"its last {len(waits)} generations were shorter than {SHORT_S:g} s" in pace.condition("job")
            clock.sleep(0.5)
            waited += 0.5
        waits.append(waited)
    assert waits == [0.0] * FREE + [1.0, 2.0, 4.0, 8.0] + [LONGEST_S] * 4
    assert pace.is_due("other")
    clock.sleep(SHORT_S)  # at last one lasts
    pace.record_begin("job")
    assert pace.is_due("job")


def test_generations_do_not_run_ahead_of_the_clock(cluster: Cluster) -> None:
    (worker,) = cluster.run(workers=1)
    began_s = cluster.clock()
    for _ in range(3000):
        worker.start_again()
        cluster.clock.sleep(0.1)
        cluster.controller.tick()
    assert cluster.clock() - began_s > 299
    worker.membership()
    assert worker.generation < cluster.clock()
    assert cluster.controller.job("job").generations_begun < 40


def test_a_job_that_churns_delays_no_other(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    (churner,) = cluster.run("aaa", workers=1)
    line = cluster.controller._reconcilers["s1"]
    device = cluster.devices["s1"]
    written, read = device.write, device.read_cookie  # type: ignore[attr-defined]
    looks = 0

    def write(*updates: object, **options: object) -> object:
        """Whenever something is written, the other job's worker is started again: there is always something to do."""
        result = written(*updates, **options)
        if busy:
            busy.pop()
            churner.start_again()
        return result

    def read_cookie() -> object:
        nonlocal looks
        looks += 1
        return read()

    device.write, device.read_cookie = write, read_cookie  # type: ignore[attr-defined,method-assign]
    busy: list[None] = []
    others = cluster.make("zzy", workers=2)
    busy.extend([None] * 500)
    for worker in others:
        worker.join()
    line.reconcile()
    assert not isinstance(others[0].membership(), Pending)
    assert state_of(cluster.controller.job("zzy")) is JobState.RUNNING
    assert len(busy) > 400, "a pass ends, though there is always something to do"
