# SPDX-License-Identifier: Apache-2.0
"""Indexed and direct meters."""

from __future__ import annotations

from ..errors import InvalidArgumentError, NotFoundError
from ..program.ir import ProgramIR
from .meter import MeterCell, MeterConfig
from .tables import TableStore


class MeterStore:
    """All meters of a program, by fully qualified name. Direct meters are by their table and entry handle."""

    def __init__(self, program: ProgramIR, tables: TableStore) -> None:
        self._program = program
        self._tables = tables
        indexed = [meter for meter in program.meters.values() if meter.table is None]
        self._cells = {meter.name: [MeterCell() for _ in range(meter.size)] for meter in indexed}

    def cells(self, name: str) -> list[MeterCell]:
        """Return the live cells of an indexed meter. Raises: NotFoundError."""
        try:
            return self._cells[name]
        except KeyError:
            raise NotFoundError(f"the program has no indexed meter {name!r}") from None

    def read(self, name: str, index: int) -> MeterConfig | None:
        """Return the configuration of one cell. Raises: NotFoundError, InvalidArgumentError (index)."""
        return self._cell(name, index).config

    def write(self, name: str, index: int, config: MeterConfig | None) -> None:
        """Configure one cell. Raises: NotFoundError, InvalidArgumentError."""
        self._cell(name, index).configure(config)

    def read_direct(self, table: str, handle: int) -> MeterConfig | None:
        """Return the configuration of an entry's meter. Raises: NotFoundError, InvalidArgumentError (no meter)."""
        meter = self._direct(table, handle)
        return None if meter is None else meter.config

    def write_direct(self, table: str, handle: int, config: MeterConfig | None) -> None:
        """Configure an entry's meter. Raises: NotFoundError, InvalidArgumentError."""
        self._direct(table, handle)
        cell = MeterCell()
        cell.configure(config)
        self._tables[table].entry(handle).meter = cell

    def reset(self) -> None:
        """Return all indexed cells to green. Direct meters belong to their entries."""
        for cells in self._cells.values():
            for cell in cells:
                cell.configure(None)

    def _cell(self, name: str, index: int) -> MeterCell:
        cells = self.cells(name)
        if not 0 <= index < len(cells):
            raise InvalidArgumentError(f"{name}: index {index} is outside 0..{len(cells) - 1}")
        return cells[index]

    def _direct(self, table: str, handle: int) -> MeterCell | None:
        if self._tables[table].ir.direct_meter is None:
            raise InvalidArgumentError(f"{table} has no direct meter")
        return self._tables[table].entry(handle).meter
