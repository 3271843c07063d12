# SPDX-License-Identifier: Apache-2.0
"""A worker of one job, in one generation after the other, without I/O.

The caller owns sockets and clock. After every input (`submit`, `receive_datagram`, `receive_peer`, `handle_timer`)
it sends all of `segments_to_send` (or `datagrams_to_send`: the same) and `messages_to_peers`, some time later
`done_for_peers`, drains `next_event`, and waits for more or until `get_timer`.

This worker is the reference. On a UDP socket machine code takes the plain RESULTs in its place, and leaves the worker
as if they had come one by one (hopsum.transport.worker_loop).

Rules (docs/protocol.md)                  Where
    N1-N4  numbers of positions           stream.py
    W1, W3, W5  results and delivery      stream_state.py
    W2, S8 when a position is sent        retransmit_queue.py
    W4, W6, R  peers ask and are served   repair.py, result_store.py
    P      PROBE before a deadline        deadline_prober.py
    E2-E4  another generation             generation_change.py

Positions                                                   Worker
    state     meaning                                           RUN    sends, accepts, delivers
    QUEUED    an earlier round of its slot is not held, or      SEALED between `seal` and `resume`: sends nothing,
              its all-reduce is held back (R2) or not filled           accepts nothing, serves peers; no deadlines
    AWAITED   open: sent, sent again, no result yet             OVER   an all-reduce failed: as SEALED, for good
    WANTED    decided in a generation change, not here yet
    HELD      result accepted

    state     input                                 next        also
    QUEUED    the round before it in its slot held  AWAITED     to be sent when the window has room
    AWAITED   timer                                 AWAITED     to be sent again, same bytes, longer wait
    AWAITED   flush_after_s over                    AWAITED     to be sent again, same bytes, with FLUSH
    AWAITED   deadline near, it is the oldest       AWAITED     PROBE to be sent
    any       STATE                                 -           kept for the words of AllReduceTimeoutError
    any       `resume`                              (anew)      see generation_change.py
    WANTED    FOUND                                 HELD        next round of the slot opens; perhaps delivery
    any       RESULT or FOUND that W3 accepts       HELD        next round of the slot opens; perhaps delivery
    AWAITED   STALE that names it, with peers       AWAITED     FETCH to a contributor named
    AWAITED   STALE that names it, without          -           OVER: ResultLostError
    AWAITED   STALE or STATE of a later round       -           OVER: ResultLostError
              that has this rank
    AWAITED   GONE from all peers                   -           OVER: FellBehindError
    QUEUED    all-reduce before the last proved     AWAITED     all-reduce is no longer held back
    AWAITED   deadline of its all-reduce            -           OVER: AllReduceTimeoutError
"""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hopsum.errors import AllReduceError, GenerationEndedError, name_ranks
from hopsum.protocol.deadline_prober import DeadlineProber
from hopsum.protocol.failures import (
    address_gone,
    double,
    fell_behind,
    finished_early,
    held_back,
    long_ones_lost,
    never_answered,
    no_answer,
    not_caught_up,
    round_lost,
    switch_gone,
    unsent_remedy,
)
from hopsum.protocol.generation_change import JoinPoint, carry_over, lacking, require_fitting, sealed_report
from hopsum.protocol.peer_messages import PeerKind, PeerMessage
from hopsum.protocol.repair import AHEAD, PeerRepair, RepairPolicy, peer_fault
from hopsum.protocol.retransmit_queue import RetransmitQueue, segments_of
from hopsum.protocol.stream import DecidedRanges, Stream
from hopsum.protocol.stream_state import StreamState
from hopsum.protocol.worker_state import (
    AllReduce,
    AllReduceDone,
    AllReduceEvent,
    AllReduceFailed,
    IgnoredPackets,
    Membership,
    Places,
    Timing,
    WorkerStatistics,
    places_for,
)
from hopsum_wire import Drop, Header, Kind, WireError, down_bytes, split_datagram
from hopsum_wire.datagrams import stamp_datagrams, update_template
from hopsum_wire.generations import Resume, Sealed

__all__ = ["AllReduceDone", "AllReduceFailed", "Membership", "RepairPolicy", "Timing", "Worker", "WorkerStatistics"]


