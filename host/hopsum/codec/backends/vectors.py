# SPDX-License-Identifier: Apache-2.0
"""Kernels of the numba backend as explicit vector code: the same bytes as the loops, in less time.

The loops beside them (compiled, compiled_decode) leave the vectors to LLVM, which turns the small strides of the
Hadamard transform into slow interleaving. Here a block of 1024 sums is a matrix of 16 rows of 64 in the wire's order,
and the ten stages are sums and differences of whole vectors:

    four stages     across 16 rows, 16 columns at a time, which a 16 x 16 transposition brings into element order
    three stages    strides 16 to 64, in 16 bits as before: a sum of up to 255 grows to 255 * 2^7 < 2^15
    three stages    strides 128 to 512, in 32 bits, with the signs, the factor and the store

Encoding goes the other way in 32 bits, 8 coordinates at a time: load, scale and sign with the strides 128 to 512, the
strides 16 to 64, stride 8 between halves of rows of 16, and the last three across 8 rows that are transposed, which is
the wire's order. Rounding takes 32 coordinates at a time: a byte look-up (vector_parts.look_up) finds the value of the
table at or below a coordinate, and one comparison decides between that value and the next one. Where the processor has
no byte look-up, and for the identity table, rounding stays with the loops. Packing is elementwise, and does so as well.

Blocks of float32 that are only read, or only written, are copied between memory and a buffer in the cache in element
order: the vectors of a block lie 512 bytes apart, which the processor's prefetching does not follow.

An intrinsic is a function that numba calls while it compiles a kernel, and that appends instructions (vector_parts).
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np

from hopsum.codec.backends.compiled_decode import DECODE, RESTORE, peak, to_codes8
from hopsum.codec.backends.compiled_decode import look_up as look_up_values
from hopsum.codec.backends.compiled_parts import TURNS, block_key, copy, sign_lanes, take
from hopsum.codec.backends.compiled_thc import ENCODE, clamp, fill_strides, fractions, round_up, shift_up, to_payload8
from hopsum.codec.backends.jit import filled, inner, kernel, read, types
from hopsum.codec.backends.vector_parts import (
    HAS_LOOK_UP,
    LOOK_UP_BYTES,
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

_numba_cgutils: Any = import_module("numba.core.cgutils")
_extending: Any = import_module("numba.extending")
u8, i16, i32, i64 = np.uint8, np.int16, np.int32, np.int64
u32, u64, f32, f64 = np.uint32, np.uint64, np.float32, np.float64
_I64, _F32 = types.int64, types.float32
_BYTES, _SHORTS, _HALF_SHORTS = vector(ir.IntType(8), 16), vector(ir.IntType(16), 16), vector(ir.IntType(16), 8)
_INTS, _FLOATS = vector(ir.IntType(32), 8), vector(ir.FloatType(), 8)
_SQUARED, _DOUBLES = vector(ir.FloatType(), 16), vector(ir.DoubleType(), 16)


@_extending.intrinsic  # type: ignore[untyped-decorator]
def _sum_squares(_: Any, row: Any) -> Any:
    """Return the sum of the squares of a row, float64: 16 running sums, then the upper half onto the lower."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        total = _numba_cgutils.alloca_once_value(builder, ir.Constant(_DOUBLES, [0.0] * 16))
        zero, step = ir.Constant(ir.IntType(64), 0), ir.Constant(ir.IntType(64), 16)
        with _numba_cgutils.for_range_slice(builder, zero, array.nitems, step) as (first, _count):
            values = builder.fpext(load(builder, array.data, first, _SQUARED), _DOUBLES)
            builder.store(builder.fadd(builder.load(total), builder.fmul(values, values)), total)
        sums = builder.load(total)
        for half in (8, 4, 2, 1):
            low, high = (shuffle(builder, sums, sums, range(at, at + half)) for at in (0, half))
            sums = builder.fadd(low, high)
        return builder.extract_element(sums, ir.Constant(ir.IntType(32), 0))

    return types.float64(row), generate


