# SPDX-License-Identifier: Apache-2.0
"""Encoding and decoding of runs of chunks of thc and uhc, for a compiled loop that has no arrays but addresses.

`NumbaKernels.stream` fills the memory of one vector. A loop calls `encode` for the chunks that it is about to send, and
`decode` for chunks of which it has the results, by their addresses (jit.call_at). The arithmetic is that of the kernels
in thc_kernels, which are called by address too, so that the machine code of each kernel is compiled once.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hopsum.codec.backends.jit import (
    array_at,
    call_at,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
    inner,
    kernel,
    scratch,
    u8,
    u32,
    u64,
)
from hopsum_base.record_kernels import (
    Numbers,
    bits_at,
    doubles_at,
    floats_at,
    octets_at,
    record_at,
    shifts_at,
    types,
    words_at,
)
from hopsum_base.records import Address, Bool, Float64, Int64, Record, UInt64, record

_I64 = types.int64
_ENCODE, _DECODE, _DEQUANTIZE = 0, 1, 2


# In this file: numba finds its cache stale by the kernel's file alone.
@record
class ChunkRun(Record):
    """The numbers and addresses of one vector and its codec, for the compiled loops below."""

    __slots__ = ()
    # First: worker_kernel reads it too, whose cache does not see this file.
    has_fault: Bool
    """A sum is larger than the table allows, and no result of its run was delivered; or `begin` could not begin it."""
    # Of a codec.
    encode: Address
    """Of kernels of thc_kernels, or of dither_kernels where `dithered`."""
    decode: Address
    dequantize: Address
    block_elements: Int64
    up_bytes: Int64
    """Of a payload."""
    down_bytes: Int64
    """Of a result."""
    table: Address
    table_entries: Int64
    is_identity: Bool
    granularity: Int64
    group: Int64
    scale_unit: Float64
    """See `StreamPlan`, also for the next two."""
    sum_unit: Float64
    least: Float64
    is_dithered: Bool
    """The fields down to `classes` are those of a `Dither`."""
    unit: Int64
    code_bits: Int64
    known: Address
    """Of int8[known_ranks, 16]: the known dithers of all ranks."""
    known_ranks: Int64
    bounds: Address
    """Of int32[counts, classes - 1]."""
    values: Address
    """Of int16[counts * classes, 16]."""
    counts: Int64
    """1: results are whole sums."""
    classes: Int64
    # Of a vector.
    x: Address
    """Of the vector, float32, which is only read."""
    before: Address
    """Of the residual, float32, where `has_feedback`."""
    pending: Address
    """Of float32: becomes the residual where `has_feedback`; it may be `before`."""
    own: Address
    """By block, uint32: the own ranges."""
    payloads: Address
    """Of uint8[chunks, up_bytes]."""
    mean: Address
    """Of float32[elements]; it may be `x`."""
    contributors: Address
    """By chunk, uint64: the contributors of what was decoded."""
    units: Address
    """By block, float64: the factor of a sum of one contribution."""
    scales: Address
    """By block: float32, and int32."""
    shifts: Address
    block_counts: Address
    """By block, of `decode`: int32, float32, int32."""
    factors: Address
    peaks: Address
    elements: Int64
    """Of the vector."""
    rotation: UInt64
    """Keys of block 0."""
    rounding: UInt64
    dither: UInt64
    dither_shift: Int64
    """Of this rank's dither."""
    has_feedback: Bool
    rank: Int64


_run_at = record_at(ChunkRun)

_RANGE_LANES, _INFINITE = 256, 0x7F800000
"""Lanes of a chunk of ranges, and the bits of +inf."""
_ELEMENTS_MAX = 1024
"""Elements of the largest block."""


@inner
def _ones(bitmap: int) -> int:
    """Return the number of ones among 64 bits."""
    value = bitmap - ((bitmap >> u64(1)) & u64(0x5555555555555555))
    value = (value & u64(0x3333333333333333)) + ((value >> u64(2)) & u64(0x3333333333333333))
    value = (value + (value >> u64(4))) & u64(0x0F0F0F0F0F0F0F0F)
    return i64((value * u64(0x0101010101010101)) >> u64(56))


@inner
def _rows(run: ChunkRun, first: int, end: int) -> tuple[int, int]:
    """Return the whole blocks of chunks first .. end - 1, and 1 if a block follows that is not. A chunk is a block."""
    whole = run.elements // run.block_elements
    return max(min(end, whole) - first, 0), 1 if end > whole and run.elements > whole * run.block_elements else 0


@inner
def _encode(run: ChunkRun, first: int, blocks: int, payloads: NDArray[np.uint8], x: NDArray[np.float32]) -> None:
    """Let a kernel encode blocks, which begin with block `first` of the vector."""
    scales, shifts = array_at(run.scales + 4 * first, (blocks,), f32), array_at(run.shifts + 4 * first, (blocks,), i32)
    rotation, rounding, turns = run.rotation + u64(first), run.rounding + u64(first), scratch(1, i64)
    turns[0] = 0
    if run.is_dithered:
        dither = run.dither + u64(first)
        form = (run.granularity, run.code_bits, run.group)
        call_at(
            run.encode,
            (x, scales, shifts, *form, rotation, rounding, dither, run.dither_shift, turns, i64(0), payloads),
        )
    else:
        table, is_identity = array_at(run.table, (run.table_entries,), u8), run.is_identity
        given = (x, scales, shifts, table, is_identity, run.group, rotation, rounding, turns, i64(0), payloads)
        call_at(run.encode, given)


