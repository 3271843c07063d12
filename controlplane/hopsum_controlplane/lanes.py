# SPDX-License-Identifier: Apache-2.0
"""Proof that a lane never overflows, and what a lookup table must be.

n workers add values of at most g to one lane, so n * g <= 2^bits - 1 is enough, whatever the codes are.
"""

from __future__ import annotations

from collections.abc import Sequence

from hopsum_controlplane.errors import ControlPlaneError
from hopsum_wire import TABLE_ENTRIES

# Two codes are the fewest that say anything: a table of 0, 1, 1, ...
MIN_GRANULARITY = 1


def check_lane_overflow(workers: int, granularity: int, lane_bits: int = 8) -> None:
    """Prove that a lane of `lane_bits` bits holds the sum of `workers` values of at most `granularity` each.

    Raises ControlPlaneError with all the numbers when it may not: fewer workers, or a coarser table.
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
