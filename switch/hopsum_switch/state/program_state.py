# SPDX-License-Identifier: Apache-2.0
"""All state of a running program in one place: an engine is this state and the code that packets run through."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, MutableSequence

from ..program.ir import ProgramIR
from .cells import CounterCells, CounterStore, MeterStore, RegisterStore
from .copies import CloneStore, MulticastStore
from .digest_store import DigestStore
from .table_store import TableStore


class ProgramState:
    """The stores of one program, with its constant entries and nothing else at first.

    `counters` and `registers` are memory for their cells, all 0, by the name of the array. None: lists.
    """

    def __init__(
        self,
        program: ProgramIR,
        counters: Mapping[str, CounterCells] | None = None,
        registers: Mapping[str, MutableSequence[int]] | None = None,
    ) -> None:
        self.program = program
        self.tables = TableStore(program)
        self.multicast = MulticastStore()
        self.clones = CloneStore()
        self.counters = CounterStore(program, self.tables, counters)
        self.registers = RegisterStore(program, registers)
        self.meters = MeterStore(program, self.tables)
        self.digests = DigestStore(program)
        # The data plane puts its own counters here, so that counts survive a change of the program.
        self.faults: Counter[str] = Counter()
        """Faults of the program, by kind (`program.ir`)."""
        self.dropped: Counter[str] = Counter()
        """Packets that the engine itself dropped, by reason."""
