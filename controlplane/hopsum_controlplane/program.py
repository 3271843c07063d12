# SPDX-License-Identifier: Apache-2.0
"""What builders and audits have to know of the program that a switch runs, read from its P4Info.

The programs have the same controls, tables and keys, but for two things:

- lookup: v1model's broadcasts a polynomial to all lanes of a vector. Tofino's has tables of half-words, each of which
  turns two codes into two lanes: as many as half a pass consumes, in ingress and once more in egress. Under one number,
  `table_id`, all of them have the same entries, and table `lookup` gives the number to a job's epoch;
- trees of switches: a program without the tables `leaves`, `parents` and `climb` is a root only.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from hopsum.wire import CODE_GROUPS, LANE_GROUP_CODES, MAX_JOBS
from hopsum_controlplane.errors import ControlPlaneError

if TYPE_CHECKING:
    from hopsum_controlplane.p4info import P4Info, Table

HALF_WORD_KEYS: Final = ("table_id", "c0", "c1")
"""Of the tables of half-words: which job's table, and two codes."""
HALF_WORD_CODES: Final = 2
PAIRS: Final = 256
"""Entries that a job has in each of them: one for every two codes of 4 bits."""
_TREE: Final = ("leaves", "parents", "climb")
_ALWAYS: Final = ("jobs", "workers", "lookup", "rewrite")


class HalfWord(NamedTuple):
    """A table of half-words, and its action, whose one parameter is the two lanes."""

    table: str
    action: str


@dataclass(frozen=True)
class Program:
    """A program as builders see it.

    `job_tables` hold what belongs to epochs, besides half-words. `half_words` are empty where the lookup is a
    polynomial; where they are not, `lookup_action` is that of table `lookup`. `code_group` is how many codes workers
    pack as a group, see `hopsum.wire.payload`; `lookups` how many jobs may have a lookup table at the same time.
    """

    job_tables: tuple[str, ...] = (*_ALWAYS, *_TREE)
    half_words: tuple[HalfWord, ...] = ()
    lookup_action: str = ""
    code_group: int = LANE_GROUP_CODES
    lookups: int = MAX_JOBS

    @classmethod
    def of(cls, p4info: P4Info) -> Program:
        """Return what a P4Info declares. Raises ControlPlaneError where its tables of half-words fit no group."""
        tree = tuple(name for name in _TREE if name in p4info.tables)
        found = [table for table in p4info.tables if {key.name for key in table.keys} == set(HALF_WORD_KEYS)]
        if not found:
            return cls((*_ALWAYS, *tree))
        half_words = tuple(HalfWord(table.alias, _action(p4info, table)) for table in found)
        return cls(
            (*_ALWAYS, *tree),
            half_words,
            _action(p4info, p4info.tables["lookup"]),
            _code_group(found),
            min(table.size for table in found) // PAIRS,
        )

    @property
    def trees(self) -> bool:
        """Return whether the switch may have switches above or below it."""
        return all(name in self.job_tables for name in _TREE)


V1MODEL: Final = Program()
"""The program of software switches."""


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
