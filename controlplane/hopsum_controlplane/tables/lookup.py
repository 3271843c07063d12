# SPDX-License-Identifier: Apache-2.0
"""Entries of control Lookup: the job's tables of 16 values, broadcast to all lanes of a vector."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from hopsum.wire import Op
from hopsum_controlplane.entries import TableEntry
from hopsum_controlplane.jobs import Job

LOOKUP = "lookup"

VECTOR_BITS: Final = 2048
_ACTIONS: Final = {8: "load_table8", 16: "load_table16"}


def lookup(job: Job) -> list[TableEntry]:
    """Build one entry for each table that the job has: its 8-bit lanes', its 16-bit lanes'."""
    tables = ((Op.LOOKUP_ADD8, job.spec.table, 8), (Op.LOOKUP_ADD16, job.spec.table16, 16))
    return [
        TableEntry(LOOKUP, {"epoch": job.epoch, "op": op}, _ACTIONS[lane_bits], broadcast(table, lane_bits))
        for op, table, lane_bits in tables
        if table is not None
    ]


def broadcast(table: Sequence[int], lane_bits: int) -> dict[str, int]:
    """Return the action's parameters: `c<i>` is coefficient i of the table's polynomial in every lane of a vector."""
    ones = int.from_bytes((1).to_bytes(lane_bits // 8, "big") * (VECTOR_BITS // lane_bits), "big")
    return {f"c{number}": value * ones for number, value in enumerate(polynomial(table))}


def polynomial(table: Sequence[int]) -> list[int]:
    """Return coefficients over GF(2): T[code] is the exclusive or of all of them whose number is a part of `code`.

    A number is a part of a code if it has no bit that the code has not. `table` has a power of two of values.
    """
    coefficients = list(table)
    bit = 1
    while bit < len(coefficients):
        for number in range(len(coefficients)):
            if number & bit:
                coefficients[number] ^= coefficients[number ^ bit]
        bit <<= 1
    return coefficients
