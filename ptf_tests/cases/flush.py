# SPDX-License-Identifier: Apache-2.0
"""FLUSH: a worker past its deadline completes the round at min_quorum, with its packet in it."""

from __future__ import annotations

from hopsum_ptf.case import SwitchCase
from hopsum_ptf.frames import lanes32, update
from hopsum_wire import Drop, Flag, Op, State

FLUSH = Flag.FLUSH


class FirstPacketFlushes(SwitchCase):
    """With min_quorum 1 it completes the round alone; everybody gets it, and the others are answered."""

    def runTest(self) -> None:
        job = self.job(3)
        # S8: the packet is added before the round closes, so its sender is in the sum.
        self.assert_lanes(self.completed(job, 1, lanes32(5), flags=FLUSH), 5)
        self.assert_lanes(self.answered(job, 0, lanes32(100)), 5)
        self.assert_lanes(self.answered(job, 2, lanes32(100), flags=FLUSH), 5)
        self.holds(job, job.spec.workers[0], State.FINAL, held=1, by=[1])


class AddsThenCloses(SwitchCase):
    """A first packet with FLUSH enters the sum before the round closes; who comes later is never added."""

    def runTest(self) -> None:
        job = self.job(4, min_quorum=2)
        self.added(job, 3, lanes32(1))
        self.assert_lanes(self.completed(job, 0, lanes32(10), flags=FLUSH), 11)
        for rank in (1, 2):
            self.assert_lanes(self.answered(job, rank, lanes32(100)), 11)
        self.holds(job, job.spec.workers[1], State.FINAL, held=1, by=[0, 3])


class DuplicateCloses(SwitchCase):
    """A worker that is in the sum sends again with FLUSH: nothing is added, and the round closes."""

    def runTest(self) -> None:
        job = self.job(4, min_quorum=2)
        self.added(job, 0, lanes32(1))
        self.added(job, 1, lanes32(10))
        self.ignored(job, 0, lanes32(1))
        # S8: a duplicate closes the round without changing values or contributors (S4).
        self.assert_lanes(self.closed(job, 0, lanes32(1), flags=FLUSH), 11)
        self.assert_lanes(self.answered(job, 2, lanes32(100)), 11)
        self.assert_lanes(self.answered(job, 0, lanes32(1), flags=FLUSH), 11)


class MinQuorumNotReached(SwitchCase):
    """Too few are in: FLUSH adds or does nothing, and the round collects on until they are."""

    def runTest(self) -> None:
        job = self.job(5, min_quorum=3)
        self.added(job, 0, lanes32(1), flags=FLUSH)
        self.added(job, 1, lanes32(10), flags=FLUSH)
        self.ignored(job, 0, lanes32(1), flags=FLUSH)
        self.ignored(job, 1, lanes32(10), flags=FLUSH)
        self.assert_lanes(self.completed(job, 2, lanes32(100), flags=FLUSH), 111)


class MinQuorumReachedWithoutFlush(SwitchCase):
    """min_quorum says nothing to packets without the flag; FLUSH is not remembered."""

    def runTest(self) -> None:
        job = self.job(4, min_quorum=2)
        self.added(job, 0, lanes32(1), flags=FLUSH)
        # The flag is of the packet, not of the round: nothing on the switch remembers it.
        self.added(job, 1, lanes32(10))
        self.added(job, 2, lanes32(100))
        self.ignored(job, 1, lanes32(10))
        self.assert_lanes(self.completed(job, 3, lanes32(1000)), 1111)


class MinQuorumOfAll(SwitchCase):
    """With min_quorum n FLUSH changes nothing."""

    def runTest(self) -> None:
        job = self.job(3, min_quorum=3)
        self.added(job, 0, lanes32(1), flags=FLUSH)
        self.ignored(job, 0, lanes32(1), flags=FLUSH)
        self.added(job, 1, lanes32(10), flags=FLUSH)
        self.assert_lanes(self.completed(job, 2, lanes32(100), flags=FLUSH), 111)


class LateFlushOfAnOlderRound(SwitchCase):
    """STALE, and the round that collects by now stays open."""

    def runTest(self) -> None:
        job = self.job(3)
        for rank in (0, 1):
            self.added(job, rank, lanes32(1))
        self.completed(job, 2, lanes32(1))
        self.added(job, 0, lanes32(5), round=3)
        # S7 and S8: a packet of an older round touches nothing, so it cannot close the newer one.
        reply = self.stale(job, 1, lanes32(1), round=1, held=3, flags=FLUSH)
        self.assertEqual((reply.contributors, reply.flags), (0b001, 0))
        self.holds(job, job.spec.workers[1], State.COLLECTING, held=3, by=[0], round=3)
        self.added(job, 1, lanes32(6), round=3)
        self.assert_lanes(self.completed(job, 2, lanes32(7), round=3), 18)


class FlushOfACompleteRound(SwitchCase):
    """Answered like any other packet of it, to its sender alone."""

    def runTest(self) -> None:
        job = self.job(2)
        self.added(job, 0, lanes32(1))
        self.completed(job, 1, lanes32(2))
        for rank in (0, 1, 0):
            self.assert_lanes(self.answered(job, rank, lanes32(1), flags=FLUSH), 3)


class FlushOverAnUnfinishedRound(SwitchCase):
    """A newer round that opens with FLUSH: overwritten, counted as a fault, and complete at once."""

    def runTest(self) -> None:
        job = self.job(3)
        self.added(job, 0, lanes32(1))
        self.assert_lanes(self.completed_over_unfinished(job, 1, lanes32(20), round=3, flags=FLUSH), 20)
        self.stale(job, 2, lanes32(1), round=1, held=3)


class FlushOfAnotherOperation(SwitchCase):
    """Dropped before it can close anything."""

    def runTest(self) -> None:
        job = self.job(3)
        self.added(job, 0, lanes32(1))
        self.refused(0, update(job, 0, lanes32(1), op=Op.MAX32, flags=FLUSH), Drop.OP_MISMATCH)
        self.refused(1, update(job, 1, lanes32(1), op=Op.OR, flags=FLUSH), Drop.OP_MISMATCH)
        self.added(job, 1, lanes32(10))
        self.assert_lanes(self.completed(job, 2, lanes32(100)), 111)


class FlushWithASmallQuorum(SwitchCase):
    """The smaller of quorum and min_quorum counts, whichever way the round ends."""

    def runTest(self) -> None:
        job = self.job(4, quorum=3, min_quorum=2)
        self.added(job, 0, lanes32(1))
        self.assert_lanes(self.completed(job, 1, lanes32(10), flags=FLUSH), 11)
        # Without FLUSH the same job waits for its quorum.
        self.added(job, 0, lanes32(1), round=2)
        self.added(job, 1, lanes32(10), round=2)
        self.assert_lanes(self.completed(job, 2, lanes32(100), round=2), 111)
        self.assert_lanes(self.answered(job, 3, lanes32(1000), round=2), 111)


class EverySlotAndCopyOnItsOwn(SwitchCase):
    """Closing one round leaves the other copy and the other slots open."""

    def runTest(self) -> None:
        job = self.job(3, slots=2)
        for slot, round_ in ((0, 1), (0, 2), (1, 1)):
            self.added(job, 0, lanes32(1), slot=slot, round=round_)
        self.closed(job, 0, lanes32(1), flags=FLUSH)
        for slot, round_ in ((0, 2), (1, 1)):
            self.added(job, 1, lanes32(10), slot=slot, round=round_)
            self.assert_lanes(self.completed(job, 2, lanes32(100), slot=slot, round=round_), 111)
