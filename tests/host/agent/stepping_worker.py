# SPDX-License-Identifier: Apache-2.0
"""A worker process that a test can stop: sums some vectors, one after the other, and says what came out.

Arguments: rank, membership file, elements, steps. One JSON object a line: "step", "digest" of the mean, "left_out": in
how many of the sums this rank is not; and more. At the end: what went in, what its error feedback holds (added up),
and how many results it had from peers.
"""

from __future__ import annotations

import hashlib
import json
import sys

import numpy as np

from hopsum.agent import Agent
from hopsum.codec import ErrorFeedback, make_codec
from hopsum.communicator.allreduce_results import AllReduceResult
from hopsum.protocol.worker import Timing
from hopsum_wire import Op
from hopsum_wire.membership import read_membership
from hopsum_wire.payload import SHAPES

RETRANSMIT_S = 0.02
TIMING = Timing(retransmit_s=RETRANSMIT_S, backoff=1.5, retransmit_max_s=0.2, deadline_s=60.0)


def vector(step: int, rank: int, elements: int) -> np.ndarray:
    return np.random.default_rng((step, rank)).standard_normal(elements, dtype=np.float32)


def main(rank: int, path: str, elements: int, steps: int) -> None:
    feedback, put_in = ErrorFeedback(elements), 0.0
    codec = make_codec("fixed", workers=len(read_membership(path).workers), backend="numpy")
    with Agent(path, rank, codec=codec, timing=TIMING) as agent:
        for step in range(steps):
            x = vector(step, rank, elements)
            put_in += float(x.sum(dtype=np.float64))
            say(step, rank, agent.allreduce(x, feedback=feedback))
        repaired = agent._transport.worker.statistics.repaired
        left = float(feedback.residual.sum(dtype=np.float64))
        print(json.dumps({"repaired": repaired, "put_in": put_in, "residual": left}), flush=True)


def say(step: int, rank: int, result: AllReduceResult) -> None:
    counts = np.array([int(bits).bit_count() for bits in result.contributors])
    of_elements = counts.repeat(SHAPES[Op.ADD32].elements)[: result.mean.size]
    told = {
        "step": step,
        "digest": hashlib.sha256(result.mean.tobytes() + result.contributors.tobytes()).hexdigest(),
        "left_out": sum(not int(bits) >> rank & 1 for bits in result.contributors),
        "fewest": int(counts.min()),
        "came_out": float((result.mean.astype(np.float64) * of_elements).sum()),
    }
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
