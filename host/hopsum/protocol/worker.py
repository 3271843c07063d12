# SPDX-License-Identifier: Apache-2.0
"""A worker of one job in one epoch, without I/O.

The caller owns socket and clock. After every input (`submit`, `receive_datagram`, `handle_timer`) it sends
all of `datagrams_to_send`, drains `next_event`, and waits for a datagram or until `get_timer`.

Rules
    N1-N4  One stream of positions; see stream.py.
    W1     Round r of a slot is sent only when all earlier rounds of that slot are held: one position per slot
           is outstanding, S in all, across all-reduces.
    W2     The bytes of a position never change: they are stamped once and sent from there. Only the FLUSH flag
           comes on top (S8). When and how often each is sent: see outbox.py.
    W3     A RESULT is accepted iff it names this epoch, the worker runs, and it lacks that (slot, round),
           sent or not. The first accepted stays.
    W4     A STALE counts only if it names exactly a round that the worker waits for; then only a peer can
           still have that result. `_lost` is where peers would be asked; without them the epoch is over.
    W5     Delivery and settlement come only from accepted (contributors, values).
    P1, P2 Before a deadline the switch is asked whom it waits for; see inquiry.py.

Positions                                                   Worker
    state     meaning                                           RUN    sends, accepts, delivers
    QUEUED    an earlier round of its slot is not held          OVER   an all-reduce failed: sends nothing,
    AWAITED   open: sent, sent again, no result yet                    accepts nothing; needs a new epoch
    HELD      result accepted

    state     input                                 next        also
    QUEUED    the round before it in its slot held  AWAITED     to be sent when the window has room
    AWAITED   timer                                 AWAITED     to be sent again, same bytes, longer wait
    AWAITED   flush_after_s over                    AWAITED     to be sent again, same bytes, with FLUSH
    AWAITED   deadline near, it is the oldest       AWAITED     PROBE to be sent
    any       STATE                                 -           kept for the words of NoAnswer
    any       RESULT that W3 accepts                HELD        next round of the slot opens; perhaps delivery
    AWAITED   STALE that names it                   -           OVER: RoundLost
    AWAITED   deadline of its all-reduce            -           OVER: NoAnswer

A RESULT may come before its all-reduce is submitted (the others were faster, quorum < n): it is kept, up to
two windows ahead, and counts when the all-reduce comes. What is further ahead is treated as lost: it is safe.
"""

from __future__ import annotations

from collections import deque
from enum import Enum, auto
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hopsum.errors import AllReduceFailed, EpochOver, NoAnswer, RoundLost
from hopsum.protocol.inquiry import Inquiry
from hopsum.protocol.outbox import Outbox
from hopsum.protocol.stream import Place, Stream
from hopsum.protocol.worker_state import (
    AllReduce,
    AllReduceDone,
    AllReduceGone,
    Membership,
    Timing,
    Unhelpful,
    WorkerStatistics,
)
from hopsum.wire import Drop, Flag, Header, Kind, WireError, down_bytes, split_datagram
from hopsum.wire._layout import HOPSUM_FIELDS
from hopsum.wire.datagrams import stamp_datagrams, update_template

__all__ = ["AllReduceDone", "AllReduceGone", "Membership", "Timing", "Worker", "WorkerStatistics"]

