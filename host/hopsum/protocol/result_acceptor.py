# SPDX-License-Identifier: Apache-2.0
"""The acceptor of results: it stores a result, opens the positions that waited for it, and delivers all-reduces.

Rules
    W3  The first result of a position stays. One that comes before its all-reduce is submitted is kept, up to two
        windows ahead. One further ahead is treated as lost.
    W5  Delivery comes only from accepted (contributors, values).
    R2  Delivered results are kept for peers, and peers are notified.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from hopsum.protocol.repair import PeerRepair
from hopsum.protocol.retransmit_queue import RetransmitQueue
from hopsum.protocol.stream import Stream
from hopsum.protocol.stream_state import StreamState
from hopsum.protocol.worker_state import (
    AllReduce,
    AllReduceDone,
    AllReduceFailed,
    IgnoredPackets,
    Membership,
    WorkerStatistics,
)
from hopsum_wire import Drop, Header, Kind, WireError, down_bytes

# The validation of replies from the switch.


def validate_reply(header: Header, values: bytes | memoryview, own: Membership, stream: Stream) -> int:
    """Return the stream position that a reply to this worker names.

    Raises:
        WireError: the reply is of another generation or for another rank, or one of its fields is out of range.
    """
    if header.kind not in (Kind.RESULT, Kind.STALE, Kind.STATE):
        raise WireError(Drop.BAD_KIND, f"{Kind(header.kind).name} from the switch")
    # A RESULT of another generation has the same slots and rounds, and other contributors.
    if header.generation != own.generation:
        raise WireError(Drop.UNKNOWN_GENERATION, f"{Kind(header.kind).name} of generation {header.generation}")
    if header.worker != own.rank:
        raise WireError(Drop.UNKNOWN_WORKER, f"{Kind(header.kind).name} for rank {header.worker}")
    if len(values) != (down_bytes(header.op) if header.kind == Kind.RESULT else 0):
        raise WireError(Drop.BAD_LENGTH, f"{Kind(header.kind).name} with {len(values)} payload bytes")
    # A STATE of an empty slot has no contributors. A RESULT without any would be no sum.
    least = 0 if header.kind == Kind.STATE else 1
    # A bit beyond the workers would name a rank that does not exist.
    if not least <= header.contributors < 1 << own.workers:
        raise WireError(Drop.BAD_VALUE, f"contributors {header.contributors:#x} of {own.workers} workers")
    if header.slot >= own.slots:
        raise WireError(Drop.BAD_SLOT, f"slot {header.slot} of {own.slots}")
    try:
        return stream.position(header.slot, header.round)
    except ValueError as outside:
        raise WireError(Drop.BAD_ROUND, str(outside)) from outside


# The scheduler of a worker's sends: it decides which stream positions enter the retransmission queue, and when.
#
# Rules
#     W1  Of each slot only the lowest position that is not held, whatever all-reduce it belongs to (N3).
#     R2  All-reduces begin in the order of the stream, the next one when those before it are proved as far as the
#         policy asks for (repair.py), without peers at once. Chunks without a payload yet, and all behind them, wait
#         for it.


class SendScheduler:
    """The only place that opens positions of a worker for sending."""

    def __init__(self, state: StreamState, queue: RetransmitQueue, repair: PeerRepair | None) -> None:
        self._state, self._queue, self._repair = state, queue, repair

    def open_slot(self, slot: int) -> None:
        """Open the position that a slot may send now, if there is one."""
        position = self._state.next_open(slot)
        if position is not None:
            self._queue.open(position)

    def release(self) -> None:
        """Open what has payloads of the next all-reduces, as far as those before them are proved."""
        state = self._state
        if state.decided is not None and state.decided.end <= state.delivered_to:
            state.decided = None
        size = 0
        for before, reduce in enumerate(state.active):
            begun, open_end = reduce.first < state.open_end, state.open_end
            # R2
            if not begun and self._repair is not None and not self._repair.may_open(before, size):
                return
            size += reduce.results.nbytes
            if open_end < reduce.filled_end:
                state.open_end = reduce.filled_end
                at_hand = (open_end <= state.open_position) & (state.open_position < state.open_end)
                self._open_many(reduce, state.open_position[at_hand])
            if reduce.filled_end < reduce.end:
                return

    def may_open(self) -> list[bool]:
        """Say of each all-reduce in progress whether R2 lets it begin, or has let it."""
        found, size = [], 0
        for before, reduce in enumerate(self._state.active):
            begun = reduce.first < self._state.open_end
            found.append(begun or self._repair is None or self._repair.may_open(before, size))
            size += reduce.results.nbytes
        return found

    def _open_many(self, reduce: AllReduce, positions: NDArray[np.int64]) -> None:
        """Open the lowest positions of slots that nothing had opened, as far as `reduce` has payloads."""
        # After a generation change they may be held or delivered already, or are to be fetched (E3): then slot by slot.
        are_new = self._state.decided is None and bool((positions >= reduce.first).all())
        if are_new and not reduce.held[positions - reduce.first].any():
            self._queue.open_many(positions)
            return
        for position in positions.tolist():
            self.open_slot(position % self._state.stream.slots)


AllReduceEvent = AllReduceDone | AllReduceFailed
Events = deque[AllReduceEvent]


class ResultAcceptor:
    """The only writer of results into a worker's stream state, in one generation."""

    def __init__(
        self,
        state: StreamState,
        queue: RetransmitQueue,
        repair: PeerRepair | None,
        told: tuple[Events, WorkerStatistics, IgnoredPackets],
    ) -> None:
        self._state, self._queue, self._repair = state, queue, repair
        self._events, self._statistics, self._ignored_packets = told
        self.scheduler = SendScheduler(state, queue, repair)

    def accept(
        self, header: Header, values: bytes | memoryview, position: int, now: float, *, from_peer: bool = False
    ) -> None:
        """Take the RESULT of a position, from the switch or as a peer has it."""
        state = self._state
        reduce = state.find(position)
        if state.is_held(position, reduce):
            self._statistics.duplicates += 1
        elif reduce is not None:
            if header.op == reduce.op:
                self._hold(reduce, header, values, position, now, from_peer=from_peer)
            else:
                self._refuse_op(header, reduce)
        elif position < state.stream.end + 2 * state.stream.slots:
            state.early[position] = (header, bytes(values))
            self.scheduler.open_slot(header.slot)
        else:
            self._statistics.ignored[Drop.BAD_ROUND] += 1
            self._ignored_packets.note(f"RESULT far ahead (slot {header.slot}, round {header.round})")

    def deliver(self, now: float) -> None:
        """Deliver the all-reduces in progress that are complete."""
        for reduce in list(self._state.active):
            self._deliver(reduce, now)

    def on_submitted(self, reduce: AllReduce, now: float) -> None:
        """Let the slots of a new all-reduce go on, after it took the results that came before it."""
        state = self._state
        for position in sorted(p for p in state.early if p < state.stream.end):
            header, values = state.early.pop(position)
            if header.op == reduce.op:
                self._hold(reduce, header, values, position, now)
            else:
                self._refuse_op(header, reduce)
                state.open_position[header.slot] = min(state.open_position[header.slot], position)
        self.scheduler.release()

    def _hold(
        self, reduce: AllReduce, header: Header, values: bytes | memoryview, position: int, now: float,
        *, from_peer: bool = False,
    ) -> None:  # fmt: skip
        reduce.hold(position, header.contributors, values)
        self._statistics.results += 1
        self._statistics.repaired += from_peer
        self._go_on(reduce, position, now, from_peer=from_peer)

    def _go_on(self, reduce: AllReduce, position: int, now: float, *, from_peer: bool) -> None:
        """Open what a result allows. Deliver what is complete."""
        self._queue.settle(position, None if from_peer else now)
        if self._repair is not None:
            self._repair.settle((position,))
        self.scheduler.open_slot(position % self._state.stream.slots)
        self._deliver(reduce, now)

    def _deliver(self, reduce: AllReduce, now: float) -> None:
        """Deliver an all-reduce if it is complete."""
        if reduce.missing or reduce not in self._state.active:
            return
        self._state.active.remove(reduce)
        self._events.append(reduce.done())
        if self._repair is not None:
            self._repair.store.keep(reduce, now)
            self._repair.on_delivered(self._state.delivered_to, reduce.results.nbytes, now)
            self.scheduler.release()

    def _refuse_op(self, header: Header, reduce: AllReduce) -> None:
        self._statistics.ignored[Drop.OP_MISMATCH] += 1
        self._ignored_packets.note(f"RESULT of op {header.op} where this rank submitted op {reduce.op}")
