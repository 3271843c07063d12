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

u8, i32, u32, i64, u64, f32, f64 = np.uint8, np.int32, np.uint32, np.int64, np.uint64, np.float32, np.float64
_I64 = types.int64
_integers, _bits, _octets = pointer(types.int64), pointer(types.uint64), pointer(types.uint8)
_floats, _doubles, _shifts = pointer(types.float32), pointer(types.float64), pointer(types.int32)
_words = pointer(types.uint32)

# The memory of a vector, int64[WORDS]. These numbers stay in this file: numba finds its cache stale by the file alone.
# From X on the words are those of a vector, in the order in which `NumbaKernels.stream` has them.
FAULT: Final = 0  # 1: a sum is larger than the table allows; nothing of its run was delivered
ENCODE: Final = 1  # addresses of the kernels of thc_kernels
DECODE: Final = 2
DEQUANTIZE: Final = 3
BLOCK: Final = 4  # elements of a block
CHUNK_BLOCKS: Final = 5  # 1, or 2 for paired codes
UP_BYTES: Final = 6  # of a payload
TABLE: Final = 7  # address and entries of the table
ENTRIES: Final = 8
IDENTITY: Final = 9
GRANULARITY: Final = 10
GROUP: Final = 11
SCALE_UNIT: Final = 12  # float64, see StreamPlan
SUM_UNIT: Final = 13
LEAST: Final = 14
X: Final = 15  # address of the vector, float32, from which `decode` subtracts what was delivered if SETTLES
OWN: Final = 16  # address by block, uint32: the own ranges
PAYLOADS: Final = 17  # address, uint8[chunks, UP_BYTES]
MEAN: Final = 18  # address, float32[elements]
TAKEN: Final = 19  # address by chunk, uint64: the contributors of what was decoded
UNITS: Final = 20  # address by block, float64: the factor of a sum of one contribution
SCALES: Final = 21  # addresses by block: float32, int32
SHIFTS: Final = 22
COUNTS: Final = 23  # addresses by block, of `decode`: int32, float32, int32
FACTORS: Final = 24
PEAKS: Final = 25
ELEMENTS: Final = 26  # of the vector
ROTATION: Final = 27  # keys of block 0
ROUNDING: Final = 28
SETTLES: Final = 29
RANK: Final = 30
WORDS: Final = 31

_RANGE_LANES, _INFINITE = 256, 0x7F800000
"""Lanes of a chunk of ranges, and the bits of +inf."""
_SUM_BYTES = 1024
"""Bytes of a RESULT's payload: lanes are not packed here. An UPDATE's payload has no more."""
_ELEMENTS_MAX = 1024
"""Elements of the largest block."""
_PIECE_CHUNKS = 8
"""Paired chunks that are put apart at a time: their blocks stay in the first-level cache."""
_PIECE_BYTES = 2 * _PIECE_CHUNKS * _SUM_BYTES


@inner
def _ones(bitmap: Any) -> Any:
    """Return the number of ones among 64 bits."""
    value = bitmap - ((bitmap >> u64(1)) & u64(0x5555555555555555))
    value = (value & u64(0x3333333333333333)) + ((value >> u64(2)) & u64(0x3333333333333333))
    value = (value + (value >> u64(4))) & u64(0x0F0F0F0F0F0F0F0F)
    return i64((value * u64(0x0101010101010101)) >> u64(56))


@inner
def _rows(w: Any, first: Any, end: Any) -> Any:
    """Return the first block of chunks first .. end - 1, their whole blocks, and 1 if a block follows that is not."""
    whole, start, stop = w[ELEMENTS] // w[BLOCK], first * w[CHUNK_BLOCKS], end * w[CHUNK_BLOCKS]
    return start, max(min(stop, whole) - start, 0), 1 if stop > whole and w[ELEMENTS] > whole * w[BLOCK] else 0


@inner
def _piece(w: Any, first: Any, end: Any) -> Any:
    """Return the end of the chunks to work on: paired codes are put apart in a buffer."""
    return end if w[CHUNK_BLOCKS] == 1 else min(first + _PIECE_CHUNKS, end)


@inner
def _call(w: Any, kind: Any, first: Any, blocks: Any, payloads_at: Any, x_at: Any) -> None:
    """Let a kernel, ENCODE, DECODE or DEQUANTIZE, work on blocks, which begin with block `first` of the vector."""
    payload_bytes = i64(_SUM_BYTES) if kind == DECODE else w[UP_BYTES]
    x, payloads = array_at(x_at, (blocks, w[BLOCK]), f32), array_at(payloads_at, (blocks, payload_bytes), u8)
    factors, table = array_at(w[FACTORS] + 4 * first, (blocks,), f32), array_at(w[TABLE], (w[ENTRIES],), u8)
    rotation, is_identity, group = u64(w[ROTATION]) + u64(first), w[IDENTITY] != 0, w[GROUP]
    turns = scratch(1, i64)
    turns[0] = 0
    if kind == ENCODE:
        scales, rounding = array_at(w[SCALES] + 4 * first, (blocks,), f32), u64(w[ROUNDING]) + u64(first)
        shifts = array_at(w[SHIFTS] + 4 * first, (blocks,), i32)
        given = (x, scales, shifts, table, is_identity, group, rotation, rounding, turns, i64(0), payloads)
        call_at(w[ENCODE], given)
    elif kind == DECODE:
        counts, peaks = array_at(w[COUNTS] + 4 * first, (blocks,), i32), array_at(w[PEAKS] + 4 * first, (blocks,), i32)
        call_at(w[DECODE], (payloads, counts, factors, w[GRANULARITY], rotation, turns, i64(0), x, peaks))
    else:
        # True here; a constant would be of another type than the kernel's argument.
        subtract = w[SETTLES] != 0
        call_at(w[DEQUANTIZE], (payloads, factors, table, is_identity, group, rotation, subtract, turns, i64(0), x))


