# SPDX-License-Identifier: Apache-2.0
"""The congestion window of a worker, in chunks on the way: additive increase, multiplicative decrease (RFC 5681).

W1 allows one position per slot, so S in all. The window may only allow less.

    state       input                                           window          next
    OPEN        as many results as the window is wide           + 1, to S       OPEN
    OPEN        a chunk's result did not come in time           halved, to 1    RECOVERING
    RECOVERING  the same                                        as it is        RECOVERING
    RECOVERING  the result of a chunk first sent after halving  as it is        OPEN

So it halves once a round trip at most, and once only for a wait, however long, in which nothing comes at all: that is
a worker that has not come yet, not a full queue.
"""

from __future__ import annotations


class CongestionWindow:
    """The congestion window of one worker, in chunks. It starts at `most`."""

    def __init__(self, most: int) -> None:
        self.size = most
        self._most = most
        self.results = 0
        """Results since the window last grew."""
        self.halved_at: float | None = None
        """The time at which it was halved, while RECOVERING."""

    def on_ack(self, first_sent_at: float | None, results: int = 1) -> None:
        """Take results that came at once. `first_sent_at` is the latest time of a chunk that was sent once, or None."""
        if self.halved_at is not None and first_sent_at is not None and first_sent_at >= self.halved_at:
            self.halved_at = None
        self.results += results
        while self.results >= self.size:
            self.results -= self.size
            if self.size == self._most:
                self.results %= self.size
            else:
                self.size += 1

    def on_loss(self, now: float) -> None:
        """Take a timeout."""
        if self.halved_at is None:
            self.size, self.results, self.halved_at = max(1, self.size // 2), 0, now
