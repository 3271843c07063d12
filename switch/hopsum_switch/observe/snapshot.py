# SPDX-License-Identifier: Apache-2.0
"""All registers and indexed counters of an engine at one moment between two packets: taken, stored, compared.

`freeze` only copies memory and is meant for the time in which packets wait. All other functions work on the copy.
Direct counters belong to table entries and are read with the entries, over P4Runtime.

As a JSON object::

  {"format": "hopsum_switch snapshot 1", "program": name, "digest": SHA-256 of the program,
   "registers": {name: {"bits": width, "first": index of the first cell, "values": ["0x0", ...]}},
   "counters": {name: {"first": index, "packets": [0, ...], "bytes": [0, ...]}}}

As a NumPy file (.npz): `registers/NAME` uint8[cells, bytes of a cell], big-endian, `counters/NAME` uint64[cells, 2],
packets and bytes, and `header`, the JSON object without values, packets and bytes, as uint8[length].
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from ..engine import Engine
from ..program.ir import ProgramIR

FORMAT = "hopsum_switch snapshot 1"
Json = dict[str, Any]


class SnapshotError(Exception):
    """A snapshot cannot be selected, read or compared as asked. The message says why."""


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
class RegisterCellRange:
    """Cells `first`, `first` + 1... of a register array."""

    bits: int
    first: int
    values: Sequence[int]


@dataclass(frozen=True)
class CounterCellRange:
    """Cells `first`, `first` + 1... of an indexed counter. The two sequences have one element per cell."""

    first: int
    packets: Sequence[int]
    bytes: Sequence[int]


@dataclass(frozen=True)
class Change:
    """A cell that differs. `old` and `new` are register values or (packets, bytes)."""

    kind: str
    name: str
    index: int
    old: int | tuple[int, int]
    new: int | tuple[int, int]


@dataclass(frozen=True)
class Snapshot:
    """Registers and counters by fully qualified name."""

    program: str
    digest: str
    registers: Mapping[str, RegisterCellRange]
    counters: Mapping[str, CounterCellRange]

    def select(self, names: Collection[str] = (), first: int = 0, count: int | None = None) -> Snapshot:
        """Return the part with these arrays (none: all) and of each at most `count` cells from index `first` on.

        `full_name` documents the valid names. Raises SnapshotError: there is no such array, or a number is negative.
        """
        names = {full_name(name, [*self.registers, *self.counters]) for name in names}
        if first < 0 or (count is not None and count < 0):
            raise SnapshotError(f"first ({first}) and count ({count}) cannot be negative")
        part = slice(first, None if count is None else first + count)
        registers = {
            name: RegisterCellRange(cells.bits, first, cells.values[part])
            for name, cells in self.registers.items()
            if not names or name in names
        }
        counters = {
            name: CounterCellRange(first, cells.packets[part], cells.bytes[part])
            for name, cells in self.counters.items()
            if not names or name in names
        }
        return Snapshot(self.program, self.digest, registers, counters)

    def as_json(self) -> Json:
        """Return the JSON object."""
        result = self._header()
        for name, cells in self.registers.items():
            result["registers"][name]["values"] = [hex(value) for value in cells.values]
        for name, counter in self.counters.items():
            result["counters"][name].update(packets=list(counter.packets), bytes=list(counter.bytes))
        return result

    @classmethod
    def from_json(cls, data: Json) -> Snapshot:
        """Return the snapshot of a JSON object. Raises SnapshotError: it is none."""
        try:
            _check_format(data)
            registers = {
                name: RegisterCellRange(cells["bits"], cells["first"], [int(value, 16) for value in cells["values"]])
                for name, cells in data["registers"].items()
            }
            counters = {
                name: CounterCellRange(cells["first"], cells["packets"], cells["bytes"])
                for name, cells in data["counters"].items()
            }
            return cls(data["program"], data["digest"], registers, counters)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise SnapshotError(f"not a snapshot: {error!r}") from error

    def save(self, path: Path) -> None:
        """Write a file: NumPy's form if the name ends in .npz, else JSON. Raises OSError."""
        if path.suffix != ".npz":
            path.write_text(json.dumps(self.as_json()) + "\n")
            return
        arrays: dict[str, Any] = {"header": np.frombuffer(json.dumps(self._header()).encode(), np.uint8)}
        for name, cells in self.registers.items():
            size = (cells.bits + 7) // 8
            data = b"".join(value.to_bytes(size, "big") for value in cells.values)
            arrays[f"registers/{name}"] = np.frombuffer(data, np.uint8).reshape(-1, size)
        for name, counter in self.counters.items():
            arrays[f"counters/{name}"] = np.array([counter.packets, counter.bytes], np.uint64).reshape(2, -1).T
        np.savez_compressed(path, **arrays)

    @classmethod
    def load(cls, path: Path) -> Snapshot:
        """Read a file of `save`. Raises OSError, and SnapshotError where it is no such file."""
        try:
            return _from_arrays(path) if path.suffix == ".npz" else cls.from_json(json.loads(path.read_text()))
        except (SnapshotError, KeyError, ValueError, EOFError, BadZipFile) as error:
            raise SnapshotError(f"{path} is not a snapshot: {error}") from error

    def _header(self) -> Json:
        return {
            "format": FORMAT,
            "program": self.program,
            "digest": self.digest,
            "registers": {name: {"bits": cells.bits, "first": cells.first} for name, cells in self.registers.items()},
            "counters": {name: {"first": cells.first} for name, cells in self.counters.items()},
        }


