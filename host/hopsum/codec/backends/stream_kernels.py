# SPDX-License-Identifier: Apache-2.0
"""Encoding and decoding of runs of chunks of thc and uhc, for a compiled loop that has no arrays but addresses.

`NumbaKernels.stream` fills the memory of one vector. A loop calls `encode` for the chunks that it is about to send, and
`decode` for chunks of which it has the results, by their addresses (jit.call_at). The arithmetic is that of the kernels
in thc_kernels, which are called by address too, so that the machine code of each kernel is compiled once.
"""

from __future__ import annotations

from typing import Any, Final

import numba
import numpy as np

from hopsum.codec.backends.jit import call_at, inner, kernel, pointer, types

_carray: Any = numba.carray
u8, i32, u32, i64, u64, f32, f64 = np.uint8, np.int32, np.uint32, np.int64, np.uint64, np.float32, np.float64
_I64 = types.int64
_integers, _bits, _octets = pointer(types.int64), pointer(types.uint64), pointer(types.uint8)
_floats, _doubles, _shifts = pointer(types.float32), pointer(types.float64), pointer(types.int32)
_words = pointer(types.uint32)

# The memory of a vector, int64[WORDS]. These numbers stay in this file: numba finds its cache stale by the file alone.
FAULT: Final = 0  # 1: a sum is larger than the table allows; nothing of its run was delivered
ENCODE: Final = 1  # addresses of the kernels of thc_kernels
DECODE: Final = 2
DEQUANTIZE: Final = 3
BLOCK: Final = 4  # elements of a block
CHUNK_BLOCKS: Final = 5  # 1, or 2 for paired codes
UP_BYTES: Final = 6  # of a payload
ELEMENTS: Final = 7  # of the vector
X: Final = 8  # address of the vector, float32, from which `decode` subtracts what was delivered if SETTLES
SCALES: Final = 9  # addresses by block: float32, int32
SHIFTS: Final = 10
TABLE: Final = 11  # address and entries of the table
ENTRIES: Final = 12
IDENTITY: Final = 13
GROUP: Final = 14
ROTATION: Final = 15  # keys of block 0
ROUNDING: Final = 16
PAYLOADS: Final = 17  # address, uint8[chunks, UP_BYTES]
MEAN: Final = 18  # address, float32[elements]
UNITS: Final = 19  # address by block, float64: the factor of a sum of one contribution
TAKEN: Final = 20  # address by chunk, uint64: the contributors of what was decoded
GRANULARITY: Final = 21
SETTLES: Final = 22
RANK: Final = 23
OWN: Final = 24  # address by block, uint32: the own ranges
SCALE_UNIT: Final = 25  # float64, see StreamParts
SUM_UNIT: Final = 26
LEAST: Final = 27  # float64: a range below it counts as zero
WORDS: Final = 28

_RANGE_LANES, _INFINITE = 256, 0x7F800000
"""Lanes of a chunk of ranges, and the bits of +inf."""
_SUM_BYTES = 1024
"""Bytes of a RESULT's payload: lanes are not packed here."""


@inner
def _copy(source: Any, target: Any, count: Any) -> None:
    for j in range(count):
        target[j] = source[j]


@inner
def _ones(bitmap: Any) -> Any:
    """Return the number of ones among 64 bits."""
    value = bitmap - ((bitmap >> u64(1)) & u64(0x5555555555555555))
    value = (value & u64(0x3333333333333333)) + ((value >> u64(2)) & u64(0x3333333333333333))
    value = (value + (value >> u64(4))) & u64(0x0F0F0F0F0F0F0F0F)
    return i64((value * u64(0x0101010101010101)) >> u64(56))


@inner
def _encode_blocks(w: Any, first: Any, x: Any, out: Any) -> None:
    """Encode the blocks of x, which begin with block `first` of the vector."""
    blocks = x.shape[0]
    call_at(
        w[ENCODE],
        (
            x,
            _carray(_floats(w[SCALES] + 4 * first), (blocks,)),
            _carray(_shifts(w[SHIFTS] + 4 * first), (blocks,)),
            _carray(_octets(w[TABLE]), (w[ENTRIES],)),
            w[IDENTITY] != 0,
            w[GROUP],
            u64(w[ROTATION]) + u64(first),
            u64(w[ROUNDING]) + u64(first),
            np.zeros(1, i64),
            i64(0),
            out,
        ),
    )


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
    size, pairs, up_bytes = w[BLOCK], w[CHUNK_BLOCKS], w[UP_BYTES]
    whole = w[ELEMENTS] // size
    rest = w[ELEMENTS] - whole * size
    start, stop = first * pairs, min(end * pairs, whole + (1 if rest else 0))
    rows = max(min(stop, whole) - start, 0)
    payloads = _carray(_octets(w[PAYLOADS] + first * up_bytes), (end - first, up_bytes))
    # Paired codes need room of their own. A block that the last chunk lacks has codes 0.
    out = payloads if pairs == 1 else np.zeros(((end - first) * pairs, up_bytes), u8)
    if rows > 0:
        _encode_blocks(w, start, _carray(_floats(w[X] + 4 * size * start), (rows, size)), out)
    if stop > whole:
        row = np.zeros((1, size), f32)
        _copy(_floats(w[X] + 4 * size * whole), row[0], rest)
        _encode_blocks(w, whole, row, out[rows:])
    if pairs > 1:
        for chunk in range(end - first):
            for j in range(up_bytes):
                payloads[chunk, j] = u8(out[2 * chunk, j] << u8(2)) | out[2 * chunk + 1, j]


