# SPDX-License-Identifier: Apache-2.0
"""A worker of one job in one epoch, without I/O.

The caller owns sockets and clock. After every input (`submit`, `receive_datagram` or `receive_rows`, `receive_peer`,
`handle_timer`) it sends all of `trains_to_send` (or `datagrams_to_send`: the same) and `messages_to_peers`, drains
`next_event`, and waits for more or until `get_timer`.

`receive_datagram` is the reference. `receive_rows` does by the batch what most datagrams need (batch.py) and leaves the
worker as if they had come one by one at that time.

Rules
    N1-N4  One stream of positions; see stream.py.
    W1     Round r of a slot is sent only when all earlier rounds of that slot are held: one position per slot
           is outstanding, S in all, across all-reduces.
    W2     The bytes of a position never change: they are stamped once and sent from there. Only the FLUSH flag
           comes on top (S8). When and how often each is sent: see outbox.py.
    W3     A RESULT is accepted iff it names this epoch, the worker runs, and it lacks that (slot, round),
           sent or not. The first accepted stays.
    W4     A STALE counts only if it names exactly a round that the worker waits for; then only a peer can
           still have that result. Peers are asked if the worker has a RepairPolicy; without one the epoch is over.
    W5     Delivery and settlement come only from accepted (contributors, values).
    W6, R  After some unanswered retransmissions peers are asked as well; peers are served; see repair.py.
    P1, P2 Before a deadline the switch is asked whom it waits for; see inquiry.py.

Positions                                                   Worker
    state     meaning                                           RUN    sends, accepts, delivers
    QUEUED    an earlier round of its slot is not held, or      OVER   an all-reduce failed: sends nothing, accepts
              its all-reduce is held back (R2)                         nothing, serves peers; needs a new epoch
    AWAITED   open: sent, sent again, no result yet
    HELD      result accepted

    state     input                                 next        also
    QUEUED    the round before it in its slot held  AWAITED     to be sent when the window has room
    AWAITED   timer                                 AWAITED     to be sent again, same bytes, longer wait
    AWAITED   flush_after_s over                    AWAITED     to be sent again, same bytes, with FLUSH
    AWAITED   deadline near, it is the oldest       AWAITED     PROBE to be sent
    any       STATE                                 -           kept for the words of NoAnswer
    any       RESULT or FOUND that W3 accepts       HELD        next round of the slot opens; perhaps delivery
    AWAITED   STALE that names it, with peers       AWAITED     FETCH to a contributor named
    AWAITED   STALE that names it, without          -           OVER: RoundLost
    AWAITED   the same, on_lost="zero"              HELD        zeros, until a RESULT comes; next round opens
    AWAITED   GONE from all peers                   -           OVER: Expelled
    QUEUED    all-reduce before the last proved     AWAITED     all-reduce is no longer held back
    AWAITED   deadline of its all-reduce            -           OVER: NoAnswer

A RESULT may come before its all-reduce is submitted (the others were faster, quorum < n): it is kept, up to
two windows ahead, and counts when the all-reduce comes. What is further ahead is treated as lost: it is safe.
"""

from __future__ import annotations

from collections import deque
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hopsum.errors import AllReduceFailed, EpochOver
from hopsum.protocol.batch import ROWS_LEAST, Part, plain_part, sort_out
from hopsum.protocol.failures import expelled, held_back, no_answer, round_lost
from hopsum.protocol.inquiry import Inquiry
from hopsum.protocol.ledger import Ledger
from hopsum.protocol.opening import Opening
from hopsum.protocol.outbox import Outbox
from hopsum.protocol.peer_messages import PeerKind, PeerMessage
from hopsum.protocol.repair import AHEAD, Repair, RepairPolicy, as_result, peer_fault
from hopsum.protocol.replies import position_of
from hopsum.protocol.stream import Stream
from hopsum.protocol.trains import trains_of
from hopsum.protocol.worker_state import (
    AllReduce,
    AllReduceDone,
    AllReduceGone,
    Membership,
    Phase,
    Timing,
    Unhelpful,
    WorkerStatistics,
)
from hopsum.wire import HOPSUM_BYTES, Drop, Header, Kind, WireError, split_datagram
from hopsum.wire.datagrams import stamp_datagrams, update_template

__all__ = ["AllReduceDone", "AllReduceGone", "Membership", "RepairPolicy", "Timing", "Worker", "WorkerStatistics"]


