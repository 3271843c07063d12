# SPDX-License-Identifier: Apache-2.0
"""Compiler of actions to Python functions.

An action without jumps is its operations in order. With jumps, it is cut into blocks, and `b` is the number of the next
block. Blocks are in order, so a forward jump skips blocks, and a backward jump starts the loop once more:

    b = 0
    while True:
        if b == 0: ...; b = 1
        if b == 1: ...; b = 2 if condition else 4
        ...
        if b == LAST: break

A block that ends with a backward jump takes a step when it jumps, so that no frame goes round for ever.
"""

from __future__ import annotations

from collections.abc import Callable

from ..program.ir import ActionIR, Jump, JumpIfZero, Operation
from .expressions import compile_function
from .observed import ObservedWriter
from .packet import PacketState
from .primitives import Environment, OperationWriter

ActionFunction = Callable[[PacketState, tuple[int, ...]], None]


def compile_action(action: ActionIR, environment: Environment) -> ActionFunction:
    """Return a function that runs an action on a packet, with the action's arguments. The packet changes in place."""
    return compile_operations(action.name, action.body, environment, action)


def compile_operations(
    name: str, body: tuple[Operation, ...], environment: Environment, action: ActionIR | None = None
) -> ActionFunction:
    """Return a function that runs the operations on a packet, jumps included.

    `name` names the function in tracebacks. An observer gets the events as those of `action`, None for the parser.
    """
    observer = environment.observer
    writer = OperationWriter(environment) if observer is None else ObservedWriter(environment, observer, action)
    # A local name: the generated code reads it for every field.
    writer.lines.append("v = p.values")
    if any(isinstance(op, Jump | JumpIfZero) for op in body):
        writer.namespace["take_step"] = environment.steps.spend
        _write_blocks(body, writer)
    else:
        for operation in body:
            writer.write(operation)
    return compile_function(name, "p, a", writer.lines, writer.namespace)


def _write_blocks(body: tuple[Operation, ...], writer: OperationWriter) -> None:
    starts = sorted(_block_starts(body))
    block_of = {start: number for number, start in enumerate(starts)}
    outer = writer.lines
    outer += ["b = 0", "while True:"]
    for number, start in enumerate(starts[:-1]):
        first = len(outer)
        _write_block(body[start : starts[number + 1]], number, block_of, writer)
        # Lines of the block are indented afterwards, since writing them adds lines for temporaries.
        outer[first:] = [f"    if b == {number}:", *(f"        {line}" for line in outer[first:])]
    outer.append(f"    if b == {len(starts) - 1}: break")


def _write_block(
    operations: tuple[Operation, ...], number: int, block_of: dict[int, int], writer: OperationWriter
) -> None:
    following: str | int = number + 1
    goes_back = False
    for operation in operations:
        if isinstance(operation, Jump | JumpIfZero):
            target = block_of[operation.to]
            # A jump within its own block leads to the start of it, so it goes back as well.
            goes_back = target <= number
            if isinstance(operation, JumpIfZero):
                following = f"{following} if {writer.jump_value(operation)} else {target}"
            else:
                following = target
        else:
            writer.write(operation)
    writer.lines.append(f"b = {following}")
    if goes_back:
        writer.lines.append(f"if b <= {number}: take_step()")


def _block_starts(body: tuple[Operation, ...]) -> set[int]:
    starts = {0, len(body)}
    for index, operation in enumerate(body):
        if isinstance(operation, Jump | JumpIfZero):
            starts |= {operation.to, index + 1}
    return starts
