# SPDX-License-Identifier: Apache-2.0
"""Jobs that follow each other in the same slots, and packets of jobs that are gone."""

from __future__ import annotations

from hopsum_controlplane import SwitchController
from hopsum_ptf.case import SwitchCase
from hopsum_ptf.case_places import SWITCH
from hopsum_ptf.frames import altered, codes, lanes32, update
from hopsum_wire import Drop, Op

TABLE = tuple(range(16))
OTHER_TABLE = tuple(range(0, 48, 3))


class LeftoversOfAnEarlierJob(SwitchCase):
    """Registers keep what the last job left; the next one, in the same slots, finds them empty."""

    def runTest(self) -> None:
        before = self.job(2)
        self.added(before, 0, lanes32(1), round=9)
        self.completed(before, 1, lanes32(2), round=9)
        self.added(before, 0, lanes32(3), round=10)
        # S3: the controller clears no register. S2 makes the leftovers empty copies.
        self.end_job(before)
        job = self.job(2)
        self.assertEqual((job.slot_base, job.job_index), (before.slot_base, before.job_index))
        self.added(job, 1, lanes32(5), round=1)
        self.assert_lanes(self.completed(job, 0, lanes32(6), round=1), 11)
        self.added(job, 1, lanes32(7), round=2)
        self.assert_lanes(self.completed(job, 0, lanes32(8), round=2), 15)


class OldGenerationArrivesLate(SwitchCase):
    """A packet of the job before is dropped, and leaves the round of the new job alone."""

    def runTest(self) -> None:
        before = self.job(2)
        late = update(before, 0, lanes32(1000), round=5)
        self.added(before, 0, lanes32(1))
        self.end_job(before)
        job = self.job(before.spec.workers)
        self.added(job, 0, lanes32(5))
        # S1: the entries of the old generation went before those of the new one came.
        self.refused(0, late, Drop.UNKNOWN_GENERATION)
        self.assert_lanes(self.completed(job, 1, lanes32(6)), 11)
        self.refused(0, late, Drop.UNKNOWN_GENERATION)


class UnknownGeneration(SwitchCase):
    """Generations that never were: 0, the next one, the largest."""

    def runTest(self) -> None:
        job = self.job(2)
        good = update(job, 0, lanes32(1))
        for generation in (0, job.generation + 1, job.generation ^ 1 << 31, 2**32 - 1):
            self.refused(0, altered(good, "hopsum", generation=generation), Drop.UNKNOWN_GENERATION)
        self.added(job, 0, lanes32(1))


class TableGoesWithItsGeneration(SwitchCase):
    """The next job in the same slots looks up in its own table."""

    def runTest(self) -> None:
        for table in (TABLE, OTHER_TABLE):
            job = self.job(2, table=table)
            self.added(job, 0, codes(3), op=Op.LOOKUP_ADD8)
            self.assert_lanes(self.completed(job, 1, codes(4), op=Op.LOOKUP_ADD8), table[3] + table[4])
            self.end_job(job)


class LargestGeneration(SwitchCase):
    """Generations use all 32 bits; only equality is tested, so the one before is neither older nor newer."""

    def runTest(self) -> None:
        before = self.job(2)
        self.added(before, 0, lanes32(1), round=7)
        self.end_job(before)
        # A clock that is almost at the end of 32 bits: the controller takes the largest generation.
        self.controller = SwitchController(self.device, SWITCH, clock=lambda: 2.0**32 - 2)
        job = self.job(before.spec.workers)
        self.assertEqual((job.generation, job.slot_base), (2**32 - 1, before.slot_base))
        self.added(job, 0, lanes32(1))
        self.assert_lanes(self.completed(job, 1, lanes32(2)), 3)
