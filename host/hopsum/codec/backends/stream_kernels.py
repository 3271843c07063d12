# SPDX-License-Identifier: Apache-2.0
"""Encoding and decoding of runs of chunks of thc and uhc, for a compiled loop that has no arrays but addresses.

`NumbaKernels.stream` fills the memory of one vector. A loop calls `encode` for the chunks that it is about to send, and
`decode` for chunks of which it has the results, by their addresses (jit.call_at). The arithmetic is that of the kernels
in thc_kernels, which are called by address too, so that the machine code of each kernel is compiled once.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from hopsum.codec.backends.jit import array_at, call_at, inner, kernel, pointer, scratch, types

u8, i8, i16, i32, i64 = np.uint8, np.int8, np.int16, np.int32, np.int64
u32, u64, f32, f64 = np.uint32, np.uint64, np.float32, np.float64
_I64 = types.int64
_integers, _bits, _octets = pointer(types.int64), pointer(types.uint64), pointer(types.uint8)
_floats, _doubles, _shifts = pointer(types.float32), pointer(types.float64), pointer(types.int32)
_words = pointer(types.uint32)

# The memory of a vector, int64[WORDS]. These numbers stay in this file: numba finds its cache stale by the file alone.
# From X on the words are those of a vector, in the order in which `NumbaKernels.stream` has them.
FAULT: Final = 0  # 1: a sum is larger than the table allows; nothing of its run was delivered
ENCODE: Final = 1  # addresses of the kernels of thc_kernels, or of dither_kernels where DITHERED
DECODE: Final = 2
DEQUANTIZE: Final = 3
BLOCK: Final = 4  # elements of a block
UP_BYTES: Final = 5  # of a payload
DOWN_BYTES: Final = 6  # of a result
TABLE: Final = 7  # address and entries of the table
ENTRIES: Final = 8
IDENTITY: Final = 9
GRANULARITY: Final = 10
GROUP: Final = 11
SCALE_UNIT: Final = 12  # float64, see StreamPlan
SUM_UNIT: Final = 13
LEAST: Final = 14
DITHERED: Final = 15  # 1: the words up to CLASSES are those of a `Dither`
UNIT: Final = 16
CODE_BITS: Final = 17
KNOWN: Final = 18  # address, int8[KNOWN_RANKS, 16]: the known dithers of all ranks
KNOWN_RANKS: Final = 19
BOUNDS: Final = 20  # address, int32[COUNTED, CLASSES - 1]; values: int16[COUNTED CLASSES, 16]
VALUES: Final = 21
COUNTED: Final = 22  # 1: results are whole sums
CLASSES: Final = 23
X: Final = 24  # address of the vector, float32, which is only read
BEFORE: Final = 25  # address of the residual, float32, where KEEPS
PENDING: Final = 26  # address, float32: becomes the residual where KEEPS; it may be BEFORE
OWN: Final = 27  # address by block, uint32: the own ranges
PAYLOADS: Final = 28  # address, uint8[chunks, UP_BYTES]
MEAN: Final = 29  # address, float32[elements]; it may be X
TAKEN: Final = 30  # address by chunk, uint64: the contributors of what was decoded
UNITS: Final = 31  # address by block, float64: the factor of a sum of one contribution
SCALES: Final = 32  # addresses by block: float32, int32
SHIFTS: Final = 33
COUNTS: Final = 34  # addresses by block, of `decode`: int32, float32, int32
FACTORS: Final = 35
PEAKS: Final = 36
ELEMENTS: Final = 37  # of the vector
ROTATION: Final = 38  # keys of block 0
ROUNDING: Final = 39
DITHER: Final = 40
SHIFT: Final = 41  # of this rank's dither
KEEPS: Final = 42  # 1: there is error feedback
RANK: Final = 43
WORDS: Final = 44

_RANGE_LANES, _INFINITE = 256, 0x7F800000
"""Lanes of a chunk of ranges, and the bits of +inf."""
_ELEMENTS_MAX = 1024
"""Elements of the largest block."""


@inner
def _ones(bitmap: Any) -> Any:
    """Return the number of ones among 64 bits."""
    value = bitmap - ((bitmap >> u64(1)) & u64(0x5555555555555555))
    value = (value & u64(0x3333333333333333)) + ((value >> u64(2)) & u64(0x3333333333333333))
    value = (value + (value >> u64(4))) & u64(0x0F0F0F0F0F0F0F0F)
    return i64((value * u64(0x0101010101010101)) >> u64(56))


@inner
def _rows(w: Any, first: Any, end: Any) -> Any:
    """Return the whole blocks of chunks first .. end - 1, and 1 if a block follows that is not. A chunk is a block."""
    whole = w[ELEMENTS] // w[BLOCK]
    return max(min(end, whole) - first, 0), 1 if end > whole and w[ELEMENTS] > whole * w[BLOCK] else 0


@inner
def _encode(w: Any, first: Any, blocks: Any, payloads: Any, x: Any) -> None:
    """Let a kernel encode blocks, which begin with block `first` of the vector."""
    scales, shifts = array_at(w[SCALES] + 4 * first, (blocks,), f32), array_at(w[SHIFTS] + 4 * first, (blocks,), i32)
    rotation, rounding, turns = u64(w[ROTATION]) + u64(first), u64(w[ROUNDING]) + u64(first), scratch(1, i64)
    turns[0] = 0
    if w[DITHERED]:
        dither = u64(w[DITHER]) + u64(first)
        form = (w[GRANULARITY], w[CODE_BITS], w[GROUP])
        call_at(w[ENCODE], (x, scales, shifts, *form, rotation, rounding, dither, w[SHIFT], turns, i64(0), payloads))
    else:
        table, is_identity = array_at(w[TABLE], (w[ENTRIES],), u8), w[IDENTITY] != 0
        given = (x, scales, shifts, table, is_identity, w[GROUP], rotation, rounding, turns, i64(0), payloads)
        call_at(w[ENCODE], given)


@inner
def _decode(w: Any, first: Any, blocks: Any, results: Any, contributors_at: Any, x: Any) -> None:
    """Let a kernel decode the sums of blocks; contributors_at: address, those of block `first`."""
    factors, peaks = array_at(w[FACTORS] + 4 * first, (blocks,), f32), array_at(w[PEAKS] + 4 * first, (blocks,), i32)
    rotation, turns = u64(w[ROTATION]) + u64(first), scratch(1, i64)
    turns[0] = 0
    if w[DITHERED]:
        bitmaps = array_at(contributors_at, (blocks,), u64)
        known = array_at(w[KNOWN], (w[KNOWN_RANKS], i64(16)), i8)
        bounds = array_at(w[BOUNDS], (w[COUNTED], w[CLASSES] - 1), i32)
        values = array_at(w[VALUES], (w[COUNTED] * w[CLASSES], i64(16)), i16)
        form = (w[UNIT], w[GRANULARITY], w[CODE_BITS], w[GROUP])
        keys = (rotation, u64(w[DITHER]) + u64(first))
        given = (results, bitmaps, factors, known, bounds, values, *form, *keys, turns, i64(0), x, peaks)
        call_at(w[DECODE], given)
    else:
        counts = array_at(w[COUNTS] + 4 * first, (blocks,), i32)
        call_at(w[DECODE], (results, counts, factors, w[GRANULARITY], rotation, turns, i64(0), x, peaks))


@inner
def _dequantize(w: Any, first: Any, blocks: Any, payloads: Any, x: Any) -> None:
    """Let a kernel subtract from blocks what this rank's payloads decode to."""
    factors, rotation = array_at(w[FACTORS] + 4 * first, (blocks,), f32), u64(w[ROTATION]) + u64(first)
    # True here; a constant would be of another type than the kernel's argument.
    subtract, turns = w[KEEPS] != 0, scratch(1, i64)
    turns[0] = 0
    if w[DITHERED]:
        known, dither = array_at(w[KNOWN] + 16 * w[RANK], (i64(16),), i8), u64(w[DITHER]) + u64(first)
        form = (w[UNIT], w[GRANULARITY], w[CODE_BITS], w[GROUP])
        call_at(w[DEQUANTIZE], (payloads, factors, known, *form, rotation, dither, subtract, turns, i64(0), x))
    else:
        table, is_identity = array_at(w[TABLE], (w[ENTRIES],), u8), w[IDENTITY] != 0
        call_at(
            w[DEQUANTIZE],
            (payloads, factors, table, is_identity, w[GROUP], rotation, subtract, turns, i64(0), x),
        )


