# SPDX-License-Identifier: Apache-2.0
"""Entries of control Lookup: the values that the job's tables have for codes.

In v1model's program one entry has the values of a table broadcast to all lanes of a vector. In Tofino's the generation
gets the number of a table, and under this number every table of half-words has 256 entries: two codes, two lanes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Final

from hopsum_controlplane.entries import Entity, TableEntry
from hopsum_controlplane.job_spec import Job
from hopsum_controlplane.lanes import RESULT_CODE_BITS
from hopsum_controlplane.program import HALF_WORD_KEYS, V1MODEL, Program
from hopsum_wire import Op
from hopsum_wire.payload import SHAPES, TABLE_NAMES

LOOKUP = "lookup"

VECTOR_BITS: Final = 2048
_TABLE: Final = TABLE_NAMES[Op.LOOKUP_ADD8]


def lookup(job: Job, program: Program = V1MODEL) -> list[TableEntry]:
    """Build the entries by which the job's own workers' codes are looked up, an empty list for none.

    A program with half-words has at most one entry, with the number of the job's table. Others have one entry for each
    operation, with the values of its table.
    """
    if program.half_words:
        if _TABLE not in job.spec.tables:
            return []
        match = {"generation": job.generation, "op": Op.LOOKUP_ADD8}
        return [TableEntry(LOOKUP, match, program.lookup_action, {"table_id": table_id(job)})]
    # Nobody sends codes to a spine without workers of its own: its table has the thresholds of sums alone.
    if not job.spec.workers:
        return []
    return [
        TableEntry(LOOKUP, {"generation": job.generation, "op": op}, _action(op), _values(op, table))
        for op, table in job.spec.lookups.items()
    ]


def _action(op: Op) -> str:
    """Return the action of an operation. 4-bit codes in lanes of 8 bits have one, whatever becomes of their sums."""
    shape = SHAPES[op]
    return f"load_table{shape.lane_bits if shape.code_bits == 4 else shape.code_bits}"


def _values(op: Op, table: Sequence[int]) -> dict[str, int]:
    """Return the action's parameters for the values of a table, without its thresholds."""
    bits = RESULT_CODE_BITS.get(op)
    return broadcast(table if bits is None else table[: 1 << bits], SHAPES[op].lane_bits)


def table_id(job: Job) -> int:
    """Return the number of a job's table: 1 .. 64. 0 and 255 mean none in the program."""
    return job.job_index + 1


def is_half_word(entry: TableEntry) -> bool:
    """Return whether the entry is of a table of half-words, whichever: their names are the program's."""
    return tuple(entry.match) == HALF_WORD_KEYS


def without_half_words(entities: Sequence[Entity]) -> list[Entity]:
    """Return `entities` in their order, without the entries of half-words."""
    return [entity for entity in entities if not (isinstance(entity, TableEntry) and is_half_word(entity))]


def half_words(job: Job, program: Program) -> list[TableEntry]:
    """Build the entries of all tables of half-words, 256 in each.

    There are none in a program or for a job without them.
    """
    table, number = job.spec.tables.get(_TABLE, ()), table_id(job)
    pairs = [
        (dict(zip(HALF_WORD_KEYS, (number, first, second), strict=True)), {"lanes": lanes[0] << 8 | lanes[1]})
        for (first, second), lanes in zip(product(range(len(table)), repeat=2), product(table, repeat=2), strict=True)
    ]
    return [TableEntry(half.table, match, half.action, lanes) for half in program.half_words for match, lanes in pairs]


def broadcast(table: Sequence[int], lane_bits: int) -> dict[str, int]:
    """Return the action's parameters: `c<i>` is coefficient i of the table's polynomial in every lane of a vector.

    Values below 0 are two's complements.
    """
    lane = (1 << lane_bits) - 1
    coefficients = polynomial([value & lane for value in table])
    return {f"c{number}": in_every_lane(value, lane_bits) for number, value in enumerate(coefficients)}


def in_every_lane(value: int, lane_bits: int) -> int:
    """Return a vector of VECTOR_BITS bits, as an int, with one value, of 0 to 2^lane_bits - 1, in all lanes."""
    ones = int.from_bytes((1).to_bytes(lane_bits // 8, "big") * (VECTOR_BITS // lane_bits), "big")
    # The product has no carries between lanes: a lane of the other factor is 1.
    return value * ones


def polynomial(table: Sequence[int]) -> list[int]:
    """Return as many coefficients over GF(2) as `table` has values, which are a power of two.

    T[code] is the exclusive or of all coefficients whose number is a part of `code`. A number is a part of a code if it
    has no bit that the code has not.
    """
    coefficients = list(table)
    bit = 1
    while bit < len(coefficients):
        for number in range(len(coefficients)):
            if number & bit:
                # The Moebius transform over GF(2): each pass removes one bit's share from the coefficients that
                # contain it.
                coefficients[number] ^= coefficients[number ^ bit]
        bit <<= 1
    return coefficients
