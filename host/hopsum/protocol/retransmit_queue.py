# SPDX-License-Identifier: Apache-2.0
"""The retransmission queue of a worker: the times of first transmission, retransmission and FLUSH of open positions.

Positions are first sent in the order of the stream, while fewer than the window are in flight. The oldest one without a
result is always sent, because other ranks may wait for it. Due retransmissions are sent in the order of their times,
then of the stream. Of results that arrive at the same time, one round trip is measured: of the first chunk that was
sent once.

    state    input                               next     sent
    WAITING  room in the window, or the oldest   SENT     UPDATE
    SENT     timeout                             SENT     the same UPDATE; longer timeout
    SENT     flush_after_s has passed            FLUSHED  the same UPDATE with FLUSH
    FLUSHED  timeout                             FLUSHED  the same UPDATE with FLUSH
    any      result                              gone

By W1 a slot has at most one open position, so the state is in arrays by slot: a batch costs a few calls, and the next
timer is the minimum of an array.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopsum.protocol.congestion import CongestionWindow, RttEstimator
from hopsum.protocol.worker_state import AllReduce, Timing, WorkerStatistics
from hopsum_wire import Flag
from hopsum_wire._layout import HOPSUM_FIELDS

# FLUSH is the only bit of an UPDATE that changes between transmissions (W2, S8).
_FLAGS_AT: Final = next(field.offset_bits // 8 for field in HOPSUM_FIELDS if field.name == "flags")
# Larger than any position, so that `min` over the slots finds the oldest open one. 62 bits leave room to add.
NO_POSITION: Final = (1 << 62) - 1
"""The mark of a slot without an open position. It is larger than all positions."""


class QueueArrays(NamedTuple):
    """The arrays of a queue, [slots] each, for the compiled loop."""

    open: NDArray[np.int64]
    sent: NDArray[np.int64]
    first_sent_at: NDArray[np.float64]
    timeout_at: NDArray[np.float64]
    due_at: NDArray[np.float64]


class RetransmitQueue:
    """The open positions of one worker, with their timers."""

    def __init__(self, slots: int, timing: Timing, statistics: WorkerStatistics) -> None:
        self._timing, self._statistics = timing, statistics
        self._slots = slots
        self._open = np.full(slots, NO_POSITION, np.int64)
        self._sent = np.zeros(slots, np.int64)
        """By slot, the transmissions of the open position so far."""
        self._first_sent_at = np.zeros(slots)
        self._timeout_at = np.full(slots, inf)
        """By slot, the time after which a missing result counts as a loss."""
        self._due_at = np.full(slots, inf)
        """By slot, the time of the next transmission: the timeout, or FLUSH if that is earlier. Infinite while the
        datagram waits to be sent."""
        self.arrays: Final = QueueArrays(self._open, self._sent, self._first_sent_at, self._timeout_at, self._due_at)
        self.again: list[int] = []
        """Positions to retransmit. Some may have their result by now."""
        self.in_flight = 0
        """The number of open positions that were sent."""
        self.measured_at = -inf
        """The time of the latest measured round trip."""
        least_s = timing.retransmit_min_s or timing.retransmit_s
        self.rtt = RttEstimator(timing.retransmit_s, least_s, timing.retransmit_max_s)
        self.congestion = CongestionWindow(slots)

    @property
    def oldest(self) -> int | None:
        """Return the oldest open position, or None."""
        oldest = int(self._open.min())
        return None if oldest == NO_POSITION else oldest

    def sent(self, position: int) -> int:
        """Return the number of transmissions of a position, 0 if it is not open."""
        slot = position % self._slots
        return int(self._sent[slot]) if self._open[slot] == position else 0

    def open(self, position: int) -> None:
        """Open a position for sending, unless it is open."""
        slot = position % self._slots
        if self._open[slot] != position:
            self._open[slot], self._sent[slot], self._due_at[slot] = position, 0, inf

    def open_many(self, positions: NDArray[np.int64]) -> None:
        """Open positions of different slots for sending, unless they are open."""
        slots = positions % self._slots
        new = self._open[slots] != positions
        slots = slots[new]
        self._open[slots], self._sent[slots], self._due_at[slots] = positions[new], 0, inf

    def mark_acked(self, position: int, now: float | None) -> None:
        """Close a position that has its result. A result of the switch updates round trip and congestion window.

        Args:
            now: the time of the switch's result. None: the result is from a peer.
        """
        slot = position % self._slots
        if self._open[slot] != position:
            return
        self._open[slot], self._due_at[slot] = NO_POSITION, inf
        sent = int(self._sent[slot])
        # A result may come for a position that was never sent: another rank's UPDATE completed a sum with a quorum.
        self.in_flight -= sent > 0
        if not sent or now is None:
            return
        # Karn: the round trip of a retransmitted chunk is ambiguous.
        once_sent_at = float(self._first_sent_at[slot]) if sent == 1 else None
        # One measurement for results that arrive together: they waited for the same event.
        if once_sent_at is not None and now != self.measured_at:
            self.measured_at = now
            self.rtt.update(now - once_sent_at)
        self.congestion.on_ack(once_sent_at)

    def handle_timer(self, now: float) -> list[int]:
        """Queue due retransmissions for `pop_due`. Return the positions whose timeout has passed, which is a loss."""
        if self._due_at.min() > now:
            return []
        due = np.flatnonzero(self._due_at <= now)
        # lexsort sorts by its last key first: by time, then by position.
        due = due[np.lexsort((self._open[due], self._due_at[due]))]
        # Infinite until the datagram is sent: `timer` must not fire again meanwhile.
        self._due_at[due] = inf
        self.again += self._open[due].tolist()
        late: list[int] = self._open[due[self._timeout_at[due] <= now]].tolist()
        if late:
            self.congestion.on_loss(now)
        return late

    def pop_due(self, now: float) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Pop the positions to send now, and set their timers. The second array marks positions with FLUSH.

        Retransmissions come first, in the order of their times, then new positions in the order of the stream.
        """
        positions = self._first_time()
        if self.again:
            again = np.array(self.again, np.int64)
            self.again = []
            # Retransmissions go first, because other ranks may wait for them.
            positions = np.concatenate([again[self._open[again % self._slots] == again], positions])
        return positions, self._send(positions, now) if positions.size else np.zeros(0, np.bool_)

    def timer(self) -> float:
        """Return the time at which `handle_timer` is due, infinite without one."""
        return float(self._due_at.min())

    def clear(self) -> None:
        """Close all positions. Round trip and congestion window stay."""
        self.in_flight, self.again = 0, []
        self._open[:], self._due_at[:] = NO_POSITION, inf

    def _first_time(self) -> NDArray[np.int64]:
        """Return the positions for first transmission that the window permits, in order."""
        waiting = np.sort(self._open[(self._sent == 0) & (self._open != NO_POSITION)])
        room = self.congestion.size - self.in_flight
        # Never hold back the oldest position: every rank may wait for it, and no result would reopen the window.
        if room <= 0 and waiting.size and waiting[0] == self.oldest:
            room = 1
        return waiting[: max(room, 0)]

    def _send(self, positions: NDArray[np.int64], now: float) -> NDArray[np.bool_]:
        """Count transmissions and set their timers. Return the mask of those with FLUSH."""
        slots, timing, statistics = positions % self._slots, self._timing, self._statistics
        sent = self._sent[slots] + 1
        self._sent[slots] = sent
        first = slots[sent == 1]
        self._first_sent_at[first] = now
        self.in_flight += len(first)
        statistics.updates += len(first)
        statistics.retransmits += len(slots) - len(first)
        # A dict of the few distinct numbers of transmissions: the back-off is computed once for each.
        wait_s = {times: timing.wait_s(times, self.rtt.rto_s) for times in set(sent.tolist())}
        timeout_at = now + np.array([wait_s[times] for times in sent.tolist()])
        self._timeout_at[slots] = self._due_at[slots] = timeout_at
        if timing.flush_after_s is None:
            return np.zeros(len(slots), np.bool_)
        flush_at = self._first_sent_at[slots] + timing.flush_after_s
        flush: NDArray[np.bool_] = flush_at <= now
        # S8: before FLUSH the earlier of FLUSH and timeout is due, afterwards only the timeout.
        self._due_at[slots] = np.where(flush, timeout_at, np.minimum(timeout_at, flush_at))
        statistics.flushes += int(np.count_nonzero(flush))
        return flush


