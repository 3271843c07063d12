# SPDX-License-Identifier: Apache-2.0
"""The numpy backend: the definition in kernels.py, one array expression per line of it.

It works on runs of blocks that fit a processor's cache, on the calling thread alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hopsum.codec.backends.kernels import FRACTION_BITS, BlockKeys, CodeTable, Form
from hopsum.codec.hashing import block_keys, lane_bits
from hopsum.codec.interface import Bytes, Doubles, Floats, Ints, Words
from hopsum_wire.payload import pack_codes, unpack_codes

_RUN_BLOCKS: Final = 32


class NumpyKernels:
    """`Kernels` in numpy, written for reading: the reference of all backends."""

    name = "numpy"
    threads = 1

    def root_mean_square(self, x: Floats) -> Floats:
        """Add squares in 16 lanes over B/16 rows, then halve the lanes. A square of a float32 is exact in float64."""
        out = np.empty(len(x), np.float32)
        for run in _runs(len(x)):
            # 16 running sums, since that is a vector's width on common processors: compiled kernels add in the same
            # order.
            lanes = np.zeros((run.stop - run.start, 16))
            for row in range(0, x.shape[1], 16):
                part = x[run, row : row + 16].astype(np.float64)
                lanes += part * part
            for half in (8, 4, 2, 1):
                lanes = lanes[:, :half] + lanes[:, half : 2 * half]
            out[run] = np.sqrt(lanes[:, 0] / x.shape[1])
        return out

    def peak_bits(self, x: Floats) -> Words:
        """Compare bits: magnitudes order like unsigned integers."""
        bits: Words = (x.view(np.uint32) & np.uint32(0x7FFFFFFF)).max(axis=1, initial=np.uint32(0))
        return bits

    def thc_encode(
        self, x: Floats, scales: Floats, shifts: Ints, table: CodeTable, form: Form, keys: BlockKeys, out: Bytes
    ) -> None:
        """Round by looking up the lower neighbour of every cell of the table's grid."""
        granularity = table.granularity
        # Rounding looks at the cell of the table's grid: all positions of a cell have the same two neighbours.
        beneath = np.searchsorted(table.values, np.arange(granularity + 1), side="right") - 1
        lower = np.clip(beneath, 0, len(table.values) - 2)
        upper = table.values[lower + 1].astype(np.int32)
        width = upper - table.values[lower]
        for run in _runs(len(x)):
            q = _coordinates(x[run], scales[run], shifts[run], granularity, keys.advanced(run.start))
            np.clip(q, 0, granularity << FRACTION_BITS, out=q)
            u = _fractions(block_keys(keys.rounding, keys.first + run.start, len(q)), q.shape[1])
            cell = q >> FRACTION_BITS
            # Rounded up with probability (q - lower) / width, exactly, by 16 random bits.
            up = q + u * width[cell] >= upper[cell] << FRACTION_BITS
            out[run] = _to_payload((lower[cell] + up).astype(np.uint8), form)

    def thc_dequantize(
        self,
        payloads: Bytes,
        factors: Floats,
        table: CodeTable,
        form: Form,
        keys: BlockKeys,
        out: Floats,
        subtract: bool,
    ) -> None:
        """Dequantise this worker's own codes: decode a sum that has one contributor."""
        for run in _runs(len(payloads)):
            codes = _codes(payloads[run], form)
            w = 2 * table.values[codes].astype(np.int32) - np.int32(table.granularity)
            x = _back(w, factors[run], keys.advanced(run.start))
            out[run] = out[run] - x if subtract else x

    def thc_decode(
        self, lanes: Bytes, counts: Ints, factors: Floats, granularity: int, form: Form, keys: BlockKeys, out: Floats
    ) -> Ints:
        """Centre the sums and rotate back."""
        peaks = np.empty(len(lanes), np.int32)
        for run in _runs(len(lanes)):
            sums = _lanes(lanes[run], form).astype(np.int32)
            peaks[run] = sums.max(axis=1, initial=0)
            w = 2 * sums - counts[run, None] * np.int32(granularity)
            out[run] = _back(w, factors[run], keys.advanced(run.start))
        return peaks

    def fixed_encode(self, x: Floats, scales: Floats, limit: np.float32, out: Words) -> None:
        """Scale by a power of two, which is exact, and round."""
        for run in _runs(len(x)):
            scaled = np.clip(x[run] * scales[run, None], -limit, limit)
            out[run] = np.rint(scaled).astype(np.int32).astype(">i4").view(np.uint32)

    def fixed_decode(self, lanes: Words, divisors: Doubles, out: Floats) -> None:
        """Divide in float64, which holds every int32."""
        for run in _runs(len(lanes)):
            out[run] = lanes[run].view(">i4").astype(np.float64) / divisors[run, None]


