# SPDX-License-Identifier: Apache-2.0
"""Facts for builders and audits about the program that a switch runs. `p4info.read_program` reads them from P4Info.

The programs have the same controls, tables and keys, but for three things:

- lookup: v1model's broadcasts a polynomial to all lanes of a vector. Tofino's has tables of half-words, each of which
  turns two codes into two lanes: as many as half a pass consumes, in ingress and once more in egress. Under one number,
  `table_id`, all of them have the same entries, and table `lookup` gives the number to a job's generation.
- trees of switches: a program without the tables `leaves`, `parents` and `parent_rewrite` is a root only.
- sums that are looked up again: a program without the table `requantize` has no such operations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from hopsum_wire import LANE_GROUP_CODES, MAX_JOBS

HALF_WORD_KEYS: Final = ("table_id", "c0", "c1")
"""The keys of the tables of half-words: which job's table, and two codes."""
HALF_WORD_CODES: Final = 2
PAIRS: Final = 256
"""Entries that a job has in each of them: one for every two codes of 4 bits."""
TREE_TABLES: Final = ("leaves", "parents", "parent_rewrite")
BASE_TABLES: Final = ("jobs", "workers", "lookup", "rewrite")
FURTHER_TABLES: Final = ("requantize", *TREE_TABLES)
"""Tables whose entries belong to generations, of those that not every program has."""


class HalfWord(NamedTuple):
    """A table of half-words, and its action, whose one parameter is the two lanes."""

    table: str
    action: str


@dataclass(frozen=True)
class Program:
    """The facts about a P4 program that builders and audits need.

    job_tables: tables whose entries belong to generations, besides half-words.
    half_words: tables of half-words, empty where the lookup is a polynomial.
    lookup_action: action of table `lookup`, empty where the lookup is a polynomial.
    code_group: number of codes that workers pack as a group, see `hopsum_wire.payload`.
    lookups: number of jobs that may have a lookup table at the same time.
    """

    job_tables: tuple[str, ...] = (*BASE_TABLES, *FURTHER_TABLES)
    half_words: tuple[HalfWord, ...] = ()
    lookup_action: str = ""
    code_group: int = LANE_GROUP_CODES
    lookups: int = MAX_JOBS

    @property
    def supports_trees(self) -> bool:
        """Return whether the program can run on a switch of a tree: it has the three tables of neighbours."""
        return all(name in self.job_tables for name in TREE_TABLES)


V1MODEL: Final = Program()
"""The program of software switches."""
