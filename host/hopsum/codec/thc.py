# SPDX-License-Identifier: Apache-2.0
"""Codecs `thc` and `uhc`: rotated coordinates, rounded without bias to few values, which the switch adds in lanes.

A block of 1024 elements (lanes of 8 bits) or 512 (lanes of 16 bits) is one chunk. Random signs and a Hadamard matrix,
new ones in every all-reduce, rotate each block: its coordinates are nearly N(0, r^2), whatever the block was. Divided
by the range r they are truncated at +-t, and rounded without bias to the values of a table. The inverse rotation turns
the sum of the values into the mean. r is the largest root mean square of the block over the workers: one lane of 32
bits per block, 0.8 % of the bytes up. With one range for the whole vector, as published, a block whose coordinates are
small against the range has only a few values of the table left, and layers of a network differ by orders of magnitude.

    thc    codes of 4 bits (3, 2), looked up and added by the switch (Li et al., NSDI 2024)
    uhc    evenly spaced codes of 1 to 8 bits, which are their own values (uniform compression of the same paper). Codes
           of up to 4 bits travel as 4-bit codes, with the identity as the job's table. Wider codes are sent as lanes,
           without a lookup

Lanes of 8 bits hold sums up to 255: more than 17 workers need codes of fewer than 4 bits, 8, 4 or 2 values, which
travel as 4-bit codes all the same. Lanes of 16 bits hold sums up to 65535, for twice the bytes down.

`thc` rounds with a subtractive dither, and its results are as small as its codes (dither.py): the switch looks codes of
4, 3 or 2 bits up, adds the values, and looks the sum up again. `result_bits=8` takes whole sums instead, which any
switch program of hopsum makes. `rounding=stochastic` is the published codec: rounding without a dither to the table of
least error, whose values are not evenly spaced, and whole sums.

A block whose own root mean square exceeds r is clipped to it, coordinate by coordinate: what lies beyond +-t r stays
in the error feedback. That happens to a worker whose ranges came too late for the quorum.

Below TINY a range counts as zero (all of its blocks is quantisation error), above HUGE as not finite: between them no
float32 operation here overflows or loses precision to subnormal numbers.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from functools import cache
from typing import Final

import numpy as np

from hopsum.codec.backends import load_kernels
from hopsum.codec.backends.kernels import (
    FRACTION_BITS,
    MAX_SHIFT,
    BlockKeys,
    CodeTable,
    Form,
    Kernels,
    StreamPlan,
)
from hopsum.codec.dither import MOST_WORKERS, RESULT_BITS, Dither, even_levels, job_dither, requantized_table
from hopsum.codec.hashing import DITHER, ROTATION, ROUNDING, derive_key
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
from hopsum.codec.lookup_table import LookupTable, best_table, expected_nmse, require_switch_table
from hopsum.codec.range_codec import RangeCodec
from hopsum.codec.vector_reduction import INFINITE, SharedRanges, require_finite, require_ranges, require_usable
from hopsum_wire import CODE_GROUPS, LANE_GROUP_CODES, Op
from hopsum_wire.payload import SHAPES

TINY: Final = 2.0**-100
HUGE: Final = 2.0**120
CODE_BITS: Final = 4
"""The bits of codes that the switch looks up. Wider codes travel as the values that they are."""
LANE_BITS: Final = (8, 16)
MIN_BOUND: Final = 0.25
"""The least bound of the truncation, in standard deviations: the rotation's 32 bits are enough for it (kernels.py)."""
MAX_UHC_BITS: Final = 8
ROUNDINGS: Final = ("dither", "stochastic")
_OPS: Final = {(8, True): Op.LOOKUP_ADD8, (16, True): Op.LOOKUP_ADD16, (8, False): Op.ADD8, (16, False): Op.ADD16}
_REQUANTIZED: Final = {4: Op.LOOKUP_ADD_LOOKUP4, 3: Op.LOOKUP_ADD_LOOKUP3, 2: Op.LOOKUP_ADD_LOOKUP2}
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
        dither: of dithered rounding, whose table is the identity. None: rounding is stochastic.
        code_bits: of codes that are looked up.

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
        dither: Dither | None = None,
        code_bits: int = CODE_BITS,
    ) -> None:
        require_workers(workers)
        _require_lane_bits(lane_bits)
        if code_group not in CODE_GROUPS:
            raise CodecError(f"codes in groups of {code_group}: one of {', '.join(map(str, CODE_GROUPS))}")
        requantized = dither is not None and dither.results is not None
        if requantized and code_group != LANE_GROUP_CODES:
            raise CodecError(
                f"results of {code_bits} bits with codes in groups of {code_group}: the switch packs them in groups of "
                f"{LANE_GROUP_CODES}; take result_bits=8"
            )
        if not requantized:
            _require_table(workers, table, lane_bits)
        self.workers = workers
        self.table = table
        self.granularity, self.bound = table.granularity, table.bound
        self.lane_bits = lane_bits
        self.result_bits = code_bits if requantized else lane_bits
        looked_up = table.bits <= CODE_BITS
        self._form = Form(lane_bits, looked_up, code_group, code_bits, requantized)
        self.code_group = code_group
        self.op = _REQUANTIZED[code_bits] if requantized else _OPS[lane_bits, looked_up]
        self.block_elements = self._form.block_elements
        self.lookup: tuple[int, ...] | None = None
        if requantized:
            self.lookup = requantized_table(workers, code_bits)
        elif looked_up:
            self.lookup = table.switch_values
        self.use_kernels(kernels or load_kernels("auto"))
        self._table = CodeTable.from_values(table.values)
        self.dither = dither
        # The integers that kernels rotate back are of half a level's distance, or of its `unit`-th part.
        unit = 2 if dither is None else dither.unit
        # One element of the table's grid is 2^FRACTION_BITS. The unscaled Hadamard matrix multiplies by sqrt(B).
        self._scale_unit = self.granularity / (2 * self.bound) * 2.0**FRACTION_BITS / math.sqrt(self.block_elements)
        # The rotation back multiplies by sqrt(B) once more.
        self._sum_unit = 2 * self.bound / (math.sqrt(self.block_elements) * self.granularity * unit)
        units = (self._scale_unit, self._sum_unit, TINY)
        self._plan = StreamPlan(self._table, self._form, dither, *units)

    def ranges(self, x: Floats) -> Words:
        """Return the bits of each block's root mean square. See `RangeCodec`."""
        require_vector(x)
        return _as_ranges(self.kernels.root_mean_square(x, self.block_elements))

    def ranges_of_sum(self, x: Floats, residual: Floats) -> Words:
        """Return the ranges of x + residual, which is not kept. See `RangeCodec`."""
        return _as_ranges(self.kernels.root_mean_square_of_sum(x, residual, self.block_elements))

    def encode(
        self, x: Floats, own: Words, shared: SharedRanges, context: ReductionContext, *, out: Bytes | None = None
    ) -> Bytes:
        """Return packed codes, or lanes. See `RangeCodec`. A block that exceeds the shared range is clipped to it."""
        require_vector(x)
        blocks = blocks_of(x.size, self.block_elements)
        require_ranges(own, blocks, "own")
        require_finite(own)
        scales, shifts = self._scales(own.view(np.float32), _shared_ranges(shared, blocks))
        payloads = np.empty((blocks, self._form.up_bytes), np.uint8) if out is None else out
        keys, first = self._keys(context), 0
        # Whole blocks are a view of x, the padded last block a part of its own: rows are numbered over both.
        for part in padded_rows(x, self.block_elements):
            rows = slice(first, first + len(part))
            given = (part, scales[rows], shifts[rows], self._table, self._form, keys.advanced(first))
            self.kernels.thc_encode(*given, payloads[rows])
            first = rows.stop
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
        """Return the mean. See `RangeCodec`. After an error the content of `out` is undefined."""
        blocks = blocks_of(elements, self.block_elements)
        require_rows(results, blocks, SHAPES[self.op].down_bytes, f"results of {elements} elements")
        require_ranges(contributors, blocks, "contributors instead of")
        counts = contributor_counts(contributors, self.workers)
        peaks = np.empty(blocks, np.int32)
        factors = self._factors(_shared_ranges(shared, blocks), counts)

        keys = self._keys(context)

        def decode(rows: slice, out: Floats) -> None:
            here = keys.advanced(rows.start)
            # Kernels report the largest lane of each block in passing. It is checked when all are decoded.
            if self.dither is None:
                given = (results[rows], counts[rows], factors[rows], self.granularity, self._form, here)
                peaks[rows] = self.kernels.thc_decode(*given, out)
            else:
                taken = (results[rows], contributors[rows], factors[rows], self.dither, self._form, here)
                peaks[rows] = self.kernels.dither_decode(*taken, out)

        out = np.empty(elements, np.float32) if out is None else out
        self._by_rows(decode, out)
        # After the last block: a mean of impossible sums never leaves this function.
        self._require_sums(peaks, counts, context.first_block)
        return out

    def dequantize_own(
        self,
        payloads: Bytes,
        shared: SharedRanges,
        elements: int,
        context: ReductionContext,
        included: Flags | None = None,
    ) -> Floats:
        """Return the decoded share of codes in a sum. See `RangeCodec`."""
        out = np.empty(elements, np.float32)
        self._dequantize(out, payloads, shared, context, included, subtract=False)
        return out

    def subtract_dequantized(
        self, x: Floats, payloads: Bytes, shared: SharedRanges, context: ReductionContext, included: Flags | None = None
    ) -> None:
        """Subtract the decoded share of codes, in one pass over x. See `RangeCodec`."""
        self._dequantize(x, payloads, shared, context, included, subtract=True)

    def stream(
        self,
        x: Floats,
        own: Words,
        context: ReductionContext,
        payloads: Bytes,
        mean: Floats | None,
        kept: tuple[Floats, Floats] | None,
    ) -> ChunkStream | None:
        """Return the stream of a vector with machine code, None where there is none. See `RangeCodec`."""
        return self.kernels.stream(self._plan, x, own, payloads, mean, self._keys(context), context.rank, kept)

    def begin(self, stream: ChunkStream, own: Words, shared: SharedRanges) -> None:
        """Fill the stream's scales. See `RangeCodec`."""
        ranges = _shared_ranges(shared, own.size)
        scales, shifts, units = stream.scales
        scales[:], shifts[:] = self._scales(own.view(np.float32), ranges)
        units[:] = self._units(ranges)
        super().begin(stream, own, shared)

    def begun_ranges(self, stream: ChunkStream) -> SharedRanges:
        """Return the ranges from which machine code has made the stream's scales. See `RangeCodec`."""
        # A float32 times a float64, divided by that again: it rounds to the same float32.
        return SharedRanges((stream.scales[2] / self._sum_unit).astype(np.float32))

    def _dequantize(
        self,
        x: Floats,
        payloads: Bytes,
        shared: SharedRanges,
        context: ReductionContext,
        included: Flags | None,
        *,
        subtract: bool,
    ) -> None:
        """Fill x with what payloads decode to, or subtract it."""
        blocks = blocks_of(x.size, self.block_elements)
        require_rows(payloads, blocks, self._form.up_bytes, f"payloads of {x.size} elements")
        factors = self._factors(_shared_ranges(shared, blocks), np.ones(blocks, np.int32))
        if included is not None:
            require_ranges(included, blocks, "included blocks instead of")
            # A factor of 0 makes the contribution of a block 0, at no cost for the others.
            factors[~included] = 0

        keys = self._keys(context)

        def dequantize(rows: slice, out: Floats) -> None:
            last = (self._form, keys.advanced(rows.start), out, subtract)
            if self.dither is None:
                self.kernels.thc_dequantize(payloads[rows], factors[rows], self._table, *last)
            else:
                self.kernels.dither_dequantize(payloads[rows], factors[rows], self.dither, context.rank, *last)

        self._by_rows(dequantize, x)

    def _require_sums(self, peaks: Ints, counts: Ints, first_block: int) -> None:
        """Refuse sums that this table cannot make: 16-bit arithmetic relies on it, and ranks would diverge."""
        beyond = np.flatnonzero(peaks > counts * self.granularity)
        if beyond.size:
            block = int(beyond[0])
            raise CodecError(
                f"chunk {first_block + block}: a lane of {int(peaks[block])} from {int(counts[block])} workers, "
                f"but the table ends at {self.granularity}: the switch has another table than this codec"
            )

    def _by_rows(self, work: Callable[[slice, Floats], None], out: Floats) -> None:
        """Let work fill, or change, the rows of out. The last one may be shorter than a block."""
        columns = self.block_elements
        whole, rest = divmod(out.size, columns)
        rows = out[: whole * columns].reshape(whole, columns)
        if whole:
            work(slice(0, whole), rows)
        if rest:
            # Kernels take whole blocks only: the last one is padded, and its rest copied back.
            tail = np.zeros((1, columns), np.float32)
            tail[0, :rest] = out[whole * columns :]
            work(slice(whole, whole + 1), tail)
            out[whole * columns :] = tail[0, :rest]

    def _keys(self, context: ReductionContext) -> BlockKeys:
        # Ranks rotate alike, so that the switch adds like with like, and round apart, so that roundings average out.
        rotation = derive_key(context.seed, context.step, ROTATION)
        rounding = derive_key(context.seed, context.step, ROUNDING, context.rank)
        if self.dither is None:
            return BlockKeys(rotation, rounding, context.first_block)
        dither = derive_key(context.seed, context.step, DITHER)
        return BlockKeys(rotation, rounding, context.first_block, dither, int(self.dither.shifts[context.rank]))

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
    """Codec `thc`: codes of a rotated vector, which the switch looks up and adds. All ranks give the same arguments.

    Args:
        workers: of the job.
        bits: of a code on the wire, 4, 3 or 2.
        result_bits: of an element of a result: as many as `bits`, or 8 for whole sums of codes of 4 bits. Left out:
            8 with stochastic rounding; else `bits` up to 17 workers (42 with 2 bits), else 8.
        rounding: "dither", or "stochastic" for the published codec, with codes of 4 bits and whole sums.
        error_feedback: whether ranks keep error feedback. With "dither" hooks keep none if this is false, and the
            values of requantised results then make up for what is clipped. The default is False with `bits=2`, else
            True. With "stochastic" it only chooses the table (lookup_table.py): hooks keep feedback whatever it says,
            and the default is False.
        table: up to 16 values, for stochastic rounding. The best one that fits workers and lanes if left out.
        lane_bits: 8, or for stochastic rounding 16 (LOOKUP_ADD16).
        kernels: of a backend; "auto" on one thread if left out.
        code_group: of the job's switch, see `hopsum_wire.payload`.

    Raises:
        CodecError: an unknown option, or the sum of `workers` table values may overflow a lane.
    """

    name = "thc"

    def __init__(
        self,
        workers: int,
        *,
        bits: int = CODE_BITS,
        result_bits: int | None = None,
        rounding: str = ROUNDINGS[0],
        error_feedback: bool | None = None,
        table: LookupTable | None = None,
        lane_bits: int = LANE_BITS[0],
        kernels: Kernels | None = None,
        code_group: int = LANE_GROUP_CODES,
    ) -> None:
        require_workers(workers)
        _require_lane_bits(lane_bits)
        if bits not in RESULT_BITS:
            raise CodecError(f"thc with codes of {bits} bits: {', '.join(map(str, RESULT_BITS))}")
        if rounding not in ROUNDINGS:
            raise CodecError(f"thc with rounding={rounding}: {' or '.join(ROUNDINGS)}")
        # Without feedback few bits do better where an optimiser divides by the root of the gradients' mean square.
        kept = (rounding == "dither" and bits > min(RESULT_BITS)) if error_feedback is None else error_feedback
        dither = None
        if rounding == "dither":
            if table is not None or lane_bits != LANE_BITS[0]:
                raise CodecError("a table, and lanes of 16 bits, are for stochastic rounding: give rounding=stochastic")
            requantized = _requantizes(workers, bits, result_bits)
            dither = job_dither(workers, bits, requantized, kept)
            table = even_levels(dither.granularity)
        else:
            _require_stochastic(bits, result_bits, lane_bits)
            table = table or best_table(workers, lane_bits, None, kept)
            require_switch_table(table)
        super().__init__(
            workers,
            table,
            lane_bits=lane_bits,
            kernels=kernels,
            code_group=code_group,
            dither=dither,
            code_bits=bits,
        )
        self.bits = bits
        self.rounding = rounding
        # A table for the mean of ranks without feedback does with it, too.
        self.error_feedback = kept or dither is None

    @property
    def facts(self) -> str:
        """Return, as text, the facts that ranks compare besides name and table; empty with stochastic rounding."""
        if self.dither is None:
            return ""
        # Values follow from logarithms and powers: ranks whose machines round them otherwise are told so.
        said, results = f", dither of {self.granularity + 1} levels", self.dither.results
        if results is None:
            return said
        digest = zlib.crc32(b"".join(each.tobytes() for each in results))
        return f"{said}, error_feedback {self.error_feedback}, values {digest}"


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
    ) -> None:
        require_workers(workers)
        if not 1 <= bits <= MAX_UHC_BITS:
            raise CodecError(f"uhc with codes of {bits} bits: 1 to {MAX_UHC_BITS}")
        narrow = workers * ((1 << bits) - 1) <= 255
        super().__init__(
            workers,
            uniform_table(bits, workers),
            lane_bits=lane_bits or (8 if narrow else 16),
            kernels=kernels,
            code_group=code_group,
        )
        self.bits = bits


