# SPDX-License-Identifier: Apache-2.0
"""Model of one slot copy behind a recirculation loop (p4/tna): in which step a packet is decided, queued and dropped.

`world.py` decides a packet and changes the values in one step. A Tofino does not: registers are decided in one pass and
each row of lanes changes in a later pass. Here each of these is a step of its own:

    a  ingress sees the header of a worker's next packet. A port is serial.
    s  the last byte is stored, and the packet enters the loop's queue
    e  the queue's first packet passes egress (an even row) and is on the wire to the loop port
    i  the wire's first packet passes ingress (an odd row) and enters the queue again
    !  behind s or i: the queue is full, and the packet is dropped
    g  the controller removes the generation and inserts the next one

`Loop.decide_on_return` moves the decision from `a` to the first `i`. Decided packets then have a queue before undecided
ones. The decision is `hopsum_oracle.decision.decide` itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from hopsum_oracle.decision import Copy, LaneAction, Reply, Update, decide

from .state import replaced

TURNS: Final = 2
"""Consuming passes. A packet changes an even row in egress and an odd row in ingress of each."""
ROWS: Final = 2 * TURNS
ANSWERS: Final = (Reply.RESULT_TO_ALL, Reply.RESULT_TO_SENDER)


class SentUpdate(NamedTuple):
    """An UPDATE as its worker sends it; in a row, the contribution."""

    worker: int
    generation: int
    round: int


class LoopFrame(NamedTuple):
    """An UPDATE inside the switch."""

    sent: SentUpdate
    lanes: LaneAction | None = None
    """The effect of the packet on each row. None: not decided yet."""
    answers: bool = False
    place: int = 0
    """Rows changed, and then rows read."""
    read: tuple[tuple[SentUpdate, ...], ...] = ()
    """Rows that a RESULT has read, last row first."""


class LoopState(NamedTuple):
    """One switch with its workers' packets."""

    left: tuple[tuple[SentUpdate, ...], ...]
    """By worker: packets that are not sent yet, in order."""
    storing: tuple[LoopFrame | None, ...]
    """By worker: the packet whose header ingress has seen and whose last byte is not there."""
    waiting: tuple[LoopFrame, ...] = ()
    """Queue of undecided packets."""
    decided: tuple[LoopFrame, ...] = ()
    """Queue of decided packets: served first."""
    wire: tuple[LoopFrame, ...] = ()
    copy: Copy = Copy()
    rows: tuple[tuple[SentUpdate, ...], ...] = ((),) * ROWS
    generation: int = 1
    changes: int = 0
    drops: int = 0


class LoopStep(NamedTuple):
    """One transition: its word, the state after it, and what is wrong with it."""

    word: str
    state: LoopState
    wrong: str = ""


