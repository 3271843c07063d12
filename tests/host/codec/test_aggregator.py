# SPDX-License-Identifier: Apache-2.0
"""One all-reduce through the protocol's own aggregator: the simulated switch sums as it does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hopsum.codec import Codec, ErrorFeedback, ReductionContext, job_tables, make_codec
from hopsum.codec.simulate import simulate_allreduce
from hopsum.protocol.worker import AllReduceDone, Membership, Worker
from hopsum_oracle.aggregator import Aggregator, JobConfig, WorkerConfig

from .vectors import layered

WORKERS = 3
MEMBERS = tuple(
    WorkerConfig(rank, 10 + rank, 0x020000000100 + rank, 0x0A000001 + rank, 5000) for rank in range(WORKERS)
)


class Rack:
    """Workers and an aggregator that exchange datagrams without a network."""

    def __init__(self, codec: Codec) -> None:
        job = JobConfig(7, workers=MEMBERS, quorum=WORKERS, job_index=0, slot_base=0, slots=4, **job_tables(codec))
        self.switch = Aggregator(jobs=[job])
        self.workers = [Worker(Membership(7, rank, WORKERS, 4)) for rank in range(WORKERS)]

    def allreduce(self, op: int, payloads: list[NDArray[np.uint8]]) -> list[AllReduceDone]:
        for worker, own in zip(self.workers, payloads, strict=True):
            worker.submit(op, own, now=0.0)
        done: dict[int, AllReduceDone] = {}
        while len(done) < WORKERS:
            sent = [(rank, d) for rank, w in enumerate(self.workers) for d in w.datagrams_to_send(0.0)]
            assert sent, "nobody sends and somebody waits"
            for rank, datagram in sent:
                member = MEMBERS[rank]
                outcome = self.switch.receive(member.port, member.ip, member.udp_port, bytes(datagram))
                for output in outcome.outputs:
                    data = output.header.pack() + output.payload
                    self.workers[output.worker.rank].receive_datagram(data, 0.0)
            for rank, worker in enumerate(self.workers):
                if isinstance(event := worker.next_event(), AllReduceDone):
                    done[rank] = event
        return [done[rank] for rank in range(WORKERS)]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("thc", {}),
        ("thc", {"lane_bits": 16}),
        ("uhc", {"bits": 2, "lane_bits": 16}),
        ("uhc", {"bits": 6}),
        ("uhc", {"bits": 8}),
        ("fixed", {}),
        ("lossless", {}),
    ],
)
def test_all_reduce_through_the_aggregator(name: str, options: dict[str, Any]) -> None:
    codec = make_codec(name, workers=WORKERS, backend="numpy", **options)
    vectors = [layered(9000, seed=rank) for rank in range(WORKERS)]
    rack, kept = Rack(codec), [ErrorFeedback(9000) for _ in range(WORKERS)]
    reductions = [codec.start(x, ReductionContext(1, 0, r), kept[r]) for r, x in enumerate(vectors)]
    while (phase := reductions[0].phase) is not None:
        payloads = [reduction.phase.payloads for reduction in reductions if reduction.phase is not None]
        for reduction, done in zip(reductions, rack.allreduce(phase.op, payloads), strict=True):
            reduction.take(done.results, done.contributors)
    means = [reduction.mean for reduction in reductions if reduction.mean is not None]
    assert len(means) == WORKERS
    simulated = simulate_allreduce(codec, vectors, seed=1, step=0)
    assert simulated is not None
    assert {mean.tobytes() for mean in means} == {simulated[0].tobytes()}
    assert all(feedback.residual.any() for feedback in kept)
