# SPDX-License-Identifier: Apache-2.0
"""Codecs `thc` and `uhc`: rotated coordinates, rounded without bias to few values, which the switch adds in lanes.

A block of 1024 elements (lanes of 8 bits) or 512 (lanes of 16 bits) is one chunk. Random signs and a Hadamard matrix,
new ones in every all-reduce, rotate each block: its coordinates are nearly N(0, r^2), whatever the block was. Divided
by the range r they are truncated at +-t, and rounded without bias to the values of a table. The inverse rotation turns
the sum of the values into the mean. r is the largest root mean square of the block over the workers: one lane of 32
bits per block, 0.8 % of the bytes up. With one range for the whole vector, as published, a block whose coordinates are
small against the range has only a few values of the table left, and layers of a network differ by orders of magnitude.

    thc    4-bit codes, looked up and added by the switch (Li et al., NSDI 2024). The values of the table are not evenly
           spaced: they are the ones of least error for N(0, 1) coordinates that a job of so many workers can add in its
           lanes (lookup_table.py)
    uhc    evenly spaced codes of 1 to 8 bits, which are their own values (uniform compression of the same paper). Codes
           of up to 4 bits travel as 4-bit codes, with the identity as the job's table. Wider codes are sent as lanes,
           without a lookup

Lanes of 8 bits hold sums up to 255: more than 17 workers need codes of fewer than 4 bits, 8, 4 or 2 values, which
travel as 4-bit codes all the same. Lanes of 16 bits hold sums up to 65535, for twice the bytes down. With
`result_bits=6` the table's sum stays below 64, and the switch packs four sums into three bytes of a result
(`hopsum_wire.payload`).

Pairs, `thc:bits=2`: a 4-bit symbol carries two 2-bit codes, and an 8-bit lane two 4-bit sums. The switch knows nothing
of pairs. Its table maps the symbol 4 a + b to 16 T[a] + T[b], so that the sum of n symbols is 16 times the sum of the
values of the a's plus that of the b's. While n g <= 15 neither half of a lane overflows, which is the same as n * 17 g
<= 255: the bound that the controller proves for any table of 8-bit lanes. A chunk has two blocks of 1024 elements.
Symbol i carries code i of the first block in its higher bits, and code i of the second block in its lower bits. A
vector with an odd number of blocks leaves the last lower codes 0.

A block whose own root mean square exceeds r is clipped to it, coordinate by coordinate: what lies beyond +-t r stays
in the error feedback. That happens to a worker whose ranges came too late for the quorum.

Below TINY a range counts as zero (all of its blocks is quantisation error), above HUGE as not finite: between them no
float32 operation here overflows or loses precision to subnormal numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Final

import numpy as np

from hopsum.codec.backends import load_kernels
from hopsum.codec.backends.kernels import (
    FRACTION_BITS,
    MAX_SHIFT,
    THC_BLOCK,
    BlockKeys,
    CodeTable,
    Form,
    Kernels,
    StreamPlan,
)
from hopsum.codec.hashing import ROTATION, ROUNDING, derive_key
from hopsum.codec.interface import (
    Bitmaps,
    Bytes,
    ChunkStream,
    CodecError,
    Doubles,
    Flags,
    Floats,
    Ints,
    ReductionContext,
    Words,
    blocks_of,
    contributor_counts,
    padded_rows,
    require_rows,
    require_vector,
    require_workers,
)
from hopsum.codec.lookup_table import (
    PAIRED_BITS,
    PAIRED_SUM_BITS,
    LookupTable,
    best_table,
    expected_nmse,
    paired_table,
    require_switch_table,
)
from hopsum.codec.range_codec import RangeCodec
from hopsum.codec.vector_reduction import INFINITE, SharedRanges, require_finite, require_ranges, require_usable
from hopsum_wire import CODE_GROUPS, LANE_GROUP_CODES, Op
from hopsum_wire._layout import PACKED_LANE_BITS
from hopsum_wire.payload import SHAPES, unpack_sums

TINY: Final = 2.0**-100
HUGE: Final = 2.0**120
CODE_BITS: Final = 4
"""The bits of codes that the switch looks up. Wider codes travel as the values that they are."""
LANE_BITS: Final = (8, 16)
MIN_BOUND: Final = 0.25
"""The least bound of the truncation, in standard deviations: the rotation's 32 bits are enough for it (kernels.py)."""
MAX_UHC_BITS: Final = 8
PAIR_BLOCKS: Final = 2
"""The blocks of a chunk of paired codes."""
PAIR_LOW_BITS: Final = 0x33
"""The code of the second block in both symbols of a byte."""
_PAIR_CODES: Final = 1 << PAIRED_BITS
_RUN_ELEMENTS: Final = 512 * THC_BLOCK
"""The elements of a run of paired codes or packed results: a byte each, 512 KiB, between kernels and payloads. A second
level cache holds them, so that they are read before they have left it."""
_OPS: Final = {(8, True): Op.LOOKUP_ADD8, (16, True): Op.LOOKUP_ADD16, (8, False): Op.ADD8, (16, False): Op.ADD16}
_QUARTERS: Final = range(2, 161)
"""Truncated fractions that `uniform_table` tries, as exponents of 2^(-1/4): 0.7 to 1e-12."""


