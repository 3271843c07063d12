# SPDX-License-Identifier: Apache-2.0
"""Jobs and slots beside each other."""

from __future__ import annotations

from hopsum.wire import Drop, Op
from hopsum_ptf.bed import make_workers
from hopsum_ptf.case import SwitchCase
from hopsum_ptf.frames import altered, codes, lanes32, update


class TwoJobsAtOnce(SwitchCase):
    """The same slots, rounds and ranks of two jobs, packets taking turns: two sums."""

    def runTest(self) -> None:
        one, two = self.job(3, table=tuple(range(16))), self.job(2, table=tuple(range(0, 32, 2)))
        self.added(one, 0, codes(1), op=Op.LOOKUP_ADD8)
        self.added(two, 0, codes(10), op=Op.LOOKUP_ADD8)
        self.added(one, 1, codes(2), op=Op.LOOKUP_ADD8)
        self.assert_lanes(self.completed(two, 1, codes(15), op=Op.LOOKUP_ADD8), 50)
        self.assert_lanes(self.completed(one, 2, codes(3), op=Op.LOOKUP_ADD8), 6)
        self.assert_lanes(self.answered(one, 0, codes(1), op=Op.LOOKUP_ADD8), 6)
        self.assert_lanes(self.answered(two, 0, codes(10), op=Op.LOOKUP_ADD8), 50)


class WorkerOfAnotherJob(SwitchCase):
    """A worker cannot speak for the same rank of another job, even from the same port."""

    def runTest(self) -> None:
        one, two = self.job(2), self.job(2)
        self.assertEqual(one.spec.workers[0].port, two.spec.workers[0].port)
        self.refused(0, altered(update(one, 0, lanes32(1)), "hopsum", epoch=two.epoch), Drop.WRONG_SOURCE)
        self.added(two, 0, lanes32(5))
        self.assert_lanes(self.completed(two, 1, lanes32(6)), 11)


class SlotsOfOneJob(SwitchCase):
    """All slots of a job collect at once, filled crosswise."""

    def runTest(self) -> None:
        job = self.job(2, slots=8)
        for slot in range(8):
            self.added(job, slot % 2, lanes32(slot), slot=slot, round=1 + slot % 3)
        for slot in reversed(range(8)):
            sums = self.completed(job, 1 - slot % 2, lanes32(100), slot=slot, round=1 + slot % 3)
            self.assert_lanes(sums, 100 + slot)


class BothCopiesCollect(SwitchCase):
    """With a quorum below the number of workers a slot's next round may open before the last is complete."""

    def runTest(self) -> None:
        job = self.job(3, quorum=2)
        self.added(job, 0, lanes32(1), round=1)
        self.added(job, 1, lanes32(20), round=2)
        self.assert_lanes(self.completed(job, 2, lanes32(30), round=2), 50)
        self.assert_lanes(self.completed(job, 2, lanes32(3), round=1), 4)


class EdgeOfAJobsSlots(SwitchCase):
    """The first slot behind a job's range belongs to its neighbour, and is out of reach."""

    def runTest(self) -> None:
        job, neighbour = self.job(make_workers(2), slots=3), self.job(2, slots=1)
        self.added(neighbour, 0, lanes32(1))
        self.refused(0, update(job, 0, lanes32(9), slot=3), Drop.BAD_SLOT)
        self.refused(0, update(job, 0, lanes32(9), slot=2047), Drop.BAD_SLOT)
        self.refused(0, update(job, 0, lanes32(9), slot=0xFFFF), Drop.BAD_SLOT)
        self.refused(0, update(neighbour, 0, lanes32(9), slot=1), Drop.BAD_SLOT)
        self.added(job, 0, lanes32(3), slot=2)
        self.assert_lanes(self.completed(neighbour, 1, lanes32(2)), 3)
        self.assert_lanes(self.completed(job, 1, lanes32(4), slot=2), 7)


class AllSlotsOfTheSwitch(SwitchCase):
    """One job over all of them: the first and the last copy do not meet."""

    def runTest(self) -> None:
        job = self.job(2, slots=2048)
        for round_ in (1, 2):
            self.added(job, 0, lanes32(round_), slot=0, round=round_)
            self.added(job, 0, lanes32(10 * round_), slot=2047, round=round_)
        for round_ in (2, 1):
            self.assert_lanes(self.completed(job, 1, lanes32(0), slot=0, round=round_), round_)
            self.assert_lanes(self.completed(job, 1, lanes32(0), slot=2047, round=round_), 10 * round_)


class AllJobsOfTheSwitch(SwitchCase):
    """64 jobs of one worker, the same addresses in all: only the epoch tells them apart, and each has its counters."""

    def runTest(self) -> None:
        workers = make_workers(1)
        jobs = [self.job(workers, slots=1) for _ in range(64)]
        for number, job in enumerate(jobs):
            self.assert_lanes(self.completed(job, 0, lanes32(number)), number)
        self.answered(jobs[63], 0, lanes32(0))
        self.completed(jobs[0], 0, lanes32(1), round=3)
        self.stale(jobs[0], 0, lanes32(1), round=1, held=3)
