# SPDX-License-Identifier: Apache-2.0
"""The reader of facts about a program from its P4Info, for builders and audits."""

from __future__ import annotations

from collections import Counter

from hopsum_controlplane.errors import ControlPlaneError
from hopsum_controlplane.p4info import P4Info, Table
from hopsum_controlplane.program import (
    BASE_TABLES,
    HALF_WORD_CODES,
    HALF_WORD_KEYS,
    PAIRS,
    TREE_TABLES,
    HalfWord,
    Program,
)
from hopsum_wire import CODE_GROUPS


def read_program(p4info: P4Info) -> Program:
    """Return what a P4Info declares. Raises ControlPlaneError where its tables of half-words fit no group."""
    tables = (*BASE_TABLES, *(name for name in TREE_TABLES if name in p4info.tables))
    found = [table for table in p4info.tables if {key.name for key in table.keys} == set(HALF_WORD_KEYS)]
    if not found:
        return Program(tables)
    return Program(
        tables,
        tuple(HalfWord(table.alias, _action(p4info, table)) for table in found),
        _action(p4info, p4info.tables["lookup"]),
        _code_group(found),
        min(table.size for table in found) // PAIRS,
    )


def _action(p4info: P4Info, table: Table) -> str:
    """Return the one action that entries of a table may have."""
    if len(table.entry_actions) != 1:
        raise ControlPlaneError(
            f"table {table.alias} has entries with {len(table.entry_actions)} actions, not with one",
            hint="this control plane does not know the program",
        )
    return p4info.actions.by_id(table.entry_actions[0]).alias


def _code_group(half_words: list[Table]) -> int:
    """Return how many codes ingress and egress consume: each a contiguous piece of the payload, hence a group."""
    counted = Counter(table.name.partition(".")[0] for table in half_words)
    sizes = {HALF_WORD_CODES * number for number in counted.values()}
    if len(sizes) > 1 or not sizes <= set(CODE_GROUPS):
        codes = ", ".join(f"{HALF_WORD_CODES * number} in {control}" for control, number in counted.items())
        raise ControlPlaneError(
            f"the program looks up {codes} codes a pass", hint=f"equal halves are needed, of one of {CODE_GROUPS}"
        )
    return sizes.pop()
