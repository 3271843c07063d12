# SPDX-License-Identifier: Apache-2.0
"""The counter-based random numbers of estimators: by key and place, in blocks of 1024, whatever the order of work."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from hopsum.codec.hashing import ROTATION, ROUNDING, block_keys, derive_key, lane_bits
from hopsum.codec.interface import ReductionContext, blocks_of

_BLOCK: Final = 1024


def rounding_key(context: ReductionContext) -> int:
    """Return the key of roundings: another one for each rank."""
    return derive_key(context.seed, context.step, ROUNDING, context.rank)


def rotation_key(context: ReductionContext) -> int:
    """Return the key of signs: the same on all ranks."""
    return derive_key(context.seed, context.step, ROTATION)


def uniforms(key: int, run: slice) -> NDArray[np.float64]:
    """Return one number in (0, 1) for each element of a run that starts at a multiple of 1024.

    They are odd multiples of 2^-33: the mean is exactly 1/2, and neither 0 nor 1 occurs.
    """
    bits = lane_bits(_keys(key, run), _BLOCK).reshape(-1)[: run.stop - run.start]
    return (bits.astype(np.float64) + 0.5) * 2.0**-32


def signs(key: int, run: slice) -> NDArray[np.float32]:
    """Return +1 or -1 for each element of a run that starts at a multiple of 1024."""
    bits = lane_bits(_keys(key, run), _BLOCK // 32).astype("<u4").view(np.uint8)
    single = np.unpackbits(bits, axis=1, bitorder="little").reshape(-1)[: run.stop - run.start]
    return np.float32(1) - 2 * single.astype(np.float32)


def _keys(key: int, run: slice) -> NDArray[np.uint64]:
    return block_keys(key, run.start // _BLOCK, blocks_of(run.stop - run.start, _BLOCK))
