# SPDX-License-Identifier: Apache-2.0
"""Operands and expressions of the mirror to typed trees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from ..errors import ProgramError
from . import ir as p4
from . import ir_expressions as ex
from . import p4c_json as js
from .p4_source import SourceInfo, at
from .unsupported import unsupported_error

# Names in reach while a program is resolved.

VALIDITY_FIELD = "$valid$"

K = TypeVar("K")
V = TypeVar("V")


class Declarations(dict[K, V]):
    """The declarations of one `kind` so far, by name or number."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self._kind = kind

    def find(self, key: K, source: SourceInfo | None) -> V:
        """Return the declaration that the program names at `source`. Raises: ProgramError."""
        try:
            return self[key]
        except KeyError:
            raise ProgramError(f"unknown {self._kind} {key!r}{at(source)}; compile the program again") from None


class ProgramScope:
    """The symbol table of a program while it is lowered: headers, then state, then actions. It has no tables."""

    def __init__(self) -> None:
        self.headers = Declarations[str, ex.HeaderIR]("header")
        self.fields = Declarations[tuple[str, str], ex.FieldIR]("field")
        self.standard: dict[str, ex.FieldIR] = {}
        self.stacks = Declarations[str, p4.StackIR]("header stack")
        self.unions = Declarations[str, p4.UnionIR]("header union")
        self.field_lists = Declarations[int, p4.FieldListIR]("field list")
        self.digests = Declarations[int, p4.DigestIR]("learn list")
        self.meters = Declarations[str, p4.MeterIR]("meter")
        self.counters = Declarations[str, p4.CounterIR]("counter")
        self.registers = Declarations[str, p4.RegisterIR]("register")
        self.calculations = Declarations[str, p4.CalculationIR]("calculation")
        self.actions_by_id = Declarations[int, p4.ActionIR]("action")

    def field(self, operand: js.FieldOperand, source: SourceInfo | None) -> ex.FieldIR:
        """Return the field that an operand names. A header's validity is no field. Raises: ProgramError."""
        return self.fields.find((operand.header, operand.field), source)


@dataclass(frozen=True)
class ExpressionContext:
    """The context of an expression: the names that it may use besides the scope, and the place for errors."""

    scope: ProgramScope
    params: tuple[p4.ParamIR, ...]
    source: SourceInfo | None


# Reads of header stacks as expressions: an element that is not there reads 0.

INDEX_BITS = 32


def count(stack: p4.StackIR) -> ex.DataExpr:
    """Return an expression for the number of elements in use."""
    return ex.FieldRef(stack.next, ex.field_type(stack.next))


def last_index(stack: p4.StackIR) -> ex.DataExpr:
    """Return an expression for the number of the last element in use, or 2**32 - 1 if none is."""
    before = ex.Binary(ex.BinaryOp.ADD, count(stack), _const((1 << INDEX_BITS) - 1), ex.IntType(INDEX_BITS + 1, False))
    return ex.Binary(ex.BinaryOp.AND, before, _const((1 << INDEX_BITS) - 1), ex.IntType(INDEX_BITS, False))


def last_field(stack: p4.StackIR, name: str, source: SourceInfo | None) -> ex.DataExpr:
    """Return an expression for a field of the last element in use (0: none is). Raises: ProgramError (no field)."""
    names = [field.name for field in stack.headers[0].fields]
    if name not in names:
        raise ProgramError(f"the elements of {stack.name} have no field {name}{at(source)}")
    return element_field(stack, last_index(stack), names.index(name), source)


def element_field(stack: p4.StackIR, index: ex.DataExpr, position: int, source: SourceInfo | None) -> ex.DataExpr:
    """Return an expression for field number `position` of element `index`. An index outside the stack reads 0.

    Raises: ProgramError (no such field).
    """
    if position >= len(stack.headers[0].fields):
        raise ProgramError(f"the elements of {stack.name} have no field {position}{at(source)}")
    return _chosen([header.fields[position] for header in stack.headers], index, 0)


