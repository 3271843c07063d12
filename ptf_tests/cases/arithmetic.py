# SPDX-License-Identifier: Apache-2.0
"""Sums and maxima of lanes at the edges of their range."""

from __future__ import annotations

import numpy as np

from hopsum_ptf.case import SwitchCase
from hopsum_ptf.frames import codes, lanes32, update
from hopsum_wire import Drop, Op

ALL_ONES = 2**32 - 1
LARGEST = 2**31 - 1


class AllMaximumCodes(SwitchCase):
    """17 workers with code 15 of a table up to 15: 255 in every lane, as much as fits."""

    def runTest(self) -> None:
        job = self.job(17, table=tuple(range(16)))
        for rank in range(16):
            self.added(job, rank, codes(15), op=Op.LOOKUP_ADD8)
        self.assert_lanes(self.completed(job, 16, codes(15), op=Op.LOOKUP_ADD8), 255)


class EveryCode(SwitchCase):
    """All 16 codes in every one of 16 rotations, against tables with large steps."""

    def runTest(self) -> None:
        table = (0, 1, 3, 7, 8, 31, 32, 63, 64, 85, 127, 128, 170, 240, 254, 255)
        job = self.job(1, table=table)
        for rotation in range(16):
            values = (np.arange(1024) + np.arange(1024) // 256 + rotation) % 16
            sums = self.completed(job, 0, codes(values), op=Op.LOOKUP_ADD8, round=rotation + 1)
            self.assert_lanes(sums, np.take(table, values))


class FullSmallLanesBesideEmptyOnes(SwitchCase):
    """Sums that nearly fill their 8-bit lane, between lanes of 1."""

    def runTest(self) -> None:
        job = self.job(2, table=(*range(15), 127))
        odd = np.arange(1024) % 2
        self.added(job, 0, codes(15 * odd), op=Op.LOOKUP_ADD8)
        self.assert_lanes(self.completed(job, 1, codes(14 * odd + 1), op=Op.LOOKUP_ADD8), np.where(odd, 254, 1))


class HalfLanesHoldSumsOfTheirOwn(SwitchCase):
    """Paired codes: a table of 16 T[a] + T[b] fills both halves of a lane up to 15, and neither carries."""

    def runTest(self) -> None:
        job = self.job(5, table=tuple(16 * high + low for high in range(4) for low in range(4)))
        rng = np.random.default_rng(1)
        pairs = rng.integers(0, 4, (5, 2, 1024))
        pairs[:, 0, :4], pairs[:, 1, :4] = (3, 3, 0, 0), (3, 0, 3, 0)
        for rank in range(4):
            self.added(job, rank, codes(4 * pairs[rank, 0] + pairs[rank, 1]), op=Op.LOOKUP_ADD8)
        sums = self.completed(job, 4, codes(4 * pairs[4, 0] + pairs[4, 1]), op=Op.LOOKUP_ADD8)
        self.assert_lanes(sums, 16 * pairs[:, 0].sum(axis=0) + pairs[:, 1].sum(axis=0))


class SmallLanesDoNotCarry(SwitchCase):
    """With a table that the controller refuses, sums beyond 255 wrap within their lane."""

    def runTest(self) -> None:
        job = self.job(3, table=tuple(range(16)))
        # The controller refuses such a table, so it is written past the controller.
        self.set_tables(job, table=(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 127, 128, 129, 254, 255))
        position = np.arange(1024) % 4
        for rank, values in enumerate(((15, 0, 12, 15), (1, 0, 12, 15))):
            self.added(job, rank, codes(np.take(values, position)), op=Op.LOOKUP_ADD8)
        sums = self.completed(job, 2, codes(np.take((0, 1, 0, 15), position)), op=Op.LOOKUP_ADD8)
        self.assert_lanes(sums, np.take((256 % 256, 1, 256 % 256, 765 % 256), position))


class WideLanesDoNotCarry(SwitchCase):
    """0xFFFFFFFF + 1 is 0, and other lanes keep their values."""

    def runTest(self) -> None:
        job = self.job(2)
        position = np.arange(256) % 4
        first = np.select([position == 0, position == 1, position == 2], [ALL_ONES, 0, ALL_ONES], 5)
        second = np.select([position == 0, position == 1, position == 2], [1, 0, ALL_ONES], ALL_ONES)
        self.added(job, 0, lanes32(first))
        sums = self.completed(job, 1, lanes32(second))
        self.assert_lanes(sums, (first + second) % 2**32)
        self.assertEqual(sums[:4].tolist(), [0, 0, ALL_ONES - 1, 4])


class WideLanesWrapAgain(SwitchCase):
    """Sums of more than two workers wrap more than once."""

    def runTest(self) -> None:
        job = self.job(5)
        values = np.arange(256) * 0x01010101 + 0xF0000000
        for rank in range(4):
            self.added(job, rank, lanes32(values % 2**32))
        self.assert_lanes(self.completed(job, 4, lanes32(values % 2**32)), 5 * values % 2**32)


class MaximumOfExtremes(SwitchCase):
    """Equal values, neighbours, 0 and the largest; a lane does not borrow from the next."""

    def runTest(self) -> None:
        job = self.job(3)
        values = np.asarray([0, 1, 2, 2**30 - 1, 2**30, 2**30 + 1, LARGEST - 1, LARGEST])
        ranks = (np.resize(values, 256), np.repeat(values, 32), np.resize(np.repeat(values, 2), 256))
        self.added(job, 0, lanes32(ranks[0]), op=Op.MAX32)
        self.added(job, 1, lanes32(ranks[1]), op=Op.MAX32)
        self.assert_lanes(self.completed(job, 2, lanes32(ranks[2]), op=Op.MAX32), np.max(ranks, axis=0))


class MaximumOfEqualValues(SwitchCase):
    """Neither side wins."""

    def runTest(self) -> None:
        job = self.job(2)
        for round_, value in enumerate((0, 1, LARGEST), 1):
            self.added(job, 0, lanes32(value), op=Op.MAX32, round=round_)
            self.assert_lanes(self.completed(job, 1, lanes32(value), op=Op.MAX32, round=round_), value)


class MaximumRefusesTheTopBit(SwitchCase):
    """A set top bit in any one lane: dropped, first packet or not; +inf as a float's bits passes."""

    def runTest(self) -> None:
        job = self.job(2)
        for position, value in ((0, 2**31), (63, ALL_ONES), (64, 2**31 + 1), (128, 2**31), (255, 2**31)):
            values = np.zeros(256, np.int64)
            values[position] = value
            self.refused(0, update(job, 0, lanes32(values), op=Op.MAX32), Drop.BAD_VALUE)
        # MAX32 compares the bits of non-negative floats as integers, where infinity is the largest.
        infinity = int(np.float32(np.inf).view(np.uint32))
        self.added(job, 0, lanes32(infinity), op=Op.MAX32)
        self.refused(1, update(job, 1, lanes32(2**31), op=Op.MAX32), Drop.BAD_VALUE)
        one = int(np.float32(1).view(np.uint32))
        self.assert_lanes(self.completed(job, 1, lanes32(one), op=Op.MAX32), infinity)


class SumsMayUseTheTopBit(SwitchCase):
    """It is MAX32 alone that refuses it."""

    def runTest(self) -> None:
        job = self.job(2)
        self.added(job, 0, lanes32(2**31))
        self.assert_lanes(self.completed(job, 1, lanes32(2**31 + 3)), 3)
