# SPDX-License-Identifier: Apache-2.0
"""Parser states of the mirror to IR."""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import ProgramError
from .ir_expressions import FieldIR
from .ir_parser import (
    Advance,
    Computed,
    Extract,
    ExtractNext,
    ExtractVariable,
    KeyPart,
    Lookahead,
    ParserIR,
    ParserOp,
    Perform,
    SetField,
    SetLookahead,
    StateIR,
    TransitionCase,
    Verify,
)
from .lower_actions import lower_primitive
from .lower_expressions import lower_bool, lower_data, lower_header
from .p4c_json import (
    FieldOperand,
    LookaheadOperand,
    NamedOperand,
    Operand,
    OtherOperand,
    ParserJson,
    ParseStateJson,
    PrimitiveJson,
    StackFieldOperand,
    TransitionJson,
)
from .scope import VALIDITY_FIELD, ExpressionContext, ProgramScope
from .source import at
from .unsupported import refuse


def lower_parser(parser: ParserJson, scope: ProgramScope) -> ParserIR:
    """Return the parser with all names resolved. Raises: ProgramError."""
    states = {state.name: _state(state, scope) for state in parser.parse_states}
    return ParserIR(parser.name, parser.init_state, states)


def _state(state: ParseStateJson, scope: ProgramScope) -> StateIR:
    key = tuple(_key_part(part, ExpressionContext(scope, (), state.source)) for part in state.transition_key)
    key_bits = sum(8 * padded_bytes(part.bits) for part in key)
    cases = tuple(_cases(state, key_bits))
    defaults = [t.next_state for t in state.transitions if t.type == "default"]
    ops = tuple(_op(op, scope, state) for op in state.parser_ops)
    return StateIR(state.name, ops, key, cases, defaults[0] if defaults else None, state.source)


def padded_bytes(bits: int) -> int:
    """Return the bytes that a piece of a transition key takes."""
    return (bits + 7) // 8


def _cases(state: ParseStateJson, key_bits: int) -> Iterator[TransitionCase]:
    for transition in state.transitions:
        if transition.type == "default":
            continue
        if transition.type == "parse_vset":
            raise refuse("value set", f"transition of state {state.name}", state.source)
        yield _case(transition, state, key_bits)


def _case(transition: TransitionJson, state: ParseStateJson, key_bits: int) -> TransitionCase:
    if transition.type != "hexstr":
        raise refuse("parser operation", f"transition {transition.type} of state {state.name}", state.source)
    everything = (1 << key_bits) - 1
    mask = everything if transition.mask is None else transition.mask
    try:
        value = int(transition.value or "", 16)
    except ValueError:
        raise ProgramError(
            f"state {state.name}: the value {transition.value!r} of a transition is not hexadecimal{at(state.source)}"
        ) from None
    if value & ~everything or mask & ~everything:
        raise ProgramError(f"state {state.name}: a transition is wider than its key{at(state.source)}")
    return TransitionCase(value & mask, mask, transition.next_state)


def _key_part(part: Operand, place: ExpressionContext) -> KeyPart:
    if isinstance(part, FieldOperand):
        return KeyPart(place.scope.field(part, place.source))
    if isinstance(part, LookaheadOperand):
        return KeyPart(Lookahead(part.offset, part.bits))
    if isinstance(part, StackFieldOperand):
        value = lower_data(part, place)
        return KeyPart(Computed(value, value.type.bits))
    lower_data(part, place)  # refuses unsupported operands by their own name
    raise ProgramError(f"transition key that is neither field nor lookahead{at(place.source)}")


def _op(op: PrimitiveJson, scope: ProgramScope, state: ParseStateJson) -> ParserOp:
    place = ExpressionContext(scope, (), op.source or state.source)
    if op.op == "extract_VL":
        return _extract_variable(op, place)
    if op.op == "primitive":
        call = _arg(op, 0, place)
        if not isinstance(call, PrimitiveJson):
            raise ProgramError(f"parser operation primitive without a primitive{at(place.source)}")
        return Perform(lower_primitive(call, scope))
    if op.op == "extract":
        return _extract(op, place)
    if op.op == "set":
        return _set(op, place)
    if op.op == "verify":
        return Verify(lower_bool(_arg(op, 0, place), place), lower_data(_arg(op, 1, place), place))
    if op.op == "advance":
        return Advance(lower_data(_arg(op, 0, place), place))
    raise refuse("parser operation", f"{op.op} in state {state.name}", place.source)


def _extract(op: PrimitiveJson, place: ExpressionContext) -> ParserOp:
    target = _arg(op, 0, place)
    if isinstance(target, NamedOperand) and target.type == "header_stack":
        return ExtractNext(place.scope.stack(target.name, place.source))
    if isinstance(target, OtherOperand):
        construct = "header union" if target.type == "union_stack" else "operand"
        raise refuse(construct, f"extract to {target.type}", place.source)
    header = lower_header(target, place)
    if header.variable is not None:
        raise refuse("varbit", f"extract of {header.name} without a length", place.source)
    return Extract(header)


def _extract_variable(op: PrimitiveJson, place: ExpressionContext) -> ParserOp:
    target = _arg(op, 0, place)
    if not isinstance(target, NamedOperand) or target.type != "header":
        raise refuse("varbit", "extract with a length to something else than a header", place.source)
    header = lower_header(target, place)
    if header.variable is None:
        raise ProgramError(f"{header.name} has no variable-length field{at(place.source)}")
    return ExtractVariable(header, header.variable, lower_data(_arg(op, 1, place), place))


def _set(op: PrimitiveJson, place: ExpressionContext) -> ParserOp:
    target, value = _target(_arg(op, 0, place), place), _arg(op, 1, place)
    if isinstance(value, LookaheadOperand):
        return SetLookahead(target, Lookahead(value.offset, value.bits))
    return SetField(target, lower_data(value, place))


def _target(operand: Operand, place: ExpressionContext) -> FieldIR:
    if not isinstance(operand, FieldOperand):
        raise ProgramError(f"the parser sets something that is not a field{at(place.source)}")
    if operand.field == VALIDITY_FIELD:
        raise refuse("validity write", f"{operand.header}.{operand.field}", place.source)
    return place.scope.field(operand, place.source)


def _arg(op: PrimitiveJson, index: int, place: ExpressionContext) -> Operand:
    if index >= len(op.parameters):
        raise ProgramError(f"parser operation {op.op} lacks argument {index + 1}{at(place.source)}")
    return op.parameters[index]
