# SPDX-License-Identifier: Apache-2.0
"""The kernels of thc with a subtractive dither, compiled by numba: the definition in kernels.py as vector code.

Rotations, packing and look-ups are those of thc_kernels. numba finds its cache of these kernels stale by this file
alone: a change of a part there needs a change of this line. Parts: version 1.

The 4 bits of a coordinate that all ranks draw are an index for a byte look-up: the sum of the known dithers of all
contributors is a table of 16 values, made once for every bitmap. A requantised result takes one more look-up, of the
value of its code. All of it is integers of 16 bits: |w| is at most 256, so that seven stages stay below 2^15.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numba import extending
from numpy.typing import NDArray

from hopsum.codec.backends.jit import f32, filled, i16, i32, i64, inner, kernel, read, scratch, u8, u32, u64
from hopsum.codec.backends.thc_kernels import (
    TURNS,
    block_key,
    claim_blocks,
    clamp,
    copy,
    fill_strides,
    fractions,
    last_stages,
    middle_stages,
    mix_bits,
    rotate,
    shift_up,
    sign_lanes,
    step_loop,
    subtract_row,
    to_codes8,
    to_payload8,
)
from hopsum.codec.backends.vector_code import (
    LOOK_UP_BYTES,
    Builder,
    Context,
    Kind,
    Made,
    Value,
    array_data,
    constant,
    hadamard,
    ir,
    load,
    look_up,
    splat,
    store,
    transpose,
    vector,
)
from hopsum.codec.hashing import LANE_STRIDE
from hopsum.codec.interface import Bitmaps, Bytes, Floats, Ints
from hopsum_base.record_kernels import types

_U8, _I8, _I16, _I32, _I64 = types.uint8, types.int8, types.int16, types.int32, types.int64
_U64, _F32, _BOOL = types.uint64, types.float32, types.boolean
_ELEMENTS = 1024
_AT_ONCE = 32
"""Indices that are looked up at a time."""
_INDICES, _WORDS = vector(ir.IntType(8), _AT_ONCE), vector(ir.IntType(16), _AT_ONCE)
_TABLE = vector(ir.IntType(8), LOOK_UP_BYTES)


@inner
def _shared_bits(key: int, shared: Bytes) -> None:
    """Fill shared, uint8[1024], with the 4 bits of each coordinate that all ranks draw."""
    low, high = u32(key), u32(key >> u64(32))
    bits = scratch(128, u32)
    for lane in range(128):
        bits[lane] = mix_bits(u32(u32(u32(lane) * u32(LANE_STRIDE)) + low), high)
    for nibble in range(8):
        here = shared[128 * nibble : 128 * nibble + 128]
        for lane in range(128):
            here[lane] = u8((bits[lane] >> u32(4 * nibble)) & u32(15))


@inner
def _pack(codes: Bytes, bits: int, group: int, out: Bytes) -> None:
    """Pack the codes of a block, see `hopsum_wire.payload`; group 0 stands for lanes."""
    if bits == 2:
        first, second, third, last = codes[:256], codes[256:512], codes[512:768], codes[768:1024]
        for j in range(256):
            out[j] = u8(u8(first[j] << u8(6)) | u8(second[j] << u8(4)) | u8(third[j] << u8(2)) | last[j])
    elif bits == 3:
        first, second, last, rest = codes[:256], codes[256:512], codes[768:1024], out[256:384]
        for j in range(256):
            out[j] = u8(first[j] | u8(second[j] << u8(3)) | u8(last[j] << u8(6)))
        for j in range(128):
            tops = u8(u8((last[j] & u8(4)) << u8(4)) | u8((last[j + 128] & u8(4)) << u8(5)))
            rest[j] = u8(codes[512 + j] | u8(codes[640 + j] << u8(3)) | tops)
    else:
        to_payload8(codes, group, out)


@inner
def _unpack(payload: Bytes, bits: int, group: int, codes: Bytes) -> None:
    """Undo `_pack`."""
    if bits == 2:
        first, second, third, last = codes[:256], codes[256:512], codes[512:768], codes[768:1024]
        for j in range(256):
            byte = payload[j]
            first[j] = u8(byte >> u8(6))
            second[j] = u8(u8(byte >> u8(4)) & u8(3))
            third[j] = u8(u8(byte >> u8(2)) & u8(3))
            last[j] = u8(byte & u8(3))
    elif bits == 3:
        first, second, last, rest = codes[:256], codes[256:512], codes[768:1024], payload[256:384]
        for j in range(256):
            byte = payload[j]
            first[j] = u8(byte & u8(7))
            second[j] = u8(u8(byte >> u8(3)) & u8(7))
            last[j] = u8(byte >> u8(6))
        third, fourth, high = codes[512:640], codes[640:768], codes[896:1024]
        for j in range(128):
            byte = rest[j]
            third[j] = u8(byte & u8(7))
            fourth[j] = u8(u8(byte >> u8(3)) & u8(7))
            last[j] = u8(last[j] | u8(u8(byte >> u8(4)) & u8(4)))
            high[j] = u8(high[j] | u8(u8(byte >> u8(5)) & u8(4)))
    else:
        to_codes8(payload, group, codes)


@extending.intrinsic  # type: ignore[untyped-decorator]
def _look_up_words(_: Context, indices: Kind, table: Kind, out: Kind) -> Made:
    """Fill out, int16[1024], with the entries of a table at indices below 16.

    The table is uint8[32]: the low bytes of 16 entries, then their high bytes.
    """

    def generate(context: Context, builder: Builder, signature: Kind, arguments: Sequence[Value]) -> Value:
        data = [array_data(context, builder, signature, arguments, at) for at in range(3)]
        low, high = (load(builder, data[1], at, _TABLE) for at in (0, LOOK_UP_BYTES))
        with step_loop(builder, _ELEMENTS, _AT_ONCE) as (first, _count):
            places = load(builder, data[0], first, _INDICES)
            lower = builder.zext(look_up(builder, low, places), _WORDS)
            upper = builder.zext(look_up(builder, high, places), _WORDS)
            store(builder, builder.or_(lower, builder.shl(upper, constant(_WORDS, 8))), data[2], first)
        return context.get_dummy_value()

    return types.void(indices, table, out), generate


@extending.intrinsic  # type: ignore[untyped-decorator]
def _rotate_back(_: Context, w: Kind, spare: Kind, lanes: Kind, factor: Kind, out: Kind) -> Made:
    """Rotate a block of w, int16[1024], back into out, float32[1024]; spare: int16[1024]."""

    def generate(context: Context, builder: Builder, signature: Kind, arguments: Sequence[Value]) -> Value:
        data = {at: array_data(context, builder, signature, arguments, at) for at in (0, 1, 2, 4)}
        columns, kind = _ELEMENTS // 16, vector(ir.IntType(16), 16)
        with step_loop(builder, columns, 16) as (column, _count):
            # 16 rows of the wire's order, as thc_kernels has them.
            places = [builder.add(column, column.type(columns * row)) for row in range(16)]
            done = transpose(builder, hadamard(builder, [load(builder, data[0], at, kind) for at in places]))
            target = builder.mul(column, column.type(16))
            for place, each in enumerate(done):
                store(builder, each, data[1], builder.add(target, target.type(16 * place)))
        middle_stages(builder, data[1], kind, _ELEMENTS)
        factors = splat(builder, arguments[3], 8)
        last_stages(builder, data[1], data[2], factors, data[4], 16, _ELEMENTS)
        return context.get_dummy_value()

    return types.void(w, spare, lanes, types.float32, out), generate


@inner
def _split(value: int, code: int, table: Bytes) -> None:
    """Put an entry of 16 bits into the table of `_look_up_words`."""
    bits = u32(i32(value))
    table[code], table[LOOK_UP_BYTES + code] = u8(bits & u32(255)), u8((bits >> u32(8)) & u32(255))


_ENCODE = (
    read(_F32, 2), read(_F32, 1), read(_I32, 1), _I64, _I64, _I64, _U64, _U64, _U64, _I64, TURNS, _I64, filled(_U8),
)  # fmt: skip


@kernel(*_ENCODE)
def dither_encode(
    x: Floats, scales: Floats, shifts: Ints, granularity: int, bits: int, group: int, rotation: int, rounding: int,
    dither: int, shift: int, turns: NDArray[np.int64], own: int, out: Bytes,
) -> None:  # fmt: skip
    """Fill out with payloads of blocks of 1024 elements, rounded with a dither whose upper 4 bits all ranks know.

    The table is the identity. `turns` and `own` are those of `claim_blocks`.
    """
    a, spare, u = scratch(_ELEMENTS, i32), scratch(_ELEMENTS, i32), scratch(_ELEMENTS, i32)
    row, codes, shared = scratch(_ELEMENTS, f32), scratch(_ELEMENTS, u8), scratch(_ELEMENTS, u8)
    lanes, strides = scratch(32, u32), scratch(_ELEMENTS, u32)
    fill_strides(strides)
    half, top, ahead = i32(granularity << 15), i32(granularity << 16), i32(shift)
    first, end = claim_blocks(turns, own, x.shape[0])
    while first < end:
        for block in range(first, end):
            copy(x[block], row)
            sign_lanes(block_key(rotation, block), lanes)
            rotate(row, scales[block], lanes, spare, a, 1024)
            if shifts[block] > 0:
                shift_up(a, half, shifts[block])
            clamp(a, half, top)
            fractions(block_key(rounding, block), strides, u)
            _shared_bits(block_key(dither, block), shared)
            for j in range(_ELEMENTS):
                # 12 bits of its own below the 4 bits that all ranks know.
                known = i32(i32(i32(shared[j]) + ahead) & i32(15))
                dithered = i32(a[j] + i32(i32(u[j] & i32(0xFFF)) | i32(known << i32(12))))
                codes[j] = u8(dithered >> i32(16))
            _pack(codes, bits, group, out[block])
        first, end = claim_blocks(turns, own, x.shape[0])


_DEQUANTIZE = (
    read(_U8, 2), read(_F32, 1), read(_I8, 1), _I64, _I64, _I64, _I64, _U64, _U64, _BOOL, TURNS, _I64, filled(_F32),
)  # fmt: skip


@kernel(*_DEQUANTIZE)
def dither_dequantize(
    payloads: Bytes, factors: Floats, known: NDArray[np.int8], unit: int, granularity: int, bits: int, group: int,
    rotation: int, dither: int, subtract: bool, turns: NDArray[np.int64], own: int, out: Floats,
) -> None:  # fmt: skip
    """Fill out with the decoded payloads of one rank, or subtract these from it.

    `known`, int8[16], is the rank's row of `Dither.own`. `turns` and `own` are those of `claim_blocks`.
    """
    codes, shared, lanes = scratch(_ELEMENTS, u8), scratch(_ELEMENTS, u8), scratch(32, u32)
    w, dithers, spare = scratch(_ELEMENTS, i16), scratch(_ELEMENTS, i16), scratch(_ELEMENTS, i16)
    row = scratch(_ELEMENTS, f32)
    values, offsets = scratch(32, u8), scratch(32, u8)
    for code in range(LOOK_UP_BYTES):
        _split(unit * code - unit * granularity // 2, code, values)
        _split(known[code], code, offsets)
    first, end = claim_blocks(turns, own, payloads.shape[0])
    while first < end:
        for block in range(first, end):
            _unpack(payloads[block], bits, group, codes)
            _shared_bits(block_key(dither, block), shared)
            _look_up_words(codes, values, w)
            _look_up_words(shared, offsets, dithers)
            for j in range(_ELEMENTS):
                w[j] -= dithers[j]
            sign_lanes(block_key(rotation, block), lanes)
            _rotate_back(w, spare, lanes, factors[block], row)
            if subtract:
                subtract_row(row, out[block])
            else:
                copy(row, out[block])
        first, end = claim_blocks(turns, own, payloads.shape[0])


@inner
def _known_sum(contributors: int, known: NDArray[np.int8], offsets: Bytes) -> int:
    """Fill the table of the sums of contributors' known dithers, and return the number of contributors."""
    count = i64(0)
    for rank in range(known.shape[0]):
        count += i64((contributors >> u64(rank)) & u64(1))
    for place in range(LOOK_UP_BYTES):
        total = i64(0)
        for rank in range(known.shape[0]):
            total += i64(known[rank, place]) * i64((contributors >> u64(rank)) & u64(1))
        _split(total, place, offsets)
    return count


