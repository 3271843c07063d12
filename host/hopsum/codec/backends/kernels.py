# SPDX-License-Identifier: Apache-2.0
"""The definition of the codecs' arithmetic, and its reference in numpy: one array expression per line of it.

thc and uhc, one block of B elements x (1024 where lanes have 8 bits, 512 where they have 16: one chunk) with range r
and a table T with granularity g, bound t >= 1/4:

    v[e] = rint(x[e] * scale) * sign[e]           int32; scale = g/(2t) * 2^16/sqrt(B) / (r 2^k)
    y    = H v                                    int32, H the B x B Hadamard matrix of +1 and -1: exact
    q[c] = clamp(y[c] 2^k + g/2 * 2^16, 0, g * 2^16)      the coordinate on the table's scale, 16 bits after the point
    code = number of z >= 1 with q + u * (T[z] - T[z-1]) >= T[z] * 2^16       u: 16 random bits

The last line rounds q up to the upper neighbour with probability (q - lower)/(upper - lower): for a value z at or
below the lower neighbour it always counts, above the upper neighbour never. For the identity T[z] = z it says
code = (q + u) >> 16. Coordinate c of the wire is row (c mod B/16) * 16 + c div (B/16) of H: the order that SIMD
passes leave.

Overflow. k is 0 unless the block's own root mean square exceeds r (a range that came too late): then
r 2^k is at least the block's own, at the cost of k bits of precision. So |v| has 2-norm at most
2^16 g/(2t) + sqrt(B)/2, and |y| and every partial sum of it is at most 2^16 sqrt(B) g/(2t) + B/2: below 2^30 for
B = 1024 with g <= 255, and smaller by sqrt(2) for B = 512. Before the shift y is clamped to +-(g 2^15 / 2^k + 1), so
that k <= 23 cannot overflow. A position before its point, and the value that follows it, have 8 bits: g is at most 255.

    sums S of c workers:  x'[e] = sign[e] * float32((H^T (2 S - c g))[e]) * factor,   factor = r t / (sqrt(B) c g)

where the integers are below 2^18 with lanes of 8 bits, exact in float32, and below 2^25 with lanes of 16 bits: one
rounding to float32, and one in the product.

Random bits (hashing.py): sign of element e is bit e div 32 of lane e mod 32 of the block's rotation key; u of
elements j and j + 256 of half h (512 elements) are the low and high 16 bits of lane 256 h + j of the rounding key.

With a subtractive dither (dither.py; B = 1024, T[z] = z) all ranks draw s, 4 bits, for a coordinate: those of
coordinate c of the wire are bits 4 (c div 128) and on of lane c mod 128 of the block's dither key. The upper 4 bits of
rank i's u are (s + shift[i]) mod 16, and own[i, s] is what the rank subtracts, in units of w:

    w    = unit (S - c g/2) - sum of own[i, s] over the c contributors i        of whole sums S
    w    = values[class, code] - the same sum                                   of requantised results
    x'[e] = sign[e] * float32((H^T w)[e]) * factor,      factor = r 2t / (sqrt(B) c g unit)

|w| is at most 256. A requantised block's class is the number of bounds above the sum of (2 code - 2^bits + 1)^2.

fixed, one block of 256 elements with range r (largest magnitude): i[e] = rint(clamp(x[e] * 2^s)), big-endian
int32. Decode is float32(float64(sum) / (c 2^s)), one division and one conversion.

two-shot, one block of 512 elements with codes of b = 4 or 8 bits: m = 2^(b-1) - 1, scale = largest magnitude / m, code
= rint(x / scale) + m, from 0 to 2 m. On the wire a block is its scale as float32, NaN where the block is not finite,
and then 64 b bytes. With 4 bits byte j has code j in its low half, and code j + 256.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopsum.codec.dither import SHARES, Dither
from hopsum.codec.hashing import block_keys, lane_bits
from hopsum.codec.interface import Bitmaps, Bytes, ChunkStream, Doubles, Floats, Ints, Words, padded_rows
from hopsum_wire import LANE_GROUP_CODES
from hopsum_wire.payload import pack_codes, unpack_codes

THC_BLOCK: Final = 1024
"""Elements of a chunk with lanes of 8 bits."""
FIXED_BLOCK: Final = 256
TWO_SHOT_BLOCK: Final = 512
"""Elements that share a scale."""
TWO_SHOT_SCALE_BYTES: Final = 4
TWO_SHOT_LARGEST: Final = (127 + 120) << 23
"""Bits of the float32 2^120, the largest magnitude that two-shot takes: sums of 64 ranks are finite, and what rounding
leaves of them."""
FRACTION_BITS: Final = 16
"""The bits behind the point of a coordinate on the table's scale, and of its random number."""
_OWN_BITS: Final = 12
"""The bits of a dithered rank's random number that are its own."""
_RUN_BLOCKS: Final = 32
MAX_SHIFT: Final = 23
"""The largest shift of a block that exceeds its range. With it every coordinate that is not 0 is at the table's end."""


