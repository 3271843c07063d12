# SPDX-License-Identifier: Apache-2.0
"""Operations that do not fit: the job, the round, the program."""

from __future__ import annotations

from hopsum_ptf.case import TABLES, SwitchCase
from hopsum_ptf.frames import altered, codes, lanes32, payload, update
from hopsum_wire import Drop, Op, up_bytes

TABLE = tuple(range(16))


class AnotherOperationInTheSameRound(SwitchCase):
    """Dropped while the round collects and after it is complete; the round continues as it was."""

    def runTest(self) -> None:
        job = self.job(2, table=TABLE)
        self.added(job, 0, lanes32(3))
        # The first packet of a round decides its operation. Another one would mix sums of different kinds.
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


class TableOfTheOtherWidth(SwitchCase):
    """A job with the table of one lookup lacks the other's."""

    def runTest(self) -> None:
        self.require(Op.LOOKUP_ADD16)
        narrow, wide = self.job(2, table=TABLE), self.job(2, table16=TABLE)
        self.refused(0, update(narrow, 0, payload(Op.LOOKUP_ADD16, 1), op=Op.LOOKUP_ADD16), Drop.NO_TABLE)
        self.refused(0, update(wide, 0, codes(1), op=Op.LOOKUP_ADD8), Drop.NO_TABLE)
        self.added(narrow, 0, codes(1), op=Op.LOOKUP_ADD8)
        self.added(wide, 0, payload(Op.LOOKUP_ADD16, 1), op=Op.LOOKUP_ADD16)


class UnknownOperations(SwitchCase):
    """Dropped, with any payload size."""

    def runTest(self) -> None:
        job = self.job(2, table=TABLE)
        for op in (0, 8, 12, 127, 128, 255):
            for known in (Op.ADD32, Op.LOOKUP_ADD8, Op.LOOKUP_ADD16):
                frame = update(job, 0, payload(known, 1), op=known)
                self.refused(0, altered(frame, "hopsum", op=op), Drop.BAD_OP)


class OperationOfAnotherSize(SwitchCase):
    """A payload of codes under an op of lanes, of lanes under codes, of 8-bit codes under 16-bit ones."""

    def runTest(self) -> None:
        job = self.job(2, **TABLES)
        for known in Op:
            for claimed in Op:
                if up_bytes(known) != up_bytes(claimed):
                    frame = update(job, 0, payload(known, 1), op=known)
                    self.refused(0, altered(frame, "hopsum", op=claimed), Drop.BAD_LENGTH)
        self.added(job, 0, lanes32(1))
