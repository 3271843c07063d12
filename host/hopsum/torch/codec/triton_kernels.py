# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: RUF005, SIM108  kernels are Triton, which has no unpacking
"""Triton kernels of codec thc: the definition in hopsum/codec/backends/kernels.py, one warp per block of 1024.

A block lies in a warp's registers as 32 tensors ("registers") of 32 lanes. Element e is first register e div 32,
lane e mod 32: loads are whole lines, and five stages of the transform are additions of registers. One exchange
through the warp's shared memory makes it register e mod 32, lane e div 32, and five more stages are the transform.

Sums are float32, which adds at twice the rate of int32 and is exact below 2^24: always so in decoding, and in
encoding as far as it matters where g/(2t) is within `FLOAT_LIMIT` (torch_kernels.py). Other tables take int32. Rounding
to integers is adding 2^23, whose neighbours are integers: round half to even, like rint. Launch with enable_fp_fusion
off: a fused multiply-add rounds once where the definition rounds twice.

Coordinate of register i, lane m: bits of i are m0 h b k k, and 512 h + 256 b + 64 k + 2 m + m0 is its place on the
wire. Byte 256 h + 64 k + 2 m + m0 of a payload of 4-bit codes holds b = 0 high and b = 1 low, and is the number of the
lane of random bits that both share, low and high 16 bits. Codes of 3 and 2 bits share bytes with those of the same m
and m0. So a payload's uint16 words, and those of the sums, are [lanes of m] for each h, k (and b).

The shared bits of a dither: those of register i are bits 4 (i div 2 mod 8) and on of random lane 64 (i mod 2) + 2 m +
m0. Four tensors of random bits serve a block. Tables of 16 values stay in the first-level cache.

Blocks past the end repeat the last one: the same bytes are written twice, and nothing is masked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import triton
import triton.language as tl

from hopsum.codec.dither import CLASSES

_CLASSES = tl.constexpr(CLASSES)
_NUMBERS = ["blocks", "rotation", "rounding", "dither", "granularity", "unit", "shift"]
_PER_BLOCK = ["scales_ptr", "shifts_ptr", "counts_ptr", "rows_ptr", "offsets_ptr", "factors_ptr"]

F = TypeVar("F", bound=Callable[..., Any])


def _jit(function: F) -> F:
    compiled: F = triton.jit(function)
    return compiled


def _kernel(function: F) -> F:
    """Compile once whatever the numbers are, and wherever a run of blocks begins: they change from call to call."""
    compiled: F = triton.jit(function, do_not_specialize=_NUMBERS, do_not_specialize_on_alignment=_PER_BLOCK)
    return compiled


@_jit
def _block_keys(key: tl.tensor, block: tl.tensor) -> tl.tensor:
    """Return splitmix64(key + block) as two uint32 tensors like `block`, which is int64."""
    # As `block_keys` in hashing.py. Triton's unsigned 64-bit integers wrap.
    value = (block + key).to(tl.uint64) + 0x9E3779B97F4A7C15
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB
    value = value ^ (value >> 31)
    return value.to(tl.uint32), (value >> 32).to(tl.uint32)


@_jit
def _lane_bits(lane: tl.tensor, low: tl.tensor, high: tl.tensor) -> tl.tensor:
    """Return the random bits of lanes, all uint32."""
    bits = lane * 0x9E3779B9 + low
    bits = ((bits ^ (bits >> 16)) * 0x7FEB352D) ^ high
    bits = (bits ^ (bits >> 15)) * 0x846CA68B
    return bits ^ (bits >> 16)


@_jit
def _sign_lanes(rotation: tl.tensor, block: tl.tensor, lane: tl.tensor) -> tl.tensor:
    low, high = _block_keys(rotation, block)
    return _lane_bits(lane.to(tl.uint32), low, high)


@_jit
def _flip(value: tl.tensor, bits: tl.tensor, row: tl.constexpr) -> tl.tensor:
    """Change the sign of float32 values where bit `row` is set."""
    # A sign is one bit of a float32: cheaper than a multiplication, and exact.
    flipped = value.to(tl.uint32, bitcast=True) ^ ((bits << (31 - row)) & 0x80000000)
    return flipped.to(tl.float32, bitcast=True)


@_jit
def _hadamard(v: tl.tensor) -> tl.tensor:
    """Transform along 32 registers."""
    for stage in tl.static_range(5):
        out: tl.tuple = ()
        for i in tl.static_range(32):
            if (i >> stage) & 1:
                out = out + (v[i - (1 << stage)] - v[i],)
            else:
                out = out + (v[i] + v[i + (1 << stage)],)
        v = out
    return v


@_jit
def _exchange(v: tl.tensor, BLOCKS: tl.constexpr) -> tl.tensor:
    """Swap registers and lanes: register i, lane j of the result is register j, lane i of v."""
    for stage in tl.static_range(5):
        joined: tl.tuple = ()
        for i in tl.static_range(16 >> stage):
            joined = joined + (tl.join(v[i], v[i + (16 >> stage)]),)
        v = joined
    # Through shared memory once: registers become lanes, and lanes registers.
    square = tl.permute(tl.reshape(v[0], (BLOCKS, 32, 32)), (0, 2, 1))
    v = (tl.reshape(square, (BLOCKS, 32, 2, 2, 2, 2, 2)),)
    for stage in tl.static_range(5):
        even: tl.tuple = ()
        odd: tl.tuple = ()
        for i in tl.static_range(1 << stage):
            a, b = tl.split(v[i])
            even = even + (a,)
            odd = odd + (b,)
        v = even + odd
    return v


@_jit
def _round(scaled: tl.tensor, EXACT_FLOAT: tl.constexpr) -> tl.tensor:
    """Return rint, as float32 if |scaled| <= 2^22 is known, as int32 otherwise."""
    if EXACT_FLOAT:
        # 1.5 * 2^23: the sum has no bits after the point, so adding it rounds half to even.
        rounded = (scaled + 12582912.0) - 12582912.0
    else:
        sign = scaled.to(tl.uint32, bitcast=True) & 0x80000000
        large = (sign | 0x4B000000).to(tl.float32, bitcast=True)
        rounded = tl.where(tl.abs(scaled) < 8388608.0, (scaled + large) - large, scaled).to(tl.int32)
    return rounded


@_jit
def _shared_lanes(dither: tl.tensor, block: tl.tensor) -> tl.tensor:
    """Return four tensors of the bits that all ranks draw, uint32: eight fields of 4 bits."""
    low, high = _block_keys(dither, block)
    lanes: tl.tuple = ()
    for number in tl.static_range(4):
        lane = tl.arange(0, 32)[None, :].to(tl.uint32) * 2 + (64 * (number & 1) + (number >> 1))
        lanes = lanes + (_lane_bits(lane, low, high),)
    return lanes


@_jit
def _shifted(lanes: tl.tensor, shift: tl.tensor) -> tl.tensor:
    """Add `shift` to all fields of what `_shared_lanes` returns, modulo 16."""
    # All eight fields of a word at once: their highest bits are added without a carry.
    ahead = shift.to(tl.uint32) * 0x11111111
    moved: tl.tuple = ()
    for number in tl.static_range(4):
        bits = lanes[number]
        moved = moved + (((bits & 0x77777777) + (ahead & 0x77777777)) ^ ((bits ^ ahead) & 0x88888888),)
    return moved


@_jit
def _shared(lanes: tl.tensor, i: tl.constexpr) -> tl.tensor:
    """Return the shared bits of register i, uint32 below 16."""
    return (lanes[2 * (i >> 4) + (i & 1)] >> (4 * ((i >> 1) & 7))) & 15


@_jit
def _position(y: tl.tensor, shift: tl.tensor, granularity: tl.tensor, EXACT_FLOAT: tl.constexpr) -> tl.tensor:
    """Return 0x3F800000 + q, the bits of the float32 1 + q 2^-23, as int32."""
    if EXACT_FLOAT:
        # 2^(shift - 23) as the bits of a float32: shift - 23 + 127 is the exponent.
        power = ((shift + 104) << 23).to(tl.float32, bitcast=True)
        end = granularity.to(tl.float32) * (1.0 / 128.0)
        q = tl.fma(y, power, end * 0.5)  # exact between 0 and the table's end
        bits = (tl.clamp(q, 0.0, end) + 1.0).to(tl.int32, bitcast=True)
    else:
        most = ((granularity << 15) >> shift) + 1
        q = (tl.minimum(tl.maximum(y, -most), most) << shift) + (granularity << 15)
        bits = tl.minimum(tl.maximum(q, 0), granularity << 16) + 0x3F800000
    return bits


@_jit
def _rounded(bits: tl.tensor, u: tl.tensor, cells_ptr: tl.tensor) -> tl.tensor:
    """Return codes, uint32: the highest 4 bits of q + u width - upper 2^16 + (code of upper) 2^28."""
    # A gather of 129 words, which stay in the first-level cache.
    cell = tl.load(cells_ptr + ((bits >> 16).to(tl.uint32) - 0x3F80))
    width = cell & 0xFF
    difference = bits + u * width + width - cell
    return difference.to(tl.uint32, bitcast=True) >> 28


@_jit
def _dithered(bits: tl.tensor, u: tl.tensor, lanes: tl.tensor, i: tl.constexpr) -> tl.tensor:
    """Return codes of register i, uint32, rounded with 12 bits of u below the shared ones."""
    # Where levels are even, the sum's integer part is the code: 0x3F80 has nothing in its lowest 4 bits.
    dither = (u & 0xFFF) | (_shared(lanes, i).to(tl.int32) << 12)
    return ((bits + dither) >> 16).to(tl.uint32) & 15


@_jit
def _pair(
    v: tl.tensor, keys: tl.tensor, lanes: tl.tensor, shift: tl.tensor, granularity: tl.tensor, cells_ptr: tl.tensor,
    first: tl.constexpr, EXACT_FLOAT: tl.constexpr, DITHER: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Return the codes of registers `first`, whose b is 0, and first + 4: they share random bits."""
    number: tl.constexpr = 256 * ((first >> 3) & 1) + 64 * (first & 3) + (first >> 4)
    lane = tl.arange(0, 32)[None, :].to(tl.uint32) * 2 + number
    bits = _lane_bits(lane, keys[0], keys[1])
    low, high = (bits & 0xFFFF).to(tl.int32), (bits >> 16).to(tl.int32)
    a = _position(v[first], shift, granularity, EXACT_FLOAT)
    b = _position(v[first + 4], shift, granularity, EXACT_FLOAT)
    if DITHER:
        codes = (_dithered(a, low, lanes, first), _dithered(b, high, lanes, first + 4))
    else:
        codes = (_rounded(a, low, cells_ptr), _rounded(b, high, cells_ptr))
    return codes


