# SPDX-License-Identifier: Apache-2.0
"""Codec `lossless` on sparse vectors: all computation of one rank, and what it sends, against the formula.

All ranks have the same vector, so that the union of their supports has its density. Timed is what a rank computes,
from the vector to the mean: ranges, index, peeling order, sketch, solution. The switch between is not.
"""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopsum.cli.bench.timing import Rate
from hopsum.codec import Codec, Context, make_codec
from hopsum.codec.lossless.sizing import GAMMA
from hopsum.codec.simulate import simulate_switch
from hopsum.wire.payload import SHAPES

ELEMENTS = 1 << 24
DENSITY = 0.05
THREADS = 2
_BITS = 32


def measure_lossless(workers: int, runs: int, scale: float, seed: int) -> dict[str, Any]:
    """Return elements per second from vector to mean, and bits up as a share of float32's beside gamma d + 1/32."""
    elements = max(1024, round(ELEMENTS * scale))
    rng = np.random.default_rng([seed, elements])
    x = np.zeros(elements, np.float32)
    used = rng.choice(elements, max(1, round(DENSITY * elements)), replace=False)
    x[used] = rng.standard_normal(used.size, dtype=np.float32)
    threads = min(THREADS, len(os.sched_getaffinity(0)))
    codec = make_codec("lossless", workers=workers, threads=threads)
    _run(codec, x, Context(seed, 0, 0))  # to warm up
    found = [_run(codec, x, Context(seed, step, 0)) for step in range(1, runs + 1)]
    seconds = sorted(each[0] for each in found)
    rate = Rate(elements / float(np.median(seconds)), elements / seconds[-1], elements / seconds[0])
    ratio = float(np.mean([each[1] for each in found])) / (_BITS * elements)
    formula = GAMMA * used.size / elements + 1 / _BITS
    return {
        "backend": codec.backend,
        "threads": threads,
        "elements": elements,
        "density": used.size / elements,
        "gamma": GAMMA,
        **rate.as_json("elements_per_s"),
        "wire_ratio": round(ratio, 5),
        "wire_ratio_formula": round(formula, 5),
        "wire_ratio_of_formula": round(ratio / formula, 4),
        "exact": all(each[2] for each in found),
    }


def _run(codec: Codec, x: NDArray[np.float32], context: Context) -> tuple[float, float, bool]:
    """Return the seconds that a rank computes, the bits it sends, and whether the mean is the vector to 2^-23."""
    start = time.perf_counter()
    reduction = codec.start(x, context)
    seconds, bits = time.perf_counter() - start, 0.0
    while (exchange := reduction.exchange) is not None:
        shape = SHAPES[exchange.op]
        bits += 8 * shape.up_bytes * exchange.lanes / shape.elements
        results, contributors = simulate_switch(exchange.op, [exchange.payloads] * codec.workers)
        start = time.perf_counter()
        reduction.take(results, contributors)
        seconds += time.perf_counter() - start
    assert reduction.mean is not None
    return seconds, bits, bool(np.allclose(reduction.mean, x, rtol=0, atol=float(np.abs(x).max()) * 2.0**-23))
