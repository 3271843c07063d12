# SPDX-License-Identifier: Apache-2.0
"""The base of `thc` and `uhc`: rotated coordinates, rounded without bias to the values of a table, summed in lanes.

A block of 1024 elements (lanes of 8 bits) or 512 (lanes of 16 bits) is one chunk. Rotated, its coordinates are
nearly N(0, r^2) whatever the block was. Divided by the range r they are truncated at +-t, and rounded without bias
to the table's values. The inverse rotation turns the sum of the values into the mean.

    rotation="block"   random signs and a Hadamard matrix per block, new ones in every all-reduce
    rotation="full"    before that, the same across the blocks of a slice (rotation.py): energy in one block spreads
    rotation="none"    neither: coordinates are elements, and truncation takes what exceeds t r; for comparisons

    scale="block"      r is the largest root mean square of the block over the workers: 32 bits per block up
    scale="tensor"     r is that of the whole vector, one number, as published (Li et al., NSDI 2024). Together with
                       rotation="block" it fails where few blocks hold the energy: their coordinates are truncated

    result_bits=6      the switch packs lanes of 8 bits into 6, in RESULT alone: sums are at most 63

    digits=k           k blocks of 256 elements in a chunk of ADD32, each a digit of every lane (digits.py)

A block whose own root mean square exceeds r is clipped to it, coordinate by coordinate: what lies beyond +-t r stays
in the error feedback. That happens to a worker whose ranges came too late for the quorum, and with scale="tensor".

Below TINY a range counts as zero (all of its blocks is quantisation error), above HUGE as not finite: between them no
float32 operation here overflows or loses precision to subnormal numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hopsum.codec.backends import load_kernels
from hopsum.codec.backends.kernels import (
    DIGIT_LANE_BITS,
    FRACTION_BITS,
    MAX_SHIFT,
    THC_BLOCK,
    BlockKeys,
    Form,
    Kernels,
    TableSteps,
)
from hopsum.codec.base import (
    CodecError,
    ReductionContext,
    blocks_of,
    contributor_counts,
    padded_rows,
    require_rows,
    require_vector,
    require_workers,
)
from hopsum.codec.hashing import ACROSS, ROTATION, ROUNDING, derive_key
from hopsum.codec.lookup_table_options import (
    LANE_BITS,
    require_code_group,
    require_digits,
    require_options,
    require_result_bits,
    require_table,
)
from hopsum.codec.pairs import CHUNK_BLOCKS, pair_payloads, pair_table, split_payloads, split_sums
from hopsum.codec.range_codec import RangeCodec
from hopsum.codec.ranges import INFINITE, SharedRanges, require_finite, require_ranges, require_usable
from hopsum.codec.rotation import rotate_blocks, rotate_blocks_back
from hopsum.codec.table import LookupTable
from hopsum.codec.table_search import PAIRED_SUM_BITS
from hopsum_wire import LANE_GROUP_CODES, Op
from hopsum_wire._layout import PACKED_LANE_BITS
from hopsum_wire.payload import SHAPES, unpack_sums

TINY: Final = 2.0**-100
HUGE: Final = 2.0**120
CODE_BITS: Final = 4
"""The bits of codes that the switch looks up. Wider codes travel as the values that they are."""
_RUN_ELEMENTS: Final = 512 * THC_BLOCK
"""The elements of a run of paired codes, digits or packed results: a byte each, 512 KiB, between kernels and payloads.
"""
_OPS: Final = {(8, True): Op.LOOKUP_ADD8, (16, True): Op.LOOKUP_ADD16, (8, False): Op.ADD8, (16, False): Op.ADD16} | {
    (DIGIT_LANE_BITS, False): Op.ADD32
}


class LookupTableCodec(RangeCodec):
    """See the module. The contract is `RangeCodec`."""

    def __init__(
        self,
        workers: int,
        table: LookupTable,
        *,
        lane_bits: int,
        rotation: str,
        scale: str,
        kernels: Kernels | None,
        code_group: int = LANE_GROUP_CODES,
        paired: bool = False,
        result_bits: int | None = None,
        digits: int | None = None,
    ) -> None:
        """Make the codec of a job. All ranks give the same arguments.

        Args:
            table: of up to 16 values, which the switch looks up, or T[z] = z.
            code_group: codes that the job's switch takes as a group, see `hopsum_wire.payload`.
            paired: whether two codes of up to 4 values share a symbol (pairs.py). Lanes have 8 bits then.
            result_bits: of a sum in RESULT, those of the lane by default, or 6.
            digits: elements of a lane of 32 bits, in place of lanes of `lane_bits`. T[z] = z then.

        Raises:
            CodecError: an unknown option, or a sum of `workers` table values may overflow a lane.
        """
        require_workers(workers)
        require_options(lane_bits, rotation, scale)
        require_code_group(code_group)
        if paired and lane_bits != LANE_BITS[0]:
            raise CodecError(f"paired codes in lanes of {lane_bits} bits: their lanes have {LANE_BITS[0]} bits")
        packed = require_result_bits(result_bits, lane_bits, paired)
        if digits is None:
            require_table(workers, table, PAIRED_SUM_BITS if paired else PACKED_LANE_BITS if packed else lane_bits)
        else:
            require_digits(workers, table, digits)
            lane_bits = DIGIT_LANE_BITS
        self.workers = workers
        self.table = table
        self.granularity, self.bound = table.granularity, table.bound
        self.rotation, self.scale, self.lane_bits = rotation, scale, lane_bits
        self.result_bits = PACKED_LANE_BITS if packed else lane_bits
        looked_up = table.bits <= CODE_BITS and digits is None
        if packed and not looked_up:
            raise CodecError(
                f"result_bits={result_bits} with codes of {table.bits} bits: the switch packs sums of codes that it "
                f"looks up, which have {CODE_BITS} bits at most"
            )
        self._form = Form(lane_bits, looked_up, rotation != "none", code_group)
        self.code_group = code_group
        self.op = Op.LOOKUP_ADD6 if packed else _OPS[lane_bits, looked_up]
        self.block_elements = self._form.block_elements
        self.chunk_blocks = digits or (CHUNK_BLOCKS if paired else 1)
        self.digits = None if digits is None else (digits, self.granularity)
        self._radix = workers * self.granularity + 1
        self.lookup: tuple[int, ...] | None = None
        if looked_up:
            self.lookup = pair_table(table.values) if paired else table.switch_values
        self._kernels = kernels or load_kernels("auto")
        self.backend = self._kernels.name
        self._steps = TableSteps.of(table.values)

    def prepare(self, x: NDArray[np.float32], context: ReductionContext) -> NDArray[np.float32]:
        """Return the vector to encode: x itself, or with full rotation a new one, padded to whole blocks."""
        require_vector(x)
        if self.rotation != "full":
            return x
        blocks = blocks_of(x.size, self.block_elements)
        prepared = np.zeros(blocks * self.block_elements, np.float32)
        prepared[: x.size] = x
        rotate_blocks(prepared.reshape(blocks, -1), _across_key(context))
        return prepared

    def ranges(self, x: NDArray[np.float32]) -> NDArray[np.uint32]:
        """Return the root mean square of each block, or of the whole vector. See `RangeCodec`."""
        require_vector(x)
        values = self._block_ranges(x)
        if self.scale == "tensor":
            energy = np.square(values, dtype=np.float64).sum() * self.block_elements
            values = np.array([math.sqrt(energy / x.size)]).astype(np.float32)
        bits = values.view(np.uint32)
        if not values.max() <= HUGE:
            bits[~(values <= HUGE)] = INFINITE
        return bits

    @property
    def streams(self) -> bool:
        """Return whether blocks are independent of each other: not where the rotation goes across them."""
        return self.rotation != "full"

    def encode(
        self,
        x: NDArray[np.float32],
        own: NDArray[np.uint32],
        shared: SharedRanges,
        context: ReductionContext,
        *,
        first_block: int = 0,
        out: NDArray[np.uint8] | None = None,
    ) -> NDArray[np.uint8]:
        """Return packed codes, or lanes. See `RangeCodec`. A block that exceeds the shared range is clipped to it."""
        require_vector(x)
        blocks = blocks_of(x.size, self.block_elements)
        ranges = 1 if self.scale == "tensor" else blocks
        require_ranges(own, ranges, "own")
        require_finite(own)
        scales, shifts = self._scales(self._own_ranges(x, own), self._shared_ranges(shared, blocks))
        parts = _numbered(padded_rows(x, self.block_elements))
        chunks_in_all = blocks_of(blocks, self.chunk_blocks)
        payloads = np.empty((chunks_in_all, SHAPES[self.op].up_bytes), np.uint8) if out is None else out
        for run in self._runs(blocks):
            chunks = self._chunks(run)
            codes = payloads[chunks] if self.chunk_blocks == 1 else self._room_for_codes(chunks)
            for rows, part in _within(parts, run):
                own_codes = codes[rows.start - run.start : rows.stop - run.start]
                keys = _keys(context, first_block + rows.start)
                self._kernels.thc_encode(part, scales[rows], shifts[rows], self._steps, self._form, keys, own_codes)
            if self.digits is not None:
                self._kernels.pack_digits(codes, self.chunk_blocks, self._radix, payloads[chunks])
            elif self.chunk_blocks > 1:
                payloads[chunks] = pair_payloads(codes)
        return payloads

    def decode(
        self,
        results: NDArray[np.uint8],
        contributors: NDArray[np.uint64],
        shared: SharedRanges,
        elements: int,
        context: ReductionContext,
        lost: NDArray[np.bool_] | None = None,
        out: NDArray[np.float32] | None = None,
        *,
        first_block: int = 0,
    ) -> NDArray[np.float32]:
        """Return the mean. See `RangeCodec`. With full rotation in a new array, which has whole blocks."""
        blocks = blocks_of(elements, self.block_elements)
        chunks = blocks_of(blocks, self.chunk_blocks)
        require_rows(results, chunks, SHAPES[self.op].down_bytes, f"results of {elements} elements")
        require_ranges(contributors, blocks, "contributors instead of")
        counts = contributor_counts(contributors, self.workers, lost)
        peaks = np.empty(blocks, np.int32)
        factors = self._factors(self._shared_ranges(shared, blocks), counts)

        def decode(rows: slice, out: NDArray[np.float32]) -> None:
            given = (self._sums(results, rows), counts[rows], factors[rows], self.granularity, self._form)
            peaks[rows] = self._kernels.thc_decode(*given, _keys(context, first_block + rows.start), out)

        if out is None or self.rotation == "full":
            out = self._result(elements)
        self._by_rows(decode, out)
        self._require_sums(peaks, counts, first_block)
        return self._unprepared(out, elements, context)

    def contribution(
        self,
        payloads: NDArray[np.uint8],
        shared: SharedRanges,
        elements: int,
        context: ReductionContext,
        included: NDArray[np.bool_] | None = None,
        *,
        first_block: int = 0,
    ) -> NDArray[np.float32]:
        """Return what codes add to a sum. See `RangeCodec`."""
        out = self._result(elements)
        self._dequantize(out, payloads, shared, _keys(context, first_block), included, subtract=False)
        return self._unprepared(out, elements, context)

    def subtract_contribution(
        self,
        x: NDArray[np.float32],
        payloads: NDArray[np.uint8],
        shared: SharedRanges,
        context: ReductionContext,
        included: NDArray[np.bool_] | None = None,
        *,
        first_block: int = 0,
    ) -> None:
        """Subtract what codes add to a sum, in one pass unless the rotation is full. See `RangeCodec`."""
        if self.rotation == "full":
            super().subtract_contribution(x, payloads, shared, context, included)
        else:
            self._dequantize(x, payloads, shared, _keys(context, first_block), included, subtract=True)

    def _dequantize(
        self,
        x: NDArray[np.float32],
        payloads: NDArray[np.uint8],
        shared: SharedRanges,
        keys: BlockKeys,
        included: NDArray[np.bool_] | None,
        *,
        subtract: bool,
    ) -> None:
        """Fill x with what payloads decode to, or subtract it."""
        blocks, up_bytes = blocks_of(x.size, self.block_elements), SHAPES[self.op].up_bytes
        require_rows(payloads, blocks_of(blocks, self.chunk_blocks), up_bytes, f"payloads of {x.size} elements")
        factors = self._factors(self._shared_ranges(shared, blocks), np.ones(blocks, np.int32))
        if included is not None:
            require_ranges(included, blocks, "included blocks instead of")
            factors[~included] = 0

        def dequantize(rows: slice, out: NDArray[np.float32]) -> None:
            given = (self._own_codes(payloads, rows), factors[rows], self._steps, self._form)
            self._kernels.thc_dequantize(*given, keys.advanced(rows.start), out, subtract)

        self._by_rows(dequantize, x)

    def _block_ranges(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        found = [self._kernels.root_mean_square(part) for _, part in _numbered(padded_rows(x, self.block_elements))]
        return found[0] if len(found) == 1 else np.concatenate(found)

    def _own_ranges(self, x: NDArray[np.float32], own: NDArray[np.uint32]) -> NDArray[np.float32]:
        """Return root mean squares of blocks: one range of a tensor says too little of them."""
        return own.view(np.float32) if self.scale == "block" else self._block_ranges(x)

    def _shared_ranges(self, shared: SharedRanges, blocks: int) -> NDArray[np.float64]:
        require_ranges(shared.values, 1 if self.scale == "tensor" else blocks, "shared")
        require_usable(shared)
        return np.full(blocks, shared.values, np.float64)

    def _require_sums(self, peaks: NDArray[np.int32], counts: NDArray[np.int32], first_block: int) -> None:
        """Refuse sums that this table cannot make: 16-bit arithmetic relies on it, and ranks would diverge."""
        beyond = np.flatnonzero(peaks > counts * self.granularity)
        if beyond.size:
            block = int(beyond[0])
            chunk = (first_block + block) // self.chunk_blocks
            raise CodecError(
                f"chunk {chunk}: a lane of {int(peaks[block])} from {int(counts[block])} workers, "
                f"but the table ends at {self.granularity}: the switch has another table than this codec"
            )

    def _by_rows(self, work: Callable[[slice, NDArray[np.float32]], None], out: NDArray[np.float32]) -> None:
        """Let work fill, or change, the rows of out. The last one may be shorter than a block."""
        columns = self.block_elements
        whole, rest = divmod(out.size, columns)
        rows = out[: whole * columns].reshape(whole, columns)
        for run in self._runs(whole):
            work(run, rows[run])
        if rest:
            tail = np.zeros((1, columns), np.float32)
            tail[0, :rest] = out[whole * columns :]
            work(slice(whole, whole + 1), tail)
            out[whole * columns :] = tail[0, :rest]

    def _runs(self, blocks: int) -> list[slice]:
        """Return runs of blocks to work on at a time: all at once, or as many as leave bytes between in a cache."""
        step = _RUN_ELEMENTS // self.block_elements // self.chunk_blocks * self.chunk_blocks
        if self.chunk_blocks == 1 and self.op != Op.LOOKUP_ADD6:
            step = max(blocks, 1)
        return [slice(start, min(start + step, blocks)) for start in range(0, blocks, step)]

    def _chunks(self, rows: slice) -> slice:
        """Return the chunks that hold these blocks."""
        return slice(rows.start // self.chunk_blocks, blocks_of(rows.stop, self.chunk_blocks))

    def _sums(self, results: NDArray[np.uint8], rows: slice) -> NDArray[np.uint8]:
        """Return the sums of these blocks, uint8[rows, 1024], or bytes[rows, 256] of digits."""
        if self.op == Op.LOOKUP_ADD6:
            return unpack_sums(results[rows])
        if self.chunk_blocks == 1:
            return results[rows]
        chunks = self._chunks(rows)
        first = rows.start - chunks.start * self.chunk_blocks
        sums = split_sums(results[chunks]) if self.digits is None else self._split(results[chunks])
        return sums[first : first + rows.stop - rows.start]

    def _own_codes(self, payloads: NDArray[np.uint8], rows: slice) -> NDArray[np.uint8]:
        """Return the payloads of these blocks, each by itself."""
        if self.chunk_blocks == 1:
            return payloads[rows]
        chunks = self._chunks(rows)
        first = rows.start - chunks.start * self.chunk_blocks
        codes = split_payloads(payloads[chunks]) if self.digits is None else self._split(payloads[chunks])
        return codes[first : first + rows.stop - rows.start]

    def _split(self, payloads: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return the digits of chunks, a row for each block."""
        found = np.empty((len(payloads) * self.chunk_blocks, self.block_elements), np.uint8)
        self._kernels.split_digits(payloads, self.chunk_blocks, self._radix, found)
        return found

    def _room_for_codes(self, chunks: slice) -> NDArray[np.uint8]:
        """Return room for the codes of blocks before they share chunks. A missing block has codes 0."""
        return np.zeros(((chunks.stop - chunks.start) * self.chunk_blocks, self._form.up_bytes), np.uint8)

    def _result(self, elements: int) -> NDArray[np.float32]:
        """Return an array for what is decoded: with full rotation the last block as a whole."""
        whole = blocks_of(elements, self.block_elements) * self.block_elements
        return np.empty(whole if self.rotation == "full" else elements, np.float32)

    def _unprepared(self, x: NDArray[np.float32], elements: int, context: ReductionContext) -> NDArray[np.float32]:
        """Undo `prepare`, in place."""
        if self.rotation == "full":
            rotate_blocks_back(x.reshape(-1, self.block_elements), _across_key(context))
        return x[:elements]

    def _scales(
        self, own: NDArray[np.float32], shared: NDArray[np.float64]
    ) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        """Return what elements are multiplied with, 0 where the shared range is zero, and the shifts k.

        Between kernels, with cold caches, each operation takes some 10 us on the calling thread alone: few of them.
        """
        unit = self.granularity / (2 * self.bound) * 2.0**FRACTION_BITS
        shifts = np.zeros(own.shape, np.int32)
        used = np.where(shared < TINY, np.inf, shared)
        if self._form.rotated:
            unit /= math.sqrt(self.block_elements)
        if self._form.rotated and (own > used).any():
            part, exponent = np.frexp(own / used)
            shifts = np.clip(np.where(part == 0.5, exponent - 1, exponent), 0, MAX_SHIFT).astype(np.int32)
            used = np.maximum(np.ldexp(used, shifts), own)
        return (unit / used).astype(np.float32), shifts

    def _factors(self, shared: NDArray[np.float64], counts: NDArray[np.int32]) -> NDArray[np.float32]:
        """Return the factor of rotated-back integers, 0 where the shared range is zero or no worker is in."""
        size = math.sqrt(self.block_elements) if self._form.rotated else 1.0
        unit = self.bound / (size * self.granularity)
        used = np.where((shared < TINY) | (counts == 0), 0.0, shared)
        return (used * unit / np.maximum(counts, 1)).astype(np.float32)


def _keys(context: ReductionContext, first: int) -> BlockKeys:
    rotation = derive_key(context.seed, context.step, ROTATION)
    return BlockKeys(rotation, derive_key(context.seed, context.step, ROUNDING, context.rank), first)


def _across_key(context: ReductionContext) -> int:
    return derive_key(context.seed, context.step, ACROSS)


def _within(parts: list[tuple[int, NDArray[np.float32]]], run: slice) -> Iterator[tuple[slice, NDArray[np.float32]]]:
    """Yield the blocks of a run, part by part, with their numbers."""
    for first, part in parts:
        start, stop = max(first, run.start), min(first + len(part), run.stop)
        if start < stop:
            yield slice(start, stop), part[start - first : stop - first]


def _numbered(parts: list[NDArray[np.float32]]) -> list[tuple[int, NDArray[np.float32]]]:
    """Pair each part of a vector with the number of its first block. Parts without blocks are left out."""
    firsts = accumulate((len(part) for part in parts), initial=0)
    return [(first, part) for first, part in zip(firsts, parts, strict=False) if len(part)]
