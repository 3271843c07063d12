# SPDX-License-Identifier: Apache-2.0
"""The numpy backend: the definition in kernels.py, one array expression per line of it.

It works on runs of blocks that fit a processor's cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hopsum.codec.backends.kernels import FRACTION_BITS, THC_BLOCK, BlockKeys, Steps
from hopsum.codec.hashing import block_keys, lane_bits
from hopsum.wire.payload import pack_codes, unpack_codes

_RUN_BLOCKS: Final = 32


class NumpyKernels:
    """See `Kernels`."""

    name = "numpy"

    def root_mean_square(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Add squares in 16 lanes over 64 rows, then halve the lanes; a square of a float32 is exact in float64."""
        out = np.empty(len(x), np.float32)
        for run in _runs(len(x)):
            lanes = np.zeros((run.stop - run.start, 16))
            for row in range(0, THC_BLOCK, 16):
                part = x[run, row : row + 16].astype(np.float64)
                lanes += part * part
            for half in (8, 4, 2, 1):
                lanes = lanes[:, :half] + lanes[:, half : 2 * half]
            out[run] = np.sqrt(lanes[:, 0] / THC_BLOCK)
        return out

    def peak_bits(self, x: NDArray[np.float32]) -> NDArray[np.uint32]:
        """Compare bits: magnitudes order like unsigned integers."""
        bits: NDArray[np.uint32] = (x.view(np.uint32) & np.uint32(0x7FFFFFFF)).max(axis=1, initial=np.uint32(0))
        return bits

    def thc_encode(
        self,
        x: NDArray[np.float32],
        scales: NDArray[np.float32],
        steps: Steps,
        keys: BlockKeys,
        out: NDArray[np.uint8],
    ) -> None:
        """Round by looking up the lower neighbour of every cell of the table's grid."""
        granularity = steps.granularity
        lower = np.clip(np.searchsorted(steps.table, np.arange(granularity + 1), side="right") - 1, 0, 14)
        upper = steps.table[lower + 1].astype(np.int32)
        width = upper - steps.table[lower]
        for run in _runs(len(x)):
            blocks = run.stop - run.start
            signs = _signs(block_keys(keys.rotation, keys.first + run.start, blocks))
            v = np.rint(x[run] * scales[run, None]).astype(np.int32) * signs
            q = _to_wire(_hadamard(v)) + np.int32(granularity << FRACTION_BITS - 1)
            np.clip(q, 0, granularity << FRACTION_BITS, out=q)
            u = _fractions(block_keys(keys.rounding, keys.first + run.start, blocks))
            cell = q >> FRACTION_BITS
            up = q + u * width[cell] >= upper[cell] << FRACTION_BITS
            out[run] = pack_codes((lower[cell] + up).astype(np.uint8))

    def thc_lookup(self, payloads: NDArray[np.uint8], steps: Steps, out: NDArray[np.uint8]) -> None:
        """Look up by index."""
        for run in _runs(len(payloads)):
            out[run] = steps.table[unpack_codes(payloads[run])]

    def thc_decode(
        self,
        lanes: NDArray[np.uint8],
        counts: NDArray[np.int32],
        factors: NDArray[np.float32],
        granularity: int,
        keys: BlockKeys,
        out: NDArray[np.float32],
    ) -> None:
        """Rotate back: H is symmetric, so only order and signs are undone."""
        for run in _runs(len(lanes)):
            w = 2 * lanes[run].astype(np.int32) - counts[run, None] * np.int32(granularity)
            signs = _signs(block_keys(keys.rotation, keys.first + run.start, run.stop - run.start))
            x = _hadamard(_from_wire(w)) * signs
            np.multiply(x.astype(np.float32), factors[run, None], out=out[run])

    def fixed_encode(
        self, x: NDArray[np.float32], scales: NDArray[np.float32], limit: np.float32, out: NDArray[np.uint32]
    ) -> None:
        """Scale by a power of two, which is exact, and round."""
        for run in _runs(len(x)):
            scaled = np.clip(x[run] * scales[run, None], -limit, limit)
            out[run] = np.rint(scaled).astype(np.int32).astype(">i4").view(np.uint32)

    def fixed_decode(self, lanes: NDArray[np.uint32], divisors: NDArray[np.float64], out: NDArray[np.float32]) -> None:
        """Divide in float64, which holds every int32."""
        for run in _runs(len(lanes)):
            out[run] = lanes[run].view(">i4").astype(np.float64) / divisors[run, None]


def make_kernels() -> NumpyKernels:
    """Return the backend."""
    return NumpyKernels()


def _runs(blocks: int) -> Iterator[slice]:
    for start in range(0, blocks, _RUN_BLOCKS):
        yield slice(start, min(start + _RUN_BLOCKS, blocks))


def _signs(keys: NDArray[np.uint64]) -> NDArray[np.int32]:
    """Return +1 and -1, int32[blocks, 1024]: -1 where the bit is set."""
    bits = lane_bits(keys, 32)[:, None, :] >> np.arange(32, dtype=np.uint32)[None, :, None]
    return 1 - 2 * (bits & np.uint32(1)).astype(np.int32).reshape(len(keys), THC_BLOCK)


def _fractions(keys: NDArray[np.uint64]) -> NDArray[np.int32]:
    """Return 16 random bits per element, int32[blocks, 1024]."""
    bits = lane_bits(keys, 512).reshape(len(keys), 2, 1, 256)
    pair = np.concatenate((bits & np.uint32(0xFFFF), bits >> np.uint32(16)), axis=2)
    return pair.astype(np.int32).reshape(len(keys), THC_BLOCK)


def _hadamard(v: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return H v for each row of int32[blocks, 1024], in the natural (Sylvester) order."""
    stride = THC_BLOCK // 2
    while stride:
        pair = v.reshape(len(v), -1, 2, stride)
        v = np.stack((pair[:, :, 0] + pair[:, :, 1], pair[:, :, 0] - pair[:, :, 1]), axis=2)
        stride //= 2
    return v.reshape(len(v), THC_BLOCK)


def _to_wire(y: NDArray[np.int32]) -> NDArray[np.int32]:
    return y.reshape(len(y), 64, 16).transpose(0, 2, 1).reshape(len(y), THC_BLOCK)


def _from_wire(w: NDArray[np.int32]) -> NDArray[np.int32]:
    return w.reshape(len(w), 16, 64).transpose(0, 2, 1).reshape(len(w), THC_BLOCK)
