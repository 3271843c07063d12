# SPDX-License-Identifier: Apache-2.0
"""Register arrays."""

from __future__ import annotations

from collections.abc import Mapping, MutableSequence

from ..errors import InvalidArgumentError, NotFoundError
from ..program.ir import ProgramIR


class RegisterStore:
    """All register arrays of a program, by fully qualified name. Cells are unsigned integers."""

    def __init__(self, program: ProgramIR, cells: Mapping[str, MutableSequence[int]] | None = None) -> None:
        """Start with zeros, in lists or in the given cells (all 0) of each array."""
        self._program = program
        self._cells = cells or {r.name: [0] * r.size for r in program.registers.values()}

    def cells(self, name: str) -> MutableSequence[int]:
        """Return the live cells of an array. Raises: NotFoundError."""
        try:
            return self._cells[name]
        except KeyError:
            raise NotFoundError(f"the program has no register {name!r}") from None

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

    def names(self) -> list[str]:
        """Return the names of all arrays."""
        return list(self._cells)

    def clear(self, name: str) -> None:
        """Set all cells of an array to 0. Raises: NotFoundError."""
        cells = self.cells(name)
        cells[:] = [0] * len(cells)

    def reset(self) -> None:
        """Set all cells to 0."""
        for name in self._cells:
            self.clear(name)

    def _checked(self, name: str, index: int) -> MutableSequence[int]:
        cells = self.cells(name)
        if not 0 <= index < len(cells):
            raise InvalidArgumentError(f"{name}: index {index} is outside 0..{len(cells) - 1}")
        return cells
