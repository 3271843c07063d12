# SPDX-License-Identifier: Apache-2.0
"""The kernels of thc and uhc in numba: the definition in kernels.py as loops that LLVM turns into SIMD.

A block stays in the first-level cache (4 KiB) from its load to its packed codes, so encoding moves 4.5 bytes per
element through memory and arithmetic is the limit. In operations of 8 x 32 bits, per 8 elements: load and sign 6,
rotation 10, clamp 3, random bits 6, each width of the table's gaps 4, the 15 compares 8 (they take 32 bytes at a
time), besides loads and stores. Tables are never indexed by data: gathers cost more than all compares.

Strides of 16 and more are passes of radix 8 (and one of radix 4 in blocks of 512). The four small strides
de-interleave (pairs in, halves out), which SIMD does well and which leaves the order of coordinates that the wire
has. Decoding starts with sums of at most 255 and runs seven of the ten stages in 16 bits: 255 * 2^7 < 2^15; sums in
lanes of 16 bits take 32 bits throughout.

numba promotes uint32 * uint32 to uint64 and int32 + int32 to int64: every cast below keeps a 32-bit result.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hopsum.codec.backends.jit import filled, inner, kernel, read, types

u8, i16, i32, u32, u64, f32 = np.uint8, np.int16, np.int32, np.uint32, np.uint64, np.float32
_U8, _I32, _I64, _U64, _F32, _BOOL = types.uint8, types.int32, types.int64, types.uint64, types.float32, types.boolean


@inner
def _block_key(key: Any, block: Any) -> Any:
    value = u64(u64(key + u64(block)) + u64(0x9E3779B97F4A7C15))
    value = u64((value ^ (value >> u64(30))) * u64(0xBF58476D1CE4E5B9))
    value = u64((value ^ (value >> u64(27))) * u64(0x94D049BB133111EB))
    return value ^ (value >> u64(31))


@inner
def _lane_bits(lane: Any, low: Any, high: Any) -> Any:
    bits = u32(u32(lane * u32(0x9E3779B9)) + low)
    bits = u32(bits ^ (bits >> u32(16)))
    bits = u32(u32(bits * u32(0x7FEB352D)) ^ high)
    bits = u32(bits ^ (bits >> u32(15)))
    bits = u32(bits * u32(0x846CA68B))
    return u32(bits ^ (bits >> u32(16)))


@inner
def _sign_lanes(key: Any, lanes: Any) -> None:
    low, high = u32(key), u32(key >> u64(32))
    for lane in range(32):
        lanes[lane] = _lane_bits(u32(lane), low, high)


@inner
def _fractions(key: Any, u: Any) -> None:
    low, high = u32(key), u32(key >> u64(32))
    for half in range(u.shape[0] // 512):
        for lane in range(256):
            bits = _lane_bits(u32(256 * half + lane), low, high)
            u[512 * half + lane] = i32(bits & u32(0xFFFF))
            u[512 * half + 256 + lane] = i32(bits >> u32(16))


@inner
def _radix8(a: Any, base: Any, stride: Any) -> None:
    """Do three stages in place: strides 4, 2 and 1 times `stride`."""
    for j in range(base, base + stride):
        a0, a1, a2, a3 = a[j], a[j + stride], a[j + 2 * stride], a[j + 3 * stride]
        a4, a5, a6, a7 = a[j + 4 * stride], a[j + 5 * stride], a[j + 6 * stride], a[j + 7 * stride]
        b0, b1, b2, b3 = a0 + a4, a1 + a5, a2 + a6, a3 + a7
        b4, b5, b6, b7 = a0 - a4, a1 - a5, a2 - a6, a3 - a7
        c0, c1, c2, c3 = b0 + b2, b1 + b3, b0 - b2, b1 - b3
        c4, c5, c6, c7 = b4 + b6, b5 + b7, b4 - b6, b5 - b7
        a[j], a[j + stride], a[j + 2 * stride], a[j + 3 * stride] = c0 + c1, c0 - c1, c2 + c3, c2 - c3
        a[j + 4 * stride], a[j + 5 * stride] = c4 + c5, c4 - c5
        a[j + 6 * stride], a[j + 7 * stride] = c6 + c7, c6 - c7


@inner
def _radix4(a: Any, base: Any, stride: Any) -> None:
    """Do two stages in place: strides 2 and 1 times `stride`."""
    for j in range(base, base + stride):
        a0, a1, a2, a3 = a[j], a[j + stride], a[j + 2 * stride], a[j + 3 * stride]
        b0, b1, b2, b3 = a0 + a2, a1 + a3, a0 - a2, a1 - a3
        a[j], a[j + stride], a[j + 2 * stride], a[j + 3 * stride] = b0 + b1, b0 - b1, b2 + b3, b2 - b3


@inner
def _middle_strides(a: Any) -> None:
    """Do the stages of strides 16 to 64 (blocks of 1024) or 16 and 32 (blocks of 512)."""
    if a.shape[0] == 1024:
        for base in range(0, 1024, 128):
            _radix8(a, base, 16)
    else:
        for base in range(0, 512, 64):
            _radix4(a, base, 16)


@inner
def _split_pairs(a: Any, b: Any) -> None:
    """Do the stage of stride 1, sums to the lower half of b and differences to the upper."""
    half = a.shape[0] // 2
    for i in range(half):
        even, odd = a[2 * i], a[2 * i + 1]
        b[i] = even + odd
        b[i + half] = even - odd


@inner
def _join_halves(a: Any, b: Any) -> None:
    """Do the stage of the largest stride, sums to the even places of b and differences to the odd ones."""
    half = a.shape[0] // 2
    for i in range(half):
        low, high = a[i], a[i + half]
        b[2 * i] = low + high
        b[2 * i + 1] = low - high


@inner
def _load(x: Any, scale: Any, lanes: Any, a: Any) -> None:
    for row in range(a.shape[0] // 32):
        for lane in range(32):
            negative = i32(i32(lanes[lane] << u32(31 - row)) >> i32(31))  # 0 or -1
            value = i32(np.rint(x[32 * row + lane] * scale))
            a[32 * row + lane] = i32(i32(value ^ negative) - negative)


@inner
def _rotate(x: Any, scale: Any, key: Any, lanes: Any, a: Any, b: Any) -> None:
    """Leave H D x in a, in the wire's order."""
    _sign_lanes(key, lanes)
    _load(x, scale, lanes, a)
    _radix8(a, 0, a.shape[0] // 8)
    _middle_strides(a)
    _split_pairs(a, b)
    _split_pairs(b, a)
    _split_pairs(a, b)
    _split_pairs(b, a)


@inner
def _scale(x: Any, scale: Any, half: Any, a: Any) -> None:
    limit = f32(half)
    for j in range(a.shape[0]):
        a[j] = i32(np.rint(min(max(x[j] * scale, -limit), limit)))


@inner
def _shift(a: Any, half: Any, shift: Any) -> None:
    limit = i32(i32(half >> shift) + i32(1))
    for j in range(a.shape[0]):
        a[j] = i32(min(max(a[j], i32(-limit)), limit) << shift)


@inner
def _clamp(a: Any, half: Any, top: Any) -> None:
    for j in range(a.shape[0]):
        a[j] = min(max(i32(a[j] + half), i32(0)), top)


@inner
def _levels(q: Any, u: Any, width: Any, levels: Any) -> None:
    for j in range(q.shape[0]):
        levels[j] = u8(i32(q[j] + i32(u[j] * width)) >> i32(16))


@inner
def _count(levels: Any, target: Any, codes: Any) -> None:
    for j in range(levels.shape[0]):
        codes[j] = u8(codes[j] + u8(levels[j] >= target))


@inner
def _round(q: Any, u: Any, widths: Any, starts: Any, targets: Any, identity: Any, levels: Any, codes: Any) -> None:
    if identity:
        _levels(q, u, i32(1), codes)
        return
    codes[:] = u8(0)
    for group in range(widths.shape[0]):
        _levels(q, u, widths[group], levels)
        for index in range(starts[group], starts[group + 1]):
            _count(levels, targets[index], codes)


@inner
def _pack8(codes: Any, out: Any) -> None:
    for half in range(2):
        for j in range(256):
            out[256 * half + j] = u8((codes[512 * half + j] << u8(4)) | codes[512 * half + 256 + j])


@inner
def _unpack8(payload: Any, codes: Any) -> None:
    for half in range(2):
        for j in range(256):
            codes[512 * half + j] = payload[256 * half + j] >> u8(4)
            codes[512 * half + 256 + j] = payload[256 * half + j] & u8(15)


@inner
def _pack16(codes: Any, out: Any) -> None:
    for j in range(128):
        out[2 * j] = u8((codes[j] << u8(4)) | codes[j + 128])
        out[2 * j + 1] = u8((codes[j + 256] << u8(4)) | codes[j + 384])


@inner
def _unpack16(payload: Any, codes: Any) -> None:
    for j in range(128):
        first, second = payload[2 * j], payload[2 * j + 1]
        codes[j], codes[j + 128] = first >> u8(4), first & u8(15)
        codes[j + 256], codes[j + 384] = second >> u8(4), second & u8(15)


@inner
def _to_payload(codes: Any, packed: Any, out: Any) -> None:
    if codes.shape[0] == 1024:
        if packed:
            _pack8(codes, out)
        else:
            out[:] = codes
    elif packed:
        _pack16(codes, out)
    else:
        for j in range(512):
            out[2 * j] = u8(0)
            out[2 * j + 1] = codes[j]


@inner
def _to_codes(payload: Any, packed: Any, codes: Any) -> None:
    if codes.shape[0] == 1024:
        if packed:
            _unpack8(payload, codes)
        else:
            codes[:] = payload
    elif packed:
        _unpack16(payload, codes)
    else:
        for j in range(512):
            codes[j] = payload[2 * j + 1]


@inner
def _look_up(codes: Any, table: Any, values: Any) -> None:
    values[:] = u8(0)
    for code in range(1, table.shape[0]):
        gap = u8(table[code] - table[code - 1])
        for j in range(codes.shape[0]):
            values[j] = u8(values[j] + (gap if codes[j] >= u8(code) else u8(0)))


@inner
def _encode(
    x: Any,
    scales: Any,
    shifts: Any,
    widths: Any,
    starts: Any,
    targets: Any,
    g: Any,
    packed: Any,
    rotated: Any,
    rotation: Any,
    rounding: Any,
    out: Any,
    elements: Any,
) -> None:
    a, b, u = np.empty(elements, i32), np.empty(elements, i32), np.empty(elements, i32)
    levels, codes, lanes = np.empty(elements, u8), np.empty(elements, u8), np.empty(32, u32)
    half, top = i32(g << 15), i32(g << 16)
    identity = g == targets.shape[0]
    for block in range(x.shape[0]):
        if rotated:
            _rotate(x[block], scales[block], _block_key(rotation, block), lanes, a, b)
            if shifts[block] > 0:
                _shift(a, half, shifts[block])
        else:
            _scale(x[block], scales[block], half, a)
        _clamp(a, half, top)
        _fractions(_block_key(rounding, block), u)
        _round(a, u, widths, starts, targets, identity, levels, codes)
        _to_payload(codes, packed, out[block])


_ENCODE = (
    read(_F32, 2), read(_F32, 1), read(_I32, 1), read(_I32, 1), read(_I64, 1), read(_U8, 1), _I64, _BOOL, _BOOL,
    _U64, _U64, filled(_U8),
)  # fmt: skip


@kernel(*_ENCODE)
def encode8(
    x: Any, scales: Any, shifts: Any, widths: Any, starts: Any, targets: Any, g: Any, packed: Any, rotated: Any,
    rotation: Any, rounding: Any, out: Any,
) -> None:  # fmt: skip
    """Encode blocks of 1024."""
    _encode(x, scales, shifts, widths, starts, targets, g, packed, rotated, rotation, rounding, out, 1024)


@kernel(*_ENCODE)
def encode16(
    x: Any, scales: Any, shifts: Any, widths: Any, starts: Any, targets: Any, g: Any, packed: Any, rotated: Any,
    rotation: Any, rounding: Any, out: Any,
) -> None:  # fmt: skip
    """Encode blocks of 512."""
    _encode(x, scales, shifts, widths, starts, targets, g, packed, rotated, rotation, rounding, out, 512)


@inner
def _rotate_back(a: Any, b: Any, wide: Any, lanes: Any, key: Any) -> None:
    """Leave H^T a in wide, of at least 32 bits, and the signs in lanes; a and b have a's type."""
    _join_halves(a, b)
    _join_halves(b, a)
    _join_halves(a, b)
    _join_halves(b, a)
    _middle_strides(a)
    wide[:] = a
    _radix8(wide, 0, wide.shape[0] // 8)
    _sign_lanes(key, lanes)


@inner
def _store(a: Any, factor: Any, lanes: Any, out: Any) -> None:
    for row in range(a.shape[0] // 32):
        for lane in range(32):
            negative = i32(i32(lanes[lane] << u32(31 - row)) >> i32(31))
            value = i32(i32(a[32 * row + lane] ^ negative) - negative)
            out[32 * row + lane] = f32(value) * factor


@inner
def _take_off(a: Any, factor: Any, lanes: Any, out: Any) -> None:
    for row in range(a.shape[0] // 32):
        for lane in range(32):
            negative = i32(i32(lanes[lane] << u32(31 - row)) >> i32(31))
            value = i32(i32(a[32 * row + lane] ^ negative) - negative)
            out[32 * row + lane] -= f32(f32(value) * factor)


@inner
def _centre(values: Any, middle: Any, a: Any) -> None:
    for j in range(a.shape[0]):
        a[j] = i16(i16(i16(values[j]) << i16(1)) - middle)


@inner
def _centre16(sums: Any, middle: Any, a: Any) -> None:
    for j in range(512):
        value = i32(i32(i32(sums[2 * j]) << i32(8)) | i32(sums[2 * j + 1]))
        a[j] = i32(i32(value << i32(1)) - middle)


@inner
def _restore(
    payloads: Any, factors: Any, table: Any, packed: Any, rotated: Any, rotation: Any, subtract: Any, out: Any,
    elements: Any,
) -> None:  # fmt: skip
    a, b, wide = np.empty(elements, i16), np.empty(elements, i16), np.empty(elements, i32)
    codes, values, lanes = np.empty(elements, u8), np.empty(elements, u8), np.zeros(32, u32)
    g = i16(table[table.shape[0] - 1])
    identity = i32(g) == i32(table.shape[0] - 1)
    for block in range(payloads.shape[0]):
        _to_codes(payloads[block], packed, codes)
        if identity:
            _centre(codes, g, a)
        else:
            _look_up(codes, table, values)
            _centre(values, g, a)
        if rotated:
            _rotate_back(a, b, wide, lanes, _block_key(rotation, block))
        else:
            wide[:] = a
        if subtract:
            _take_off(wide, factors[block], lanes, out[block])
        else:
            _store(wide, factors[block], lanes, out[block])


_RESTORE = (read(_U8, 2), read(_F32, 1), read(_U8, 1), _BOOL, _BOOL, _U64, _BOOL, filled(_F32))


@kernel(*_RESTORE)
def restore8(
    payloads: Any, factors: Any, table: Any, packed: Any, rotated: Any, rotation: Any, subtract: Any, out: Any
) -> None:
    """Decode payloads alone, blocks of 1024."""
    _restore(payloads, factors, table, packed, rotated, rotation, subtract, out, 1024)


@kernel(*_RESTORE)
def restore16(
    payloads: Any, factors: Any, table: Any, packed: Any, rotated: Any, rotation: Any, subtract: Any, out: Any
) -> None:
    """Decode payloads alone, blocks of 512."""
    _restore(payloads, factors, table, packed, rotated, rotation, subtract, out, 512)


_DECODE = (read(_U8, 2), read(_I32, 1), read(_F32, 1), _I64, _BOOL, _U64, filled(_F32))


@kernel(*_DECODE)
def decode8(sums: Any, counts: Any, factors: Any, g: Any, rotated: Any, rotation: Any, out: Any) -> None:
    """Decode sums, blocks of 1024."""
    a, b, wide = np.empty(1024, i16), np.empty(1024, i16), np.empty(1024, i32)
    lanes = np.zeros(32, u32)
    for block in range(sums.shape[0]):
        _centre(sums[block], i16(counts[block] * g), a)
        if rotated:
            _rotate_back(a, b, wide, lanes, _block_key(rotation, block))
        else:
            wide[:] = a
        _store(wide, factors[block], lanes, out[block])


@kernel(*_DECODE)
def decode16(sums: Any, counts: Any, factors: Any, g: Any, rotated: Any, rotation: Any, out: Any) -> None:
    """Decode sums, blocks of 512."""
    a, b, wide = np.empty(512, i32), np.empty(512, i32), np.empty(512, i32)
    lanes = np.zeros(32, u32)
    for block in range(sums.shape[0]):
        _centre16(sums[block], i32(counts[block] * g), a)
        if rotated:
            _rotate_back(a, b, wide, lanes, _block_key(rotation, block))
        else:
            wide[:] = a
        _store(wide, factors[block], lanes, out[block])
