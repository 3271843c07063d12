# SPDX-License-Identifier: Apache-2.0
"""All-reduces that are filled later and told in parts, for the worlds of this folder."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopsum.protocol.worker import AllReduceDone
from hopsum.protocol.worker_state import AllReducePart


class Unfilled(NamedTuple):
    """The payloads of an all-reduce that a worker does not have yet."""

    handle: int
    payloads: NDArray[np.uint8]


@dataclass
class PartBook:
    """The parts that one worker told, by handle: they follow each other, and have what the end has."""

    parts: dict[int, list[AllReducePart]] = field(default_factory=dict)
    checked: int = 0
    taken_back: int = 0

    def note(self, event: AllReducePart) -> None:
        here = self.parts.setdefault(event.handle, [])
        if not len(event.results):
            self.taken_back += 1
            here.clear()
            return
        assert event.first == sum(len(part.results) for part in here)
        copied = AllReducePart(event.handle, event.first, event.results.copy(), event.contributors.copy())
        here.append(copied)

    def check(self, done: AllReduceDone) -> None:
        for part in self.parts.pop(done.handle, []):
            place = slice(part.first, part.first + len(part.results))
            assert np.array_equal(part.results, done.results[place])
            assert np.array_equal(part.contributors, done.contributors[place])
            self.checked += 1
