# SPDX-License-Identifier: Apache-2.0
"""Entries of control Lookup: the job's table of 16 values, broadcast to all lanes of a vector."""

from __future__ import annotations

from hopsum_controlplane.entries import TableEntry
from hopsum_controlplane.jobs import Job

LOOKUP = "lookup"

VECTOR_LANES = 256
# A one in each of the 256 byte lanes of bit<2048>: times a byte, it is that byte in every lane.
_ONES = int.from_bytes(b"\x01" * VECTOR_LANES, "big")


def lookup(job: Job) -> list[TableEntry]:
    """Build the entry of the job's table; none when the job has no table.

    For even i, `t<i>` is T[i] in every lane and `x<i>` is T[i] ^ T[i + 1], by which the program selects
    between them.
    """
    table = job.spec.table
    if table is None:
        return []
    params = {}
    for code in range(0, len(table), 2):
        params[f"t{code}"] = table[code] * _ONES
        params[f"x{code}"] = (table[code] ^ table[code + 1]) * _ONES
    return [TableEntry(LOOKUP, {"epoch": job.epoch}, "load_table", params)]
