# SPDX-License-Identifier: Apache-2.0
"""Rounds of a slot: newer, older, and how far they count."""

from __future__ import annotations

from hopsum_ptf.case import SwitchCase
from hopsum_ptf.frames import lanes32, update
from hopsum_wire import Drop, Flag, Header, Kind, Op

LAST_ROUND = 2**32 - 1


class SlotIsUsedAgain(SwitchCase):
    """Both copies alternately; a newer round overwrites everything of the round two before."""

    def runTest(self) -> None:
        job = self.job(2)
        for round_ in range(1, 7):
            self.added(job, 0, lanes32(round_), round=round_)
            self.assert_lanes(self.completed(job, 1, lanes32(100 * round_), round=round_), 101 * round_)


class StaleRound(SwitchCase):
    """An older round gets the round that was asked for, the one held, and who is in it; it touches nothing."""

    def runTest(self) -> None:
        job = self.job(3)
        for round_ in (1, 2):
            self.added(job, 0, lanes32(1), round=round_)
            self.added(job, 1, lanes32(2), round=round_)
            self.completed(job, 2, lanes32(3), round=round_)
        self.added(job, 2, lanes32(40), round=3)
        # S7: the answer has the contributors of the held round, at this moment, and changes nothing.
        self.assertEqual(self.stale(job, 0, lanes32(1), round=1, held=3).contributors, 0b100)
        self.added(job, 0, lanes32(50), round=3)
        self.assertEqual(self.stale(job, 1, lanes32(2), round=1, held=3).contributors, 0b101)
        self.assert_lanes(self.completed(job, 1, lanes32(60), round=3), 150)
        self.assertEqual(self.stale(job, 1, lanes32(2), round=1, held=3).contributors, 0b111)
        self.assert_lanes(self.answered(job, 2, lanes32(3), round=2), 6)


class StaleWhateverItsOperation(SwitchCase):
    """An older round is stale before its operation is compared."""

    def runTest(self) -> None:
        job = self.job(2)
        self.added(job, 0, lanes32(1), round=3)
        # The operation that the slot holds is of another round, so there is nothing to compare.
        reply = self.stale(job, 1, lanes32(1), round=1, held=3, op=Op.MAX32)
        self.assertEqual(reply.op, Op.MAX32)


class NewerRoundOverAnUnfinishedOne(SwitchCase):
    """Overwritten, and counted as a fault: with a full quorum no correct worker does it."""

    def runTest(self) -> None:
        job = self.job(2)
        self.added(job, 0, lanes32(1))
        # S3: a newer round overwrites whatever the copy holds.
        self.added_over_unfinished(job, 1, lanes32(20), round=3)
        self.stale(job, 1, lanes32(2), round=1, held=3)
        self.assert_lanes(self.completed(job, 0, lanes32(30), round=3), 50)


class UpToTheLastRound(SwitchCase):
    """Rounds compare as unsigned numbers up to 2^32 - 1; beyond there is a new generation, not round 0."""

    def runTest(self) -> None:
        job = self.job(2)
        for round_ in (2**31 - 1, 2**31, 2**31 + 1, LAST_ROUND - 2, LAST_ROUND - 1, LAST_ROUND):
            self.added(job, 0, lanes32(1), round=round_)
            self.assert_lanes(self.completed(job, 1, lanes32(round_), round=round_), (round_ + 1) % 2**32)
        # N4: unsigned order, no wrapping. Round 1 is older than the last one.
        self.stale(job, 0, lanes32(1), round=1, held=LAST_ROUND)
        self.stale(job, 0, lanes32(1), round=2**31 - 1, held=LAST_ROUND)
        self.answered(job, 0, lanes32(1), round=LAST_ROUND)


class RoundZero(SwitchCase):
    """Refused, in a fresh slot and in a used one."""

    def runTest(self) -> None:
        job = self.job(2)
        self.refused(0, update(job, 0, lanes32(1), round=0), Drop.BAD_ROUND)
        self.added(job, 0, lanes32(1), round=2)
        self.refused(1, update(job, 1, lanes32(1), round=0), Drop.BAD_ROUND)
        self.assert_lanes(self.completed(job, 1, lanes32(2), round=2), 3)


class WhatStaleCarries(SwitchCase):
    """Operation, slot, round, generation and count of the packet; round and contributors of the copy; nothing else."""

    def runTest(self) -> None:
        job = self.job(3)
        self.added(job, 2, lanes32(1), slot=2, round=7)
        self.added(job, 0, lanes32(1), slot=2, round=7)
        reply = self.stale(job, 1, lanes32(1), slot=2, round=5, held=7, op=Op.OR, count=99, flags=Flag.FLUSH)
        expected = Header(
            kind=Kind.STALE,
            op=Op.OR,
            worker=1,
            slot=2,
            generation=job.generation,
            round=5,
            held=7,
            contributors=0b101,
            count=99,
        )
        self.assertEqual(reply, expected)
        self.assert_lanes(self.completed(job, 1, lanes32(1), slot=2, round=7), 3)
