# SPDX-License-Identifier: Apache-2.0
"""Packed results: LOOKUP_ADD6 sums in lanes of 8 bits, and sends 6 bits of each to workers."""

from __future__ import annotations

import numpy as np

from hopsum_ptf.case import SwitchCase
from hopsum_ptf.frames import PAYLOAD_AT, codes, lanes32, update
from hopsum_wire import Drop, Flag, Op, State

PACKED = Op.LOOKUP_ADD6
TABLE = tuple(range(16))
FLUSH = Flag.FLUSH


class EveryPackedCode(SwitchCase):
    """All 16 codes in every one of 16 rotations, against a table with all kinds of bit patterns."""

    def runTest(self) -> None:
        self.require(PACKED)
        table = (0, 1, 2, 3, 4, 7, 8, 15, 16, 21, 31, 32, 42, 47, 62, 63)
        job = self.job(1, table6=table)
        for rotation in range(16):
            values = (np.arange(1024) + np.arange(1024) // 256 + rotation) % 16
            sums = self.completed(job, 0, codes(values), op=PACKED, round=rotation + 1)
            self.assert_lanes(sums, np.take(table, values))


class AsMuchAsPackedLanesHold(SwitchCase):
    """21 workers with code 15 of a table up to 3, and 63 of one up to 1: 63 in every lane."""

    def runTest(self) -> None:
        self.require(PACKED)
        for workers in (21, 63):
            most = 63 // workers
            job = self.job(workers, table6=(*range(most), *(16 - most) * (most,)))
            for rank in range(workers - 1):
                self.added(job, rank, codes(15), op=PACKED)
            self.assert_lanes(self.completed(job, workers - 1, codes(15), op=PACKED), 63)


class PackedLanesBesideEmptyOnes(SwitchCase):
    """Each lane full by itself, with all others empty: of its own byte, and of the three that share the last lanes."""

    def runTest(self) -> None:
        self.require(PACKED)
        job = self.job(3, table6=(*range(15), 21))
        for round_, lane in enumerate((0, 255, 256, 511, 512, 767, 768, 800, 1023), 1):
            full = np.zeros(1024, np.uint8)
            full[lane] = 15
            for rank in range(2):
                self.added(job, rank, codes(full), op=PACKED, round=round_)
            sums = self.completed(job, 2, codes(full), op=PACKED, round=round_)
            self.assert_lanes(sums, np.where(full > 0, 63, 0))


class EveryReplyIsPacked(SwitchCase):
    """Completed, closed by a flush, answered to a duplicate and to a latecomer: the same 768 bytes; STALE has none."""

    def runTest(self) -> None:
        self.require(PACKED)
        job = self.job(3, table6=TABLE, quorum=3, min_quorum=1)
        mine, others = np.arange(1024) % 16, np.arange(1024) * 7 % 16
        self.added(job, 0, codes(mine), op=PACKED)
        self.added(job, 1, codes(others), op=PACKED)
        self.assert_lanes(self.closed(job, 1, codes(others), op=PACKED, flags=FLUSH), mine + others)
        for rank in (0, 2):
            sums = self.answered(job, rank, codes(mine), op=PACKED)
            self.assert_lanes(sums, mine + others)
            self.assertEqual(len(self.send_update(job, rank, codes(mine), op=PACKED)[0].frame), PAYLOAD_AT + 768)
        self.holds(job, job.spec.workers[0], State.FINAL, held=1, by=[0, 1], op=PACKED)
        for rank in range(3):
            self.send_update(job, rank, codes(rank), op=PACKED, round=3)
        self.stale(job, 2, codes(mine), op=PACKED, round=1, held=3)


class PackedLookupsNeedTheirOwnTable(SwitchCase):
    """A job of one kind drops and counts packets of the other, and goes on."""

    def runTest(self) -> None:
        self.require(PACKED)
        plain, packed = self.job(2, table=TABLE), self.job(2, table6=TABLE)
        self.refused(0, update(plain, 0, codes(1), op=PACKED), Drop.NO_TABLE)
        self.refused(0, update(packed, 0, codes(1), op=Op.LOOKUP_ADD8), Drop.NO_TABLE)
        self.added(plain, 0, codes(1), op=Op.LOOKUP_ADD8)
        self.added(packed, 0, codes(1), op=PACKED)
        self.refused(1, update(packed, 1, lanes32(1)), Drop.OP_MISMATCH)
        self.assert_lanes(self.completed(packed, 1, codes(2), op=PACKED), 3)


class PackedAndPlainRoundsByTurns(SwitchCase):
    """A job with both tables: each round by its own operation, and neither joins the other's round."""

    def runTest(self) -> None:
        self.require(PACKED)
        job = self.job(2, table=(*range(15), 100), table6=TABLE)
        for round_ in range(1, 5):
            op, other = (PACKED, Op.LOOKUP_ADD8) if round_ % 2 else (Op.LOOKUP_ADD8, PACKED)
            self.added(job, 0, codes(15), op=op, round=round_)
            self.refused(1, update(job, 1, codes(1), op=other, round=round_), Drop.OP_MISMATCH)
            self.assert_lanes(self.completed(job, 1, codes(1), op=op, round=round_), 16 if op == PACKED else 101)
