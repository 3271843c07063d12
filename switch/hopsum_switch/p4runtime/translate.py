# SPDX-License-Identifier: Apache-2.0
"""Matches, actions and counter values: Translation between P4Runtime messages and the arguments of the engine's stores.

Widths are the program's: where P4Info translates a type, the control plane's value must still fit the data
plane.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from p4.v1.p4runtime_pb2 import CounterData, FieldMatch, MeterConfig, TableAction, TableEntry

from hopsum_switch import errors
from hopsum_switch.p4runtime.p4info_index import MatchField, P4InfoIndex, P4InfoMatchKind, TableInfo
from hopsum_switch.p4runtime.status import P4RuntimeError, RpcCode, decode, encode, invalid
from hopsum_switch.program.ir import ActionCall, KeyIR, TableIR
from hopsum_switch.state.cells import PacketByteCount
from hopsum_switch.state.entry_lookup import Exact, Lpm, Match, Optional, Range, Ternary
from hopsum_switch.state.meter import MeterConfig as MeterValues

_CODES: dict[type[errors.TableError], RpcCode] = {
    errors.AlreadyExistsError: RpcCode.ALREADY_EXISTS,
    errors.NotFoundError: RpcCode.NOT_FOUND,
    errors.InvalidArgumentError: RpcCode.INVALID_ARGUMENT,
    errors.OutOfSpaceError: RpcCode.RESOURCE_EXHAUSTED,
    errors.ReadOnlyError: RpcCode.PERMISSION_DENIED,
}


@contextmanager
def store_refusals() -> Iterator[None]:
    """Turn a TableError in the `with` block into a P4RuntimeError with the matching code."""
    try:
        yield
    except errors.TableError as error:
        raise P4RuntimeError(_CODES.get(type(error), RpcCode.INTERNAL), str(error)) from error


def match_from_proto(table: TableInfo, ir: TableIR, messages: Iterable[FieldMatch]) -> tuple[Match, ...]:
    """Return one match value per key field. Fields that are left out match everything.

    Raises P4RuntimeError: a field is unknown, given twice, of another kind, not canonical, or an exact one
    is missing.
    """
    # A client may give the fields in any order, and leave out those that match everything.
    given: dict[int, FieldMatch] = {}
    known = {field.id for field in table.fields}
    for message in messages:
        if message.field_id not in known:
            raise invalid(f"table {table.name} has no key field {message.field_id}: it has {sorted(known)}")
        if message.field_id in given:
            raise invalid(f"key field {message.field_id} of table {table.name} is given twice")
        given[message.field_id] = message
    return tuple(
        _match_one(table, field, key, given.get(field.id)) for field, key in zip(table.fields, ir.keys, strict=True)
    )


def fill_match(table: TableInfo, ir: TableIR, match: tuple[Match, ...], message: TableEntry) -> None:
    """Add the match of an entry to its empty message, without fields that match everything."""
    for field, key, value in zip(table.fields, ir.keys, match, strict=True):
        # P4Runtime leaves a field out that matches everything, in a Read as in a Write.
        if not _fill_match(message.match.add(field_id=field.id), field, key, value):
            del message.match[-1]


def action_from_proto(
    info: P4InfoIndex, table: TableInfo, ir: TableIR, message: TableAction, *, default: bool
) -> tuple[str, tuple[int, ...]]:
    """Return name and arguments of a TableAction, in the order of the action's parameters.

    Raises P4RuntimeError: not an action of this table (or not one for this use), or arguments that do not
    fit it.
    """
    if message.WhichOneof("type") != "action":
        raise invalid(f"table {table.name} takes an action, not {message.WhichOneof('type') or 'nothing'}")
    # An action of the wrong scope differs from an unknown one: the two have different codes.
    allowed, other = table.entry_actions, table.default_actions
    if default:
        allowed, other = other, allowed
    action_id = message.action.action_id
    if action_id not in allowed:
        if action_id in other:
            raise P4RuntimeError(
                RpcCode.PERMISSION_DENIED,
                f"action {info.actions[action_id].name} cannot be used as"
                f" {'default action' if default else 'action of an entry'} of table {table.name}",
            )
        raise invalid(
            f"action id {action_id} is not an action of table {table.name}:"
            f" {', '.join(f'{info.actions[i].name}={i}' for i in sorted(allowed))}"
        )
    action = info.actions[action_id]
    given: dict[int, bytes] = {}
    for param in message.action.params:
        if param.param_id in given:
            raise invalid(f"parameter {param.param_id} of action {action.name} is given twice")
        given[param.param_id] = param.value
    wanted = {param.id for param in action.params}
    if given.keys() != wanted:
        raise invalid(f"action {action.name} takes parameters {sorted(wanted)}, but {sorted(given)} are given")
    bits = [param.bits for param in ir.actions[action.name].params]
    return action.name, tuple(
        decode(given[param.id], width, f"{action.name}.{param.name}")
        for param, width in zip(action.params, bits, strict=True)
    )


def fill_action(info: P4InfoIndex, table: TableInfo, call: ActionCall, message: TableAction) -> None:
    """Fill an empty TableAction message with an action call. Raises P4RuntimeError: P4Info lacks the action."""
    for action_id in table.entry_actions | table.default_actions:
        action = info.actions[action_id]
        if action.name == call.action.name:
            message.action.action_id = action_id
            for param, value in zip(action.params, call.args, strict=True):
                message.action.params.add(param_id=param.id, value=encode(value))
            return
    raise P4RuntimeError(RpcCode.INTERNAL, f"action {call.action.name} of table {table.name} is not in the P4Info")


def counter_from_proto(message: CounterData) -> PacketByteCount:
    """Return the value of a CounterData message, which may be negative."""
    return PacketByteCount(message.packet_count, message.byte_count)


def counter_to_proto(value: PacketByteCount) -> CounterData:
    """Return the CounterData message of a value."""
    return CounterData(packet_count=value.packets, byte_count=value.bytes)


def meter_from_proto(message: MeterConfig) -> MeterValues:
    """Return the values of a MeterConfig message, unchecked. Raises P4RuntimeError: it has an excess burst."""
    if message.eburst:
        raise invalid(f"eburst {message.eburst}: the meters here have two rates, no excess burst")
    return MeterValues(message.cir, message.cburst, message.pir, message.pburst)


def meter_to_proto(value: MeterValues) -> MeterConfig:
    """Return the MeterConfig message of a configuration."""
    return MeterConfig(**value._asdict())


def _match_one(table: TableInfo, field: MatchField, key: KeyIR, message: FieldMatch | None) -> Match:
    where = f"key {field.name} of table {table.name}"
    if message is None:
        return _everything(field, key, where)
    kind = message.WhichOneof("field_match_type")
    if kind != field.kind.value:
        raise invalid(f"{where} matches {field.kind.value}, not {kind or 'nothing'}")
    value = getattr(message, kind)
    if field.kind is P4InfoMatchKind.EXACT:
        return Exact(decode(value.value, key.bits, where))
    if field.kind is P4InfoMatchKind.OPTIONAL:
        return Optional(decode(value.value, key.bits, where))
    if field.kind is P4InfoMatchKind.LPM:
        if value.prefix_len <= 0:
            raise invalid(f"{where}: prefix length {value.prefix_len}: to match everything, leave the field out")
        return Lpm(decode(value.value, key.bits, where), value.prefix_len)
    if field.kind is P4InfoMatchKind.TERNARY:
        mask = decode(value.mask, key.bits, f"mask of {where}")
        if mask == 0:
            raise invalid(f"{where}: mask 0: to match everything, leave the field out")
        return Ternary(decode(value.value, key.bits, where), mask)
    low, high = (decode(value.low, key.bits, f"low of {where}"), decode(value.high, key.bits, f"high of {where}"))
    if (low, high) == (0, (1 << key.bits) - 1):
        raise invalid(f"{where}: the whole range: to match everything, leave the field out")
    return Range(low, high)


def _everything(field: MatchField, key: KeyIR, where: str) -> Match:
    if field.kind is P4InfoMatchKind.EXACT:
        raise invalid(f"{where} is missing: an exact key field must be given")
    if field.kind is P4InfoMatchKind.LPM:
        return Lpm(0, 0)
    if field.kind is P4InfoMatchKind.RANGE:
        return Range(0, (1 << key.bits) - 1)
    return Ternary(0, 0)


def _fill_match(message: FieldMatch, field: MatchField, key: KeyIR, value: Match) -> bool:
    """Fill in `message`. Return False for a value that matches everything, which has no message."""
    if isinstance(value, Exact):
        message.exact.value = encode(value.value)
        return True
    if isinstance(value, Lpm):
        message.lpm.value, message.lpm.prefix_len = encode(value.value), value.prefix_len
        return value.prefix_len > 0
    if isinstance(value, Range):
        message.range.low, message.range.high = encode(value.low), encode(value.high)
        return (value.low, value.high) != (0, (1 << key.bits) - 1)
    assert isinstance(value, Ternary), "the stores keep Optional as Ternary"
    if field.kind is P4InfoMatchKind.OPTIONAL:
        message.optional.value = encode(value.value)
    else:
        message.ternary.value, message.ternary.mask = encode(value.value), encode(value.mask)
    return value.mask != 0