@inner
def _work(w: Any, kind: Any, first: Any, end: Any, payloads_at: Any, vector_at: Any, row: Any) -> None:
    """Let a kernel work on chunks first .. end - 1 of a vector at an address; `row` has room for a block."""
    start, rows, rest = _rows(w, first, end)
    if rows > 0:
        _call(w, kind, start, rows, payloads_at, vector_at + 4 * w[BLOCK] * start)
    if rest > 0:
        # Kernels take whole blocks only.
        last = w[BLOCK] * (start + rows)
        count, x = w[ELEMENTS] - last, _floats(vector_at + 4 * last)
        for j in range(w[BLOCK]):
            row[j] = x[j] if j < count else f32(0)
        behind = payloads_at + rows * (i64(_SUM_BYTES) if kind == DECODE else w[UP_BYTES])
        _call(w, kind, start + rows, i64(1), behind, i64(row.ctypes.data))
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
    """Make the payloads of chunks first .. end - 1."""
    w = _integers(memory)
    pairs, up_bytes = w[CHUNK_BLOCKS], w[UP_BYTES]
    row, codes = scratch(_ELEMENTS_MAX, f32), scratch(_PIECE_BYTES, u8)
    while first < end:
        stop = _piece(w, first, end)
        payloads = w[PAYLOADS] + first * up_bytes
        _work(w, i64(ENCODE), first, stop, payloads if pairs == 1 else i64(codes.ctypes.data), w[X], row)
        if pairs > 1:
            # A block that the last chunk lacks has codes 0.
            _, rows, rest = _rows(w, first, stop)
            for j in range((rows + rest) * up_bytes, 2 * (stop - first) * up_bytes):
                codes[j] = u8(0)
            for chunk in range(stop - first):
                for j in range(up_bytes):
                    high, low = codes[2 * chunk * up_bytes + j], codes[(2 * chunk + 1) * up_bytes + j]
                    _octets(payloads)[chunk * up_bytes + j] = u8(high << u8(2)) | low
        first = stop


@inner
def _apart(source: Any, target: Any, blocks: Any, size: Any, bits: Any) -> None:
    """Put blocks apart of which two share a row: the first one of a row has the upper bits, the second the lower."""
    mask = u8(0x0F) if bits == 4 else u8(0x33)
    for block in range(blocks):
        shift = u8(0) if block % 2 else u8(bits)
        for j in range(size):
            target[block * size + j] = (source[block // 2 * size + j] >> shift) & mask


@inner
def _settle(w: Any, first: Any, end: Any, contributors: Any, row: Any, room: Any) -> None:
    """Subtract from the vector its own contribution to the sums of chunks first .. end - 1 that have it."""
    pairs, up_bytes = w[CHUNK_BLOCKS], w[UP_BYTES]
    start, rows, rest = _rows(w, first, end)
    included = False
    for block in range(start, start + rows + rest):
        factor = f32(0)
        if contributors[block // pairs] >> u64(w[RANK]) & u64(1):
            factor = f32(_doubles(w[UNITS])[block])
            included = True
        _floats(w[FACTORS])[block] = factor
    if not included:
        return
    own = w[PAYLOADS] + first * up_bytes
    if pairs > 1:
        _apart(_octets(own), room, rows + rest, up_bytes, i64(2))
        own = i64(room.ctypes.data)
    _work(w, i64(DEQUANTIZE), first, end, own, w[X], row)


@kernel(_I64, _I64, _I64, _I64, _I64)
def decode(memory: Any, first: Any, end: Any, results_at: Any, contributors_at: Any) -> None:
    """Decode the sums of chunks first .. end - 1, and settle them (W5).

    Args:
        memory: of the vector.
        results_at: address of uint8[chunks, 1024], those of all chunks of the vector.
        contributors_at: address of uint64[chunks].
    """
    w, contributors = _integers(memory), _bits(contributors_at)
    pairs = w[CHUNK_BLOCKS]
    counts, factors, peaks = _shifts(w[COUNTS]), _floats(w[FACTORS]), _shifts(w[PEAKS])
    row, room = scratch(_ELEMENTS_MAX, f32), scratch(_PIECE_BYTES, u8)
    w[FAULT] = 0
    at = first
    while at < end:
        stop = _piece(w, at, end)
        start, rows, rest = _rows(w, at, stop)
        for block in range(start, start + rows + rest):
            count = _ones(contributors[block // pairs])
            counts[block] = i32(count)
            factors[block] = f32(_doubles(w[UNITS])[block] / f64(count)) if count else f32(0)
        sums = results_at + at * _SUM_BYTES
        if pairs > 1:
            _apart(_octets(sums), room, rows + rest, i64(_SUM_BYTES), i64(4))
            sums = i64(room.ctypes.data)
        _work(w, i64(DECODE), at, stop, sums, w[MEAN], row)
        for block in range(start, start + rows + rest):
            if peaks[block] > counts[block] * w[GRANULARITY]:
                w[FAULT] = 1
        at = stop
    # Before anything is settled: the caller's reduction words the error, and its vector is whole.
    if w[FAULT] != 0:
        return
    for chunk in range(first, end):
        _bits(w[TAKEN])[chunk] = contributors[chunk]
    while w[SETTLES] != 0 and first < end:
        stop = _piece(w, first, end)
        _settle(w, first, stop, contributors, row, room)
        first = stop
