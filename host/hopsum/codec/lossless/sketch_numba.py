# SPDX-License-Identifier: Apache-2.0
"""The numba backend: peeling in linear time with a queue, one word per cell for its number of edges and their sum.

The queue is `order` itself: an edge leaves its cells when it is appended, and when its turn comes its cells are
looked at, where others may be alone by then. A sketch of 65 536 to 131 072 edges (sketch_plan.py) has at most 1.4 MB
of such words, which stay in the second-level cache. Every access to them is at random.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hopsum.codec.backends.jit import f32, f64, filled, i32, i64, inner, kernel, read, u8, u32, u64
from hopsum.codec.interface import Bytes, Doubles, Floats, Ints, Words
from hopsum.codec.lossless.sketch_kernels import Bloom, SketchKernels, SketchLayout
from hopsum_base.record_kernels import types

_U8, _I32, _U32, _I64, _U64 = types.uint8, types.int32, types.uint32, types.int64, types.uint64
_F32, _F64 = types.float32, types.float64
_LAYOUT = (_I64, _I64, _U64)
_BLOOM = (_I64, _I64, _U64)


@inner
def _splitmix64(value: int) -> int:
    value = u64(value + u64(0x9E3779B97F4A7C15))
    value = u64((value ^ (value >> u64(30))) * u64(0xBF58476D1CE4E5B9))
    value = u64((value ^ (value >> u64(27))) * u64(0x94D049BB133111EB))
    return value ^ (value >> u64(31))


@inner
def _cell(bits: int, j: int, column: int, third: int) -> int:
    # As `cells_and_signs` in sketch_kernels.py, without a division.
    start = (i64((bits >> u64(20 * j)) & u64(0xFFFFF)) * third) >> i64(20)
    place = start + column
    if place >= third:
        place -= third
    return i64(j) * third + place


@inner
def _signed(value: int, bits: int, j: int) -> int:
    # All ones or zero: xor and subtract negate without a branch.
    negative = u32(u32(0) - u32((bits >> u64(60 + j)) & u64(1)))
    return u32(u32(value ^ negative) - negative)


@inner
def _move(words: NDArray[np.uint64], bits: int, column: int, third: int, word: int) -> None:
    """Add one word to the three cells of an edge."""
    for j in range(3):
        words[_cell(bits, j, column, third)] += word


@inner
def _take(words: NDArray[np.uint64], cell: int, members: Words, third: int, shift: int, key: int) -> int:
    """Remove the only edge of a cell from its three cells. Return its entry of `order`."""
    edge = i64(words[cell] >> u64(24))
    member = u64(members[edge])
    column = i64(member & ((u64(1) << u64(shift)) - u64(1)))
    bits = _splitmix64(key + (member >> u64(shift)))
    _move(words, bits, column, third, u64(0) - ((u64(edge) << u64(24)) | u64(1)))
    return u32((u64(edge) << u64(3)) | u64(cell // third))


@inner
def _fill(members: Words, third: int, shift: int, key: int, words: NDArray[np.uint64]) -> None:
    # The place of an element in its block: blocks have a power of two elements.
    mask = (u64(1) << u64(shift)) - u64(1)
    # No block has this number: the first member computes its hash. Members ascend, so that a block is hashed once.
    block, bits = u64(0xFFFF_FFFF_FFFF_FFFF), u64(0)
    for edge in range(members.size):
        member = u64(members[edge])
        if member >> u64(shift) != block:
            block = member >> u64(shift)
            bits = _splitmix64(key + block)
        _move(words, bits, i64(member & mask), third, (u64(edge) << u64(24)) | u64(1))


@inner
def _append_rest(members: Words, order: Words, peeled: int) -> None:
    """Put the edges that did not peel behind the others, ascending."""
    left = np.ones(members.size, u8)
    for k in range(peeled):
        left[order[k] >> u32(3)] = u8(0)
    for edge in range(members.size):
        if left[edge]:
            order[peeled] = u32(u32(edge) << u32(3))
            peeled += 1


@kernel(read(_U32, 1), *_LAYOUT, filled(_U32, 1), filled(_I64, 1))
def _peel(members: Words, third: int, shift: int, key: int, order: Words, count: NDArray[np.int64]) -> None:
    # One word a cell: 24 bits count its edges, 40 bits add up their numbers. One access serves both.
    words = np.zeros(3 * third, u64)
    # All edges first: a cell is alone only once every edge is counted.
    _fill(members, third, shift, key, words)
    alone, peeled = u64(1), i64(0)
    for cell in range(3 * third):
        if words[cell] & u64(0xFFFFFF) == alone:
            order[peeled] = _take(words, cell, members, third, shift, key)
            peeled += 1
    mask = (u64(1) << u64(shift)) - u64(1)
    # `order` is the queue: what was appended is looked at once, in turn.
    head = 0
    while head < peeled:
        member = u64(members[order[head] >> u32(3)])
        bits = _splitmix64(key + (member >> u64(shift)))
        for j in range(3):
            cell = _cell(bits, j, i64(member & mask), third)
            if words[cell] & u64(0xFFFFFF) == alone:
                order[peeled] = _take(words, cell, members, third, shift, key)
                peeled += 1
        head += 1
    if peeled < members.size:
        _append_rest(members, order, peeled)
    count[0] = peeled


@kernel(read(_I32, 1), read(_U32, 1), *_LAYOUT, filled(_U32, 1))
def _add(values: Ints, members: Words, third: int, shift: int, key: int, cells: Words) -> None:
    mask = (u64(1) << u64(shift)) - u64(1)
    block, bits = u64(0xFFFF_FFFF_FFFF_FFFF), u64(0)
    for edge in range(members.size):
        value = u32(values[edge])
        # A member of the index that this rank does not have: nothing to add.
        if value == u32(0):
            continue
        member = u64(members[edge])
        if member >> u64(shift) != block:
            block = member >> u64(shift)
            bits = _splitmix64(key + block)
        column = i64(member & mask)
        for j in range(3):
            cell = _cell(bits, j, column, third)
            cells[cell] = u32(cells[cell] + _signed(value, bits, j))


@kernel(filled(_U32, 1), read(_U32, 1), *_LAYOUT, read(_U32, 1), filled(_I32, 1))
def _solve(cells: Words, members: Words, third: int, shift: int, key: int, order: Words, out: Ints) -> None:
    mask = (u64(1) << u64(shift)) - u64(1)
    for k in range(order.size):
        edge = i64(order[k] >> u32(3))
        alone = i64(order[k] & u32(3))
        member = u64(members[edge])
        bits = _splitmix64(key + (member >> u64(shift)))
        column = i64(member & mask)
        value = _signed(cells[_cell(bits, alone, column, third)], bits, alone)
        out[edge] = i32(value)
        for j in range(3):
            cell = _cell(bits, j, column, third)
            cells[cell] = u32(cells[cell] - _signed(value, bits, j))


@kernel(read(_U32, 1), filled(_U32, 1), filled(_I64, 1))
def _scan(bits: Words, peaks: Words, count: NDArray[np.int64]) -> None:
    nonzero = i64(0)
    for run in range(peaks.size):
        peak, zeros = u32(0), i32(0)
        stop = min(1024 * run + 1024, bits.size)
        for e in range(1024 * run, stop):
            magnitude = u32(bits[e] & u32(0x7FFFFFFF))
            peak = u32(max(peak, magnitude))
            zeros = i32(zeros + i32(magnitude == u32(0)))
        peaks[run] = peak
        nonzero += i64(stop - 1024 * run) - i64(zeros)
    count[0] = nonzero


@kernel(read(_F32, 1), read(_F32, 1), filled(_U8, 1))
def _mark(x: Floats, scales: Floats, bits: Bytes) -> None:
    flags = np.zeros(1024, u8)
    words = flags.view(u64)
    for run in range(scales.size):
        scale = scales[run]
        part = x[1024 * run : min(1024 * run + 1024, x.size)]
        # The rest of the last run: bits beyond the vector are 0.
        flags[part.size :] = u8(0)
        for e in range(part.size):
            flags[e] = u8(abs(part[e] * scale) > f32(0.5))
        for byte in range((part.size + 7) >> 3):  # the product's highest byte has bit i of byte i, turned round
            bits[128 * run + byte] = u8((words[byte] * u64(0x8040201008040201)) >> u64(56))


@kernel(read(_U8, 1), _I64, filled(_U32, 1))
def _select(bits: Bytes, first: int, out: Words) -> None:
    found = 0
    for byte in range(bits.size):
        value = bits[byte]
        if value:
            for bit in range(8):
                if value & (0x80 >> bit):
                    out[found] = u32(first + 8 * byte + bit)
                    found += 1


@inner
def _probe(hashed: int, probe: int, size: int) -> int:
    step = (hashed >> u64(32)) | u64(1)
    bits = ((hashed & u64(0xFFFFFFFF)) + u64(probe) * step) & u64(0xFFFFFFFF)
    return i64((bits * u64(size)) >> u64(32))


@kernel(read(_U32, 1), *_BLOOM, filled(_U8, 1))
def _bloom_add(members: Words, size: int, hashes: int, key: int, bits: Bytes) -> None:
    for k in range(members.size):
        hashed = _splitmix64(key + u64(members[k]))
        for probe in range(hashes):
            place = _probe(hashed, probe, size)
            bits[place >> 3] |= u8(0x80 >> (place & 7))


@inner
def _survivors(
    left: NDArray[np.int64], count: int, hashes: NDArray[np.uint64], probe: int, size: int, bits: Bytes
) -> int:
    """Keep the elements whose probe hits, without a branch: half of the probes hit, and nobody can predict which."""
    kept = 0
    for k in range(count):
        element = left[k]
        place = _probe(hashes[element], probe, size)
        left[kept] = element
        # Advance by the bit itself: a branch would be mispredicted half of the time.
        kept += (bits[place >> 3] >> u8(7 - (place & 7))) & 1
    return kept


@kernel(_I64, _I64, *_BLOOM, read(_U8, 1), filled(_U8, 1))
def _bloom_query(first: int, count: int, size: int, probes: int, key: int, bits: Bytes, out: Bytes) -> None:
    hashes, left = np.empty(1024, u64), np.empty(1024, i64)
    out[:] = u8(0)
    for start in range(0, count, 1024):
        here = min(1024, count - start)
        for k in range(here):
            hashes[k] = _splitmix64(u64(key + u64(first + start)) + u64(k))
            left[k] = k
        # Probe by probe over all that are left: each halves them, and no branch depends on a bit.
        for probe in range(probes):
            here = _survivors(left, here, hashes, probe, size, bits)
        for k in range(here):
            out[(start + left[k]) >> 3] |= u8(0x80 >> (left[k] & 7))


@kernel(read(_F32, 1), read(_F32, 1), read(_U32, 1), filled(_I32, 1))
def _quantise(x: Floats, scales: Floats, members: Words, out: Ints) -> None:
    for edge in range(members.size):
        member = i64(members[edge])
        scale = scales[member >> 10]
        # Scale 0 also for infinite elements: 0 times infinity would be NaN.
        out[edge] = i32(np.rint(x[member] * scale)) if scale != f32(0) else i32(0)


@kernel(read(_I32, 1), read(_U32, 1), read(_F64, 1), filled(_F32, 1))
def _spread(values: Ints, members: Words, divisors: Doubles, out: Floats) -> None:
    for edge in range(members.size):
        member = i64(members[edge])
        out[member] = f32(f64(values[edge]) / divisors[member >> 10])


class NumbaSketch(SketchKernels):
    """The compiled kernels. Any thread may call. The interpreter lock is released meanwhile."""

    name = "numba"

    def scan(self, x: Floats, peaks: Words) -> int:
        count = np.zeros(1, np.int64)
        _scan(x.view(np.uint32), peaks, count)
        return int(count[0])

    def mark(self, x: Floats, scales: Floats, bits: Bytes) -> None:
        _mark(x, scales, bits)

    def select(self, bits: Bytes, first: int, out: Words) -> None:
        _select(bits, first, out)

    def bloom_add(self, members: Words, bloom: Bloom, bits: Bytes) -> None:
        _bloom_add(members, bloom.bits, bloom.hashes, u64(bloom.key), bits)

    def bloom_query(self, first: int, count: int, bloom: Bloom, bits: Bytes, out: Bytes) -> None:
        _bloom_query(first, count, bloom.bits, bloom.hashes, u64(bloom.key), bits, out)

    def quantise(self, x: Floats, scales: Floats, members: Words, out: Ints) -> None:
        _quantise(x, scales, members, out)

    def peel(self, members: Words, layout: SketchLayout, order: Words) -> int:
        count = np.zeros(1, np.int64)
        _peel(members, layout.third, layout.block_shift, u64(layout.key), order, count)
        return int(count[0])

    def add(self, values: Ints, members: Words, layout: SketchLayout, cells: Words) -> None:
        _add(values, members, layout.third, layout.block_shift, u64(layout.key), cells)

    def solve(self, cells: Words, members: Words, layout: SketchLayout, order: Words, out: Ints) -> None:
        _solve(cells, members, layout.third, layout.block_shift, u64(layout.key), order, out)

    def spread(self, values: Ints, members: Words, divisors: Doubles, out: Floats) -> None:
        _spread(values, members, divisors, out)
