# SPDX-License-Identifier: Apache-2.0
"""The budget of steps of a frame (`program.steps`). A program without loops has no code for it."""

from __future__ import annotations

from ..program.frame_budget import MAX_STEPS
from .layout import ControlWord, Word
from .scope import FunctionScope, Value, word

_SPENT = -1


def renew(scope: FunctionScope) -> None:
    """Write code that gives a frame its whole budget."""
    scope.store(word(MAX_STEPS), scope.control, ControlWord.STEPS)


def step(scope: FunctionScope, onward: Value, out_of_steps: Value) -> Value:
    """Return a new block that takes a step and goes `onward`. A frame without steps goes `out_of_steps`."""
    builder, current = scope.builder, scope.builder.block
    block, taken, spent = (scope.block(name) for name in ("step", "taken", "spent"))
    scope.start(block)
    left = scope.shared(ControlWord.STEPS)
    builder.cbranch(builder.icmp_unsigned("==", left, word(0)), spent, taken)
    scope.start(taken)
    scope.store(builder.sub(left, word(1)), scope.control, ControlWord.STEPS)
    builder.branch(onward)
    scope.start(spent)
    scope.store(word(_SPENT), scope.control, ControlWord.STEPS)
    scope.store(builder.add(scope.shared(ControlWord.OUT_OF_STEPS), word(1)), scope.control, ControlWord.OUT_OF_STEPS)
    scope.set(Word.EXITED, 1)
    builder.branch(out_of_steps)
    scope.start(current)
    return block


def is_spent(scope: FunctionScope) -> Value:
    """Return whether the frame is dropped for its steps."""
    return scope.builder.icmp_unsigned("==", scope.shared(ControlWord.STEPS), word(_SPENT))


def may_go_on(scope: FunctionScope) -> Value:
    """Add up the steps of a frame. Return whether this call may begin another frame.

    Frames of one call take less than two budgets together, so a caller waits for a bounded time.
    """
    builder = scope.builder
    taken = builder.sub(word(MAX_STEPS), scope.shared(ControlWord.STEPS))
    total = builder.add(scope.shared(ControlWord.STEPS_TAKEN), taken)
    scope.store(total, scope.control, ControlWord.STEPS_TAKEN)
    return builder.icmp_unsigned("<", total, word(MAX_STEPS))
