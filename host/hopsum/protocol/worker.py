# SPDX-License-Identifier: Apache-2.0
"""The state machine of one worker through the generations of a job, without I/O.

The caller owns sockets and clock. After every input (`submit`, `receive_datagram`, `receive_peer`, `handle_timer`) the
caller sends all of `segments_to_send` (or `datagrams_to_send`: the same) and `messages_to_peers`, later also
`done_for_peers`, drains `next_event`, and waits for the next input or until `get_timer`.

This worker is the reference. On a UDP socket a compiled loop receives in-order RESULTs in its place, with the same
final state as if the worker had received them one by one (hopsum.transport.worker_loop).

Rules (docs/protocol.md)                  Where
    N1-N4  numbers of positions           stream.py
    W1, W3, W5  results and delivery      stream_state.py
    W2, S8 transmission of positions      retransmit_queue.py
    W4, W6, E3 requests to peers          result_requests.py
    R      repair between peers           repair.py, result_store.py
    P      PROBE before a deadline        switch_watch.py, with deadline_prober.py, round_report.py
    A      an unreachable switch          switch_watch.py, with absence.py
    E2-E4  another generation             generation_change.py

Positions                                                   Worker
    state     meaning                                           RUN    sends, accepts, delivers
    QUEUED    an earlier round of its slot is not held, or      SEALED between `seal` and `resume`: sends nothing,
              its all-reduce is held back (R2) or not filled           accepts nothing, serves peers; no deadlines
    AWAITED   open: sent or retransmitted, no result yet        OVER   an all-reduce failed: as SEALED, for good
    WANTED    decided in a generation change, lacks the result
    HELD      result accepted

    state     input                                 next        also
    QUEUED    previous round of its slot held       AWAITED     sent when the window has room
    AWAITED   timer                                 AWAITED     retransmission: same bytes, longer timeout
    AWAITED   flush_after_s has passed              AWAITED     retransmission: same bytes, with FLUSH
    AWAITED   deadline near, it is the oldest       AWAITED     PROBE
    any       STATE                                 -           kept for the message of AllReduceTimeoutError
    any       `resume`                              (reset)     see generation_change.py
    WANTED    FOUND                                 HELD        next round of the slot opens; perhaps delivery
    any       RESULT or FOUND that W3 accepts       HELD        next round of the slot opens; perhaps delivery
    AWAITED   STALE that names it, with peers       AWAITED     FETCH to a contributor that the STALE names
    AWAITED   STALE that names it, without peers    -           OVER: ResultLostError
    AWAITED   STALE or STATE of a later round       -           OVER: ResultLostError
              that has this rank
    AWAITED   GONE from all peers                   -           OVER: FellBehindError
    QUEUED    enough earlier all-reduces proved     AWAITED     all-reduce is no longer held back (R2)
    AWAITED   deadline of its all-reduce            -           OVER: AllReduceTimeoutError
"""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hopsum.errors import AllReduceError, GenerationEndedError
from hopsum.protocol.decided_ranges import DecidedRanges
from hopsum.protocol.failures import fell_behind, round_lost
from hopsum.protocol.generation_change import JoinPoint, carry_over, missing_decided, require_fitting, sealed_report
from hopsum.protocol.peer_messages import PeerKind, PeerMessage
from hopsum.protocol.repair import PeerRepair, RepairPolicy, peer_fault
from hopsum.protocol.result_requests import AHEAD
from hopsum.protocol.retransmit_queue import RetransmitQueue, segments_of
from hopsum.protocol.stream import Stream
from hopsum.protocol.stream_state import StreamState
from hopsum.protocol.switch_watch import SwitchWatch
from hopsum.protocol.worker_state import (
    AllReduce,
    AllReduceDone,
    AllReduceEvent,
    AllReduceFailed,
    IgnoredPackets,
    Membership,
    Places,
    PositionResult,
    Timing,
    WorkerStatistics,
    places_for,
)
from hopsum_wire import Drop, Header, Kind, WireError, split_datagram
from hopsum_wire.datagrams import Allocate, new_bytes, stamp_datagrams, update_template
from hopsum_wire.generations import Resume, Sealed

__all__ = ["AllReduceDone", "AllReduceFailed", "Membership", "RepairPolicy", "Timing", "Worker", "WorkerStatistics"]


