# SPDX-License-Identifier: Apache-2.0
"""Cells that a program names: counters, registers and meters, indexed or direct."""

from __future__ import annotations

from collections.abc import Mapping, MutableSequence
from typing import Generic, NamedTuple, TypeVar

from ..errors import InvalidArgumentError, NotFoundError
from ..program.ir import ProgramIR
from .meter import MeterCell, MeterConfig
from .table_store import TableStore


class PacketByteCount(NamedTuple):
    """The number of packets and the number of bytes in one counter cell."""

    packets: int
    bytes: int


class FixedCells(MutableSequence[int]):
    """Cells of an array in the data plane. Their number is fixed, so insertion and deletion are refused."""

    def __delitem__(self, index: int | slice) -> None:
        raise TypeError("the number of cells is fixed")

    def insert(self, index: int, value: int) -> None:
        """Raise TypeError: the number of cells is fixed."""
        raise TypeError("the number of cells is fixed")


class CounterCells:
    """The cells of one indexed counter, as two parallel sequences that the data plane adds to."""

    __slots__ = ("bytes", "packets")

    def __init__(self, packets: MutableSequence[int], octets: MutableSequence[int]) -> None:
        self.packets = packets
        self.bytes = octets


_Cells = TypeVar("_Cells")


class _CellStore(Generic[_Cells]):
    """The arrays of one kind of a program, by fully qualified name."""

    kind: str

    def __init__(self, cells: Mapping[str, _Cells]) -> None:
        self._cells = cells

    def cells(self, name: str) -> _Cells:
        """Return the cells of an array themselves, not a copy: a write changes the state. Raises: NotFoundError."""
        try:
            return self._cells[name]
        except KeyError:
            raise NotFoundError(f"the program has no {self.kind} {name!r}") from None


def _check_index(name: str, index: int, size: int) -> None:
    if not 0 <= index < size:
        raise InvalidArgumentError(f"{name}: index {index} is outside 0..{size - 1}")


class CounterStore(_CellStore[CounterCells]):
    """All counters of a program, by fully qualified name. Direct counters are by their table and entry handle."""

    kind = "indexed counter"

    def __init__(self, program: ProgramIR, tables: TableStore, cells: Mapping[str, CounterCells] | None = None) -> None:
        """Start with zeros, in lists or in the given cells (all 0) of each indexed counter."""
        self._tables = tables
        indexed = [c for c in program.counters.values() if c.table is None]
        super().__init__(cells or {c.name: CounterCells([0] * c.size, [0] * c.size) for c in indexed})

    def read(self, name: str, index: int) -> PacketByteCount:
        """Return one cell. Raises: NotFoundError, InvalidArgumentError (index)."""
        cells = self._checked(name, index)
        return PacketByteCount(cells.packets[index], cells.bytes[index])

    def read_all(self, name: str) -> list[PacketByteCount]:
        """Return all cells in order. Raises: NotFoundError."""
        cells = self.cells(name)
        return [PacketByteCount(p, b) for p, b in zip(cells.packets, cells.bytes, strict=True)]

    def write(self, name: str, index: int, value: PacketByteCount) -> None:
        """Set one cell. Raises: NotFoundError, InvalidArgumentError (index, negative value)."""
        cells = self._checked(name, index)
        _check_value(name, value)
        # In place: the compiled program adds to the same memory.
        cells.packets[index], cells.bytes[index] = value

    def read_direct(self, table: str, handle: int) -> PacketByteCount:
        """Return the direct counter of an entry. Raises: NotFoundError, InvalidArgumentError (no counter)."""
        self._require_direct(table)
        entry = self._tables[table].entry(handle)
        return PacketByteCount(entry.packets, entry.bytes)

    def write_direct(self, table: str, handle: int, value: PacketByteCount) -> None:
        """Set the direct counter of an entry. Raises: NotFoundError, InvalidArgumentError."""
        self._require_direct(table)
        entry = self._tables[table].entry(handle)
        _check_value(table, value)
        entry.packets, entry.bytes = value

    def _checked(self, name: str, index: int) -> CounterCells:
        cells = self.cells(name)
        _check_index(name, index, len(cells.packets))
        return cells

    def _require_direct(self, table: str) -> None:
        if not self._tables[table].ir.with_counters:
            raise InvalidArgumentError(f"{table} has no direct counter")