class Worker:
    """The state machine of the slot protocol for one rank (in a job with shards: for one of its shards).

    Args:
        repair: when to ask peers, and the results to keep for them. None: there are no peers to ask.
        resume: the state of the job's stream, for a worker made in a later generation. A newcomer begins at `start`.

    Raises:
        ValueError: `resume` does not fit the slots.
    """

    def __init__(
        self,
        membership: Membership,
        timing: Timing | None = None,
        *,
        repair: RepairPolicy | None = None,
        resume: Resume | None = None,
    ) -> None:
        self.membership = membership
        self.timing = timing or Timing()
        self.statistics = WorkerStatistics()
        self.runs = True
        """The worker sends, accepts and delivers: its generation is neither sealed nor over."""
        self.stream = Stream(membership.slots, 0 if resume is None else resume.base)
        if resume is not None and resume.start is not None:
            self.stream.end = resume.start
        self.repair = None if repair is None else PeerRepair(membership, self.stream, repair, self.statistics)
        """The repair from peers, if the worker has peers. The caller sends its LEAVE."""
        self._ignored_packets = IgnoredPackets()
        self.state: Final = StreamState(self.stream, self.repair, self.statistics, self._ignored_packets)
        """The all-reduces and results of the stream, and the positions that may be sent."""
        self.in_progress: Final = self.state.active
        """All-reduces in progress, in the order of the stream."""
        self.events: Final = self.state.events
        """The ends of all-reduces that `next_event` takes."""
        self.join_point = JoinPoint(self.state, resume)
        # A1: three timeouts without an answer are no gap yet, since each retransmission provokes one.
        self.absence = Absence(self.timing, max(GAP_LEAST_S, 3 * self.timing.retransmit_max_s))
        """The switch's absence, as the network tells it."""
        self._long_lost = Absence(self.timing, STATE_GAP_S)
        self._address_lost = Absence(self.timing, STATE_GAP_S)
        self._heard = False
        """A datagram of the switch has come, in whatever generation."""
        self._lost_position = -1
        self._failure: AllReduceError | None = None
        self._sealed: Sealed | None = None
        self._handles = 0
        self._enter(DecidedRanges(() if resume is None else resume.decided), 0.0)

    def _enter(self, decided: DecidedRanges, now: float) -> None:
        """Begin a generation: nothing is sent or asked yet, no round trip is measured."""
        own, repair = self.membership, self.repair
        # Packets of the generation before explain nothing about a wait in this one.
        self._ignored_packets.seen.clear()
        self.absence.end()
        self._long_lost.end()
        self._address_lost.end()
        self.queue = RetransmitQueue(own.slots, self.timing, self.statistics)
        self._prober = DeadlineProber(own, self.timing, self.stream, self.queue)
        self.state.enter(decided, self.queue)
        if repair is not None:
            repair.enter(own, decided, now)
            # R2: the peers learn at once what this worker holds, so that they may drop what they kept for it.
            repair.announce(self.state.delivered_to)

    # ---- generations -------------------------------------------------------------------------------------

    def seal(self) -> Sealed:
        """Seal this generation (E2): send and accept nothing more of it, and return the results that are here.

        They are the same until `resume`.

        Raises:
            GenerationEndedError: an all-reduce failed here, though not on all ranks: what is here is no longer what
            others have.
        """
        self._require_going()
        if self._sealed is None:
            self.runs = False
            # E2: results kept for peers count as held, since this worker can still hand them out.
            kept = [] if self.repair is None else self.repair.store.runs
            self._sealed = sealed_report(self.membership.generation, self.state, kept)
        return self._sealed

    def resume(
        self,
        generation: int,
        resume: Resume,
        now: float,
        rack: tuple[int, ...] | None = None,
        absent: frozenset[int] = frozenset(),
    ) -> None:
        """Go on in another generation (E3, E4).

        All-reduces in progress get other deadlines, and void ones end.

        Raises:
            ValueError: it is not sealed, has no peers, or `resume` or the generation does not fit it. Nothing was
            changed.
        """
        if self._sealed is None or self.repair is None or generation == self.membership.generation:
            raise ValueError(f"a worker with peers goes on in another generation than {generation} once it is sealed")
        membership = replace(self.membership, generation=generation, rack=rack, absent=absent)
        # Everything is checked before anything changes: a refusal leaves the worker sealed.
        decided = require_fitting(resume, self.join_point, self.state)
        self.membership, self._sealed, self.runs = membership, None, True
        # N4: rounds begin again at the base. Positions stay.
        self.stream.renumber(resume.base)
        self.join_point.take(resume)
        # E3: held and not decided is discarded, decided and lacking is fetched, the rest is sent again.
        carry_over(self.state, decided, self.join_point, generation)
        self.join_point.skip()
        self._enter(decided, now)
        for reduce in self.state.active:
            # The change of generation took time that no switch is to blame for.
            reduce.submitted_at, reduce.deadline_at = now, now + self.timing.deadline_s
        self.state.release()
        for reduce in self.state.active:
            self._want(reduce, now)

    def go_on(self, start_generation: int, start: int) -> None:
        """Take the program's word that the newcomers of a generation have its state: `submit` goes on at their `start`.

        It may come when others are new already: then what lies before their start is left out, and they are waited for.
        """
        self.join_point.go_on(start_generation, start)
        if self.runs and self.join_point.skip() and self.repair is not None:
            self.repair.announce(self.state.delivered_to)

    # ---- inputs -------------------------------------------------------------------------------------

    def submit(
        self,
        op: int,
        payloads: NDArray[np.uint8],
        *,
        now: float,
        counts: ArrayLike | None = None,
        ready: int | None = None,
        places: Places | None = None,
    ) -> int:
        """Append an all-reduce to the stream and return its handle. All ranks submit the same sequence.

        Args:
            op: same for all chunks.
            payloads: uint8[chunks, up_bytes(op)], at least one chunk. They are copied.
            now: seconds on any clock that does not go back, the same in all calls.
            counts: [chunks] or a scalar, elements in use, 0 by default.
            ready: chunks whose payloads count. Those behind them come by `fill`. None: all.
            places: room for its results (`places_for`). New arrays if left out.

        Raises:
            GenerationEndedError: the generation takes nothing more, or nothing now: it is sealed. Continue in a new
            one.
            WorkersReplacedError: the newcomers come first, see `go_on`.
            WireError: unknown op, or payloads of another shape.
                With all of these nothing was submitted.
        """
        own, stream, chunks = self.membership, self.stream, len(payloads)
        if not self.runs:
            self._require_going()
            raise GenerationEndedError(f"generation {own.generation} is sealed: submit it when the job has resumed")
        if not self.join_point.gone_on:
            self.join_point.require_gone_on()
        template = update_template(op=op, generation=own.generation, worker=own.rank)
        if not chunks:
            raise WireError(Drop.BAD_LENGTH, "an all-reduce has at least one chunk")
        # N4: refused before anything is stamped, so that a refusal takes no position.
        slots, rounds = stream.next_places(chunks)
        ready = chunks if ready is None else ready
        # W2: the bytes of an UPDATE are frozen here. A retransmission sends the same bytes.
        datagrams = stamp_datagrams(
            template, slots=slots, rounds=rounds, counts=0 if counts is None else counts, payloads=payloads[:ready]
        )
        first, stream.end = stream.end, stream.end + chunks
        if not self.state.active:
            self._ignored_packets.seen.clear()
        self._handles += 1
        # E4: positions before a newcomer's start that are not decided are void on all ranks.
        if first < self.join_point.start and self.join_point.voids(first, stream.end, self.state.decided):
            # A rank that lacks void phases of others has longer ones in their place: those end where newcomers begin.
            stream.end = min(stream.end, self.join_point.start)
            self.join_point.void(self._handles)
            return self._handles
        places = places or places_for(op, chunks)
        reduce = AllReduce(self._handles, op, first, datagrams, now, now + self.timing.deadline_s, ready, places)
        self.state.on_submitted(reduce, now)
        if self.state.decided is not None:
            self._want(reduce, now)
        return reduce.handle

    def fill(self, handle: int, payloads: NDArray[np.uint8]) -> None:
        """Take the payloads of an all-reduce's next chunks, uint8[n, up_bytes(op)], copied; ignore one that is over."""
        for reduce in self.state.active:
            if reduce.handle == handle:
                reduce.fill(payloads)
                self.state.release()

    def receive_datagram(self, data: bytes | memoryview, now: float) -> None:
        """Take one datagram from the switch's address. Anything that is no use is counted and ignored."""
        if not self.runs:
            return
        self.absence.end()
        self._heard = True
        try:
            header, values = split_datagram(data)
            position = self._own_position(header, values)
        except WireError as refused:
            self.statistics.ignored[refused.reason] += 1
            self._ignored_packets.note(f"a datagram refused as {refused.reason.name} ({refused})")
            return
        # W3: a RESULT of this generation counts for a position that lacks it, sent or not. The first one stays.
        if header.kind == Kind.RESULT:
            self.state.accept(header, values, position, now)
        elif header.kind == Kind.STATE:
            # P2: a STATE settles no sum.
            self._prober.take(header)
            if self._is_of_a_double(header, position):
                self._fail(double(self.membership, header))
                return
            self._require_company()
            self._require_long_ones(now)
        else:
            self._on_stale(header, position, now)

    def receive_peer(self, message: PeerMessage, now: float) -> None:
        """Take one message of a peer. Anything that is no use is counted and ignored.

        message              RUN                                 SEALED, OVER
        FETCH                answered by FOUND, GONE or not      the same (E2)
        FOUND                accepted like a RESULT (W3)         nothing
        GONE                 another peer is asked; none left:   nothing
                             FellBehindError
        DONE, LEAVE,         see repair.py                       the same
        PROGRESS_QUERY
        """
        repair = self.repair
        reason = "no peers" if repair is None else peer_fault(message, self.membership)
        if repair is None or reason:
            self.statistics.peers_ignored[reason] += 1
            return
        if message.kind is PeerKind.FETCH:
            repair.answer(message, self.state.in_progress(self.stream.position(message.slot, message.round)))
        elif message.kind is PeerKind.FOUND and self.runs:
            self._on_found(message, now)
        elif message.kind is PeerKind.GONE and self.runs:
            position = self.stream.position(message.slot, message.round)
            if repair.note_gone(position, message.sender, now):
                self._fail(fell_behind(self.membership, self.stream.place(position)))
                return
        else:
            repair.take(message)
        if self.runs:
            self.state.release()
            # P4: a sum may wait for just this worker. The switch says so.
            if message.kind is PeerKind.LEAVE:
                self.probe()

    def note_unreachable(self, now: float) -> None:
        """Take 'port unreachable' from the network: no socket at the switch's address: a loss, unless it lasts (A2)."""
        self._ignored_packets.note("'port unreachable'")
        self.absence.note(now)
        # A2, and only while something is in progress: an idle worker does not need its switch.
        if self.runs and self.state.active and self.absence.is_over_limit:
            self._fail(switch_gone(self.membership, self.absence.answers, self.absence.lasted_s))

    def note_failed_send(self, errno_name: str) -> None:
        """Take the word of this host that it did not send, by the errno's name: a loss."""
        self._ignored_packets.note(f"{errno_name} of this host, which sent nothing{unsent_remedy(errno_name)}")

    def note_address_gone(self, ip: str, now: float) -> None:
        """Take the word of this host that the socket's address is no longer one of its own: a loss, unless it lasts."""
        self._ignored_packets.note(f"looks that did not find {ip}, this rank's address, on this host")
        self._address_lost.note(now)
        if self.runs and self.state.active and self._address_lost.is_over_limit:
            self._fail(address_gone(self.membership, ip, self._address_lost.lasted_s))

    def handle_timer(self, now: float) -> None:
        """Queue what is due again, ask before a deadline, and give up what is past it."""
        if not self.runs:
            return
        for reduce in self.in_progress:
            # Its payloads follow from the sums of all-reduces before it, which have the time that they have.
            if not reduce.ready:
                reduce.deadline_at = now + self.timing.deadline_s
        # The oldest all-reduce has the first deadline, and explains the wait best. All others fail with it.
        if self.in_progress and self.in_progress[0].deadline_at <= now:
            self._fail(self._late_error(self.in_progress[0], now))
            return
        if self.in_progress and self._is_unknown(self.in_progress[0], now):
            waited_s = now - self.in_progress[0].submitted_at
            self._fail(never_answered(self.membership, self.statistics.probes, waited_s))
            return
        late = self.queue.handle_timer(now)
        if self.repair is not None:
            # W6: what stays without an answer is asked of peers as well as sent again.
            sent = {position: self.queue.sent(position) for position in late}
            self.repair.handle_timer(sent, self.state.held_back(), now)
            self.state.release()
        self._prober.handle_timer(self.state.active, now)

    def postpone_deadlines(self, now: float) -> None:
        """Give the all-reduces in progress all of their time again: a newcomer that they wait for is on its way."""
        for reduce in self.in_progress:
            reduce.deadline_at = now + self.timing.deadline_s
        if self.repair is not None:
            self.repair.excuse(now)

    def probe(self) -> None:
        """Ask the switch for the ranks that the oldest open sum waits for. `missing_text` words the answer."""
        if self.runs:
            self._prober.ask()

    def missing_text(self) -> str:
        """Return in words what is awaited and from which ranks, as far as known; empty where nothing is in progress."""
        if not self.state.active:
            return ""
        if self._prober.oldest is not None:
            missing = sum(reduce.missing for reduce in self.state.active)
            chunks = "1 chunk" if missing == 1 else f"{missing} chunks"
            return f"the result of {chunks} from {self.membership.switch}: {self._prober.finding()}"
        wanted, behind = self._behind
        if wanted:
            return f"{len(wanted)} results that were decided before this generation, from the peers that hold them"
        return f"{name_ranks(behind)} to hold an earlier all-reduce" if behind else "results"

    def left_s(self, now: float) -> float:
        """Return the seconds to the deadline of the oldest all-reduce in progress, or 0 without one."""
        return max(0.0, self.in_progress[0].deadline_at - now) if self.in_progress else 0.0

    # ---- outputs ------------------------------------------------------------------------------------

    def segments_to_send(self, now: float) -> list[NDArray[np.uint8]]:
        """Take the datagrams that are due now, in order, and set their timers.

        Returns:
            Read-only uint8[n, bytes] each, one datagram a row. They stay valid and unchanged.
        """
        if not self.runs:
            return []
        probes = [np.frombuffer(probe, np.uint8)[None] for probe in self._prober.outgoing]
        self._prober.outgoing.clear()
        self.statistics.probes += len(probes)
        # PROBEs go first: they are small, and the answer words an error that is near.
        due, flush = self.queue.take(now)
        return [*probes, *segments_of(due, flush, self.state.active)] if due.size else probes

    def datagrams_to_send(self, now: float) -> list[memoryview]:
        """Take the same datagrams as `segments_to_send`, one by one."""
        return [memoryview(row) for segments in self.segments_to_send(now) for row in segments]

    def messages_to_peers(self) -> list[tuple[int, PeerMessage]]:
        """Take the messages to peers that are due now, as (rank, message)."""
        if self.repair is None:
            return []
        outgoing, self.repair.outgoing = self.repair.outgoing, []
        return outgoing

    def done_for_peers(self) -> PeerMessage | None:
        """Take the DONE that all peers should have soon, if there is one. The next one takes its place (R2)."""
        return None if self.repair is None else self.repair.take_done()

    @property
    def is_idle(self) -> bool:
        """True while no all-reduce is in progress."""
        return not self.state.active

    @property
    def waits_for_peers(self) -> bool:
        """Say whether a message of a peer would help now: the caller should look often."""
        if not self.runs or self.repair is None:
            return False
        return bool(self.repair.asked) or self.state.held_back() is not None

    def get_timer(self) -> float | None:
        """Return the time at which `handle_timer` is due, or None if nothing is in progress."""
        active = self.in_progress
        if not self.runs or not active:
            return None
        peers_at = inf if self.repair is None else self.repair.timer(self.state.held_back())
        # The oldest all-reduce has the first deadline.
        return min(active[0].deadline_at, self._prober.timer(active), self.queue.timer(), peers_at)

    def next_event(self) -> AllReduceEvent | None:
        """Return the next event, or None."""
        return self.events.popleft() if self.events else None

    # ---- a compiled loop in the worker's place ---------------------------------------------------------

    @property
    def is_plain(self) -> bool:
        """Say whether the worker waits for RESULTs in the order of its slots, and for nothing else.

        A compiled loop (worker_loop.py) may then work on `queue`, `state` and the all-reduces in progress. It
        leaves all of them as `receive_datagram` and `segments_to_send` would, and calls `state.deliver`.
        """
        state, repair = self.state, self.repair
        # The compiled loop knows no early or decided results: it would send positions that need no sending (E3).
        if not self.runs or state.decided is not None or state.early:
            return False
        return not (self.queue.again or self._prober.outgoing or (repair is not None and repair.asked))

    # ---- rules --------------------------------------------------------------------------------------

    def _own_position(self, header: Header, values: bytes | memoryview) -> int:
        """Return the stream position that a reply to this worker names.

        Raises:
            WireError: the reply is of another generation or for another rank, or one of its fields is out of range.
        """
        own = self.membership
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
            return self.stream.position(header.slot, header.round)
        except ValueError as outside:
            raise WireError(Drop.BAD_ROUND, str(outside)) from outside

    def _on_found(self, found: PeerMessage, now: float) -> None:
        """Accept what a peer sends as if the switch had sent it (W3)."""
        header = Header(
            kind=Kind.RESULT, op=found.op, worker=self.membership.rank, slot=found.slot, generation=found.generation,
            round=found.round, contributors=found.value, length=len(found.payload),
        )  # fmt: skip
        try:
            position = self._own_position(header, found.payload)
        except WireError as refused:
            self.statistics.peers_ignored[refused.reason.name.lower()] += 1
            return
        self.state.accept(header, found.payload, position, now, from_peer=True)

    def _on_stale(self, header: Header, position: int, now: float) -> None:
        self._ignored_packets.note(f"STALE(slot {header.slot}, asked {header.round}, held {header.held})")
        # A STALE for a position that was never sent answers another generation's or a forged UPDATE.
        if not self.queue.sent(position):
            self.statistics.stale_ignored += 1
        elif self._is_of_a_double(header, position):
            self._fail(double(self.membership, header))
        elif self.repair is not None:
            lacking = self.state.lacking(position, header.held, AHEAD)
            self.repair.ask_named(lacking, header.contributors, now, self.queue.rtt.rto_s)
        else:
            self._fail(round_lost(self.membership, header))

    def _is_of_a_double(self, header: Header, position: int) -> bool:
        """Say whether the switch has a later round of a slot from this rank, which has sent none (W1)."""
        # W1: a round is sent only when all earlier ones of its slot are held. So no delay explains it.
        named = header.contributors >> self.membership.rank & 1
        lacks = self.queue.sent(position) and not self.state.is_held(position, self.state.find(position))
        return bool(named and header.held > header.round and lacks)

    def _require_company(self) -> None:
        """Fail if the oldest open sum waits for workers that have left without it (P4)."""
        oldest = self.queue.oldest
        if self.repair is None or oldest is None or not self.state.active:
            return
        left = tuple(rank for rank in self._prober.awaited_ranks() if self.repair.has_left_before(rank, oldest))
        if left:
            self._fail(finished_early(self.membership, self.stream.place(oldest), left))

    def _require_long_ones(self, now: float) -> None:
        """Fail if the switch has answered for too long, while an UPDATE or RESULT is lost (A3)."""
        oldest = self.queue.oldest
        if oldest is None or not self.in_progress:
            self._long_lost.end()
            return
        reduce, kind = self.in_progress[0], self._prober.lost_kind()
        if kind is None or oldest != self._lost_position:
            self._long_lost.end()
            self._lost_position = oldest
        if kind is None:
            return
        self._long_lost.note(now)
        if self._long_lost.is_over_limit and self._prober.other_op(reduce.op):
            # Neither side takes the other's operation: that is the cause, and no datagram's length.
            self._fail(self._late_error(reduce, now))
        elif self._long_lost.is_over_limit:
            place, sent = self.stream.place(oldest), self.queue.sent(oldest)
            self._fail(long_ones_lost(self.membership, place, kind, sent, self._long_lost.lasted_s))

    def _is_unknown(self, reduce: AllReduce, now: float) -> bool:
        """Say whether the switch has never answered this worker, for `unreachable_s` and several PROBEs (A4)."""
        # The compiled loop counts its RESULTs, and does not come by `receive_datagram`.
        if self._heard or self.statistics.results or self.statistics.probes < PROBES_UNKNOWN or not reduce.ready:
            return False
        limit_s = self.timing.unreachable_s
        return limit_s is not None and now - reduce.submitted_at >= limit_s

    @property
    def _behind(self) -> tuple[list[int], list[int]]:
        """The decided positions that lack here, and the ranks that did not say to hold an earlier all-reduce."""
        return ([], []) if self.repair is None else (self.repair.lacking, self.repair.store.unproved())

    def _late_error(self, reduce: AllReduce, now: float) -> AllReduceError:
        """Return the error of an all-reduce past its deadline."""
        own, waited_s, oldest = self.membership, now - reduce.submitted_at, self.queue.oldest
        if oldest is not None:
            # The error says what came instead of the result, and what the switch says of the sum.
            asked = (self._ignored_packets, self._prober)
            return no_answer(own, reduce, self.stream.place(oldest), self.queue.sent(oldest), waited_s, asked)
        wanted, behind = self._behind
        if wanted:
            return not_caught_up(own, self.stream.place(wanted[0]), len(wanted), waited_s)
        return held_back(own, waited_s, behind)

    def _require_going(self) -> None:
        if self._failure is not None:
            raise GenerationEndedError(
                f"generation {self.membership.generation} is over: {self._failure}"
            ) from self._failure

    def _want(self, reduce: AllReduce, now: float) -> None:
        """Have the decided results of an all-reduce fetched."""
        if self.repair is not None and self.state.decided is not None:
            self.repair.want(lacking(reduce, self.state.decided), now)

    def _fail(self, error: AllReduceError) -> None:
        """End the generation for this worker: every all-reduce in progress has the same cause."""
        self.runs = False
        # From now on the worker is OVER: all ranks of the generation must begin a new one.
        self._failure = error
        self.events.extend(AllReduceFailed(reduce.handle, error) for reduce in self.state.active)
        self.queue.clear()
        for pending in (self.state.active, self.state.early, self._prober.outgoing):
            pending.clear()


