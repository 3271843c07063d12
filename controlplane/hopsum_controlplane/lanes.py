# SPDX-License-Identifier: Apache-2.0
"""Proof that a lane never overflows, and what a lookup table must be.

n workers add values of at most g to one lane, so n * g <= 2^bits - 1 is enough, whatever the codes are. Where sums are
looked up again, values have a sign, and a lane has 8 bits. With values of -v .. v, n * v <= 127 is enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from hopsum_controlplane.errors import ControlPlaneError
from hopsum_wire import TABLE_ENTRIES, Op
from hopsum_wire.payload import SHAPES

# Two codes are the fewest that say anything: a table of 0, 1, 1, ...
MIN_GRANULARITY = 1
RESULT_CODE_BITS: Final = {Op(op): shape.code_bits for op, shape in SHAPES.items() if shape.down_codes}
"""Bits of a code, up and down, by the operations that look the finished sum up again."""
_SIGNED_MAX: Final = 127
"""The largest sum in a lane of 8 bits with a sign, and the largest threshold."""


def check_lane_overflow(workers: int, granularity: int, lane_bits: int = 8) -> None:
    """Prove that a lane of `lane_bits` bits holds the sum of `workers` values of at most `granularity` each.

    Raises ControlPlaneError when it may not. The message has the number of workers and the granularity that would fit.
    """
    maximum = (1 << lane_bits) - 1
    # Each worker adds at most g to a lane, whatever codes it sends, so n * g bounds every sum.
    if workers * granularity <= maximum:
        return
    finest = maximum // workers
    table = f"granularity {finest}" if finest >= MIN_GRANULARITY else f"no table (at least {MIN_GRANULARITY})"
    raise ControlPlaneError(
        f"n * g = {workers} workers * granularity {granularity} = {workers * granularity} may overflow a "
        f"lane of {lane_bits} bits, whose maximum is {maximum}: granularity {granularity} allows "
        f"{maximum // granularity} workers, {workers} workers allow {table}",
        hint="use fewer workers or a coarser table",
    )


def check_table(table: Sequence[int]) -> int:
    """Check a lookup table and return its granularity, T[15].

    A table of fewer than 16 codes repeats its last value to the end: codes beyond are never sent.

    Raises ControlPlaneError unless it has 16 integers that rise from T[0] = 0 to T[15] and stay there once they have
    reached it.
    """
    hint = f"a table has {TABLE_ENTRIES} integers that rise from 0; once they reach the last value they stay there"
    if len(table) != TABLE_ENTRIES:
        raise ControlPlaneError(f"lookup table of {len(table)} entries", hint=hint)
    for code, value in enumerate(table):
        if isinstance(value, bool) or not isinstance(value, int):
            raise ControlPlaneError(f"lookup table: T[{code}] = {value!r} is not an int", hint=hint)
    if table[0] != 0:
        raise ControlPlaneError(f"lookup table: T[0] = {table[0]}", hint=hint)
    for code in range(1, TABLE_ENTRIES):
        # A table of fewer than 16 codes repeats its last value: those codes are never sent.
        if table[code] <= table[code - 1] and not table[code] == table[code - 1] == table[-1] > 0:
            raise ControlPlaneError(
                f"lookup table: T[{code}] = {table[code]} is not above T[{code - 1}] = {table[code - 1]}",
                hint=hint,
            )
    return table[-1]


def check_signed_overflow(workers: int, table: Sequence[int], code_bits: int) -> None:
    """Prove that the sum of any of `workers` values of a result table fits a lane of -128 .. 127.

    `table` and `code_bits` are as for `check_result_table`, which has to pass first.

    Raises ControlPlaneError when it may not. The message has the number of workers and the values that would fit.
    """
    largest = max(map(abs, table[: 1 << code_bits]))
    if workers * largest <= _SIGNED_MAX:
        return
    raise ControlPlaneError(
        f"n * v = {workers} workers * values of -{largest} .. {largest} = {workers * largest} may leave a lane of "
        f"-128 .. 127, whose bound is {_SIGNED_MAX}: such values allow {_SIGNED_MAX // largest} workers, {workers} "
        f"workers allow values of -{_SIGNED_MAX // workers} .. {_SIGNED_MAX // workers}",
        hint="use fewer workers, smaller values, or a codec with bits=4 and result_bits=8",
    )


def check_result_table(table: Sequence[int], code_bits: int) -> None:
    """Check a result table, for an operation whose finished sums the switch looks up again and sends as codes.

    A table for codes of b bits has 2^b values, then 2^b - 1 thresholds. The code of a sum is the number of thresholds
    that are at most (sum + 128) >> 1.

    Raises ControlPlaneError unless values are integers of -128 .. 127, and thresholds of 1 .. 127 that do not fall.
    """
    count = 1 << code_bits
    hint = (
        f"a table for codes of {code_bits} bits has {count} values of -128 .. 127, then {count - 1} thresholds of "
        "1 .. 127 that do not fall"
    )
    if len(table) != 2 * count - 1:
        raise ControlPlaneError(f"lookup table of {len(table)} entries", hint=hint)
    for number, value in enumerate(table):
        what = f"T[{number}]" if number < count else f"threshold {number - count}"
        if isinstance(value, bool) or not isinstance(value, int):
            raise ControlPlaneError(f"lookup table: {what} = {value!r} is not an int", hint=hint)
        least = -_SIGNED_MAX - 1 if number < count else 1
        if not least <= value <= _SIGNED_MAX:
            raise ControlPlaneError(f"lookup table: {what} = {value}", hint=hint)
    thresholds = table[count:]
    for number in range(1, len(thresholds)):
        if thresholds[number] < thresholds[number - 1]:
            raise ControlPlaneError(
                f"lookup table: threshold {number} = {thresholds[number]} is below threshold {number - 1} = "
                f"{thresholds[number - 1]}",
                hint=hint,
            )