@kernel(read(_F32, 2), TURNS, _I64, filled(_F32, 1))
def root_mean_square(x: Any, turns: Any, own: Any, out: Any) -> None:
    """Fill out with the root mean square of every block."""
    first, end = take(turns, own, x.shape[0])
    while first < end:
        for block in range(first, end):
            out[block] = f32(np.sqrt(_sum_squares(x[block]) / f64(x.shape[1])))
        first, end = take(turns, own, x.shape[0])


def _centre_rows(builder: Any, values: Any, middle: Any, spare: Any) -> None:
    """Write the first four stages of 2 values - middle to spare, int16[1024], in element order."""
    for column in range(0, 64, 16):
        rows = [builder.zext(load(builder, values, 64 * row + column, _BYTES), _SHORTS) for row in range(16)]
        centred = [builder.sub(builder.add(row, row), middle) for row in rows]
        for place, done in enumerate(transpose(builder, hadamard(builder, centred))):
            store(builder, done, spare, 16 * (column + place))


def _middle_stages(builder: Any, spare: Any) -> None:
    """Do the stages of strides 16, 32 and 64 in place, spare: int16[1024]."""
    for base in range(0, 1024, 128):
        places = range(base, base + 128, 16)
        done = hadamard(builder, [load(builder, spare, at, _SHORTS) for at in places])
        for at, value in zip(places, done, strict=True):
            store(builder, value, spare, at)


