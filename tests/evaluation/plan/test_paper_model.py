# SPDX-License-Identifier: Apache-2.0
"""The publication's model: against workers and a network simulated event by event, and against what is printed."""

from __future__ import annotations

import heapq
from dataclasses import replace

import numpy as np
import pytest

from hopsum_evaluation.plan.paper_model import (
    ALEXNET_BYTES,
    ALEXNET_ITERATIONS,
    GIGABIT_ETHERNET_BYTES_PER_S,
    PUBLISHED_GZIP,
    PUBLISHED_RATIOS,
    SynchronousSgd,
)
from hopsum_evaluation.plan.traffic import PlanError

JOB = SynchronousSgd(ALEXNET_BYTES, 0.2, ALEXNET_ITERATIONS, GIGABIT_ETHERNET_BYTES_PER_S)
PACKETS = 50


def simulate(job: SynchronousSgd, workers: int, ratio: float, overhead: float) -> tuple[float, float]:
    """Return when the last worker has computed, and when the last packet has passed the one link of the server.

    Every worker takes its minibatches one by one, then offers its packets to a link that takes one at a time, that of
    the worker that has waited longest.
    """
    computed = []
    for _ in range(workers):
        clock = 0.0
        for _ in range(int(job.iterations)):
            clock += job.minibatch_s / workers * overhead
        computed.append(clock)
    waiting = [(clock, packet, worker) for worker, clock in enumerate(computed) for packet in range(PACKETS)]
    heapq.heapify(waiting)
    link_free = 0.0
    while waiting:
        since, _, _ = heapq.heappop(waiting)
        link_free = max(link_free, since) + job.weights_bytes * ratio / PACKETS / job.bytes_per_s
    return max(computed), link_free


@pytest.mark.parametrize("workers", [1, 2, 7, 16, 25, 40])
@pytest.mark.parametrize(("ratio", "overhead"), [(1.0, 1.0), (0.2, 1.3), (0.5, 2.0)])
def test_an_update_takes_what_the_simulation_takes(workers: int, ratio: float, overhead: float) -> None:
    computed_s, done_s = simulate(JOB, workers, ratio, overhead)
    assert JOB.compute_s(workers, overhead) == pytest.approx(computed_s)
    assert JOB.transfer_s(workers, ratio) == pytest.approx(done_s - computed_s)
    assert JOB.update_s(workers, ratio, overhead) == pytest.approx(done_s)


@pytest.mark.parametrize("workers", [1, 4, 16])
def test_repeated_compression_takes_what_its_steps_take(workers: int) -> None:
    """Section 4.2: workers compress, the server decompresses each, compresses once, workers decompress."""
    gzip = PUBLISHED_GZIP
    offered = [JOB.compute_s(workers) + gzip.compress_s] * workers
    link_free = 0.0
    for since in offered:
        link_free = max(link_free, since) + gzip.ratio * ALEXNET_BYTES / GIGABIT_ETHERNET_BYTES_PER_S
    server_free = link_free
    for _ in offered:
        server_free += gzip.decompress_s
    end = server_free + gzip.compress_s + gzip.decompress_s
    assert PUBLISHED_GZIP.update_s(JOB, workers) == pytest.approx(end)


@pytest.mark.parametrize("slack", [1.0, 2.0, 8.0, 16.0])
@pytest.mark.parametrize("ratio", [0.01, *PUBLISHED_RATIOS, 1.0])
def test_the_bound_on_h_is_where_the_time_is_reached(ratio: float, slack: float) -> None:
    """Eq. of section 5: h at the bound takes r i C / M in the simulation; a little more takes longer."""
    workers = 16
    bound = JOB.overhead_bound(workers, ratio, slack)
    allowed_s = slack * JOB.single_node_s / workers
    assert JOB.update_s(workers, ratio, bound) == pytest.approx(allowed_s)
    if bound > 0:
        assert simulate(JOB, workers, ratio, bound)[1] == pytest.approx(allowed_s)
        assert simulate(JOB, workers, ratio, bound * 1.01)[1] > allowed_s


def test_curves_cross_where_they_are_said_to() -> None:
    workers = np.arange(1, 100)
    transfer_longer = [m for m in workers if JOB.transfer_s(m) > JOB.compute_s(m)]
    slower_than_one = [m for m in workers if JOB.transfer_s(m) > JOB.single_node_s]
    assert transfer_longer[0] == int(JOB.crossing_workers()) + 1
    assert slower_than_one[0] == int(JOB.overtaking_workers()) + 1
    shortest = min(np.linspace(1, 100, 10_000), key=lambda m: JOB.update_s(m, 0.2))
    assert shortest == pytest.approx(JOB.crossing_workers(0.2), abs=0.02)


@pytest.mark.parametrize("name", ["weights_bytes", "minibatch_s", "iterations", "bytes_per_s"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), float("nan")])
def test_values_that_are_none_are_refused(name: str, value: float) -> None:
    with pytest.raises(PlanError, match=name):
        replace(JOB, **{name: value})
