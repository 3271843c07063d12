# SPDX-License-Identifier: Apache-2.0
"""When each open position is sent, sent again, and sent with FLUSH.

Rules
    W1      What is opened is the worker's business: one position per slot.
    window  A position is sent for the first time while fewer than the window are on the way, in the order of the
            stream. The oldest without a result is sent in any case: others may wait for just that one.
    again   After a timeout (rtt.py), then `backoff` times as long, up to a maximum; a timeout shrinks the window.
    S8      A position that has waited `flush_after_s` since it was first sent is sent at once, and from then on, with
            FLUSH. The flag is not among the bytes that W2 freezes; all others are.

    state    input                               next     sent
    WAITING  room in the window, or the oldest   SENT     UPDATE
    SENT     timeout                             SENT     the same UPDATE; waits longer
    SENT     flush_after_s over                  FLUSHED  the same UPDATE with FLUSH
    FLUSHED  timeout                             FLUSHED  the same UPDATE with FLUSH
    any      result                              gone
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass
from math import inf
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopsum.protocol.rtt import RoundTrips
from hopsum.protocol.window import Window
from hopsum.protocol.worker_state import Timing, WorkerStatistics
from hopsum.wire import Flag
from hopsum.wire._layout import HOPSUM_FIELDS

_FLAGS_AT: Final = next(field.offset_bits // 8 for field in HOPSUM_FIELDS if field.name == "flags")


@dataclass(slots=True)
class Awaited:
    """A position that was opened for sending and has no result yet."""

    sent: int = 0
    """Transmissions so far."""
    first_sent_at: float = 0.0
    timeout_at: float = inf
    """When it is a loss that no result has come."""


class Sending(NamedTuple):
    """One transmission of a position."""

    position: int
    flush: bool


class Outbox:
    """What one worker has open."""

    def __init__(self, slots: int, timing: Timing, statistics: WorkerStatistics) -> None:
        self._timing, self._statistics = timing, statistics
        self.awaited: dict[int, Awaited] = {}
        self._waiting: list[int] = []
        """Heap of positions to be sent for the first time."""
        self._again: deque[int] = deque()
        self._timers: list[tuple[float, int, int]] = []
        """Heap of (due, position, transmissions when it was set); an entry that no longer fits is void."""
        self._on_the_way = 0
        self._round_trips = RoundTrips(timing.retransmit_s, timing.retransmit_least_s, timing.retransmit_max_s)
        self._window = Window(slots)
        statistics.window = slots

    @property
    def timeout_s(self) -> float:
        """Return how long a result is waited for now."""
        return self._round_trips.timeout_s

    def open(self, position: int) -> None:
        """Let a position be sent, unless it is open."""
        if position not in self.awaited:
            self.awaited[position] = Awaited()
            heapq.heappush(self._waiting, position)

    def settle(self, position: int, now: float | None) -> None:
        """Forget a position that has its result: from the switch at `now`, or from elsewhere (None)."""
        awaited = self.awaited.pop(position, None)
        if awaited is None or not awaited.sent:
            return
        self._on_the_way -= 1
        if now is None:
            return
        once = awaited.first_sent_at if awaited.sent == 1 else None
        if once is not None:
            self._round_trips.measure(now - once)
            self._statistics.srtt_s = self._round_trips.srtt_s
        self._window.grow(once)
        self._statistics.window = self._window.size

    def handle_timer(self, now: float) -> list[int]:
        """Queue what is due again, and return the positions whose timeout it was."""
        late = []
        while self._timers and self._timers[0][0] <= now:
            _, position, sent = heapq.heappop(self._timers)
            if not self._is_set(position, sent):
                continue
            self._again.append(position)
            if self.awaited[position].timeout_at <= now:
                late.append(position)
        if late:
            self._window.shrink(now)
            self._statistics.window = self._window.size
        return late

    def take(self, now: float) -> list[Sending]:
        """Return what is to be sent now, in order, and set its timers."""
        sendings = []
        while self._again:
            position = self._again.popleft()
            if position in self.awaited:
                sendings.append(self._send(position, now))
        while self._waiting:
            if self._waiting[0] not in self.awaited:  # the result came first (W3)
                heapq.heappop(self._waiting)
            elif self._on_the_way < self._window.size or self._waiting[0] == self.oldest():
                sendings.append(self._send(heapq.heappop(self._waiting), now))
            else:
                break
        return sendings

    def timer(self) -> float | None:
        """Return when `handle_timer` is due, or None."""
        while self._timers and not self._is_set(*self._timers[0][1:]):
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def oldest(self) -> int:
        """Return the oldest position that is open. There must be one."""
        return min(self.awaited)

    def clear(self) -> None:
        """Forget everything."""
        self._on_the_way = 0
        for pending in (self.awaited, self._waiting, self._again, self._timers):
            pending.clear()

    def _send(self, position: int, now: float) -> Sending:
        awaited, timing, statistics = self.awaited[position], self._timing, self._statistics
        awaited.sent += 1
        if awaited.sent == 1:
            statistics.updates += 1
            self._on_the_way += 1
            awaited.first_sent_at = now
        else:
            statistics.retransmits += 1
        flush_at = inf if timing.flush_after_s is None else awaited.first_sent_at + timing.flush_after_s
        awaited.timeout_at = now + timing.wait_s(awaited.sent, self._round_trips.timeout_s)
        due = awaited.timeout_at if flush_at <= now else min(awaited.timeout_at, flush_at)
        heapq.heappush(self._timers, (due, position, awaited.sent))
        statistics.flushes += flush_at <= now
        return Sending(position, flush_at <= now)

    def _is_set(self, position: int, sent: int) -> bool:
        awaited = self.awaited.get(position)
        return awaited is not None and awaited.sent == sent


def with_flush(datagram: NDArray[np.uint8]) -> memoryview:
    """Return an UPDATE, uint8[bytes], with the FLUSH flag: a read-only copy."""
    copy = bytearray(datagram)
    copy[_FLAGS_AT] |= Flag.FLUSH
    return memoryview(copy).toreadonly()
