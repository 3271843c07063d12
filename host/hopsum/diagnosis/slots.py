# SPDX-License-Identifier: Apache-2.0
"""The copies of a job's slots, by their STATEs: which are idle, which wait, and for which ranks.

A slot has two copies, of odd and of even rounds. The one with the newer round says where the slot is. A slot that is
COLLECTING waits for ranks below its switch. One that is CLOSED at a leaf of a tree waits for the leaf's parent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hopsum.diagnosis.probe_client import Place, ProbeReply
from hopsum_wire import State

PARITIES = (1, 2)
"""Rounds to ask for: any round of the parity finds the copy."""


class WaitingSlot(NamedTuple):
    """A slot whose sum is not complete."""

    slot: int
    round: int
    contributors: int
    """Bitmap."""
    closed: bool = False
    """Nobody below this switch is missing: the sum of this leaf's rack was sent to its parent."""

    def missing(self, rack: Sequence[int]) -> tuple[int, ...]:
        """Return the ranks of those below this switch whose contribution is not there."""
        return () if self.closed else tuple(rank for rank in rack if not self.contributors >> rank & 1)


@dataclass(frozen=True, slots=True)
class SlotStates:
    """The states of all slots that were probed."""

    untouched: int
    """Nothing of this generation came here."""
    complete: int
    """The newest round has its sum."""
    waiting: tuple[WaitingSlot, ...]
    unknown: int
    """A copy gave no answer."""
    newest_round: int
    """0: none."""

    @property
    def begun(self) -> bool:
        """True where some rank has sent something in this generation."""
        return self.newest_round > 0

    def still(self, later: SlotStates) -> tuple[WaitingSlot, ...]:
        """Return what waits in both, for the same contributions."""
        return tuple(each for each in self.waiting if each in later.waiting)


def places_of(slots: range | list[int]) -> list[Place]:
    """Return the places to probe."""
    return [(slot, round_) for slot in slots for round_ in PARITIES]


def slot_states(slots: range | list[int], answers: Mapping[Place, ProbeReply]) -> SlotStates:
    """Return the state of slots from the answers about `places_of` them."""
    untouched = complete = unknown = newest = 0
    waiting = []
    for slot in slots:
        copies = [answers[slot, round_].header for round_ in PARITIES if (slot, round_) in answers]
        held = [copy for copy in copies if copy.count != State.EMPTY]
        if len(copies) < len(PARITIES):
            unknown += 1
        elif not held:
            untouched += 1
        else:
            last = max(held, key=lambda copy: copy.held)
            newest = max(newest, last.held)
            if last.count in (State.COLLECTING, State.CLOSED):
                waiting.append(WaitingSlot(slot, last.held, last.contributors, last.count == State.CLOSED))
            else:
                complete += 1
    return SlotStates(untouched, complete, tuple(waiting), unknown, newest)


def stragglers(waiting: Sequence[WaitingSlot], rack: Sequence[int]) -> dict[int, int]:
    """Return how many slots miss each rank of those below their switch, most first."""
    counts = Counter(rank for each in waiting for rank in each.missing(rack))
    return dict(counts.most_common())