def _last_stages(builder: Any, spare: Any, lanes: Any, factor: Any, out: Any, subtract: bool) -> None:
    """Do the last three stages, the signs and the factor, and write to out, float32[1024], or subtract from it."""
    for first in range(0, 128, 8):
        places = range(first, 1024, 128)
        wide = [builder.sext(load(builder, spare, at, _HALF_SHORTS), _INTS) for at in places]
        bits = load(builder, lanes, first % 32, _INTS)
        for at, value in zip(places, hadamard(builder, wide), strict=True):
            signed = negate_where(builder, value, bits, at // 32)
            scaled = builder.fmul(builder.sitofp(signed, _FLOATS), factor)
            if subtract:
                scaled = builder.fsub(load(builder, out, at, _FLOATS), scaled)
            store(builder, scaled, out, at)


def _make_restore(subtract: bool) -> Any:
    """Return an intrinsic: (values, middle, spare, lanes, factor, out) rotates a block of 1024 back into out."""

    @_extending.intrinsic  # type: ignore[untyped-decorator]
    def restore(_: Any, values: Any, middle: Any, spare: Any, lanes: Any, factor: Any, out: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            data = {at: array_data(context, builder, signature, arguments, at) for at in (0, 2, 3, 5)}
            _centre_rows(builder, data[0], splat(builder, arguments[1], 16), data[2])
            _middle_stages(builder, data[2])
            _last_stages(builder, data[2], data[3], splat(builder, arguments[4], 8), data[5], subtract)
            return context.get_dummy_value()

        return types.void(values, types.int16, spare, lanes, types.float32, out), generate

    return restore


_restore, _take_off = _make_restore(False), _make_restore(True)


@inner
def _restore_block(values: Any, middle: Any, spare: Any, lanes: Any, factor: Any, out: Any) -> None:
    _restore(values, middle, spare, lanes, factor, out)


@inner
def _take_off_block(values: Any, middle: Any, spare: Any, lanes: Any, factor: Any, out: Any) -> None:
    _take_off(values, middle, spare, lanes, factor, out)


def _first_stages(builder: Any, x: Any, scale: Any, lanes: Any, spare: Any) -> None:
    """Scale x, float32[1024], to integers with signs, and do the stages of strides 128, 256 and 512 into spare."""
    rint = _numba_cgutils.get_or_insert_function(builder.module, ir.FunctionType(_FLOATS, [_FLOATS]), "llvm.rint.v8f32")
    for first in range(0, 128, 8):
        places = range(first, 1024, 128)
        bits = load(builder, lanes, first % 32, _INTS)
        scaled = [builder.fmul(load(builder, x, at, _FLOATS), scale) for at in places]
        whole = [builder.fptosi(builder.call(rint, [value]), _INTS) for value in scaled]
        signed = [negate_where(builder, value, bits, at // 32) for at, value in zip(places, whole, strict=True)]
        for at, value in zip(places, hadamard(builder, signed), strict=True):
            store(builder, value, spare, at)


def _wide_middle_stages(builder: Any, spare: Any) -> None:
    """Do the stages of strides 16, 32 and 64 in place, spare: int32[1024]."""
    for first in range(0, 1024, 128):
        for base in (first, first + 8):
            places = range(base, base + 128, 16)
            done = hadamard(builder, [load(builder, spare, at, _INTS) for at in places])
            for at, value in zip(places, done, strict=True):
                store(builder, value, spare, at)


def _last_rows(builder: Any, spare: Any, out: Any) -> None:
    """Do the stages of strides 1 to 8, and write to out, int32[1024], in the wire's order."""
    for row in range(0, 64, 8):
        halves = [[load(builder, spare, 16 * (row + i) + at, _INTS) for i in range(8)] for at in (0, 8)]
        pairs = list(zip(*halves, strict=True))
        for first, rows in (
            (0, [builder.add(low, high) for low, high in pairs]),
            (8, [builder.sub(low, high) for low, high in pairs]),
        ):
            for place, value in enumerate(hadamard(builder, transpose(builder, rows))):
                store(builder, value, out, 64 * (first + place) + row)


@_extending.intrinsic  # type: ignore[untyped-decorator]
def _rotate(_: Any, x: Any, scale: Any, lanes: Any, spare: Any, out: Any) -> Any:
    """Leave the rotated block of x, scaled, in out. `spare` and `out` are int32[1024], `lanes` has the signs."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = {at: array_data(context, builder, signature, arguments, at) for at in (0, 2, 3, 4)}
        _first_stages(builder, data[0], splat(builder, arguments[1], 8), data[2], data[3])
        _wide_middle_stages(builder, data[3])
        _last_rows(builder, data[3], data[4])
        return context.get_dummy_value()

    return types.void(x, types.float32, lanes, spare, out), generate


@inner
def _rotate_block(x: Any, scale: Any, lanes: Any, spare: Any, out: Any) -> None:
    _rotate(x, scale, lanes, spare, out)


_ROUNDED = 32
"""Coordinates that are rounded at a time, twice: those of the low and of the high halves of the random bits."""
_TABLE = vector(ir.IntType(8), LOOK_UP_BYTES)
_ROUND8, _ROUND16, _ROUND32 = (vector(ir.IntType(bits), _ROUNDED) for bits in (8, 16, 32))


def _levels(builder: Any, data: Any, first: Any, half: Any, top: Any) -> tuple[Any, Any]:
    """Load coordinates, move them to 0 .. top, and return what is before the point, int8, and after it, int16."""
    zero = constant(_ROUND32, 0)
    moved = builder.add(load(builder, data, first, _ROUND32), half)
    moved = builder.select(builder.icmp_signed("<", moved, zero), zero, moved)
    moved = builder.select(builder.icmp_signed(">", moved, top), top, moved)
    whole = builder.trunc(builder.lshr(moved, constant(_ROUND32, 16)), _ROUND8)
    return whole, builder.trunc(moved, _ROUND16)


def _codes_at(builder: Any, levels: Sequence[Any], by_level: Any, rows: Any) -> list[Any]:
    """Return the code of the highest value at or below each level. Row r of `by_level` has those of 16 r and after."""
    found = [_numba_cgutils.alloca_once(builder, _ROUND8) for _ in levels]
    for place in found:
        builder.store(constant(_ROUND8, 0), place)
    low = [builder.and_(level, constant(_ROUND8, LOOK_UP_BYTES - 1)) for level in levels]
    high = [builder.lshr(level, constant(_ROUND8, 4)) for level in levels]
    with _numba_cgutils.for_range(builder, rows) as loop:
        table = load(builder, by_level, builder.mul(loop.index, ir.Constant(ir.IntType(64), LOOK_UP_BYTES)), _TABLE)
        row = splat(builder, builder.trunc(loop.index, ir.IntType(8)), _ROUNDED)
        for place, index, number in zip(found, low, high, strict=True):
            looked_up = look_up(builder, table, index)
            chosen = builder.select(builder.icmp_unsigned("==", number, row), looked_up, builder.load(place))
            builder.store(chosen, place)
    return [builder.load(place) for place in found]


def _reached(builder: Any, fraction: Any, bits: Any, gap: Any, distance: Any) -> Any:
    """Return whether (fraction + bits * gap) / 2^16 is at least the distance to the next value, with 16 bits each."""
    wide = builder.mul(builder.zext(bits, _ROUND32), builder.zext(gap, _ROUND32))
    high = builder.trunc(builder.lshr(wide, constant(_ROUND32, 16)), _ROUND16)
    low = builder.mul(bits, gap)
    carry = builder.icmp_unsigned("<", builder.add(low, fraction), low)
    return builder.icmp_unsigned(">=", builder.sub(high, builder.sext(carry, _ROUND16)), distance)


@_extending.intrinsic  # type: ignore[untyped-decorator]
def _round_up(
    _: Any, a: Any, half: Any, top: Any, strides: Any, low: Any, high: Any, by_level: Any, steps: Any, codes: Any
) -> Any:
    """Round the coordinates of a block, int32[1024], up or down to the table's values, and write the codes.

    strides, low and high make the random bits, as in `fractions`. `by_level` and `steps` are those of `_fill_table`.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = {at: array_data(context, builder, signature, arguments, at) for at in (0, 3, 6, 7, 8)}
        rows = context.make_array(signature.args[6])(context, builder, arguments[6])
        half, top, low, high = (splat(builder, arguments[at], _ROUNDED) for at in (1, 2, 4, 5))
        following, gaps = (load(builder, data[7], at, _TABLE) for at in (0, LOOK_UP_BYTES))
        step, half_block = ir.Constant(ir.IntType(64), _ROUNDED), ir.Constant(ir.IntType(64), 256)
        whole_block = ir.Constant(ir.IntType(64), 512)
        with _numba_cgutils.for_range_slice(builder, whole_block.type(0), whole_block, step) as (first, _count):
            bits = random_bits(builder, builder.add(load(builder, data[3], first, _ROUND32), low), high)
            below = builder.add(first, builder.and_(first, half_block))
            places = (below, builder.add(below, half_block))
            levels, fractions_ = zip(*(_levels(builder, data[0], at, half, top) for at in places), strict=True)
            found = _codes_at(builder, levels, data[6], builder.extract_value(rows.shape, 0))
            shares = (bits, builder.lshr(bits, constant(_ROUND32, 16)))
            for at, level, fraction, code, share in zip(places, levels, fractions_, found, shares, strict=True):
                gap = builder.zext(look_up(builder, gaps, code), _ROUND16)
                distance = builder.zext(builder.sub(look_up(builder, following, code), level), _ROUND16)
                up = _reached(builder, fraction, builder.trunc(share, _ROUND16), gap, distance)
                store(builder, builder.sub(code, builder.sext(up, _ROUND8)), data[8], at)
        return context.get_dummy_value()

    numbers = (types.int32, types.int32, strides, types.uint32, types.uint32)
    return types.void(a, *numbers, by_level, steps, codes), generate


@inner
def _fill_table(below: Any, lengths: Any, by_level: Any, steps: Any) -> Any:
    """Fill the table's forms for look-ups, from its runs. Say whether it has at most 16 values.

    Args:
        by_level: uint8[g // 16 + 1, 16], the code of the highest value at or below each level.
        steps: uint8[2, 16], by code: the next value (255 behind the last), and its distance (0).
    """
    last: Any = 0
    value = 0
    for level in range(16 * by_level.shape[0]):
        code: Any = 0
        for run in range(below.shape[0]):
            code += min(max(level - i64(below[run]), 0), i64(lengths[run]))
        if code >= LOOK_UP_BYTES:
            return False
        if code > last:
            steps[0, last], steps[1, last] = u8(level), u8(level - value)
            last, value = code, level
        by_level[level // LOOK_UP_BYTES, level % LOOK_UP_BYTES] = u8(code)
    steps[0, last], steps[1, last] = u8(255), u8(0)
    return True


@inner
def _round_block(
    a: Any, half: Any, top: Any, strides: Any, low: Any, high: Any, by_level: Any, steps: Any, codes: Any
) -> None:
    _round_up(a, half, top, strides, low, high, by_level, steps, codes)


@kernel(*ENCODE)
def encode8(
    x: Any, scales: Any, shifts: Any, widths: Any, starts: Any, below: Any, lengths: Any, g: Any, identity: Any,
    group: Any, rotated: Any, rotation: Any, rounding: Any, turns: Any, own: Any, out: Any,
) -> None:  # fmt: skip
    """Encode blocks of 1024 that are rotated."""
    a, spare, u, row = np.empty(1024, i32), np.empty(1024, i32), np.empty(1024, i32), np.empty(1024, f32)
    levels, codes = np.empty(1024, u8), np.empty(1024, u8)
    lanes, strides = np.empty(32, u32), np.empty(512, u32)
    by_level, steps = np.empty((g // LOOK_UP_BYTES + 1, LOOK_UP_BYTES), u8), np.empty((2, LOOK_UP_BYTES), u8)
    looked_up = HAS_LOOK_UP and not identity and _fill_table(below, lengths, by_level, steps)
    fill_strides(strides)
    half, top = i32(g << 15), i32(g << 16)
    first, end = take(turns, own, x.shape[0])
    while first < end:
        for block in range(first, end):
            copy(x[block], row)
            sign_lanes(block_key(rotation, block), lanes)
            _rotate_block(row, scales[block], lanes, spare, a)
            if shifts[block] > 0:
                shift_up(a, half, shifts[block])
            key = block_key(rounding, block)
            if looked_up:
                _round_block(a, half, top, strides, u32(key), u32(key >> u64(32)), by_level, steps, codes)
            else:
                clamp(a, half, top)
                fractions(key, strides, u)
                round_up(a, u, widths, starts, below, lengths, identity, levels, codes)
            to_payload8(codes, group, out[block])
        first, end = take(turns, own, x.shape[0])


@kernel(*DECODE)
def decode8(
    sums: Any, counts: Any, factors: Any, g: Any, rotated: Any, rotation: Any, turns: Any, own: Any, out: Any,
    peaks: Any,
) -> None:  # fmt: skip
    """Decode sums, blocks of 1024 that are rotated."""
    spare, lanes, row = np.empty(1024, i16), np.empty(32, u32), np.empty(1024, f32)
    first, end = take(turns, own, sums.shape[0])
    while first < end:
        for block in range(first, end):
            peaks[block] = peak(sums[block], 1024)
            sign_lanes(block_key(rotation, block), lanes)
            _restore_block(sums[block], i16(counts[block] * g), spare, lanes, factors[block], row)
            copy(row, out[block])
        first, end = take(turns, own, sums.shape[0])


@kernel(*RESTORE)
def dequantize8(
    payloads: Any, factors: Any, g: Any, base: Any, extra_codes: Any, extra_gaps: Any, group: Any, rotated: Any,
    rotation: Any, subtract: Any, turns: Any, own: Any, out: Any,
) -> None:  # fmt: skip
    """Decode payloads alone, blocks of 1024 that are rotated."""
    spare, lanes, row = np.empty(1024, i16), np.empty(32, u32), np.empty(1024, f32)
    codes, values = np.empty(1024, u8), np.empty(1024, u8)
    first, end = take(turns, own, payloads.shape[0])
    while first < end:
        for block in range(first, end):
            to_codes8(payloads[block], group, codes)
            look_up_values(codes, u8(base), extra_codes, extra_gaps, values)
            sign_lanes(block_key(rotation, block), lanes)
            if subtract:
                _take_off_block(values, i16(g), spare, lanes, factors[block], out[block])
            else:
                _restore_block(values, i16(g), spare, lanes, factors[block], row)
                copy(row, out[block])
        first, end = take(turns, own, payloads.shape[0])
