# SPDX-License-Identifier: Apache-2.0
"""What one UPDATE does to one slot copy of a root switch, as a table.

Rules
    A copy's tag (epoch, round) is its only validity information: if it differs, all else in the copy is dead.
    S2  A copy with another epoch in its tag is empty.
    S3  A newer round, or S2, overwrites all of the copy with the packet.
    S4  The round that the copy holds takes each worker once, while collecting; contributors change only
        together with the values.
    S5  It completes when `ctr` reaches the quorum; completion is stored, not recomputed.
    S6  An UPDATE of a complete round is answered with RESULT, to its sender alone.
    S7  An older round is answered with STALE and touches nothing.
    S8  FLUSH is a flag on UPDATE: after the packet was added, or recognised as a duplicate, a copy that still
        collects that round closes at min_quorum.

Situations, in the order of the tests
    NEW        another epoch, or a newer round than the copy's
    OLD        same epoch, older round
    COMPLETE   the copy's round, and it is complete
    REPEAT     the copy's round, collecting, worker seen before
    FIRST      the copy's round, collecting, worker not seen before

Transitions (`TABLE`; `ctr` counts those that are in)
    situation  lanes   seen, tag        contributors, ctr   closes when ctr >=     otherwise
    NEW        write   := packet's      := packet's         need                   -
    FIRST      add     seen or bit      or bit, + 1         need                   -
    REPEAT     keep    seen or bit      as they are         min_quorum, if FLUSH   -
    COMPLETE   keep    seen or bit      as they are         never                  RESULT to the sender
    OLD        keep    as they are      as they are         never                  STALE to the sender
    need = quorum, with FLUSH min(quorum, min_quorum).  Closing: ctr := FINAL, RESULT to all workers.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final, NamedTuple

from hopsum.wire import Event

FINAL: Final = 255
"""`ctr` of a complete copy; any other value is the number of contributions in it."""


class Situation(Enum):
    """How an UPDATE meets a copy."""

    NEW = auto()
    OLD = auto()
    COMPLETE = auto()
    REPEAT = auto()
    FIRST = auto()


class Lanes(Enum):
    """What happens to the copy's values."""

    KEEP = auto()
    WRITE = auto()
    ADD = auto()


class Reply(Enum):
    """What leaves the switch."""

    NONE = auto()
    RESULT_TO_ALL = auto()
    RESULT_TO_SENDER = auto()
    STALE_TO_SENDER = auto()


class Closes(Enum):
    """Which threshold completes the copy after this packet."""

    AT_NEED = auto()
    AT_MIN_QUORUM_IF_FLUSH = auto()
    NEVER = auto()


class Row(NamedTuple):
    """One line of the transition table."""

    lanes: Lanes
    closes: Closes
    reply: Reply
    event: Event


TABLE: Final[dict[Situation, Row]] = {
    Situation.NEW: Row(Lanes.WRITE, Closes.AT_NEED, Reply.NONE, Event.ADDED),
    Situation.FIRST: Row(Lanes.ADD, Closes.AT_NEED, Reply.NONE, Event.ADDED),
    Situation.REPEAT: Row(Lanes.KEEP, Closes.AT_MIN_QUORUM_IF_FLUSH, Reply.NONE, Event.DUPLICATE),
    Situation.COMPLETE: Row(Lanes.KEEP, Closes.NEVER, Reply.RESULT_TO_SENDER, Event.ANSWERED),
    Situation.OLD: Row(Lanes.KEEP, Closes.NEVER, Reply.STALE_TO_SENDER, Event.STALE),
}


class Copy(NamedTuple):
    """The registers of one (slot, version), without the values."""

    epoch: int = 0
    round: int = 0
    seen: int = 0
    """Bitmap of the workers that arrived for this round, late ones too."""
    ctr: int = 0
    contributors: int = 0
    """Bitmap of the workers inside the values."""


class Update(NamedTuple):
    """What the table needs to know of an UPDATE."""

    epoch: int
    round: int
    bit: int
    """1 << rank."""
    flush: bool = False


class Decision(NamedTuple):
    """What to do, and the copy after it."""

    copy: Copy
    lanes: Lanes
    reply: Reply
    events: tuple[Event, ...]
    """The counters of the job that this packet bumps, in order."""


def situation(copy: Copy, update: Update) -> Situation:
    """Classify an UPDATE against the copy that it meets."""
    if is_new(copy, update):
        return Situation.NEW
    if update.round < copy.round:
        return Situation.OLD
    if copy.ctr == FINAL:
        return Situation.COMPLETE
    return Situation.REPEAT if is_repeat(copy, update) else Situation.FIRST


def is_new(copy: Copy, update: Update) -> bool:
    """Say whether everything in the copy is dead for this packet (S2, S3)."""
    return copy.epoch != update.epoch or update.round > copy.round


def is_repeat(copy: Copy, update: Update) -> bool:
    """Say whether this worker was seen in the round that the copy holds (S4)."""
    return bool(copy.seen & update.bit)


def decide(copy: Copy, update: Update, *, quorum: int, min_quorum: int) -> Decision:
    """Apply the table: one UPDATE, already admitted, at one copy.

    Args:
        copy: the registers before; anything at all if their epoch is another one.
        update: rounds start at 1 (N4).
        quorum: workers that complete a round, 1..64.
        min_quorum: workers that complete it once a FLUSH arrives, 1..quorum.
    """
    which = situation(copy, update)
    row = TABLE[which]
    events: tuple[Event, ...] = (row.event,)
    if which is Situation.NEW and copy.epoch == update.epoch and copy.ctr != FINAL:
        events = (Event.FAULT, row.event)
    after = _merge(copy, update, row.lanes, which)
    if _closes(row.closes, after.ctr, update.flush, quorum, min_quorum):
        added = events if row.lanes is not Lanes.KEEP else ()
        return Decision(after._replace(ctr=FINAL), row.lanes, Reply.RESULT_TO_ALL, (*added, Event.COMPLETED))
    return Decision(after, row.lanes, row.reply, events)


def _merge(copy: Copy, update: Update, lanes: Lanes, which: Situation) -> Copy:
    if which is Situation.OLD:
        return copy
    if which is Situation.NEW:
        return Copy(update.epoch, update.round, update.bit, 1, update.bit)
    if lanes is Lanes.KEEP:
        return copy._replace(seen=copy.seen | update.bit)
    return copy._replace(seen=copy.seen | update.bit, ctr=copy.ctr + 1, contributors=copy.contributors | update.bit)


def _closes(closes: Closes, ctr: int, flush: bool, quorum: int, min_quorum: int) -> bool:
    if closes is Closes.AT_NEED:
        return ctr >= (min(quorum, min_quorum) if flush else quorum)
    return closes is Closes.AT_MIN_QUORUM_IF_FLUSH and flush and ctr >= min_quorum
