# SPDX-License-Identifier: Apache-2.0
"""Parts of the numba encoder and decoder: turns of threads, random bits, the Hadamard transform of one block.

Strides of 16 and more are passes of radix 8 (and one of radix 4 or 2 in blocks of 512 or 256). The four small strides
de-interleave (pairs in, halves out), which SIMD does well and which leaves the order of coordinates that the wire
has. Sizes are those of the arrays, which kernels make of constant size.

numba promotes uint32 * uint32 to uint64 and int32 + int32 to int64: every cast keeps a 32-bit result.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hopsum.codec.backends.jit import fetch_add, filled, inner, types
from hopsum.codec.hashing import LANE_FIRST, LANE_SECOND, LANE_STRIDE

u32, u64 = np.uint32, np.uint64
TURNS = filled(types.int64, 1)
"""Type of int64[threads], which all threads of a call share: each has a run of the blocks, and this is the first block
of each run that nobody has taken."""
TURN_BLOCKS = 16
"""A thread takes so many at a time, some 10 to 30 us of work: that is how long one waits for another in the end."""


@inner
def copy(a: Any, b: Any) -> None:
    """Copy a to b, of the same size. An assignment of slices has an error message, which takes seconds to compile."""
    for j in range(b.shape[0]):
        b[j] = a[j]


def by_group(grouped: Any, lanes: Any) -> Any:
    """Return a part (source, group, out) that packs or unpacks codes in groups of so many; 0 stands for lanes.

    `grouped` does it for a group, which is a constant where programs have that group: other loops are slow. `lanes` is
    a part (source, out).
    """

    @inner
    def convert(source: Any, group: Any, out: Any) -> None:
        if group == 512:
            grouped(source, 512, out)
        elif group == 128:
            grouped(source, 128, out)
        elif group == 64:
            grouped(source, 64, out)
        elif group:
            grouped(source, group, out)
        else:
            lanes(source, out)

    return convert


@inner
def take(turns: Any, own: Any, blocks: Any) -> Any:
    """Return blocks for this thread alone, first and end: of its own run, then of others'. None: 0 and 0.

    A run each, because threads that take turns at neighbouring blocks slow each other down.
    """
    runs = turns.shape[0]
    for other in range(runs):
        run = (own + other) % runs
        first, end = fetch_add(turns, run, TURN_BLOCKS), blocks * (run + 1) // runs
        if first < end:
            return first, min(first + TURN_BLOCKS, end)
    return 0, 0


@inner
def block_key(key: Any, block: Any) -> Any:
    """Return splitmix64(key + block)."""
    value = u64(u64(key + u64(block)) + u64(0x9E3779B97F4A7C15))
    value = u64((value ^ (value >> u64(30))) * u64(0xBF58476D1CE4E5B9))
    value = u64((value ^ (value >> u64(27))) * u64(0x94D049BB133111EB))
    return value ^ (value >> u64(31))


@inner
def mixed(bits: Any, high: Any) -> Any:
    """Return the random bits of a lane from what its number and the low half of the key add up to."""
    bits = u32(bits ^ (bits >> u32(16)))
    bits = u32(u32(bits * u32(LANE_FIRST)) ^ high)
    bits = u32(bits ^ (bits >> u32(15)))
    bits = u32(bits * u32(LANE_SECOND))
    return u32(bits ^ (bits >> u32(16)))


@inner
def sign_lanes(key: Any, lanes: Any) -> None:
    """Fill the 32 lanes of sign bits of a block's rotation key."""
    low, high = u32(key), u32(key >> u64(32))
    for lane in range(32):
        lanes[lane] = mixed(u32(u32(u32(lane) * u32(LANE_STRIDE)) + low), high)


@inner
def radix8(a: Any, base: Any, stride: Any) -> None:
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
def radix4(a: Any, base: Any, stride: Any) -> None:
    """Do two stages in place: strides 2 and 1 times `stride`."""
    for j in range(base, base + stride):
        a0, a1, a2, a3 = a[j], a[j + stride], a[j + 2 * stride], a[j + 3 * stride]
        b0, b1, b2, b3 = a0 + a2, a1 + a3, a0 - a2, a1 - a3
        a[j], a[j + stride], a[j + 2 * stride], a[j + 3 * stride] = b0 + b1, b0 - b1, b2 + b3, b2 - b3


@inner
def radix2(a: Any, base: Any, stride: Any) -> None:
    """Do one stage in place: `stride`."""
    for j in range(base, base + stride):
        a0, a1 = a[j], a[j + stride]
        a[j], a[j + stride] = a0 + a1, a0 - a1


@inner
def middle_strides(a: Any) -> None:
    """Do the stages of strides 16 to 64 (blocks of 1024), 16 and 32 (blocks of 512), or 16 (blocks of 256)."""
    if a.shape[0] == 1024:
        for base in range(0, 1024, 128):
            radix8(a, base, 16)
    elif a.shape[0] == 512:
        for base in range(0, 512, 64):
            radix4(a, base, 16)
    else:
        for base in range(0, 256, 32):
            radix2(a, base, 16)


@inner
def split_pairs(a: Any, b: Any) -> None:
    """Do the stage of stride 1, sums to the lower half of b and differences to the upper."""
    half = a.shape[0] // 2
    for i in range(half):
        even, odd = a[2 * i], a[2 * i + 1]
        b[i] = even + odd
        b[i + half] = even - odd


@inner
def join_halves(a: Any, b: Any) -> None:
    """Do the stage of the largest stride, sums to the even places of b and differences to the odd ones."""
    half = a.shape[0] // 2
    for i in range(half):
        low, high = a[i], a[i + half]
        b[2 * i] = low + high
        b[2 * i + 1] = low - high
