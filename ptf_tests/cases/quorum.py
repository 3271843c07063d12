# SPDX-License-Identifier: Apache-2.0
"""Quorums below the number of workers: who is late is answered, never added, and takes part in the next round."""

from __future__ import annotations

from hopsum_ptf.case import SwitchCase
from hopsum_ptf.frames import lanes32
from hopsum_wire import Flag, State


class AllButOne(SwitchCase):
    """Quorum n - 1, another worker late in every round of the slot."""

    def runTest(self) -> None:
        job = self.job(4, quorum=3)
        for round_ in range(1, 9):
            late = round_ % 4
            first, second, third = (rank for rank in range(4) if rank != late)
            self.added(job, first, lanes32(1), round=round_)
            self.added(job, second, lanes32(10), round=round_)
            self.assert_lanes(self.completed(job, third, lanes32(100), round=round_), 111)
            for _ in range(2):
                self.assert_lanes(self.answered(job, late, lanes32(9999), round=round_), 111)
            members = [rank for rank in range(4) if rank != late]
            self.holds(job, job.spec.workers[late], State.FINAL, held=round_, by=members, round=round_)


class QuorumOfOne(SwitchCase):
    """Every first packet completes; all others are late."""

    def runTest(self) -> None:
        job = self.job(3, quorum=1)
        self.assert_lanes(self.completed(job, 1, lanes32(7)), 7)
        for rank in (0, 2, 1):
            self.assert_lanes(self.answered(job, rank, lanes32(100)), 7)


class LateByTwoRounds(SwitchCase):
    """The slot has moved on without a worker: STALE, whose contributors are the held round's; it catches up."""

    def runTest(self) -> None:
        job = self.job(3, quorum=2)
        for round_ in (1, 2, 3):
            self.added(job, 0, lanes32(round_), round=round_)
            self.completed(job, 1, lanes32(round_), round=round_)
        # Round 1 is lost to worker 2 on this switch. Its peers have the result (W4).
        self.assertEqual(self.stale(job, 2, lanes32(50), round=1, held=3).contributors, 0b011)
        self.assert_lanes(self.answered(job, 2, lanes32(50), round=2), 4)
        self.assert_lanes(self.answered(job, 2, lanes32(50), round=3), 6)
        self.added(job, 2, lanes32(50), round=4)
        self.assert_lanes(self.completed(job, 0, lanes32(4), round=4), 54)


class SixtyThreeOfSixtyFour(SwitchCase):
    """All bits of the bitmap but the first, the last one's included."""

    def runTest(self) -> None:
        job = self.job(64, quorum=63)
        for rank in range(63, 1, -1):
            self.added(job, rank, lanes32(1))
        self.assert_lanes(self.completed(job, 1, lanes32(1)), 63)
        self.assert_lanes(self.answered(job, 0, lanes32(1)), 63)
        self.holds(job, job.spec.workers[0], State.FINAL, held=1, by=range(1, 64))


class TheLastWorkersBit(SwitchCase):
    """Rank 63 is the top bit of the bitmap: first, duplicate, in STALE, closing."""

    def runTest(self) -> None:
        job = self.job(64)
        asker = job.spec.workers[62]
        self.added(job, 63, lanes32(5), round=3)
        self.ignored(job, 63, lanes32(5), round=3)
        self.assertEqual(self.stale(job, 0, lanes32(1), round=1, held=3).contributors, 1 << 63)
        self.holds(job, asker, State.COLLECTING, held=3, by=[63], round=3)
        self.assert_lanes(self.closed(job, 63, lanes32(5), round=3, flags=Flag.FLUSH), 5)
        self.holds(job, asker, State.FINAL, held=3, by=[63], round=3)
