# SPDX-License-Identifier: Apache-2.0
"""The congestion window of a worker, and its retransmission timeout.

The window is in chunks in flight (RFC 5681). W1 allows S chunks; the window may allow fewer.

    state       input                                           window          next
    OPEN        as many results as the window                   + 1, at most S  OPEN
    OPEN        timeout of a chunk                              halved, >= 1    RECOVERING
    RECOVERING  timeout of a chunk                              unchanged       RECOVERING
    RECOVERING  the result of a chunk first sent after halving  unchanged       OPEN

A wait without any result halves the window only once, because its cause is a late worker and not a full queue.

The timeout (RTO) is estimated from smoothed round trips as in RFC 6298, with Karn's rule. A round trip includes the
wait for the slowest worker of the quorum: a retransmission does not speed up that worker.
"""

from __future__ import annotations

from math import inf
from typing import Final

# Gains and factor of RFC 6298.
GAIN: Final = 1 / 8
VARIANCE_GAIN: Final = 1 / 4
DEVIATIONS: Final = 4


class CongestionWindow:
    """The congestion window of one worker, in chunks. It starts at `most`."""

    def __init__(self, most: int) -> None:
        self.size = most
        self._most = most
        self.results = 0
        """Results since the window last grew."""
        self.halved_at = inf
        """The time of the last halving, while RECOVERING. Infinite: OPEN."""

    def on_ack(self, first_sent_at: float | None) -> None:
        """Process a result: grow the window by 1 after as many results as its size; perhaps end RECOVERING.

        Args:
            first_sent_at: the time of the chunk's only transmission, None for a chunk that was sent again.
        """
        if first_sent_at is not None and first_sent_at >= self.halved_at:
            self.halved_at = inf
        self.results += 1
        if self.results >= self.size:
            self.results = 0
            self.size = min(self.size + 1, self._most)

    def on_loss(self, now: float) -> None:
        """Process a timeout: halve the window, unless RECOVERING."""
        # Halve once per round trip: the losses of one full queue come together.
        if self.halved_at == inf:
            self.size, self.results, self.halved_at = max(1, self.size // 2), 0, now


class RttEstimator:
    """The round-trip estimate of one worker, all in seconds. `rto_s` is the retransmission timeout.

    Args:
        initial_s: the timeout before the first measurement.
        least_s, most_s: bounds of the timeout afterwards.
    """

    def __init__(self, initial_s: float, least_s: float, most_s: float) -> None:
        self.least_s, self.most_s = least_s, most_s
        self.srtt_s = inf
        """The smoothed round trip. Infinite: none was measured."""
        self.rttvar_s = 0.0
        self.rto_s = initial_s

    def update(self, round_trip_s: float) -> None:
        """Update the estimates with the round-trip time of a chunk that was sent only once."""
        if self.srtt_s == inf:
            self.srtt_s, self.rttvar_s = round_trip_s, round_trip_s / 2
        else:
            self.rttvar_s += VARIANCE_GAIN * (abs(self.srtt_s - round_trip_s) - self.rttvar_s)
            self.srtt_s += GAIN * (round_trip_s - self.srtt_s)
        self.rto_s = min(max(self.srtt_s + DEVIATIONS * self.rttvar_s, self.least_s), self.most_s)
