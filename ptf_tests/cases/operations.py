# SPDX-License-Identifier: Apache-2.0
"""Operations that do not fit: the job, the round, the program."""

from __future__ import annotations

from hopsum.wire import Drop, Op
from hopsum_ptf.case import SwitchCase
from hopsum_ptf.frames import altered, codes, lanes32, update

TABLE = tuple(range(16))


class AnotherOperationInTheSameRound(SwitchCase):
    """Dropped while the round collects and after it is complete; the round goes on as it was."""

    def runTest(self) -> None:
        job = self.job(2, table=TABLE)
        self.added(job, 0, lanes32(3))
        self.refused(1, update(job, 1, lanes32(9), op=Op.MAX32), Drop.OP_MISMATCH)
        self.refused(1, update(job, 1, codes(9), op=Op.LOOKUP_ADD8), Drop.OP_MISMATCH)
        self.refused(0, update(job, 0, lanes32(3), op=Op.MAX32), Drop.OP_MISMATCH)
        self.assert_lanes(self.completed(job, 1, lanes32(4)), 7)
        self.refused(1, update(job, 1, lanes32(4), op=Op.MAX32), Drop.OP_MISMATCH)
        self.assert_lanes(self.answered(job, 1, lanes32(4)), 7)


class AnotherOperationInTheNextRound(SwitchCase):
    """Each round has the operation of its first packet; the slot remembers nothing."""

    def runTest(self) -> None:
        job = self.job(2, table=TABLE)
        rounds = ((Op.ADD32, lanes32(5), 10), (Op.MAX32, lanes32(5), 5), (Op.LOOKUP_ADD8, codes(5), 10))
        for round_ in range(1, 10):
            op, payload, expected = rounds[round_ % 3]
            self.added(job, 0, payload, op=op, round=round_)
            self.assert_lanes(self.completed(job, 1, payload, op=op, round=round_), expected)


class LookupWithoutTable(SwitchCase):
    """A job without a table has no lookups, also where another job has one; its sums work."""

    def runTest(self) -> None:
        self.job(2, table=TABLE)
        job = self.job(2)
        self.refused(0, update(job, 0, codes(1), op=Op.LOOKUP_ADD8), Drop.NO_TABLE)
        self.added(job, 0, lanes32(1))
        # before it is compared with the round's
        self.refused(1, update(job, 1, codes(1), op=Op.LOOKUP_ADD8), Drop.NO_TABLE)
        self.assert_lanes(self.completed(job, 1, lanes32(2)), 3)


class ReservedAndUnknownOperations(SwitchCase):
    """Dropped, with either payload size."""

    def runTest(self) -> None:
        job = self.job(2, table=TABLE)
        for op in (0, Op.LOOKUP_ADD16, Op.ADD8, Op.ADD16, Op.OR, 8, 255):
            self.refused(0, altered(update(job, 0, lanes32(1)), "hopsum", op=op), Drop.BAD_OP)
        self.refused(0, altered(update(job, 0, codes(1), op=Op.LOOKUP_ADD8), "hopsum", op=Op.ADD8), Drop.BAD_OP)
        self.added(job, 0, lanes32(1))
