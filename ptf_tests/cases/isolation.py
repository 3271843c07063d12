# SPDX-License-Identifier: Apache-2.0
"""Several jobs and slots on one switch."""

from __future__ import annotations

from hopsum_ptf.case import SwitchCase
from hopsum_ptf.case_places import make_workers
from hopsum_ptf.frames import altered, codes, lanes32, payload, update
from hopsum_wire import Drop, Flag, Op, State


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
        # S1: (generation, rank) selects the entry, and its addresses are those of the other job.
        self.refused(0, altered(update(one, 0, lanes32(1)), "hopsum", generation=two.generation), Drop.WRONG_SOURCE)
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
        # Allowed with a small quorum: worker 1 has the result of round 1 from others (W1).
        # Round 1 waits for one more worker while round 2 collects in the other copy of the slot.
        self.added(job, 1, lanes32(20), round=2)
        self.assert_lanes(self.completed(job, 2, lanes32(30), round=2), 50)
        self.assert_lanes(self.completed(job, 2, lanes32(3), round=1), 4)


class EdgeOfAJobsSlots(SwitchCase):
    """The first slot behind a job's range belongs to its neighbour, and is out of reach."""

    def runTest(self) -> None:
        job, neighbour = self.job(make_workers(2), slots=3), self.job(2, slots=1)
        self.added(neighbour, 0, lanes32(1))
        # Slot 3 of the job would be slot 0 of the neighbour in the registers.
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
    """64 jobs of one worker with equal addresses: only the generation tells them apart, and each has its counters."""

    def runTest(self) -> None:
        workers = make_workers(1)
        jobs = [self.job(workers, slots=1) for _ in range(64)]
        for number, job in enumerate(jobs):
            self.assert_lanes(self.completed(job, 0, lanes32(number)), number)
        self.answered(jobs[63], 0, lanes32(0))
        self.completed(jobs[0], 0, lanes32(1), round=3)
        self.stale(jobs[0], 0, lanes32(1), round=1, held=3)


class JobsOfAllKindsAtOnce(SwitchCase):
    """Three jobs, each with its own slots, table, quorum, min_quorum and rounds, packets taking turns."""

    def runTest(self) -> None:
        one = self.job(3, slots=2, table=tuple(range(16)))
        two = self.job(4, slots=1, table=tuple(range(0, 48, 3)), quorum=3)
        three = self.job(5, slots=2, min_quorum=2)
        self.assertEqual([(job.slot_base, job.slots) for job in (one, two, three)], [(0, 2), (2, 1), (3, 2)])
        lookup = Op.LOOKUP_ADD8
        for rank in (0, 1):
            self.added(one, rank, codes(5), op=lookup, round=9)
            self.added(two, rank, codes(5), op=lookup, round=4)
            self.added(three, rank, lanes32(5))
        self.assert_lanes(self.completed(one, 2, codes(6), op=lookup, round=9), 16)
        self.assert_lanes(self.completed(two, 3, codes(6), op=lookup, round=4), 48)
        self.assert_lanes(self.closed(three, 0, lanes32(5), flags=Flag.FLUSH), 10)
        self.assert_lanes(self.answered(two, 2, codes(15), op=lookup, round=4), 48)
        self.holds(two, two.spec.workers[2], State.FINAL, held=4, by=[0, 1, 3], op=lookup, round=4)
        self.holds(one, one.spec.workers[2], State.EMPTY, slot=1)


class TablesOfBothWidthsInSeveralJobs(SwitchCase):
    """Jobs with one of the two tables, and one with both: each operation of each job looks up in its own."""

    def runTest(self) -> None:
        self.require(Op.LOOKUP_ADD16)
        wide = self.job(2, table16=tuple(range(0, 1600, 100)))
        narrow = self.job(2, table=tuple(range(16)))
        both = self.job(2, table=tuple(range(0, 32, 2)), table16=tuple(range(0, 48, 3)))
        eight, sixteen = Op.LOOKUP_ADD8, Op.LOOKUP_ADD16
        for rank, finish in ((0, False), (1, True)):
            for job, op, slot, total in (
                (wide, sixteen, 0, 1000), (narrow, eight, 0, 10), (both, eight, 0, 20), (both, sixteen, 1, 30),
            ):  # fmt: skip
                if finish:
                    self.assert_lanes(self.completed(job, rank, payload(op, 5), op=op, slot=slot), total)
                else:
                    self.added(job, rank, payload(op, 5), op=op, slot=slot)
