# SPDX-License-Identifier: Apache-2.0
"""Packets that come twice."""

from __future__ import annotations

from hopsum_ptf.case import SwitchCase
from hopsum_ptf.frames import lanes32


class BeforeCompletion(SwitchCase):
    """Ignored, also when its bytes differ: the first one counts."""

    def runTest(self) -> None:
        job = self.job(3)
        self.added(job, 0, lanes32(1))
        self.ignored(job, 0, lanes32(1))
        self.added(job, 1, lanes32(10))
        # W2: a worker sends the same bytes again. The switch does not rely on it.
        self.ignored(job, 0, lanes32(77))
        self.ignored(job, 1, lanes32(10))
        self.assert_lanes(self.completed(job, 2, lanes32(100)), 111)


class AfterCompletion(SwitchCase):
    """Answered with the result, to the sender alone, as often as it asks."""

    def runTest(self) -> None:
        job = self.job(3)
        for rank in range(2):
            self.added(job, rank, lanes32(5))
        self.completed(job, 2, lanes32(5))
        for rank in (1, 0, 1, 2):
            self.assert_lanes(self.answered(job, rank, lanes32(5)), 15)


class OfTheRoundBeforeWhileTheNextCollects(SwitchCase):
    """The other copy of the slot still holds the result."""

    def runTest(self) -> None:
        job = self.job(2)
        self.added(job, 0, lanes32(1))
        self.completed(job, 1, lanes32(2))
        self.added(job, 0, lanes32(30), round=2)
        self.assert_lanes(self.answered(job, 1, lanes32(2)), 3)
        self.assert_lanes(self.completed(job, 1, lanes32(40), round=2), 70)
        self.assert_lanes(self.answered(job, 0, lanes32(1)), 3)
