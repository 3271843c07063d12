# SPDX-License-Identifier: Apache-2.0
"""Codec `thc`: 4-bit codes of a randomly rotated vector, looked up and added by the switch (Li et al., NSDI 2024).

The table's values are not evenly spaced: they are the ones of least error for N(0, 1) coordinates that a job of so
many workers can add in its lanes (table.py). Rotation, ranges and lanes are in lookup_table_codec.py. A range per block
rather than one per tensor is the default: layers of a network differ by orders of magnitude, and a block whose
coordinates are small against the range has only a few values left of the table. It costs one 32-bit lane per 1024
codes, 0.8 % of the bytes up.

Lanes of 16 bits add up to 65535: more workers, or finer tables, for twice the bytes down. In lanes of 8 bits more than
17 workers need codes of fewer than 4 bits, 8, 4 or 2 values. The wire carries them as 4-bit codes all the same.
`bits=2` puts two codes of 2 bits into a symbol, and two sums into a lane (pairs.py).
`result_bits=6` makes results three quarters as long: the table's sum stays below 64 for all workers, and the switch
packs four lanes into three bytes (`hopsum_wire.payload`).
`digits=k` puts k elements into a lane of 32 bits, the same bits up and down (digits.py): the switch adds the values
themselves, all integers up to the largest whose sum over all workers is a digit.
"""

from __future__ import annotations

from hopsum.codec.backends.kernels import Kernels
from hopsum.codec.base import CodecError, require_workers
from hopsum.codec.digits import finest_granularity
from hopsum.codec.lookup_table_codec import HUGE, TINY, LookupTableCodec
from hopsum.codec.lookup_table_options import require_lane_bits, require_result_bits
from hopsum.codec.table import PAIRED_BITS, LookupTable, best_table, even_table, paired_table, require_switch_table
from hopsum_wire import LANE_GROUP_CODES

__all__ = ["HUGE", "TINY", "Thc"]

WIRE_BITS = 4
"""The bits of a symbol of LOOKUP_ADD8 and LOOKUP_ADD16."""


class Thc(LookupTableCodec):
    """See the module and `LookupTableCodec`. The contract is `RangeCodec`."""

    name = "thc"

    def __init__(
        self,
        workers: int,
        *,
        table: LookupTable | None = None,
        bits: int = WIRE_BITS,
        error_feedback: bool | None = None,
        lane_bits: int = 8,
        rotation: str = "block",
        scale: str = "block",
        kernels: Kernels | None = None,
        code_group: int = LANE_GROUP_CODES,
        result_bits: int | None = None,
        digits: int | None = None,
    ) -> None:
        """Make the codec of a job. All ranks give the same arguments.

        Args:
            table: of up to 16 values, of up to 4 with `bits=2`. The best one that fits the workers and lanes if left
                out.
            bits: of a code on the wire, 4 or 2. Two codes of 2 bits share a symbol, and their sums a lane of 8 bits
                (pairs.py): half of the bytes up and down, for up to 7 workers, and a larger error.
            error_feedback: whether the table is the best one for ranks that keep error feedback, see table_search.py.
                If left out, it is with `bits=2` and with `digits`.
            lane_bits: 8 (LOOKUP_ADD8) or 16 (LOOKUP_ADD16).
            rotation: "block", "full" or "none". See lookup_table_codec.py.
            scale: "block" or "tensor". See lookup_table_codec.py.
            code_group: of the job's switch, see `hopsum_wire.payload`.
            result_bits: of a sum in a result, 6 for packed results: 8 bits if left out, or `lane_bits`. With 6, up to
                4 workers have tables of 16 values, up to 9 of 8, up to 21 of 4, up to 63 of 2.
            digits: elements that share a lane of 32 bits (ADD32): 32 / digits bits an element, up and down. Neither
                `bits`, `lane_bits` nor `result_bits` go with it.

        Raises:
            CodecError: an unknown option, or the sum of `workers` table values may overflow a lane.
        """
        require_workers(workers)
        require_lane_bits(lane_bits)
        if bits not in (PAIRED_BITS, WIRE_BITS):
            raise CodecError(f"thc with codes of {bits} bits: {PAIRED_BITS} or {WIRE_BITS}")
        paired = bits == PAIRED_BITS
        require_result_bits(result_bits, lane_bits, paired)
        if digits is not None and (bits, lane_bits, result_bits) != (WIRE_BITS, 8, None):
            raise CodecError(
                f"thc:digits={digits} with bits={bits}, lane_bits={lane_bits}, result_bits={result_bits}: digits alone "
                "say how an element travels; leave the others out"
            )
        coarse = paired or digits is not None
        kept = coarse if error_feedback is None else error_feedback
        if digits is not None:
            table = table or even_table(finest_granularity(workers, digits), 1 if kept else workers)
        elif table is None:
            table = paired_table(workers, kept) if paired else best_table(workers, result_bits or lane_bits, None, kept)
        if digits is None:
            require_switch_table(table)
        super().__init__(
            workers,
            table,
            lane_bits=lane_bits,
            rotation=rotation,
            scale=scale,
            kernels=kernels,
            code_group=code_group,
            paired=paired,
            result_bits=result_bits,
            digits=digits,
        )
        self.bits = bits
