# SPDX-License-Identifier: Apache-2.0
"""Digits: lanes of ADD32 that carry several elements each, as digits of radix n g + 1."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hopsum_ptf.case import SwitchCase
from hopsum_ptf.frames import lanes32
from hopsum_wire import Op

DIGITS = Op.ADD32


class _Digits(SwitchCase):
    """Jobs whose lanes carry `digits` elements with values of 0 to `granularity`."""

    def numbers(self, values: NDArray[np.int64], radix: int) -> NDArray[np.int64]:
        """Return the lanes of values[digits, 256]."""
        return np.tensordot(radix ** np.arange(len(values), dtype=np.int64), values, axes=1)


class AsManyDigitsAsALaneHolds(_Digits):
    """All workers with the largest value in every digit: each lane is its last number that digits make."""

    def runTest(self) -> None:
        for workers, digits, granularity in ((8, 6, 4), (16, 7, 1), (2, 20, 1), (64, 5, 1)):
            radix = workers * granularity + 1
            job = self.job(workers, digits=(digits, granularity))
            own = lanes32(self.numbers(np.full((digits, 256), granularity, np.int64), radix))
            for rank in range(workers - 1):
                self.added(job, rank, own, op=DIGITS)
            self.assert_lanes(self.completed(job, workers - 1, own, op=DIGITS), radix**digits - 1)


class FullDigitsBesideEmptyOnes(_Digits):
    """Each digit full by itself, the others empty, another one in each lane: nothing is carried to a neighbour."""

    def runTest(self) -> None:
        workers, digits, granularity = 8, 6, 4
        radix = workers * granularity + 1
        job = self.job(workers, digits=(digits, granularity))
        for round_ in range(1, digits + 1):
            full = np.arange(256) + round_ - 1
            values = np.where(full % digits == np.arange(digits)[:, None], granularity, 0).astype(np.int64)
            own = lanes32(self.numbers(values, radix))
            for rank in range(workers - 1):
                self.added(job, rank, own, op=DIGITS, round=round_)
            sums = self.completed(job, workers - 1, own, op=DIGITS, round=round_)
            self.assert_lanes(sums, self.numbers(workers * values, radix))


class DigitsOfEveryWorkerAreAdded(_Digits):
    """Values that differ by element and worker; who is not in the quorum is answered with the sum of the others."""

    def runTest(self) -> None:
        workers, digits, granularity = 5, 7, 4
        radix = workers * granularity + 1
        job = self.job(workers, digits=(digits, granularity), quorum=workers - 1, min_quorum=1)
        places = np.arange(digits)[:, None] * 3 + np.arange(256)
        values = [(places * (rank + 2) + rank) % (granularity + 1) for rank in range(workers)]
        numbers = [self.numbers(each.astype(np.int64), radix) for each in values]
        for rank in range(workers - 2):
            self.added(job, rank, lanes32(numbers[rank]), op=DIGITS)
        sums = self.completed(job, workers - 2, lanes32(numbers[-2]), op=DIGITS)
        self.assert_lanes(sums, sum(numbers[:-1]))
        self.assert_lanes(self.answered(job, workers - 1, lanes32(numbers[-1]), op=DIGITS), sum(numbers[:-1]))
