# SPDX-License-Identifier: Apache-2.0
"""The kernels of thc and uhc, compiled by numba: the definition in kernels.py as vector code.

The Hadamard transform, decoding and rounding are written as LLVM vector operations (vector_code.py), since LLVM turns
loops over the small strides of the transform into slow interleaving. They serve every processor for which numba
compiles. B is 1024 for lanes of 8 bits, 512 for lanes of 16 bits.

Decoding: a block of sums is a matrix of 16 rows of B/16 in the wire's order, and the stages are sums and differences of
whole vectors:

    four stages     across 16 rows, 16 columns at a time, which a 16 x 16 transposition brings into element order
    three stages    strides 16 to 64 (two stages, 16 and 32, where B = 512), in the same integers
    three stages    strides B/8 to B/2, in 32 bits, with the signs, the factor and the store

Sums of 8 bits, and a worker's own values, take 16 bits until the last three stages: a sum of up to 255 grows to
255 * 2^7 < 2^15. Sums of 16 bits take 32 bits throughout.

Encoding goes the other way in 32 bits, 8 coordinates at a time: load, scale and sign with the strides B/8 to B/2, the
strides 16 to 64, stride 8 between halves of rows of 16, and the last three across 8 rows that are transposed, which is
the wire's order. Rounding takes 32 coordinates at a time: a byte look-up (vector_code.look_up) finds the value of the
table at or below a coordinate, and one comparison decides between that value and the next one.

The identity table needs no look-up: a shift rounds. Packing takes 16 words at a time, and loops where a group has
fewer.

Blocks of float32 that are only read, or only written, are copied between memory and a buffer in the cache in element
order: the vectors of a block lie B/2 bytes apart, which the processor's prefetching does not follow. A block stays in
the first-level cache (4 KiB) from its load to its packed codes, so that encoding moves 4.5 bytes per element through
memory.

An intrinsic is a function that numba calls while it compiles a kernel, and that appends instructions (vector_code).
numba promotes uint32 * uint32 to uint64 and int32 + int32 to int64: every cast keeps a 32-bit result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from numba import extending
from numba.core import cgutils
from numpy.typing import NDArray

from hopsum.codec.backends.jit import (
    LazyKernel,
    f32,
    fetch_add,
    filled,
    i16,
    i32,
    i64,
    inner,
    kernel,
    read,
    scratch,
    u8,
    u32,
    u64,
)
from hopsum.codec.backends.vector_code import (
    LOOK_UP_BYTES,
    Builder,
    Context,
    Kind,
    Loop,
    Made,
    Value,
    array_data,
    constant,
    hadamard,
    ir,
    load,
    look_up,
    negate_where,
    random_bits,
    shuffle,
    splat,
    store,
    transpose,
    vector,
)
from hopsum.codec.hashing import LANE_FIRST, LANE_SECOND, LANE_STRIDE
from hopsum.codec.interface import Bytes, Floats, Ints, Words
from hopsum_base.record_kernels import types

_E = TypeVar("_E", bound=np.generic)
_U8, _I32, _I64, _U64, _F32, _BOOL = types.uint8, types.int32, types.int64, types.uint64, types.float32, types.boolean
_INTS, _FLOATS = vector(ir.IntType(32), 8), vector(ir.FloatType(), 8)
TURNS = filled(types.int64, 1)
"""Type of int64[threads], which all threads of a call share: each has a run of the blocks, and this is the first block
of each run that nobody has taken."""
TURN_BLOCKS = 16
"""A thread takes so many at a time, some 10 to 30 us of work: that is how long one waits for another in the end."""


@inner
def copy(a: NDArray[_E], b: NDArray[_E]) -> None:
    """Copy a to b, of the same size. An assignment of slices has an error message, which takes seconds to compile."""
    for j in range(b.shape[0]):
        b[j] = a[j]


@inner
def claim_blocks(turns: NDArray[np.int64], own: int, blocks: int) -> tuple[int, int]:
    """Claim blocks for this thread alone, and return first and end; 0 and 0 if none is left.

    They are of the thread's own run, then of others' runs. Each thread has a run, because threads that take turns at
    neighbouring blocks slow each other down.

    Args:
        turns: int64[threads], the next block of each run. It is changed.
        own: number of this thread.
        blocks: of all runs.
    """
    runs = turns.shape[0]
    for other in range(runs):
        # First the own run, then the next thread's: neighbours come last, so that two threads rarely touch one cache
        # line.
        run = (own + other) % runs
        # Atomic: no two threads get the same blocks, though none holds a lock.
        first, end = fetch_add(turns, run, TURN_BLOCKS), blocks * (run + 1) // runs
        if first < end:
            last = first + TURN_BLOCKS
            return first, last if last < end else end
    return 0, 0


@inner
def block_key(key: int, block: int) -> int:
    """Return splitmix64(key + block)."""
    value = u64(u64(key + u64(block)) + u64(0x9E3779B97F4A7C15))
    value = u64((value ^ (value >> u64(30))) * u64(0xBF58476D1CE4E5B9))
    value = u64((value ^ (value >> u64(27))) * u64(0x94D049BB133111EB))
    return value ^ (value >> u64(31))


@inner
def mix_bits(bits: int, high: int) -> int:
    """Return the random bits of a lane.

    Args:
        bits: the lane's number times LANE_STRIDE, plus the low half of the key.
        high: the high half of the key.
    """
    bits = u32(bits ^ (bits >> u32(16)))
    bits = u32(u32(bits * u32(LANE_FIRST)) ^ high)
    bits = u32(bits ^ (bits >> u32(15)))
    bits = u32(bits * u32(LANE_SECOND))
    return u32(bits ^ (bits >> u32(16)))


@inner
def sign_lanes(key: int, lanes: Words) -> None:
    """Fill the 32 lanes of sign bits of a block's rotation key."""
    low, high = u32(key), u32(key >> u64(32))
    for lane in range(32):
        lanes[lane] = mix_bits(u32(u32(u32(lane) * u32(LANE_STRIDE)) + low), high)


