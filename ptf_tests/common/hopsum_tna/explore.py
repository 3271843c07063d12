# SPDX-License-Identifier: Apache-2.0
"""All orders in which arriving frames can meet frames that are between two passes of a switch.

Only the order in which frames enter ingress can differ: the next arriving frame is first, or the frame at the loop's
head. All else follows from this order. A queue keeps its order. Ingress and egress have registers of their own. A frame
to a front port touches no register in egress, which is checked. So egress runs at once here. Egress may be late in a
real switch, but a late egress allows no other order of entering ingress.

The order of ingress is the order of the loop's queue only where each frame enters the queue at once. `apart` makes the
entry a step of its own: on hardware, ingress runs when the header is there, and the frame enters the queue when its
last byte is stored. Frames of two ports can be decided in one order and queued in the other. `drops` lets the loop's
queue be full for so many frames. The loop port itself is serial, so a frame out of the loop is decided and stored in
one step.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from hopsum_tna.errors import TnaError
from hopsum_tna.switch import LOOP, FramesInside, SentFrame, Switch


class End(NamedTuple):
    """One way in which it can end: an order that leads there, and all that left the switch."""

    order: str
    """The steps by their words.

    `aP` is an arrival through port P. `sP` stores the frame of port P, where that is a step of its own. `.` is a frame
    out of the loop. `!` behind a word: the loop was full, and dropped the frame.
    """
    sent: tuple[SentFrame, ...]


class _Choice(NamedTuple):
    """One step that can happen: its word, the step, and the arrivals and drops that it takes."""

    word: str
    enter: Callable[[], None]
    arrivals: int
    drops: int


@dataclass(frozen=True)
class _Snapshot:
    cells: tuple[dict[int, tuple[int, ...]], ...]
    storing: tuple[tuple[int, Any], ...]
    loop: tuple[SentFrame, ...]
    sent: tuple[SentFrame, ...]


class Explorer:
    """Search of the orders of one switch. Entries and groups do not change.

    `apart`: deciding a frame and storing it are two steps. `drops`: frames that a full loop drops at most.
    """

    def __init__(self, switch: Switch, *, apart: bool = False, drops: int = 0) -> None:
        self._switch = switch
        self._registers = list(switch.state.registers.values())
        self._apart = apart
        self._drops = drops
        self.steps = 0
        """Steps taken so far."""

    def ends(self, arrivals: Sequence[tuple[int, bytes]]) -> Iterator[End]:
        """Yield every distinct end of these arrivals, in this order, from the switch's state. The state is restored.

        Ends with fewer steps come first. Two orders that lead to the same registers, frames inside, frames out and
        drops are followed once.
        """
        start = self._take()
        seen: set[Any] = set()
        todo = deque([(start, 0, 0, "")])
        while todo:
            snapshot, arrived, dropped, order = todo.popleft()
            key = (arrived, dropped, _frozen(snapshot))
            if key in seen:
                continue
            seen.add(key)
            if arrived == len(arrivals) and not snapshot.loop and not snapshot.storing:
                yield End(order.strip(), snapshot.sent)
                continue
            for word, enter, of_arrivals, of_drops in self._choices(snapshot, arrivals[arrived : arrived + 1]):
                if dropped + of_drops <= self._drops:
                    after = self._after(snapshot, enter)
                    todo.append((after, arrived + of_arrivals, dropped + of_drops, f"{order} {word}"))
        self._put(start)

    def _choices(self, snapshot: _Snapshot, arrivals: Sequence[tuple[int, bytes]]) -> Iterator[_Choice]:
        """Yield what can happen next; a step that sends into the loop also with the loop full."""
        storing = dict(snapshot.storing)
        for port, frame in arrivals:
            if port not in storing:
                decide = functools.partial(self._switch.decide, port, frame)
                if self._apart:
                    yield _Choice(f"a{port}", decide, 1, 0)
                else:
                    yield from self._stored(f"a{port}", decide, port, 1)
        for port in storing:
            yield from self._stored(f"s{port}", None, port, 0)
        if snapshot.loop:
            yield from self._stored(".", functools.partial(self._switch.decide, *snapshot.loop[0]), LOOP, 0)

    def _stored(self, word: str, decide: Callable[[], None] | None, port: int, arrivals: int) -> Iterator[_Choice]:
        def enter(full: bool) -> None:
            at = port
            if port == LOOP:
                at = self._switch.traffic.loop.popleft().port
            if decide is not None:
                decide()
            self._switch.store(at, full=full)

        yield _Choice(word, functools.partial(enter, False), arrivals, 0)
        if self._drops:
            yield _Choice(word + "!", functools.partial(enter, True), arrivals, 1)

    def _after(self, snapshot: _Snapshot, enter: Callable[[], None]) -> _Snapshot:
        self._put(snapshot)
        self.steps += 1
        enter()
        ports = self._switch.chip.recirculation_ports
        while steps := [step for step in self._switch.steps() if step != LOOP]:
            for step in steps:
                before = None if step in ports else [register.cells.copy() for register in self._registers]
                self._switch.step(step)
                if before is not None and before != [register.cells for register in self._registers]:
                    raise TnaError(f"a frame that left through port {step} changed a register in egress")
        return self._take()

    def _take(self) -> _Snapshot:
        traffic = self._switch.traffic
        cells = tuple([dict(register.cells) for register in self._registers])
        storing = tuple(sorted(traffic.storing.items()))
        return _Snapshot(cells, storing, tuple(traffic.loop), tuple(traffic.sent))

    def _put(self, snapshot: _Snapshot) -> None:
        for register, cells in zip(self._registers, snapshot.cells, strict=True):
            register.cells = dict(cells)
        self._switch.traffic = FramesInside({}, dict(snapshot.storing), deque(snapshot.loop), list(snapshot.sent))


def _frozen(snapshot: _Snapshot) -> tuple[Any, ...]:
    cells = tuple([frozenset(cells.items()) for cells in snapshot.cells])
    return cells, snapshot.storing, snapshot.loop, tuple(sorted(snapshot.sent))