@inner
def _call(w: Any, kind: Any, first: Any, blocks: Any, payloads_at: Any, contributors_at: Any, x_at: Any) -> None:
    """Let a kernel, ENCODE, DECODE or DEQUANTIZE, work on blocks, which begin with block `first` of the vector."""
    payload_bytes = w[DOWN_BYTES] if kind == DECODE else w[UP_BYTES]
    x, payloads = array_at(x_at, (blocks, w[BLOCK]), f32), array_at(payloads_at, (blocks, payload_bytes), u8)
    if kind == ENCODE:
        _encode(w, first, blocks, payloads, x)
    elif kind == DECODE:
        _decode(w, first, blocks, payloads, contributors_at, x)
    else:
        _dequantize(w, first, blocks, payloads, x)


@inner
def _work(
    w: Any, kind: Any, first: Any, end: Any, payloads_at: Any, contributors_at: Any, vector_at: Any, row: Any
) -> None:
    """Let a kernel work on chunks first .. end - 1 of a vector at an address; `row` has room for a block."""
    rows, rest = _rows(w, first, end)
    if rows > 0:
        _call(w, kind, first, rows, payloads_at, contributors_at, vector_at + 4 * w[BLOCK] * first)
    if rest > 0:
        # Kernels take whole blocks only.
        last = w[BLOCK] * (first + rows)
        count, x = w[ELEMENTS] - last, _floats(vector_at + 4 * last)
        for j in range(w[BLOCK]):
            row[j] = x[j] if j < count else f32(0)
        after = payloads_at + rows * (w[DOWN_BYTES] if kind == DECODE else w[UP_BYTES])
        _call(w, kind, first + rows, i64(1), after, contributors_at + 8 * rows, i64(row.ctypes.data))
        if kind != ENCODE:
            for j in range(count):
                x[j] = row[j]


