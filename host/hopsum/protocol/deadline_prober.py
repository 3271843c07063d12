# SPDX-License-Identifier: Apache-2.0
"""The prober of a worker: it asks the switch about the oldest position before a deadline, and explains the answer.

P1 to P4 of docs/protocol.md. PROBEs are sent from some time before the deadline of the oldest all-reduce on, as long as
no STATE about its oldest position is here. The caller may have one sent at any time.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Final

from hopsum.errors import name_ranks
from hopsum.protocol.retransmit_queue import RetransmitQueue
from hopsum.protocol.stream import SlotRound, Stream
from hopsum.protocol.worker_state import AllReduce, Membership, Timing
from hopsum_wire import Header, Kind, Op, State

PROBES: Final = 4
"""PROBEs before a deadline: one and its answer may be lost on the way."""
LEAD_MAX_S: Final = 1.0


class DeadlineProber:
    """Asks the switch (PROBE) before a deadline about the oldest position without a RESULT; keeps the last answer."""

    def __init__(self, membership: Membership, timing: Timing, stream: Stream, outbox: RetransmitQueue) -> None:
        self._membership, self._stream, self._queue = membership, stream, outbox
        self._lead_s = min(LEAD_MAX_S, timing.deadline_s / 4)
        self._asked_at = -inf
        """The time of the last PROBE before a deadline."""
        self._place: SlotRound | None = None
        self._about = 0
        """PROBEs about it."""
        self._answer: Header | None = None
        self.outgoing: list[bytes] = []
        """PROBEs to be sent."""

    def timer(self, active: Sequence[AllReduce]) -> float:
        """Return the time of the next PROBE about the oldest open position, infinite for no further PROBE.

        `active`: all-reduces in progress, in the order of the stream.
        """
        if not active or self._queue.oldest is None:
            return inf
        begins_at = active[0].deadline_at - self._lead_s
        if self._asked_at < begins_at:
            return begins_at
        return inf if self.answer is not None else self._asked_at + self._lead_s / PROBES

    def handle_timer(self, active: Sequence[AllReduce], now: float) -> None:
        """Queue a PROBE if `timer` is due."""
        if self.timer(active) > now:
            return
        if self._asked_at < active[0].deadline_at - self._lead_s:
            # What the switch said before is too old for the words of an error.
            self._answer = None
        self._asked_at = now
        self.ask()

    def ask(self) -> None:
        """Queue a PROBE about the oldest open position in `outgoing`. Does nothing without an open position.

        The last answer stays until the next one.
        """
        own, place = self._membership, self.oldest
        if place is None:
            return
        self._about = self._about + 1 if self._place == place else 1
        self._place = place
        probe = Header(kind=Kind.PROBE, worker=own.rank, slot=place.slot, round=place.round, generation=own.generation)
        self.outgoing.append(probe.pack())

    def on_header(self, header: Header) -> None:
        """Store a STATE as the answer, if its position was asked about last. Ignore any other STATE."""
        if self._place == (header.slot, header.round):
            self._answer = header

    @property
    def oldest(self) -> SlotRound | None:
        """Return the place of the oldest open position, None if no position is open."""
        position = self._queue.oldest
        return None if position is None else self._stream.place(position)

    @property
    def answer(self) -> Header | None:
        """Return the last STATE if it is about the oldest open position, else None."""
        answer = self._answer
        return answer if answer is not None and (answer.slot, answer.round) == self.oldest else None

    def missing_ranks(self) -> tuple[int, ...]:
        """Return the ranks that the switch waits for, by its STATE. Empty without a STATE and for a closed sum."""
        answer = self.answer
        if answer is None or (answer.count, answer.held) != (State.COLLECTING, answer.round):
            return ()
        return tuple(rank for rank in self._membership.local_ranks if not answer.contributors >> rank & 1)

    def lost_kind(self) -> Kind | None:
        """Return the kind of datagram that gets lost, by the switch's STATE.

        UPDATE: the switch lacks this worker's. RESULT: it has the sum. None: the sum waits for another rank, or the
        STATE does not tell.
        """
        answer = self.answer
        if answer is None or answer.held > answer.round:
            return None
        if answer.held < answer.round or answer.count == State.EMPTY:
            return Kind.UPDATE
        if answer.count == State.CLOSED:
            return None
        if missing := self.missing_ranks():
            return Kind.UPDATE if self._membership.rank in missing else None
        return Kind.RESULT

    def awaited_ranks(self) -> tuple[int, ...]:
        """Return the ranks that the sum waits for: those missing at this switch, or all of the other racks (P3)."""
        answer = self.answer
        # P3: a closed leaf has all of its rack, so the sum waits for ranks elsewhere.
        if answer is not None and (answer.count, answer.held) == (State.CLOSED, answer.round):
            return tuple(self._membership.remote_ranks)
        return self.missing_ranks()

    def other_op(self, op: int) -> str:
        """Return a sentence for an error if the switch sums by another operation than `op`, else an empty string."""
        answer = self.answer
        if answer is None or answer.held != answer.round or answer.op in (0, op):
            return ""
        return f"The switch sums this round by {Op(answer.op).name} and this rank sent {Op(op).name}: codecs differ. "

    def finding(self) -> str:
        """Return the last STATE in words: the missing ranks, or the lost datagram. Without one: unanswered PROBEs."""
        own, answer = self._membership, self.answer
        if answer is None:
            about = self._about if self._place == self.oldest else 0
            why = "the switch cannot be reached, does not know this worker, or is busy"
            return f"{about} PROBEs about it had no answer: {why}"
        arrived = name_ranks([rank for rank in range(own.workers) if answer.contributors >> rank & 1])
        others, where = own.remote_ranks, str(SlotRound(answer.slot, answer.round))
        if missing := self.missing_ranks():
            are = "is" if len(missing) == 1 else "are"
            told = f"{name_ranks(missing)} {are} missing in {where} (arrived: {arrived})"
            return told + (f"; its leaf does not see {name_ranks(others)}" if others else "")
        if answer.count == State.EMPTY or answer.held < answer.round:
            return f"no rank's UPDATE of {where} has reached the switch, this rank's neither"
        if answer.held > answer.round:
            return f"the switch has moved on to round {answer.held} of slot {answer.slot} with {arrived}"
        if answer.count == State.CLOSED:
            whose = f" ({name_ranks(others)})" if others else ""
            return (
                f"{where} has {arrived} below this leaf, whose sum went to its parent: that waits for another "
                f"rack{whose}, or does not answer"
            )
        return f"{where} is complete on the switch with {arrived}: its RESULT does not reach this rank"