def _check_value(name: str, value: PacketByteCount) -> None:
    if value.packets < 0 or value.bytes < 0:
        raise InvalidArgumentError(f"{name}: a counter cannot be negative ({value})")


# Register arrays.


class RegisterStore(_CellStore[MutableSequence[int]]):
    """All register arrays of a program, by fully qualified name. Cells are unsigned integers."""

    kind = "register"

    def __init__(self, program: ProgramIR, cells: Mapping[str, MutableSequence[int]] | None = None) -> None:
        """Start with zeros, in lists or in the given cells (all 0) of each array."""
        self._program = program
        super().__init__(cells or {r.name: [0] * r.size for r in program.registers.values()})

    def read(self, name: str, index: int) -> int:
        """Return one cell. Raises: NotFoundError, InvalidArgumentError (index)."""
        return self._checked(name, index)[index]

    def read_all(self, name: str) -> list[int]:
        """Return a copy of all cells. Raises: NotFoundError."""
        return list(self.cells(name))

    def write(self, name: str, index: int, value: int) -> None:
        """Set one cell. Raises: NotFoundError, InvalidArgumentError (index, width)."""
        cells = self._checked(name, index)
        bits = self._program.registers[name].bits
        if not 0 <= value < 1 << bits:
            raise InvalidArgumentError(f"{name}: {value} is not a value of {bits} bits")
        cells[index] = value

    def _checked(self, name: str, index: int) -> MutableSequence[int]:
        cells = self.cells(name)
        _check_index(name, index, len(cells))
        return cells


# Indexed and direct meters.


class MeterStore(_CellStore[list[MeterCell]]):
    """All meters of a program, by fully qualified name. Direct meters are by their table and entry handle."""

    kind = "indexed meter"

    def __init__(self, program: ProgramIR, tables: TableStore) -> None:
        self._tables = tables
        indexed = [meter for meter in program.meters.values() if meter.table is None]
        super().__init__({meter.name: [MeterCell() for _ in range(meter.size)] for meter in indexed})

    def read(self, name: str, index: int) -> MeterConfig | None:
        """Return the configuration of one cell, or None. Raises: NotFoundError, InvalidArgumentError (index)."""
        return self._cell(name, index).config

    def write(self, name: str, index: int, config: MeterConfig | None) -> None:
        """Configure one cell and fill its buckets. None: always green. Raises: NotFoundError, InvalidArgumentError."""
        self._cell(name, index).configure(config)

    def read_direct(self, table: str, handle: int) -> MeterConfig | None:
        """Return the configuration of an entry's meter, or None. Raises: NotFoundError, InvalidArgumentError."""
        meter = self._direct(table, handle)
        return None if meter is None else meter.config

    def write_direct(self, table: str, handle: int, config: MeterConfig | None) -> None:
        """Configure an entry's meter, as `write` does a cell. Raises: NotFoundError, InvalidArgumentError."""
        self._direct(table, handle)
        cell = MeterCell()
        cell.configure(config)
        self._tables[table].entry(handle).meter = cell

    def _cell(self, name: str, index: int) -> MeterCell:
        cells = self.cells(name)
        _check_index(name, index, len(cells))
        return cells[index]

    def _direct(self, table: str, handle: int) -> MeterCell | None:
        if self._tables[table].ir.direct_meter is None:
            raise InvalidArgumentError(f"{table} has no direct meter")
        return self._tables[table].entry(handle).meter