# UPDATEs as GSO segments: datagrams of equal size, one a row, which a link sends in one call.
#
# positions                                     rows
# consecutive, of one all-reduce                a view of its stamped datagrams
# of one all-reduce, with gaps (after losses)   a copy
# with FLUSH                                    a copy: the flag is not among the bytes that W2 freezes


def segments_of(
    positions: NDArray[np.int64], flush: NDArray[np.bool_], active: Sequence[AllReduce]
) -> Iterator[NDArray[np.uint8]]:
    """Yield read-only uint8[n, bytes], one datagram a row, in the order of `positions`.

    Args:
        positions: at least one, of all-reduces in `active`.
        flush: mask of the positions with FLUSH.
        active: all-reduces in progress, in the order of the stream.
    """
    owner = np.searchsorted([reduce.first for reduce in active], positions, side="right") - 1
    cuts = np.flatnonzero((owner[1:] != owner[:-1]) | (flush[1:] != flush[:-1])) + 1
    for start, stop in zip([0, *cuts.tolist()], [*cuts.tolist(), len(positions)], strict=True):
        reduce = active[owner[start]]
        yield _rows(reduce.datagrams, positions[start:stop] - reduce.first, flush=bool(flush[start]))


def _rows(datagrams: NDArray[np.uint8], index: NDArray[np.int64], *, flush: bool) -> NDArray[np.uint8]:
    if not flush and index[-1] - index[0] == len(index) - 1 and (index[1:] - index[:-1] == 1).all():
        return datagrams[index[0] : index[-1] + 1]
    rows = datagrams[index]
    if flush:
        rows[:, _FLAGS_AT] |= np.uint8(Flag.FLUSH)
    rows.flags.writeable = False
    return rows
