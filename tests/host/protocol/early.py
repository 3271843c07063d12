# SPDX-License-Identifier: Apache-2.0
"""All-reduces that are filled later and read before their end, for the worlds of this folder."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopsum.protocol.worker import AllReduceDone, Worker


class Unfilled(NamedTuple):
    """The payloads of an all-reduce that a worker does not have yet."""

    handle: int
    payloads: NDArray[np.uint8]


@dataclass
class EarlyBook:
    """The results that one worker holds, by handle: none changes before the end, unless it was discarded."""

    read: dict[int, tuple[NDArray[np.bool_], NDArray[np.uint8], NDArray[np.uint64]]] = field(default_factory=dict)
    checked: int = 0
    discarded: int = 0

    def look(self, worker: Worker) -> None:
        """Read what is here of all that is in progress."""
        for reduce in worker.state.active:
            if reduce.discarded:
                self.discarded += self.read.pop(reduce.handle, None) is not None
                reduce.discarded = False
            self._compare(reduce.handle, reduce.results, reduce.contributors)
            self.read[reduce.handle] = (reduce.held.copy(), reduce.results.copy(), reduce.contributors.copy())

    def end(self, done: AllReduceDone) -> None:
        """Compare what was read with the results in the end."""
        self._compare(done.handle, done.results, done.contributors)
        self.checked += self.read.pop(done.handle, None) is not None

    def _compare(self, handle: int, results: NDArray[np.uint8], contributors: NDArray[np.uint64]) -> None:
        if handle in self.read:
            held, before, whose = self.read[handle]
            assert np.array_equal(results[held], before[held])
            assert np.array_equal(contributors[held], whose[held])
