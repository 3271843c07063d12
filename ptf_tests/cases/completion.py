# SPDX-License-Identifier: Apache-2.0
"""A round from its first packet to its result."""

from __future__ import annotations

import numpy as np

from hopsum_ptf.case import SwitchCase
from hopsum_ptf.case_places import make_workers
from hopsum_ptf.frames import codes, lanes32
from hopsum_wire import Op

TABLE = (0, 1, 2, 4, 5, 7, 8, 9, 11, 12, 14, 15, 17, 18, 19, 20)


class FirstPacketIsKept(SwitchCase):
    """Into a slot that nobody used: written, not added to what lies there, and answered by nobody."""

    def runTest(self) -> None:
        job = self.job(2)
        self.added(job, 0, lanes32(7))
        self.assert_lanes(self.completed(job, 1, lanes32(0)), 7)


class LastWorkerCompletes(SwitchCase):
    """Every worker gets the sum, the one that completed it too."""

    def runTest(self) -> None:
        job = self.job(3)
        self.added(job, 0, lanes32(1))
        self.added(job, 2, lanes32(10))
        self.assert_lanes(self.completed(job, 1, lanes32(100)), 111)


class WorkersBehindOnePort(SwitchCase):
    """Three replicas of the result leave through one port, each with its own rank and address."""

    def runTest(self) -> None:
        job = self.job(make_workers(4, ports=(5, 5, 2, 5)))
        for rank in range(3):
            self.added(job, rank, lanes32(rank))
        self.assert_lanes(self.completed(job, 3, lanes32(3)), 6)


class JobOfOneWorker(SwitchCase):
    """Its first packet is the last one too."""

    def runTest(self) -> None:
        job = self.job(1)
        self.assert_lanes(self.completed(job, 0, lanes32(9)), 9)
        self.assert_lanes(self.completed(job, 0, lanes32(4), round=2), 4)


class EveryLaneHasItsPlace(SwitchCase):
    """Lanes of the sum are in element order, for all three operations."""

    def runTest(self) -> None:
        job = self.job(2, table=TABLE)
        elements = np.arange(256)
        self.added(job, 0, lanes32(elements))
        self.assert_lanes(self.completed(job, 1, lanes32(elements * 1000)), elements * 1001)
        self.added(job, 0, lanes32(elements), slot=1, op=Op.MAX32)
        sums = self.completed(job, 1, lanes32(255 - elements), slot=1, op=Op.MAX32)
        self.assert_lanes(sums, np.maximum(elements, 255 - elements))
        elements = np.arange(1024)
        first, second = elements % 16, elements // 64 % 16
        self.added(job, 0, codes(first), slot=2, op=Op.LOOKUP_ADD8)
        sums = self.completed(job, 1, codes(second), slot=2, op=Op.LOOKUP_ADD8)
        self.assert_lanes(sums, np.take(TABLE, first) + np.take(TABLE, second))


class CountIsCarriedThrough(SwitchCase):
    """A result says how many elements are in use as the packet did that caused it; the lanes are all there."""

    def runTest(self) -> None:
        job = self.job(2)
        self.added(job, 0, lanes32(1), count=13)
        self.assert_lanes(self.completed(job, 1, lanes32(2), count=13), 3)
        self.assert_lanes(self.answered(job, 0, lanes32(1), count=0), 3)


class SixtyFourWorkers(SwitchCase):
    """As many as the bitmap has bits, eight behind each port."""

    def runTest(self) -> None:
        job = self.job(64)
        for rank in range(63):
            self.added(job, rank, lanes32(rank + 1))
        # S4: a worker that was seen is not added again.
        self.ignored(job, 31, lanes32(0))
        self.assert_lanes(self.completed(job, 63, lanes32(64)), 64 * 65 // 2)
        self.assert_lanes(self.answered(job, 0, lanes32(1)), 64 * 65 // 2)


class QuorumBelowTheNumberOfWorkers(SwitchCase):
    """Two of three complete; the late one learns who is in the sum, and nothing is added for it."""

    def runTest(self) -> None:
        job = self.job(3, quorum=2)
        self.added(job, 2, lanes32(5))
        self.assert_lanes(self.completed(job, 0, lanes32(6)), 11)
        # S6: a late worker gets the RESULT and is not added. It sees in the contributors that it is missing.
        self.assert_lanes(self.answered(job, 1, lanes32(100)), 11)
        self.assert_lanes(self.answered(job, 1, lanes32(100)), 11)


class QuorumLoweredUnderWay(SwitchCase):
    """Reached is reached: a round that has more than the quorum already completes with the next packet."""

    def runTest(self) -> None:
        job = self.job(4)
        self.added(job, 0, lanes32(1))
        self.added(job, 1, lanes32(2))
        # The controller never does this within a generation (S5, E1). Registers must survive it all the same.
        self.set_quorum(job, 2)
        self.assert_lanes(self.completed(job, 2, lanes32(4)), 7)
        self.assert_lanes(self.answered(job, 3, lanes32(8)), 7)


class QuorumRaisedAfterCompletion(SwitchCase):
    """Complete stays complete: nothing is added to a sum that somebody has."""

    def runTest(self) -> None:
        job = self.job(3, quorum=2)
        self.added(job, 0, lanes32(1))
        self.assert_lanes(self.completed(job, 1, lanes32(2)), 3)
        self.set_quorum(job, 3)
        self.assert_lanes(self.answered(job, 2, lanes32(4)), 3)
        self.assert_lanes(self.answered(job, 0, lanes32(1)), 3)
