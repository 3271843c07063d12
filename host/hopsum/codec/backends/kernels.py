# SPDX-License-Identifier: Apache-2.0
"""What a backend does, and the definition that all backends share.

thc, one block of 1024 elements x with range r (root mean square) and a table T with granularity g, bound t:

    v[e] = rint(x[e] * scale) * sign[e]           int32; scale = g/(2t) * 2^11 / r, so |v| has 2-norm 2^16 g/(2t)
    y    = H v                                    int32, H the 1024 x 1024 Hadamard matrix of +1 and -1: exact
    q[c] = clamp(y[c] + g/2 * 2^16, 0, g * 2^16)  the coordinate on the table's scale, 16 bits after the point
    code = number of z >= 1 with q + u * (T[z] - T[z-1]) >= T[z] * 2^16       u: 16 random bits

The last line rounds q up to the upper neighbour with probability (q - lower)/(upper - lower): for a value z at or
below the lower neighbour it always counts, above the upper neighbour never. |y| <= 2^21 g/(2t) + 2^9 cannot
overflow. Coordinate c of the wire is row (c mod 64) * 16 + c div 64 of H: the order that SIMD passes leave.

    sums S of c workers:  x'[e] = sign[e] * (H^T (2 S - c g))[e] * factor,   factor = r t / (32 c g)

where H^T w is an integer below 2^18 and so exact in float32: one rounding, in the last product.

Random bits (hashing.py): sign of element e is bit e div 32 of lane e mod 32 of the block's rotation key; u of
elements j and j + 256 of half h (512 elements) are the low and high 16 bits of lane 256 h + j of the rounding key.

fixed, one block of 256 elements with range r (largest magnitude): i[e] = rint(clamp(x[e] * 2^s)), big-endian
int32; decode is float32(float64(sum) / (c 2^s)), one division and one conversion.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

THC_BLOCK: Final = 1024
FIXED_BLOCK: Final = 256
FRACTION_BITS: Final = 16
"""Of a coordinate on the table's scale, and of its random number."""
INPUT_BITS: Final = FRACTION_BITS - 5
"""Of an element before the rotation, which multiplies by sqrt(1024)."""


class BlockKeys(NamedTuple):
    """Keys of a run of blocks; block number `first` is the first row of the arrays beside it."""

    rotation: int
    rounding: int
    first: int


@dataclass(frozen=True, slots=True)
class Steps:
    """A table in the form that counts codes: its values, grouped by the width of the gap below them."""

    table: NDArray[np.uint8]
    """[16]"""
    widths: NDArray[np.int32]
    """[groups], ascending"""
    starts: NDArray[np.int64]
    """[groups + 1]: targets[starts[i]:starts[i + 1]] have widths[i]"""
    targets: NDArray[np.uint8]
    """[15]: T[1..15] in groups"""

    @classmethod
    def of(cls, values: tuple[int, ...]) -> Steps:
        """Group a table."""
        gaps = sorted((high - low, high) for low, high in pairwise(values))
        widths, starts = np.unique(np.array([width for width, _ in gaps], np.int32), return_index=True)
        return cls(
            np.array(values, np.uint8),
            widths,
            np.append(starts, len(gaps)).astype(np.int64),
            np.array([target for _, target in gaps], np.uint8),
        )

    @property
    def granularity(self) -> int:
        """g"""
        return int(self.table[-1])


class Kernels(Protocol):
    """A backend. All arrays are contiguous; rows are blocks; `out` is filled, everything else only read."""

    name: str

    def root_mean_square(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the root mean square of each row of float32[blocks, 1024]; not finite where the row is not."""

    def peak_bits(self, x: NDArray[np.float32]) -> NDArray[np.uint32]:
        """Return the bits of the largest magnitude of each row of float32[blocks, 256]; NaN is above +inf."""

    def thc_encode(
        self,
        x: NDArray[np.float32],
        scales: NDArray[np.float32],
        steps: Steps,
        keys: BlockKeys,
        out: NDArray[np.uint8],
    ) -> None:
        """Fill packed codes uint8[blocks, 512] from float32[blocks, 1024], scales float32[blocks]."""

    def thc_lookup(self, payloads: NDArray[np.uint8], steps: Steps, out: NDArray[np.uint8]) -> None:
        """Fill lanes uint8[blocks, 1024] with the table's values of packed codes uint8[blocks, 512]."""

    def thc_decode(
        self,
        lanes: NDArray[np.uint8],
        counts: NDArray[np.int32],
        factors: NDArray[np.float32],
        granularity: int,
        keys: BlockKeys,
        out: NDArray[np.float32],
    ) -> None:
        """Fill float32[blocks, 1024] from lane sums uint8[blocks, 1024] of counts[block] workers."""

    def fixed_encode(
        self, x: NDArray[np.float32], scales: NDArray[np.float32], limit: np.float32, out: NDArray[np.uint32]
    ) -> None:
        """Fill lanes uint32[blocks, 256], big-endian in memory, from float32[blocks, 256]; clamps to +-limit."""

    def fixed_decode(self, lanes: NDArray[np.uint32], divisors: NDArray[np.float64], out: NDArray[np.float32]) -> None:
        """Fill float32[blocks, 256] from lanes uint32[blocks, 256] that are big-endian in memory."""