@inner
def _decode(
    run: ChunkRun, first: int, blocks: int, results: NDArray[np.uint8], contributors_at: int, x: NDArray[np.float32]
) -> None:
    """Let a kernel decode the sums of blocks; contributors_at: address, those of block `first`."""
    factors, peaks = array_at(run.factors + 4 * first, (blocks,), f32), array_at(run.peaks + 4 * first, (blocks,), i32)
    rotation, turns = run.rotation + u64(first), scratch(1, i64)
    turns[0] = 0
    if run.is_dithered:
        bitmaps = array_at(contributors_at, (blocks,), u64)
        known = array_at(run.known, (run.known_ranks, i64(16)), i8)
        bounds = array_at(run.bounds, (run.counts, run.classes - 1), i32)
        values = array_at(run.values, (run.counts * run.classes, i64(16)), i16)
        form = (run.unit, run.granularity, run.code_bits, run.group)
        keys = (rotation, run.dither + u64(first))
        given = (results, bitmaps, factors, known, bounds, values, *form, *keys, turns, i64(0), x, peaks)
        call_at(run.decode, given)
    else:
        counts = array_at(run.block_counts + 4 * first, (blocks,), i32)
        call_at(run.decode, (results, counts, factors, run.granularity, rotation, turns, i64(0), x, peaks))


@inner
def _dequantize(run: ChunkRun, first: int, blocks: int, payloads: NDArray[np.uint8], x: NDArray[np.float32]) -> None:
    """Let a kernel subtract from blocks what this rank's payloads decode to."""
    factors, rotation = array_at(run.factors + 4 * first, (blocks,), f32), run.rotation + u64(first)
    # True here; a constant would be of another type than the kernel's argument.
    subtract, turns = run.has_feedback, scratch(1, i64)
    turns[0] = 0
    if run.is_dithered:
        known, dither = array_at(run.known + 16 * run.rank, (i64(16),), i8), run.dither + u64(first)
        form = (run.unit, run.granularity, run.code_bits, run.group)
        call_at(run.dequantize, (payloads, factors, known, *form, rotation, dither, subtract, turns, i64(0), x))
    else:
        table, is_identity = array_at(run.table, (run.table_entries,), u8), run.is_identity
        call_at(
            run.dequantize,
            (payloads, factors, table, is_identity, run.group, rotation, subtract, turns, i64(0), x),
        )


@inner
def _call(run: ChunkRun, kind: int, first: int, blocks: int, payloads_at: int, contributors_at: int, x_at: int) -> None:
    """Let a kernel, _ENCODE, _DECODE or _DEQUANTIZE, work on blocks, which begin with block `first` of the vector."""
    payload_bytes = run.down_bytes if kind == _DECODE else run.up_bytes
    x, payloads = array_at(x_at, (blocks, run.block_elements), f32), array_at(payloads_at, (blocks, payload_bytes), u8)
    if kind == _ENCODE:
        _encode(run, first, blocks, payloads, x)
    elif kind == _DECODE:
        _decode(run, first, blocks, payloads, contributors_at, x)
    else:
        _dequantize(run, first, blocks, payloads, x)


@inner
def _work(
    run: ChunkRun,
    kind: int,
    first: int,
    end: int,
    payloads_at: int,
    contributors_at: int,
    vector_at: int,
    row: NDArray[np.float32],
) -> None:
    """Let a kernel work on chunks first .. end - 1 of a vector at an address; `row` has room for a block."""
    rows, rest = _rows(run, first, end)
    if rows > 0:
        _call(run, kind, first, rows, payloads_at, contributors_at, vector_at + 4 * run.block_elements * first)
    if rest > 0:
        # Kernels take whole blocks only.
        last = run.block_elements * (first + rows)
        count, x = run.elements - last, floats_at(vector_at + 4 * last)
        for j in range(run.block_elements):
            row[j] = x[j] if j < count else f32(0)
        after = payloads_at + rows * (run.down_bytes if kind == _DECODE else run.up_bytes)
        _call(run, kind, first + rows, i64(1), after, contributors_at + 8 * rows, i64(row.ctypes.data))
        if kind != _ENCODE:
            for j in range(count):
                x[j] = row[j]


