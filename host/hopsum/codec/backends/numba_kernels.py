# SPDX-License-Identifier: Apache-2.0
"""The numba backend: `NumbaKernels`, and the kernels of fixed and two-shot. Others are in thc_kernels.

Kernels hold no lock (nogil) and start no threads (threads.py does), but threads that call them may share their blocks.
A kernel is compiled by its first call, which takes seconds once per machine, and comes from numba's cache next to this
file after that. `make_codec` calls every kernel of its codec: make a codec before spawning workers.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hopsum.codec.backends import dither_kernels, range_kernels, stream_kernels, thc_kernels
from hopsum.codec.backends.jit import LazyKernel, f32, f64, filled, i32, inner, kernel, read, u8, u32
from hopsum.codec.backends.kernels import TWO_SHOT_LARGEST, BlockKeys, CodeTable, Form, Kernels, StreamPlan
from hopsum.codec.backends.stream_kernels import ChunkRun
from hopsum.codec.backends.thc_kernels import TURNS, claim_blocks
from hopsum.codec.backends.threads import MIN_THREAD_BYTES, run_parallel
from hopsum.codec.dither import Dither
from hopsum.codec.interface import Bitmaps, Bytes, ChunkStream, Doubles, Floats, Ints, Words, address_of
from hopsum_base.record_kernels import types
from hopsum_base.records import record_copy

_I64, _U8, _U32, _F32, _F64 = types.int64, types.uint8, types.uint32, types.float32, types.float64
_TINY: Final = np.finfo(np.float32).tiny


@inner
def swap(word: int) -> int:
    """Return a word with its four bytes in the other order."""
    low = u32(u32(word << u32(24)) | u32(u32(word & u32(0xFF00)) << u32(8)))
    return u32(low | u32(u32(u32(word >> u32(8)) & u32(0xFF00)) | u32(word >> u32(24))))


@kernel(read(_U32, 2), TURNS, _I64, filled(_U32, 1))
def _peak_bits(bits: Words, turns: NDArray[np.int64], own: int, out: Words) -> None:
    first, end = claim_blocks(turns, own, bits.shape[0])
    while first < end:
        for block in range(first, end):
            peak = u32(0)
            for j in range(256):
                # Magnitudes of floats have the order of their bits without the sign. NaN is above +inf.
                peak = max(peak, u32(bits[block, j] & u32(0x7FFFFFFF)))
            out[block] = peak
        first, end = claim_blocks(turns, own, bits.shape[0])


@kernel(read(_F32, 2), read(_F32, 1), _F32, TURNS, _I64, filled(_U32))
def _fixed_encode(x: Floats, scales: Floats, limit: float, turns: NDArray[np.int64], own: int, out: Words) -> None:
    first, end = claim_blocks(turns, own, x.shape[0])
    while first < end:
        for block in range(first, end):
            scale = scales[block]
            for j in range(256):
                # A block beyond its range (ranges that came too late) is clamped: the integer sum must not wrap.
                value = min(max(x[block, j] * scale, -limit), limit)
                out[block, j] = swap(u32(i32(np.rint(value))))
        first, end = claim_blocks(turns, own, x.shape[0])


@kernel(read(_U32, 2), read(_F64, 1), TURNS, _I64, filled(_F32))
def _fixed_decode(lanes: Words, divisors: Doubles, turns: NDArray[np.int64], own: int, out: Floats) -> None:
    first, end = claim_blocks(turns, own, lanes.shape[0])
    while first < end:
        for block in range(first, end):
            divisor = divisors[block]
            for j in range(256):
                out[block, j] = f32(f64(i32(swap(lanes[block, j]))) / divisor)
        first, end = claim_blocks(turns, own, lanes.shape[0])


@kernel(read(_F32, 1), _I64, TURNS, _I64, filled(_U8))
def _two_shot_encode(x: Floats, bits: int, turns: NDArray[np.int64], own: int, out: Bytes) -> None:
    # A block passes through arrays that stay in the first cache, so memory is read and written once.
    row, codes, most = np.empty(512, f32), np.empty(512, i32), i32((1 << (bits - 1)) - 1)
    words = row.view(np.uint32)
    first, end = claim_blocks(turns, own, out.shape[0])
    while first < end:
        for block in range(first, end):
            # Slices, here and below: with an index that might be negative there is no vector code.
            here, made = x[block * 512 : (block + 1) * 512], out[block]
            for j in range(here.shape[0]):
                row[j] = here[j]
            row[here.shape[0] :] = f32(0)
            peak, scale = u32(0), made[:4].view(np.float32)
            for j in range(512):
                peak = max(peak, u32(words[j] & u32(0x7FFFFFFF)))
            if peak > u32(TWO_SHOT_LARGEST):
                row[:] = f32(0)
            scale.view(np.uint32)[0] = peak
            scale[0] = f32(scale[0] / f32(most))
            per_scale = f32(f32(1) / scale[0]) if scale[0] > _TINY else f32(0)
            for j in range(512):
                codes[j] = i32(np.rint(f32(row[j] * per_scale))) + most
            if peak > u32(TWO_SHOT_LARGEST):
                scale[0] = np.nan
            sent = made[4:]
            sent[:] = u8(0)
            for field in range(8 // bits):
                part, shift = codes[field * sent.shape[0] :], i32(field * bits)
                for j in range(sent.shape[0]):
                    sent[j] |= u8(part[j] << shift)
        first, end = claim_blocks(turns, own, out.shape[0])


@kernel(read(_U8, 2), _I64, _F32, TURNS, _I64, filled(_F32, 1))
def _two_shot_add(blocks: Bytes, bits: int, factor: float, turns: NDArray[np.int64], own: int, out: Floats) -> None:
    codes, most, mask = np.empty(512, i32), i32((1 << (bits - 1)) - 1), i32((1 << bits) - 1)
    first, end = claim_blocks(turns, own, blocks.shape[0])
    while first < end:
        for block in range(first, end):
            here, sent = out[block * 512 : (block + 1) * 512], blocks[block, 4:]
            for field in range(8 // bits):
                part, shift = codes[field * sent.shape[0] :], i32(field * bits)
                for j in range(sent.shape[0]):
                    part[j] = ((i32(sent[j]) >> shift) & mask) - most
            scale = f32(blocks[block, :4].view(np.float32)[0] * factor)
            for j in range(here.shape[0]):
                here[j] += f32(f32(codes[j]) * scale)
        first, end = claim_blocks(turns, own, blocks.shape[0])


_ENCODE: Final[dict[int, LazyKernel]] = {8: thc_kernels.encode8, 16: thc_kernels.encode16}
_DECODE: Final[dict[int, LazyKernel]] = {8: thc_kernels.decode8, 16: thc_kernels.decode16}
_DEQUANTIZE: Final[dict[int, LazyKernel]] = {8: thc_kernels.dequantize8, 16: thc_kernels.dequantize16}
"""Kernels by the bits of a lane."""


def _key(key: int, first: int) -> np.uint64:
    # numba takes no Python integer beyond 64 bits. Keys add up modulo 2^64.
    return np.uint64((key + first) & 0xFFFF_FFFF_FFFF_FFFF)


@lru_cache(64)
def _template(plan: StreamPlan) -> ChunkRun:
    """Return the record of a vector with what all vectors of a codec have in common."""
    form, table, dither, run = plan.form, plan.table, plan.dither, ChunkRun()
    if dither is None:
        kernels = _ENCODE[form.lane_bits], _DECODE[form.lane_bits], _DEQUANTIZE[form.lane_bits]
    else:
        kernels = dither_kernels.dither_encode, dither_kernels.dither_decode, dither_kernels.dither_dequantize
        bounds, values = _result_arrays(dither)
        run.is_dithered, run.unit, run.code_bits = True, dither.unit, form.code_bits
        run.known, run.known_ranks = address_of(dither.own), len(dither.own)
        run.bounds, run.values = address_of(bounds), address_of(values)
        run.counts, run.classes = len(bounds), bounds.shape[1] + 1
    run.encode, run.decode, run.dequantize = [each.address for each in kernels]
    run.block_elements, run.up_bytes, run.down_bytes = form.block_elements, form.up_bytes, form.down_bytes
    run.table, run.table_entries, run.is_identity = address_of(table.values), len(table.values), table.identity
    run.granularity, run.group = table.granularity, form.group
    run.scale_unit, run.sum_unit, run.least = plan.scale_unit, plan.sum_unit, plan.least
    return run


_WHOLE_SUMS: Final = np.zeros((1, 0), np.int32), np.zeros((1, 16), np.int16)


def _result_arrays(dither: Dither) -> tuple[NDArray[np.int32], NDArray[np.int16]]:
    """Return bounds and values as kernels take them: of one row where results are whole sums."""
    if dither.results is None:
        return _WHOLE_SUMS
    return dither.results.bounds, dither.results.values.reshape(-1, 16)


class NumbaKernels(Kernels):
    """The compiled kernels. Any thread may call. The interpreter lock is released meanwhile.

    Threads call a kernel once each and share the blocks in there (`claim_blocks`): to come back to Python for every few
    blocks costs about 7 us each time, and the interpreter lock.
    """

    name = "numba"

    def __init__(self, threads: int) -> None:
        self.threads = threads

    def root_mean_square(self, x: Floats, size: int) -> Floats:
        out = np.empty(-(-len(x) // size), np.float32)
        self._run(len(out), x.nbytes, range_kernels.root_mean_square, (x, size), out)
        return out

    def root_mean_square_of_sum(self, x: Floats, y: Floats, size: int) -> Floats:
        out = np.empty(-(-len(x) // size), np.float32)
        self._run(len(out), 2 * x.nbytes, range_kernels.root_mean_square_of_sum, (x, y, size), out)
        return out

    def peak_bits(self, x: Floats) -> Words:
        out = np.empty(len(x), np.uint32)
        self._run(len(x), x.nbytes, _peak_bits, (x.view(np.uint32),), out)
        return out

    def thc_encode(
        self, x: Floats, scales: Floats, shifts: Ints, table: CodeTable, form: Form, keys: BlockKeys, out: Bytes
    ) -> None:
        rotation, rounding = _key(keys.rotation, keys.first), _key(keys.rounding, keys.first)
        if keys.shift >= 0:
            form_ = (table.granularity, form.code_bits, form.group)
            dither = _key(keys.dither, keys.first)
            dithered = (x, scales, shifts, *form_, rotation, rounding, dither, keys.shift)
            self._run(len(x), x.nbytes, dither_kernels.dither_encode, dithered, out)
        else:
            given = (x, scales, shifts, *table, form.group, rotation, rounding)
            self._run(len(x), x.nbytes, _ENCODE[form.lane_bits], given, out)

    def thc_dequantize(
        self,
        payloads: Bytes,
        factors: Floats,
        table: CodeTable,
        form: Form,
        keys: BlockKeys,
        out: Floats,
        subtract: bool,
    ) -> None:
        given = (payloads, factors, *table, form.group, _key(keys.rotation, keys.first), subtract)
        self._run(len(out), out.nbytes, _DEQUANTIZE[form.lane_bits], given, out)

    def thc_decode(
        self, lanes: Bytes, counts: Ints, factors: Floats, granularity: int, form: Form, keys: BlockKeys, out: Floats
    ) -> Ints:
        peaks = np.empty(len(lanes), np.int32)
        given = (lanes, counts, factors, granularity, _key(keys.rotation, keys.first))
        self._run(len(out), out.nbytes, _DECODE[form.lane_bits], given, out, peaks)
        return peaks

    def dither_dequantize(
        self,
        payloads: Bytes,
        factors: Floats,
        dither: Dither,
        rank: int,
        form: Form,
        keys: BlockKeys,
        out: Floats,
        subtract: bool,
    ) -> None:
        numbers = (dither.unit, dither.granularity, form.code_bits, form.group)
        both = _key(keys.rotation, keys.first), _key(keys.dither, keys.first)
        given = (payloads, factors, dither.own[rank], *numbers, *both, subtract)
        self._run(len(out), out.nbytes, dither_kernels.dither_dequantize, given, out)

    def dither_decode(
        self,
        results: Bytes,
        contributors: Bitmaps,
        factors: Floats,
        dither: Dither,
        form: Form,
        keys: BlockKeys,
        out: Floats,
    ) -> Ints:
        peaks = np.empty(len(results), np.int32)
        numbers = (dither.unit, dither.granularity, form.code_bits, form.group)
        both = _key(keys.rotation, keys.first), _key(keys.dither, keys.first)
        given = (results, contributors, factors, dither.own, *_result_arrays(dither), *numbers, *both)
        self._run(len(out), out.nbytes, dither_kernels.dither_decode, given, out, peaks)
        return peaks

    def fixed_encode(self, x: Floats, scales: Floats, limit: np.float32, out: Words) -> None:
        self._run(len(x), x.nbytes, _fixed_encode, (x, scales, limit), out)

    def fixed_decode(self, lanes: Words, divisors: Doubles, out: Floats) -> None:
        self._run(len(out), out.nbytes, _fixed_decode, (lanes, divisors), out)

    def two_shot_encode(self, x: Floats, bits: int, out: Bytes) -> None:
        self._run(len(out), out.nbytes, _two_shot_encode, (x, bits), out)

    def two_shot_add(self, blocks: Bytes, bits: int, factor: np.float32, out: Floats) -> None:
        self._run(len(blocks), blocks.nbytes, _two_shot_add, (blocks, bits, factor), out)

    def stream(
        self,
        plan: StreamPlan,
        x: Floats,
        own: Words,
        payloads: Bytes,
        mean: Floats | None,
        keys: BlockKeys,
        rank: int,
        kept: tuple[Floats, Floats] | None,
    ) -> ChunkStream | None:
        # Several threads share the blocks of a whole vector. The worker's loop, which would call, is one thread.
        if self.threads > 1:
            return None
        taken, blocks = 8 * len(payloads), len(own)
        # One array, for one look at its address.
        room = np.zeros(taken + 28 * blocks, np.uint8)
        by_block, run = room[taken:], record_copy(_template(plan))
        stream = ChunkStream(payloads, room[:taken].view(np.uint64), run=run)
        units, scales, shifts = by_block[: 8 * blocks], by_block[8 * blocks : 12 * blocks], by_block[12 * blocks :]
        stream.scales = scales.view(np.float32), shifts[: 4 * blocks].view(np.int32), units.view(np.float64)
        before, pending = kept or (x, x)
        stream.kept = (x, before, pending, own, payloads, x if mean is None else mean, room, plan.table.values)
        # As `address_of`, without a call for each of seven arrays of every vector.
        addresses = [each.__array_interface__["data"][0] for each in stream.kept[:7]]
        run.x, run.before, run.pending, run.own, run.payloads, run.mean, run.contributors = addresses
        run.units = run.contributors + taken
        run.scales = run.units + 8 * blocks
        run.shifts = run.scales + 4 * blocks
        run.block_counts = run.shifts + 4 * blocks
        run.factors = run.block_counts + 4 * blocks
        run.peaks = run.factors + 4 * blocks
        run.elements, run.has_feedback, run.rank = len(x), kept is not None, rank
        run.rotation, run.rounding, run.dither = keys.rotation, keys.rounding, keys.dither
        run.dither_shift = max(keys.shift, 0)
        stream.scale_kernel, stream.encoder = stream_kernels.begin, stream_kernels.encode
        stream.decoder = None if mean is None else stream_kernels.decode
        return stream

    def _run(self, blocks: int, size: int, work: LazyKernel, given: tuple[Any, ...], *filled: NDArray[Any]) -> None:
        """Call a kernel on as many threads as its bytes are worth, each with `turns`, shared by all, and its number."""
        # A thread wakes up in 0.1 ms: short arrays are done sooner without.
        threads = min(self.threads, size // MIN_THREAD_BYTES)
        if threads <= 1:
            work.run(*given, np.zeros(1, np.int64), 0, *filled)
            return
        # Each thread begins at a run of its own: neighbouring blocks would share cache lines.
        turns = np.array([blocks * run // threads for run in range(threads)], np.int64)
        run_parallel([partial(work, *given, turns, own, *filled) for own in range(threads)], self.threads)
