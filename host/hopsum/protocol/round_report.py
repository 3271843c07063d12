# SPDX-License-Identifier: Apache-2.0
"""The progress of a round at the switch, by its STATE: one classification, for errors and for rules A3, P3 and P4."""

from __future__ import annotations

from enum import Enum, auto

from hopsum.errors import name_ranks
from hopsum.protocol.stream import SlotRound
from hopsum.protocol.worker_state import Membership
from hopsum_wire import Header, Kind, Op, State


class RoundProgress(Enum):
    """The progress of a round at a worker's switch."""

    UNKNOWN = auto()
    """The switch has not answered."""
    NOTHING = auto()
    """No UPDATE of the round has arrived."""
    LACKS_RANKS = auto()
    """UPDATEs of some ranks at this switch are missing."""
    CLOSED = auto()
    """At a leaf: its rack is complete, and its parent has the partial sum."""
    COMPLETE = auto()
    OVERTAKEN = auto()
    """The slot has a later round."""


class RoundReport:
    """The report of one STATE about a round, or of no answer.

    Args:
        state: None: the switch has not answered.
        probes: PROBEs about the round so far.
    """

    def __init__(self, own: Membership, state: Header | None, probes: int) -> None:
        self._own, self._state, self._probes = own, state, probes
        self.missing_ranks: tuple[int, ...] = ()
        """The ranks at this switch whose UPDATEs are missing, if it says which."""
        self.progress = self._progress()

    def _progress(self) -> RoundProgress:
        state = self._state
        if state is None:
            return RoundProgress.UNKNOWN
        if state.held < state.round:
            return RoundProgress.NOTHING
        if state.held > state.round:
            return RoundProgress.OVERTAKEN
        if state.count == State.CLOSED:
            return RoundProgress.CLOSED
        if state.count == State.COLLECTING:
            self.missing_ranks = tuple(rank for rank in self._own.local_ranks if not state.contributors >> rank & 1)
        return RoundProgress.LACKS_RANKS if self.missing_ranks else RoundProgress.COMPLETE

    @property
    def lost_kind(self) -> Kind | None:
        """The kind of datagram that gets lost.

        UPDATE: the switch lacks this worker's. RESULT: it has the sum. None: the sum waits for another rank, or the
        STATE does not tell.
        """
        if self.progress is RoundProgress.NOTHING or self._own.rank in self.missing_ranks:
            return Kind.UPDATE
        return Kind.RESULT if self.progress is RoundProgress.COMPLETE else None

    @property
    def awaited_ranks(self) -> tuple[int, ...]:
        """The ranks that the sum waits for: those missing at this switch, or all of the other racks (P3)."""
        # P3: a closed leaf has all of its rack, so the sum waits for ranks elsewhere.
        return self._own.remote_ranks if self.progress is RoundProgress.CLOSED else self.missing_ranks

    def other_op(self, op: int) -> str:
        """Return a sentence for an error if the switch sums by another operation than `op`, else an empty string."""
        state = self._state
        if state is None or state.held != state.round or state.op in (0, op):
            return ""
        return f"The switch sums this round by {Op(state.op).name} and this rank sent {Op(op).name}: codecs differ. "

    def __str__(self) -> str:
        """Return the report in words: the missing ranks, or the lost datagram. Without STATE: unanswered PROBEs."""
        state = self._state
        if state is None:
            why = "the switch cannot be reached, does not know this worker, or is busy"
            return f"{self._probes} PROBEs about it had no answer: {why}"
        arrived = name_ranks([rank for rank in range(self._own.workers) if state.contributors >> rank & 1])
        others, where = self._own.remote_ranks, SlotRound(state.slot, state.round)
        if self.progress is RoundProgress.LACKS_RANKS:
            are = "is" if len(self.missing_ranks) == 1 else "are"
            told = f"{name_ranks(self.missing_ranks)} {are} missing in {where} (arrived: {arrived})"
            return told + (f"; its leaf does not see {name_ranks(others)}" if others else "")
        if self.progress is RoundProgress.NOTHING:
            return f"no rank's UPDATE of {where} has reached the switch, this rank's neither"
        if self.progress is RoundProgress.OVERTAKEN:
            return f"the switch has moved on to round {state.held} of slot {state.slot} with {arrived}"
        if self.progress is RoundProgress.CLOSED:
            whose = f" ({name_ranks(others)})" if others else ""
            return (
                f"{where} has {arrived} below this leaf, whose sum went to its parent: that waits for another "
                f"rack{whose}, or does not answer"
            )
        return f"{where} is complete on the switch with {arrived}: its RESULT does not reach this rank"