@dataclass(frozen=True)
class Loop:
    """A program, and the bounds of its search."""

    sends: tuple[tuple[tuple[int, int], ...], ...]
    """By worker: the (generation, round) of each packet that it sends, in order."""
    quorum: int = 2
    decide_on_return: bool = False
    """Decide when the packet comes back from the loop port for the first time; else at the front port."""
    lookup_on_return: bool = True
    """With decide_on_return: look the generation up again when deciding."""
    changes: int = 0
    """Budget: generation changes."""
    drops: int = 0
    """Budget: packets that a full queue drops."""
    drop_decided: bool = False
    """With decide_on_return: the queue of decided packets may be full as well."""

    def first(self) -> LoopState:
        """Return the state before the first packet."""
        left = tuple(tuple(SentUpdate(worker, *each) for each in sends) for worker, sends in enumerate(self.sends))
        return LoopState(left, (None,) * len(left), changes=self.changes, drops=self.drops)

    def steps(self, state: LoopState) -> Iterator[LoopStep]:
        """Yield all transitions of a state."""
        for worker, left in enumerate(state.left):
            if left and state.storing[worker] is None:
                yield self._arrive(state, worker, left)
        for worker, frame in enumerate(state.storing):
            if frame is not None:
                after = state._replace(storing=replaced(state.storing, worker, None))
                yield from self._enter(after, frame, f"s{worker}")
        if state.decided or state.waiting:
            yield _serve(state)
        if state.wire:
            yield from self._return(state)
        if state.changes:
            yield LoopStep("g", state._replace(generation=state.generation + 1, changes=state.changes - 1))

    def _arrive(self, state: LoopState, worker: int, left: tuple[SentUpdate, ...]) -> LoopStep:
        after = state._replace(left=replaced(state.left, worker, left[1:]))
        frame, wrong = LoopFrame(left[0]), ""
        if frame.sent.generation != state.generation:
            return LoopStep(f"a{worker}", after)
        if not self.decide_on_return:
            after, frame, wrong = self._decide(after, frame)
        return LoopStep(f"a{worker}", after._replace(storing=replaced(after.storing, worker, frame)), wrong)

    def _enter(self, state: LoopState, frame: LoopFrame, word: str) -> Iterator[LoopStep]:
        """Yield the entry into the loop's queues, and the drop if the queue may be full."""
        if frame.lanes is None:
            yield LoopStep(word, state._replace(waiting=(*state.waiting, frame)))
        else:
            yield LoopStep(word, state._replace(decided=(*state.decided, frame)))
        if state.drops and (frame.lanes is None or self.drop_decided or not self.decide_on_return):
            yield LoopStep(word + "!", state._replace(drops=state.drops - 1))

    def _return(self, state: LoopState) -> Iterator[LoopStep]:
        frame, after = state.wire[0], state._replace(wire=state.wire[1:])
        wrong = ""
        if frame.lanes is None:
            if self.lookup_on_return and frame.sent.generation != state.generation:
                yield LoopStep("i", after)
                return
            after, frame, wrong = self._decide(after, frame)
        else:
            after, frame = _touch(after, frame)
            if frame.place == ROWS and not frame.answers:
                yield LoopStep("i", after)
                return
            if frame.place == 2 * ROWS:
                yield LoopStep("i", after, _wrong_result(after.copy, frame))
                return
        for step in self._enter(after, frame, "i"):
            yield step._replace(wrong=wrong)

    def _decide(self, state: LoopState, frame: LoopFrame) -> tuple[LoopState, LoopFrame, str]:
        sent = frame.sent
        update = Update(sent.generation, sent.round, 1 << sent.worker)
        decision = decide(state.copy, update, quorum=self.quorum, min_quorum=1)
        late = sent.generation != state.generation and decision.copy != state.copy
        frame = frame._replace(lanes=decision.lanes, answers=decision.reply in ANSWERS)
        wrong = f"S1: {sent} changes the copy in generation {state.generation}" if late else ""
        return state._replace(copy=decision.copy), frame, wrong


@dataclass(frozen=True)
class LoopFound:
    """Result of a search: its size, and the shortest trace to something wrong."""

    states: int
    trace: str = ""
    wrong: str = ""


def search(loop: Loop) -> LoopFound:
    """Visit all states breadth first, up to the first transition that is wrong."""
    first = loop.first()
    came: dict[LoopState, tuple[LoopState, str] | None] = {first: None}
    todo = deque([first])
    while todo:
        state = todo.popleft()
        for step in loop.steps(state):
            if step.wrong:
                return LoopFound(len(came), _trace(came, state, step.word), step.wrong)
            if step.state not in came:
                came[step.state] = (state, step.word)
                todo.append(step.state)
    return LoopFound(len(came))


def _serve(state: LoopState) -> LoopStep:
    """Return the step that takes the next packet out of the queues: decided ones first."""
    if not state.decided:
        return LoopStep("e", state._replace(waiting=state.waiting[1:], wire=(*state.wire, state.waiting[0])))
    after, frame = _touch(state._replace(decided=state.decided[1:]), state.decided[0])
    return LoopStep("e", after._replace(wire=(*after.wire, frame)))


def _touch(state: LoopState, frame: LoopFrame) -> tuple[LoopState, LoopFrame]:
    """Change the packet's next row, or read it."""
    if frame.place >= ROWS:
        row = state.rows[2 * ROWS - 1 - frame.place]
        return state, frame._replace(place=frame.place + 1, read=(*frame.read, row))
    row = state.rows[frame.place]
    if frame.lanes is LaneAction.WRITE:
        row = (frame.sent,)
    elif frame.lanes is LaneAction.ADD:
        row = tuple(sorted((*row, frame.sent)))
    return state._replace(rows=replaced(state.rows, frame.place, row)), frame._replace(place=frame.place + 1)


def _wrong_result(copy: Copy, frame: LoopFrame) -> str:
    """Return what is wrong with a RESULT that leaves now; a copy that has moved on makes it a STALE."""
    _, generation, round_ = frame.sent
    if (copy.generation, copy.round) != (generation, round_):
        return ""
    members = [worker for worker in range(64) if copy.contributors >> worker & 1]
    right = tuple(SentUpdate(worker, generation, round_) for worker in members)
    bad = [row for row in frame.read if row != right]
    return f"sum: RESULT of {right} has {bad[0]} in {len(bad)} of {ROWS} rows" if bad else ""


def _trace(came: dict[LoopState, tuple[LoopState, str] | None], state: LoopState, last: str) -> str:
    words = [last]
    while (before := came[state]) is not None:
        state, word = before
        words.append(word)
    return " ".join(reversed(words))
