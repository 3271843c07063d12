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
that k <= 23 cannot overflow. A position before its point, and the value that follows it, have 8 bits: g is at most 255.

    sums S of c workers:  x'[e] = sign[e] * float32((H^T (2 S - c g))[e]) * factor,   factor = r t / (sqrt(B) c g)

where the integers are below 2^18 with lanes of 8 bits, exact in float32, and below 2^25 with lanes of 16 bits: one
rounding to float32, and one in the product.

Random bits (hashing.py): sign of element e is bit e div 32 of lane e mod 32 of the block's rotation key; u of
elements j and j + 256 of half h (512 elements) are the low and high 16 bits of lane 256 h + j of the rounding key.

fixed, one block of 256 elements with range r (largest magnitude): i[e] = rint(clamp(x[e] * 2^s)), big-endian
int32. Decode is float32(float64(sum) / (c 2^s)), one division and one conversion.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

import numpy as np

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


class CodeTable(NamedTuple):
    """A lookup table as kernels take it."""

    values: Bytes
    """[entries], T[z] by code z, from 0 up to g."""
    identity: bool
    """True where codes are values: T[z] = z. A table of more than 16 values is the identity."""

    @classmethod
    def of(cls, values: tuple[int, ...]) -> CodeTable:
        """Copy a table's values into an array."""
        return cls(np.array(values, np.uint8), values[-1] == len(values) - 1)

    @property
    def granularity(self) -> int:
        """g: the largest value."""
        return int(self.values[-1])


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
        self, x: Floats, scales: Floats, shifts: Ints, table: CodeTable, form: Form, keys: BlockKeys, out: Bytes
    ) -> None:
        """Fill payloads uint8[blocks, up_bytes] from float32[blocks, B], scales [blocks] and shifts k [blocks]."""

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
