# SPDX-License-Identifier: Apache-2.0
"""All registers and indexed counters of an engine at one moment between two packets, for JSON::

  {"format": "hopsum_switch snapshot 2", "program": name, "digest": SHA-256 of the program,
   "registers": {name: {"bits": width, "values": ["0x0", ...]}},
   "counters": {name: {"packets": [0, ...], "bytes": [0, ...]}}}

Direct counters belong to table entries and are read with the entries, over P4Runtime.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

from ..engine import Engine
from ..state.cells import CounterCells

FORMAT = "hopsum_switch snapshot 2"
Json = dict[str, Any]


class SnapshotError(Exception):
    """No register or counter has the given name, or several do. The message names them."""


def full_name(name: str, arrays: Collection[str]) -> str:
    """Return the one of `arrays` that is called so, in full or by the last parts of its name, as `slot.tag` or `tag`.

    Raises SnapshotError: none is, or several are.
    """
    if name in arrays:
        return name
    found = [array for array in arrays if array.endswith(f".{name}")]
    if len(found) == 1:
        return found[0]
    if found:
        raise SnapshotError(f"{name!r} may be each of {', '.join(found)}: give more of the name")
    raise SnapshotError(f"no register or counter {name!r}: there are {', '.join(arrays)}")


@dataclass(frozen=True)
class Snapshot:
    """Copies of the cells of registers (with their width in bits) and counters, by fully qualified name."""

    program: str
    digest: str
    registers: Mapping[str, tuple[int, Sequence[int]]]
    counters: Mapping[str, CounterCells]

    def as_json(self, names: Collection[str] = ()) -> Json:
        """Return the JSON object of the module docstring, with the arrays of `names` (empty: all).

        `full_name` documents the valid names. Raises SnapshotError: there is no such array.
        """
        wanted = {full_name(name, [*self.registers, *self.counters]) for name in names}
        # Hexadecimal text, since registers may be wider than the numbers that JSON's readers keep exactly.
        registers = {
            name: {"bits": bits, "values": list(map(hex, cells))}
            for name, (bits, cells) in self.registers.items()
            if not wanted or name in wanted
        }
        counters = {
            name: {"packets": list(cells.packets), "bytes": list(cells.bytes)}
            for name, cells in self.counters.items()
            if not wanted or name in wanted
        }
        about = {"format": FORMAT, "program": self.program, "digest": self.digest}
        return {**about, "registers": registers, "counters": counters}


def take_snapshot(engine: Engine) -> Snapshot:
    """Return copies of all registers, and of all counters that belong to no table. The caller holds the gate."""
    program = engine.program
    # Copies of memory and nothing else: packets wait for them.
    registers = {
        register.name: (register.bits, copy(engine.registers.cells(register.name)))
        for register in program.registers.values()
    }
    counters = {}
    for counter in program.counters.values():
        if counter.table is None:
            cells = engine.counters.cells(counter.name)
            counters[counter.name] = CounterCells(copy(cells.packets), copy(cells.bytes))
    return Snapshot(program.name, program.digest, registers, counters)