def _chosen(fields: list[ex.FieldIR], index: ex.DataExpr, first: int) -> ex.DataExpr:
    """Return field number `index` - `first` of several fields of one shape, or 0 where the index is outside."""
    # Halves: the depth of the tree, and so of every recursion over the tree, is a logarithm of the stack's size.
    kind = ex.field_type(fields[0])
    if len(fields) == 1:
        # Equal, not in range: an index outside of the stack, below 0 too, ends at one of the leaves and reads 0 there.
        found = ex.Compare(ex.CompareOp.EQ, index, _const(first))
        return ex.Select(found, ex.FieldRef(fields[0], kind), ex.Const(0, kind), kind)
    half = len(fields) // 2
    below = ex.Compare(ex.CompareOp.LT, index, _const(first + half))
    halves = _chosen(fields[:half], index, first), _chosen(fields[half:], index, first + half)
    return ex.Select(below, *halves, kind)


def _const(value: int) -> ex.Const:
    return ex.Const(value, ex.const_type(value))


_BINARY = {op.value: op for op in ex.BinaryOp}
_COMPARE = {op.value: op for op in ex.CompareOp}
_CAST = {op.value: op for op in ex.CastOp}

# Operands that have a construct of their own in the list of unsupported ones.
_REFUSED_OPERANDS = {
    "register": "register reference",
    "header_union_stack": "header union",
    "union_stack_field": "header union",
    "extern": "extern",
}
_UNION_OPERATORS = frozenset({"dereference_union_stack"})


def lower_data(operand: js.Operand | None, place: ExpressionContext) -> ex.DataExpr:
    """Return an operand as an integer expression. Raises: ProgramError."""
    if isinstance(operand, js.FieldOperand):
        return _field(operand, place)
    if isinstance(operand, js.HexOperand):
        return ex.Const(operand.value, ex.const_type(operand.value))
    if isinstance(operand, js.LocalOperand):
        return _param(operand, place)
    if isinstance(operand, js.StackFieldOperand):
        return last_field(place.scope.stacks.find(operand.stack, place.source), operand.field, place.source)
    if isinstance(operand, js.ExpressionOperand) and operand.op not in _BOOL_OPERATORS:
        return _data_operator(operand, place)
    raise _misfit(operand, "an integer", place)


def lower_bool(operand: js.Operand | None, place: ExpressionContext) -> ex.BoolExpr:
    """Return an operand as a condition. Raises: ProgramError."""
    if isinstance(operand, js.BoolOperand):
        return ex.BoolConst(operand.value)
    if isinstance(operand, js.ExpressionOperand):
        return _bool_operator(operand, place)
    raise _misfit(operand, "a condition", place)


def lower_header(operand: js.Operand | None, place: ExpressionContext) -> ex.HeaderIR:
    """Return the header instance that an operand names. Raises: ProgramError."""
    if isinstance(operand, js.NamedOperand) and operand.type == "header":
        return place.scope.headers.find(operand.name, place.source)
    if isinstance(operand, js.ExpressionOperand) and operand.op == "dereference_header_stack":
        stack, index = _element(operand, place)
        if not isinstance(index, ex.Const) or not 0 <= index.value < len(stack.headers):
            raise unsupported_error(
                "header stack", f"an element of {stack.name} that is chosen at run time", place.source
            )
        return stack.headers[index.value]
    if isinstance(operand, js.StackFieldOperand):
        raise unsupported_error("header stack", f"the last element of {operand.stack} as a whole", place.source)
    if isinstance(operand, js.ExpressionOperand) and operand.op == "access_union_header":
        union = lower_union(operand.left, place)
        assert isinstance(operand.right, js.HexOperand)  # the reader makes it so
        if operand.right.value >= len(union.headers):
            raise ProgramError(f"{union.name} has no member {operand.right.value}{at(place.source)}")
        return union.headers[operand.right.value]
    raise _misfit(operand, "a header", place)


def lower_union(operand: js.Operand | None, place: ExpressionContext) -> p4.UnionIR:
    """Return the header union that an operand names. Raises: ProgramError."""
    if isinstance(operand, js.NamedOperand) and operand.type == "header_union":
        return place.scope.unions.find(operand.name, place.source)
    raise _misfit(operand, "a header union", place)


def _field(operand: js.FieldOperand, place: ExpressionContext) -> ex.DataExpr:
    if operand.field == VALIDITY_FIELD:
        return ex.BoolToInt(ex.IsValid(place.scope.headers.find(operand.header, place.source)))
    field = place.scope.field(operand, place.source)
    return ex.FieldRef(field, ex.field_type(field))