def freeze(engine: Engine) -> Snapshot:
    """Return a copy of all cells. The caller keeps packets and writes away meanwhile."""
    program: ProgramIR = engine.program
    registers = {
        register.name: RegisterCellRange(register.bits, 0, copy(engine.registers.cells(register.name)))
        for register in program.registers.values()
    }
    counters = {}
    for counter in program.counters.values():
        if counter.table is None:
            cells = engine.counters.cells(counter.name)
            counters[counter.name] = CounterCellRange(0, copy(cells.packets), copy(cells.bytes))
    return Snapshot(program.name, program.digest, registers, counters)


def compare(old: Snapshot, new: Snapshot) -> list[Change]:
    """Return the cells that differ.

    Raises SnapshotError: the two are of different programs, or do not hold the same cells.
    """
    if old.digest != new.digest:
        raise SnapshotError(f"the snapshots are of different programs or builds: {old.program} and {new.program}")
    return [*_register_changes(old, new), *_counter_changes(old, new)]


def _register_changes(old: Snapshot, new: Snapshot) -> Iterator[Change]:
    _check_same_names("registers", old.registers, new.registers)
    for name, before in old.registers.items():
        after = new.registers[name]
        _check_same_range(name, (before.first, len(before.values)), (after.first, len(after.values)))
        for index, pair in enumerate(zip(before.values, after.values, strict=True), before.first):
            if pair[0] != pair[1]:
                yield Change("register", name, index, *pair)


def _counter_changes(old: Snapshot, new: Snapshot) -> Iterator[Change]:
    _check_same_names("counters", old.counters, new.counters)
    for name, before in old.counters.items():
        after = new.counters[name]
        _check_same_range(name, (before.first, len(before.packets)), (after.first, len(after.packets)))
        pairs = (zip(cells.packets, cells.bytes, strict=True) for cells in (before, after))
        for index, pair in enumerate(zip(*pairs, strict=True), before.first):
            if pair[0] != pair[1]:
                yield Change("counter", name, index, *pair)


def _check_same_names(what: str, old: Collection[str], new: Collection[str]) -> None:
    if set(old) != set(new):
        only = ", ".join(sorted(set(old) ^ set(new)))
        raise SnapshotError(f"only one of the snapshots has these {what}: {only}; take both with the same names")


def _check_same_range(name: str, old: tuple[int, int], new: tuple[int, int]) -> None:
    if old != new:
        raise SnapshotError(
            f"{name}: one snapshot has {old[1]} cells from index {old[0]}, the other {new[1]} from {new[0]};"
            " take both with the same range"
        )


def _check_format(data: Json) -> None:
    if data["format"] != FORMAT:
        raise ValueError(f"format {data['format']!r} is not {FORMAT!r}")


def _from_arrays(path: Path) -> Snapshot:
    with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        header = json.loads(arrays["header"].tobytes())
        _check_format(header)
        registers = {
            name: RegisterCellRange(about["bits"], about["first"], _integers(arrays[f"registers/{name}"]))
            for name, about in header["registers"].items()
        }
        counters = {}
        for name, about in header["counters"].items():
            sides = arrays[f"counters/{name}"]
            counters[name] = CounterCellRange(about["first"], sides[:, 0].tolist(), sides[:, 1].tolist())
        return Snapshot(header["program"], header["digest"], registers, counters)


def _integers(rows: Any) -> list[int]:
    return [int.from_bytes(row.tobytes(), "big") for row in rows]
