# SPDX-License-Identifier: Apache-2.0
"""The choice between vector code (vectors.py) and plain loops, kernel by kernel.

Both give the same bytes, so ranks may choose differently. Plain loops remain where the vector code does not compile,
where the processor has no AVX2 and a measurement finds no gain, and with HOPSUM_COMPILED=0.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from importlib import import_module
from time import perf_counter
from typing import Any, Final

import numpy as np

from hopsum.codec.backends import compiled_is_wanted
from hopsum.codec.backends.jit import LazyKernel
from hopsum.codec.backends.kernels import THC_BLOCK, TableSteps
from hopsum.codec.backends.vector_parts import HAS_AVX2

_BLOCKS: Final = 128
"""The blocks of a probe: 512 KiB of elements, more than the first-level cache has."""
_TURNS: Final = 5
_TABLE: Final = (0, 8, 13, 17, 20, 23, 26, 29, 32, 35, 38, 41, 44, 48, 53, 61)
"""The table of a probe: that of thc for 4 workers. A table with all integers would take another way in the kernels."""
_log = logging.getLogger(__name__)

Kernel = Callable[..., None]


@cache
def block_kernel(name: str, loop: Kernel) -> Kernel:
    """Return the faster one of a plain loop and the kernel of that name in `vectors`, on this machine.

    With AVX2 that is the vector code, unmeasured: docs/performance.md has by how much. The loop need not be compiled
    then, and a busy machine cannot make it look faster.
    """
    if not compiled_is_wanted():
        return loop
    try:
        vector: LazyKernel = getattr(import_module("hopsum.codec.backends.vectors"), name)
        vector.compile()
    except Exception:  # numba's errors have no base of their own; the loop does the same
        _log.warning("vector code %s of the codecs does not compile here: a plain loop is used", name, exc_info=True)
        return loop
    return vector if HAS_AVX2 else faster(loop, vector, probes()[name])


def faster(loop: Kernel, vector: Kernel, arguments: Callable[[], tuple[Any, ...]]) -> Kernel:
    """Return the kernel with the smaller least time of a few calls by turns."""
    least = {loop: float("inf"), vector: float("inf")}
    for _ in range(_TURNS):
        for each in least:
            given = arguments()
            start = perf_counter()
            each(*given)
            least[each] = min(least[each], perf_counter() - start)
    return min(least, key=lambda each: least[each])


def probes() -> dict[str, Callable[[], tuple[Any, ...]]]:
    """Return what makes the arguments of a call, for each kernel in `vectors`: ranges, and rotated blocks of 1024."""
    x = np.ones((_BLOCKS, THC_BLOCK), np.float32)
    sums, ones = np.ones((_BLOCKS, THC_BLOCK), np.uint8), np.ones(_BLOCKS, np.float32)
    counts, peaks, ranges = np.ones(_BLOCKS, np.int32), np.empty(_BLOCKS, np.int32), np.empty(_BLOCKS, np.float32)
    steps = TableSteps.of(_TABLE)
    key = np.uint64(1)

    def turns() -> np.ndarray[Any, Any]:
        return np.zeros(1, np.int64)

    table = (steps.granularity, steps.base, steps.extra_codes, steps.extra_gaps)
    rounding = (steps.widths, steps.starts, steps.below, steps.lengths, steps.granularity, steps.identity)
    codes, unshifted = np.empty((_BLOCKS, THC_BLOCK // 2), np.uint8), np.zeros(_BLOCKS, np.int32)
    return {
        "root_mean_square": lambda: (x, turns(), 0, ranges),
        "encode8": lambda: (x, ones, unshifted, *rounding, 512, True, key, key, turns(), 0, codes),
        "decode8": lambda: (sums, counts, ones, steps.granularity, True, key, turns(), 0, x, peaks),
        "dequantize8": lambda: (sums[:, : THC_BLOCK // 2].copy(), ones, *table, 512, True, key, False, turns(), 0, x),
    }