class Form(NamedTuple):
    """The format of a block of thc or uhc on the wire."""

    lane_bits: int = 8
    """8 or 16. It decides the size of blocks."""
    packed: bool = True
    """True: payloads are 4-bit codes to look up. False: payloads are lanes, and codes are values."""
    group_codes: int = LANE_GROUP_CODES
    """Codes of a group, see `hopsum_wire.payload`. Lanes have no groups."""
    code_bits: int = 4
    """Bits of a packed code. Those of 2 and 3 bits have the order of LOOKUP_ADD_LOOKUP2 and 3."""
    requantized: bool = False
    """True: a RESULT has codes of as many bits as an UPDATE, in the same order. False: it has lanes."""

    @property
    def block_elements(self) -> int:
        """B: elements of a block and of a chunk."""
        return THC_BLOCK * 8 // self.lane_bits

    @property
    def up_bytes(self) -> int:
        """Bytes of a block's UPDATE payload."""
        return self.block_elements * self.code_bits // 8 if self.packed else THC_BLOCK

    @property
    def down_bytes(self) -> int:
        """Bytes of a block's RESULT payload."""
        return self.up_bytes if self.requantized else THC_BLOCK

    @property
    def group(self) -> int:
        """Codes of a group as compiled kernels take it: 0 for lanes."""
        return self.group_codes if self.packed else 0

    @property
    def lane_dtype(self) -> str:
        """Type, as numpy names it, of a lane in sums, and in payloads without packed codes."""
        return ">u2" if self.lane_bits == 16 else "u1"


class BlockKeys(NamedTuple):
    """Keys of a run of blocks. `first` is the number of the block in the first row of the arrays that go with them."""

    rotation: int
    rounding: int
    first: int
    dither: int = 0
    """The key of the dither that all ranks know."""
    shift: int = -1
    """The distance of this rank's dither from rank 0's, of 16. -1: rounding has no dither."""

    def advanced(self, blocks: int) -> BlockKeys:
        """Return the keys of a run that begins so many blocks later."""
        return self._replace(first=self.first + blocks)


class CodeTable(NamedTuple):
    """A lookup table as kernels take it."""

    values: Bytes
    """[entries], T[z] by code z, from 0 up to g."""
    identity: bool
    """True where codes are values: T[z] = z. A table of more than 16 values is the identity."""

    @classmethod
    def from_values(cls, values: tuple[int, ...]) -> CodeTable:
        """Return the table of these values, which are copied into an array."""
        return cls(np.array(values, np.uint8), values[-1] == len(values) - 1)

    @property
    def granularity(self) -> int:
        """g: the largest value."""
        return int(self.values[-1])


@dataclass(frozen=True, eq=False)
class StreamPlan:
    """The numbers of a codec, thc or uhc, with which machine code encodes and decodes vectors by chunks."""

    table: CodeTable
    form: Form
    dither: Dither | None
    scale_unit: float
    """The scale of a block's elements is this, divided by the block's shared range."""
    sum_unit: float
    """The factor of a sum of one contribution is this, multiplied by the block's shared range."""
    least: float
    """A shared range below it counts as zero."""


