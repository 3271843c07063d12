# SPDX-License-Identifier: Apache-2.0
"""The decision table for one packet of the parent and one slot copy of a leaf (a switch with a parent in a tree).

Rules
    T1  With the final values a leaf stores the final contributors. It answers with those only.
    T2  A leaf takes a RESULT of its parent iff it holds that round without a final result, or an older one.
    T6  STALE is passed down, and touches nothing.

Situations, in the order of the tests
    NEW     another generation, or a newer round than the copy's
    OPEN    the copy's round, collecting or closed
    KNOWN   the copy's round, complete, or an older round

Transitions of a RESULT
    class      lanes, contributors   seen, tag          ctr       reply            counted as
    NEW        := packet's           all, := packet's   FINAL     RESULT to all    TAKEN
    OPEN       := packet's           as they are        FINAL     RESULT to all    TAKEN
    KNOWN      as they are           as they are        as it is  -                KNOWN

Partial sum and final result may share a copy: the partial sum is needed only while the parent may lack it, and a result
for the tag proves that the parent is done with that round. If the parent forgets (a restart), a new generation follows
(E1).
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from hopsum_oracle.decision import FINAL, Copy, Decision, LaneAction, Reply, Update, is_new, is_unfinished
from hopsum_wire import MAX_WORKERS, Event

SEEN_ALL: Final = (1 << MAX_WORKERS) - 1
"""The `seen` of a round whose result came before any child. Every child that comes later is late."""


class ParentResultClass(Enum):
    """The class of a RESULT of the parent, by the copy that it meets."""

    NEW = auto()
    OPEN = auto()
    KNOWN = auto()


def parent_result_class(copy: Copy, result: Update) -> ParentResultClass:
    """Return the class of a RESULT of the parent at the copy that it meets (T2)."""
    if is_new(copy, result):
        return ParentResultClass.NEW
    return ParentResultClass.OPEN if result.round == copy.round and copy.ctr != FINAL else ParentResultClass.KNOWN


def decide_on_result(copy: Copy, result: Update) -> Decision:
    """Return the table's decision on one RESULT of the parent, already admitted, and one copy.

    Nothing is changed. `result.bit` means nothing.
    """
    which = parent_result_class(copy, result)
    if which is ParentResultClass.KNOWN:
        return Decision(copy, LaneAction.KEEP, Reply.NONE, (Event.KNOWN,))
    events: tuple[Event, ...] = (Event.TAKEN,)
    if which is ParentResultClass.NEW and is_unfinished(copy, result.generation):
        events = (Event.FAULT, Event.TAKEN)
    return Decision(_final(copy, result, which), LaneAction.WRITE, Reply.RESULT_TO_ALL, events)


def _final(copy: Copy, result: Update, which: ParentResultClass) -> Copy:
    # T1: children that come after the final result are late, whichever they are.
    seen = SEEN_ALL if which is ParentResultClass.NEW else copy.seen
    return Copy(result.generation, result.round, seen, FINAL, result.contributors)


def decide_on_stale(copy: Copy) -> Decision:
    """Return the decision on a STALE of the parent: it goes to all children, and the copy stays as it is (T6)."""
    return Decision(copy, LaneAction.KEEP, Reply.STALE_TO_ALL, (Event.RELAYED,))
