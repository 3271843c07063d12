# SPDX-License-Identifier: Apache-2.0
"""Expressions to Python source.

The generated code reads the list of values `v` and the action's arguments `a`. Evaluation has no side
effects, so deep parts may be computed ahead into temporaries, which keeps Python's nesting limit away.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..program import ir_expressions as ex
from .packet import ValueLayout, wrap_signed

# CPython compiles at most 200 nested parentheses, and a level of an expression may have several.
MAX_NESTING = 40

# Operators whose Python spelling differs from P4's.
_SPELLING = {ex.BinaryOp.DIV: "//"}


class ExpressionWriter:
    """A writer of expressions as Python source.

    `lines` collects the temporaries to compute first, `namespace` the objects that the source names.
    """

    def __init__(self, layout: ValueLayout) -> None:
        self.lines: list[str] = []
        self.namespace: dict[str, Any] = {}
        self._layout = layout
        self._temporaries = 0

    def data(self, expr: ex.DataExpr) -> str:
        """Return source that yields an integer."""
        return self._data(expr)[0]

    def condition(self, expr: ex.BoolExpr) -> str:
        """Return source that yields a truth value (a bool, or an int used as one)."""
        return self._bool(expr)[0]

    def stored(self, expr: ex.DataExpr, field: ex.FieldIR) -> str:
        """Return source that yields an integer wrapped to a field's width."""
        return wrap_to_field(self.data(expr), expr, field)

    def field(self, field: ex.FieldIR) -> str:
        """Return source that reads a field."""
        return f"v[{field.slot}]"

    def absent(self, field: ex.FieldIR) -> str:
        """Return source for the value of an invalid header's field in a table's key."""
        del field
        return "0"

    def temporary(self, name: str, text: str) -> str:
        """Compute `text` before the expression that contains it. Return source that yields its value."""
        self.lines.append(f"{name} = {text}")
        return name

    def _data(self, expr: ex.DataExpr) -> tuple[str, int]:
        if isinstance(expr, ex.FieldRef):
            return self.field(expr.field), 1
        if isinstance(expr, ex.Const):
            return f"{expr.value:#x}" if expr.value >= 0 else f"({expr.value:#x})", 1
        if isinstance(expr, ex.ParamRef):
            return f"a[{expr.index}]", 1
        if isinstance(expr, ex.Binary):
            return self._binary(expr)
        if isinstance(expr, ex.Invert):
            return self._nest("(~{})", self._data(expr.operand))
        if isinstance(expr, ex.Cast):
            return self._cast(expr)
        if isinstance(expr, ex.Select):
            parts = self._data(expr.yes), self._bool(expr.condition), self._data(expr.no)
            return self._nest("({} if {} else {})", *parts)
        return self._nest("(1 if {} else 0)", self._bool(expr.operand))

    def _binary(self, expr: ex.Binary) -> tuple[str, int]:
        left, right = self._data(expr.left), self._data(expr.right)
        operator = _SPELLING.get(expr.op, expr.op.value)
        # The amount may come from a packet. Python would make an integer of that many bits.
        if expr.op in (ex.BinaryOp.SHL, ex.BinaryOp.SHR) and (1 << expr.right.type.bits) - 1 > ex.MAX_SHIFT:
            return self._nest(f"({{}} {operator} min({{}}, {ex.MAX_SHIFT}))", left, right)
        return self._nest(f"({{}} {operator} {{}})", left, right)

    def _cast(self, expr: ex.Cast) -> tuple[str, int]:
        operand = self._data(expr.operand)
        if expr.op is ex.CastOp.WRAP:
            return self._nest(f"wrap({{}}, {expr.bits})", operand)
        low = 0 if expr.op is ex.CastOp.SATURATE else -(1 << (expr.bits - 1))
        high = low + (1 << expr.bits) - 1
        return self._nest(f"min(max({{}}, {low}), {high})", operand)

    def _bool(self, expr: ex.BoolExpr) -> tuple[str, int]:
        if isinstance(expr, ex.BoolConst):
            return str(expr.value), 1
        if isinstance(expr, ex.Compare):
            return self._nest(f"({{}} {expr.op.value} {{}})", self._data(expr.left), self._data(expr.right))
        if isinstance(expr, ex.CompareHeaders):
            return self._compare_headers(expr), 3
        if isinstance(expr, ex.CompareBools):
            return self._nest("(bool({}) == bool({}))", self._bool(expr.left), self._bool(expr.right))
        if isinstance(expr, ex.And):
            return self._nest("({} and {})", self._bool(expr.left), self._bool(expr.right))
        if isinstance(expr, ex.Or):
            return self._nest("({} or {})", self._bool(expr.left), self._bool(expr.right))
        if isinstance(expr, ex.Not):
            return self._nest("(not {})", self._bool(expr.operand))
        if isinstance(expr, ex.IsValid):
            return f"v[{self._layout.valid(expr.header)}]", 1
        if isinstance(expr, ex.NonZero):
            return self._nest("({} != 0)", self._data(expr.operand))
        assert isinstance(expr, ex.SelectBool)
        parts = self._bool(expr.yes), self._bool(expr.condition), self._bool(expr.no)
        return self._nest("({} if {} else {})", *parts)

    def _compare_headers(self, expr: ex.CompareHeaders) -> str:
        if expr.left.type_name != expr.right.type_name:
            return "False"
        (a, b), (c, d) = self._layout.span(expr.left), self._layout.span(expr.right)
        valid = f"v[{self._layout.valid(expr.left)}] and v[{self._layout.valid(expr.right)}]"
        return f"({valid} and v[{a}:{b}] == v[{c}:{d}])"

    def _nest(self, form: str, *parts: tuple[str, int]) -> tuple[str, int]:
        text, depth = form.format(*(part for part, _ in parts)), 1 + max(d for _, d in parts)
        if depth < MAX_NESTING:
            return text, depth
        self._temporaries += 1
        return self.temporary(f"t{self._temporaries}", text), 1


