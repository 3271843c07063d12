# SPDX-License-Identifier: Apache-2.0
"""Entries of control Requantize: the thresholds by which a root looks finished sums up again.

The program finds a code of b bits in b steps, the highest bit first. In each step it adds to all lanes a value that the
bits found so far select, and the carry into the highest bit of a lane is the next bit. So the steps have 1, 2, 4, ...
values. Each step's values travel as coefficients of a polynomial, like a table of control Lookup.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from hopsum_controlplane.entries import TableEntry
from hopsum_controlplane.job_spec import Job
from hopsum_controlplane.lanes import RESULT_CODE_BITS
from hopsum_controlplane.tables.lookup import in_every_lane, polynomial

REQUANTIZE: Final = "requantize"

_LANE_BITS: Final = 8
_CARRY: Final = 128
"""A sum has 7 bits when it is compared. With this number less a threshold it reaches the eighth bit from there on."""


def requantize(job: Job) -> list[TableEntry]:
    """Build one entry for each operation that looks sums up again, none below another switch of a tree.

    A leaf relays the codes that its parent has found.
    """
    if job.spec.parent is not None:
        return []
    return [
        TableEntry(
            REQUANTIZE,
            {"generation": job.generation, "op": op},
            f"load_thresholds{RESULT_CODE_BITS[op]}",
            _parameters(table[1 << RESULT_CODE_BITS[op] :]),
        )
        for op, table in job.spec.lookups.items()
        if op in RESULT_CODE_BITS
    ]


def _parameters(thresholds: Sequence[int]) -> dict[str, int]:
    """Return the action's parameters, `t0`, `t1`, ...: the coefficients of the first step, of the second, ..."""
    found = (coefficient for values in _steps(thresholds) for coefficient in polynomial(values))
    return {f"t{number}": in_every_lane(coefficient, _LANE_BITS) for number, coefficient in enumerate(found)}


def _steps(thresholds: Sequence[int]) -> Iterator[list[int]]:
    """Yield the values of each step, by the bits found so far."""
    # A binary search: the bits found so far leave a range of codes, and the next bit says in which half the code is.
    half = (len(thresholds) + 1) // 2
    while half:
        yield [_CARRY - thresholds[middle - 1] for middle in range(half, len(thresholds) + 1, 2 * half)]
        half //= 2
