# SPDX-License-Identifier: Apache-2.0
"""Codec `uhc`: evenly spaced codes of 1 to 8 bits, which are their own values (uniform compression of the same paper).

A code z stands for the coordinate -t + 2 t z/g, g = 2^bits - 1. Up to 4 bits travel as 4-bit codes (LOOKUP_ADD8 or
LOOKUP_ADD16, with the identity as the job's table). More are sent as lanes (ADD8 or ADD16) without a lookup. Lanes
have 8 bits where workers * g fits, else 16.

The published code truncates a fraction 1e-4 whatever the job. Here t is chosen for the job: roundings of n workers
average out as 1/n while truncation does not, so t grows with n, and with the bits. Rotation, ranges and lanes are in
lookup_table_codec.py.
"""

from __future__ import annotations

from functools import cache
from typing import Final

from hopsum.codec.backends.kernels import Kernels
from hopsum.codec.base import CodecError, require_workers
from hopsum.codec.lookup_table import LookupTable, expected_nmse
from hopsum.codec.lookup_table_codec import LookupTableCodec
from hopsum_wire import LANE_GROUP_CODES
from hopsum_wire._layout import PACKED_LANE_BITS

MAX_BITS: Final = 8
_QUARTERS: Final = range(2, 161)
"""Truncated fractions that are tried, as exponents of 2^(-1/4): 0.7 to 1e-12."""


def uniform_nmse(bits: int, truncated: float, workers: int) -> float:
    """Return E||mean' - mean||^2 / ||mean||^2 for workers with the same N(0, 1) input, without error feedback."""
    return expected_nmse(LookupTable(tuple(range(1 << bits)), truncated), workers)


@cache
def uniform_table(bits: int, workers: int) -> LookupTable:
    """Return T[z] = z with the truncated fraction of least `uniform_nmse`, a power of 2^(1/4)."""

    def error(quarters: int) -> float:
        return uniform_nmse(bits, 2.0 ** (-quarters / 4), workers)

    low, high = _QUARTERS[0], _QUARTERS[-1]
    while high - low > 2:  # the error falls, then rises
        left, right = low + (high - low) // 3, high - (high - low) // 3
        if error(left) <= error(right):
            high = right
        else:
            low = left
    return LookupTable(tuple(range(1 << bits)), 2.0 ** (-min(range(low, high + 1), key=error) / 4))


class Uhc(LookupTableCodec):
    """See the module and `LookupTableCodec`. The contract is `RangeCodec`."""

    name = "uhc"

    def __init__(
        self,
        workers: int,
        *,
        bits: int = 4,
        lane_bits: int | None = None,
        truncated: float | None = None,
        rotation: str = "block",
        scale: str = "block",
        kernels: Kernels | None = None,
        code_group: int = LANE_GROUP_CODES,
        result_bits: int | None = None,
    ) -> None:
        """Make the codec of a job. All ranks give the same arguments.

        Args:
            bits: of a code, 1 to 8.
            lane_bits: 8 or 16. Left out: the narrower that fits.
            truncated: expected fraction of coordinates beyond t, 0 to 0.8. The default is the best for bits and
                workers.
            rotation: "block", "full" or "none". See lookup_table_codec.py.
            scale: "block" or "tensor". See lookup_table_codec.py.
            code_group: of the job's switch, see `hopsum_wire.payload`.
            result_bits: of a sum in a result, those of the lane by default, or 6 where the sum of `workers` values of
                at most 4 bits is at most 63.

        Raises:
            CodecError: an unknown option, or the sum of `workers` values may overflow a lane.
        """
        require_workers(workers)
        if not 1 <= bits <= MAX_BITS:
            raise CodecError(f"uhc with codes of {bits} bits: 1 to {MAX_BITS}")
        values = tuple(range(1 << bits))
        super().__init__(
            workers,
            uniform_table(bits, workers) if truncated is None else LookupTable(values, truncated),
            lane_bits=lane_bits or (8 if result_bits == PACKED_LANE_BITS or workers * values[-1] <= 255 else 16),
            rotation=rotation,
            scale=scale,
            kernels=kernels,
            code_group=code_group,
            result_bits=result_bits,
        )
        self.bits = bits
        self.truncated = self.table.truncated
