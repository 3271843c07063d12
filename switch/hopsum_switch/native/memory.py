# SPDX-License-Identifier: Apache-2.0
"""Memory that native code and Python share: aligned word arrays, and sequences of integers over them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, MutableSequence
from typing import overload

import numpy as np
from numpy.typing import NDArray

ALIGNMENT = 64

Words = NDArray[np.uint64]


def words(count: int) -> Words:
    """Return that many zero words (at least one), aligned to 64 bytes."""
    assert sys.byteorder == "little"
    raw = np.zeros(8 * max(count, 1) + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + 8 * max(count, 1)].view(np.uint64)


def put(target: Words, at: int, value: int, count: int) -> None:
    """Store a non-negative integer as `count` words."""
    target[at : at + count] = np.frombuffer(value.to_bytes(8 * count, "little"), np.uint64)


class Cells(MutableSequence[int]):
    """A fixed number of unsigned integers of `stride` words each, in shared memory."""

    def __init__(self, memory: Words, start: int, size: int, stride: int) -> None:
        self._rows = memory[start : start + size * stride].reshape(size, stride)

    def __copy__(self) -> Cells:
        """Return the same integers in memory of their own."""
        twin = Cells.__new__(Cells)
        twin._rows = self._rows.copy()
        return twin

    @property
    def rows(self) -> Words:
        """The memory itself: uint64[size, stride], the lowest word of an integer first."""
        return self._rows

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        if isinstance(index, slice):
            return [int.from_bytes(row.tobytes(), "little") for row in self._rows[index]]
        return int.from_bytes(self._rows[index].tobytes(), "little")

    @overload
    def __setitem__(self, index: int, value: int) -> None: ...
    @overload
    def __setitem__(self, index: slice, value: Iterable[int]) -> None: ...
    def __setitem__(self, index: int | slice, value: int | Iterable[int]) -> None:
        stride = self._rows.shape[1]
        if isinstance(index, int):
            assert isinstance(value, int)
            put(self._rows[index], 0, value, stride)
            return
        assert not isinstance(value, int)
        rows = self._rows[index]
        for row, item in zip(rows, value, strict=True):
            put(row, 0, item, stride)

    def __delitem__(self, index: int | slice) -> None:
        raise TypeError("the number of cells is fixed")

    def insert(self, index: int, value: int) -> None:
        """Refuse: the number of cells is fixed."""
        raise TypeError("the number of cells is fixed")