@kernel(_I64, _I64, _I64, _I64, _I64)
def begin(memory: Any, sent_at: Any, before: Any, first_at: Any, rest_at: Any) -> None:
    """Fill what follows from the shared ranges (`Thc.begin`), where this is plain; else FAULT, and nothing has begun.

    Plain: all ranks made the same call, all blocks are finite, and this rank's ranges are in the maximum.

    Args:
        memory: of the vector.
        sent_at: address of the first lanes that this rank has sent: `before` lanes, of equal sums on all ranks.
        first_at: address of the sums of the first chunk: of those lanes, and then of the ranges.
        rest_at: the same of the other chunks, as far as there are any.
    """
    w, f = _integers(memory), _doubles(memory)
    size = w[BLOCK]
    scales, shifts, units, own = _floats(w[SCALES]), _shifts(w[SHIFTS]), _doubles(w[UNITS]), _words(w[OWN])
    w[FAULT] = 1
    for lane in range(before):
        if _words(sent_at)[lane] != _words(first_at)[lane]:
            return
    for block in range((w[ELEMENTS] + size - 1) // size):
        lane = block + before
        first = lane < _RANGE_LANES
        place = (first_at if first else rest_at) + 4 * (lane if first else lane - _RANGE_LANES)
        octets = _octets(place)
        # Numbers on the wire are big-endian.
        bits = (i64(octets[0]) << 24) | (i64(octets[1]) << 16) | (i64(octets[2]) << 8) | i64(octets[3])
        if bits >= _INFINITE or i64(own[block]) > bits:
            return
        # Written as bits, read as a number.
        _words(w[SCALES])[block] = u32(bits)
        shared = f64(scales[block])
        is_zero = shared < f[LEAST]
        scales[block] = f32(0) if is_zero else f32(f[SCALE_UNIT] / shared)
        units[block] = f64(0) if is_zero else shared * f[SUM_UNIT]
        shifts[block] = i32(0)
    w[FAULT] = 0


@kernel(_I64, _I64, _I64)
def encode(memory: Any, first: Any, end: Any) -> None:
    """Make the payloads of chunks first .. end - 1, and subtract their contribution as if the sums had it."""
    w = _integers(memory)
    row = scratch(_ELEMENTS_MAX, f32)
    payloads = w[PAYLOADS] + first * w[UP_BYTES]
    if w[KEEPS] == 0:
        _work(w, i64(ENCODE), first, end, payloads, i64(0), w[X], row)
        return
    x, before, pending = _floats(w[X]), _floats(w[BEFORE]), _floats(w[PENDING])
    start, stop = first * w[BLOCK], min(end * w[BLOCK], w[ELEMENTS])
    # Two loops: the compiler makes vector code of the second one only where no array may be another.
    if w[BEFORE] == w[PENDING]:
        for j in range(start, stop):
            pending[j] += x[j]
    else:
        for j in range(start, stop):
            pending[j] = x[j] + before[j]
    _work(w, i64(ENCODE), first, end, payloads, i64(0), w[PENDING], row)
    # The elements are in the processor's cache here. When the sums come, they are not.
    for block in range(first, end):
        _floats(w[FACTORS])[block] = f32(_doubles(w[UNITS])[block])
    _work(w, i64(DEQUANTIZE), first, end, payloads, i64(0), w[PENDING], row)


@inner
def _note_absent(w: Any, first: Any, end: Any, contributors: Any, row: Any) -> None:
    """Add to what becomes the residual this rank's contributions that the sums of chunks first .. end - 1 lack."""
    absent = False
    for block in range(first, end):
        factor = f32(0)
        if contributors[block] >> u64(w[RANK]) & u64(1) == u64(0):
            # DEQUANTIZE subtracts a factor times the code's value.
            factor = f32(-_doubles(w[UNITS])[block])
            absent = True
        _floats(w[FACTORS])[block] = factor
    if absent:
        _work(w, i64(DEQUANTIZE), first, end, w[PAYLOADS] + first * w[UP_BYTES], i64(0), w[PENDING], row)


@kernel(_I64, _I64, _I64, _I64, _I64)
def decode(memory: Any, first: Any, end: Any, results_at: Any, contributors_at: Any) -> None:
    """Decode the sums of chunks first .. end - 1, which this rank has encoded, and settle them (protocol.md, W5).

    Args:
        memory: of the vector.
        results_at: address of uint8[chunks, DOWN_BYTES], those of all chunks of the vector.
        contributors_at: address of uint64[chunks].
    """
    w, contributors = _integers(memory), _bits(contributors_at)
    counts, factors, peaks = _shifts(w[COUNTS]), _floats(w[FACTORS]), _shifts(w[PEAKS])
    row = scratch(_ELEMENTS_MAX, f32)
    w[FAULT] = 0
    for block in range(first, end):
        count = _ones(contributors[block])
        counts[block] = i32(count)
        factors[block] = f32(_doubles(w[UNITS])[block] / f64(count)) if count else f32(0)
    results = results_at + first * w[DOWN_BYTES]
    _work(w, i64(DECODE), first, end, results, contributors_at + 8 * first, w[MEAN], row)
    for block in range(first, end):
        if peaks[block] > counts[block] * w[GRANULARITY]:
            w[FAULT] = 1
    # Before anything is settled: the caller's reduction words the error, and takes all of its vector back.
    if w[FAULT] != 0:
        return
    for block in range(first, end):
        _bits(w[TAKEN])[block] = contributors[block]
    if w[KEEPS] != 0:
        _note_absent(w, first, end, contributors, row)