class Worker:
    """The state machine of the slot protocol for one rank (in a job with shards: for one of its shards).

    Args:
        repair: the policy of repair from peers. None: the worker has no peers.
        resume: the state of the job's stream, for a worker made in a later generation. A newcomer begins at `start`.
        allocate: makes the arrays of datagrams, and of results without `places`.

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
        allocate: Allocate = new_bytes,
    ) -> None:
        self.membership = membership
        self.timing = timing or Timing()
        self.statistics = WorkerStatistics()
        self.stream = Stream(membership.slots, 0 if resume is None else resume.base)
        if resume is not None and resume.start is not None:
            self.stream.end = resume.start
        self.repair = PeerRepair(membership, self.stream, repair, self.statistics)
        """The repair from peers. The caller sends its LEAVE."""
        self._allocate = allocate
        self._ignored_packets = IgnoredPackets()
        self.state: Final = StreamState(self.stream, self.repair, self.statistics, self._ignored_packets)
        """The all-reduces and results of the stream, and the positions that may be sent."""
        self.join_point = JoinPoint(self.state, resume)
        self.watch: Final = SwitchWatch(self.state, self.timing, self.statistics, self._ignored_packets)
        """The watch over the switch: it decides whether the switch's answers, or their absence, end the generation."""
        self._ended: Sealed | AllReduceError | None = None
        """None in RUN, the report in SEALED, and the error in OVER."""
        self._handles = 0
        self._enter(DecidedRanges(() if resume is None else resume.decided), 0.0)

    def _enter(self, decided: DecidedRanges, now: float) -> None:
        """Begin a generation with empty queues and no measured round trip."""
        own = self.membership
        self.queue = RetransmitQueue(own.slots, self.timing, self.statistics)
        self.watch.enter(own, self.queue)
        self.state.enter(own, decided, self.queue)
        self.repair.enter(own, decided, now)
        # R2: peers may drop the results that this worker holds.
        self.repair.announce(self.state.delivered_to)

    @property
    def runs(self) -> bool:
        """Say whether the worker is in RUN: its generation is neither sealed nor ended."""
        return self._ended is None

    # ---- generations -------------------------------------------------------------------------------------

    def seal(self) -> Sealed:
        """Seal this generation (E2): send and accept nothing more, and return the results held.

        They do not change until `resume`.

        Raises:
            GenerationEndedError: an all-reduce failed on this rank only, so its results may differ from other ranks'.
        """
        own = self.membership
        if isinstance(self._ended, AllReduceError):
            raise GenerationEndedError(f"generation {own.generation} has ended: {self._ended}") from self._ended
        if self._ended is None:
            # E2: results kept for peers count as held, since this worker can still hand them out.
            self._ended = sealed_report(own.generation, self.state, self.repair.store.runs)
        return self._ended

    def resume(
        self,
        generation: int,
        resume: Resume,
        now: float,
        rack: tuple[int, ...] | None = None,
        absent: frozenset[int] = frozenset(),
    ) -> None:
        """Leave SEALED and continue in another generation (E3, E4).

        All-reduces in progress get new deadlines. Their results that `resume` does not list as decided are discarded,
        and their chunks are sent again. An all-reduce with a void position fails: its event has a WorkersReplacedError.

        Args:
            generation: another one than the current.
            resume: the continuation of the stream, the same on all ranks.
            now: seconds of the clock of `submit`.
            rack: as in `Membership`, for the new generation. None: all ranks, not the former rack.
            absent: as in `Membership`, for the new generation.

        Raises:
            ValueError: the worker is not sealed or has no peers, or `resume`, the generation or the rack does not fit.
                Nothing has changed.
        """
        if not isinstance(self._ended, Sealed) or not self.repair.has_peers or generation == self.membership.generation:
            raise ValueError(f"only a sealed worker with peers continues, in another generation than {generation}")
        membership = replace(self.membership, generation=generation, rack=rack, absent=absent)
        # Everything is checked before anything changes: a refusal leaves the worker sealed.
        decided = require_fitting(resume, self.join_point, self.state)
        self.membership, self._ended = membership, None
        # N4: rounds begin again at the base. Positions stay.
        self.stream.renumber(resume.base)
        self.join_point.on_resume(resume)
        # E3: held undecided results are discarded, missing decided ones are fetched, the others are sent again.
        carry_over(self.state, decided, self.join_point, generation)
        self.join_point.skip()
        self._enter(decided, now)
        for reduce in self.state.active:
            # The time of the change does not count as a wait for the switch.
            reduce.submitted_at, reduce.deadline_at = now, now + self.timing.deadline_s
        self.state.release()
        for reduce in self.state.active:
            self._want(reduce, now)

    def resume_at(self, start_generation: int, start: int) -> None:
        """Note that the program knows of the newcomers of a generation: `submit` continues at their `start`.

        If a later generation has other newcomers, positions before their start are skipped, and `submit` waits for the
        program to know of them.
        """
        self.join_point.resume_at(start_generation, start)
        if self._ended is None and self.join_point.skip():
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
            op: of all chunks.
            payloads: uint8[chunks, up_bytes(op)], at least one chunk; copied.
            now: seconds of a monotonic clock, the same clock in all calls.
            counts: [chunks] or a scalar, elements in use, 0 by default.
            ready: number of first chunks whose payloads are valid; `fill` brings the others. None: all.
            places: memory for the results (`places_for`); by default new arrays.

        Raises:
            GenerationEndedError: the generation has ended or is sealed. Continue in a new one.
            WorkersReplacedError: the program does not know of the newcomers yet, see `resume_at`.
            WireError: unknown op, or payloads of another shape.
                After any of these nothing was submitted.
        """
        own, stream, chunks = self.membership, self.stream, len(payloads)
        if self._ended is not None:
            self.seal()  # raises where the worker is OVER
            raise GenerationEndedError(f"generation {own.generation} is sealed: submit it when the job has resumed")
        self.join_point.require_resumed()
        template = update_template(op=op, generation=own.generation, worker=own.rank)
        if not chunks:
            raise WireError(Drop.BAD_LENGTH, "an all-reduce has at least one chunk")
        # N4: refused before anything is stamped, so that a refusal takes no position.
        slots, rounds = stream.next_places(chunks)
        ready = chunks if ready is None else ready
        # W2: the bytes of an UPDATE are frozen here. A retransmission sends the same bytes.
        datagrams = stamp_datagrams(
            template,
            slots=slots,
            rounds=rounds,
            counts=0 if counts is None else counts,
            payloads=payloads[:ready],
            allocate=self._allocate,
        )
        first, stream.end = stream.end, stream.end + chunks
        if not self.state.active:
            self._ignored_packets.seen.clear()
        self._handles += 1
        # E4: positions before a newcomer's start that are not decided are void on all ranks.
        if self.join_point.voids(first, stream.end, self.state.decided):
            # Void phases may be longer on this rank than on others: all end where newcomers begin.
            stream.end = min(stream.end, self.join_point.start)
            self.join_point.void(self._handles)
            return self._handles
        places = places or places_for(op, chunks, self._allocate)
        reduce = AllReduce(self._handles, op, first, datagrams, now, now + self.timing.deadline_s, ready, places)
        self.state.on_submitted(reduce, now)
        self._want(reduce, now)
        return reduce.handle

    def fill(self, handle: int, payloads: NDArray[np.uint8]) -> None:
        """Set the payloads of an all-reduce's next chunks, uint8[n, up_bytes(op)]; copied. Ignore an ended one."""
        reduce = self.in_progress(handle)
        if reduce is not None:
            reduce.fill(payloads)
            self.state.release()

    def in_progress(self, handle: int) -> AllReduce | None:
        """Return the all-reduce of a handle, None if it has ended."""
        for reduce in self.state.active:
            if reduce.handle == handle:
                return reduce
        return None

    def receive_datagram(self, data: bytes | memoryview, now: float) -> None:
        """Process one datagram from the switch's address. A datagram without use is counted and ignored."""
        if self._ended is not None:
            return
        self.watch.absences.on_datagram()
        try:
            header, values = split_datagram(data)
            position = self.state.position_of(header, values)
        except WireError as refused:
            self.statistics.ignored[refused.reason] += 1
            self._ignored_packets.note(f"a datagram refused as {refused.reason.name} ({refused})")
            return
        # W3: the first RESULT of this generation for a position is accepted, whether the position was sent or not.
        if header.kind == Kind.RESULT:
            self.state.accept(position, PositionResult(header.op, header.contributors, values), now)
        elif header.kind == Kind.STATE:
            self._end_by(self.watch.on_state(header, position, now))
        else:
            self._on_stale(header, position, now)

    def receive_peer(self, message: PeerMessage, now: float) -> None:
        """Process one message of a peer. A message without use is counted and ignored.

        message              RUN                                 SEALED, OVER
        FETCH                answered by FOUND, GONE or not      the same (E2)
        FOUND                accepted like a RESULT (W3)         ignored
        GONE                 FETCH to another peer; none left:   ignored
                             FellBehindError
        DONE, LEAVE,         see repair.py                       the same
        PROGRESS_QUERY
        """
        repair = self.repair
        reason = peer_fault(message, self.membership) if repair.has_peers else "no peers"
        if reason:
            self.statistics.peers_ignored[reason] += 1
            return
        if message.kind is PeerKind.FETCH:
            repair.answer(message, self.state.undelivered_result(self.stream.position(message.slot, message.round)))
        elif message.kind is PeerKind.FOUND and self._ended is None:
            self._on_found(message, now)
        elif message.kind is PeerKind.GONE and self._ended is None:
            position = self.stream.position(message.slot, message.round)
            if repair.requests.note_gone(position, message.sender, now):
                self._fail(fell_behind(self.membership, self.stream.place(position)))
        else:
            repair.on_message(message)
        if self._ended is None:
            self.state.release()
            # P4: a sum may wait for the worker that left, as the switch's answer tells.
            if message.kind is PeerKind.LEAVE:
                self.probe()

    def note_unreachable(self, now: float) -> None:
        """Count a 'port unreachable' answer (no socket at the switch's address). It may end the generation.

        One answer counts as a lost datagram. A series of `unreachable_s` (A2 of absence.py) fails all all-reduces in
        progress. A worker without an all-reduce in progress does not fail.
        """
        self._end_by(self.watch.on_unreachable(now))

    def note_address_gone(self, ip: str, now: float) -> None:
        """Count a check that did not find `ip`, this worker's address, on the host. It may end the generation.

        A series of `unreachable_s` (A5 of absence.py) fails all all-reduces in progress.
        """
        self._end_by(self.watch.on_address_gone(ip, now))

    def handle_timer(self, now: float) -> None:
        """Queue due retransmissions, PROBEs, and requests to peers. Fail after a deadline.

        Also fails for a switch that has never answered (A4 of absence.py). Failing ends the generation: every
        all-reduce in progress gets the error as its event.
        """
        active = self.state.active
        if self._ended is not None or not active:
            return
        for reduce in active:
            # Its payloads depend on earlier sums, which have their own deadlines.
            if not reduce.ready:
                reduce.deadline_at = now + self.timing.deadline_s
        if self._end_by(self.watch.on_timer(now)):
            return
        late = self.queue.handle_timer(now)
        if self.repair.peers:
            # W6: a position without an answer is both retransmitted and fetched from peers.
            sent = {position: self.queue.sent(position) for position in late}
            self.repair.handle_timer(sent, self.state.held_back(), now)
            self.state.release()
        self.watch.prober.handle_timer(active, now)

    def postpone_deadlines(self, now: float) -> None:
        """Restart the deadlines of all-reduces in progress, which wait for a newcomer that makes progress."""
        for reduce in self.state.active:
            reduce.deadline_at = now + self.timing.deadline_s
        self.repair.excuse(now)

    def probe(self) -> None:
        """Queue a PROBE for the missing ranks of the oldest open sum. Later `watch.missing_text` has the answer."""
        if self._ended is None:
            self.watch.prober.ask()

    # ---- outputs ------------------------------------------------------------------------------------

    def segments_to_send(self, now: float) -> list[NDArray[np.uint8]]:
        """Pop the datagrams that are due now, in order, and set their timers.

        Returns:
            Read-only uint8[n, bytes] each, one datagram a row. They stay valid and unchanged.
        """
        if self._ended is not None:
            return []
        outgoing = self.watch.prober.outgoing
        probes = [np.frombuffer(probe, np.uint8)[None] for probe in outgoing]
        outgoing.clear()
        self.statistics.probes += len(probes)
        # PROBEs go first: they are small, and an error that is near quotes their answer.
        due, flush = self.queue.pop_due(now)
        return [*probes, *segments_of(due, flush, self.state.active)] if due.size else probes

    def datagrams_to_send(self, now: float) -> list[memoryview]:
        """Pop the datagrams of `segments_to_send`, one by one."""
        return [memoryview(row) for segments in self.segments_to_send(now) for row in segments]

    def messages_to_peers(self) -> list[tuple[int, PeerMessage]]:
        """Pop the messages to peers that are due now, as (rank, message)."""
        outgoing, self.repair.outgoing = self.repair.outgoing, []
        return outgoing

    def done_for_peers(self) -> PeerMessage | None:
        """Pop the pending DONE for all peers, if there is one. A later DONE replaces an earlier one (R2)."""
        return self.repair.pop_done()

    @property
    def is_idle(self) -> bool:
        """Say whether no all-reduce is in progress."""
        return not self.state.active

    @property
    def waits_for_peers(self) -> bool:
        """Say whether the worker waits for a message of a peer: the caller should poll often."""
        return self._ended is None and (bool(self.repair.requests.asked) or self.state.held_back() is not None)

    def get_timer(self) -> float | None:
        """Return the time at which `handle_timer` is due, or None if nothing is in progress."""
        active = self.state.active
        if self._ended is not None or not active:
            return None
        peers_at = self.repair.timer(self.state.held_back()) if self.repair.peers else inf
        # The oldest all-reduce has the first deadline.
        return min(active[0].deadline_at, self.watch.prober.timer(active), self.queue.timer(), peers_at)

    def next_event(self) -> AllReduceEvent | None:
        """Pop the next event, None if there is none."""
        return self.state.events.popleft() if self.state.events else None

    # ---- a compiled loop in the worker's place ---------------------------------------------------------

    @property
    def can_run_compiled(self) -> bool:
        """Say whether the worker waits only for RESULTs in the order of its slots.

        A compiled loop (worker_loop.py) may then work on `queue`, `state` and the all-reduces in progress. It leaves
        them in the same state as `receive_datagram` and `segments_to_send` would, and calls `state.deliver`.
        """
        state = self.state
        # The compiled loop has no early or decided results, and would send their positions (E3).
        if self._ended is not None or state.decided is not None or state.early:
            return False
        return not (self.queue.again or self.watch.prober.outgoing or self.repair.requests.asked)

    # ---- rules --------------------------------------------------------------------------------------

    def _on_found(self, found: PeerMessage, now: float) -> None:
        """Accept a peer's FOUND like a RESULT of the switch (W3)."""
        header = Header(
            kind=Kind.RESULT, op=found.op, worker=self.membership.rank, slot=found.slot, generation=found.generation,
            round=found.round, contributors=found.value, length=len(found.payload),
        )  # fmt: skip
        try:
            position = self.state.position_of(header, found.payload)
        except WireError as refused:
            self.statistics.peers_ignored[refused.reason.name.lower()] += 1
            return
        self.state.accept(position, PositionResult(found.op, found.value, found.payload), now, from_peer=True)

    def _on_stale(self, header: Header, position: int, now: float) -> None:
        self._ignored_packets.note(f"STALE(slot {header.slot}, asked {header.round}, held {header.held})")
        # A STALE for a position that was never sent answers an UPDATE of another generation, or a forged one.
        if not self.queue.sent(position):
            self.statistics.stale_ignored += 1
        elif self._end_by(self.watch.duplicate_rank_error(header, position)):
            return
        elif self.repair.has_peers:
            missing = self.state.missing_before(position, header.held, AHEAD)
            self.repair.requests.ask_named(missing, header.contributors, now, self.queue.rtt.rto_s)
        else:
            self._fail(round_lost(self.membership, header))

    def _want(self, reduce: AllReduce, now: float) -> None:
        """Fetch the decided results of an all-reduce from peers."""
        if self.state.decided is not None:
            self.repair.requests.want(missing_decided(reduce, self.state.decided), now)

    def _end_by(self, error: AllReduceError | None) -> bool:
        """End the generation by an error, if there is one and something is in progress. Return whether it ended."""
        # An idle worker does not need its switch, and a sealed one begins another generation.
        if error is None or self._ended is not None or not self.state.active:
            return False
        self._fail(error)
        return True

    def _fail(self, error: AllReduceError) -> None:
        """End the generation for this worker: every all-reduce in progress has the same cause."""
        # The worker is OVER: all ranks of the generation must begin a new one.
        self._ended = error
        self.state.events.extend(AllReduceFailed(reduce.handle, error) for reduce in self.state.active)
        self.queue.clear()
        for pending in (self.state.active, self.state.early, self.watch.prober.outgoing):
            pending.clear()
