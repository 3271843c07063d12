# SPDX-License-Identifier: Apache-2.0
"""The stream of one worker: its submitted all-reduces, and the results that it holds, by position.

position        all-reduce     result                       counts as held
< stream.end    delivered      the caller's, or a store's   yes
< stream.end    void           none (generation_change.py)  yes, because no rank waits for it
< stream.end    in progress    in its `AllReduce`           if `AllReduce.held` is set
>= stream.end   not submitted  early, if it has arrived     if it has arrived

Results up to two windows ahead are kept as early. A result further ahead is treated as lost.

Positions are opened for sending by W1 (in each slot the lowest that is not held) and by R2: all-reduces begin in the
order of the stream, the next one when earlier ones are proved as the policy requires (repair.py). Chunks without a
payload, and all later chunks, wait for the payload.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from hopsum.protocol.decided_ranges import DecidedRanges
from hopsum.protocol.repair import PeerRepair
from hopsum.protocol.retransmit_queue import RetransmitQueue
from hopsum.protocol.stream import Stream
from hopsum.protocol.worker_state import (
    AllReduce,
    AllReduceEvent,
    IgnoredPackets,
    Membership,
    PositionResult,
    WorkerStatistics,
)
from hopsum_wire import Drop, Header, Kind, WireError, down_bytes


class StreamState:
    """The only writer of results into all-reduces, and the only place that opens positions for sending.

    Args:
        repair: receives delivered all-reduces, and decides which may begin (R2).
        statistics, ignored: count received packets.
    """

    def __init__(
        self, stream: Stream, repair: PeerRepair, statistics: WorkerStatistics, ignored: IgnoredPackets
    ) -> None:
        self.stream, self.repair = stream, repair
        self._statistics, self._ignored_packets = statistics, ignored
        self.events: deque[AllReduceEvent] = deque()
        """The pending events for the caller."""
        self.active: list[AllReduce] = []
        """All-reduces in progress, in the order of the stream."""
        self.early: dict[int, PositionResult] = {}
        """Results of all-reduces that are not submitted yet."""
        self.decided: DecidedRanges | None
        """The positions that a generation change has decided, while some may lack here. They are not sent (E3)."""
        self.open_end: int
        """Only positions before it may be opened. All-reduces after it are held back (R2)."""
        self.open_position: NDArray[np.int64]
        """By slot, the lowest position that is not held: the only one of the slot that may be sent (W1)."""
        self._own: Membership
        self._queue: RetransmitQueue

    def enter(self, own: Membership, decided: DecidedRanges, queue: RetransmitQueue) -> None:
        """Begin a generation: reset the open positions, and forget early results of the previous generation."""
        self.early.clear()
        first, slots = self.delivered_to, self.stream.slots
        self.decided = decided if decided.end > first else None
        self._own, self._queue, self.open_end = own, queue, first
        # The first position from `first` on that is congruent to the slot.
        self.open_position = first + (np.arange(slots, dtype=np.int64) - first) % slots

    @property
    def delivered_to(self) -> int:
        """Return the position before which all all-reduces are delivered."""
        return self.active[0].first if self.active else self.stream.end

    def find(self, position: int) -> AllReduce | None:
        """Return the all-reduce in progress that a position belongs to, or None."""
        for reduce in self.active:
            if reduce.first <= position < reduce.end:
                return reduce
        return None

    def is_held(self, position: int, reduce: AllReduce | None) -> bool:
        """Say whether the result is held. `reduce` is its all-reduce, None if delivered or not submitted."""
        if reduce is not None:
            return bool(reduce.held[position - reduce.first])
        return position < self.stream.end or position in self.early

    def missing_before(self, position: int, held: int, most: int) -> list[int]:
        """Return an awaited position and the missing ones of its slot before the round `held`, at most `most`."""
        last = min(self.stream.end, self.stream.base + (held - 1) * self.stream.slots)
        later = range(position + self.stream.slots, last, self.stream.slots)[: most - 1]
        return [position, *(p for p in later if not self.is_held(p, self.find(p)))]

    def undelivered_result(self, position: int) -> PositionResult | None:
        """Return the held result of an all-reduce that is not delivered, or None."""
        reduce = self.find(position)
        return self.early.get(position) if reduce is None else reduce.find(position)

    # ---- results ------------------------------------------------------------------------------------

    def position_of(self, header: Header, values: bytes | memoryview) -> int:
        """Return the stream position of a reply to this worker: which one a RESULT is of (W3).

        Raises:
            WireError: the reply is of another generation or for another rank, or one of its fields is out of range.
        """
        own = self._own
        if header.kind not in (Kind.RESULT, Kind.STALE, Kind.STATE):
            raise WireError(Drop.BAD_KIND, f"{Kind(header.kind).name} from the switch")
        # A RESULT of another generation has the same slots and rounds, and other contributors.
        if header.generation != own.generation:
            raise WireError(Drop.UNKNOWN_GENERATION, f"{Kind(header.kind).name} of generation {header.generation}")
        if header.worker != own.rank:
            raise WireError(Drop.UNKNOWN_WORKER, f"{Kind(header.kind).name} for rank {header.worker}")
        if len(values) != (down_bytes(header.op) if header.kind == Kind.RESULT else 0):
            raise WireError(Drop.BAD_LENGTH, f"{Kind(header.kind).name} with {len(values)} payload bytes")
        # A STATE of an empty slot has no contributors; a RESULT has at least one.
        least = 0 if header.kind == Kind.STATE else 1
        if not least <= header.contributors < 1 << own.workers:
            raise WireError(Drop.BAD_VALUE, f"contributors {header.contributors:#x} of {own.workers} workers")
        if header.slot >= own.slots:
            raise WireError(Drop.BAD_SLOT, f"slot {header.slot} of {own.slots}")
        try:
            return self.stream.position(header.slot, header.round)
        except ValueError as outside:
            raise WireError(Drop.BAD_ROUND, str(outside)) from outside

    def accept(self, position: int, result: PositionResult, now: float, *, from_peer: bool = False) -> None:
        """Process the result of a position (W3): store it, or count a duplicate, another operation, or too far ahead.

        A stored result opens the next position of its slot. The last one of an all-reduce delivers the all-reduce.
        """
        reduce = self.find(position)
        if self.is_held(position, reduce):
            self._statistics.duplicates += 1
        elif reduce is not None:
            if result.op == reduce.op:
                self._hold(reduce, position, result, now, from_peer=from_peer)
            else:
                self._refuse_op(result, reduce)
        elif position < self.stream.end + 2 * self.stream.slots:
            # The caller may reuse the buffer of the datagram.
            self.early[position] = result._replace(values=bytes(result.values))
            self._open_slot(position)
        else:
            self._statistics.ignored[Drop.BAD_ROUND] += 1
            self._ignored_packets.note(f"RESULT far ahead ({self.stream.place(position)})")

    def on_submitted(self, reduce: AllReduce, now: float) -> None:
        """Add an all-reduce: store its early results, then open its positions."""
        self.active.append(reduce)
        for position in sorted(self.early):
            if position >= self.stream.end:
                break
            result = self.early.pop(position)
            if result.op == reduce.op:
                self._hold(reduce, position, result, now)
            else:
                self._refuse_op(result, reduce)
                slot = position % self.stream.slots
                self.open_position[slot] = min(self.open_position[slot], position)
        self.release()

    def deliver(self, now: float) -> None:
        """Move complete all-reduces from `active` to `events`, and keep their results for peers, if there are any."""
        for reduce in tuple(self.active):
            if reduce.missing:
                continue
            self.active.remove(reduce)
            self.events.append(reduce.done())
            if self.repair.peers:
                self.repair.on_delivered(reduce, self.delivered_to, now)
                self.release()

    def _hold(
        self, reduce: AllReduce, position: int, result: PositionResult, now: float, *, from_peer: bool = False
    ) -> None:
        """Store a missing result, and open the next position of its slot."""
        reduce.hold(position, result)
        self._statistics.results += 1
        self._statistics.repaired += from_peer
        self._queue.mark_acked(position, None if from_peer else now)
        self.repair.requests.mark_acked(position, now)
        self._open_slot(position)
        if not reduce.missing:
            self.deliver(now)

    def _refuse_op(self, result: PositionResult, reduce: AllReduce) -> None:
        self._statistics.ignored[Drop.OP_MISMATCH] += 1
        self._ignored_packets.note(f"RESULT of op {result.op} where this rank submitted op {reduce.op}")

    # ---- sending ------------------------------------------------------------------------------------

    def release(self) -> None:
        """Open positions with payloads of the next all-reduces, as far as R2 permits."""
        if self.decided is not None and self.decided.end <= self.delivered_to:
            self.decided = None
        for reduce, may_open in zip(self.active, self.may_open(), strict=True):
            if not may_open:
                return
            open_end, filled_end = self.open_end, reduce.first + reduce.ready
            if open_end < filled_end:
                self.open_end = filled_end
                at_hand = (open_end <= self.open_position) & (self.open_position < filled_end)
                self._open_many(reduce, self.open_position[at_hand])
            if filled_end < reduce.end:
                return

    def may_open(self) -> list[bool]:
        """Return for each all-reduce in progress whether R2 permits its start, or has permitted it."""
        found, size = [], 0
        for before, reduce in enumerate(self.active):
            begun = reduce.first < self.open_end
            found.append(begun or self.repair.may_open(before, size))
            size += reduce.results.nbytes
        return found

    def held_back(self) -> AllReduce | None:
        """Return the all-reduce whose first payload only rule R2 holds back, or None."""
        for reduce in self.active:
            if reduce.end > self.open_end:
                return reduce if reduce.ready and reduce.first >= self.open_end else None
        return None

    def next_open(self, slot: int) -> int | None:
        """Move a slot to its lowest position that is not held. Return it if it may be opened."""
        position = int(self.open_position[slot])
        while self.is_held(position, self.find(position)):
            position += self.stream.slots
        self.open_position[slot] = position
        # E3: a decided position is fetched from a peer and never sent to the switch.
        if self.decided is not None and self.decided.covers(np.array([position]))[0]:
            return None
        return position if position < self.open_end else None

    def _open_slot(self, position: int) -> None:
        """Open the next position of a position's slot, if there is one."""
        following = self.next_open(position % self.stream.slots)
        if following is not None:
            self._queue.open(following)

    def _open_many(self, reduce: AllReduce, positions: NDArray[np.int64]) -> None:
        """Open the lowest positions of slots, as far as `reduce` has payloads."""
        # Slot by slot after a generation change: positions may be held, delivered or decided (E3).
        are_new = self.decided is None and not np.count_nonzero(positions < reduce.first)
        if are_new and not np.count_nonzero(reduce.held[positions - reduce.first]):
            self._queue.open_many(positions)
            return
        for position in positions.tolist():
            self._open_slot(position)
