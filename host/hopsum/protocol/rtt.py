# SPDX-License-Identifier: Apache-2.0
"""The retransmission timeout of a worker (RTO), estimated from smoothed round trips as in RFC 6298.

A round trip is from a chunk's only transmission to its result: it contains the wait for the slowest worker of the
quorum, and that is meant: what another worker delays, a retransmission does not bring earlier.

Rules
    Karn    Only chunks that were never sent again are measured: with others the answered one is unknown.
    first   srtt := R,  rttvar := R / 2
    later   rttvar := 3/4 rttvar + 1/4 |srtt - R|,  then srtt := 7/8 srtt + 1/8 R
    rto     clamp(srtt + 4 rttvar, least, most); before the first measurement the initial one
"""

from __future__ import annotations

from typing import Final

_GAIN: Final = 1 / 8
_GAIN_OF_VARIANCE: Final = 1 / 4
_DEVIATIONS: Final = 4


class RttEstimator:
    """The round-trip estimate of one worker, all in seconds. `rto_s` is the retransmission timeout.

    Args:
        initial_s: the timeout before anything is measured.
        least_s, most_s: bounds of the timeout afterwards.
    """

    def __init__(self, initial_s: float, least_s: float, most_s: float) -> None:
        self.least_s, self.most_s = least_s, most_s
        self.srtt_s: float | None = None
        self.rttvar_s = 0.0
        self.rto_s = initial_s

    def update(self, round_trip_s: float) -> None:
        """Take one round trip of a chunk that was sent once."""
        if self.srtt_s is None:
            self.srtt_s, self.rttvar_s = round_trip_s, round_trip_s / 2
        else:
            self.rttvar_s += _GAIN_OF_VARIANCE * (abs(self.srtt_s - round_trip_s) - self.rttvar_s)
            self.srtt_s += _GAIN * (round_trip_s - self.srtt_s)
        self.rto_s = min(max(self.srtt_s + _DEVIATIONS * self.rttvar_s, self.least_s), self.most_s)
