# SPDX-License-Identifier: Apache-2.0
"""Tests that leave something behind on the switch, for the next one to meet. The first of them runs last, too."""

from __future__ import annotations

from sums import ALL_WORKERS, Sums


class Leaves(Sums):
    """Leave half a sum, and a group that goes to a third port."""

    def runTest(self) -> None:
        self.contribute(0, [100] * 8)
        self.multicast_group(ALL_WORKERS + 1, (1, 2, 3))


class Meets(Sums):
    """A sum of its own alone, for its own group; and the other group may be made again."""

    def runTest(self) -> None:
        self.multicast_group(ALL_WORKERS + 1, (1, 2, 3))
        self.contribute(0, [1] * 8)
        self.contribute(1, [2] * 8)
        self.verify_sums([3] * 8)