def wrap_to_field(text: str, expr: ex.DataExpr, field: ex.FieldIR) -> str:
    """Return source that wraps the value of source `text`, of the type of `expr`, to a field's width and sign."""
    if field.signed:
        fits = expr.type.as_signed().bits <= field.bits
        return text if fits else f"wrap_field({text}, {field.bits})"
    if not expr.type.signed and expr.type.bits <= field.bits:
        return text
    return f"{text} & {(1 << field.bits) - 1:#x}"


def wrap(value: int, bits: int) -> int:
    """Return the two's complement value of the low `bits` bits."""
    half = 1 << (bits - 1)
    return ((value + half) & ((1 << bits) - 1)) - half


NAMESPACE: dict[str, Any] = {"wrap": wrap, "wrap_field": wrap_signed}


def compile_function(name: str, arguments: str, lines: list[str], namespace: dict[str, Any]) -> Callable[..., Any]:
    """Compile a Python function with a body of source lines. `namespace` has the names that the body may use."""
    body = "\n".join(f"    {line}" for line in lines or ["pass"])
    scope = {**NAMESPACE, **namespace}
    exec(compile(f"def run({arguments}):\n{body}\n", f"<{name}>", "exec"), scope)
    run: Callable[..., Any] = scope["run"]
    return run


def compile_data(expr: ex.DataExpr, writer: ExpressionWriter, name: str) -> Callable[[list[int]], int]:
    """Return a function from values to the integer of an expression without action arguments. `writer` is a new one."""
    result = writer.data(expr)
    return compile_function(name, "v", [*writer.lines, f"return {result}"], writer.namespace)


def compile_tuple(
    exprs: Sequence[ex.DataExpr], bits: Sequence[int], writer: ExpressionWriter, name: str
) -> Callable[[list[int]], tuple[int, ...]]:
    """Return a function from values to several integers, each cut to its number of bits. `writer` is a new one."""
    results = [f"{writer.data(expr)} & {(1 << width) - 1:#x}" for expr, width in zip(exprs, bits, strict=True)]
    values = "".join(f"{each}, " for each in results)
    return compile_function(name, "v", [*writer.lines, f"return ({values})"], writer.namespace)


def compile_condition(expr: ex.BoolExpr, writer: ExpressionWriter, name: str) -> Callable[[list[int]], object]:
    """Return a function from values to the truth of a condition. `writer` is a new one."""
    result = writer.condition(expr)
    return compile_function(name, "v", [*writer.lines, f"return {result}"], writer.namespace)
