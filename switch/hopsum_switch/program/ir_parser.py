# SPDX-License-Identifier: Apache-2.0
"""The parser: states of operations, each ending in a transition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .ir_actions import Operation
from .ir_expressions import BoolExpr, DataExpr, FieldIR, HeaderIR, VariableIR
from .ir_objects import StackIR
from .source import SourceInfo


@dataclass(frozen=True, slots=True)
class Lookahead:
    """`bits` bits that start `offset` bits after the read position."""

    offset: int
    bits: int


@dataclass(frozen=True, slots=True)
class Extract:
    """Read a header and make it valid."""

    header: HeaderIR


@dataclass(frozen=True, slots=True)
class ExtractVariable:
    """Read a header whose variable-length field has `bits` bits, a multiple of 8.

    HeaderTooShort if that is more than the field holds.
    """

    header: HeaderIR
    variable: VariableIR
    bits: DataExpr


@dataclass(frozen=True, slots=True)
class ExtractNext:
    """Read the next element of a stack. The error is StackOutOfBounds if all elements are in use."""

    stack: StackIR


@dataclass(frozen=True, slots=True)
class SetField:
    """Store an expression into a field."""

    target: FieldIR
    value: DataExpr


@dataclass(frozen=True, slots=True)
class SetLookahead:
    """Store bits that stay unread into a field."""

    target: FieldIR
    value: Lookahead


@dataclass(frozen=True, slots=True)
class Verify:
    """Stop with an error unless the condition holds."""

    condition: BoolExpr
    error: DataExpr


@dataclass(frozen=True, slots=True)
class Advance:
    """Skip bits. The number must be a multiple of 8."""

    bits: DataExpr


@dataclass(frozen=True, slots=True)
class Perform:
    """An operation that actions have too."""

    operation: Operation


ParserOp = Extract | ExtractVariable | ExtractNext | SetField | SetLookahead | Verify | Advance | Perform


@dataclass(frozen=True, slots=True)
class Computed:
    """The low `bits` bits of an expression."""

    value: DataExpr
    bits: int


@dataclass(frozen=True, slots=True)
class KeyPart:
    """One piece of a transition key, padded at the left to whole bytes."""

    value: FieldIR | Lookahead | Computed

    @property
    def bits(self) -> int:
        """Return the width without padding."""
        return self.value.bits


@dataclass(frozen=True, slots=True)
class TransitionCase:
    """A transition that is taken if key & mask == value. Value and mask cover the whole padded key."""

    value: int
    mask: int
    next: str | None


@dataclass(frozen=True, slots=True)
class StateIR:
    """One state. Cases are tried in order, then `default` (None: parsing ends)."""

    name: str
    ops: tuple[ParserOp, ...]
    key: tuple[KeyPart, ...]
    cases: tuple[TransitionCase, ...]
    default: str | None
    source: SourceInfo | None


@dataclass(frozen=True, slots=True)
class ParserIR:
    """All states. With `init` None the parser accepts every frame and reads no byte."""

    name: str
    init: str | None
    states: Mapping[str, StateIR]