@inner
def _decode_blocks(w: Any, first: Any, sums: Any, counts: Any, factors: Any, out: Any, peaks: Any) -> None:
    """Decode sums, which begin with those of block `first` of the vector."""
    rotation = u64(w[ROTATION]) + u64(first)
    given = (sums, counts, factors, w[GRANULARITY], rotation, np.zeros(1, i64), i64(0), out, peaks)
    call_at(w[DECODE], given)


@inner
def _subtract_blocks(w: Any, first: Any, payloads: Any, factors: Any, x: Any) -> None:
    """Subtract what payloads decode to from x; both begin with block `first` of the vector."""
    table, rotation = _carray(_octets(w[TABLE]), (w[ENTRIES],)), u64(w[ROTATION]) + u64(first)
    # True here; a constant would be of another type than the kernel's argument.
    turns, subtract = np.zeros(1, i64), w[SETTLES] != 0
    given = (payloads, factors, table, w[IDENTITY] != 0, w[GROUP], rotation, subtract, turns, i64(0), x)
    call_at(w[DEQUANTIZE], given)


@inner
def _settle(w: Any, start: Any, blocks: Any, rows: Any, contributors: Any) -> None:
    """Subtract from the vector its own contribution to the sums that have it.

    Args:
        start: the first block.
        rows: of the blocks, those that are whole. The last block of the vector may not be.
    """
    size, pairs, up_bytes = w[BLOCK], w[CHUNK_BLOCKS], w[UP_BYTES]
    first, last = start // pairs, start + rows
    factors, included = np.zeros(blocks, f32), False
    for block in range(blocks):
        if contributors[(start + block) // pairs] >> u64(w[RANK]) & u64(1):
            factors[block] = f32(_doubles(w[UNITS])[start + block])
            included = True
    if not included:
        return
    sent = _carray(_octets(w[PAYLOADS] + first * up_bytes), ((blocks + pairs - 1) // pairs, up_bytes))
    own = sent
    if pairs > 1:
        own = np.empty((blocks, up_bytes), u8)
        for block in range(blocks):
            shift = u8(0) if block % 2 else u8(2)
            for j in range(up_bytes):
                own[block, j] = (sent[block // 2, j] >> shift) & u8(0x33)
    if rows > 0:
        _subtract_blocks(w, start, own[:rows], factors, _carray(_floats(w[X] + 4 * size * start), (rows, size)))
    if blocks > rows:
        row, x, rest = np.zeros((1, size), f32), _floats(w[X] + 4 * size * last), w[ELEMENTS] - last * size
        _copy(x, row[0], rest)
        _subtract_blocks(w, last, own[rows:], factors[rows:], row)
        _copy(row[0], x, rest)


@kernel(_I64, _I64, _I64, _I64, _I64)
def decode(memory: Any, first: Any, end: Any, results_at: Any, contributors_at: Any) -> None:
    """Decode the sums of chunks first .. end - 1, and settle them (W5).

    Args:
        memory: of the vector.
        results_at: address of uint8[chunks, 1024], those of all chunks of the vector.
        contributors_at: address of uint64[chunks].
    """
    w, contributors = _integers(memory), _bits(contributors_at)
    size, pairs = w[BLOCK], w[CHUNK_BLOCKS]
    whole = w[ELEMENTS] // size
    rest = w[ELEMENTS] - whole * size
    start, stop = first * pairs, min(end * pairs, whole + (1 if rest else 0))
    rows, blocks = max(min(stop, whole) - start, 0), stop - start
    counts, factors, peaks = np.empty(blocks, i32), np.empty(blocks, f32), np.empty(blocks, i32)
    for block in range(blocks):
        count = _ones(contributors[(start + block) // pairs])
        counts[block] = i32(count)
        factors[block] = f32(_doubles(w[UNITS])[start + block] / f64(max(count, 1))) if count else f32(0)
    lanes = _carray(_octets(results_at + first * _SUM_BYTES), (end - first, _SUM_BYTES))
    sums = lanes
    if pairs > 1:
        sums = np.empty((blocks, _SUM_BYTES), u8)
        for block in range(blocks):
            shift = u8(0) if block % 2 else u8(4)
            for j in range(_SUM_BYTES):
                sums[block, j] = (lanes[block // 2, j] >> shift) & u8(15)
    if rows > 0:
        mean = _carray(_floats(w[MEAN] + 4 * size * start), (rows, size))
        _decode_blocks(w, start, sums[:rows], counts, factors, mean, peaks)
    if stop > whole:
        row = np.empty((1, size), f32)
        _decode_blocks(w, whole, sums[rows:], counts[rows:], factors[rows:], row, peaks[rows:])
        _copy(row[0], _floats(w[MEAN] + 4 * size * whole), rest)
    w[FAULT] = 0
    # Before anything is settled: the caller's reduction words the error, and its vector is whole.
    for block in range(blocks):
        if peaks[block] > counts[block] * w[GRANULARITY]:
            w[FAULT] = 1
            return
    if w[SETTLES]:
        _settle(w, start, blocks, rows, contributors)
    for chunk in range(first, end):
        _bits(w[TAKEN])[chunk] = contributors[chunk]