_FLAGS_AT: Final = next(field.offset_bits // 8 for field in HOPSUM_FIELDS if field.name == "flags")


class Phase(Enum):
    """What the worker does at all."""

    RUN = auto()
    OVER = auto()


class Worker:
    """One rank's side of the slot protocol."""

    def __init__(self, membership: Membership, timing: Timing | None = None) -> None:
        self.membership = membership
        self.timing = timing or Timing()
        self.statistics = WorkerStatistics()
        self.phase = Phase.RUN
        self.stream = Stream(membership.slots)
        self._open_position = list(range(membership.slots))
        """Per slot, the lowest position that is not held: the only one of its slot that may be sent (W1)."""
        self._active: list[AllReduce] = []
        self._early: dict[int, tuple[Header, bytes]] = {}
        self._outbox = Outbox(membership.slots, self.timing, self.statistics)
        self._inquiry = Inquiry(membership, self.timing)
        self._probes: list[bytes] = []
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
        if not self._active:
            self._unhelpful = Unhelpful()
        self._handles += 1
        reduce = AllReduce(self._handles, op, first, datagrams, now, now + self.timing.deadline_s)
        self._active.append(reduce)
        self._open_new(reduce)
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
            self._on_stale(header, position)

    def note_unreachable(self) -> None:
        """Take the network's word that nobody listens at the switch's address; treated as a loss."""
        self._unhelpful.note("'port unreachable'")

    def handle_timer(self, now: float) -> None:
        """Queue what is due again, ask before a deadline, and give up what is past it."""
        expired = [reduce for reduce in self._active if reduce.deadline_at <= now]
        if expired:
            self._fail(self._no_answer(expired[0], now))
            return
        self._outbox.handle_timer(now)
        due = self._probe_due()
        if due is not None and due <= now:
            self._probes.append(self._inquiry.ask(self._active[0], self._oldest()))

    # ---- outputs ------------------------------------------------------------------------------------

    def datagrams_to_send(self, now: float) -> list[memoryview]:
        """Return what is to be sent now, in order, and set its timers. The views stay valid and unchanged."""
        datagrams = [memoryview(probe) for probe in self._probes]
        self.statistics.probes += len(self._probes)
        self._probes = []
        for position, flush in self._outbox.take(now):
            reduce = self._find(position)
            assert reduce is not None, "what is awaited belongs to an all-reduce in progress"
            row = reduce.datagrams[position - reduce.first]
            datagrams.append(_flushed(row) if flush else memoryview(row))
        return datagrams

    def get_timer(self) -> float | None:
        """Return when `handle_timer` is due, or None if nothing is in progress."""
        deadlines = [reduce.deadline_at for reduce in self._active]
        probe_due = self._probe_due()
        due = (probe_due, self._outbox.timer())
        return min([*deadlines, *(time for time in due if time is not None)], default=None)

    def next_event(self) -> AllReduceDone | AllReduceGone | None:
        """Return the next event, or None."""
        return self._events.popleft() if self._events else None

    # ---- rules --------------------------------------------------------------------------------------

    def _own_position(self, header: Header, values: memoryview) -> int:
        """Return the position that a reply to this worker names. Raises WireError if it is no such reply."""
        own = self.membership
        if header.kind not in (Kind.RESULT, Kind.STALE, Kind.STATE):
            raise WireError(Drop.BAD_KIND, f"{Kind(header.kind).name} from the switch")
        if header.epoch != own.epoch:
            raise WireError(Drop.UNKNOWN_EPOCH, f"{Kind(header.kind).name} of epoch {header.epoch}")
        if header.worker != own.rank:
            raise WireError(Drop.UNKNOWN_WORKER, f"{Kind(header.kind).name} for rank {header.worker}")
        if len(values) != (down_bytes(header.op) if header.kind == Kind.RESULT else 0):
            raise WireError(Drop.BAD_LENGTH, f"{Kind(header.kind).name} with {len(values)} payload bytes")
        least = 0 if header.kind == Kind.STATE else 1
        if not least <= header.contributors < 1 << own.workers:
            raise WireError(Drop.BAD_VALUE, f"contributors {header.contributors:#x} of {own.workers} workers")
        if header.slot >= own.slots:
            raise WireError(Drop.BAD_SLOT, f"slot {header.slot} of {own.slots}")
        try:
            return self.stream.position(header.slot, header.round)
        except ValueError as outside:
            raise WireError(Drop.BAD_ROUND, str(outside)) from outside

    def _on_result(self, header: Header, values: memoryview, position: int, now: float) -> None:
        reduce = self._find(position)
        if self._is_held(position, reduce):
            self.statistics.duplicates += 1
        elif reduce is not None:
            if header.op == reduce.op:
                self._hold(reduce, header, values, now)
            else:
                self._refuse_op(header, reduce)
        elif position < self.stream.end + 2 * self.stream.slots:
            self._early[position] = (header, bytes(values))
            self._open_slot(header.slot)
        else:
            self.statistics.ignored[Drop.BAD_ROUND] += 1
            self._unhelpful.note(f"RESULT far ahead (slot {header.slot}, round {header.round})")

    def _hold(self, reduce: AllReduce, header: Header, values: memoryview, now: float | None) -> None:
        position = self.stream.position(header.slot, header.round)
        reduce.hold(position, header.contributors, values)
        self.statistics.results += 1
        self._outbox.settle(position, now)
        self._open_slot(header.slot)
        if not reduce.missing:
            self._active.remove(reduce)
            self._events.append(reduce.done(self.membership.rank))

    def _on_stale(self, header: Header, position: int) -> None:
        self._unhelpful.note(f"STALE(slot {header.slot}, asked {header.round}, held {header.held})")
        awaited = self._outbox.awaited.get(position)
        if awaited is None or not awaited.sent:
            self.statistics.stale_ignored += 1
        else:
            self._lost(header)

    def _lost(self, header: Header) -> None:
        own = self.membership
        ranks = [rank for rank in range(own.workers) if header.contributors >> rank & 1]
        self._fail(
            RoundLost(
                f"rank {own.rank} lacks the result of epoch {own.epoch}, slot {header.slot}, round "
                f"{header.round}, and {own.switch} no longer has it: the slot has moved on to round "
                f"{header.held} with workers {ranks}. Continue in a new epoch"
            )
        )

    def _open_new(self, reduce: AllReduce) -> None:
        """Let the slots of a new all-reduce go on, after it took the results that came before it."""
        end = self.stream.end
        for position in sorted(p for p in self._early if p < end):
            header, values = self._early.pop(position)
            if header.op == reduce.op:
                self._hold(reduce, header, memoryview(values), None)
            else:
                self._refuse_op(header, reduce)
                self._open_position[header.slot] = min(self._open_position[header.slot], position)
        for position in range(reduce.first, min(end, reduce.first + self.stream.slots)):
            self._open_slot(position % self.stream.slots)

    def _open_slot(self, slot: int) -> None:
        """Move a slot to its lowest position that is not held, and open that one (W1)."""
        position = self._open_position[slot]
        while self._is_held(position, self._find(position)):
            position += self.stream.slots
        self._open_position[slot] = position
        if position < self.stream.end:
            self._outbox.open(position)

    def _refuse_op(self, header: Header, reduce: AllReduce) -> None:
        self.statistics.ignored[Drop.OP_MISMATCH] += 1
        self._unhelpful.note(f"RESULT of op {header.op} where this rank submitted op {reduce.op}")

    def _fail(self, error: AllReduceFailed) -> None:
        """End the epoch for this worker: every all-reduce in progress has the same cause."""
        self.phase = Phase.OVER
        self._failure = error
        self._events.extend(AllReduceGone(reduce.handle, error) for reduce in self._active)
        self._outbox.clear()
        for pending in (self._active, self._probes, self._early):
            pending.clear()

    def _no_answer(self, reduce: AllReduce, now: float) -> NoAnswer:
        own, oldest = self.membership, self._oldest()
        return NoAnswer(
            f"no result from {own.switch} within {now - reduce.submitted_at:.3g} s: epoch {own.epoch}, "
            f"rank {own.rank}, slot {oldest.slot}, round {oldest.round}, UPDATE sent "
            f"{self._outbox.awaited[self._outbox.oldest()].sent} times; {self._unhelpful}. "
            f"{reduce.missing} of {len(reduce.held)} chunks lack their result. {self._inquiry.finding(oldest)}. "
            f"The switch is silent until its quorum is in: check that all {own.workers} workers run this "
            f"all-reduce, that the switch admits this epoch, and its drop counters. Then continue in a new "
            f"epoch",
            self._inquiry.missing_ranks(oldest),
        )

    # ---- lookups ------------------------------------------------------------------------------------

    def _oldest(self) -> Place:
        """Return where the oldest position stands that was opened and has no result."""
        return self.stream.place(self._outbox.oldest())

    def _probe_due(self) -> float | None:
        return self._inquiry.due(self._active[0], self._oldest()) if self._active else None

    def _find(self, position: int) -> AllReduce | None:
        return next((reduce for reduce in self._active if reduce.covers(position)), None)

    def _is_held(self, position: int, reduce: AllReduce | None) -> bool:
        """Say whether a result is here; `reduce` is its all-reduce, None if delivered or not submitted."""
        if reduce is not None:
            return bool(reduce.held[position - reduce.first])
        return position < self.stream.end or position in self._early


def _flushed(datagram: NDArray[np.uint8]) -> memoryview:
    """Return the same UPDATE with the FLUSH flag."""
    copy = bytearray(datagram)
    copy[_FLAGS_AT] |= Flag.FLUSH
    return memoryview(copy).toreadonly()