# ---- encoding ---------------------------------------------------------------------------------------------


def step_loop(builder: Builder, stop: int, step: int) -> Loop:
    """Return a loop of machine code over 0, step .. below stop: as fast as unrolled code, and compiled sooner."""
    index = ir.IntType(64)
    return cgutils.for_range_slice(builder, index(0), index(stop), index(step))


def _behind(builder: Builder, first: Value, at: int) -> Value:
    """Return a place behind another one."""
    return builder.add(first, first.type(at))


def _first_stages(builder: Builder, x: Value, scale: Value, lanes: Value, spare: Value, elements: int) -> None:
    """Scale x, float32[B], to integers with signs, and do the stages of strides B/8, B/4 and B/2 into spare."""
    # llvm.rint rounds half to even, as numpy's rint does. An instruction that adds 0.5 would split the ranks.
    rint = cgutils.get_or_insert_function(builder.module, ir.FunctionType(_FLOATS, [_FLOATS]), "llvm.rint.v8f32")
    with step_loop(builder, 32, 8) as (lane, _count):
        bits = load(builder, lanes, lane, _INTS)
        # The number of a sign's bit is a constant, so that LLVM shifts by it: a lane's elements are 32 apart.
        for first in range(0, elements // 8, 32):
            places = range(first, elements, elements // 8)
            here = [_behind(builder, lane, at) for at in places]
            scaled = [builder.fmul(load(builder, x, at, _FLOATS), scale) for at in here]
            whole = [builder.fptosi(builder.call(rint, [value]), _INTS) for value in scaled]
            signed = [negate_where(builder, value, bits, at // 32) for at, value in zip(places, whole, strict=True)]
            for at, value in zip(here, hadamard(builder, signed), strict=True):
                store(builder, value, spare, at)


def middle_stages(builder: Builder, spare: Value, kind: Kind, elements: int) -> None:
    """Write the code of a Hadamard transform's stages of strides 16 to B/16, in place.

    Args:
        spare: the block, integers[B].
        kind: the type of vectors in which the code works: 8 or 16 such integers.
        elements: B, the number of the block's elements.
    """
    with step_loop(builder, elements, elements // 8) as (first, _count):
        # Strides here are multiples of 16: 16 neighbours go together, as one vector or as two.
        for base in range(0, 16, kind.count):
            places = [_behind(builder, first, at) for at in range(base, base + elements // 8, 16)]
            done = hadamard(builder, [load(builder, spare, at, kind) for at in places])
            for at, value in zip(places, done, strict=True):
                store(builder, value, spare, at)


def _last_rows(builder: Builder, spare: Value, out: Value, elements: int) -> None:
    """Do the stages of strides 1 to 8, and write to out, int32[B], in the wire's order."""
    columns = elements // 16
    with step_loop(builder, columns, 8) as (row, _count):
        source = builder.mul(row, row.type(16))
        # Stride 8 lies between the halves of a row of 16. Strides 1 to 4 lie inside of 8 elements: 8 rows transposed
        # make them sums of vectors.
        halves = [
            [load(builder, spare, _behind(builder, source, 16 * i + at), _INTS) for i in range(8)] for at in (0, 8)
        ]
        pairs = list(zip(*halves, strict=True))
        for first, rows in (
            (0, [builder.add(low, high) for low, high in pairs]),
            (8, [builder.sub(low, high) for low, high in pairs]),
        ):
            for place, value in enumerate(hadamard(builder, transpose(builder, rows))):
                store(builder, value, out, _behind(builder, row, columns * (first + place)))


@extending.intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def rotate(_: Context, x: Kind, scale: Kind, lanes: Kind, spare: Kind, out: Kind, elements: Kind) -> Made:
    """Leave the rotated block of x, scaled, in out.

    `spare` and `out` are int32[B], `lanes` has the signs, and `elements` is the constant B.
    """

    def generate(context: Context, builder: Builder, signature: Kind, arguments: Sequence[Value]) -> Value:
        data = {at: array_data(context, builder, signature, arguments, at) for at in (0, 2, 3, 4)}
        size = elements.literal_value
        _first_stages(builder, data[0], splat(builder, arguments[1], 8), data[2], data[3], size)
        middle_stages(builder, data[3], _INTS, size)
        _last_rows(builder, data[3], data[4], size)
        return context.get_dummy_value()

    return types.void(x, types.float32, lanes, spare, out, elements), generate


@inner
def fill_strides(strides: Words) -> None:
    """Fill strides with each lane's number times LANE_STRIDE, for `mix_bits`: anew for each block takes long."""
    for lane in range(strides.shape[0]):
        strides[lane] = u32(u32(lane) * u32(LANE_STRIDE))


@inner
def fractions(key: int, strides: Words, u: Ints) -> None:
    """Fill u, int32[B], with 16 random bits for each element."""
    low, high = u32(key), u32(key >> u64(32))
    for half in range(u.shape[0] // 512):
        for lane in range(256):
            bits = mix_bits(u32(strides[256 * half + lane] + low), high)
            u[512 * half + lane] = i32(bits & u32(0xFFFF))
            u[512 * half + 256 + lane] = i32(bits >> u32(16))


@inner
def _within(value: int, low: int, high: int) -> int:
    """Return the number in low .. high that is nearest to a value. numba compiles min and max in four functions."""
    above = value if value > low else low
    return above if above < high else high


@inner
def shift_up(a: Ints, half: int, shift: int) -> None:
    """Multiply coordinates in place with 2^shift, clamped before so that they cannot overflow."""
    # With this limit the shifted value stays within +-(g 2^15 + 2^k), so 32 bits hold it for k up to 23.
    limit = i32(i32(half >> shift) + i32(1))
    for j in range(a.shape[0]):
        a[j] = i32(_within(a[j], i32(-limit), limit) << shift)


@inner
def clamp(a: Ints, half: int, top: int) -> None:
    """Add half to coordinates in place, and clamp them to 0 .. top."""
    for j in range(a.shape[0]):
        a[j] = _within(i32(a[j] + half), i32(0), top)


@inner
def round_to_integers(q: Ints, u: Ints, codes: Bytes) -> None:
    """Round coordinates up or down to integers, the values of the identity table, and leave these as codes."""
    for j in range(q.shape[0]):
        codes[j] = u8(i32(q[j] + u[j]) >> i32(16))


_ROUNDED = 32
"""Coordinates that are rounded at a time, twice: those of the low and of the high halves of the random bits."""
_TABLE = vector(ir.IntType(8), LOOK_UP_BYTES)
_ROUND8, _ROUND16, _ROUND32 = (vector(ir.IntType(bits), _ROUNDED) for bits in (8, 16, 32))


def _levels(builder: Builder, data: Value, first: Value, half: Value, top: Value) -> tuple[Value, Value]:
    """Load coordinates, move them to 0 .. top, and return what is before the point, int8, and after it, int16."""
    zero = constant(_ROUND32, 0)
    moved = builder.add(load(builder, data, first, _ROUND32), half)
    # Clamp to the table's ends: coordinates beyond +-t are truncated, which error feedback makes up for.
    moved = builder.select(builder.icmp_signed("<", moved, zero), zero, moved)
    moved = builder.select(builder.icmp_signed(">", moved, top), top, moved)
    # The part before the point has at most 8 bits, since g <= 255. The part after it has 16.
    whole = builder.trunc(builder.lshr(moved, constant(_ROUND32, 16)), _ROUND8)
    return whole, builder.trunc(moved, _ROUND16)


def _codes_at(builder: Builder, levels: Sequence[Value], by_level: Value, rows: Value) -> list[Value]:
    """Return the code of the highest value at or below each level. Row r of `by_level` has those of 16 r and after."""
    # Stack places instead of phi nodes: LLVM makes registers of them.
    found = [cgutils.alloca_once(builder, _ROUND8) for _ in levels]
    for place in found:
        builder.store(constant(_ROUND8, 0), place)
    # A look-up takes 16 bytes, so a table of g + 1 levels is g/16 + 1 rows: the low 4 bits choose the byte, the high 4
    # the row.
    low = [builder.and_(level, constant(_ROUND8, LOOK_UP_BYTES - 1)) for level in levels]
    high = [builder.lshr(level, constant(_ROUND8, 4)) for level in levels]
    with cgutils.for_range(builder, rows) as loop:
        table = load(builder, by_level, builder.mul(loop.index, ir.Constant(ir.IntType(64), LOOK_UP_BYTES)), _TABLE)
        row = splat(builder, builder.trunc(loop.index, ir.IntType(8)), _ROUNDED)
        for place, index, number in zip(found, low, high, strict=True):
            looked_up = look_up(builder, table, index)
            chosen = builder.select(builder.icmp_unsigned("==", number, row), looked_up, builder.load(place))
            builder.store(chosen, place)
    return [builder.load(place) for place in found]


def _reached(builder: Builder, fraction: Value, bits: Value, gap: Value, distance: Value) -> Value:
    """Return whether (fraction + bits * gap) / 2^16 is at least the distance to the next value, with 16 bits each."""
    wide = builder.mul(builder.zext(bits, _ROUND32), builder.zext(gap, _ROUND32))
    high = builder.trunc(builder.lshr(wide, constant(_ROUND32, 16)), _ROUND16)
    low = builder.mul(bits, gap)
    # The product has 32 bits, and 16-bit lanes hold twice as many elements a vector: compare its upper half, and carry
    # the sum of the lower one.
    carry = builder.icmp_unsigned("<", builder.add(low, fraction), low)
    return builder.icmp_unsigned(">=", builder.sub(high, builder.sext(carry, _ROUND16)), distance)


@extending.intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def _round_block(
    _: Context, a: Kind, half: Kind, top: Kind, strides: Kind, low: Kind, high: Kind, by_level: Kind, steps: Kind,
    codes: Kind, elements: Kind,
) -> Made:  # fmt: skip
    """Round the coordinates of a block, int32[B], up or down to the table's values, and write the codes.

    strides, low and high make the random bits, as in `fractions`. `by_level` and `steps` are those of `_fill_table`.
    """

    def generate(context: Context, builder: Builder, signature: Kind, arguments: Sequence[Value]) -> Value:
        data = {at: array_data(context, builder, signature, arguments, at) for at in (0, 3, 6, 7, 8)}
        by_level_ = context.make_array(signature.args[6])(context, builder, arguments[6])
        rows = builder.udiv(builder.extract_value(by_level_.shape, 0), ir.Constant(ir.IntType(64), LOOK_UP_BYTES))
        half, top, low, high = (splat(builder, arguments[at], _ROUNDED) for at in (1, 2, 4, 5))
        following, gaps = (load(builder, data[7], at, _TABLE) for at in (0, LOOK_UP_BYTES))
        step, half_block = ir.Constant(ir.IntType(64), _ROUNDED), ir.Constant(ir.IntType(64), 256)
        whole_block = ir.Constant(ir.IntType(64), elements.literal_value // 2)
        with cgutils.for_range_slice(builder, whole_block.type(0), whole_block, step) as (first, _count):
            # One lane of random bits serves two coordinates, 256 apart: its low and its high 16 bits.
            bits = random_bits(builder, builder.add(load(builder, data[3], first, _ROUND32), low), high)
            below = builder.add(first, builder.and_(first, half_block))
            places = (below, builder.add(below, half_block))
            levels, fractions_ = zip(*(_levels(builder, data[0], at, half, top) for at in places), strict=True)
            found = _codes_at(builder, levels, data[6], rows)
            shares = (bits, builder.lshr(bits, constant(_ROUND32, 16)))
            for at, level, fraction, code, share in zip(places, levels, fractions_, found, shares, strict=True):
                gap = builder.zext(look_up(builder, gaps, code), _ROUND16)
                distance = builder.zext(builder.sub(look_up(builder, following, code), level), _ROUND16)
                # The comparison is -1 or 0 as an integer, so that subtracting it adds one to the code.
                up = _reached(builder, fraction, builder.trunc(share, _ROUND16), gap, distance)
                store(builder, builder.sub(code, builder.sext(up, _ROUND8)), data[8], at)
        return context.get_dummy_value()

    numbers = (types.int32, types.int32, strides, types.uint32, types.uint32)
    return types.void(a, *numbers, by_level, steps, codes, elements), generate


@inner
def _fill_table(table: Bytes, by_level: Bytes, steps: Bytes) -> None:
    """Fill the forms of a table of up to 16 values in which kernels look up.

    Args:
        by_level: uint8[16 * (g // 16 + 1)], the code of the highest value at or below each level.
        steps: uint8[32], by code: the next value (255 behind the last), and its distance (0) 16 places further.
    """
    last, code = table.shape[0] - 1, 0
    for level in range(by_level.shape[0]):
        if code < last and level == i64(table[code + 1]):
            code += 1
        by_level[level] = u8(code)
    for code in range(last):
        steps[code], steps[LOOK_UP_BYTES + code] = table[code + 1], u8(table[code + 1] - table[code])
    # 255 is beyond every position, so that nothing is rounded up from the last value.
    steps[last], steps[LOOK_UP_BYTES + last] = u8(255), u8(0)


@inner
def _pack8(codes: Bytes, group: int, out: Bytes) -> None:
    words = group // 2
    for first in range(0, 1024, group):
        for j in range(words):
            out[first // 2 + j] = u8((codes[first + j] << u8(4)) | codes[first + words + j])


@inner
def _pack16(codes: Bytes, group: int, out: Bytes) -> None:
    words = group // 4
    for first in range(0, 512, group):
        for j in range(words):
            byte, code = first // 2 + 2 * j, first + j
            out[byte] = u8((codes[code] << u8(4)) | codes[code + words])
            out[byte + 1] = u8((codes[code + 2 * words] << u8(4)) | codes[code + 3 * words])


@inner
def _pack_lanes16(codes: Bytes, out: Bytes) -> None:
    for j in range(512):
        out[2 * j] = u8(0)
        out[2 * j + 1] = codes[j]


_CODES = vector(ir.IntType(8), 16)
_FOUR, _LOW = constant(_CODES, 4), constant(_CODES, 15)
_EVEN, _ODD, _MIXED = range(0, 32, 2), range(1, 32, 2), [lane // 2 + 16 * (lane % 2) for lane in range(32)]
"""Lanes of two vectors of 16: every second byte of both, and the bytes of both alternating."""


def _on_words(
    builder: Builder, group: Value, elements: int, codes_per_word: int, body: Callable[[Value, list[Value]], None]
) -> None:
    """Call body for 16 words of each group at a time: with the places of the first word and of its codes."""
    index = ir.IntType(64)
    words = builder.udiv(group, index(codes_per_word))
    loop = cgutils.for_range_slice
    with (
        loop(builder, index(0), index(elements), group) as (first, _groups),
        loop(builder, index(0), words, index(16)) as (word, _words),
    ):
        # A byte has two codes.
        byte = builder.add(builder.lshr(first, index(1)), builder.mul(word, index(codes_per_word // 2)))
        code = builder.add(first, word)
        body(byte, [builder.add(code, builder.mul(words, index(part))) for part in range(codes_per_word)])


@extending.intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def _pack_words(_: Context, codes: Kind, group: Kind, out: Kind, elements: Kind) -> Made:
    """Pack a block's codes in groups of at least 16 words; `elements` is the constant B."""

    def generate(context: Context, builder: Builder, signature: Kind, arguments: Sequence[Value]) -> Value:
        data = {at: array_data(context, builder, signature, arguments, at) for at in (0, 2)}

        def pack(byte: Value, places: list[Value]) -> None:
            parts = [load(builder, data[0], at, _CODES) for at in places]
            packed = [
                builder.or_(builder.shl(high, _FOUR), low) for high, low in zip(parts[::2], parts[1::2], strict=True)
            ]
            # Two bytes a word lie one after the other on the wire.
            joined = packed[0] if len(packed) == 1 else shuffle(builder, packed[0], packed[1], _MIXED)
            store(builder, joined, data[2], byte)

        _on_words(builder, arguments[1], elements.literal_value, 2048 // elements.literal_value, pack)
        return context.get_dummy_value()

    return types.void(codes, types.int64, out, elements), generate


@extending.intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def _unpack_words(_: Context, payload: Kind, group: Kind, codes: Kind, elements: Kind) -> Made:
    """Undo `_pack_words`."""

    def generate(context: Context, builder: Builder, signature: Kind, arguments: Sequence[Value]) -> Value:
        data = {at: array_data(context, builder, signature, arguments, at) for at in (0, 2)}
        codes_per_word = 2048 // elements.literal_value

        def unpack(byte: Value, places: list[Value]) -> None:
            if codes_per_word == 2:
                packed = [load(builder, data[0], byte, _CODES)]
            else:
                both = load(builder, data[0], byte, vector(ir.IntType(8), 32))
                packed = [shuffle(builder, both, both, lanes) for lanes in (_EVEN, _ODD)]
            for each, high, low in zip(packed, places[::2], places[1::2], strict=True):
                store(builder, builder.lshr(each, _FOUR), data[2], high)
                store(builder, builder.and_(each, _LOW), data[2], low)

        _on_words(builder, arguments[1], elements.literal_value, codes_per_word, unpack)
        return context.get_dummy_value()

    return types.void(payload, types.int64, codes, elements), generate


@inner
def to_payload8(codes: Bytes, group: int, out: Bytes) -> None:
    """Fill out with the codes of lanes of 8 bits, packed in groups of so many; with 0, one byte for each code."""
    if group >= 32:
        _pack_words(codes, group, out, 1024)
    elif group:
        _pack8(codes, group, out)
    else:
        copy(codes, out)


@inner
def _to_payload16(codes: Bytes, group: int, out: Bytes) -> None:
    """Pack the codes of lanes of 16 bits in groups of so many; 0 stands for lanes."""
    if group >= 64:
        _pack_words(codes, group, out, 512)
    elif group:
        _pack16(codes, group, out)
    else:
        _pack_lanes16(codes, out)


_ENCODE = (
    read(_F32, 2), read(_F32, 1), read(_I32, 1), read(_U8, 1), _BOOL, _I64, _U64, _U64, TURNS, _I64, filled(_U8),
)  # fmt: skip


def _make_encode(elements: int) -> LazyKernel:
    """Return the kernel that encodes blocks of so many elements."""

    @kernel(*_ENCODE)
    def encode(
        x: Floats, scales: Floats, shifts: Ints, table: Bytes, identity: bool, group: int, rotation: int, rounding: int,
        turns: NDArray[np.int64], own: int, out: Bytes,
    ) -> None:  # fmt: skip
        a, spare, u = scratch(elements, i32), scratch(elements, i32), scratch(elements, i32)
        row = scratch(elements, f32)
        codes, g = scratch(elements, u8), i64(table[table.shape[0] - 1])
        lanes, strides = scratch(32, u32), scratch(elements, u32)
        by_level, steps = scratch(256, u8)[: (g // LOOK_UP_BYTES + 1) * LOOK_UP_BYTES], scratch(32, u8)
        if not identity:
            _fill_table(table, by_level, steps)
        fill_strides(strides)
        # q has 16 bits after the point: half the table is g/2 * 2^16, its end g * 2^16.
        half, top = i32(g << 15), i32(g << 16)
        first, end = claim_blocks(turns, own, x.shape[0])
        while first < end:
            for block in range(first, end):
                # The vectors of the first stages are B/8 elements apart. In the buffer they hit the first-level cache.
                # In the vector itself the prefetcher does not follow them.
                copy(x[block], row)
                sign_lanes(block_key(rotation, block), lanes)
                rotate(row, scales[block], lanes, spare, a, elements)
                # Rare: a worker's own block exceeds the shared range, since its ranges came too late for the quorum.
                if shifts[block] > 0:
                    shift_up(a, half, shifts[block])
                key = block_key(rounding, block)
                if identity:
                    clamp(a, half, top)
                    fractions(key, strides, u)
                    round_to_integers(a, u, codes)
                else:
                    low, high = u32(key), u32(key >> u64(32))
                    _round_block(a, half, top, strides, low, high, by_level, steps, codes, elements)
                if elements == 1024:  # a constant: numba compiles one of the two
                    to_payload8(codes, group, out[block])
                else:
                    _to_payload16(codes, group, out[block])
            first, end = claim_blocks(turns, own, x.shape[0])

    return encode


encode8, encode16 = _make_encode(1024), _make_encode(512)


# ---- decoding ---------------------------------------------------------------------------------------------


@inner
def _unpack8(payload: Bytes, group: int, codes: Bytes) -> None:
    words = group // 2
    for first in range(0, 1024, group):
        for j in range(words):
            codes[first + j] = payload[first // 2 + j] >> u8(4)
            codes[first + words + j] = payload[first // 2 + j] & u8(15)


@inner
def _unpack16(payload: Bytes, group: int, codes: Bytes) -> None:
    words = group // 4
    for first in range(0, 512, group):
        for j in range(words):
            high, low, code = payload[first // 2 + 2 * j], payload[first // 2 + 2 * j + 1], first + j
            codes[code], codes[code + words] = high >> u8(4), high & u8(15)
            codes[code + 2 * words], codes[code + 3 * words] = low >> u8(4), low & u8(15)


@inner
def _unpack_lanes16(payload: Bytes, codes: Bytes) -> None:
    for j in range(512):
        codes[j] = payload[2 * j + 1]


@inner
def to_codes8(payload: Bytes, group: int, codes: Bytes) -> None:
    """Undo `to_payload8`."""
    if group >= 32:
        _unpack_words(payload, group, codes, 1024)
    elif group:
        _unpack8(payload, group, codes)
    else:
        copy(payload, codes)


@inner
def _to_codes16(payload: Bytes, group: int, codes: Bytes) -> None:
    """Undo `_to_payload16`."""
    if group >= 64:
        _unpack_words(payload, group, codes, 512)
    elif group:
        _unpack16(payload, group, codes)
    else:
        _unpack_lanes16(payload, codes)


@extending.intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def _values_of(_: Context, codes: Kind, table: Kind, values: Kind, elements: Kind) -> Made:
    """Fill values, uint8[B], with the entries of a table of 16 at codes."""

    def generate(context: Context, builder: Builder, signature: Kind, arguments: Sequence[Value]) -> Value:
        data = [array_data(context, builder, signature, arguments, at) for at in range(3)]
        row, index = load(builder, data[1], 0, _TABLE), ir.IntType(64)
        bounds = (index(0), index(elements.literal_value), index(_ROUNDED))
        with cgutils.for_range_slice(builder, *bounds) as (first, _count):
            store(builder, look_up(builder, row, load(builder, data[0], first, _ROUND8)), data[2], first)
        return context.get_dummy_value()

    return types.void(codes, table, values, elements), generate


def _centre_rows(builder: Builder, values: Value, middle: Value, spare: Value, bits: int, elements: int) -> None:
    """Write the first four stages of 2 values - middle to spare, integers[B] of so many bits, in element order."""
    columns, kind = elements // 16, vector(ir.IntType(bits), 16)
    given = vector(values.type.pointee, 16)
    with step_loop(builder, columns, 16) as (column, _count):
        # 16 rows of the wire's order: coordinate c of the wire is row c mod B/16 * 16 + c div B/16 of H.
        rows = [load(builder, values, _behind(builder, column, columns * row), given) for row in range(16)]
        if given != kind:
            rows = [builder.zext(row, kind) for row in rows]
        # 2 S - c g, an integer also where c g is odd: half of it is in the factor.
        centred = [builder.sub(builder.add(row, row), splat(builder, middle, 16)) for row in rows]
        target = builder.mul(column, column.type(16))
        for place, done in enumerate(transpose(builder, hadamard(builder, centred))):
            store(builder, done, spare, _behind(builder, target, 16 * place))


def last_stages(
    builder: Builder, spare: Value, lanes: Value, factor: Value, out: Value, bits: int, elements: int
) -> None:
    """Do the last three stages, the signs and the factor, and write to out, float32[B]."""
    with step_loop(builder, 32, 8) as (lane, _count):
        flips = load(builder, lanes, lane, _INTS)
        for first in range(0, elements // 8, 32):
            places = range(first, elements, elements // 8)
            here = [_behind(builder, lane, at) for at in places]
            wide = [load(builder, spare, at, vector(ir.IntType(bits), 8)) for at in here]
            # The last three stages may pass 2^15: eight times 255 * 2^7.
            if bits < 32:
                wide = [builder.sext(value, _INTS) for value in wide]
            for number, value in enumerate(hadamard(builder, wide)):
                # H is symmetric and orthogonal up to B: the same stages and signs undo the rotation, signs last.
                signed = negate_where(builder, value, flips, places[number] // 32)
                store(builder, builder.fmul(builder.sitofp(signed, _FLOATS), factor), out, here[number])


@extending.intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def _restore(
    _: Context, values: Kind, middle: Kind, spare: Kind, lanes: Kind, factor: Kind, out: Kind, elements: Kind
) -> Made:
    """Rotate a block of the constant B values back into out, float32[B]."""

    def generate(context: Context, builder: Builder, signature: Kind, arguments: Sequence[Value]) -> Value:
        data = {at: array_data(context, builder, signature, arguments, at) for at in (0, 2, 3, 5)}
        bits, size = spare.dtype.bitwidth, elements.literal_value
        _centre_rows(builder, data[0], arguments[1], data[2], bits, size)
        middle_stages(builder, data[2], vector(ir.IntType(bits), 16), size)
        last_stages(builder, data[2], data[3], splat(builder, arguments[4], 8), data[5], bits, size)
        return context.get_dummy_value()

    return types.void(values, spare.dtype, spare, lanes, types.float32, out, elements), generate


@inner
def _widen(sums: Bytes, wide: Ints) -> None:
    """Fill int32[512] from sums of 16 bits, big-endian, uint8[1024]."""
    for j in range(512):
        # Lanes are big-endian on the wire.
        wide[j] = i32(i32(i32(sums[2 * j]) << i32(8)) | i32(sums[2 * j + 1]))


_DECODE = (read(_U8, 2), read(_I32, 1), read(_F32, 1), _I64, _U64, TURNS, _I64, filled(_F32), filled(_I32, 1))


def _make_decode(elements: int) -> LazyKernel:
    """Return the kernel that decodes sums, in blocks of so many elements."""
    # Of lanes of 8 bits, the first stages fit into 16 bits.
    lane, number = (u8, i16) if elements == 1024 else (i32, i32)

    @kernel(*_DECODE)
    def decode(
        sums: Bytes,
        counts: Ints,
        factors: Floats,
        g: int,
        rotation: int,
        turns: NDArray[np.int64],
        own: int,
        out: Floats,
        peaks: Ints,
    ) -> None:
        wide, spare = scratch(elements, i32), scratch(elements, number)
        lanes, row = scratch(32, u32), scratch(elements, f32)
        first, end = claim_blocks(turns, own, sums.shape[0])
        while first < end:
            for block in range(first, end):
                if elements == 1024:  # a constant: numba compiles one of the two
                    values = sums[block]
                else:
                    _widen(sums[block], wide)
                    values = wide
                most = lane(0)
                for j in range(elements):
                    # The largest lane tells whether the switch had another table: 16-bit stages would overflow then.
                    most = max(most, values[j])
                peaks[block] = i32(most)
                sign_lanes(block_key(rotation, block), lanes)
                _restore(values, number(counts[block] * g), spare, lanes, factors[block], row, elements)
                copy(row, out[block])
            first, end = claim_blocks(turns, own, sums.shape[0])

    return decode


decode8, decode16 = _make_decode(1024), _make_decode(512)


@inner
def subtract_row(row: Floats, out: Floats) -> None:
    """Subtract a row from out, of the same size."""
    for j in range(out.shape[0]):
        out[j] = out[j] - row[j]


_DEQUANTIZE = (
    read(_U8, 2), read(_F32, 1), read(_U8, 1), _BOOL, _I64, _U64, _BOOL, TURNS, _I64, filled(_F32),
)  # fmt: skip


def _make_dequantize(elements: int) -> LazyKernel:
    """Return the kernel that decodes payloads alone, in blocks of so many elements."""

    @kernel(*_DEQUANTIZE)
    def dequantize(
        payloads: Bytes, factors: Floats, table: Bytes, identity: bool, group: int, rotation: int, subtract: bool,
        turns: NDArray[np.int64], own: int, out: Floats,
    ) -> None:  # fmt: skip
        spare, lanes, row = scratch(elements, i16), scratch(32, u32), scratch(elements, f32)
        codes, values, padded = scratch(elements, u8), scratch(elements, u8), scratch(LOOK_UP_BYTES, u8)
        last = table.shape[0] - 1
        g = i64(table[last])
        if not identity:
            copy(table, padded[: last + 1])
            padded[last + 1 :] = u8(0)
        first, end = claim_blocks(turns, own, payloads.shape[0])
        while first < end:
            for block in range(first, end):
                if elements == 1024:  # a constant: numba compiles one of the two
                    to_codes8(payloads[block], group, codes)
                else:
                    _to_codes16(payloads[block], group, codes)
                if identity:
                    copy(codes, values)
                else:
                    _values_of(codes, padded, values, elements)
                sign_lanes(block_key(rotation, block), lanes)
                _restore(values, i16(g), spare, lanes, factors[block], row, elements)
                if subtract:
                    subtract_row(row, out[block])
                else:
                    copy(row, out[block])
            first, end = claim_blocks(turns, own, payloads.shape[0])

    return dequantize


dequantize8, dequantize16 = _make_dequantize(1024), _make_dequantize(512)
