# SPDX-License-Identifier: Apache-2.0
"""A worker of one job, in one epoch after the other, without I/O.

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
    W5     Delivery and settlement come only from accepted (contributors, values); see accepting.py.
    W6, R  After some unanswered retransmissions peers are asked as well; peers are served; see repair.py.
    P1, P2 Before a deadline the switch is asked whom it waits for; see inquiry.py.
    E2-E4  Sealed, it goes on in another epoch with what was decided; see epoch_change.py.

Positions                                                   Worker
    state     meaning                                           RUN    sends, accepts, delivers
    QUEUED    an earlier round of its slot is not held, or      SEALED between `seal` and `resume`: sends nothing,
              its all-reduce is held back (R2)                         accepts nothing, serves peers; no deadlines
    AWAITED   open: sent, sent again, no result yet             OVER   an all-reduce failed: as SEALED, for good
    WANTED    decided in an epoch change, not here yet
    HELD      result accepted

    state     input                                 next        also
    QUEUED    the round before it in its slot held  AWAITED     to be sent when the window has room
    AWAITED   timer                                 AWAITED     to be sent again, same bytes, longer wait
    AWAITED   flush_after_s over                    AWAITED     to be sent again, same bytes, with FLUSH
    AWAITED   deadline near, it is the oldest       AWAITED     PROBE to be sent
    any       STATE                                 -           kept for the words of AllReduceTimeoutError
    any       `resume`                              (anew)      see epoch_change.py
    WANTED    FOUND                                 HELD        next round of the slot opens; perhaps delivery
    any       RESULT or FOUND that W3 accepts       HELD        next round of the slot opens; perhaps delivery
    AWAITED   STALE that names it, with peers       AWAITED     FETCH to a contributor named
    AWAITED   STALE that names it, without          -           OVER: ResultLostError
    AWAITED   the same, on_lost="zero"              HELD        zeros, until a RESULT comes; next round opens
    AWAITED   GONE from all peers                   -           OVER: FellBehindError
    QUEUED    all-reduce before the last proved     AWAITED     all-reduce is no longer held back
    AWAITED   deadline of its all-reduce            -           OVER: AllReduceTimeoutError
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hopsum.errors import AllReduceError, EpochEndedError
from hopsum.protocol.absence import Absence
from hopsum.protocol.accepting import Accepting, Events
from hopsum.protocol.batch import ROWS_LEAST, plain_part, sort_out
from hopsum.protocol.catching_up import CatchingUp
from hopsum.protocol.decided import DecidedRuns
from hopsum.protocol.epoch_change import Turn, carry_over, lacking, require_fitting, sealed_report
from hopsum.protocol.failures import finished_early, held_back, no_answer, not_caught_up, round_lost, switch_gone
from hopsum.protocol.hearing import Hearing
from hopsum.protocol.inquiry import Inquiry, name_ranks
from hopsum.protocol.ledger import Ledger
from hopsum.protocol.outbox import Outbox
from hopsum.protocol.peer_messages import PeerKind, PeerMessage
from hopsum.protocol.repair import AHEAD, Repair, RepairPolicy, peer_fault
from hopsum.protocol.replies import position_of
from hopsum.protocol.stream import Stream
from hopsum.protocol.trains import trains_of
from hopsum.protocol.worker_state import (
    AllReduce,
    AllReduceDone,
    AllReduceFailed,
    Membership,
    Phase,
    Timing,
    Unhelpful,
    WorkerStatistics,
)
from hopsum_wire import HOPSUM_BYTES, Drop, Header, Kind, WireError, split_datagram
from hopsum_wire.datagrams import stamp_datagrams, update_template
from hopsum_wire.epochs import Resume, Sealed

__all__ = ["AllReduceDone", "AllReduceFailed", "Membership", "RepairPolicy", "Timing", "Worker", "WorkerStatistics"]


class Worker:
    """One rank's side of the slot protocol.

    Args:
        repair: asks and serves peers; the caller carries their messages. None: there are no peers to ask.
        on_lost: what becomes of a chunk whose result the switch no longer has, where there are no peers. "fail" ends
            the epoch. "zero" takes zeros with contributors 0 and says so (`AllReduceDone.lost`): it exists to compare
            with published systems that do so, and leaves the ranks with different sums.
        resume: how the job's stream stands where it begins in a later epoch: a newcomer begins at its `start`.

    Raises:
        ValueError: on_lost="zero" with peers: they would be served zeros; or `resume` does not fit the slots.
    """

    def __init__(
        self,
        membership: Membership,
        timing: Timing | None = None,
        *,
        repair: RepairPolicy | None = None,
        on_lost: Literal["fail", "zero"] = "fail",
        resume: Resume | None = None,
    ) -> None:
        if repair is not None and on_lost == "zero":
            raise ValueError('on_lost="zero" is for workers without peers: leave out one of repair and on_lost')
        self.membership = membership
        self.timing = timing or Timing()
        self.statistics = WorkerStatistics()
        self.phase = Phase.RUN
        self.stream = Stream(membership.slots, 0 if resume is None else resume.base)
        if resume is not None and resume.start is not None:
            self.stream.end = resume.start
        self.repair = None if repair is None else Repair(membership, self.stream, repair, self.statistics)
        """What it has to do with peers, if it has any; its LEAVE is the caller's to say."""
        self._zeroes = on_lost == "zero"
        self._ledger = Ledger(self.stream)
        self._events = Events()
        self.turn = Turn(self.stream, self._events, self.repair, resume)
        self._unhelpful = Unhelpful()
        self.absence = Absence(self.timing)
        """Of the switch, as the network tells it."""
        self._failure: AllReduceError | None = None
        self._sealed: Sealed | None = None
        self._handles = 0
        self._enter(DecidedRuns(() if resume is None else resume.decided), 0.0)

    def _enter(self, decided: DecidedRuns, now: float) -> None:
        """Begin an epoch: nothing is sent or asked yet, no round trip is measured."""
        own, repair = self.membership, self.repair
        self._unhelpful.seen.clear()
        self.absence.end()
        self._ledger.enter(decided)
        self._outbox = Outbox(own.slots, self.timing, self.statistics)
        self._inquiry = Inquiry(own, self.timing, self.stream, self._outbox)
        told = (self._events, self.statistics, self._unhelpful)
        self._accepting = Accepting(own.rank, self._ledger, self._outbox, repair, told)
        self._catching_up: CatchingUp | None = None
        self._hearing: Hearing | None = None
        if repair is not None:
            repair.enter(own, now)
            repair.announce(self._ledger.delivered_to)
            self._catching_up = CatchingUp(decided, repair)
            self._hearing = Hearing(own, self._ledger, repair, self._catching_up, self._accepting, self.statistics)

    # ---- epochs -------------------------------------------------------------------------------------

    def seal(self) -> Sealed:
        """Send nothing and accept nothing more of this epoch, and return what is here (E2); the same until `resume`.

        Raises:
            EpochEndedError: an all-reduce failed here, though not on all ranks: what is here is no longer what others
            have.
        """
        self._require_going()
        if self._sealed is None:
            self.phase = Phase.SEALED
            kept = [] if self.repair is None else self.repair.store.runs
            self._sealed = sealed_report(self.membership.epoch, self._ledger, kept)
        return self._sealed

    def resume(self, epoch: int, resume: Resume, now: float, rack: tuple[int, ...] | None = None) -> None:
        """Go on in another epoch (E3, E4): what is in progress with other deadlines, void exchanges to their end.

        Raises:
            ValueError: it is not sealed, has no peers, or `resume` or the epoch does not fit it; nothing was changed.
        """
        if self._sealed is None or self.repair is None or epoch == self.membership.epoch:
            raise ValueError(f"a worker with peers goes on in another epoch than {epoch} once it is sealed")
        membership = replace(self.membership, epoch=epoch, rack=rack)
        decided = require_fitting(resume, self.turn, self._ledger)
        self.membership, self._sealed, self.phase = membership, None, Phase.RUN
        self.stream.renumber(resume.base)
        self.turn.take(resume)
        carry_over(self._ledger, decided, self.turn, epoch)
        self.turn.skip()
        self._enter(decided, now)
        for reduce in self._ledger.active:
            reduce.submitted_at, reduce.deadline_at = now, now + self.timing.deadline_s
        self._accepting.opening.release()
        for reduce in self._ledger.active:
            self._want(reduce, now)

    def go_on(self, start_epoch: int, start: int) -> None:
        """Take the program's word that the newcomers of an epoch have its state: `submit` goes on at their `start`.

        It may come when others are new already: then what lies before their start is left out, and they are waited for.
        """
        self.turn.go_on(start_epoch, start)
        if self.phase is Phase.RUN and self.turn.skip() and self.repair is not None:
            self.repair.announce(self._ledger.delivered_to)

    # ---- inputs -------------------------------------------------------------------------------------

    def submit(self, op: int, payloads: NDArray[np.uint8], *, now: float, counts: ArrayLike | None = None) -> int:
        """Append an all-reduce to the stream and return its handle. All ranks submit the same sequence.

        Args:
            op: same for all chunks.
            payloads: uint8[chunks, up_bytes(op)], at least one chunk; copied.
            now: seconds on any clock that does not go back, the same in all calls.
            counts: [chunks] or a scalar, elements in use; 0 if left out.

        Raises:
            EpochEndedError: the epoch takes nothing more, or nothing now: it is sealed. Continue in a new one.
            WorkersReplacedError: the newcomers come first, see `go_on`.
            WireError: unknown op, or payloads of another shape.
                With all of these nothing was submitted.
        """
        self._require_going()
        if self.phase is Phase.SEALED:
            raise EpochEndedError(f"epoch {self.membership.epoch} is sealed: submit it when the job has resumed")
        self.turn.require_gone_on()
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
            self._unhelpful.seen.clear()
        self._handles += 1
        if first < self.turn.start and self.turn.voids(first, self.stream.end, self._ledger.decided):
            self.turn.void(self._handles, first, self.stream.end)
            return self._handles
        reduce = AllReduce(self._handles, op, first, datagrams, now, now + self.timing.deadline_s)
        self._ledger.active.append(reduce)
        self._accepting.submitted(reduce, now)
        self._want(reduce, now)
        return reduce.handle

    def receive_datagram(self, data: bytes | memoryview, now: float) -> None:
        """Take one datagram from the switch's address. Anything that is no use is counted and ignored."""
        if self.phase is not Phase.RUN:
            return
        self.absence.end()
        try:
            header, values = split_datagram(data)
            position = self._own_position(header, values)
        except WireError as refused:
            self.statistics.ignored[refused.reason] += 1
            self._unhelpful.note(f"a datagram refused as {refused.reason.name} ({refused})")
            return
        if header.kind == Kind.RESULT:
            self._accepting.result(header, values, position, now)
        elif header.kind == Kind.STATE:
            self._inquiry.take(header)
            self._require_company()
        else:
            self._on_stale(header, position, now)

    def receive_rows(self, rows: NDArray[np.uint8], now: float) -> None:
        """Take datagrams of one size, uint8[n, bytes] and contiguous, as they came; `rows` are the caller's again."""
        if len(rows) < ROWS_LEAST or rows.shape[1] <= HOPSUM_BYTES or self.phase is not Phase.RUN:
            for row in rows:
                self.receive_datagram(memoryview(row), now)
            return
        self.absence.end()
        part = plain_part(rows, self.membership, self._ledger)
        if part is not None:
            self._accepting.parts([part], part.positions, now, in_order=True)
            return
        batch = sort_out(rows, self.membership, self._ledger)
        self.statistics.duplicates += batch.copies
        for numbers, single in batch.steps():
            if numbers.size:
                self._accepting.parts(batch.parts(numbers), batch.positions[numbers], now)
            if single is not None:
                self.receive_datagram(memoryview(rows[single]), now)

    def receive_peer(self, message: PeerMessage, now: float) -> None:
        """Take one message of a peer. Anything that is no use is counted and ignored."""
        reason = "no peers" if self.repair is None else peer_fault(message, self.membership)
        if self._hearing is None or reason:
            self.statistics.peers_ignored[reason] += 1
            return
        gone = self._hearing.take(message, now, runs=self.phase is Phase.RUN)
        if gone is not None:
            self._fail(gone)
        elif self.phase is Phase.RUN:
            self._accepting.opening.release()
            if message.kind is PeerKind.LEAVE:
                self.inquire()

    def note_unreachable(self, now: float) -> None:
        """Take the network's word that nobody listens at the switch's address: a loss, unless it lasts (A2)."""
        self._unhelpful.note("'port unreachable'")
        self.absence.note(now)
        if self.phase is Phase.RUN and self._ledger.active and self.absence.is_over_limit:
            self._fail(switch_gone(self.membership, self.absence.answers, self.absence.lasted_s))

    def note_failed_send(self, errno_name: str) -> None:
        """Take the word of this host that it did not send, by the errno's name: a loss."""
        self._unhelpful.note(f"{errno_name} of this host, which sent nothing")

    def handle_timer(self, now: float) -> None:
        """Queue what is due again, ask before a deadline, and give up what is past it."""
        if self.phase is not Phase.RUN:
            return
        expired = [reduce for reduce in self._ledger.active if reduce.deadline_at <= now]
        if expired:
            self._fail(self._no_answer(expired[0], now))
            return
        late = self._outbox.handle_timer(now)
        if self.repair is not None:
            self.repair.ask_about({position: self._outbox.sent(position) for position in late}, now)
            self.repair.handle_held_back(self._ledger.held_back(), now)
            self._accepting.opening.release()
        if self._catching_up is not None:
            self._catching_up.handle_timer(now)
        self._inquiry.handle_timer(self._ledger.active, now)

    def inquire(self) -> None:
        """Ask the switch whom the oldest open sum waits for; `lack` words the answer."""
        if self.phase is Phase.RUN:
            self._inquiry.ask(self._ledger.active)

    def lack(self) -> str:
        """Return what is awaited, and from whom, as far as it is known; empty where nothing is in progress."""
        if not self._ledger.active:
            return ""
        if (oldest := self._outbox.oldest) is not None:
            missing = sum(reduce.missing for reduce in self._ledger.active)
            return f"{missing} sums of {self.membership.switch}: {self._inquiry.finding(self.stream.place(oldest))}"
        if self._catching_up is not None and (wanted := self._catching_up.lacking):
            return f"{len(wanted)} results that were decided before this epoch, from the peers that hold them"
        behind = [] if self.repair is None else self.repair.store.unproved()
        return f"{name_ranks(behind)} to hold an earlier all-reduce" if behind else "results"

    def left_s(self, now: float) -> float:
        """Return the seconds to the deadline of the oldest all-reduce in progress; 0 without one."""
        return max(0.0, min((reduce.deadline_at for reduce in self._ledger.active), default=now) - now)

    # ---- outputs ------------------------------------------------------------------------------------

    def trains_to_send(self, now: float) -> list[NDArray[np.uint8]]:
        """Return what is to be sent now, in order, and set its timers.

        Returns:
            Read-only uint8[n, bytes] each, one datagram a row; they stay valid and unchanged.
        """
        if self.phase is not Phase.RUN:
            return []
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
        if self.phase is not Phase.RUN or self.repair is None:
            return False
        return self.repair.waits or self._ledger.held_back() is not None

    def get_timer(self) -> float | None:
        """Return when `handle_timer` is due, or None if nothing is in progress."""
        if self.phase is not Phase.RUN:
            return None
        deadlines = [reduce.deadline_at for reduce in self._ledger.active]
        probe_due = self._inquiry.timer(self._ledger.active)
        held_back_due = None if self.repair is None else self.repair.held_back_timer(self._ledger.held_back())
        wanted_due = None if self._catching_up is None else self._catching_up.timer()
        due = (probe_due, self._outbox.timer(), held_back_due, wanted_due)
        return min([*deadlines, *(time for time in due if time is not None)], default=None)

    def next_event(self) -> AllReduceDone | AllReduceFailed | None:
        """Return the next event, or None."""
        return self._events.popleft() if self._events else None

    # ---- rules --------------------------------------------------------------------------------------

    def _own_position(self, header: Header, values: bytes | memoryview) -> int:
        """Return the position that a reply to this worker names. Raises WireError if it is no such reply."""
        return position_of(header, values, self.membership, self.stream)

    def _on_stale(self, header: Header, position: int, now: float) -> None:
        self._unhelpful.note(f"STALE(slot {header.slot}, asked {header.round}, held {header.held})")
        if not self._outbox.sent(position):
            self.statistics.stale_ignored += 1
        elif self.repair is not None:
            lacking = self._ledger.lacking(position, header.held, AHEAD)
            self.repair.ask_named(lacking, header.contributors, now, self._outbox.timeout_s)
        elif self._zeroes:
            self._accepting.zeros(position, now)
        else:
            self._fail(round_lost(self.membership, header))

    def _require_company(self) -> None:
        """Fail if the oldest open sum waits for workers that have left without it (P4)."""
        oldest = self._outbox.oldest
        if self.repair is None or oldest is None or not self._ledger.active:
            return
        place = self.stream.place(oldest)
        left = tuple(rank for rank in self._inquiry.awaited_ranks(place) if self.repair.has_left_before(rank, oldest))
        if left:
            self._fail(finished_early(self.membership, place, left))

    def _require_going(self) -> None:
        if self._failure is not None:
            raise EpochEndedError(f"epoch {self.membership.epoch} is over: {self._failure}") from self._failure

    def _want(self, reduce: AllReduce, now: float) -> None:
        """Have the decided results of an exchange fetched."""
        if self._catching_up is not None and self._ledger.decided is not None:
            self._catching_up.want(lacking(reduce, self._ledger.decided), now)

    def _fail(self, error: AllReduceError) -> None:
        """End the epoch for this worker: every all-reduce in progress has the same cause."""
        self.phase = Phase.OVER
        self._failure = error
        self._events.extend(AllReduceFailed(reduce.handle, error) for reduce in self._ledger.active)
        self._outbox.clear()
        for pending in (self._ledger.active, self._ledger.early, self._inquiry.outgoing):
            pending.clear()

    def _no_answer(self, reduce: AllReduce, now: float) -> AllReduceError:
        own, waited_s, oldest = self.membership, now - reduce.submitted_at, self._outbox.oldest
        if oldest is None and self._catching_up is not None and (wanted := self._catching_up.lacking):
            return not_caught_up(own, self.stream.place(wanted[0]), len(wanted), waited_s)
        if oldest is None:
            return held_back(own, waited_s, [] if self.repair is None else self.repair.store.unproved())
        asked = (self._unhelpful, self._inquiry)
        return no_answer(own, reduce, self.stream.place(oldest), self._outbox.sent(oldest), waited_s, asked)
