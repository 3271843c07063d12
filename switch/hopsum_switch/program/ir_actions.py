# SPDX-License-Identifier: Apache-2.0
"""Actions: parameters and a list of operations with jumps."""

from __future__ import annotations

from dataclasses import dataclass

from .ir_expressions import DataExpr, FieldIR, HeaderIR, VariableIR
from .ir_objects import CalculationIR, CounterIR, DigestIR, FieldListIR, MeterIR, RegisterIR, StackIR, UnionIR
from .source import SourceInfo


@dataclass(frozen=True, slots=True)
class ParamIR:
    """One parameter of an action."""

    name: str
    bits: int


@dataclass(frozen=True, slots=True)
class Assign:
    """Store a value, wrapped to the field's width."""

    target: FieldIR
    value: DataExpr


@dataclass(frozen=True, slots=True)
class AssignHeader:
    """Copy validity and, if valid, all fields."""

    target: HeaderIR
    value: HeaderIR


@dataclass(frozen=True, slots=True)
class AddHeader:
    """Make an invalid header valid, with all fields 0. A valid header does not change."""

    header: HeaderIR


@dataclass(frozen=True, slots=True)
class RemoveHeader:
    """Make a header invalid. Its fields keep their values."""

    header: HeaderIR


@dataclass(frozen=True, slots=True)
class ShiftStack:
    """push_front(by) or, if `by` is negative, pop_front(-by): the elements move, those that enter are invalid."""

    stack: StackIR
    by: int


@dataclass(frozen=True, slots=True)
class AssignStack:
    """Copy a stack: element by element as `AssignHeader`, and how many are in use."""

    target: StackIR
    value: StackIR


@dataclass(frozen=True, slots=True)
class AssignElement:
    """Store a value into one of several fields of one shape. An index outside them stores nothing."""

    targets: tuple[FieldIR, ...]
    index: DataExpr
    value: DataExpr


@dataclass(frozen=True, slots=True)
class AssignUnion:
    """Copy a union, member by member as `AssignHeader`."""

    target: UnionIR
    value: UnionIR


@dataclass(frozen=True, slots=True)
class AssignVariable:
    """Copy a variable-length field with its length."""

    target: VariableIR
    value: VariableIR


@dataclass(frozen=True, slots=True)
class LogMessage:
    """Write a line to the log. The values go between the parts of the text."""

    parts: tuple[str, ...]
    values: tuple[DataExpr, ...]


@dataclass(frozen=True, slots=True)
class Clone:
    """Have a copy made at the end of the control for a clone session. The last call holds."""

    session: DataExpr
    preserved: FieldListIR


@dataclass(frozen=True, slots=True)
class SendDigest:
    """After ingress, send the members' present values to the controller. The last call holds, and egress sends none."""

    digest: DigestIR


@dataclass(frozen=True, slots=True)
class Resubmit:
    """After ingress, start again with the frame as received. The last call holds."""

    preserved: FieldListIR


@dataclass(frozen=True, slots=True)
class Recirculate:
    """After egress, start again with the frame as emitted. The last call holds."""

    preserved: FieldListIR


@dataclass(frozen=True, slots=True)
class ExecuteMeter:
    """Store a meter's colour (0 green, 1 yellow, 2 red). An index outside the array does nothing."""

    meter: MeterIR
    index: DataExpr
    target: FieldIR


@dataclass(frozen=True, slots=True)
class MarkToDrop:
    """Set the egress port to the drop port and clear the multicast group."""

    egress_spec: FieldIR
    mcast_grp: FieldIR | None


@dataclass(frozen=True, slots=True)
class Exit:
    """End the control after the running action."""


@dataclass(frozen=True, slots=True)
class Truncate:
    """Cut the emitted frame to at most `length` bytes. The smallest of several cuts holds."""

    length: DataExpr


@dataclass(frozen=True, slots=True)
class RegisterRead:
    """Read a cell. An index outside the array leaves the field as it is."""

    target: FieldIR
    register: RegisterIR
    index: DataExpr


@dataclass(frozen=True, slots=True)
class RegisterWrite:
    """Write a cell. An index outside the array writes nothing."""

    register: RegisterIR
    index: DataExpr
    value: DataExpr


@dataclass(frozen=True, slots=True)
class Count:
    """Count the packet and its bytes as received. An index outside the array counts nothing."""

    counter: CounterIR
    index: DataExpr


@dataclass(frozen=True, slots=True)
class Hash:
    """target = base + hash mod size, in 64 bits. A size of 0 acts as 1."""

    target: FieldIR
    base: DataExpr
    calculation: CalculationIR
    size: DataExpr


@dataclass(frozen=True, slots=True)
class RandomUniform:
    """Store a random integer in [low, high], or nothing if low > high."""

    target: FieldIR
    low: DataExpr
    high: DataExpr


@dataclass(frozen=True, slots=True)
class Jump:
    """Continue at operation `to` of the action."""

    to: int


@dataclass(frozen=True, slots=True)
class JumpIfZero:
    """Continue at operation `to` if the value is 0."""

    value: DataExpr
    to: int


@dataclass(frozen=True, slots=True)
class NoOp:
    """No operation. It keeps jump targets in place."""


Operation = (
    Assign
    | AssignHeader
    | AddHeader
    | RemoveHeader
    | ShiftStack
    | AssignStack
    | AssignElement
    | AssignUnion
    | AssignVariable
    | LogMessage
    | Clone
    | SendDigest
    | Resubmit
    | Recirculate
    | ExecuteMeter
    | MarkToDrop
    | Exit
    | Truncate
    | RegisterRead
    | RegisterWrite
    | Count
    | Hash
    | RandomUniform
    | Jump
    | JumpIfZero
    | NoOp
)


@dataclass(frozen=True, slots=True)
class ActionIR:
    """An action. `sources` has one element per element of `body`."""

    name: str
    id: int
    params: tuple[ParamIR, ...]
    body: tuple[Operation, ...]
    sources: tuple[SourceInfo | None, ...]
    source: SourceInfo | None
