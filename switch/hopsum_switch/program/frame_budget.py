# SPDX-License-Identifier: Apache-2.0
"""The bound on loops: one received frame has a budget of steps, and a frame without steps is dropped.

Two things take a step: a jump of an action to the same or an earlier operation, and a transition of the parser between
two states of one cycle. Everything else in a program runs once per packet, since controls have no cycles.
"""

from __future__ import annotations

from .ir import ActionIR, Jump, JumpIfZero, ParserIR, PipelineIR

# No frame is longer than 65,549 bytes (the largest UDP datagram, and headers in front). A parser or an action that goes
# over every byte of such a frame comes to its end, and so do two nested loops of 256 turns each.
MAX_STEPS = 1 << 17
# The reason under which frames without steps are counted.
OUT_OF_STEPS = "steps"


def jumps_back(index: int, jump: Jump | JumpIfZero) -> bool:
    """Return whether operation `index` of an action, a jump, leads to itself or to an earlier operation."""
    return jump.to <= index


def action_has_loop(action: ActionIR) -> bool:
    """Return whether an action can run one of its operations twice."""
    return any(isinstance(op, Jump | JumpIfZero) and jumps_back(index, op) for index, op in enumerate(action.body))


def control_has_loop(control: PipelineIR) -> bool:
    """Return whether an action of a control loops."""
    return any(action_has_loop(action) for action in control.runnable())


def parser_cycles(parser: ParserIR) -> dict[str, frozenset[str]]:
    """Return, for each state that is on a cycle, the states on a cycle with it, itself among them, all by name."""
    following = {
        name: {to for to in (state.default, *(case.next for case in state.cases)) if to is not None}
        for name, state in parser.states.items()
    }
    reached = {name: _reachable(name, following) for name in following}
    return {
        name: frozenset(other for other in reached[name] if name in reached[other])
        for name in following
        if name in reached[name]
    }


def _reachable(start: str, following: dict[str, set[str]]) -> set[str]:
    """Return the states that one or more transitions lead to."""
    found: set[str] = set()
    waiting = list(following[start])
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting.extend(following[name])
    return found
