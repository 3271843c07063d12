# SPDX-License-Identifier: Apache-2.0
"""Codec `lossless` as a part of `hopsum bench codec`: 5 % of 16 M elements, two threads. `bench lossless` has more.

What it sends is compared with gamma d + 1/32 of float32: a sketch of gamma cells per non-zero element, d their share,
and a bit of index per element.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from hopsum.codec import make_codec
from hopsum.codec.lossless import Lossless
from hopsum.codec.lossless.sizing import GAMMA
from hopsum_evaluation.bench.lossless import LosslessSetting, run

ELEMENTS = 1 << 24
LEAST_ELEMENTS = 1 << 12
DENSITY = 0.05
THREADS = 2
_BITS = 32


def measure_lossless(runs: int, scale: float, seed: int) -> dict[str, Any]:
    """Return what `bench lossless` says of one setting, and how its bytes compare with the formula."""
    elements = max(LEAST_ELEMENTS, round(ELEMENTS * scale))
    rng = np.random.default_rng([seed, elements])
    x = np.zeros(elements, np.float32)
    used = rng.choice(elements, round(DENSITY * elements), replace=False)
    x[used] = rng.standard_normal(used.size, dtype=np.float32)
    threads = min(THREADS, len(os.sched_getaffinity(0)))
    codec = make_codec("lossless", workers=1, threads=threads)
    assert isinstance(codec, Lossless)
    (row,) = run([LosslessSetting(codec, GAMMA, threads)], x, runs, seed)["settings"]
    formula = GAMMA * used.size / elements + 1 / _BITS
    return {
        **row,
        "elements": elements,
        "density": used.size / elements,
        "bytes_formula": round(formula, 5),
        "bytes_of_formula": round(row["bytes_of_dense"] / formula, 4),
    }
