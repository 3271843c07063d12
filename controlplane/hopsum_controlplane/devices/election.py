# SPDX-License-Identifier: Apache-2.0
"""Election ids whose low word counts the sessions of one controller, so that its newer session has the switch.

A controller asks with (its configured id, 0). A switch without a primary accepts that id, which is raised at once to
(configured id, count << 32 | owner) with the count 1. Where a session of the same configured id is primary, the switch
answers with that one's id: if its owner is ours, it is our own session of before, perhaps on a dead connection, and the
next count wins against it. If it is another's, two controllers have the same configured id, and the second is refused.
An id without a primary is passed as well: P4Runtime never lets the highest id sink.
"""

from __future__ import annotations

from typing import Final, NamedTuple

ElectionId = tuple[int, int]
OWNERS: Final = 1 << 32
"""An owner is 1 .. OWNERS - 1. 0 stands for no owner."""


class Answer(NamedTuple):
    """A switch's answer to an election id: whether this client is primary, or another one, and the highest id."""

    ours: bool
    taken: bool
    highest: ElectionId


def next_id(asked: ElectionId, owner: int, answer: Answer) -> ElectionId | None:
    """Return the id to ask with next, or None to keep this answer.

    Without an `owner` an id is only raised past one that no client has any more.
    """
    high, low = asked
    if low or (answer.ours and not owner):
        return None
    highest_high, highest_low = answer.highest
    if answer.ours or highest_high < high:
        return high, _low(1, owner)
    if highest_high > high or (answer.taken and not same_owner(answer.highest, owner)):
        return None
    count = (highest_low >> 32) + 1
    return (high, _low(count, owner)) if count < OWNERS else None


def same_owner(election_id: ElectionId, owner: int) -> bool:
    """Say whether an id is of a session of this owner."""
    return owner != 0 and election_id[1] % OWNERS == owner


def _low(count: int, owner: int) -> int:
    return count << 32 | owner
