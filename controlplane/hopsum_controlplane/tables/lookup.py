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
    """Return the action's parameters: for even i, `t<i>` is T[i] in every lane of a vector.

    `x<i>` is T[i] ^ T[i + 1], by which the program selects between them.
    """
    ones = int.from_bytes((1).to_bytes(lane_bits // 8, "big") * (VECTOR_BITS // lane_bits), "big")
    params = {}
    for code in range(0, len(table), 2):
        params[f"t{code}"] = table[code] * ones
        params[f"x{code}"] = (table[code] ^ table[code + 1]) * ones
    return params
