# SPDX-License-Identifier: Apache-2.0
"""All orders in which arriving frames can meet frames that are between two passes of a switch.

Only the order in which frames enter ingress can differ: the next arriving frame is first, or the frame at the loop's
head. All else follows from this order. A queue keeps its order. Ingress and egress have registers of their own. A frame
to a front port touches no register in egress, which is checked. So egress runs at once here. Egress may be late in a
real switch, but a late egress allows no other order of entering ingress.
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
    """The order of the steps: `a` is an arrival, `.` is a frame out of the loop."""
    sent: tuple[SentFrame, ...]


@dataclass(frozen=True)
class _Snapshot:
    cells: tuple[dict[int, tuple[int, ...]], ...]
    loop: tuple[SentFrame, ...]
    sent: tuple[SentFrame, ...]


class Explorer:
    """Search of the orders of one switch. Entries and groups do not change."""

    def __init__(self, switch: Switch) -> None:
        self._switch = switch
        self._registers = list(switch.state.registers.values())
        self.steps = 0
        """Steps taken so far."""

    def ends(self, arrivals: Sequence[tuple[int, bytes]]) -> Iterator[End]:
        """Yield every distinct end of these arrivals, in this order, from the switch's state. The state is restored.

        Two orders that lead to the same registers, frames inside and frames out are followed once.
        """
        start = self._take()
        seen: set[Any] = set()
        todo = [(start, 0, "")]
        while todo:
            snapshot, arrived, order = todo.pop()
            key = (arrived, _frozen(snapshot))
            if key in seen:
                continue
            seen.add(key)
            if arrived == len(arrivals) and not snapshot.loop:
                yield End(order, snapshot.sent)
                continue
            if arrived < len(arrivals):
                enter = functools.partial(self._switch.arrive, *arrivals[arrived])
                todo.append((self._after(snapshot, enter), arrived + 1, order + "a"))
            if snapshot.loop:
                enter = functools.partial(self._switch.step, LOOP)
                todo.append((self._after(snapshot, enter), arrived, order + "."))
        self._put(start)

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
        return _Snapshot(cells, tuple(traffic.loop), tuple(traffic.sent))

    def _put(self, snapshot: _Snapshot) -> None:
        for register, cells in zip(self._registers, snapshot.cells, strict=True):
            register.cells = dict(cells)
        self._switch.traffic = FramesInside({}, deque(snapshot.loop), list(snapshot.sent))


def _frozen(snapshot: _Snapshot) -> tuple[Any, ...]:
    cells = tuple([frozenset(cells.items()) for cells in snapshot.cells])
    return cells, snapshot.loop, tuple(sorted(snapshot.sent))
