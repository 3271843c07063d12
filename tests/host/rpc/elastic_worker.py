# SPDX-License-Identifier: Apache-2.0
"""One rank of a training-like loop that outlives switches and workers; in a thread, or a process of its own.

Each step adds the mean of the ranks' vectors to a model. Every step is told: number, digest of the model, contributors,
and whether the mean was that of the contributors.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

import hopsum
from hopsum.communicator import AllReduceResult, Communicator
from hopsum.errors import WorkersReplacedError

ELEMENTS, CHUNK, WAIT_S = 3000, 256, 60.0
Tell = Callable[[dict[str, Any]], None]


def vector(rank: int, step: int) -> NDArray[np.float32]:
    """Return what a rank adds in a step: the same for all ranks, but for a factor."""
    pattern = np.random.default_rng(step).integers(-8, 9, ELEMENTS).astype(np.float32)
    return pattern * np.float32(rank + 1)


def is_right(result: AllReduceResult, step: int) -> bool:
    """Say whether a mean is that of the contributors, chunk by chunk."""
    if len(result.contributors) != -(-ELEMENTS // CHUNK):
        return False
    ranks = [[rank for rank in range(8) if bits >> rank & 1] for bits in result.contributors.tolist()]
    factors = np.repeat([np.mean(each) + 1 for each in ranks], CHUNK)[:ELEMENTS]
    return bool(np.allclose(result.mean, vector(0, step) * factors, atol=1e-3))


def train(job: Communicator, steps: int, tell: Tell, before: Callable[[int], None] = lambda step: None) -> None:
    """Take part until there were so many steps; `before` is called before each."""
    model, step = np.zeros(ELEMENTS, np.float32), 0
    if job.is_newcomer:
        state = job.fetch_state(WAIT_S)
        step, model = int.from_bytes(state[:8], "big"), np.frombuffer(state[8:], np.float32).copy()
        tell({"step": step, "new": True})

    def dump() -> bytes:
        return step.to_bytes(8, "big") + model.tobytes()

    while step < steps:
        before(step)
        try:
            result = job.allreduce(vector(job.rank, step), step=step)
        except WorkersReplacedError as error:
            tell({"step": step, "replaced": list(error.ranks)})
            job.resume(dump)
            continue
        right = is_right(result, step)
        model += result.mean
        step += 1
        digest = hashlib.blake2b(model.tobytes(), digest_size=8).hexdigest()
        tell({"step": step, "digest": digest, "contributors": result.contributors.tolist(), "right": right})


def main() -> None:
    """Arguments: URL, token, rank, steps. Told as JSON lines."""
    url, token, rank, steps = sys.argv[1:]
    waits = {"deadline_s": WAIT_S, "replacement_wait_s": WAIT_S}
    with hopsum.connect(url, token=token, rank=int(rank), codec="fixed", backend="numpy", **waits) as job:
        train(job, int(steps), lambda told: print(json.dumps(told), flush=True))


if __name__ == "__main__":
    main()
