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

from hopsum.protocol.batch import ResultRun
from hopsum.protocol.repair import PeerRepair
from hopsum.protocol.retransmit_queue import RetransmitQueue
from hopsum.protocol.send_scheduler import SendScheduler
from hopsum.protocol.stream_state import StreamState
from hopsum.protocol.worker_state import (
    AllReduce,
    AllReduceDone,
    AllReduceFailed,
    AllReducePart,
    IgnoredPackets,
    WorkerStatistics,
)
from hopsum_wire import Drop, Header

AllReduceEvent = AllReduceDone | AllReducePart | AllReduceFailed
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

    def accept_runs(
        self, runs: list[ResultRun], positions: NDArray[np.int64], now: float, *, in_order: bool = False
    ) -> None:
        """Take results of the switch.

        `positions` are in arrival order. With `in_order` each is the lowest of its slot.
        """
        for run in runs:
            run.reduce.hold_many(run.positions, run.contributors, run.values)
        self._statistics.results += len(positions)
        self._queue.settle_many(positions, now)
        if self._repair is not None:
            self._repair.settle(positions.tolist())
        self.scheduler.open_slots(positions % self._state.stream.slots, positions if in_order else None)
        for run in runs:
            self._deliver(run.reduce, now)

    def deliver(self, now: float) -> None:
        """Deliver the all-reduces in progress that are complete, and the parts of others that are."""
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
        """Deliver an all-reduce if it is complete, else its next part if that is."""
        if reduce.missing > reduce.tell_at or reduce not in self._state.active:
            return
        if reduce.missing:
            if (part := reduce.next_part()) is not None:
                self._events.append(part)
            return
        self._state.active.remove(reduce)
        self._events.append(reduce.done())
        if self._repair is not None:
            self._repair.store.keep(reduce, now)
            self._repair.announce(self._state.delivered_to)
            self.scheduler.release()

    def _refuse_op(self, header: Header, reduce: AllReduce) -> None:
        self._statistics.ignored[Drop.OP_MISMATCH] += 1
        self._ignored_packets.note(f"RESULT of op {header.op} where this rank submitted op {reduce.op}")
