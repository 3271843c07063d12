# SPDX-License-Identifier: Apache-2.0
"""The decision table for one packet from below and one slot copy of a switch. `leaf.py` has packets from above.

A root has no parent: it is alone, or on top of a tree. A leaf has one: where a root would complete a round, it closes
it and sends its partial sum up. For the parent this partial sum is an
UPDATE of a child that stands for several workers.

Rules
    A copy's tag (generation, round) is its only validity information: if it differs, all else in the copy is dead.
    S2  A copy with another generation in its tag is empty.
    S3  A newer round, or S2, overwrites all of the copy with the packet.
    S4  The round that the copy holds takes each worker once, while collecting. Contributors change only
        together with the values.
    S5  It completes when `ctr` reaches the quorum. Completion is stored, not recomputed.
    S6  An UPDATE of a complete round is answered with RESULT, to its sender alone.
    S7  An older round is answered with STALE and touches nothing.
    S8  FLUSH is a flag on UPDATE: after the packet was added, or recognised as a duplicate, a copy that still
        collects that round closes at min_quorum.
    T3  A closed round of a leaf takes nothing more. A child that asks for it makes the leaf send its partial sum again.
    T4  A child is recognised by its bit. The workers in its sum come from the packet that is added.
    T5  A leaf that is flushed closes.

Situations, in the order of the tests
    NEW        another generation, or a newer round than the copy's
    OLD        same generation, older round
    COMPLETE   the copy's round, and it is complete
    CLOSED     the copy's round, and the partial sum is with the parent
    REPEAT     the copy's round, collecting, child seen before
    FIRST      the copy's round, collecting, child not seen before

Transitions (`TABLE`, where `ctr` counts the contributions)
    class      lanes   seen, tag        contributors, ctr   closes when ctr >=     otherwise
    NEW        write   := packet's      := packet's, 1      need                   -
    FIRST      add     seen or bit      or packet's, + 1    need                   -
    REPEAT     keep    seen or bit      as they are         min_quorum, if FLUSH   -
    COMPLETE   keep    seen or bit      as they are         never                  RESULT to the sender
    CLOSED     keep    seen or bit      as they are         never                  PARTIAL to the parent
    OLD        keep    as they are      as they are         never                  STALE to the sender
    need = quorum, with FLUSH min(quorum, min_quorum).
    Closing at a root: ctr := FINAL, RESULT to all children. At a leaf: ctr := CLOSED, PARTIAL to the parent.
    quorum and min_quorum count the children of this switch.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final, NamedTuple

from hopsum_wire import Event

FINAL: Final = 255
"""The `ctr` of a complete copy."""
CLOSED: Final = 254
"""The `ctr` of a leaf's copy whose partial sum is with the parent. Any other value is the number of contributions."""


class PacketClass(Enum):
    """The class of an UPDATE, by the copy that it meets."""

    NEW = auto()
    OLD = auto()
    COMPLETE = auto()
    CLOSED = auto()
    REPEAT = auto()
    FIRST = auto()


class LaneAction(Enum):
    """The operation on the copy's values."""

    KEEP = auto()
    WRITE = auto()
    ADD = auto()


class Reply(Enum):
    """The packets that leave the switch."""

    NONE = auto()
    RESULT_TO_ALL = auto()
    RESULT_TO_SENDER = auto()
    STALE_TO_SENDER = auto()
    PARTIAL_TO_PARENT = auto()
    STALE_TO_ALL = auto()


class CloseThreshold(Enum):
    """The number of contributions that ends the collection of a copy after this packet."""

    AT_NEED = auto()
    AT_MIN_QUORUM_IF_FLUSH = auto()
    NEVER = auto()


class DecisionRow(NamedTuple):
    """One line of the transition table."""

    lanes: LaneAction
    closes: CloseThreshold
    reply: Reply
    event: Event


TABLE: Final[dict[PacketClass, DecisionRow]] = {
    PacketClass.NEW: DecisionRow(LaneAction.WRITE, CloseThreshold.AT_NEED, Reply.NONE, Event.ADDED),
    PacketClass.FIRST: DecisionRow(LaneAction.ADD, CloseThreshold.AT_NEED, Reply.NONE, Event.ADDED),
    PacketClass.REPEAT: DecisionRow(
        LaneAction.KEEP, CloseThreshold.AT_MIN_QUORUM_IF_FLUSH, Reply.NONE, Event.DUPLICATE
    ),
    PacketClass.COMPLETE: DecisionRow(LaneAction.KEEP, CloseThreshold.NEVER, Reply.RESULT_TO_SENDER, Event.ANSWERED),
    PacketClass.CLOSED: DecisionRow(LaneAction.KEEP, CloseThreshold.NEVER, Reply.PARTIAL_TO_PARENT, Event.RESENT),
    PacketClass.OLD: DecisionRow(LaneAction.KEEP, CloseThreshold.NEVER, Reply.STALE_TO_SENDER, Event.STALE),
}


