# SPDX-License-Identifier: Apache-2.0
"""The choice between vector code (vectors.py) and plain loops, kernel by kernel.

Both give the same bytes, so ranks may choose differently. Plain loops remain where the vector code does not compile,
where a measurement finds no gain, and with HOPSUM_COMPILED=0.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from importlib import import_module
from time import perf_counter
from typing import Any, Final, NamedTuple

import numpy as np

from hopsum.codec.backends import compiled_decode, compiled_is_wanted, compiled_thc
from hopsum.codec.backends.kernels import THC_BLOCK, TableSteps

_BLOCKS: Final = 128
"""The blocks of a probe: 512 KiB of elements, more than the first-level cache has."""
_TURNS: Final = 5
_TABLE: Final = (0, 8, 13, 17, 20, 23, 26, 29, 32, 35, 38, 41, 44, 48, 53, 61)
"""The table of a probe: that of thc for 4 workers. A table with all integers would take another way in the kernels."""
_log = logging.getLogger(__name__)

Kernel = Callable[..., None]


class BlockKernels(NamedTuple):
    """Kernels of which there are two: the range of any block, and the ways of rotated blocks of 1024."""

    root_mean_square: Kernel
    encode8: Kernel
    decode8: Kernel
    dequantize8: Kernel


@cache
def block_kernels(root_mean_square: Kernel) -> BlockKernels:
    """Return the faster kernel of each kind on this machine. `root_mean_square` is the plain loop of ranges."""
    loops = BlockKernels(root_mean_square, compiled_thc.encode8, compiled_decode.decode8, compiled_decode.dequantize8)
    if not compiled_is_wanted():
        return loops
    try:
        vectors = import_module("hopsum.codec.backends.vectors")
    except Exception:  # numba's errors have no base of their own; the loops do the same
        _log.warning("vector code of the codecs does not compile here: plain loops are used", exc_info=True)
        return loops
    found = BlockKernels(vectors.root_mean_square, vectors.encode8, vectors.decode8, vectors.dequantize8)
    return BlockKernels(*(faster(*each) for each in zip(loops, found, probes(), strict=True)))


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


def probes() -> tuple[Callable[[], tuple[Any, ...]], ...]:
    """Return what makes the arguments of a call of each kernel, in the order of BlockKernels."""
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
    return (
        lambda: (x, turns(), 0, ranges),
        lambda: (x, ones, unshifted, *rounding, 512, True, key, key, turns(), 0, codes),
        lambda: (sums, counts, ones, steps.granularity, True, key, turns(), 0, x, peaks),
        lambda: (sums[:, : THC_BLOCK // 2].copy(), ones, *table, 512, True, key, False, turns(), 0, x),
    )