def _runs(blocks: int) -> Iterator[slice]:
    for start in range(0, blocks, _RUN_BLOCKS):
        yield slice(start, min(start + _RUN_BLOCKS, blocks))


def _lanes(payloads: Bytes, form: Form) -> NDArray[Any]:
    """Return lanes in element order, [blocks, B]."""
    return np.ascontiguousarray(payloads).view(form.lane_dtype)


def _codes(payloads: Bytes, form: Form) -> NDArray[Any]:
    if form.packed:
        return unpack_codes(payloads, form.lane_bits, form.group_codes)
    return _lanes(payloads, form)


def _to_payload(codes: Bytes, form: Form) -> Bytes:
    if form.packed:
        return pack_codes(codes, form.lane_bits, form.group_codes)
    return codes.astype(form.lane_dtype).view(np.uint8)


def _coordinates(x: Floats, scales: Floats, shifts: Ints, granularity: int, keys: BlockKeys) -> Ints:
    """Return q before its clamp, int32[blocks, B]."""
    half = granularity << FRACTION_BITS - 1
    # A vector with infinite elements passes here before its ranges make all ranks skip.
    with np.errstate(over="ignore"):
        scaled = x * scales[:, None]
    y = _to_wire(_hadamard(np.rint(scaled).astype(np.int32) * _signs(keys, x.shape)))
    # Clamp before the shift: k of up to 23 bits would overflow 32.
    limits = ((half >> shifts) + 1)[:, None]
    beyond = (shifts > 0)[:, None]
    return np.asarray(np.where(beyond, np.clip(y, -limits, limits) << shifts[:, None], y) + np.int32(half))


def _back(w: Ints, factors: Floats, keys: BlockKeys) -> Floats:
    """Return x', float32[blocks, B]: H is symmetric, so only order and signs are undone."""
    x = _hadamard(_from_wire(w)) * _signs(keys, w.shape)
    return np.asarray(x.astype(np.float32) * factors[:, None])


def _signs(keys: BlockKeys, shape: tuple[int, ...]) -> Ints:
    """Return +1 and -1, int32[blocks, B]: -1 where the bit is set."""
    blocks, elements = shape
    lanes = lane_bits(block_keys(keys.rotation, keys.first, blocks), 32)[:, None, :]
    bits = lanes >> np.arange(elements // 32, dtype=np.uint32)[None, :, None]
    return 1 - 2 * (bits & np.uint32(1)).astype(np.int32).reshape(blocks, elements)


def _fractions(keys: NDArray[np.uint64], elements: int) -> Ints:
    """Return 16 random bits per element, int32[blocks, B]."""
    bits = lane_bits(keys, elements // 2).reshape(len(keys), -1, 1, 256)
    pair = np.concatenate((bits & np.uint32(0xFFFF), bits >> np.uint32(16)), axis=2)
    return pair.astype(np.int32).reshape(len(keys), elements)


def _hadamard(v: Ints) -> Ints:
    """Return H v for each row of int32[blocks, B], in the natural (Sylvester) order."""
    shape = v.shape
    # Largest stride first, the natural (Sylvester) order. Integers: any order gives the same sums.
    stride = shape[1] // 2
    while stride:
        pair = v.reshape(len(v), -1, 2, stride)
        v = np.stack((pair[:, :, 0] + pair[:, :, 1], pair[:, :, 0] - pair[:, :, 1]), axis=2)
        stride //= 2
    return v.reshape(shape)


def _to_wire(y: Ints) -> Ints:
    return y.reshape(len(y), -1, 16).transpose(0, 2, 1).reshape(y.shape)


def _from_wire(w: Ints) -> Ints:
    return w.reshape(len(w), 16, -1).transpose(0, 2, 1).reshape(w.shape)
