# SPDX-License-Identifier: Apache-2.0
"""The JSON that p4c writes for the v1model architecture, as typed objects.

A mirror: same structure, same names, nothing resolved. Source of the format: the behavioral-model project's
``docs/JSON_format.md``, version 2.x. msgspec checks the shape of everything that is not an operand. Operands are
checked by `read_operand`, since the format writes them in five forms, and since an operand of an unknown type must
survive until `lower` refuses it with the source line of the primitive that holds it.
"""

from __future__ import annotations

import re
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import Struct, field

from ..errors import ProgramError
from .p4_source import SourceInfo

SUPPORTED_MAJOR = 2
# Readers, interpreter and code generator go down expressions by recursion, of at most four calls a level. Python allows
# 1,000 calls in all. A chain of 100 terms of one width has 200 levels, since p4c writes a mask after each operator.
MAX_EXPRESSION_DEPTH = 200

T = TypeVar("T")


class Hex(int):
    """A number that the format writes as a hexadecimal string, possibly negative, with or without 0x."""


class Operand:
    """An operand of a primitive, an expression or a key, of one of the classes below."""

    __slots__ = ()


class FieldOperand(Operand, Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Operand of type ``field``: a pair of names."""

    header: str
    field: str


class HexOperand(Operand, Struct, frozen=True):
    """Operand of type ``hexstr``, or a plain number. `bits` is the width of the written digits or the bitwidth."""

    value: int
    bits: int


class BoolOperand(Operand, Struct, frozen=True):
    """Operand of type ``bool``."""

    value: bool


class NamedOperand(Operand, Struct, frozen=True):
    """A reference to a named object: `type` is header, register_array, counter_array, calculation..."""

    type: str
    name: str


class LocalOperand(Operand, Struct, frozen=True):
    """Operand of type ``local`` or ``runtime_data``: an argument of the action."""

    index: int


class LookaheadOperand(Operand, Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Operand of type ``lookahead``: `bits` bits that start `offset` bits after the read position."""

    offset: int
    bits: int


class ExpressionOperand(Operand, Struct, frozen=True):
    """Operand of type ``expression`` with an operator."""

    op: str
    left: Operand | None = None
    right: Operand | None = None
    condition: Operand | None = None


class StackFieldOperand(Operand, Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Operand of type ``stack_field``: a field of the element that was extracted last."""

    stack: str
    field: str


class StringOperand(Operand, Struct, frozen=True):
    """Operand of type ``string``."""

    value: str


class VectorOperand(Operand, Struct, frozen=True):
    """Operand of type ``parameters_vector``: several operands as one argument."""

    items: tuple[Operand, ...]


class OtherOperand(Operand, Struct, frozen=True):
    """An operand of a type that is only here to be refused with its name."""

    type: str


class Declared(Struct, frozen=True, kw_only=True):
    """An object of the program with its name and, if the compiler left one, its place in the P4 source."""

    name: str
    source: SourceInfo | None = field(default=None, name="source_info")


class FieldJson(Struct, frozen=True, array_like=True):
    """A field of a header type: [name, bits, signed, saturating]. A width of "*" is a variable-length field."""

    name: str
    width: int | Literal["*"]
    signed: bool = False
    saturating: bool = False

    @property
    def bits(self) -> int | None:
        """The width in bits, or None for a variable-length field."""
        return None if self.width == "*" else self.width


class HeaderTypeJson(Struct, frozen=True):
    """Entry of ``header_types``. `max_bytes` is that of a header with a variable-length field."""

    name: str
    fields: tuple[FieldJson, ...] = ()
    max_bytes: int | None = field(default=None, name="max_length")


class HeaderJson(Declared, frozen=True):
    """Entry of ``headers``: an instance of a header type."""

    id: int
    header_type: str
    metadata: bool = False


class HeaderStackJson(Declared, frozen=True):
    """Entry of ``header_stacks``. Its elements are the ids of their headers."""

    header_type: str
    header_ids: tuple[int, ...] = ()


class HeaderUnionJson(Declared, frozen=True):
    """Entry of ``header_unions``. Its members are the ids of their headers."""

    union_type: str
    header_ids: tuple[int, ...] = ()


class FieldListJson(Struct, frozen=True):
    """Entry of ``field_lists``: metadata that goes with a packet that is copied or starts again."""

    id: int
    name: str | None = None
    elements: tuple[Operand, ...] = ()
    source: SourceInfo | None = field(default=None, name="source_info")


class LearnListJson(Declared, frozen=True):
    """Entry of ``learn_lists``: the members of a digest."""

    id: int
    elements: tuple[Operand, ...] = ()


class MeterJson(Declared, frozen=True):
    """Entry of ``meter_arrays``. A direct meter has a table, and a field for the colour."""

    id: int
    type: str
    rate_count: int
    size: int | None = None
    is_direct: bool = False
    binding: str | None = None
    result_target: FieldOperand | None = None


class PrimitiveJson(Operand, Struct, frozen=True):
    """One primitive call of an action, or of a parser state (there the parameter of an op ``primitive``)."""

    op: str
    parameters: tuple[Operand, ...] = ()
    source: SourceInfo | None = field(default=None, name="source_info")


class TransitionJson(Struct, frozen=True):
    """One transition. Value and mask cover the padded key. The value of a value set is a name."""

    written_type: str | None = field(default=None, name="type")
    value: str | None = None
    mask: Hex | None = None
    next_state: str | None = None

    @property
    def type(self) -> str:
        """The kind of transition: ``default``, ``hexstr`` or ``parse_vset``."""
        if self.written_type is not None:
            return self.written_type
        # Before format 2.23 the compiler wrote a type for value sets only, and "default" as the value. bmv2 takes both.
        return "default" if self.value in (None, "default") else "hexstr"


class ParseStateJson(Declared, frozen=True):
    """Entry of ``parse_states``. An operation has the shape of a primitive call."""

    parser_ops: tuple[PrimitiveJson, ...] = ()
    transition_key: tuple[Operand, ...] = ()
    transitions: tuple[TransitionJson, ...] = ()


class ParserJson(Struct, frozen=True):
    """Entry of ``parsers``: a parser and its states."""

    name: str
    init_state: str | None = None
    parse_states: tuple[ParseStateJson, ...] = ()


class DeparserJson(Struct, frozen=True):
    """Entry of ``deparsers``: the order in which headers are emitted."""

    name: str
    order: tuple[str, ...] = ()
    primitives: tuple[PrimitiveJson, ...] = ()


class CounterJson(Declared, frozen=True):
    """Entry of ``counter_arrays``. A direct counter has a table."""

    id: int
    size: int | None = None
    is_direct: bool = False
    binding: str | None = None


class RegisterJson(Declared, frozen=True):
    """Entry of ``register_arrays``: `size` cells of `bitwidth` bits."""

    id: int
    size: int
    bitwidth: int


class CalculationJson(Declared, frozen=True):
    """Entry of ``calculations``. An input of type ``payload`` is an `OtherOperand`."""

    algo: str
    input: tuple[Operand, ...] = ()


class ChecksumJson(Declared, frozen=True):
    """Entry of ``checksums``: a field, and the calculation that gives its value."""

    type: str
    target: FieldOperand
    calculation: str | None = None
    condition: Operand | None = field(default=None, name="if_cond")
    verify: bool = True
    update: bool = True


class RuntimeDataJson(Struct, frozen=True):
    """The name and width of one parameter of an action."""

    name: str
    bitwidth: int


class ActionJson(Declared, frozen=True):
    """Entry of ``actions``: parameters and primitive calls."""

    id: int
    runtime_data: tuple[RuntimeDataJson, ...] = ()
    primitives: tuple[PrimitiveJson, ...] = ()


class KeyJson(Struct, frozen=True):
    """One key field of a table. `target`: a field, a header (match type ``valid``), or a field of a chosen element."""

    match_type: str
    target: Operand
    mask: Hex | None = None
    name: str | None = None


class MatchJson(Struct, frozen=True):
    """One match value of a constant entry. `lower` knows by the kind of the key which of the numbers are needed."""

    match_type: str
    key: Hex | None = None
    mask: Hex | None = None
    prefix_length: int | None = None
    start: Hex | None = None
    end: Hex | None = None


class ActionEntryJson(Struct, frozen=True):
    """An action with its arguments, in a constant entry or as the default action of a table."""

    action_id: int
    action_data: tuple[Hex, ...] = ()
    action_const: bool = False
    action_entry_const: bool = False


class EntryJson(Struct, frozen=True):
    """A constant entry. In this format the smaller priority wins."""

    action_entry: ActionEntryJson
    priority: int
    match_key: tuple[MatchJson, ...] = ()
    source: SourceInfo | None = field(default=None, name="source_info")


class TableJson(Declared, frozen=True):
    """Entry of ``tables``. `entries` None: the control plane writes them."""

    id: int
    type: str
    match_type: str
    max_size: int
    next_tables: dict[str, str | None]
    with_counters: bool = False
    support_timeout: bool = False
    direct_meters: str | None = None
    key: tuple[KeyJson, ...] = ()
    action_ids: tuple[int, ...] = ()
    base_default_next: str | None = None
    default_entry: ActionEntryJson | None = None
    entries: tuple[EntryJson, ...] | None = None


class ConditionalJson(Declared, frozen=True):
    """Entry of ``conditionals``: an `if` of a control."""

    expression: Operand
    true_next: str | None = None
    false_next: str | None = None


class ActionCallJson(Declared, frozen=True):
    """Entry of ``action_calls``: an action that a control calls without a table."""

    action_id: int
    next_node: str | None = None


class PipelineJson(Struct, frozen=True):
    """Entry of ``pipelines``: one control."""

    name: str
    init_table: str | None = None
    tables: tuple[TableJson, ...] = ()
    conditionals: tuple[ConditionalJson, ...] = ()
    action_calls: tuple[ActionCallJson, ...] = ()
    action_profiles: tuple[Declared, ...] = ()


class RefusedJson(Struct, frozen=True):
    """An object of a section that is refused whole."""

    name: str | None = None
    source: SourceInfo | None = field(default=None, name="source_info")


class ProgramJson(Struct, frozen=True):
    """The whole file. The last three sections are refused whole, if they list anything."""

    program: str | None = None
    header_types: tuple[HeaderTypeJson, ...] = ()
    headers: tuple[HeaderJson, ...] = ()
    header_stacks: tuple[HeaderStackJson, ...] = ()
    header_unions: tuple[HeaderUnionJson, ...] = ()
    field_lists: tuple[FieldListJson, ...] = ()
    learn_lists: tuple[LearnListJson, ...] = ()
    meter_arrays: tuple[MeterJson, ...] = ()
    errors: tuple[tuple[str, int], ...] = ()
    parsers: tuple[ParserJson, ...] = ()
    deparsers: tuple[DeparserJson, ...] = ()
    counter_arrays: tuple[CounterJson, ...] = ()
    register_arrays: tuple[RegisterJson, ...] = ()
    calculations: tuple[CalculationJson, ...] = ()
    checksums: tuple[ChecksumJson, ...] = ()
    actions: tuple[ActionJson, ...] = ()
    pipelines: tuple[PipelineJson, ...] = ()
    field_aliases: tuple[tuple[str, FieldOperand], ...] = ()
    header_union_stacks: tuple[RefusedJson, ...] = ()
    parse_vsets: tuple[RefusedJson, ...] = ()
    extern_instances: tuple[RefusedJson, ...] = ()


class _Meta(Struct, frozen=True):
    version: tuple[int, int]


class _Format(Struct, frozen=True):
    meta: _Meta | None = field(default=None, name="__meta__")


def read_version(text: str) -> tuple[int, int] | None:
    """Return the version of the file's format, None where the file has none. Raises: ProgramError (no such format)."""
    meta = _decode(text, _Format).meta
    if meta is not None and meta.version[0] != SUPPORTED_MAJOR:
        raise ProgramError(
            f"program: JSON format {list(meta.version)} is not {SUPPORTED_MAJOR}.x; compile with a current p4c"
        )
    return None if meta is None else meta.version


def read_program(text: str) -> ProgramJson:
    """Read the mirror of a compiled program. Raises: ProgramError (not the JSON of a v1model program)."""
    return _decode(text, ProgramJson)


def _decode(text: str, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(text, type=kind, dec_hook=_custom)
    except msgspec.ValidationError as error:
        raise ProgramError(_with_path(str(error))) from None
    except msgspec.DecodeError as error:
        raise ProgramError(f"not JSON: {error}; expected the output of p4c-bm2-ss") from None


_AT = re.compile(r" - at `\$([^`]*)`")


def _with_path(message: str) -> str:
    """Put the place in front of one of msgspec's messages, whose inner paths come before the outer ones."""
    path = "".join(reversed(_AT.findall(message)))
    return f"program{path}: {_AT.sub('', message)}"


def _custom(kind: type, data: Any) -> Any:
    if kind is Hex:
        return _hex(data)
    try:
        return read_operand(data)
    except msgspec.ValidationError as error:
        # msgspec adds the outer path to a plain ValueError only. Inner values are under the key `value`.
        raise ValueError(f"{error} - at `$.value`") from None


def _hex(data: Any) -> Hex:
    text = _convert(data, str)
    try:
        return Hex(text, 16)
    except ValueError:
        raise ValueError(f"{text!r} is not a hexadecimal number") from None


def _convert(data: Any, kind: type[T]) -> T:
    return msgspec.convert(data, kind, dec_hook=_custom)


# Types whose value is the name of an object. Some have two spellings.
_NAMED = {name: name for name in ("calculation", "header", "header_stack", "header_union")}
_NAMED |= {name: name for name in ("counter_array", "meter_array", "register_array")}
_NAMED |= {"regular": "header", "stack": "header_stack"}
_CONVERTED: dict[str, type[Operand]] = {
    "field": FieldOperand,
    "lookahead": LookaheadOperand,
    "stack_field": StackFieldOperand,
}


def read_operand(data: Any, depth: int = 0) -> Operand:
    """Read an operand from parsed JSON, inside of `depth` expressions. Raises: ValueError (wrong shape, too deep)."""
    if isinstance(data, list):
        return _convert(data, FieldOperand)
    # The target of a key with match type valid is the name of the header alone.
    if isinstance(data, str):
        return NamedOperand("header", data)
    # Plain numbers: the member of access_field, and the bytes of shift, which is refused.
    if isinstance(data, int) and not isinstance(data, bool):
        return HexOperand(data, max(1, data.bit_length()))
    if not isinstance(data, dict):
        raise ValueError(f"Expected an operand, got {data!r}")
    if "op" in data:
        return _convert(data, PrimitiveJson)
    kind, value = _convert(data.get("type"), str), data.get("value")
    if kind in _CONVERTED:
        return _convert(value, _CONVERTED[kind])
    if kind in _NAMED:
        return NamedOperand(_NAMED[kind], _convert(value, str))
    if kind == "expression":
        return _expression(_convert(value, dict), depth + 1)
    if kind == "hexstr":
        text, bits = _convert(value, str), data.get("bitwidth")
        # A literal has the width of its digits as written: leading zeros count in hashes and concatenations.
        digits = text.lstrip("-").removeprefix("0x")
        return HexOperand(_hex(text), 4 * len(digits) if bits is None else _convert(bits, int))
    if kind == "bool":
        return BoolOperand(_convert(value, bool))
    if kind in ("local", "runtime_data"):
        return LocalOperand(_convert(value, int))
    if kind == "string":
        return StringOperand(_convert(value, str))
    if kind == "parameters_vector":
        return VectorOperand(_convert(value or [], tuple[Operand, ...]))  # p4c writes {} for none
    return OtherOperand(kind)


def _expression(value: dict[str, Any], depth: int) -> Operand:
    if depth > MAX_EXPRESSION_DEPTH:
        raise _TooDeepError(
            f"an expression is nested too deeply, in more than {MAX_EXPRESSION_DEPTH} levels; split it over several"
            " assignments"
        )
    if "op" not in value:  # an operand wrapped once more
        return read_operand(value, depth)
    parts = (_part(value, name, depth) for name in ("left", "right", "cond"))
    expression = ExpressionOperand(_convert(value["op"], str), *parts)
    if expression.op in ("access_field", "access_union_header") and not isinstance(expression.right, HexOperand):
        raise ValueError(f"Expected a number on the right of {expression.op}")
    return expression


class _TooDeepError(ValueError):
    """An expression of too many levels. Its place is the outermost expression: the whole way would fill the screen."""


def _part(value: dict[str, Any], name: str, depth: int) -> Operand | None:
    try:
        return None if value.get(name) is None else read_operand(value[name], depth)
    except _TooDeepError:
        raise
    except ValueError as error:
        inner = f"{error} - at `$.value`" if isinstance(error, msgspec.ValidationError) else str(error)
        raise ValueError(f"{inner} - at `$.value.{name}`") from None