# A switch that is not there: its host says so, again and again, and nothing else comes from it.
#
# Rules
#     A1  An answer 'port unreachable' is a loss, as any datagram may be lost. A series of them is an absence: no two
#         lie further apart than `gap_s`, and no datagram of the switch came since the first.
#     A2  An absence that has lasted `unreachable_s`, from its first answer to its latest, ends the generation for this
#         worker.
#         So a single answer ends nothing, however long ago it was.
#     A3  A series of STATEs about its oldest position that lack this worker's UPDATE, or have the sum, is one too, and
#         ends the generation for it: no two lie further apart than `STATE_GAP_S`. PROBEs and STATEs are short and
#         arrive. UPDATEs and RESULTs are long.
#     A4  A switch answers each PROBE of a worker that it knows. No datagram at all from it for `unreachable_s`, since
#         the worker was made and after several PROBEs, ends the generation for this worker.
#     A5  An address that has not been one of this host's for `unreachable_s` ends it too.


GAP_LEAST_S = 5.0
# A worker that waits asks every five seconds: two PROBEs may be lost.
STATE_GAP_S = 16.0
PROBES_UNKNOWN = 4


class Absence:
    """Bad answers of the network or of the switch of one worker: since when, and how many."""

    def __init__(self, timing: Timing, gap_s: float) -> None:
        self._limit_s, self._gap_s = timing.unreachable_s, gap_s
        self._first = self._last = 0.0
        self.answers = 0
        """The answers since the absence began, 0 without an absence."""

    @property
    def lasted_s(self) -> float:
        """Return the seconds from the first answer to the latest."""
        return self._last - self._first if self.answers else 0.0

    @property
    def is_over_limit(self) -> bool:
        """Whether the switch has been unreachable for longer than the limit `unreachable_s` (A2)."""
        return self._limit_s is not None and self.answers > 1 and self.lasted_s >= self._limit_s

    def note(self, now: float) -> None:
        """Count one more bad answer about this worker's switch."""
        if not self.answers or now - self._last > self._gap_s:
            self.answers, self._first = 0, now
        self.answers, self._last = self.answers + 1, now

    def end(self) -> None:
        """Take a datagram of the switch, or another generation: it begins anew."""
        self.answers = 0
