# SPDX-License-Identifier: Apache-2.0
"""The interface of a codec backend, and the definition that all backends share.

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
that k <= 23 cannot overflow. Levels are counted in 8 bits: g plus the widest gap is at most 255 (or T the identity).

    sums S of c workers:  x'[e] = sign[e] * float32((H^T (2 S - c g))[e]) * factor,   factor = r t / (sqrt(B) c g)

where the integers are below 2^18 with lanes of 8 bits, exact in float32, and below 2^25 with lanes of 16 bits: one
rounding to float32, and one in the product.

Random bits (hashing.py): sign of element e is bit e div 32 of lane e mod 32 of the block's rotation key; u of
elements j and j + 256 of half h (512 elements) are the low and high 16 bits of lane 256 h + j of the rounding key.

fixed, one block of 256 elements with range r (largest magnitude): i[e] = rint(clamp(x[e] * 2^s)), big-endian
int32. Decode is float32(float64(sum) / (c 2^s)), one division and one conversion.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from hopsum.codec.interface import Bytes, Doubles, Floats, Ints, Words
from hopsum_wire import LANE_GROUP_CODES

THC_BLOCK: Final = 1024
"""Elements of a chunk with lanes of 8 bits."""
FIXED_BLOCK: Final = 256
FRACTION_BITS: Final = 16
"""The bits behind the point of a coordinate on the table's scale, and of its random number."""
INPUT_BITS: Final = FRACTION_BITS - 5
"""The bits of an element before the rotation of 1024 elements, which multiplies by sqrt(1024)."""
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

    @property
    def block_elements(self) -> int:
        """B: elements of a block and of a chunk."""
        return THC_BLOCK * 8 // self.lane_bits

    @property
    def up_bytes(self) -> int:
        """Bytes of a block's UPDATE payload. Those of a RESULT are 1024."""
        return self.block_elements // 2 if self.packed else THC_BLOCK

    @property
    def lane_dtype(self) -> str:
        """Type of an element of what kernels see as lanes."""
        return ">u2" if self.lane_bits == 16 else "u1"


class BlockKeys(NamedTuple):
    """Keys of a run of blocks. Block number `first` is the first row of the arrays beside it."""

    rotation: int
    rounding: int
    first: int

    def advanced(self, blocks: int) -> BlockKeys:
        """Return the keys of a run that begins so many blocks later."""
        return self._replace(first=self.first + blocks)


@dataclass(frozen=True, slots=True)
class TableSteps:
    """A table in the forms that count codes, and that look values up, without indexing.

    Values with the same gap of width w below them are a group: one level (q + u w) >> 16 serves them all. Of a group,
    values that follow each other are a run, of which min(max(level - below, 0), length) are reached. And a value
    is base * z plus the extra width of every gap up to it. Runs of a group, and extras, are even in number: two are
    done at a time, and one that is reached by nothing fills up.
    """

    table: Bytes
    """[entries], from 0 up."""
    widths: Ints
    """[groups], ascending"""
    starts: NDArray[np.int64]
    """[groups + 1]: runs starts[i]:starts[i + 1] have widths[i]"""
    below: Bytes
    """[runs]: their first value, less one"""
    lengths: Bytes
    """[runs]"""
    base: int
    """The most frequent width."""
    extra_codes: Bytes
    """[extras]: the first code with it"""
    extra_gaps: Bytes
    """[extras]: width less base, modulo 256"""

    @classmethod
    def of(cls, values: tuple[int, ...]) -> TableSteps:
        """Group a table."""
        gaps = [high - low for low, high in pairwise(values)]
        runs: list[tuple[int, int]] = []
        starts = [0]
        # Gaps of one width share a level, (q + u w) >> 16, so each width costs one pass over a block.
        for width in sorted(set(gaps)):
            for target in (high for low, high in pairwise(values) if high - low == width):
                if len(runs) > starts[-1] and sum(runs[-1]) == target - 1:
                    runs[-1] = (runs[-1][0], runs[-1][1] + 1)
                else:
                    runs.append((target - 1, 1))
            # Kernels count two runs at a time. No level reaches 255, and a length of 0 adds nothing.
            runs += [(255, 0)] * (len(runs) % 2)
            starts.append(len(runs))
        # The commonest gap: only codes after other gaps need a correction.
        base = max(set(gaps), key=lambda width: (gaps.count(width), width))
        extras = [(code, (gap - base) % 256) for code, gap in enumerate(gaps, 1) if gap != base]
        extras += [(255, 0)] * (len(extras) % 2)
        return cls(
            np.array(values, np.uint8),
            np.array(sorted(set(gaps)), np.int32),
            np.array(starts, np.int64),
            np.array([below for below, _ in runs], np.uint8),
            np.array([length for _, length in runs], np.uint8),
            base,
            np.array([code for code, _ in extras], np.uint8),
            np.array([extra for _, extra in extras], np.uint8),
        )

    @property
    def granularity(self) -> int:
        """g"""
        return int(self.table[-1])

    @property
    def identity(self) -> bool:
        """True where codes are values: T[z] = z."""
        return self.granularity == len(self.table) - 1


class Kernels(Protocol):
    """The interface of a backend. All arrays are contiguous. Rows are blocks. A kernel fills `out`."""

    name: str
    threads: int
    """The threads that a call may use, the calling one among them."""

    def root_mean_square(self, x: Floats) -> Floats:
        """Return the root mean square of each row of float32[blocks, B]. It is not finite where the row is not."""

    def peak_bits(self, x: Floats) -> Words:
        """Return the bits of the largest magnitude of each row of float32[blocks, 256]. NaN is above +inf."""

    def thc_encode(
        self, x: Floats, scales: Floats, shifts: Ints, steps: TableSteps, form: Form, keys: BlockKeys, out: Bytes
    ) -> None:
        """Fill payloads uint8[blocks, up_bytes] from float32[blocks, B], scales [blocks] and shifts k [blocks]."""

    def thc_dequantize(
        self,
        payloads: Bytes,
        factors: Floats,
        steps: TableSteps,
        form: Form,
        keys: BlockKeys,
        out: Floats,
        subtract: bool,
    ) -> None:
        """Fill float32[blocks, B] with what payloads alone decode to, or subtract that from what `out` holds."""

    def thc_decode(
        self, lanes: Bytes, counts: Ints, factors: Floats, granularity: int, form: Form, keys: BlockKeys, out: Floats
    ) -> Ints:
        """Fill float32[blocks, B] from lane sums uint8[blocks, 1024] of counts[block] workers.

        Returns the largest lane of each block, int32[blocks]. Where that exceeds counts * granularity, `out` is void.
        """

    def fixed_encode(self, x: Floats, scales: Floats, limit: np.float32, out: Words) -> None:
        """Fill lanes uint32[blocks, 256], big-endian in memory, from float32[blocks, 256]. It clamps to +-limit."""

    def fixed_decode(self, lanes: Words, divisors: Doubles, out: Floats) -> None:
        """Fill float32[blocks, 256] from lanes uint32[blocks, 256] that are big-endian in memory."""