@kernel(_I64, _I64, _I64, _I64, _I64)
def begin(memory: int, sent_at: int, before: int, first_at: int, rest_at: int) -> None:
    """Fill scales, shifts and units from the shared ranges as `Thc.begin` does; else set `has_fault`.

    It needs that all ranks made the same call, all blocks are finite, and this rank's ranges are in the maximum. Where
    `has_fault` is set, the vector has not begun.

    Args:
        memory: address of the vector's ChunkRun.
        sent_at: address of the first lanes that this rank has sent: `before` lanes, of equal sums on all ranks.
        first_at: address of the sums of the first chunk: of those lanes, and then of the ranges.
        rest_at: the same of the other chunks, as far as there are any.
    """
    run = _run_at(memory)
    size = run.block_elements
    scales, shifts, units, own = floats_at(run.scales), shifts_at(run.shifts), doubles_at(run.units), words_at(run.own)
    run.has_fault = True
    for lane in range(before):
        if words_at(sent_at)[lane] != words_at(first_at)[lane]:
            return
    for block in range((run.elements + size - 1) // size):
        lane = block + before
        first = lane < _RANGE_LANES
        place = (first_at if first else rest_at) + 4 * (lane if first else lane - _RANGE_LANES)
        octets = octets_at(place)
        # Numbers on the wire are big-endian.
        bits = (i64(octets[0]) << 24) | (i64(octets[1]) << 16) | (i64(octets[2]) << 8) | i64(octets[3])
        if bits >= _INFINITE or i64(own[block]) > bits:
            return
        # Written as bits, read as a number.
        words_at(run.scales)[block] = u32(bits)
        shared = f64(scales[block])
        is_zero = shared < run.least
        scales[block] = f32(0) if is_zero else f32(run.scale_unit / shared)
        units[block] = f64(0) if is_zero else shared * run.sum_unit
        shifts[block] = i32(0)
    run.has_fault = False


@kernel(_I64, _I64, _I64)
def encode(memory: int, first: int, end: int) -> None:
    """Make the payloads of chunks first .. end - 1, and subtract their contribution as if the sums had it.

    Args:
        memory: address of the vector's ChunkRun.
    """
    run = _run_at(memory)
    row = scratch(_ELEMENTS_MAX, f32)
    payloads = run.payloads + first * run.up_bytes
    if not run.has_feedback:
        _work(run, i64(_ENCODE), first, end, payloads, i64(0), run.x, row)
        return
    x, before, pending = floats_at(run.x), floats_at(run.before), floats_at(run.pending)
    start, stop = first * run.block_elements, min(end * run.block_elements, run.elements)
    # Two loops: the compiler makes vector code of the second one only where no array may be another.
    if run.before == run.pending:
        for j in range(start, stop):
            pending[j] += x[j]
    else:
        for j in range(start, stop):
            pending[j] = x[j] + before[j]
    _work(run, i64(_ENCODE), first, end, payloads, i64(0), run.pending, row)
    # The elements are in the processor's cache here. When the sums come, they are not.
    for block in range(first, end):
        floats_at(run.factors)[block] = f32(doubles_at(run.units)[block])
    _work(run, i64(_DEQUANTIZE), first, end, payloads, i64(0), run.pending, row)


@inner
def _note_absent(run: ChunkRun, first: int, end: int, contributors: Numbers[int], row: NDArray[np.float32]) -> None:
    """Add to what becomes the residual this rank's contributions that the sums of chunks first .. end - 1 lack."""
    absent = False
    for block in range(first, end):
        factor = f32(0)
        if contributors[block] >> u64(run.rank) & u64(1) == u64(0):
            # DEQUANTIZE subtracts a factor times the code's value.
            factor = f32(-doubles_at(run.units)[block])
            absent = True
        floats_at(run.factors)[block] = factor
    if absent:
        _work(run, i64(_DEQUANTIZE), first, end, run.payloads + first * run.up_bytes, i64(0), run.pending, row)


@kernel(_I64, _I64, _I64, _I64, _I64)
def decode(memory: int, first: int, end: int, results_at: int, contributors_at: int) -> None:
    """Decode the sums of chunks first .. end - 1, which this rank has encoded, into the mean.

    With error feedback, contributions of this rank that the sums lack become a part of the residual (protocol.md, W5).
    Where a sum is impossible, it sets `has_fault`, and changes nothing else but the mean, which is undefined then.

    Args:
        memory: address of the vector's ChunkRun.
        results_at: address of uint8[chunks, down_bytes], those of all chunks of the vector.
        contributors_at: address of uint64[chunks].
    """
    run, contributors = _run_at(memory), bits_at(contributors_at)
    counts, factors, peaks = shifts_at(run.block_counts), floats_at(run.factors), shifts_at(run.peaks)
    row = scratch(_ELEMENTS_MAX, f32)
    run.has_fault = False
    for block in range(first, end):
        count = _ones(contributors[block])
        counts[block] = i32(count)
        factors[block] = f32(doubles_at(run.units)[block] / f64(count)) if count else f32(0)
    results = results_at + first * run.down_bytes
    _work(run, i64(_DECODE), first, end, results, contributors_at + 8 * first, run.mean, row)
    for block in range(first, end):
        if peaks[block] > counts[block] * run.granularity:
            run.has_fault = True
    # Before anything is settled: the caller's reduction words the error, and takes all of its vector back.
    if run.has_fault:
        return
    for block in range(first, end):
        bits_at(run.contributors)[block] = contributors[block]
    if run.has_feedback:
        _note_absent(run, first, end, contributors, row)
