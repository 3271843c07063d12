# SPDX-License-Identifier: Apache-2.0
"""Memory that two processes share, for one vector at a time. It has no name, and ends with the processes."""

from __future__ import annotations

import mmap
import os

import numpy as np
from numpy.typing import NDArray


class SharedVector:
    """Shared memory for a vector of up to `elements` float32.

    Args:
        number: its name between the two processes.
        descriptor: of the memory; this object closes it.
    """

    def __init__(self, number: int, descriptor: int) -> None:
        self.number = number
        try:
            size = os.fstat(descriptor).st_size
            self._words: NDArray[np.float32] = np.frombuffer(mmap.mmap(descriptor, size), np.float32)
        finally:
            os.close(descriptor)

    @property
    def elements(self) -> int:
        """Return how many elements fit."""
        return self._words.size

    def vector(self, elements: int) -> NDArray[np.float32]:
        """Return the first elements, float32[elements]; the memory itself."""
        return self._words[:elements]


class SegmentPool:
    """The segments that a member has made; the smallest free one serves the next vector."""

    def __init__(self) -> None:
        self._free: list[SharedVector] = []
        self._made = 0

    def take(self, elements: int) -> tuple[SharedVector, int | None]:
        """Return a segment for so many elements, and the descriptor that the other process needs if it is new.

        The caller closes the descriptor. Raises OSError where there is no memory.
        """
        fitting = [each for each in self._free if each.elements >= elements]
        if fitting:
            found = min(fitting, key=lambda each: each.elements)
            self._free.remove(found)
            return found, None
        descriptor = os.memfd_create(f"hopsum-vector-{self._made}", os.MFD_CLOEXEC)
        try:
            os.posix_fallocate(descriptor, 0, 4 * max(1, elements))  # now, and not by SIGBUS when it is written
            made = SharedVector(self._made, os.dup(descriptor))
        except BaseException:
            os.close(descriptor)
            raise
        self._made += 1
        return made, descriptor

    def give(self, segment: SharedVector) -> None:
        """Take a segment back that the other process has done with."""
        self._free.append(segment)