class Closing(NamedTuple):
    """The result of a round with enough contributions."""

    ctr: int
    reply: Reply
    event: Event


_AT_ROOT: Final = Closing(FINAL, Reply.RESULT_TO_ALL, Event.COMPLETED)
_AT_LEAF: Final = Closing(CLOSED, Reply.PARTIAL_TO_PARENT, Event.CLOSED)


class Copy(NamedTuple):
    """The registers of one (slot, version), without the values."""

    generation: int = 0
    round: int = 0
    seen: int = 0
    """Bitmap of the children whose packets arrived for this round, late ones too."""
    ctr: int = 0
    """Number of children added to the values while the round collects; then CLOSED at a leaf, FINAL with the result."""
    contributors: int = 0
    """Bitmap of the workers whose contributions are in the values."""


class Update(NamedTuple):
    """The facts about an UPDATE or a PARTIAL that the table needs."""

    generation: int
    round: int
    bit: int
    """The bit of the child: 1 << rank, where the rank of a leaf is its number."""
    flush: bool = False
    inside: int = 0
    """Bitmap of the workers in the sum of a PARTIAL. 0 stands for an UPDATE, which has the sender alone."""

    @property
    def contributors(self) -> int:
        """Return the bitmap of the workers in the packet's values."""
        return self.inside or self.bit


class Decision(NamedTuple):
    """The actions of a transition, and the copy after it."""

    copy: Copy
    lanes: LaneAction
    reply: Reply
    events: tuple[Event, ...]
    """The counters of the job that this packet increments, in order."""


def packet_class(copy: Copy, update: Update) -> PacketClass:
    """Return the class of a packet from below at the copy that it meets."""
    if is_new(copy, update):
        return PacketClass.NEW
    if update.round < copy.round:
        return PacketClass.OLD
    if copy.ctr == FINAL:
        return PacketClass.COMPLETE
    if copy.ctr == CLOSED:
        return PacketClass.CLOSED
    return PacketClass.REPEAT if is_repeat(copy, update) else PacketClass.FIRST


def is_new(copy: Copy, update: Update) -> bool:
    """Return True if everything in the copy is dead for this packet (S2, S3)."""
    return copy.generation != update.generation or update.round > copy.round


def is_repeat(copy: Copy, update: Update) -> bool:
    """Return True if this child was seen in the round that the copy holds (S4, T4)."""
    return bool(copy.seen & update.bit)


def decide(copy: Copy, update: Update, *, quorum: int, min_quorum: int) -> Decision:
    """Apply the table at a root to one packet from below, already admitted, and one copy. Return the decision.

    Nothing is changed: the caller stores the copy and applies the lane action.

    Args:
        copy: the registers before. They may have any values if their generation is another one.
        update: rounds start at 1 (N4).
        quorum: children that complete a round, 1..64.
        min_quorum: children that complete it once a FLUSH arrives, 1..quorum.
    """
    return _decide(copy, update, quorum, min_quorum, _AT_ROOT)


def decide_at_leaf(copy: Copy, update: Update, *, quorum: int, min_quorum: int) -> Decision:
    """Apply the table at a switch with a parent, and return the decision. The arguments are those of `decide`."""
    return _decide(copy, update, quorum, min_quorum, _AT_LEAF)


def _decide(copy: Copy, update: Update, quorum: int, min_quorum: int, closing: Closing) -> Decision:
    which = packet_class(copy, update)
    row = TABLE[which]
    events: tuple[Event, ...] = (row.event,)
    if which is PacketClass.NEW and is_unfinished(copy, update.generation):
        events = (Event.FAULT, row.event)
    after = _merge(copy, update, row.lanes, which)
    if _closes(row.closes, after.ctr, update.flush, quorum, min_quorum):
        added = events if row.lanes is not LaneAction.KEEP else ()
        return Decision(after._replace(ctr=closing.ctr), row.lanes, closing.reply, (*added, closing.event))
    return Decision(after, row.lanes, row.reply, events)


def is_unfinished(copy: Copy, generation: int) -> bool:
    """Return True if a copy of this generation has no result yet: a newer round over it counts as a fault."""
    return copy.generation == generation and copy.ctr != FINAL


def _merge(copy: Copy, update: Update, lanes: LaneAction, which: PacketClass) -> Copy:
    if which is PacketClass.OLD:
        return copy
    if which is PacketClass.NEW:
        return Copy(update.generation, update.round, update.bit, 1, update.contributors)
    after = copy._replace(seen=copy.seen | update.bit)
    if lanes is LaneAction.KEEP:
        return after
    return after._replace(ctr=copy.ctr + 1, contributors=copy.contributors | update.contributors)


def _closes(closes: CloseThreshold, ctr: int, flush: bool, quorum: int, min_quorum: int) -> bool:
    if closes is CloseThreshold.AT_NEED:
        return ctr >= (min(quorum, min_quorum) if flush else quorum)
    return closes is CloseThreshold.AT_MIN_QUORUM_IF_FLUSH and flush and ctr >= min_quorum
