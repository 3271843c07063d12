# SPDX-License-Identifier: Apache-2.0
"""All orders in which arriving frames can meet frames that are between two passes of a switch.

Only the order in which frames enter ingress can differ: the next arriving frame is first, or a frame out of a loop. All
else follows from this order. A queue keeps its order. Ingress and egress have registers of their own. A frame to a
front port touches no register in egress, which is checked. So egress runs at once here, but for the queues that yield
to queue 0 of a recirculation port: a frame there enters ingress at any later time. Egress may be late in a real switch,
but a late egress allows no other order of entering ingress.

The order of ingress is the order of a queue only where each frame enters the queue at once. `apart` makes the entry a
step of its own: on hardware, ingress runs when the header is there, and the frame enters the queue when its last byte
is stored. Frames of two ports can be decided in one order and queued in the other. `drops` lets queues of recirculation
ports be full for so many frames. A recirculation port itself is serial, so a frame out of its wire is decided and
stored in one step.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from hopsum_tna.dump import TnaError
from hopsum_tna.tna_switch import FramesInside, SentFrame, Switch

FIRST: int = 0
"""The queue of a recirculation port that is served first. The other queues yield to it."""


class End(NamedTuple):
    """One way in which it can end: an order that leads there, and all that left the switch."""

    order: str
    """The steps by their words.

    `aP` is an arrival through port P. `sP` stores the frame of port P, where that is a step of its own. `.` is a frame
    out of a wire. `y` is a frame of a queue that yields, through egress and the wire into ingress. `!` behind a word:
    the frame's next queue was full, and the frame was dropped.
    """
    sent: tuple[SentFrame, ...]
    stored: tuple[int, ...]
    """The numbers of the arrivals in the order in which they were stored. A dropped arrival is left out."""


class _Choice(NamedTuple):
    """One step that can happen: its word and its effect.

    The effect returns whether it is what the word says: nothing is dropped where no queue is full.
    """

    word: str
    enter: Callable[[], bool]
    arrives: int | None = None
    """The port at which the next frame arrives."""
    stores: int | None = None
    """The port whose arrived frame enters its queue."""
    drops: bool = False


@dataclass(frozen=True)
class _Snapshot:
    cells: tuple[dict[tuple[int, int], tuple[int, ...]], ...]
    storing: tuple[tuple[int, Any], ...]
    wires: tuple[tuple[int, tuple[bytes, ...]], ...]
    yielding: tuple[tuple[int, int, tuple[Any, ...]], ...]
    """Frames of the queues that yield, by port and number."""
    sent: tuple[SentFrame, ...]


class _Reached(NamedTuple):
    """A state of the switch, and the way there."""

    snapshot: _Snapshot
    arrived: tuple[tuple[int, int], ...] = ()
    """Ports and numbers of the frames that have arrived and are not stored yet."""
    seen: int = 0
    """The number of frames that have arrived."""
    stored: tuple[int, ...] = ()
    drops: int = 0
    order: str = ""

    def after(self, choice: _Choice, snapshot: _Snapshot) -> _Reached:
        """Return the state after a step."""
        arrived, seen, stored = dict(self.arrived), self.seen, self.stored
        if choice.arrives is not None:
            arrived[choice.arrives] = seen
            seen += 1
        if choice.stores is not None:
            number = arrived.pop(choice.stores)
            stored = stored if choice.drops else (*stored, number)
        order = f"{self.order} {choice.word}".strip()
        return _Reached(snapshot, tuple(sorted(arrived.items())), seen, stored, self.drops + choice.drops, order)


class Explorer:
    """Search of the orders of one switch. Entries and groups do not change.

    `apart`: deciding a frame and storing it are two steps. `drops`: frames that full queues drop at most. `drop_from`:
    the first number of a queue that may be full.
    """

    def __init__(self, switch: Switch, *, apart: bool = False, drops: int = 0, drop_from: int = FIRST) -> None:
        self._switch = switch
        self._registers = list(switch.state.registers.values())
        self._apart = apart
        self._drops = drops
        self._full = range(drop_from, 128)
        self.steps = 0
        """Steps taken so far."""

    def ends(self, arrivals: Sequence[tuple[int, bytes]]) -> Iterator[End]:
        """Yield every distinct end of these arrivals, in this order, from the switch's state. The state is restored.

        Ends with fewer steps come first.
        """
        start = self._take()
        seen: set[Any] = set()
        todo = deque([_Reached(start)])
        while todo:
            reached = todo.popleft()
            snapshot = reached.snapshot
            # The order of steps is no part of the key: orders that lead to the same registers, frames inside, frames
            # out and drops are followed once.
            key = (reached.seen, reached.stored, reached.drops, _frozen(snapshot))
            if key in seen:
                continue
            seen.add(key)
            if reached.seen == len(arrivals) and not (snapshot.wires or snapshot.yielding or snapshot.storing):
                yield End(reached.order, snapshot.sent, reached.stored)
                continue
            for choice in self._choices(snapshot, arrivals[reached.seen : reached.seen + 1]):
                if reached.drops + choice.drops <= self._drops:
                    after = self._after(snapshot, choice.enter)
                    if after is not None:
                        todo.append(reached.after(choice, after))
        self._put(start)

    def _choices(self, snapshot: _Snapshot, arrivals: Sequence[tuple[int, bytes]]) -> Iterator[_Choice]:
        """Yield what can happen next. A step that stores a frame can also find the frame's queue full."""
        storing = dict(snapshot.storing)
        for port, frame in arrivals:
            if port not in storing:
                decide = functools.partial(self._switch.decide, port, frame)
                if self._apart:
                    yield _Choice(f"a{port}", functools.partial(_done, decide), arrives=port)
                else:
                    yield from self._stored(f"a{port}", decide, port, arrives=port, stores=port)
        for port in storing:
            yield from self._stored(f"s{port}", None, port, stores=port)
        for port, _ in snapshot.wires:
            yield from self._stored(".", functools.partial(self._return, port), port)
        for port, queue, _ in snapshot.yielding:
            yield from self._stored("y", functools.partial(self._serve, port, queue), port)

    def _return(self, port: int) -> None:
        """Take the first frame out of a wire into ingress."""
        wire = self._switch.traffic.wires[port]
        frame = wire.popleft()
        if not wire:
            del self._switch.traffic.wires[port]
        self._switch.decide(port, frame)

    def _serve(self, port: int, queue: int) -> None:
        """Take the first frame out of a queue that yields through egress, and over the wire into ingress."""
        # Frames that are on the wire already stay behind: the frame of the queue that yields enters ingress first here.
        wires, behind = self._switch.traffic.wires, self._switch.traffic.wires.pop(port, None)
        self._switch.serve(port, queue)
        if port in wires:
            self._return(port)
        if behind:
            wires[port] = behind

    def _stored(
        self,
        word: str,
        decide: Callable[[], None] | None,
        port: int,
        *,
        arrives: int | None = None,
        stores: int | None = None,
    ) -> Iterator[_Choice]:
        def enter(full: bool) -> bool:
            if decide is not None:
                decide()
            return bool(self._switch.store(port, full=self._full if full else ())) == full

        yield _Choice(word, functools.partial(enter, False), arrives, stores)
        if self._drops:
            yield _Choice(word + "!", functools.partial(enter, True), arrives, stores, drops=True)

    def _after(self, snapshot: _Snapshot, enter: Callable[[], bool]) -> _Snapshot | None:
        self._put(snapshot)
        self.steps += 1
        if not enter():
            return None
        loops = self._switch.chip.recirculation_ports
        queues = self._switch.traffic.queues
        # At once: egress of front ports, which touches no register, and of queue 0 of a recirculation port.
        while at_once := [(port, min(of)) for port, of in queues.items() if port not in loops or FIRST in of]:
            for port, queue in at_once:
                before = None if port in loops else [register.cells.copy() for register in self._registers]
                self._switch.serve(port, queue)
                if before is not None and before != [register.cells for register in self._registers]:
                    raise TnaError(f"a frame that left through port {port} changed a register in egress")
        return self._take()

    def _take(self) -> _Snapshot:
        traffic = self._switch.traffic
        return _Snapshot(
            tuple([dict(register.cells) for register in self._registers]),
            tuple(sorted(traffic.storing.items())),
            tuple((port, tuple(wire)) for port, wire in sorted(traffic.wires.items())),
            tuple((port, n, tuple(queue)) for port, of in sorted(traffic.queues.items()) for n, queue in of.items()),
            tuple(traffic.sent),
        )

    def _put(self, snapshot: _Snapshot) -> None:
        # Copies: the switch changes its state in place, and a snapshot is put back many times.
        for register, cells in zip(self._registers, snapshot.cells, strict=True):
            register.cells = dict(cells)
        queues: dict[int, Any] = {}
        for port, number, queue in snapshot.yielding:
            queues.setdefault(port, {})[number] = deque(queue)
        wires = {port: deque(wire) for port, wire in snapshot.wires}
        self._switch.traffic = FramesInside(queues, dict(snapshot.storing), wires, list(snapshot.sent))


def _done(step: Callable[[], None]) -> bool:
    step()
    return True


def _frozen(snapshot: _Snapshot) -> tuple[Any, ...]:
    cells = tuple([frozenset(cells.items()) for cells in snapshot.cells])
    return cells, snapshot.storing, snapshot.wires, snapshot.yielding, tuple(sorted(snapshot.sent))