class LookupTableCodec(RangeCodec):
    """A codec that rotates blocks and rounds them to the values of a lookup table: the base of `Thc` and `Uhc`.

    Codes of up to 4 bits travel as they are, and the switch looks up the value of each. Wider codes are the values
    (T[z] = z) and travel as lanes, which the switch adds without a table.

    Args:
        workers: number of workers of the job.
        table: up to 16 values, which the switch looks up, or T[z] = z.
        lane_bits: width of a lane of the switch, 8 or 16 bits.
        kernels: of a backend; "auto" on one thread if left out.
        code_group: codes that the job's switch takes as a group, see `hopsum_wire.payload`.
        paired: two codes of up to 4 values share a symbol. Lanes have 8 bits then.
        result_bits: of a sum in RESULT, those of the lane by default, or 6.

    Raises:
        CodecError: an unknown option, or a sum of `workers` table values may overflow a lane.
    """

    # Blocks are independent of each other, so that any run of them can be encoded or decoded by itself.
    streams = True

    def __init__(
        self,
        workers: int,
        table: LookupTable,
        *,
        lane_bits: int,
        kernels: Kernels | None,
        code_group: int = LANE_GROUP_CODES,
        paired: bool = False,
        result_bits: int | None = None,
    ) -> None:
        require_workers(workers)
        _require_lane_bits(lane_bits)
        if code_group not in CODE_GROUPS:
            raise CodecError(f"codes in groups of {code_group}: one of {', '.join(map(str, CODE_GROUPS))}")
        if paired and lane_bits != LANE_BITS[0]:
            raise CodecError(f"paired codes in lanes of {lane_bits} bits: their lanes have {LANE_BITS[0]} bits")
        packed = _packs_results(result_bits, lane_bits, paired)
        # Pairs share a lane, and packed results keep 6 bits of it: sums need to fit there.
        sum_bits = lane_bits
        if paired:
            sum_bits = PAIRED_SUM_BITS
        elif packed:
            sum_bits = PACKED_LANE_BITS
        _require_table(workers, table, sum_bits)
        self.workers = workers
        self.table = table
        self.granularity, self.bound = table.granularity, table.bound
        self.lane_bits = lane_bits
        self.result_bits = PACKED_LANE_BITS if packed else lane_bits
        looked_up = table.bits <= CODE_BITS
        if packed and not looked_up:
            raise CodecError(
                f"result_bits={result_bits} with codes of {table.bits} bits: the switch packs sums of codes that it "
                f"looks up, which have {CODE_BITS} bits at most"
            )
        self._form = Form(lane_bits, looked_up, code_group)
        self.code_group = code_group
        self.op = Op.LOOKUP_ADD6 if packed else _OPS[lane_bits, looked_up]
        self.block_elements = self._form.block_elements
        self.chunk_blocks = PAIR_BLOCKS if paired else 1
        self.lookup: tuple[int, ...] | None = None
        if looked_up:
            self.lookup = pair_table(table.values) if paired else table.switch_values
        self._kernels = kernels or load_kernels("auto")
        self.backend = self._kernels.name
        self._table = CodeTable.of(table.values)
        # One element of the table's grid is 2^FRACTION_BITS. The unscaled Hadamard matrix multiplies by sqrt(B).
        self._scale_unit = self.granularity / (2 * self.bound) * 2.0**FRACTION_BITS / math.sqrt(self.block_elements)
        # Kernels return 2 S - c g: half a grid step is t / g, and the rotation back multiplies by sqrt(B) once more.
        self._sum_unit = self.bound / (math.sqrt(self.block_elements) * self.granularity)
        units = (self._scale_unit, self._sum_unit, TINY)
        self._plan = StreamPlan(self._table, self._form, self.chunk_blocks, *units)

    def ranges(self, x: Floats) -> Words:
        """Return the bits of each block's root mean square. See `RangeCodec`."""
        require_vector(x)
        values = self._kernels.root_mean_square(x, self.block_elements)
        bits = values.view(np.uint32)
        # Written with `not`, so that NaN is caught as well.
        if not values.max() <= HUGE:
            bits[~(values <= HUGE)] = INFINITE
        return bits

    def encode(
        self, x: Floats, own: Words, shared: SharedRanges, context: ReductionContext, *, out: Bytes | None = None
    ) -> Bytes:
        """Return packed codes, or lanes. See `RangeCodec`. A block that exceeds the shared range is clipped to it."""
        require_vector(x)
        blocks = blocks_of(x.size, self.block_elements)
        require_ranges(own, blocks, "own")
        require_finite(own)
        # Before the loop: both are needed by every run, and cost passes over all blocks.
        scales, shifts = self._scales(own.view(np.float32), _shared_ranges(shared, blocks))
        chunks_in_all = blocks_of(blocks, self.chunk_blocks)
        payloads = np.empty((chunks_in_all, SHAPES[self.op].up_bytes), np.uint8) if out is None else out
        for run in self._runs(blocks):
            chunks = self._chunks(run)
            codes = payloads[chunks]
            if self.chunk_blocks > 1:
                # Room for blocks before they share chunks. One that the last chunk lacks has codes 0.
                codes = np.zeros((2 * len(codes), self._form.up_bytes), np.uint8)
            first = run.start
            # Whole blocks are a view of x, the padded last block a part of its own: rows are numbered over both.
            for part in padded_rows(
                x[first * self.block_elements : run.stop * self.block_elements], self.block_elements
            ):
                rows, own_codes = slice(first, first + len(part)), codes[first - run.start :][: len(part)]
                keys = _keys(context, first)
                self._kernels.thc_encode(part, scales[rows], shifts[rows], self._table, self._form, keys, own_codes)
                first = rows.stop
            if self.chunk_blocks > 1:
                payloads[chunks] = pair_payloads(codes)
        return payloads

    def decode(
        self,
        results: Bytes,
        contributors: Bitmaps,
        shared: SharedRanges,
        elements: int,
        context: ReductionContext,
        out: Floats | None = None,
    ) -> Floats:
        """Return the mean. See `RangeCodec`."""
        blocks = blocks_of(elements, self.block_elements)
        chunks = blocks_of(blocks, self.chunk_blocks)
        require_rows(results, chunks, SHAPES[self.op].down_bytes, f"results of {elements} elements")
        require_ranges(contributors, blocks, "contributors instead of")
        counts = contributor_counts(contributors, self.workers)
        peaks = np.empty(blocks, np.int32)
        factors = self._factors(_shared_ranges(shared, blocks), counts)

        def decode(rows: slice, out: Floats) -> None:
            given = (self._sums(results, rows), counts[rows], factors[rows], self.granularity, self._form)
            # Kernels report the largest lane of each block in passing. It is checked when all are decoded.
            peaks[rows] = self._kernels.thc_decode(*given, _keys(context, rows.start), out)

        out = np.empty(elements, np.float32) if out is None else out
        self._by_rows(decode, out)
        # After the last block: a mean of impossible sums never leaves this function.
        self._require_sums(peaks, counts, context.first_block)
        return out

    def contribution(
        self,
        payloads: Bytes,
        shared: SharedRanges,
        elements: int,
        context: ReductionContext,
        included: Flags | None = None,
    ) -> Floats:
        """Return the decoded share of codes in a sum. See `RangeCodec`."""
        out = np.empty(elements, np.float32)
        self._dequantize(out, payloads, shared, _keys(context), included, subtract=False)
        return out

    def subtract_contribution(
        self, x: Floats, payloads: Bytes, shared: SharedRanges, context: ReductionContext, included: Flags | None = None
    ) -> None:
        """Subtract the decoded share of codes, in one pass over x. See `RangeCodec`."""
        self._dequantize(x, payloads, shared, _keys(context), included, subtract=True)

    def stream(
        self, x: Floats, own: Words, context: ReductionContext, payloads: Bytes, mean: Floats | None, *, settles: bool
    ) -> ChunkStream | None:
        """Return the stream of a vector with machine code, None where there is none. See `RangeCodec`."""
        # Packed sums are unpacked between kernels.
        if self.op == Op.LOOKUP_ADD6:
            return None
        rank = context.rank if settles else -1
        return self._kernels.stream(self._plan, x, own, payloads, mean, _keys(context), rank)

    def begin(self, stream: ChunkStream, own: Words, shared: SharedRanges) -> None:
        """Fill the stream's scales. See `RangeCodec`."""
        ranges = _shared_ranges(shared, own.size)
        scales, shifts, units = stream.scales
        scales[:], shifts[:] = self._scales(own.view(np.float32), ranges)
        units[:] = self._units(ranges)
        super().begin(stream, own, shared)

    def _dequantize(
        self,
        x: Floats,
        payloads: Bytes,
        shared: SharedRanges,
        keys: BlockKeys,
        included: Flags | None,
        *,
        subtract: bool,
    ) -> None:
        """Fill x with what payloads decode to, or subtract it."""
        blocks, up_bytes = blocks_of(x.size, self.block_elements), SHAPES[self.op].up_bytes
        require_rows(payloads, blocks_of(blocks, self.chunk_blocks), up_bytes, f"payloads of {x.size} elements")
        factors = self._factors(_shared_ranges(shared, blocks), np.ones(blocks, np.int32))
        if included is not None:
            require_ranges(included, blocks, "included blocks instead of")
            # A factor of 0 makes the contribution of a block 0, at no cost for the others.
            factors[~included] = 0

        def dequantize(rows: slice, out: Floats) -> None:
            given = (self._own_codes(payloads, rows), factors[rows], self._table, self._form)
            self._kernels.thc_dequantize(*given, keys.advanced(rows.start), out, subtract)

        self._by_rows(dequantize, x)

    def _require_sums(self, peaks: Ints, counts: Ints, first_block: int) -> None:
        """Refuse sums that this table cannot make: 16-bit arithmetic relies on it, and ranks would diverge."""
        beyond = np.flatnonzero(peaks > counts * self.granularity)
        if beyond.size:
            block = int(beyond[0])
            chunk = (first_block + block) // self.chunk_blocks
            raise CodecError(
                f"chunk {chunk}: a lane of {int(peaks[block])} from {int(counts[block])} workers, "
                f"but the table ends at {self.granularity}: the switch has another table than this codec"
            )

    def _by_rows(self, work: Callable[[slice, Floats], None], out: Floats) -> None:
        """Let work fill, or change, the rows of out. The last one may be shorter than a block."""
        columns = self.block_elements
        whole, rest = divmod(out.size, columns)
        rows = out[: whole * columns].reshape(whole, columns)
        for run in self._runs(whole):
            work(run, rows[run])
        if rest:
            # Kernels take whole blocks only: the last one is padded, and its rest copied back.
            tail = np.zeros((1, columns), np.float32)
            tail[0, :rest] = out[whole * columns :]
            work(slice(whole, whole + 1), tail)
            out[whole * columns :] = tail[0, :rest]

    def _runs(self, blocks: int) -> list[slice]:
        """Return runs of blocks to work on at a time: all at once, or as many as leave bytes between in a cache."""
        step = _RUN_ELEMENTS // self.block_elements // self.chunk_blocks * self.chunk_blocks
        # Payloads are what kernels read and write: nothing lies between, so all blocks go at once, on all threads.
        if self.chunk_blocks == 1 and self.op != Op.LOOKUP_ADD6:
            step = max(blocks, 1)
        return [slice(start, min(start + step, blocks)) for start in range(0, blocks, step)]

    def _chunks(self, rows: slice) -> slice:
        """Return the chunks that hold these blocks."""
        return slice(rows.start // self.chunk_blocks, blocks_of(rows.stop, self.chunk_blocks))

    def _sums(self, results: Bytes, rows: slice) -> Bytes:
        """Return the sums of these blocks, uint8[rows, 1024]."""
        if self.op == Op.LOOKUP_ADD6:
            return unpack_sums(results[rows])
        if self.chunk_blocks == 1:
            return results[rows]
        return self._of_blocks(split_sums(results[self._chunks(rows)]), rows)

    def _own_codes(self, payloads: Bytes, rows: slice) -> Bytes:
        """Return the payloads of these blocks, each by itself."""
        if self.chunk_blocks == 1:
            return payloads[rows]
        return self._of_blocks(split_payloads(payloads[self._chunks(rows)]), rows)

    def _of_blocks(self, split: Bytes, rows: slice) -> Bytes:
        """Return the rows of these blocks out of those of all blocks of their chunks."""
        first = rows.start % self.chunk_blocks
        return split[first : first + rows.stop - rows.start]

    def _scales(self, own: Floats, shared: Doubles) -> tuple[Floats, Ints]:
        """Return the scale of the elements of each block, 0 where the shared range is zero, and the shifts k.

        Between kernels, with cold caches, each operation takes some 10 us on the calling thread alone: few of them.
        """
        shifts = np.zeros(own.shape, np.int32)
        # Divided by infinity, a block of zeros gets the scale 0, without a branch in the kernels.
        used = np.where(shared < TINY, np.inf, shared)
        if (own > used).any():
            # The least k with own <= shared 2^k: frexp's exponent, less one where the quotient is a power of two.
            part, exponent = np.frexp(own / used)
            shifts = np.clip(np.where(part == 0.5, exponent - 1, exponent), 0, MAX_SHIFT).astype(np.int32)
            used = np.maximum(np.ldexp(used, shifts), own)
        return (self._scale_unit / used).astype(np.float32), shifts

    def _factors(self, shared: Doubles, counts: Ints) -> Floats:
        """Return the factor of rotated-back integers, 0 where the shared range is zero or no worker is in."""
        # A block without contributors has no sum: 0, and not a division by 0.
        return np.where(counts == 0, 0.0, self._units(shared) / np.maximum(counts, 1)).astype(np.float32)

    def _units(self, shared: Doubles) -> Doubles:
        """Return the factors of sums of one contribution, float64[blocks]."""
        return np.where(shared < TINY, 0.0, shared) * self._sum_unit


class Thc(LookupTableCodec):
    """Codec `thc`: see the module. All ranks give the same arguments.

    Args:
        workers: of the job.
        table: up to 16 values, up to 4 with `bits=2`. The best one that fits workers and lanes if left out.
        bits: of a code on the wire, 4 or 2. Two codes of 2 bits share a symbol, and their sums a lane of 8 bits: half
            of the bytes up and down, for up to 7 workers, and a larger error.
        error_feedback: the table is the best one for ranks that keep error feedback, see lookup_table.py. True by
            default with `bits=2`.
        lane_bits: 8 (LOOKUP_ADD8) or 16 (LOOKUP_ADD16).
        kernels: of a backend; "auto" on one thread if left out.
        code_group: of the job's switch, see `hopsum_wire.payload`.
        result_bits: of a sum in a result, 6 for packed results, by default those of the lane. With 6, up to 4 workers
            have tables of 16 values, up to 9 of 8, up to 21 of 4, up to 63 of 2.

    Raises:
        CodecError: an unknown option, or the sum of `workers` table values may overflow a lane.
    """

    name = "thc"

    def __init__(
        self,
        workers: int,
        *,
        table: LookupTable | None = None,
        bits: int = CODE_BITS,
        error_feedback: bool | None = None,
        lane_bits: int = 8,
        kernels: Kernels | None = None,
        code_group: int = LANE_GROUP_CODES,
        result_bits: int | None = None,
    ) -> None:
        require_workers(workers)
        _require_lane_bits(lane_bits)
        if bits not in (PAIRED_BITS, CODE_BITS):
            raise CodecError(f"thc with codes of {bits} bits: {PAIRED_BITS} or {CODE_BITS}")
        # Two codes of 2 bits fill the 4-bit symbol that the switch looks up.
        paired = bits == PAIRED_BITS
        _packs_results(result_bits, lane_bits, paired)
        # Paired codes truncate so much that only error feedback makes up for it.
        kept = paired if error_feedback is None else error_feedback
        if table is None and paired:
            table = paired_table(workers, kept)
        elif table is None:
            table = best_table(workers, result_bits or lane_bits, None, kept)
        require_switch_table(table)
        super().__init__(
            workers,
            table,
            lane_bits=lane_bits,
            kernels=kernels,
            code_group=code_group,
            paired=paired,
            result_bits=result_bits,
        )
        self.bits = bits


class Uhc(LookupTableCodec):
    """Codec `uhc`: code z stands for the coordinate -t + 2 t z/g, g = 2^bits - 1. All ranks give the same arguments.

    The published code truncates a fraction 1e-4 whatever the job. Here t is chosen for the job: roundings of n workers
    average out as 1/n while truncation does not, so t grows with n, and with the bits.

    Args:
        workers: of the job.
        bits: of a code, 1 to 8.
        lane_bits: 8 or 16. Left out: the narrower that fits.
        kernels: of a backend; "auto" on one thread if left out.
        code_group: of the job's switch, see `hopsum_wire.payload`.
        result_bits: of a sum in a result, those of the lane by default, or 6 where the sum of `workers` values of at
            most 4 bits is at most 63.

    Raises:
        CodecError: an unknown option, or the sum of `workers` values may overflow a lane.
    """

    name = "uhc"

    def __init__(
        self,
        workers: int,
        *,
        bits: int = 4,
        lane_bits: int | None = None,
        kernels: Kernels | None = None,
        code_group: int = LANE_GROUP_CODES,
        result_bits: int | None = None,
    ) -> None:
        require_workers(workers)
        if not 1 <= bits <= MAX_UHC_BITS:
            raise CodecError(f"uhc with codes of {bits} bits: 1 to {MAX_UHC_BITS}")
        narrow = result_bits == PACKED_LANE_BITS or workers * ((1 << bits) - 1) <= 255
        super().__init__(
            workers,
            uniform_table(bits, workers),
            lane_bits=lane_bits or (8 if narrow else 16),
            kernels=kernels,
            code_group=code_group,
            result_bits=result_bits,
        )
        self.bits = bits


def uniform_nmse(bits: int, truncated: float, workers: int) -> float:
    """Return E||mean' - mean||^2 / ||mean||^2 for workers with the same N(0, 1) input, without error feedback."""
    return expected_nmse(LookupTable(tuple(range(1 << bits)), truncated), workers)


@cache
def uniform_table(bits: int, workers: int) -> LookupTable:
    """Return T[z] = z with the truncated fraction of least `uniform_nmse`, a power of 2^(1/4)."""

    def error(quarters: int) -> float:
        return uniform_nmse(bits, 2.0 ** (-quarters / 4), workers)

    # The error falls, then rises: a third of the interval can be dropped at each step.
    low, high = _QUARTERS[0], _QUARTERS[-1]
    while high - low > 2:
        left, right = low + (high - low) // 3, high - (high - low) // 3
        if error(left) <= error(right):
            high = right
        else:
            low = left
    return LookupTable(tuple(range(1 << bits)), 2.0 ** (-min(range(low, high + 1), key=error) / 4))


# ---- paired codes -----------------------------------------------------------------------------------------


def pair_table(values: tuple[int, ...]) -> tuple[int, ...]:
    """Return the switch's table of 16 integers for codes of up to 4 values. Codes without a value have the last one.

    Raises:
        CodecError: more than 4 values, or one that exceeds half a lane.
    """
    if len(values) > _PAIR_CODES or values[-1] >= 1 << PAIRED_SUM_BITS:
        raise CodecError(
            f"a table of {len(values)} values up to {values[-1]} for paired codes: at most {_PAIR_CODES} values up to "
            f"{(1 << PAIRED_SUM_BITS) - 1}"
        )
    # A table of 3 values: code 3 is never sent, and must still not exceed half a lane.
    padded = values + (values[-1],) * (_PAIR_CODES - len(values))
    return tuple((high << PAIRED_SUM_BITS) + low for high in padded for low in padded)


def pair_payloads(packed: Bytes) -> Bytes:
    """Return UPDATE payloads, uint8[chunks, 512], a new array.

    Args:
        packed: uint8[2 * chunks, 512], 4-bit codes 0..3 as `hopsum_wire.payload` packs them, in groups of any size: row
            2 c is the first block of chunk c. A byte has two codes of one block, so one shift makes room in both.
    """
    return (packed[0::PAIR_BLOCKS] << np.uint8(PAIRED_BITS)) | packed[1::PAIR_BLOCKS]


def split_payloads(payloads: Bytes) -> Bytes:
    """Undo `pair_payloads`: uint8[chunks, 512] to uint8[2 * chunks, 512], a new array."""
    low = np.uint8(PAIR_LOW_BITS)
    return _interleaved((payloads >> np.uint8(PAIRED_BITS)) & low, payloads & low)


def split_sums(lanes: Bytes) -> Bytes:
    """Return the sums of both blocks of each chunk: uint8[chunks, 1024] to uint8[2 * chunks, 1024], a new array."""
    return _interleaved(lanes >> np.uint8(PAIRED_SUM_BITS), lanes & np.uint8((1 << PAIRED_SUM_BITS) - 1))


def _interleaved(first: Bytes, second: Bytes) -> Bytes:
    return np.stack((first, second), axis=1).reshape(-1, first.shape[1])


# ---- checks of options ------------------------------------------------------------------------------------


def _require_lane_bits(lane_bits: int) -> None:
    """Raise CodecError unless a switch adds codes in lanes of so many bits."""
    if lane_bits not in LANE_BITS:
        raise CodecError(f"lanes of {lane_bits} bits: {' or '.join(str(bits) for bits in LANE_BITS)}")


def _packs_results(result_bits: int | None, lane_bits: int, paired: bool) -> bool:
    """Return whether results are packed. Raises CodecError unless a switch sends results with so many bits a lane."""
    if result_bits in (None, lane_bits):
        return False
    if result_bits != PACKED_LANE_BITS:
        raise CodecError(f"results of {result_bits} bits a lane: {PACKED_LANE_BITS}, or the {lane_bits} of the lane")
    if lane_bits != LANE_BITS[0]:
        raise CodecError(f"result_bits={result_bits} of lanes of {lane_bits} bits: take lanes of {LANE_BITS[0]} bits")
    if paired:
        raise CodecError(
            f"result_bits={result_bits} with paired codes: two sums of {PAIRED_SUM_BITS} bits fill a lane; leave bits "
            "or result_bits out"
        )
    return True


def _require_table(workers: int, table: LookupTable, lane_bits: int) -> None:
    """Raise CodecError for a table whose sums overflow a lane of so many bits, or that truncates too much."""
    total, most = workers * table.granularity, (1 << lane_bits) - 1
    if total > most:
        raise CodecError(
            f"{workers} workers * granularity {table.granularity} = {total} overflows a lane, whose maximum is {most}; "
            "leave the table out to get one that fits, or take fewer bits or wider lanes"
        )
    # Codes are not values: the switch looks them up, so its limits hold.
    if table.granularity != len(table.values) - 1:  # codes are not values: the switch looks them up
        require_switch_table(table)
    if table.bound < MIN_BOUND:
        raise CodecError(
            f"a table that truncates {table.truncated:.3g} of the coordinates, beyond {table.bound:.3g} standard "
            f"deviations: at least {MIN_BOUND}"
        )


# ---- runs of blocks ---------------------------------------------------------------------------------------


def _shared_ranges(shared: SharedRanges, blocks: int) -> Doubles:
    require_ranges(shared.values, blocks, "shared")
    require_usable(shared)
    return shared.values.astype(np.float64)


def _keys(context: ReductionContext, row: int = 0) -> BlockKeys:
    # Ranks rotate alike, so that the switch adds like with like, and round apart, so that roundings average out.
    rotation = derive_key(context.seed, context.step, ROTATION)
    rounding = derive_key(context.seed, context.step, ROUNDING, context.rank)
    return BlockKeys(rotation, rounding, context.first_block + row)