def _param(operand: js.LocalOperand, place: ExpressionContext) -> ex.DataExpr:
    if operand.index >= len(place.params):
        raise ProgramError(
            f"argument {operand.index} of an action with {len(place.params)} parameters{at(place.source)}"
        )
    return ex.ParamRef(operand.index, ex.IntType(place.params[operand.index].bits, False))


def _data_operator(expr: js.ExpressionOperand, place: ExpressionContext) -> ex.DataExpr:
    if expr.op in _BINARY:
        return _binary(_BINARY[expr.op], expr, place)
    if expr.op == "~":
        operand = lower_data(expr.right, place)
        return ex.Invert(operand, ex.invert_type(operand.type))
    if expr.op in _CAST:
        return _cast(_CAST[expr.op], expr, place)
    if expr.op == "?":
        yes, no = lower_data(expr.left, place), lower_data(expr.right, place)
        return ex.Select(lower_bool(expr.condition, place), yes, no, yes.type.covering(no.type))
    if expr.op == "b2d":
        return ex.BoolToInt(lower_bool(expr.right, place))
    if expr.op in ("last_stack_index", "size_stack"):
        return _stack_operator(expr, place)
    if expr.op == "access_field" and isinstance(expr.left, js.ExpressionOperand):
        assert isinstance(expr.right, js.HexOperand)  # the reader makes it so
        return element_field(*_element(expr.left, place), expr.right.value, place.source)
    raise _unknown_operator(expr, place)


def _element(expr: js.ExpressionOperand, place: ExpressionContext) -> tuple[p4.StackIR, ex.DataExpr]:
    if expr.op != "dereference_header_stack":
        raise _unknown_operator(expr, place)
    return _stack(expr.left, place), lower_data(expr.right, place)


def lower_element(operand: js.Operand, place: ExpressionContext) -> tuple[tuple[ex.FieldIR, ...], ex.DataExpr] | None:
    """Return the field of each element of a stack and the index expression, or None for another operand.

    Raises: ProgramError.
    """
    if not isinstance(operand, js.ExpressionOperand) or operand.op != "access_field":
        return None
    if not isinstance(operand.left, js.ExpressionOperand):
        raise _misfit(operand.left, "an element of a header stack", place)
    assert isinstance(operand.right, js.HexOperand)  # the reader makes it so
    stack, index = _element(operand.left, place)
    if operand.right.value >= len(stack.headers[0].fields):
        raise ProgramError(f"the elements of {stack.name} have no field {operand.right.value}{at(place.source)}")
    return tuple(header.fields[operand.right.value] for header in stack.headers), index


def _stack(operand: js.Operand | None, place: ExpressionContext) -> p4.StackIR:
    if isinstance(operand, js.NamedOperand) and operand.type == "header_stack":
        return place.scope.stacks.find(operand.name, place.source)
    raise _misfit(operand, "a header stack", place)


def _stack_operator(expr: js.ExpressionOperand, place: ExpressionContext) -> ex.DataExpr:
    stack = _stack(expr.right, place)
    return last_index(stack) if expr.op == "last_stack_index" else count(stack)


def _binary(op: ex.BinaryOp, expr: js.ExpressionOperand, place: ExpressionContext) -> ex.DataExpr:
    # Unary plus and minus are written with an absent left side.
    left = ex.Const(0, ex.const_type(0)) if expr.left is None else lower_data(expr.left, place)
    right = lower_data(expr.right, place)
    if op in (ex.BinaryOp.DIV, ex.BinaryOp.MOD):
        # A positive constant cannot be 0 at run time, and the format says nothing of the rounding of negative values.
        if left.type.signed or not isinstance(right, ex.Const) or right.value <= 0:
            raise unsupported_error("division", f"operator {op.value}", place.source)
    elif op in (ex.BinaryOp.SHL, ex.BinaryOp.SHR) and right.type.signed:
        raise ProgramError(f"shift by a value that may be negative{at(place.source)}")
    return ex.Binary(op, left, right, ex.binary_type(op, left, right))