_DECODE = (
    read(_U8, 2), read(_U64, 1), read(_F32, 1), read(_I8, 2), read(_I32, 2), read(_I16, 2), _I64, _I64, _I64, _I64,
    _U64, _U64, TURNS, _I64, filled(_F32), filled(_I32, 1),
)  # fmt: skip


@kernel(*_DECODE)
def dither_decode(
    results: Bytes, contributors: Bitmaps, factors: Floats, known: NDArray[np.int8], bounds: Ints,
    values: NDArray[np.int16], unit: int, granularity: int, bits: int, group: int, rotation: int, dither: int,
    turns: NDArray[np.int64], own: int, out: Floats, peaks: Ints,
) -> None:  # fmt: skip
    """Fill out with decoded results of blocks of 1024 elements, and peaks with the largest whole sum of each block.

    Results are whole sums where `bounds` has one row or none, else codes of `bits` bits, whose peaks are 0. `turns` and
    `own` are those of `claim_blocks`.

    Args:
        known: int8[n, 16], `Dither.own`.
        bounds: int32[n + 1, classes - 1], and values: int16[(n + 1) classes, 16], see `ResultValues`.
    """
    codes, shared, lanes = scratch(_ELEMENTS, u8), scratch(_ELEMENTS, u8), scratch(32, u32)
    w, dithers, spare = scratch(_ELEMENTS, i16), scratch(_ELEMENTS, i16), scratch(_ELEMENTS, i16)
    row = scratch(_ELEMENTS, f32)
    looked_up, offsets = scratch(32, u8), scratch(32, u8)
    requantized, classes = bounds.shape[0] > 1, bounds.shape[1] + 1
    bitmap, count, middle = u64(0), i64(0), i32((1 << bits) - 1)
    _known_sum(bitmap, known, offsets)
    first, end = claim_blocks(turns, own, results.shape[0])
    while first < end:
        for block in range(first, end):
            if contributors[block] != bitmap:
                bitmap = contributors[block]
                count = _known_sum(bitmap, known, offsets)
            _shared_bits(block_key(dither, block), shared)
            _look_up_words(shared, offsets, dithers)
            peaks[block] = i32(0)
            if requantized:
                _unpack(results[block], bits, group, codes)
                energy = i32(0)
                for j in range(_ELEMENTS):
                    distance = i32(2 * i32(codes[j])) - middle
                    energy += i32(distance * distance)
                number = 0
                for bound in range(classes - 1):
                    number += 1 if bounds[count, bound] > energy else 0
                for code in range(LOOK_UP_BYTES):
                    _split(values[count * classes + number, code], code, looked_up)
                _look_up_words(codes, looked_up, w)
                for j in range(_ELEMENTS):
                    w[j] -= dithers[j]
            else:
                sums, most, centre = results[block], u8(0), i16(count * (unit * granularity // 2))
                for j in range(_ELEMENTS):
                    most = max(most, sums[j])
                    w[j] = i16(i16(i16(sums[j]) * i16(unit)) - centre) - dithers[j]
                peaks[block] = i32(most)
            sign_lanes(block_key(rotation, block), lanes)
            _rotate_back(w, spare, lanes, factors[block], row)
            copy(row, out[block])
        first, end = claim_blocks(turns, own, results.shape[0])
