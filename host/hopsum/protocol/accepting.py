# SPDX-License-Identifier: Apache-2.0
"""What becomes of a result that a worker may accept: it is held, it opens what waited for it, it is delivered.

Rules
    W3  The first result of a position stays. One that comes before its all-reduce is submitted is kept, up to two
        windows ahead; what is further ahead is treated as lost.
    W5  Delivery comes only from accepted (contributors, values).
    R2  What is delivered is kept for peers, and they are told.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from hopsum.protocol.batch import Part
from hopsum.protocol.ledger import Ledger
from hopsum.protocol.opening import Opening
from hopsum.protocol.outbox import Outbox
from hopsum.protocol.repair import Repair
from hopsum.protocol.worker_state import AllReduce, AllReduceDone, AllReduceFailed, Unhelpful, WorkerStatistics
from hopsum_wire import Drop, Header

Events = deque[AllReduceDone | AllReduceFailed]


class Accepting:
    """The only one to put results into a ledger, in one epoch."""

    def __init__(
        self,
        rank: int,
        ledger: Ledger,
        outbox: Outbox,
        repair: Repair | None,
        told: tuple[Events, WorkerStatistics, Unhelpful],
    ) -> None:
        self._rank, self._ledger, self._outbox, self._repair = rank, ledger, outbox, repair
        self._events, self._statistics, self._unhelpful = told
        self.opening = Opening(ledger, outbox, repair)

    def result(
        self, header: Header, values: bytes | memoryview, position: int, now: float, *, from_peer: bool = False
    ) -> None:
        """Take the RESULT of a position, from the switch or as a peer has it."""
        ledger = self._ledger
        reduce = ledger.find(position)
        if ledger.is_held(position, reduce) and not ledger.is_zeroed(position, reduce):
            self._statistics.duplicates += 1
        elif reduce is not None:
            if header.op == reduce.op:
                self._hold(reduce, header, values, position, now, from_peer=from_peer)
            else:
                self._refuse_op(header, reduce)
        elif position < ledger.stream.end + 2 * ledger.stream.slots:
            ledger.early[position] = (header, bytes(values))
            self.opening.slot(header.slot)
        else:
            self._statistics.ignored[Drop.BAD_ROUND] += 1
            self._unhelpful.note(f"RESULT far ahead (slot {header.slot}, round {header.round})")

    def parts(self, parts: list[Part], positions: NDArray[np.int64], now: float, *, in_order: bool = False) -> None:
        """Take results of the switch, whose `positions` are as they came; `in_order`: lowest of each slot."""
        for part in parts:
            part.reduce.hold_many(part.positions, part.contributors, part.values)
        self._statistics.results += len(positions)
        self._outbox.settle_many(positions, now)
        if self._repair is not None:
            self._repair.settle(positions.tolist())
        self.opening.slots(positions % self._ledger.stream.slots, positions if in_order else None)
        for part in parts:
            self._deliver(part.reduce, now)

    def zeros(self, position: int, now: float) -> None:
        """Take zeros in place of a result of an all-reduce in progress."""
        reduce = self._ledger.find(position)
        assert reduce is not None, "what is awaited belongs to an all-reduce in progress"
        reduce.zero(position)
        self._statistics.lost += 1
        self._go_on(reduce, position, now, from_peer=True)

    def submitted(self, reduce: AllReduce, now: float) -> None:
        """Let the slots of a new all-reduce go on, after it took the results that came before it."""
        ledger = self._ledger
        for position in sorted(p for p in ledger.early if p < ledger.stream.end):
            header, values = ledger.early.pop(position)
            if header.op == reduce.op:
                self._hold(reduce, header, values, position, now)
            else:
                self._refuse_op(header, reduce)
                ledger.open_position[header.slot] = min(ledger.open_position[header.slot], position)
        self.opening.release()

    def _hold(
        self, reduce: AllReduce, header: Header, values: bytes | memoryview, position: int, now: float,
        *, from_peer: bool = False,
    ) -> None:  # fmt: skip
        reduce.hold(position, header.contributors, values)
        self._statistics.results += 1
        self._statistics.repaired += from_peer
        self._go_on(reduce, position, now, from_peer=from_peer)

    def _go_on(self, reduce: AllReduce, position: int, now: float, *, from_peer: bool) -> None:
        """Open what a result, or zeros in its place, allows; deliver what is complete."""
        self._outbox.settle(position, None if from_peer else now)
        if self._repair is not None:
            self._repair.settle((position,))
        self.opening.slot(position % self._ledger.stream.slots)
        self._deliver(reduce, now)

    def _deliver(self, reduce: AllReduce, now: float) -> None:
        """Deliver an all-reduce if it is complete."""
        if reduce.missing or reduce not in self._ledger.active:
            return
        self._ledger.active.remove(reduce)
        self._events.append(reduce.done(self._rank))
        if self._repair is not None:
            self._repair.store.keep(reduce, now)
            self._repair.announce(self._ledger.delivered_to)
            self.opening.release()

    def _refuse_op(self, header: Header, reduce: AllReduce) -> None:
        self._statistics.ignored[Drop.OP_MISMATCH] += 1
        self._unhelpful.note(f"RESULT of op {header.op} where this rank submitted op {reduce.op}")
