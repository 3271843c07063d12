# SPDX-License-Identifier: Apache-2.0
"""Checks of the options of `thc` and `uhc`: lanes, tables, packed results and digits that fit together."""

from __future__ import annotations

from typing import Final

from hopsum.codec.backends.kernels import DIGIT_LANE_BITS
from hopsum.codec.base import CodecError
from hopsum.codec.digits import finest_granularity
from hopsum.codec.table import LookupTable, require_switch_table
from hopsum.codec.table_search import PAIRED_SUM_BITS
from hopsum_wire import CODE_GROUPS
from hopsum_wire._layout import PACKED_LANE_BITS

LANE_BITS: Final = (8, 16)
ROTATIONS: Final = ("block", "full", "none")
SCALES: Final = ("block", "tensor")
MIN_BOUND: Final = 0.25
"""The least bound of the truncation, in standard deviations: the rotation's 32 bits are enough for it (kernels.py)."""


def require_code_group(code_group: int) -> None:
    """Raise CodecError unless a switch program may take so many codes as a group."""
    if code_group not in CODE_GROUPS:
        raise CodecError(f"codes in groups of {code_group}: one of {', '.join(map(str, CODE_GROUPS))}")


def require_lane_bits(lane_bits: int) -> None:
    """Raise CodecError unless a switch adds codes in lanes of so many bits."""
    if lane_bits not in LANE_BITS:
        raise CodecError(f"lanes of {lane_bits} bits: {' or '.join(str(bits) for bits in LANE_BITS)}")


def require_result_bits(result_bits: int | None, lane_bits: int, paired: bool) -> bool:
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


def require_options(lane_bits: int, rotation: str, scale: str) -> None:
    """Raise CodecError for lanes, a rotation or a scale that no codec has."""
    require_lane_bits(lane_bits)
    for what, given, known in (("rotation", rotation, ROTATIONS), ("scale", scale, SCALES)):
        if given not in known:
            raise CodecError(f"{what} {given!r}: one of {', '.join(known)}")


def require_table(workers: int, table: LookupTable, lane_bits: int) -> None:
    """Raise CodecError for a table whose sums overflow a lane of so many bits, or that truncates too much."""
    total, most = workers * table.granularity, (1 << lane_bits) - 1
    if total > most:
        raise CodecError(
            f"{workers} workers * granularity {table.granularity} = {total} overflows a lane, whose maximum is {most}; "
            "leave the table out to get one that fits, or take fewer bits or wider lanes"
        )
    if table.granularity != len(table.values) - 1:  # codes are not values: the switch looks them up
        require_switch_table(table)
    if table.bound < MIN_BOUND:
        raise CodecError(
            f"a table that truncates {table.truncated:.3g} of the coordinates, beyond {table.bound:.3g} standard "
            f"deviations: at least {MIN_BOUND}"
        )


def require_digits(workers: int, table: LookupTable, digits: int) -> None:
    """Raise CodecError for a table whose sums are no digit of a lane, or whose values are not all integers."""
    finest = finest_granularity(workers, digits)
    if table.granularity > finest:
        raise CodecError(
            f"digits={digits}: the sum of {workers} workers * granularity {table.granularity} = "
            f"{workers * table.granularity} is no digit, of which {digits} share a lane of {DIGIT_LANE_BITS} bits; the "
            f"granularity is at most {finest}: leave the table out to get one that fits"
        )
    if table.granularity != len(table.values) - 1:
        raise CodecError(
            f"digits={digits} with a table of {len(table.values)} values up to {table.granularity}: values travel as "
            "they are, so a table has all of them; leave it out"
        )
