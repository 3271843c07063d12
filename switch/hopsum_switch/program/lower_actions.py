# SPDX-License-Identifier: Apache-2.0
"""Primitive calls to operations, one function per primitive."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import ProgramError
from . import ir as p4
from . import p4c_json as js
from .ir_expressions import Const, FieldIR, VariableIR
from .lower_expressions import (
    VALIDITY_FIELD,
    ExpressionContext,
    ProgramScope,
    lower_data,
    lower_element,
    lower_header,
    lower_union,
)
from .p4_source import at
from .unsupported import unsupported_error

Arguments = tuple[js.Operand, ...]


def lower_action(action: js.ActionJson, scope: ProgramScope) -> p4.ActionIR:
    """Return an action with all names resolved. Raises: ProgramError."""
    params = tuple(p4.ParamIR(p.name, p.bitwidth) for p in action.runtime_data)
    body = tuple(lower_primitive(p, scope, params) for p in action.primitives)
    sources = tuple(p.source for p in action.primitives)
    return p4.ActionIR(action.name, action.id, params, body, sources, action.source)


def lower_primitive(
    primitive: js.PrimitiveJson, scope: ProgramScope, params: tuple[p4.ParamIR, ...] = ()
) -> p4.Operation:
    """Return one primitive call as an operation. Raises: ProgramError."""
    place = ExpressionContext(scope, params, primitive.source)
    if primitive.op in _REFUSED:
        raise unsupported_error(_REFUSED[primitive.op], f"primitive {primitive.op}", primitive.source)
    if primitive.op not in _PRIMITIVES:
        raise unsupported_error("primitive", primitive.op, primitive.source)
    count, build = _PRIMITIVES[primitive.op]
    if len(primitive.parameters) != count:
        raise ProgramError(
            f"{primitive.op} takes {count} arguments, {len(primitive.parameters)} given{at(primitive.source)}"
        )
    return build(primitive.parameters, place)


def _assign(args: Arguments, place: ExpressionContext) -> p4.Operation:
    element = lower_element(args[0], place)
    if element is not None:
        return p4.AssignElement(*element, lower_data(args[1], place))
    return p4.Assign(_target(args[0], place), lower_data(args[1], place))


def _assign_header(args: Arguments, place: ExpressionContext) -> p4.Operation:
    target, value = lower_header(args[0], place), lower_header(args[1], place)
    if target.type_name != value.type_name:
        raise ProgramError(f"{target.name} = {value.name} mixes header types{at(place.source)}")
    return p4.AssignHeader(target, value)


def _mark_to_drop(args: Arguments, place: ExpressionContext) -> p4.Operation:
    header = lower_header(args[0], place)
    fields = {f.name: f for f in header.fields}
    if "egress_spec" not in fields:
        raise ProgramError(f"mark_to_drop({header.name}): no field egress_spec{at(place.source)}")
    return p4.MarkToDrop(fields["egress_spec"], fields.get("mcast_grp"))


def _drop(args: Arguments, place: ExpressionContext) -> p4.Operation:
    # The `mark_to_drop()` of older P4 programs, which has no argument: it acts on the architecture's own metadata.
    standard = place.scope.standard
    if "standard_metadata.egress_spec" not in standard:
        raise ProgramError(f"drop: the program has no standard_metadata.egress_spec{at(place.source)}")
    return p4.MarkToDrop(standard["standard_metadata.egress_spec"], standard.get("intrinsic_metadata.mcast_grp"))


def _register_read(args: Arguments, place: ExpressionContext) -> p4.Operation:
    register = place.scope.registers.find(_name(args[1], "register_array", place), place.source)
    return p4.RegisterRead(_target(args[0], place), register, lower_data(args[2], place))


def _register_write(args: Arguments, place: ExpressionContext) -> p4.Operation:
    register = place.scope.registers.find(_name(args[0], "register_array", place), place.source)
    return p4.RegisterWrite(register, lower_data(args[1], place), lower_data(args[2], place))


def _count(args: Arguments, place: ExpressionContext) -> p4.Operation:
    counter = place.scope.counters.find(_name(args[0], "counter_array", place), place.source)
    if counter.table is not None:
        raise ProgramError(f"count() on the direct counter {counter.name}{at(place.source)}")
    return p4.Count(counter, lower_data(args[1], place))


def _hash(args: Arguments, place: ExpressionContext) -> p4.Operation:
    calculation = place.scope.calculations.find(_name(args[2], "calculation", place), place.source)
    base, size = lower_data(args[1], place), lower_data(args[3], place)
    return p4.Hash(_target(args[0], place), base, calculation, size)


def _random(args: Arguments, place: ExpressionContext) -> p4.Operation:
    return p4.RandomUniform(_target(args[0], place), lower_data(args[1], place), lower_data(args[2], place))


def _stack(arg: js.Operand, place: ExpressionContext) -> p4.StackIR:
    return place.scope.stacks.find(_name(arg, "header_stack", place), place.source)


def _shift_stack(args: Arguments, place: ExpressionContext, sign: int) -> p4.Operation:
    number = _constant(args[1], "a number of elements", place)
    if number < 0:
        raise ProgramError(f"a stack cannot move by {number} elements{at(place.source)}")
    return p4.ShiftStack(_stack(args[0], place), sign * number)


def _assign_stack(args: Arguments, place: ExpressionContext) -> p4.Operation:
    target, value = _stack(args[0], place), _stack(args[1], place)
    if [header.type_name for header in target.headers] != [header.type_name for header in value.headers]:
        raise ProgramError(f"{target.name} = {value.name} mixes header stacks{at(place.source)}")
    return p4.AssignStack(target, value)


def _assign_union(args: Arguments, place: ExpressionContext) -> p4.Operation:
    target, value = lower_union(args[0], place), lower_union(args[1], place)
    if target.type_name != value.type_name:
        raise ProgramError(f"{target.name} = {value.name} mixes header unions{at(place.source)}")
    return p4.AssignUnion(target, value)


def _assign_variable(args: Arguments, place: ExpressionContext) -> p4.Operation:
    target, value = (_variable(arg, place) for arg in args)
    if target.field.bits < value.field.bits:
        raise ProgramError(f"{value.field.qualified} may be longer than {target.field.qualified}{at(place.source)}")
    return p4.AssignVariable(target, value)


def _variable(arg: js.Operand, place: ExpressionContext) -> VariableIR:
    field = _target(arg, place)
    variable = place.scope.headers.find(field.header, place.source).variable
    if variable is None or variable.field != field:
        raise ProgramError(f"{field.qualified} is no variable-length field{at(place.source)}")
    return variable


def _log_message(args: Arguments, place: ExpressionContext) -> p4.Operation:
    text, values = args
    if not isinstance(text, js.StringOperand) or not isinstance(values, js.VectorOperand):
        raise ProgramError(f"log_msg() without a text or values{at(place.source)}")
    parts = tuple(text.value.split("{}"))
    if len(parts) != len(values.items) + 1:
        raise ProgramError(f"log_msg() has {len(parts) - 1} places for {len(values.items)} values{at(place.source)}")
    return p4.LogMessage(parts, tuple(lower_data(item, place) for item in values.items))


def _preserved(arg: js.Operand, place: ExpressionContext) -> p4.FieldListIR:
    return place.scope.field_lists.find(_constant(arg, "a field list", place), place.source)


def _clone(args: Arguments, place: ExpressionContext) -> p4.Operation:
    return p4.Clone(lower_data(args[0], place), _preserved(args[1], place))


def _send_digest(args: Arguments, place: ExpressionContext) -> p4.Operation:
    # The first argument is a receiver, which no target of v1model reads.
    return p4.SendDigest(place.scope.digests.find(_constant(args[1], "a learn list", place), place.source))


def _execute_meter(args: Arguments, place: ExpressionContext) -> p4.Operation:
    meter = place.scope.meters.find(_name(args[0], "meter_array", place), place.source)
    if meter.table is not None:
        raise ProgramError(f"execute_meter() on the direct meter {meter.name}{at(place.source)}")
    return p4.ExecuteMeter(meter, lower_data(args[1], place), _target(args[2], place))


def _constant(arg: js.Operand, what: str, place: ExpressionContext) -> int:
    value = lower_data(arg, place)
    if not isinstance(value, Const):
        raise ProgramError(f"{what} is not a constant{at(place.source)}")
    return value.value


def _target(arg: js.Operand, place: ExpressionContext) -> FieldIR:
    if not isinstance(arg, js.FieldOperand):
        lower_data(arg, place)  # refuses unsupported operands by their own name
        raise ProgramError(f"assignment to something that is not a field{at(place.source)}")
    if arg.field == VALIDITY_FIELD:
        raise unsupported_error("validity write", f"{arg.header}.{arg.field}", place.source)
    return place.scope.field(arg, place.source)


def _name(arg: js.Operand, kind: str, place: ExpressionContext) -> str:
    if isinstance(arg, js.NamedOperand) and arg.type == kind:
        return arg.name
    raise ProgramError(f"expected a {kind.replace('_', ' ')}{at(place.source)}")


_PRIMITIVES: dict[str, tuple[int, Callable[[Arguments, ExpressionContext], p4.Operation]]] = {
    "_jump": (1, lambda args, place: p4.Jump(_constant(args[0], "a jump's offset", place))),
    "_jump_if_zero": (
        2,
        lambda args, place: p4.JumpIfZero(lower_data(args[0], place), _constant(args[1], "a jump's offset", place)),
    ),
    "add_header": (1, lambda args, place: p4.AddHeader(lower_header(args[0], place))),
    "assign": (2, _assign),
    "assign_VL": (2, _assign_variable),
    "assign_header": (2, _assign_header),
    "assign_header_stack": (2, _assign_stack),
    "assign_union": (2, _assign_union),
    "clone_egress_pkt_to_egress": (2, _clone),
    "clone_ingress_pkt_to_egress": (2, _clone),
    "count": (2, _count),
    "drop": (0, _drop),
    "execute_meter": (3, _execute_meter),
    "exit": (0, lambda args, place: p4.Exit()),
    "log_msg": (2, _log_message),
    "generate_digest": (2, _send_digest),
    "mark_to_drop": (1, _mark_to_drop),
    # The name of `assign` in P4-14, for bmv2 the same primitive.
    "modify_field": (2, _assign),
    "modify_field_rng_uniform": (3, _random),
    "modify_field_with_hash_based_offset": (4, _hash),
    "no_op": (0, lambda args, place: p4.NoOp()),
    "pop": (2, lambda args, place: _shift_stack(args, place, -1)),
    "push": (2, lambda args, place: _shift_stack(args, place, 1)),
    "recirculate": (1, lambda args, place: p4.Recirculate(_preserved(args[0], place))),
    "register_read": (3, _register_read),
    "register_write": (3, _register_write),
    "remove_header": (1, lambda args, place: p4.RemoveHeader(lower_header(args[0], place))),
    "resubmit": (1, lambda args, place: p4.Resubmit(_preserved(args[0], place))),
    "truncate": (1, lambda args, place: p4.Truncate(lower_data(args[0], place))),
}

# Primitives that are refused by a construct of their own in the list of unsupported ones.
_REFUSED = {"assert": "assert", "assign_union_stack": "header union", "assume": "assert"}
