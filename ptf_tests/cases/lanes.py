# SPDX-License-Identifier: Apache-2.0
"""All operations: every lane in its place, and what happens at the edges of lanes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hopsum_ptf.case import TABLES, SwitchCase
from hopsum_ptf.frames import payload, update
from hopsum_wire import Drop, Op, up_bytes
from hopsum_wire.payload import SHAPES, TABLE_NAMES

STEEP = (0, 1, 255, 256, 257, 0x0FFF, 0x1000, 0x5555, 0x7FFF, 0x8000, 0x8001, 0xAAAA, 0xF0F0, 0xFF00, 0xFFFE, 0xFFFF)
SLOPING = (0, 1, 127, 128, 129, 0x07FF, 0x0800, 0x2AAA, 0x3FFF, 0x4000, 0x4001, 0x5555, 0x7878, 0x7F80, 0x7FFE, 0x7FFF)
TABLE = tuple(range(16))


def lane_count(op: Op) -> int:
    """Return how many lanes a payload of this op has."""
    return 1024 // np.dtype(SHAPES[op].lane_dtype).itemsize


class _Lanes(SwitchCase):
    """Two workers whose lanes repeat a short pattern."""

    def summed(self, op: Op, first: Sequence[int], second: Sequence[int], expected: Sequence[int]) -> None:
        """Sum `first` and `second`, repeated over all lanes; expect `expected`, repeated."""
        job = self.job(2)
        count = lane_count(op)
        self.added(job, 0, payload(op, np.resize(np.asarray(first, np.uint64), count)), op=op)
        sums = self.completed(job, 1, payload(op, np.resize(np.asarray(second, np.uint64), count)), op=op)
        self.assert_lanes(sums, np.resize(np.asarray(expected, np.uint64), count))


class EveryOperationInElementOrder(SwitchCase):
    """One round of each operation, every lane another value."""

    def runTest(self) -> None:
        job = self.job(2, slots=12, **{**TABLES, "table": TABLE, "table16": SLOPING})
        for op in self.operations:
            elements = np.arange(SHAPES[op].elements if op is not Op.OR else 1024)
            if SHAPES[op].has_codes:
                codes = 1 << SHAPES[op].code_bits
                first, second = elements % codes, elements // 32 % codes
                table = {Op.LOOKUP_ADD16: SLOPING, Op.LOOKUP_ADD8: TABLE}.get(op) or TABLES[TABLE_NAMES[op]]
                expected = np.take(table, first) + np.take(table, second)
                if SHAPES[op].down_codes:
                    expected = np.searchsorted(table[codes:], expected + 128 >> 1, side="right")
            else:
                first, second = elements % 251, elements * 7 % 256
                combined = {Op.OR: first | second, Op.MAX32: np.maximum(first, second)}
                expected = combined.get(op, first + second)
            self.added(job, 0, payload(op, first), op=op, slot=op)
            sums = self.completed(job, 1, payload(op, second), op=op, slot=op)
            self.assert_lanes(sums, expected % (1 << 8 * sums.dtype.itemsize))


class NarrowLanesDoNotCarry(_Lanes):
    """ADD8: 0xFF + 1 is 0, and other lanes keep their values."""

    def runTest(self) -> None:
        self.summed(Op.ADD8, (0xFF, 0, 0xFF, 0x80, 0x7F), (1, 0, 0xFF, 0x80, 1), (0, 0, 0xFE, 0, 0x80))


class MediumLanesDoNotCarry(_Lanes):
    """ADD16: 0xFFFF + 1 is 0, and other lanes keep their values; a byte carries into the other of its lane."""

    def runTest(self) -> None:
        first = (0xFFFF, 0, 0xFFFF, 0x8000, 0x7FFF, 0x00FF, 0xFF00)
        second = (1, 0, 0xFFFF, 0x8000, 1, 1, 0x0100)
        self.summed(Op.ADD16, first, second, (0, 0, 0xFFFE, 0, 0x8000, 0x0100, 0))


class SumsOfManyWorkersWrap(SwitchCase):
    """ADD8 and ADD16 of nine workers wrap more than once."""

    def runTest(self) -> None:
        job = self.job(9)
        for slot, op in enumerate((Op.ADD8, Op.ADD16)):
            bits = 1024 * 8 // lane_count(op)
            values = (np.arange(lane_count(op)) * 37 + (1 << bits) - 200) % (1 << bits)
            for rank in range(8):
                self.added(job, rank, payload(op, values), op=op, slot=slot)
            sums = self.completed(job, 8, payload(op, values), op=op, slot=slot)
            self.assert_lanes(sums, 9 * values % (1 << bits))


class UnionOfBits(SwitchCase):
    """OR: a bit is set when anybody set it; setting it twice is setting it once."""

    def runTest(self) -> None:
        job = self.job(3)
        bits = np.random.default_rng(11).integers(0, 256, (3, 1024), dtype=np.uint8)
        bits[:, :4] = ((0x00, 0xFF, 0x80, 0x01), (0x00, 0xFF, 0x01, 0x01), (0x00, 0x00, 0x7E, 0x01))
        self.added(job, 0, payload(Op.OR, bits[0]), op=Op.OR)
        self.added(job, 1, payload(Op.OR, bits[1]), op=Op.OR)
        sums = self.completed(job, 2, payload(Op.OR, bits[2]), op=Op.OR)
        self.assert_lanes(sums, np.bitwise_or.reduce(bits))
        self.assertEqual(sums[:4].tolist(), [0x00, 0xFF, 0xFF, 0x01])


class EveryWideCode(SwitchCase):
    """LOOKUP_ADD16: all 16 codes in every one of 16 rotations, against a table with all kinds of bit patterns."""

    def runTest(self) -> None:
        self.require(Op.LOOKUP_ADD16)
        job = self.job(1, table16=STEEP)
        for rotation in range(16):
            values = (np.arange(512) + np.arange(512) // 128 + rotation) % 16
            sums = self.completed(job, 0, payload(Op.LOOKUP_ADD16, values), op=Op.LOOKUP_ADD16, round=rotation + 1)
            self.assert_lanes(sums, np.take(STEEP, values))


class AsManyWideSumsAsFit(SwitchCase):
    """64 workers with the largest code of a table up to 1023: 65472 in every lane."""

    def runTest(self) -> None:
        self.require(Op.LOOKUP_ADD16)
        job = self.job(64, table16=(*range(15), 1023))
        largest = payload(Op.LOOKUP_ADD16, 15)
        for rank in range(63):
            self.added(job, rank, largest, op=Op.LOOKUP_ADD16)
        self.assert_lanes(self.completed(job, 63, largest, op=Op.LOOKUP_ADD16), 64 * 1023)


class WideSumsDoNotCarry(SwitchCase):
    """With a table that the controller refuses, sums beyond 65535 wrap within their lane."""

    def runTest(self) -> None:
        self.require(Op.LOOKUP_ADD16)
        job = self.job(2, table16=TABLE)
        self.set_tables(job, table16=STEEP)
        position = np.arange(512) % 4
        self.added(job, 0, payload(Op.LOOKUP_ADD16, np.take((15, 0, 9, 14), position)), op=Op.LOOKUP_ADD16)
        values = payload(Op.LOOKUP_ADD16, np.take((1, 0, 9, 15), position))
        sums = self.completed(job, 1, values, op=Op.LOOKUP_ADD16)
        self.assert_lanes(sums, np.take((0, 0, 0, 0xFFFD), position))


class LookupsOfBothWidthsByTurns(SwitchCase):
    """A job with both tables: each operation looks up in its own."""

    def runTest(self) -> None:
        self.require(Op.LOOKUP_ADD16)
        job = self.job(2, table=TABLE, table16=STEEP[:2] + tuple(range(2000, 2014)))
        for round_ in range(1, 5):
            op = Op.LOOKUP_ADD16 if round_ % 2 else Op.LOOKUP_ADD8
            self.added(job, 0, payload(op, 2), op=op, round=round_)
            self.assert_lanes(self.completed(job, 1, payload(op, 3), op=op, round=round_), 4001 if round_ % 2 else 5)


class TopBitsMatterToTheMaximumAlone(SwitchCase):
    """A payload with every bit set: refused under MAX32, taken under all others."""

    def runTest(self) -> None:
        job = self.job(2, slots=12, **TABLES)
        for op in self.operations:
            ones = b"\xff" * up_bytes(op)
            frame = update(job, 0, ones, op=op, slot=op)
            if op is Op.MAX32:
                self.refused(0, frame, Drop.BAD_VALUE)
            else:
                self.added(job, 0, ones, op=op, slot=op)