class Kernels:
    """The kernels of a backend. This class is the reference, in numpy, written for reading, and the base of the others.

    All arrays are contiguous. Rows are blocks. A kernel fills `out`. The reference works on runs of blocks that fit a
    processor's cache, on the calling thread alone.
    """

    name = "numpy"
    threads = 1
    """The threads that a call may use, the calling one among them."""

    def root_mean_square(self, x: Floats, size: int) -> Floats:
        """Return the root mean square of each block of `size` elements of float32[elements], the last one with zeros.

        It is not finite where the block is not.
        """
        found = []
        for part in padded_rows(x, size):
            for run in _runs(len(part)):
                # 16 running sums, since that is a vector's width on common processors: compiled kernels add in the same
                # order.
                lanes = np.zeros((run.stop - run.start, 16))
                for row in range(0, size, 16):
                    square = part[run, row : row + 16].astype(np.float64)
                    lanes += square * square
                for half in (8, 4, 2, 1):
                    lanes = lanes[:, :half] + lanes[:, half : 2 * half]
                found.append(np.sqrt(lanes[:, 0] / size).astype(np.float32))
        return np.concatenate(found)

    def root_mean_square_of_sum(self, x: Floats, y: Floats, size: int) -> Floats:
        """Return the root mean square of each block of x + y, float32[elements]."""
        return self.root_mean_square(x + y, size)

    def peak_bits(self, x: Floats) -> Words:
        """Return the bits of the largest magnitude of each row of float32[blocks, 256]. NaN is above +inf."""
        # Compare bits: magnitudes order like unsigned integers.
        bits: Words = (x.view(np.uint32) & np.uint32(0x7FFFFFFF)).max(axis=1, initial=np.uint32(0))
        return bits

    def thc_encode(
        self, x: Floats, scales: Floats, shifts: Ints, table: CodeTable, form: Form, keys: BlockKeys, out: Bytes
    ) -> None:
        """Fill payloads uint8[blocks, up_bytes] from float32[blocks, B], scales [blocks] and shifts k [blocks]."""
        granularity = table.granularity
        # Rounding looks at the cell of the table's grid: all positions of a cell have the same two neighbours.
        beneath = np.searchsorted(table.values, np.arange(granularity + 1), side="right") - 1
        lower = np.clip(beneath, 0, len(table.values) - 2)
        upper = table.values[lower + 1].astype(np.int32)
        width = upper - table.values[lower]
        for run in _runs(len(x)):
            q = _coordinates(x[run], scales[run], shifts[run], granularity, keys.advanced(run.start))
            np.clip(q, 0, granularity << FRACTION_BITS, out=q)
            u = _fractions(block_keys(keys.rounding, keys.first + run.start, len(q)), q.shape[1])
            if keys.shift >= 0:
                known = _shared_bits(keys.advanced(run.start), len(q)) + keys.shift & SHARES - 1
                u = u & (1 << _OWN_BITS) - 1 | known << _OWN_BITS
            cell = q >> FRACTION_BITS
            # Rounded up with probability (q - lower) / width, exactly, by 16 random bits.
            up = q + u * width[cell] >= upper[cell] << FRACTION_BITS
            out[run] = _to_payload((lower[cell] + up).astype(np.uint8), form)

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
        """Fill `out`, float32[blocks, B], with the decoded values of payloads alone, or subtract these from `out`."""
        for run in _runs(len(payloads)):
            codes = _codes(payloads[run], form)
            w = 2 * table.values[codes].astype(np.int32) - np.int32(table.granularity)
            x = _back(w, factors[run], keys.advanced(run.start))
            out[run] = out[run] - x if subtract else x

    def thc_decode(
        self, lanes: Bytes, counts: Ints, factors: Floats, granularity: int, form: Form, keys: BlockKeys, out: Floats
    ) -> Ints:
        """Fill float32[blocks, B] from lane sums uint8[blocks, 1024] of counts[block] workers.

        Returns the largest lane of each block, int32[blocks]. Where that exceeds counts * granularity, `out` is void.
        """
        peaks = np.empty(len(lanes), np.int32)
        for run in _runs(len(lanes)):
            sums = _lanes(lanes[run], form).astype(np.int32)
            peaks[run] = sums.max(axis=1, initial=0)
            w = 2 * sums - counts[run, None] * np.int32(granularity)
            out[run] = _back(w, factors[run], keys.advanced(run.start))
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
        """Fill `out`, float32[blocks, 1024], with decoded dithered payloads of a rank, or subtract these from `out`."""
        for run in _runs(len(payloads)):
            codes = _codes(payloads[run], form).astype(np.int32)
            here = keys.advanced(run.start)
            w = dither.unit * codes - np.int32(dither.unit * dither.granularity // 2)
            x = _back(w - dither.own[rank][_shared_bits(here, len(codes))], factors[run], here)
            out[run] = out[run] - x if subtract else x

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
        """Fill float32[blocks, 1024] from RESULT payloads of the contributors in each, bitmaps of ranks of the job.

        Returns the largest lane of each block, int32[blocks], 0 for requantised results. Where that exceeds the
        number of contributors times the granularity, `out` is void.
        """
        peaks = np.zeros(len(results), np.int32)
        ranks = np.arange(len(dither.own), dtype=np.uint64)
        for run in _runs(len(results)):
            here = keys.advanced(run.start)
            is_in = (contributors[run, None] >> ranks & np.uint64(1)).astype(np.int32)
            counts = is_in.sum(axis=1)
            known = is_in @ dither.own.astype(np.int32)
            shared = _shared_bits(here, len(is_in))
            if dither.results is None:
                sums = _lanes(results[run], form).astype(np.int32)
                peaks[run] = sums.max(axis=1, initial=0)
                w = dither.unit * sums - (counts * np.int32(dither.unit * dither.granularity // 2))[:, None]
            else:
                codes = _codes(results[run], form).astype(np.int32)
                energies = ((2 * codes - (1 << form.code_bits) + 1) ** 2).sum(axis=1)
                classes = (dither.results.bounds[counts] > energies[:, None]).sum(axis=1)
                w = dither.results.values[counts[:, None], classes[:, None], codes].astype(np.int32)
            out[run] = _back(w - np.take_along_axis(known, shared, axis=1), factors[run], here)
        return peaks

    def fixed_encode(self, x: Floats, scales: Floats, limit: np.float32, out: Words) -> None:
        """Fill lanes uint32[blocks, 256], big-endian in memory, with rint(x * scale) of float32[blocks, 256].

        Products are clamped to +-limit before they are rounded.
        """
        # Scale by a power of two, which is exact, and round.
        for run in _runs(len(x)):
            scaled = np.clip(x[run] * scales[run, None], -limit, limit)
            out[run] = np.rint(scaled).astype(np.int32).astype(">i4").view(np.uint32)

    def fixed_decode(self, lanes: Words, divisors: Doubles, out: Floats) -> None:
        """Fill float32[blocks, 256] with lanes, signed and big-endian in uint32[blocks, 256], by divisors [blocks]."""
        # Divide in float64, which holds every int32.
        for run in _runs(len(lanes)):
            out[run] = lanes[run].view(">i4").astype(np.float64) / divisors[run, None]

    def two_shot_encode(self, x: Floats, bits: int, out: Bytes) -> None:
        """Fill blocks uint8[blocks, bytes] with scales and codes of float32[elements]. Elements behind the end are 0.

        A block that is not finite, or too large, gets the scale NaN.
        """
        most = np.float32((1 << bits - 1) - 1)
        for run in _runs(len(out)):
            part = x[run.start * TWO_SHOT_BLOCK : run.stop * TWO_SHOT_BLOCK]
            rows = np.zeros((run.stop - run.start, TWO_SHOT_BLOCK), np.float32)
            rows.reshape(-1)[: part.size] = part
            peaks = self.peak_bits(rows)
            rows[peaks > TWO_SHOT_LARGEST] = 0
            scales = np.where(peaks > TWO_SHOT_LARGEST, np.float32(0), peaks.view(np.float32)) / most
            # A block whose scale is subnormal is sent as zeros: its inverse would be infinite.
            normal = scales > np.finfo(np.float32).tiny
            per_scale = np.divide(np.float32(1), scales, out=np.zeros_like(scales), where=normal)
            # To the nearest, not at random: error feedback carries the rest, and ranks need no shared randomness.
            codes = (np.rint(rows * per_scale[:, None]) + most).astype(np.uint8)
            scales[peaks > TWO_SHOT_LARGEST] = np.nan
            out[run, :TWO_SHOT_SCALE_BYTES] = scales.astype("<f4").view(np.uint8).reshape(-1, TWO_SHOT_SCALE_BYTES)
            fields = codes.reshape(len(rows), 8 // bits, -1) << np.arange(0, 8, bits, dtype=np.uint8)[:, None]
            out[run, TWO_SHOT_SCALE_BYTES:] = np.bitwise_or.reduce(fields, axis=1)

    def two_shot_add(self, blocks: Bytes, bits: int, factor: np.float32, out: Floats) -> None:
        """Add the values of blocks, uint8[blocks, bytes], times a factor, to `out`, float32[elements]."""
        most = np.float32((1 << bits - 1) - 1)
        for run in _runs(len(blocks)):
            fields = blocks[run, None, TWO_SHOT_SCALE_BYTES:] >> np.arange(0, 8, bits, dtype=np.uint8)[:, None]
            codes = (fields & (1 << bits) - 1).reshape(-1, TWO_SHOT_BLOCK).astype(np.float32)
            scales = np.ascontiguousarray(blocks[run, :TWO_SHOT_SCALE_BYTES]).view("<f4") * factor
            # A view, shorter than the blocks where the vector ends.
            here = out[run.start * TWO_SHOT_BLOCK : run.stop * TWO_SHOT_BLOCK]
            here += ((codes - most) * scales).reshape(-1)[: here.size]

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
        """Return the stream of a vector with machine code, as `RangeCodec.stream` does; None where there is none."""
        return None


class KernelCodec:
    """Base of the codecs that compute by the kernels of a backend. Constructors call `use_kernels`."""

    kernels: Kernels
    backend: str

    def use_kernels(self, kernels: Kernels) -> None:
        """Compute by these from now on, also what is in progress: all backends make the same bytes. Any thread."""
        self.kernels, self.backend = kernels, kernels.name


def _runs(blocks: int) -> Iterator[slice]:
    for start in range(0, blocks, _RUN_BLOCKS):
        yield slice(start, min(start + _RUN_BLOCKS, blocks))


def _lanes(payloads: Bytes, form: Form) -> NDArray[Any]:
    """Return lanes in element order, [blocks, B]."""
    return np.ascontiguousarray(payloads).view(form.lane_dtype)


def _codes(payloads: Bytes, form: Form) -> NDArray[Any]:
    if form.packed:
        return unpack_codes(payloads, form.lane_bits, form.group_codes, bits=form.code_bits)
    return _lanes(payloads, form)


def _to_payload(codes: Bytes, form: Form) -> Bytes:
    if form.packed:
        return pack_codes(codes, form.lane_bits, form.group_codes, bits=form.code_bits)
    return codes.astype(form.lane_dtype).view(np.uint8)


def _coordinates(x: Floats, scales: Floats, shifts: Ints, granularity: int, keys: BlockKeys) -> Ints:
    """Return q before its clamp, int32[blocks, B]."""
    half = granularity << FRACTION_BITS - 1
    # A vector with infinite elements passes here before its ranges make all ranks skip.
    with np.errstate(over="ignore"):
        scaled = x * scales[:, None]
    y = _to_wire(_hadamard(np.rint(scaled).astype(np.int32) * _signs(keys, x.shape)))
    # Clamp before the shift: k of up to 23 bits would overflow 32.
    limits = ((half >> shifts) + 1)[:, None]
    beyond = (shifts > 0)[:, None]
    return np.asarray(np.where(beyond, np.clip(y, -limits, limits) << shifts[:, None], y) + np.int32(half))


def _back(w: Ints, factors: Floats, keys: BlockKeys) -> Floats:
    """Return x', float32[blocks, B]: H is symmetric, so only order and signs are undone."""
    x = _hadamard(_from_wire(w)) * _signs(keys, w.shape)
    return np.asarray(x.astype(np.float32) * factors[:, None])


def _signs(keys: BlockKeys, shape: tuple[int, ...]) -> Ints:
    """Return +1 and -1, int32[blocks, B]: -1 where the bit is set."""
    blocks, elements = shape
    lanes = lane_bits(block_keys(keys.rotation, keys.first, blocks), 32)[:, None, :]
    bits = lanes >> np.arange(elements // 32, dtype=np.uint32)[None, :, None]
    return 1 - 2 * (bits & np.uint32(1)).astype(np.int32).reshape(blocks, elements)


def _fractions(keys: NDArray[np.uint64], elements: int) -> Ints:
    """Return 16 random bits per element, int32[blocks, B]."""
    bits = lane_bits(keys, elements // 2).reshape(len(keys), -1, 1, 256)
    pair = np.concatenate((bits & np.uint32(0xFFFF), bits >> np.uint32(16)), axis=2)
    return pair.astype(np.int32).reshape(len(keys), elements)


def _shared_bits(keys: BlockKeys, blocks: int) -> Ints:
    """Return the 4 bits of each coordinate that all ranks draw, int32[blocks, 1024]."""
    bits = lane_bits(block_keys(keys.dither, keys.first, blocks), THC_BLOCK // 8)[:, None, :]
    nibbles = bits >> np.arange(0, 32, 4, dtype=np.uint32)[None, :, None]
    return (nibbles & np.uint32(SHARES - 1)).astype(np.int32).reshape(blocks, THC_BLOCK)


def _hadamard(v: Ints) -> Ints:
    """Return H v for each row of int32[blocks, B], in the natural (Sylvester) order."""
    shape = v.shape
    # Largest stride first, the natural (Sylvester) order. Integers: any order gives the same sums.
    stride = shape[1] // 2
    while stride:
        pair = v.reshape(len(v), -1, 2, stride)
        v = np.stack((pair[:, :, 0] + pair[:, :, 1], pair[:, :, 0] - pair[:, :, 1]), axis=2)
        stride //= 2
    return v.reshape(shape)


def _to_wire(y: Ints) -> Ints:
    return y.reshape(len(y), -1, 16).transpose(0, 2, 1).reshape(y.shape)


def _from_wire(w: Ints) -> Ints:
    return w.reshape(len(w), 16, -1).transpose(0, 2, 1).reshape(w.shape)