@_jit
def _codes(
    v: tl.tensor, keys: tl.tensor, lanes: tl.tensor, shift: tl.tensor, granularity: tl.tensor, cells_ptr: tl.tensor,
    EXACT_FLOAT: tl.constexpr, DITHER: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Return the codes of all registers, uint32: that of register m0 h b k k is number m0 h k k b."""
    codes: tl.tuple = ()
    for group in tl.static_range(16):
        codes = codes + _pair(
            v, keys, lanes, shift, granularity, cells_ptr, (group & 12) * 2 + (group & 3), EXACT_FLOAT, DITHER
        )
    return codes


@_jit
def _byte(codes: tl.tensor, group: tl.constexpr, m0: tl.constexpr, BITS: tl.constexpr) -> tl.tensor:
    """Return the bytes m0 of a payload's words [group, 32], uint32, from what `_codes` returns."""
    if BITS == 4:
        byte = (codes[16 * m0 + 2 * group] << 4) | codes[16 * m0 + 2 * group + 1]
    elif BITS == 2:
        upper = (codes[16 * m0 + 2 * group] << 6) | (codes[16 * m0 + 2 * group + 1] << 4)
        byte = upper | (codes[16 * m0 + 2 * group + 8] << 2) | codes[16 * m0 + 2 * group + 9]
    elif group < 4:
        pair = codes[16 * m0 + 2 * group] | (codes[16 * m0 + 2 * group + 1] << 3)
        byte = pair | ((codes[16 * m0 + 2 * group + 9] & 3) << 6)
    else:
        # The third quarter's halves, and the high bits of the last quarter's.
        pair = codes[16 * m0 + 2 * group] | (codes[16 * m0 + 2 * group + 4] << 3)
        tops = ((codes[16 * m0 + 2 * group + 1] >> 2) << 6) | ((codes[16 * m0 + 2 * group + 5] >> 2) << 7)
        byte = pair | tops
    return byte


@_jit
def _code(words: tl.tensor, i: tl.constexpr, BITS: tl.constexpr) -> tl.tensor:
    """Return the codes of register i, int32, of what `_payload_words` returns."""
    if BITS == 4:
        code = (words[4 * ((i >> 3) & 1) + (i & 3)] >> (8 * (i >> 4) + 4 - (i & 4))) & 15
    elif BITS == 2:
        code = (words[i & 3] >> (8 * (i >> 4) + 6 - 2 * ((i >> 2) & 3))) & 3
    elif (i & 8) == 0:
        code = (words[i & 3] >> (8 * (i >> 4) + 3 * ((i >> 2) & 1))) & 7
    elif (i & 4) == 0:
        code = (words[4 + (i & 1)] >> (8 * (i >> 4) + 3 * ((i >> 1) & 1))) & 7
    else:
        low = (words[i & 3] >> (8 * (i >> 4) + 6)) & 3
        code = low | (((words[4 + (i & 1)] >> (8 * (i >> 4) + 6 + ((i >> 1) & 1))) & 1) << 2)
    return code


@_jit
def _payload_words(payloads_ptr: tl.tensor, block: tl.tensor, BITS: tl.constexpr) -> tl.tensor:
    """Return the words of payloads of codes, as int32."""
    pointers = payloads_ptr + (block * (64 * BITS) + tl.arange(0, 32)[None, :])
    words: tl.tuple = ()
    for group in tl.static_range(2 * BITS):
        words = words + (tl.load(pointers + 32 * group).to(tl.int32),)
    return words


@_kernel
def thc_encode(
    x_ptr: tl.tensor, scales_ptr: tl.tensor, shifts_ptr: tl.tensor, cells_ptr: tl.tensor, out_ptr: tl.tensor,
    blocks: tl.tensor, rotation: tl.tensor, rounding: tl.tensor, dither: tl.tensor, granularity: tl.tensor,
    shift: tl.tensor, BLOCKS: tl.constexpr, EXACT_FLOAT: tl.constexpr, BITS: tl.constexpr, DITHER: tl.constexpr,
) -> None:  # fmt: skip
    """Fill words uint16[blocks, 64 BITS] with packed codes from float32[blocks, 1024].

    scales float32 and shifts int32 are per block. Cells are those of a DeviceTable, for rounding without DITHER.
    """
    block = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    # Past the end the last block again: the same bytes are written twice, and no load needs a mask.
    block = tl.minimum(block, blocks - 1)[:, None]
    lane = tl.arange(0, 32)[None, :]
    signs = _sign_lanes(rotation, block, lane)
    scale = tl.load(scales_ptr + block)
    x_ptrs = x_ptr + (block * 1024 + lane)
    v: tl.tuple = ()
    for row in tl.static_range(32):
        v = v + (_round(_flip(tl.load(x_ptrs + 32 * row) * scale, signs, row), EXACT_FLOAT),)
    v = _hadamard(_exchange(_hadamard(v), BLOCKS))
    lanes: tl.tuple = ()
    if DITHER:
        lanes = _shifted(_shared_lanes(dither, block), shift)
    left = tl.load(shifts_ptr + block)
    codes = _codes(v, _block_keys(rounding, block), lanes, left, granularity, cells_ptr, EXACT_FLOAT, DITHER)
    out_ptrs = out_ptr + (block * (64 * BITS) + lane)
    for group in tl.static_range(2 * BITS):
        words = _byte(codes, group, 0, BITS) | (_byte(codes, group, 1, BITS) << 8)
        tl.store(out_ptrs + 32 * group, words.to(tl.uint16))


@_jit
def _rotate_back(
    v: tl.tensor, centre: tl.tensor, factor: tl.tensor, rotation: tl.tensor, block: tl.tensor, BLOCKS: tl.constexpr
) -> tl.tensor:
    """Return 32 rows of elements of coordinates that are too large by `centre`, all of them.

    The transform of a constant is 1024 times it at element 0 and 0 elsewhere: that is all there is to subtract.
    Adding 0 makes +0 of -0, which integers do not have.
    """
    lane = tl.arange(0, 32)[None, :]
    signs = _sign_lanes(rotation, block, lane)
    v = _hadamard(_exchange(_hadamard(v), BLOCKS))
    # The transform of a constant is 1024 times it at element 0: one subtraction in place of 1024.
    offset = tl.where(lane == 0, centre * 1024.0, 0.0)
    rows: tl.tuple = ((_flip(v[0] - offset, signs, 0) + 0.0) * factor,)
    for row in tl.static_range(1, 32):
        rows = rows + ((_flip(v[row], signs, row) + 0.0) * factor,)
    return rows


@_jit
def _put(rows: tl.tensor, out_ptr: tl.tensor, block: tl.tensor) -> None:
    """Store 32 rows of elements of blocks."""
    out_ptrs = out_ptr + (block * 1024 + tl.arange(0, 32)[None, :])
    for row in tl.static_range(32):
        tl.store(out_ptrs + 32 * row, rows[row])


@_jit
def _take_off(rows: tl.tensor, out_ptr: tl.tensor, number: tl.tensor, blocks: tl.tensor) -> None:
    """Subtract 32 rows of elements from blocks of these numbers."""
    lane = tl.arange(0, 32)[None, :]
    out_ptrs = out_ptr + (tl.minimum(number, blocks - 1)[:, None] * 1024 + lane)
    # Subtraction is not idempotent: unlike elsewhere a block past the end must not be done twice.
    live = (number < blocks)[:, None] & (lane >= 0)
    for row in tl.static_range(32):
        tl.store(out_ptrs + 32 * row, tl.load(out_ptrs + 32 * row) - rows[row], mask=live)


@_jit
def _doubled(lanes: tl.tensor) -> tl.tensor:
    """Return 2 S as float32, of bytes S in uint32: 2^24 + 2 S is exact, and has S in its lowest bits."""
    return (lanes | 0x4B800000).to(tl.float32, bitcast=True) - 16777216.0


@_kernel
def thc_decode(
    sums_ptr: tl.tensor, counts_ptr: tl.tensor, factors_ptr: tl.tensor, out_ptr: tl.tensor, beyond_ptr: tl.tensor,
    blocks: tl.tensor, rotation: tl.tensor, granularity: tl.tensor, BLOCKS: tl.constexpr,
) -> None:  # fmt: skip
    """Fill float32[blocks, 1024] from sums as words uint16[blocks, 512], counts int32 and factors float32.

    Where a sum is beyond count times granularity, int32[1] `beyond` becomes 1. Every writer writes the same.
    """
    block = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    block = tl.minimum(block, blocks - 1)[:, None]
    lane = tl.arange(0, 32)[None, :]
    sum_ptrs = sums_ptr + (block * 512 + lane)
    count = tl.load(counts_ptr + block)
    centre = (count * granularity).to(tl.float32)
    even: tl.tuple = ()
    odd: tl.tuple = ()
    largest = tl.zeros((BLOCKS, 32), tl.float32)
    for group in tl.static_range(16):
        words = tl.load(sum_ptrs + 32 * group).to(tl.uint32)
        even = even + (_doubled(words & 0xFF),)
        odd = odd + (_doubled(words >> 8),)
        largest = tl.maximum(largest, tl.maximum(even[group], odd[group]))
    # Every writer writes 1: no atomic is needed.
    tl.store(beyond_ptr + tl.zeros((BLOCKS, 32), tl.int32), 1, mask=largest > 2 * centre)
    _put(_rotate_back(even + odd, centre, tl.load(factors_ptr + block), rotation, block, BLOCKS), out_ptr, block)


@_kernel
def thc_subtract(
    payloads_ptr: tl.tensor, values_ptr: tl.tensor, factors_ptr: tl.tensor, out_ptr: tl.tensor,
    blocks: tl.tensor, rotation: tl.tensor, granularity: tl.tensor, BLOCKS: tl.constexpr,
) -> None:  # fmt: skip
    """Subtract from float32[blocks, 1024] the share of packed codes in a sum.

    Payloads are words uint16[blocks, 256], values float32[16] twice the table.
    """
    number = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    block = tl.minimum(number, blocks - 1)[:, None]
    words = _payload_words(payloads_ptr, block, 4)
    v: tl.tuple = ()
    for i in tl.static_range(32):
        v = v + (tl.load(values_ptr + _code(words, i, 4)),)
    centre = granularity.to(tl.float32)
    rows = _rotate_back(v, centre, tl.load(factors_ptr + block), rotation, block, BLOCKS)
    _take_off(rows, out_ptr, number, blocks)


@_kernel
def dither_decode(
    sums_ptr: tl.tensor, counts_ptr: tl.tensor, rows_ptr: tl.tensor, offsets_ptr: tl.tensor, factors_ptr: tl.tensor,
    out_ptr: tl.tensor, beyond_ptr: tl.tensor, blocks: tl.tensor, rotation: tl.tensor, dither: tl.tensor,
    granularity: tl.tensor, unit: tl.tensor, BLOCKS: tl.constexpr,
) -> None:  # fmt: skip
    """Fill float32[blocks, 1024] from whole sums of dithered codes, words uint16[blocks, 512].

    counts, rows and offsets are those of a DeviceContributors. `beyond` is as for `thc_decode`.
    """
    block = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    block = tl.minimum(block, blocks - 1)[:, None]
    sum_ptrs = sums_ptr + (block * 512 + tl.arange(0, 32)[None, :])
    even: tl.tuple = ()
    odd: tl.tuple = ()
    largest = tl.zeros((BLOCKS, 32), tl.float32)
    for group in tl.static_range(16):
        words = tl.load(sum_ptrs + 32 * group).to(tl.uint32)
        even = even + (_doubled(words & 0xFF),)
        odd = odd + (_doubled(words >> 8),)
        largest = tl.maximum(largest, tl.maximum(even[group], odd[group]))
    doubled = even + odd
    most = (tl.load(counts_ptr + block) * granularity).to(tl.float32)
    tl.store(beyond_ptr + tl.zeros((BLOCKS, 32), tl.int32), 1, mask=largest > 2 * most)
    offsets = offsets_ptr + tl.load(rows_ptr + block) * 16
    lanes = _shared_lanes(dither, block)
    half = unit.to(tl.float32) * 0.5
    w: tl.tuple = ()
    for i in tl.static_range(32):
        w = w + (doubled[i] * half - tl.load(offsets + _shared(lanes, i)),)
    # The offsets have the middle of the levels: nothing is too large by a constant.
    _put(_rotate_back(w, 0.0, tl.load(factors_ptr + block), rotation, block, BLOCKS), out_ptr, block)


@_kernel
def requantized_decode(
    codes_ptr: tl.tensor, counts_ptr: tl.tensor, rows_ptr: tl.tensor, offsets_ptr: tl.tensor, factors_ptr: tl.tensor,
    out_ptr: tl.tensor, bounds_ptr: tl.tensor, values_ptr: tl.tensor, blocks: tl.tensor, rotation: tl.tensor,
    dither: tl.tensor, BLOCKS: tl.constexpr, BITS: tl.constexpr,
) -> None:  # fmt: skip
    """Fill float32[blocks, 1024] from requantised results, words uint16[blocks, 64 BITS].

    counts, rows and offsets are those of a DeviceContributors, bounds and values those of a DeviceDither.
    """
    block = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    block = tl.minimum(block, blocks - 1)[:, None]
    words = _payload_words(codes_ptr, block, BITS)
    # (2 code - most)^2 is 4 code (code - most) + most^2: its sum over a block, in 32 bits.
    most: tl.constexpr = (1 << BITS) - 1
    products = tl.zeros((BLOCKS, 32), tl.int32)
    for i in tl.static_range(32):
        code = _code(words, i, BITS)
        products = products + code * (code - most)
    energy = 4 * tl.sum(products, axis=1)[:, None] + 1024 * most * most
    count = tl.load(counts_ptr + block)
    bounds = tl.load(bounds_ptr + (count * (_CLASSES - 1) + tl.arange(0, _CLASSES - 1)[None, :]))
    number = tl.sum((bounds > energy).to(tl.int32), axis=1)[:, None]
    values = values_ptr + (count * _CLASSES + number) * 16
    offsets = offsets_ptr + tl.load(rows_ptr + block) * 16
    lanes = _shared_lanes(dither, block)
    w: tl.tuple = ()
    for i in tl.static_range(32):
        w = w + (tl.load(values + _code(words, i, BITS)) - tl.load(offsets + _shared(lanes, i)),)
    _put(_rotate_back(w, 0.0, tl.load(factors_ptr + block), rotation, block, BLOCKS), out_ptr, block)


@_kernel
def dither_subtract(
    payloads_ptr: tl.tensor, offsets_ptr: tl.tensor, factors_ptr: tl.tensor, out_ptr: tl.tensor,
    blocks: tl.tensor, rotation: tl.tensor, dither: tl.tensor, unit: tl.tensor,
    BLOCKS: tl.constexpr, BITS: tl.constexpr,
) -> None:  # fmt: skip
    """Subtract from float32[blocks, 1024] the share of a rank's dithered codes in a sum.

    Payloads are words uint16[blocks, 64 BITS], offsets float32[16] those of the rank in a DeviceDither.
    """
    number = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    block = tl.minimum(number, blocks - 1)[:, None]
    words = _payload_words(payloads_ptr, block, BITS)
    lanes = _shared_lanes(dither, block)
    half = unit.to(tl.float32) * 0.5
    w: tl.tuple = ()
    for i in tl.static_range(32):
        doubled = _doubled(_code(words, i, BITS).to(tl.uint32))
        w = w + (doubled * half - tl.load(offsets_ptr + _shared(lanes, i)),)
    rows = _rotate_back(w, 0.0, tl.load(factors_ptr + block), rotation, block, BLOCKS)
    _take_off(rows, out_ptr, number, blocks)


@_kernel
def square_sums(
    x_ptr: tl.tensor, residual_ptr: tl.tensor, pending_ptr: tl.tensor, sums_ptr: tl.tensor,
    blocks: tl.tensor, BLOCKS: tl.constexpr, COMPENSATE: tl.constexpr,
) -> None:  # fmt: skip
    """Fill float64[blocks] with the sums of squares of float32[blocks, 1024], added in the order of the reference.

    With COMPENSATE the vector is x + residual, which is stored to pending as well.
    """
    block = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    block = tl.minimum(block, blocks - 1)
    places = block[:, None] * 1024 + tl.arange(0, 16)[None, :]
    lanes = tl.zeros((BLOCKS, 16), tl.float64)
    for row in tl.static_range(64):
        x = tl.load(x_ptr + places + 16 * row)
        if COMPENSATE:
            x = x + tl.load(residual_ptr + places + 16 * row)
            tl.store(pending_ptr + places + 16 * row, x)
        wide = x.to(tl.float64)
        lanes = lanes + wide * wide
    # Halves onto each other, the order of the reference: one sum over 16 lanes would round differently.
    lanes = tl.sum(tl.reshape(lanes, (BLOCKS, 2, 8)), axis=1)
    lanes = tl.sum(tl.reshape(lanes, (BLOCKS, 2, 4)), axis=1)
    lanes = tl.sum(tl.reshape(lanes, (BLOCKS, 2, 2)), axis=1)
    tl.store(sums_ptr + block, tl.sum(lanes, axis=1))
