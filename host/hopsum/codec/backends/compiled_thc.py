# SPDX-License-Identifier: Apache-2.0
"""The encoding kernels of thc and uhc in numba: the definition in kernels.py as loops that LLVM turns into SIMD.

A block stays in the first-level cache (4 KiB) from its load to its packed codes, so encoding moves 4.5 bytes per
element through memory and arithmetic is the limit. In operations of 8 x 32 bits, per 8 elements: load and sign 6,
rotation 10, clamp 3, random bits 5, each width of the table's gaps 4, a run of its values 1 (it takes 32 bytes at a
time), besides loads and stores. Tables are never indexed by data: gathers cost more.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hopsum.codec.backends.compiled_parts import (
    TURNS,
    block_key,
    by_group,
    copy,
    middle_strides,
    mixed,
    radix8,
    sign_lanes,
    split_pairs,
    take,
)
from hopsum.codec.backends.jit import filled, inner, kernel, read, types
from hopsum.codec.hashing import LANE_STRIDE

u8, i32, u32, u64, f32 = np.uint8, np.int32, np.uint32, np.uint64, np.float32
_U8, _I32, _I64, _U64, _F32, _BOOL = types.uint8, types.int32, types.int64, types.uint64, types.float32, types.boolean


@inner
def fill_strides(strides: Any) -> None:
    """Fill what a lane's number adds to its random bits: multiplying anew for every block costs a third of them."""
    for lane in range(strides.shape[0]):
        strides[lane] = u32(u32(lane) * u32(LANE_STRIDE))


@inner
def fractions(key: Any, strides: Any, u: Any) -> None:
    """Fill u, int32[B], with 16 random bits for each element."""
    low, high = u32(key), u32(key >> u64(32))
    width = 256 if u.shape[0] >= 512 else 128
    for half in range(u.shape[0] // (2 * width)):
        for lane in range(width):
            bits = mixed(u32(strides[width * half + lane] + low), high)
            u[2 * width * half + lane] = i32(bits & u32(0xFFFF))
            u[2 * width * half + width + lane] = i32(bits >> u32(16))


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
    sign_lanes(key, lanes)
    _load(x, scale, lanes, a)
    radix8(a, 0, a.shape[0] // 8)
    middle_strides(a)
    split_pairs(a, b)
    split_pairs(b, a)
    split_pairs(a, b)
    split_pairs(b, a)


@inner
def _scale(x: Any, scale: Any, half: Any, a: Any) -> None:
    limit = f32(half)
    for j in range(a.shape[0]):
        a[j] = i32(np.rint(min(max(x[j] * scale, -limit), limit)))


@inner
def shift_up(a: Any, half: Any, shift: Any) -> None:
    """Multiply coordinates with 2^shift, clamped before so that they cannot overflow."""
    limit = i32(i32(half >> shift) + i32(1))
    for j in range(a.shape[0]):
        a[j] = i32(min(max(a[j], i32(-limit)), limit) << shift)


@inner
def clamp(a: Any, half: Any, top: Any) -> None:
    """Move coordinates from -half .. half to 0 .. top."""
    for j in range(a.shape[0]):
        a[j] = min(max(i32(a[j] + half), i32(0)), top)


@inner
def _levels(q: Any, u: Any, width: Any, levels: Any) -> None:
    for j in range(q.shape[0]):
        levels[j] = u8(i32(q[j] + i32(u[j] * width)) >> i32(16))


@inner
def _count(levels: Any, below: Any, lengths: Any, first: Any, codes: Any) -> None:
    """Add how many values of two runs each level has reached."""
    below0, length0, below1, length1 = below[first], lengths[first], below[first + 1], lengths[first + 1]
    for j in range(levels.shape[0]):
        level = levels[j]
        reached0 = min(u8(max(level, below0) - below0), length0)
        reached1 = min(u8(max(level, below1) - below1), length1)
        codes[j] = u8(codes[j] + u8(reached0 + reached1))


@inner
def round_up(
    q: Any, u: Any, widths: Any, starts: Any, below: Any, lengths: Any, identity: Any, levels: Any, codes: Any
) -> None:
    """Round coordinates up or down to the table's values, and leave the codes."""
    if identity:
        _levels(q, u, i32(1), codes)
        return
    codes[:] = u8(0)
    for group in range(widths.shape[0]):
        _levels(q, u, widths[group], levels)
        for first in range(starts[group], starts[group + 1], 2):
            _count(levels, below, lengths, first, codes)


@inner
def _pack8(codes: Any, group: Any, out: Any) -> None:
    words = group // 2
    for first in range(0, 1024, group):
        for j in range(words):
            out[first // 2 + j] = u8((codes[first + j] << u8(4)) | codes[first + words + j])


@inner
def _pack16(codes: Any, group: Any, out: Any) -> None:
    words = group // 4
    for first in range(0, 512, group):
        for j in range(words):
            byte, code = first // 2 + 2 * j, first + j
            out[byte] = u8((codes[code] << u8(4)) | codes[code + words])
            out[byte + 1] = u8((codes[code + 2 * words] << u8(4)) | codes[code + 3 * words])


@inner
def _pack_lanes16(codes: Any, out: Any) -> None:
    for j in range(512):
        out[2 * j] = u8(0)
        out[2 * j + 1] = codes[j]


to_payload8, _to_payload16 = by_group(_pack8, copy), by_group(_pack16, _pack_lanes16)
"""Pack the codes of lanes of 8 and 16 bits: (codes, group, out)."""


ENCODE = (
    read(_F32, 2), read(_F32, 1), read(_I32, 1), read(_I32, 1), read(_I64, 1), read(_U8, 1), read(_U8, 1), _I64,
    _BOOL, _I64, _BOOL, _U64, _U64, TURNS, _I64, filled(_U8),
)  # fmt: skip


def _make_encode(elements: int) -> Any:
    """Return the kernel that encodes blocks of so many elements: a constant, since other loops are slow."""

    @kernel(*ENCODE)
    def encode(
        x: Any, scales: Any, shifts: Any, widths: Any, starts: Any, below: Any, lengths: Any, g: Any, identity: Any,
        group: Any, rotated: Any, rotation: Any, rounding: Any, turns: Any, own: Any, out: Any,
    ) -> None:  # fmt: skip
        a, b, u = np.empty(elements, i32), np.empty(elements, i32), np.empty(elements, i32)
        levels, codes = np.empty(elements, u8), np.empty(elements, u8)
        lanes, strides = np.empty(32, u32), np.empty(elements // 2, u32)
        fill_strides(strides)
        half, top = i32(g << 15), i32(g << 16)
        first, end = take(turns, own, x.shape[0])
        while first < end:
            for block in range(first, end):
                if rotated:
                    _rotate(x[block], scales[block], block_key(rotation, block), lanes, a, b)
                    if shifts[block] > 0:
                        shift_up(a, half, shifts[block])
                else:
                    _scale(x[block], scales[block], half, a)
                clamp(a, half, top)
                fractions(block_key(rounding, block), strides, u)
                round_up(a, u, widths, starts, below, lengths, identity, levels, codes)
                if elements == 1024:  # a constant: numba compiles one of the three
                    to_payload8(codes, group, out[block])
                elif elements == 512:
                    _to_payload16(codes, group, out[block])
                else:
                    copy(codes, out[block])
            first, end = take(turns, own, x.shape[0])

    return encode


encode8, encode16, encode32 = (_make_encode(elements) for elements in (1024, 512, 256))
"""The kernels by bits of a lane: 1024 elements in lanes of 8 bits, 512 in 16, and 256, which become digits, in 32."""