def uniform_nmse(bits: int, truncated: float, workers: int) -> float:
    """Return the expected error of uhc's mean where all workers have the same N(0, 1) input and no error feedback.

    It is E||mean' - mean||^2 / ||mean||^2.

    Args:
        truncated: fraction of coordinates beyond the bound.
    """
    return expected_nmse(LookupTable(tuple(range(1 << bits)), truncated), workers)


@cache
def uniform_table(bits: int, workers: int) -> LookupTable:
    """Return the table T[z] = z of 2^bits values, with the truncated fraction, a power of 2^(1/4), of least error.

    The error is `uniform_nmse`.
    """

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


# ---- checks of options ------------------------------------------------------------------------------------


def _require_lane_bits(lane_bits: int) -> None:
    """Raise CodecError unless a switch adds codes in lanes of so many bits."""
    if lane_bits not in LANE_BITS:
        raise CodecError(f"lanes of {lane_bits} bits: {' or '.join(str(bits) for bits in LANE_BITS)}")


def _requantizes(workers: int, bits: int, result_bits: int | None) -> bool:
    """Return whether results have as many bits as codes. Raises CodecError unless a switch sends such results."""
    if result_bits is None:
        return bits != CODE_BITS or workers <= MOST_WORKERS[bits]
    if result_bits == bits:
        return True
    if (bits, result_bits) != (CODE_BITS, LANE_BITS[0]):
        raise CodecError(
            f"result_bits={result_bits} with bits={bits}: results have as many bits as codes, or {LANE_BITS[0]} with "
            f"bits={CODE_BITS}"
        )
    return False


def _require_stochastic(bits: int, result_bits: int | None, lane_bits: int) -> None:
    """Raise CodecError unless stochastic rounding has these options."""
    if bits != CODE_BITS or result_bits not in (None, lane_bits):
        raise CodecError(
            f"rounding=stochastic with bits={bits} and result_bits={result_bits}: it has codes of {CODE_BITS} bits and "
            f"whole sums, of {lane_bits} bits here; leave bits and result_bits out"
        )


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


def _as_ranges(values: Floats) -> Words:
    """Return the bits of root mean squares, float32[blocks]: +inf for those that are not finite or too large."""
    bits = values.view(np.uint32)
    # Written with `not`, so that NaN is caught as well.
    if not values.max() <= HUGE:
        bits[~(values <= HUGE)] = INFINITE
    return bits


def _shared_ranges(shared: SharedRanges, blocks: int) -> Doubles:
    require_ranges(shared.values, blocks, "shared")
    require_usable(shared)
    return shared.values.astype(np.float64)
