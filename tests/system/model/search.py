# SPDX-License-Identifier: Apache-2.0
"""Breadth-first search: all states within the bounds of a Config, or the shortest way to a violation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from .config import Config
from .notation import written
from .progress import Progress
from .state import RuleError, State
from .world import Transition, World


@dataclass(frozen=True)
class Found:
    """The findings of a search."""

    states: int
    transitions: int
    violation: RuleError | None = None
    trace: str = ""
    """The shortest way to the violation, in the notation of docs/protocol.md."""
    complete: bool = True
    """True if no state was left out, apart from those after a violation."""


@cache
def explore(config: Config, states_max: int | None = None) -> Found:
    """Search all states, or up to the first violation, or until `states_max` are known."""
    return Search(World(config)).run(states_max)


class Search:
    """One breadth-first search."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.progress = Progress(world)
        self.order: list[State] = [world.first()]
        self.known: set[State] = set(self.order)
        self.came: list[tuple[int, Transition | None]] = [(0, None)]
        """Per state, in order: the state before it and the transition between."""
        self.transitions = 0

    def run(self, states_max: int | None = None) -> Found:
        """Return what was found."""
        at = 0
        while at < len(self.order):
            if states_max is not None and len(self.order) > states_max:
                return Found(len(self.order), self.transitions, complete=False)
            state = self.order[at]
            try:
                self.progress.check(state)
            except RuleError as violation:
                return self._found(violation, at)
            for transition in self.world.successors(state):
                self.transitions += 1
                if transition.violation is not None:
                    return self._found(transition.violation, at, transition)
                if transition.state not in self.known:
                    self._add(at, transition)
            at += 1
        return Found(len(self.order), self.transitions)

    def _add(self, at: int, transition: Transition) -> None:
        assert transition.state is not None
        self.known.add(transition.state)
        self.order.append(transition.state)
        self.came.append((at, transition._replace(state=None)))

    def _found(self, violation: RuleError, at: int, last: Transition | None = None) -> Found:
        way = [] if last is None else [last]
        while at:
            at, transition = self.came[at]
            assert transition is not None
            way.append(transition)
        trace = written(self.world, way[::-1], lost=violation.kind == "live")
        return Found(len(self.order), self.transitions, violation, trace)
