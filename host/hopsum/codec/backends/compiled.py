# SPDX-License-Identifier: Apache-2.0
"""The numba backend: the definition in kernels.py as loops that LLVM turns into SIMD.

A block stays in the first-level cache (4 KiB) from its load to its packed codes, so encoding moves 4.5 bytes per
element through memory and arithmetic is the limit. In operations of 8 x 32 bits, per 8 elements: load and sign 6,
rotation 10, clamp 3, random bits 6, each width of the table's gaps 4, the 15 compares 8 (they take 32 bytes at a
time), besides loads and stores. Tables are never indexed by data: gathers cost more than all compares.

Strides of 16 and more are radix-8 passes. The four small strides de-interleave (pairs in, halves out), which
SIMD does well and which leaves the order of coordinates that the wire has. Decoding starts with sums of at
most 255 and runs seven of the ten stages in 16 bits: 255 * 2^7 < 2^15.

Kernels hold no lock (nogil) and start no threads. They are compiled when this module is imported, several seconds
once per machine, and come from numba's cache beside this file after that: make a codec before spawning workers.
numba promotes uint32 * uint32 to uint64 and int32 + int32 to int64: every cast below keeps a 32-bit result.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hopsum.codec.backends.kernels import BlockKeys, Steps

F = TypeVar("F", bound=Callable[..., Any])
_numba: Any = import_module("numba")  # ships no types
_types = _numba.types


def _inner(function: F) -> F:
    """Compile a part of kernels, for whatever types they pass."""
    compiled: F = _numba.njit(nogil=True)(function)
    return compiled


def _kernel(*arguments: Any) -> Callable[[F], F]:
    """Compile a kernel for one signature, now, or load it from the cache."""

    def compile_kernel(function: F) -> F:
        signature = _types.void(*arguments)
        try:
            compiled: F = _numba.njit(signature, nogil=True, cache=True)(function)
        except RuntimeError:  # numba finds no directory that it may write to
            compiled = _numba.njit(signature, nogil=True)(function)
        return compiled

    return compile_kernel


def _in(dtype: Any, axes: int) -> Any:
    """Return the type of an array that is read; writable ones convert to it."""
    return _types.Array(dtype, axes, "C", readonly=True)


def _out(dtype: Any, axes: int = 2) -> Any:
    """Return the type of an array that is filled."""
    return _types.Array(dtype, axes, "C")


u8, i16, i32, u32, u64, f32, f64 = np.uint8, np.int16, np.int32, np.uint32, np.uint64, np.float32, np.float64
_U8, _I32, _U32, _I64, _U64 = _types.uint8, _types.int32, _types.uint32, _types.int64, _types.uint64
_F32, _F64 = _types.float32, _types.float64
_STEPS = (_in(_I32, 1), _in(_I64, 1), _in(_U8, 1))


@_inner
def _block_key(key: Any, block: Any) -> Any:
    value = u64(u64(key + u64(block)) + u64(0x9E3779B97F4A7C15))
    value = u64((value ^ (value >> u64(30))) * u64(0xBF58476D1CE4E5B9))
    value = u64((value ^ (value >> u64(27))) * u64(0x94D049BB133111EB))
    return value ^ (value >> u64(31))


@_inner
def _lane_bits(lane: Any, low: Any, high: Any) -> Any:
    bits = u32(u32(lane * u32(0x9E3779B9)) + low)
    bits = u32(bits ^ (bits >> u32(16)))
    bits = u32(u32(bits * u32(0x7FEB352D)) ^ high)
    bits = u32(bits ^ (bits >> u32(15)))
    bits = u32(bits * u32(0x846CA68B))
    return u32(bits ^ (bits >> u32(16)))


@_inner
def _sign_lanes(key: Any, lanes: Any) -> None:
    low, high = u32(key), u32(key >> u64(32))
    for lane in range(32):
        lanes[lane] = _lane_bits(u32(lane), low, high)


@_inner
def _fractions(key: Any, u: Any) -> None:
    low, high = u32(key), u32(key >> u64(32))
    for half in range(2):
        for lane in range(256):
            bits = _lane_bits(u32(256 * half + lane), low, high)
            u[512 * half + lane] = i32(bits & u32(0xFFFF))
            u[512 * half + 256 + lane] = i32(bits >> u32(16))


@_inner
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


@_inner
def _split_pairs(a: Any, b: Any) -> None:
    """Do the stage of stride 1, sums to the lower half of b and differences to the upper."""
    for i in range(512):
        even, odd = a[2 * i], a[2 * i + 1]
        b[i] = even + odd
        b[i + 512] = even - odd


@_inner
def _join_halves(a: Any, b: Any) -> None:
    """Do the stage of stride 512, sums to the even places of b and differences to the odd ones."""
    for i in range(512):
        low, high = a[i], a[i + 512]
        b[2 * i] = low + high
        b[2 * i + 1] = low - high


@_inner
def _load(x: Any, scale: Any, lanes: Any, a: Any) -> None:
    for row in range(32):
        for lane in range(32):
            negative = i32(i32(lanes[lane] << u32(31 - row)) >> i32(31))  # 0 or -1
            value = i32(np.rint(x[32 * row + lane] * scale))
            a[32 * row + lane] = i32(i32(value ^ negative) - negative)


@_inner
def _clamp(a: Any, half: Any, top: Any) -> None:
    for j in range(1024):
        a[j] = min(max(i32(a[j] + half), i32(0)), top)


@_inner
def _levels(q: Any, u: Any, width: Any, levels: Any) -> None:
    for j in range(1024):
        levels[j] = u8(i32(q[j] + i32(u[j] * width)) >> i32(16))


@_inner
def _count(levels: Any, target: Any, codes: Any) -> None:
    for j in range(1024):
        codes[j] = u8(codes[j] + u8(levels[j] >= target))


@_inner
def _pack(codes: Any, out: Any) -> None:
    for half in range(2):
        for j in range(256):
            out[256 * half + j] = u8((codes[512 * half + j] << u8(4)) | codes[512 * half + 256 + j])


@_kernel(_in(_F32, 2), _in(_F32, 1), *_STEPS, _I64, _U64, _U64, _out(_U8))
def _thc_encode(
    x: Any, scales: Any, widths: Any, starts: Any, targets: Any, g: Any, rotation: Any, rounding: Any, out: Any
) -> None:
    a, b, u = np.empty(1024, i32), np.empty(1024, i32), np.empty(1024, i32)
    levels, codes, lanes = np.empty(1024, u8), np.empty(1024, u8), np.empty(32, u32)
    half, top = i32(g << 15), i32(g << 16)
    for block in range(x.shape[0]):
        _sign_lanes(_block_key(rotation, block), lanes)
        _load(x[block], scales[block], lanes, a)
        _radix8(a, 0, 128)
        for base in range(0, 1024, 128):
            _radix8(a, base, 16)
        _split_pairs(a, b)
        _split_pairs(b, a)
        _split_pairs(a, b)
        _split_pairs(b, a)
        _clamp(a, half, top)
        _fractions(_block_key(rounding, block), u)
        codes[:] = u8(0)
        for group in range(widths.shape[0]):
            _levels(a, u, widths[group], levels)
            for index in range(starts[group], starts[group + 1]):
                _count(levels, targets[index], codes)
        _pack(codes, out[block])


@_kernel(_in(_U8, 2), _in(_U8, 1), _out(_U8))
def _thc_lookup(payloads: Any, table: Any, out: Any) -> None:
    codes = np.empty(1024, u8)
    for block in range(payloads.shape[0]):
        for half in range(2):
            for j in range(256):
                codes[512 * half + j] = payloads[block, 256 * half + j] >> u8(4)
                codes[512 * half + 256 + j] = payloads[block, 256 * half + j] & u8(15)
        lanes = out[block]
        lanes[:] = u8(0)
        for code in range(1, 16):
            gap = u8(table[code] - table[code - 1])
            for j in range(1024):
                lanes[j] = u8(lanes[j] + (gap if codes[j] >= u8(code) else u8(0)))


@_inner
def _store(a: Any, factor: Any, lanes: Any, out: Any) -> None:
    for row in range(32):
        for lane in range(32):
            negative = i32(i32(lanes[lane] << u32(31 - row)) >> i32(31))
            value = i32(i32(a[32 * row + lane] ^ negative) - negative)
            out[32 * row + lane] = f32(value) * factor


@_kernel(_in(_U8, 2), _in(_I32, 1), _in(_F32, 1), _I64, _U64, _out(_F32))
def _thc_decode(sums: Any, counts: Any, factors: Any, g: Any, rotation: Any, out: Any) -> None:
    a, b, wide = np.empty(1024, i16), np.empty(1024, i16), np.empty(1024, i32)
    lanes = np.empty(32, u32)
    for block in range(sums.shape[0]):
        centre = i16(counts[block] * g)
        for j in range(1024):
            a[j] = i16(i16(i16(sums[block, j]) << i16(1)) - centre)
        _join_halves(a, b)
        _join_halves(b, a)
        _join_halves(a, b)
        _join_halves(b, a)
        for base in range(0, 1024, 128):
            _radix8(a, base, 16)
        for j in range(1024):
            wide[j] = a[j]
        _radix8(wide, 0, 128)
        _sign_lanes(_block_key(rotation, block), lanes)
        _store(wide, factors[block], lanes, out[block])


@_kernel(_in(_F32, 2), _out(_F32, 1))
def _root_mean_square(x: Any, out: Any) -> None:
    lanes = np.empty(16, f64)
    for block in range(x.shape[0]):
        row = x[block]
        lanes[:] = 0.0
        for i in range(64):
            for lane in range(16):
                value = f64(row[16 * i + lane])
                lanes[lane] += value * value
        for half in (8, 4, 2, 1):
            for lane in range(half):
                lanes[lane] += lanes[lane + half]
        out[block] = f32(np.sqrt(lanes[0] / 1024.0))


@_kernel(_in(_U32, 2), _out(_U32, 1))
def _peak_bits(bits: Any, out: Any) -> None:
    for block in range(bits.shape[0]):
        peak = u32(0)
        for j in range(256):
            peak = max(peak, u32(bits[block, j] & u32(0x7FFFFFFF)))
        out[block] = peak


@_inner
def _swap(word: Any) -> Any:
    low = u32(u32(word << u32(24)) | u32(u32(word & u32(0xFF00)) << u32(8)))
    return u32(low | u32(u32(u32(word >> u32(8)) & u32(0xFF00)) | u32(word >> u32(24))))


@_kernel(_in(_F32, 2), _in(_F32, 1), _F32, _out(_U32))
def _fixed_encode(x: Any, scales: Any, limit: Any, out: Any) -> None:
    for block in range(x.shape[0]):
        scale = scales[block]
        for j in range(256):
            value = min(max(x[block, j] * scale, -limit), limit)
            out[block, j] = _swap(u32(i32(np.rint(value))))


@_kernel(_in(_U32, 2), _in(_F64, 1), _out(_F32))
def _fixed_decode(lanes: Any, divisors: Any, out: Any) -> None:
    for block in range(lanes.shape[0]):
        divisor = divisors[block]
        for j in range(256):
            out[block, j] = f32(f64(i32(_swap(lanes[block, j]))) / divisor)


def _key(key: int, first: int) -> np.uint64:
    return np.uint64((key + first) & 0xFFFF_FFFF_FFFF_FFFF)


class NumbaKernels:
    """See `Kernels`. Any thread may call; the interpreter lock is released meanwhile."""

    name = "numba"

    def root_mean_square(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """See `Kernels`."""
        out = np.empty(len(x), np.float32)
        _root_mean_square(x, out)
        return out

    def peak_bits(self, x: NDArray[np.float32]) -> NDArray[np.uint32]:
        """See `Kernels`."""
        out = np.empty(len(x), np.uint32)
        _peak_bits(x.view(np.uint32), out)
        return out

    def thc_encode(
        self,
        x: NDArray[np.float32],
        scales: NDArray[np.float32],
        steps: Steps,
        keys: BlockKeys,
        out: NDArray[np.uint8],
    ) -> None:
        """See `Kernels`."""
        rotation, rounding = _key(keys.rotation, keys.first), _key(keys.rounding, keys.first)
        groups = (steps.widths, steps.starts, steps.targets)
        _thc_encode(x, scales, *groups, steps.granularity, rotation, rounding, out)

    def thc_lookup(self, payloads: NDArray[np.uint8], steps: Steps, out: NDArray[np.uint8]) -> None:
        """See `Kernels`."""
        _thc_lookup(payloads, steps.table, out)

    def thc_decode(
        self,
        lanes: NDArray[np.uint8],
        counts: NDArray[np.int32],
        factors: NDArray[np.float32],
        granularity: int,
        keys: BlockKeys,
        out: NDArray[np.float32],
    ) -> None:
        """See `Kernels`."""
        _thc_decode(lanes, counts, factors, granularity, _key(keys.rotation, keys.first), out)

    def fixed_encode(
        self, x: NDArray[np.float32], scales: NDArray[np.float32], limit: np.float32, out: NDArray[np.uint32]
    ) -> None:
        """See `Kernels`."""
        _fixed_encode(x, scales, limit, out)

    def fixed_decode(self, lanes: NDArray[np.uint32], divisors: NDArray[np.float64], out: NDArray[np.float32]) -> None:
        """See `Kernels`."""
        _fixed_decode(lanes, divisors, out)


def make_kernels() -> NumbaKernels:
    """Return the backend; its kernels were compiled when this module was imported."""
    return NumbaKernels()