def _cast(op: ex.CastOp, expr: js.ExpressionOperand, place: ExpressionContext) -> ex.DataExpr:
    operand, width = lower_data(expr.left, place), lower_data(expr.right, place)
    if not isinstance(width, ex.Const) or width.value <= 0:
        raise ProgramError(f"{op.value} to a width that is not a positive constant{at(place.source)}")
    return ex.Cast(op, operand, width.value, ex.IntType(width.value, op is not ex.CastOp.SATURATE))


def _bool_operator(expr: js.ExpressionOperand, place: ExpressionContext) -> ex.BoolExpr:
    if expr.op in _COMPARE:
        return _compare(_COMPARE[expr.op], expr, place)
    if expr.op == "and":
        return ex.And(lower_bool(expr.left, place), lower_bool(expr.right, place))
    if expr.op == "or":
        return ex.Or(lower_bool(expr.left, place), lower_bool(expr.right, place))
    if expr.op == "not":
        return ex.Not(lower_bool(expr.right, place))
    if expr.op == "valid":
        return ex.IsValid(lower_header(expr.right, place))
    if expr.op == "valid_union":
        return any_of([ex.IsValid(header) for header in lower_union(expr.right, place).headers])
    if expr.op in ("==u", "!=u"):
        pairs = zip(lower_union(expr.left, place).headers, lower_union(expr.right, place).headers, strict=False)
        equal = any_of([ex.CompareHeaders(left, right) for left, right in pairs])
        return equal if expr.op == "==u" else ex.Not(equal)
    if expr.op == "d2b":
        return ex.NonZero(lower_data(expr.right, place))
    if expr.op == "?":
        yes, no = lower_bool(expr.left, place), lower_bool(expr.right, place)
        return ex.SelectBool(lower_bool(expr.condition, place), yes, no)
    if expr.op in _UNION_OPERATORS or expr.op not in _BINARY.keys() | _CAST.keys() | {"~", "b2d"}:
        raise _unknown_operator(expr, place)
    raise _misfit(expr, "a condition", place)


_BOOL_OPERATORS = _COMPARE.keys() | {"and", "or", "not", "valid", "d2b", "valid_union", "==u", "!=u"}


def _compare(op: ex.CompareOp, expr: js.ExpressionOperand, place: ExpressionContext) -> ex.BoolExpr:
    if op in (ex.CompareOp.EQ, ex.CompareOp.NE):
        equal: ex.BoolExpr | None = None
        if isinstance(expr.left, js.NamedOperand):
            equal = ex.CompareHeaders(lower_header(expr.left, place), lower_header(expr.right, place))
        elif _is_bool(expr.left):
            equal = ex.CompareBools(lower_bool(expr.left, place), lower_bool(expr.right, place))
        if equal is not None:
            return equal if op is ex.CompareOp.EQ else ex.Not(equal)
    return ex.Compare(op, lower_data(expr.left, place), lower_data(expr.right, place))


def any_of(conditions: list[ex.BoolExpr]) -> ex.BoolExpr:
    """Return the condition that any of `conditions` holds, false for none. Its depth is a logarithm of the number."""
    if len(conditions) < 2:
        return conditions[0] if conditions else ex.BoolConst(False)
    half = len(conditions) // 2
    return ex.Or(any_of(conditions[:half]), any_of(conditions[half:]))


def _is_bool(operand: js.Operand | None) -> bool:
    if isinstance(operand, js.ExpressionOperand):
        return operand.op in _BOOL_OPERATORS or (operand.op == "?" and _is_bool(operand.left))
    return isinstance(operand, js.BoolOperand)


def _unknown_operator(expr: js.ExpressionOperand, place: ExpressionContext) -> ProgramError:
    if expr.op in _UNION_OPERATORS:
        return unsupported_error("header union", f"operator {expr.op}", place.source)
    return unsupported_error("expression", f"operator {expr.op}", place.source)


def _misfit(operand: js.Operand | None, wanted: str, place: ExpressionContext) -> ProgramError:
    if isinstance(operand, js.OtherOperand):
        construct = _REFUSED_OPERANDS.get(operand.type, "operand")
        return unsupported_error(construct, f"operand of type {operand.type}", place.source)
    found = "nothing" if operand is None else type(operand).__name__.removesuffix("Operand").lower()
    return ProgramError(f"expected {wanted}, found {found}{at(place.source)}")
