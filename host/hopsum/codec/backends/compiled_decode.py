# SPDX-License-Identifier: Apache-2.0
"""The decoding kernels of thc and uhc in numba, of sums and of payloads alone.

Sums are at most 255 in lanes of 8 bits, and seven of the ten stages run in 16 bits: 255 * 2^7 < 2^15. So do those of
payloads alone, whose values are at most 255 in any lanes. Sums in lanes of 16 bits take 32 bits throughout.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hopsum.codec.backends.compiled_parts import (
    TURNS,
    block_key,
    by_group,
    copy,
    join_halves,
    middle_strides,
    radix8,
    sign_lanes,
    take,
)
from hopsum.codec.backends.jit import filled, inner, kernel, read, types

u8, i16, i32, u32, f32 = np.uint8, np.int16, np.int32, np.uint32, np.float32
_U8, _I32, _I64, _U64, _F32, _BOOL = types.uint8, types.int32, types.int64, types.uint64, types.float32, types.boolean


@inner
def _unpack8(payload: Any, group: Any, codes: Any) -> None:
    words = group // 2
    for first in range(0, 1024, group):
        for j in range(words):
            codes[first + j] = payload[first // 2 + j] >> u8(4)
            codes[first + words + j] = payload[first // 2 + j] & u8(15)


@inner
def _unpack16(payload: Any, group: Any, codes: Any) -> None:
    words = group // 4
    for first in range(0, 512, group):
        for j in range(words):
            high, low, code = payload[first // 2 + 2 * j], payload[first // 2 + 2 * j + 1], first + j
            codes[code], codes[code + words] = high >> u8(4), high & u8(15)
            codes[code + 2 * words], codes[code + 3 * words] = low >> u8(4), low & u8(15)


@inner
def _unpack_lanes16(payload: Any, codes: Any) -> None:
    for j in range(512):
        codes[j] = payload[2 * j + 1]


to_codes8, _to_codes16 = by_group(_unpack8, copy), by_group(_unpack16, _unpack_lanes16)
"""Unpack the codes of lanes of 8 and 16 bits: (payload, group, codes)."""


@inner
def look_up(codes: Any, base: Any, extra_codes: Any, extra_gaps: Any, values: Any) -> None:
    """Take base times the code, and what the gaps below it have more or less (modulo 256), two gaps at a time."""
    for j in range(codes.shape[0]):
        values[j] = u8(codes[j] * base)
    for first in range(0, extra_codes.shape[0], 2):
        code0, gap0, code1, gap1 = extra_codes[first], extra_gaps[first], extra_codes[first + 1], extra_gaps[first + 1]
        for j in range(codes.shape[0]):
            more = u8((gap0 if codes[j] >= code0 else u8(0)) + (gap1 if codes[j] >= code1 else u8(0)))
            values[j] = u8(values[j] + more)


@inner
def _rotate_back(a: Any, b: Any, wide: Any, lanes: Any, key: Any) -> None:
    """Leave H^T a in wide, of at least 32 bits, and the signs in lanes. A and b have a's type."""
    join_halves(a, b)
    join_halves(b, a)
    join_halves(a, b)
    join_halves(b, a)
    middle_strides(a)
    copy(a, wide)
    radix8(wide, 0, wide.shape[0] // 8)
    sign_lanes(key, lanes)


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
def peak(sums: Any, elements: Any) -> Any:
    """Return the largest of so many sums."""
    most = u8(0)
    for j in range(elements):
        most = max(most, sums[j])
    return i32(most)


@inner
def _peak16(sums: Any) -> Any:
    peak = i32(0)
    for j in range(512):
        peak = max(peak, i32(i32(i32(sums[2 * j]) << i32(8)) | i32(sums[2 * j + 1])))
    return peak


@inner
def _centre16(sums: Any, middle: Any, a: Any) -> None:
    for j in range(512):
        value = i32(i32(i32(sums[2 * j]) << i32(8)) | i32(sums[2 * j + 1]))
        a[j] = i32(i32(value << i32(1)) - middle)


RESTORE = (
    read(_U8, 2), read(_F32, 1), _I64, _I64, read(_U8, 1), read(_U8, 1), _I64, _BOOL, _U64, _BOOL, TURNS, _I64,
    filled(_F32),
)  # fmt: skip


def _make_dequantize(elements: int) -> Any:
    """Return the kernel that decodes payloads alone, in blocks of so many elements."""

    @kernel(*RESTORE)
    def dequantize(
        payloads: Any, factors: Any, g: Any, base: Any, extra_codes: Any, extra_gaps: Any, group: Any, rotated: Any,
        rotation: Any, subtract: Any, turns: Any, own: Any, out: Any,
    ) -> None:  # fmt: skip
        a, b, wide = np.empty(elements, i16), np.empty(elements, i16), np.empty(elements, i32)
        codes, values, lanes = np.empty(elements, u8), np.empty(elements, u8), np.zeros(32, u32)
        first, end = take(turns, own, payloads.shape[0])
        while first < end:
            for block in range(first, end):
                if elements == 1024:  # a constant: numba compiles one of the three
                    to_codes8(payloads[block], group, codes)
                elif elements == 512:
                    _to_codes16(payloads[block], group, codes)
                else:
                    copy(payloads[block], codes)
                look_up(codes, u8(base), extra_codes, extra_gaps, values)
                _centre(values, i16(g), a)
                if rotated:
                    _rotate_back(a, b, wide, lanes, block_key(rotation, block))
                else:
                    copy(a, wide)
                if subtract:
                    _take_off(wide, factors[block], lanes, out[block])
                else:
                    _store(wide, factors[block], lanes, out[block])
            first, end = take(turns, own, payloads.shape[0])

    return dequantize


dequantize8, dequantize16, dequantize32 = (_make_dequantize(elements) for elements in (1024, 512, 256))


DECODE = (read(_U8, 2), read(_I32, 1), read(_F32, 1), _I64, _BOOL, _U64, TURNS, _I64, filled(_F32), filled(_I32, 1))


def _make_decode(elements: int) -> Any:
    """Return the kernel that decodes sums of a byte, in blocks of so many elements."""

    @kernel(*DECODE)
    def decode(
        sums: Any, counts: Any, factors: Any, g: Any, rotated: Any, rotation: Any, turns: Any, own: Any, out: Any,
        peaks: Any,
    ) -> None:  # fmt: skip
        a, b, wide = np.empty(elements, i16), np.empty(elements, i16), np.empty(elements, i32)
        lanes = np.zeros(32, u32)
        first, end = take(turns, own, sums.shape[0])
        while first < end:
            for block in range(first, end):
                peaks[block] = peak(sums[block], elements)
                _centre(sums[block], i16(counts[block] * g), a)
                if rotated:
                    _rotate_back(a, b, wide, lanes, block_key(rotation, block))
                else:
                    copy(a, wide)
                _store(wide, factors[block], lanes, out[block])
            first, end = take(turns, own, sums.shape[0])

    return decode


decode8, decode32 = _make_decode(1024), _make_decode(256)


@kernel(*DECODE)
def decode16(
    sums: Any, counts: Any, factors: Any, g: Any, rotated: Any, rotation: Any, turns: Any, own: Any, out: Any,
    peaks: Any,
) -> None:  # fmt: skip
    """Decode sums, blocks of 512."""
    a, b, wide = np.empty(512, i32), np.empty(512, i32), np.empty(512, i32)
    lanes = np.zeros(32, u32)
    first, end = take(turns, own, sums.shape[0])
    while first < end:
        for block in range(first, end):
            peaks[block] = _peak16(sums[block])
            _centre16(sums[block], i32(counts[block] * g), a)
            if rotated:
                _rotate_back(a, b, wide, lanes, block_key(rotation, block))
            else:
                copy(a, wide)
            _store(wide, factors[block], lanes, out[block])
        first, end = take(turns, own, sums.shape[0])
