# SPDX-License-Identifier: Apache-2.0
"""Cases that must not pass: run by test_ptf.py only, to see that the machinery can say no."""

from __future__ import annotations

from hopsum_ptf.case import SwitchCase
from hopsum_ptf.frames import lanes32, update
from hopsum_wire import Drop, Event


class SwitchDoesWhatTheOracleDoesNot(SwitchCase):
    """The oracle never heard of the job."""

    def runTest(self) -> None:
        job = self.job(1)
        self.oracle.remove_job(job.generation)
        self.send_update(job, 0, lanes32(1))


class OracleDoesWhatTheSwitchDoesNot(SwitchCase):
    """One bit of the oracle's sum is another."""

    def runTest(self) -> None:
        job = self.job(2)
        self.added(job, 0, lanes32(1))
        self.oracle.registers.values[1, 1023] ^= 1  # slot 0, version 1
        self.completed(job, 1, lanes32(2))


class CountersDiffer(SwitchCase):
    """A packet that only the oracle saw."""

    def runTest(self) -> None:
        self.oracle.job_events[0, Event.STALE] += 1


class BothAgreeButTheCaseExpectsOtherwise(SwitchCase):
    """Refused for another reason than the case says."""

    def runTest(self) -> None:
        job = self.job(1)
        self.refused(0, update(job, 0, lanes32(1), round=0), Drop.BAD_SLOT)


class FrameOutOfNowhere(SwitchCase):
    """A frame that nobody waits for is noticed at the end."""

    def runTest(self) -> None:
        self.links.send(2, self.links.barrier_frame(2, 5, 0))


class Breaks(SwitchCase):
    """An error that has nothing to do with the switch."""

    def runTest(self) -> None:
        raise ZeroDivisionError("deliberate")


class Skips(SwitchCase):
    """On the embedded switch a skip is a failure."""

    def runTest(self) -> None:
        self.skipTest("no reason")


class Passes(SwitchCase):
    """The cases around it leave nothing behind for it."""

    def runTest(self) -> None:
        self.assert_lanes(self.completed(self.job(1), 0, lanes32(4)), 4)
