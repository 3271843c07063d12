# SPDX-License-Identifier: Apache-2.0
"""The prober of a worker: it asks the switch about the oldest position before a deadline, and keeps the answer.

P1 and P2 of docs/protocol.md. PROBEs are sent from some time before the deadline of the oldest all-reduce on, as long
as no STATE about its oldest position is here. The caller may have one sent at any time.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Final

from hopsum.protocol.retransmit_queue import RetransmitQueue
from hopsum.protocol.round_report import RoundReport
from hopsum.protocol.stream import SlotRound, Stream
from hopsum.protocol.worker_state import AllReduce, Membership, Timing
from hopsum_wire import Header, Kind

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

        `active`: all-reduces in progress, at least one, in the order of the stream.
        """
        if self._queue.oldest is None:
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

    @property
    def report(self) -> RoundReport:
        """Return the report about the oldest open position, from the last STATE."""
        return RoundReport(self._membership, self.answer, self._about if self._place == self.oldest else 0)