class Worker:
    """One rank's side of the slot protocol.

    Args:
        repair: asks and serves peers; the caller carries their messages. None: there are no peers to ask.
        on_lost: what becomes of a chunk whose result the switch no longer has, where there are no peers. "fail" ends
            the epoch. "zero" takes zeros with contributors 0 and says so (`AllReduceDone.lost`): it exists to compare
            with published systems that do so, and leaves the ranks with different sums.

    Raises:
        ValueError: on_lost="zero" with peers: they would be served zeros.
    """

    def __init__(
        self,
        membership: Membership,
        timing: Timing | None = None,
        *,
        repair: RepairPolicy | None = None,
        on_lost: Literal["fail", "zero"] = "fail",
    ) -> None:
        if repair is not None and on_lost == "zero":
            raise ValueError('on_lost="zero" is for workers without peers: leave out one of repair and on_lost')
        self.membership = membership
        self.timing = timing or Timing()
        self.statistics = WorkerStatistics()
        self.phase = Phase.RUN
        self.stream = Stream(membership.slots)
        self.repair = None if repair is None else Repair(membership, self.stream, repair, self.statistics)
        """What it has to do with peers, if it has any; its LEAVE is the caller's to say."""
        self._zeroes = on_lost == "zero"
        self._ledger = Ledger(self.stream)
        self._outbox = Outbox(membership.slots, self.timing, self.statistics)
        self._opening = Opening(self._ledger, self._outbox, self.repair)
        self._inquiry = Inquiry(membership, self.timing, self.stream, self._outbox)
        self._events: deque[AllReduceDone | AllReduceGone] = deque()
        self._unhelpful = Unhelpful()
        self._failure: AllReduceFailed | None = None
        self._handles = 0

    # ---- inputs -------------------------------------------------------------------------------------

    def submit(self, op: int, payloads: NDArray[np.uint8], *, now: float, counts: ArrayLike | None = None) -> int:
        """Append an all-reduce to the stream and return its handle. All ranks submit the same sequence.

        Args:
            op: same for all chunks.
            payloads: uint8[chunks, up_bytes(op)], at least one chunk; copied.
            now: seconds on any clock that does not go back, the same in all calls.
            counts: [chunks] or a scalar, elements in use; 0 if left out.

        Raises:
            EpochOver: the epoch takes nothing more; continue in a new one. Nothing was submitted.
            WireError: unknown op, or payloads of another shape. Nothing was submitted.
        """
        if self._failure is not None:
            raise EpochOver(f"epoch {self.membership.epoch} is over: {self._failure}") from self._failure
        template = update_template(op=op, epoch=self.membership.epoch, worker=self.membership.rank)
        if not len(payloads):
            raise WireError(Drop.BAD_LENGTH, "an all-reduce has at least one chunk")
        self.stream.require(len(payloads))
        slots, rounds = self.stream.places(self.stream.end, len(payloads))
        datagrams = stamp_datagrams(
            template, slots=slots, rounds=rounds, counts=0 if counts is None else counts, payloads=payloads
        )
        first = self.stream.take(len(payloads))
        if not self._ledger.active:
            self._unhelpful = Unhelpful()
        self._handles += 1
        reduce = AllReduce(self._handles, op, first, datagrams, now, now + self.timing.deadline_s)
        self._ledger.active.append(reduce)
        self._open_new(reduce, now)
        return reduce.handle

    def receive_datagram(self, data: bytes | memoryview, now: float) -> None:
        """Take one datagram from the switch's address. Anything that is no use is counted and ignored."""
        if self.phase is not Phase.RUN:
            return
        try:
            header, values = split_datagram(data)
            position = self._own_position(header, values)
        except WireError as refused:
            self.statistics.ignored[refused.reason] += 1
            self._unhelpful.note(f"a datagram refused as {refused.reason.name} ({refused})")
            return
        if header.kind == Kind.RESULT:
            self._on_result(header, values, position, now)
        elif header.kind == Kind.STATE:
            self._inquiry.take(header)
        else:
            self._on_stale(header, position, now)

    def receive_rows(self, rows: NDArray[np.uint8], now: float) -> None:
        """Take datagrams of one size, uint8[n, bytes] and contiguous, as they came; `rows` are the caller's again."""
        if len(rows) < ROWS_LEAST or rows.shape[1] <= HOPSUM_BYTES or self.phase is not Phase.RUN:
            for row in rows:
                self.receive_datagram(memoryview(row), now)
            return
        part = plain_part(rows, self.membership, self._ledger)
        if part is not None:
            self._hold_parts([part], part.positions, now, in_order=True)
            return
        batch = sort_out(rows, self.membership, self._ledger)
        self.statistics.duplicates += batch.copies
        for numbers, single in batch.steps():
            if numbers.size:
                self._hold_parts(batch.parts(numbers), batch.positions[numbers], now)
            if single is not None:
                self.receive_datagram(memoryview(rows[single]), now)

    def receive_peer(self, message: PeerMessage, now: float) -> None:
        """Take one message of a peer. Anything that is no use is counted and ignored."""
        reason = "no peers" if self.repair is None else peer_fault(message, self.membership)
        if self.repair is None or reason:
            self.statistics.peers_ignored[reason] += 1
            return
        if message.kind is PeerKind.FOUND:
            self._on_found(message, now)
        elif message.kind is PeerKind.FETCH:
            self.repair.answer(message, self._ledger.in_progress(self.stream.position(message.slot, message.round)))
        elif message.kind is PeerKind.GONE:
            self._on_gone(message, now)
        else:
            self.repair.take(message)
        self._opening.release()

    def note_unreachable(self) -> None:
        """Take the network's word that nobody listens at the switch's address; treated as a loss."""
        self._unhelpful.note("'port unreachable'")

    def handle_timer(self, now: float) -> None:
        """Queue what is due again, ask before a deadline, and give up what is past it."""
        expired = [reduce for reduce in self._ledger.active if reduce.deadline_at <= now]
        if expired:
            self._fail(self._no_answer(expired[0], now))
            return
        late = self._outbox.handle_timer(now)
        if self.repair is not None:
            self.repair.ask_about({position: self._outbox.sent(position) for position in late}, now)
            self.repair.handle_held_back(self._ledger.held_back(), now)
            self._opening.release()
        self._inquiry.handle_timer(self._ledger.active, now)

    # ---- outputs ------------------------------------------------------------------------------------

    def trains_to_send(self, now: float) -> list[NDArray[np.uint8]]:
        """Return what is to be sent now, in order, and set its timers.

        Returns:
            Read-only uint8[n, bytes] each, one datagram a row; they stay valid and unchanged.
        """
        trains = [np.frombuffer(probe, np.uint8)[None] for probe in self._inquiry.take_outgoing()]
        self.statistics.probes += len(trains)
        sendings = self._outbox.take(now)
        return [*trains, *trains_of(sendings, self._ledger.active)] if sendings.positions.size else trains

    def datagrams_to_send(self, now: float) -> list[memoryview]:
        """Return what `trains_to_send` does, one by one."""
        return [memoryview(row) for train in self.trains_to_send(now) for row in train]

    def messages_to_peers(self) -> list[tuple[int, PeerMessage]]:
        """Return what is to be said to peers now, as (rank, message)."""
        return [] if self.repair is None else self.repair.take_outgoing()

    @property
    def waits_for_peers(self) -> bool:
        """Say whether a message of a peer would help now: the caller should look often."""
        return self.repair is not None and (self.repair.waits or self._ledger.held_back() is not None)

    def get_timer(self) -> float | None:
        """Return when `handle_timer` is due, or None if nothing is in progress."""
        deadlines = [reduce.deadline_at for reduce in self._ledger.active]
        probe_due = self._inquiry.timer(self._ledger.active)
        held_back_due = None if self.repair is None else self.repair.held_back_timer(self._ledger.held_back())
        due = (probe_due, self._outbox.timer(), held_back_due)
        return min([*deadlines, *(time for time in due if time is not None)], default=None)

    def next_event(self) -> AllReduceDone | AllReduceGone | None:
        """Return the next event, or None."""
        return self._events.popleft() if self._events else None

    # ---- rules --------------------------------------------------------------------------------------

    def _own_position(self, header: Header, values: bytes | memoryview) -> int:
        """Return the position that a reply to this worker names. Raises WireError if it is no such reply."""
        return position_of(header, values, self.membership, self.stream)

    def _on_result(
        self, header: Header, values: bytes | memoryview, position: int, now: float, *, from_peer: bool = False
    ) -> None:
        reduce = self._ledger.find(position)
        if self._ledger.is_held(position, reduce) and not self._ledger.is_zeroed(position, reduce):
            self.statistics.duplicates += 1
        elif reduce is not None:
            if header.op == reduce.op:
                self._hold(reduce, header, values, now, from_peer=from_peer)
            else:
                self._refuse_op(header, reduce)
        elif position < self.stream.end + 2 * self.stream.slots:
            self._ledger.early[position] = (header, bytes(values))
            self._opening.slot(header.slot)
        else:
            self.statistics.ignored[Drop.BAD_ROUND] += 1
            self._unhelpful.note(f"RESULT far ahead (slot {header.slot}, round {header.round})")

    def _on_found(self, found: PeerMessage, now: float) -> None:
        """Accept what a peer sends as if the switch had sent it (W3)."""
        if self.phase is not Phase.RUN:
            return
        header = as_result(found, self.membership.rank)
        try:
            position = self._own_position(header, found.payload)
        except WireError as refused:
            self.statistics.peers_ignored[refused.reason.name.lower()] += 1
            return
        self._on_result(header, found.payload, position, now, from_peer=True)

    def _on_gone(self, gone: PeerMessage, now: float) -> None:
        assert self.repair is not None
        position = self.stream.position(gone.slot, gone.round)
        if self.repair.note_gone(position, gone.sender, now) and self.phase is Phase.RUN:
            self._fail(expelled(self.membership, self.stream.place(position)))

    def _hold(
        self, reduce: AllReduce, header: Header, values: bytes | memoryview, now: float, *, from_peer: bool = False
    ) -> None:
        position = self.stream.position(header.slot, header.round)
        reduce.hold(position, header.contributors, values)
        self.statistics.results += 1
        self.statistics.repaired += from_peer
        self._go_on(reduce, position, now, from_peer=from_peer)

    def _hold_parts(
        self, parts: list[Part], positions: NDArray[np.int64], now: float, *, in_order: bool = False
    ) -> None:
        """Do what `_hold` does with results, whose `positions` are as they came; `in_order`: lowest of each slot."""
        for part in parts:
            part.reduce.hold_many(part.positions, part.contributors, part.values)
        self.statistics.results += len(positions)
        self._outbox.settle_many(positions, now)
        if self.repair is not None:
            self.repair.settle(positions.tolist())
        self._opening.slots(positions % self.stream.slots, positions if in_order else None)
        for part in parts:
            self._deliver(part.reduce, now)

    def _go_on(self, reduce: AllReduce, position: int, now: float, *, from_peer: bool) -> None:
        """Open what a result, or zeros in its place, allows; deliver what is complete."""
        self._outbox.settle(position, None if from_peer else now)
        if self.repair is not None:
            self.repair.settle((position,))
        self._opening.slot(position % self.stream.slots)
        self._deliver(reduce, now)

    def _deliver(self, reduce: AllReduce, now: float) -> None:
        """Deliver an all-reduce if it is complete."""
        if reduce.missing or reduce not in self._ledger.active:
            return
        self._ledger.active.remove(reduce)
        self._events.append(reduce.done(self.membership.rank))
        if self.repair is not None:
            self.repair.store.keep(reduce, now)
            self.repair.announce(self._ledger.delivered_to)
            self._opening.release()

    def _on_stale(self, header: Header, position: int, now: float) -> None:
        self._unhelpful.note(f"STALE(slot {header.slot}, asked {header.round}, held {header.held})")
        if not self._outbox.sent(position):
            self.statistics.stale_ignored += 1
        elif self.repair is not None:
            lacking = self._ledger.lacking(position, header.held, AHEAD)
            self.repair.ask_named(lacking, header.contributors, now, self._outbox.timeout_s)
        elif self._zeroes:
            self._take_zeros(position, now)
        else:
            self._fail(round_lost(self.membership, header))

    def _take_zeros(self, position: int, now: float) -> None:
        reduce = self._ledger.find(position)
        assert reduce is not None, "what is awaited belongs to an all-reduce in progress"
        reduce.zero(position)
        self.statistics.lost += 1
        self._go_on(reduce, position, now, from_peer=True)

    def _open_new(self, reduce: AllReduce, now: float) -> None:
        """Let the slots of a new all-reduce go on, after it took the results that came before it."""
        for position in sorted(p for p in self._ledger.early if p < self.stream.end):
            header, values = self._ledger.early.pop(position)
            if header.op == reduce.op:
                self._hold(reduce, header, values, now)
            else:
                self._refuse_op(header, reduce)
                self._ledger.open_position[header.slot] = min(self._ledger.open_position[header.slot], position)
        self._opening.release()

    def _refuse_op(self, header: Header, reduce: AllReduce) -> None:
        self.statistics.ignored[Drop.OP_MISMATCH] += 1
        self._unhelpful.note(f"RESULT of op {header.op} where this rank submitted op {reduce.op}")

    def _fail(self, error: AllReduceFailed) -> None:
        """End the epoch for this worker: every all-reduce in progress has the same cause."""
        self.phase = Phase.OVER
        self._failure = error
        self._events.extend(AllReduceGone(reduce.handle, error) for reduce in self._ledger.active)
        self._outbox.clear()
        for pending in (self._ledger.active, self._ledger.early, self._inquiry.outgoing):
            pending.clear()

    def _no_answer(self, reduce: AllReduce, now: float) -> AllReduceFailed:
        own, waited_s, oldest = self.membership, now - reduce.submitted_at, self._outbox.oldest
        if oldest is None:
            return held_back(own, waited_s, [] if self.repair is None else self.repair.store.unproved())
        asked = (self._unhelpful, self._inquiry)
        return no_answer(own, reduce, self.stream.place(oldest), self._outbox.sent(oldest), waited_s, asked)
