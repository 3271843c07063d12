# SPDX-License-Identifier: Apache-2.0
"""Between our values and P4Runtime protobufs: the only place that knows both."""

from __future__ import annotations

from collections.abc import Mapping

from hopsum_base.p4runtime import p4runtime_pb2
from hopsum_controlplane.entries import (
    CounterValue,
    DefaultAction,
    Delete,
    Entity,
    Insert,
    Modify,
    MulticastGroup,
    Replica,
    TableEntry,
    Update,
    replica_order,
)
from hopsum_controlplane.errors import ControlPlaneError
from hopsum_controlplane.p4info import Names, P4Info, ProgramField, Table

# P4Runtime wants a priority for ternary matches. Entries do not overlap, so any number will do.
_PRIORITY = 1
_TYPES = {
    Insert: p4runtime_pb2.Update.INSERT,
    Modify: p4runtime_pb2.Update.MODIFY,
    Delete: p4runtime_pb2.Update.DELETE,
}


def encode_update(p4info: P4Info, update: Update) -> p4runtime_pb2.Update:
    """Encode one update as p4.v1.Update.

    Raises ControlPlaneError for an unknown name, a missing or surplus value, and one that does not fit its
    width.
    """
    message = p4runtime_pb2.Update()
    fill_update(p4info, update, message)
    return message


def fill_update(p4info: P4Info, update: Update, message: p4runtime_pb2.Update) -> None:
    """Encode one update into `message`, an empty p4.v1.Update, which may be an element of a request.

    Raises as encode_update does. Then `message` may be filled in part.
    """
    # With protobuf in Python a copy of a message costs more than to fill it.
    message.type = _TYPES[type(update)]
    entity = update.entity
    if isinstance(entity, MulticastGroup):
        group = message.entity.packet_replication_engine_entry.multicast_group_entry
        group.multicast_group_id = entity.id
        for replica in entity.replicas:
            # The deprecated integer form: the only one that every server and p4runtime-shell's reader know.
            group.replicas.add(egress_port=replica.port, instance=replica.instance)
        return
    table = p4info.tables[entity.table]
    entry = message.entity.table_entry
    entry.table_id = table.id
    if isinstance(entity, DefaultAction):
        entry.is_default_action = True
    else:
        check_match_types(table.keys, entity.table)
        for key, value in _paired(table.keys, entity.match, entity):
            field = entry.match.add(field_id=key.id)
            if key.exact:
                field.exact.value = value
            else:
                field.ternary.value, field.ternary.mask = value, _all_bits(key)
                entry.priority = _PRIORITY
    action = p4info.actions[entity.action]
    call = entry.action.action
    call.action_id = action.id
    for param, value in _paired(action.params, entity.params, entity):
        call.params.add(param_id=param.id, value=value)


def decode_entity(p4info: P4Info, message: p4runtime_pb2.Entity) -> Entity:
    """Decode a table entry, a default action or a multicast group. Tables and actions get their aliases.

    Replicas are in replica_order. Raises ControlPlaneError for an id that the P4Info lacks, and for a ternary key that
    does not match all bits.
    """
    if message.HasField("packet_replication_engine_entry"):
        group = message.packet_replication_engine_entry.multicast_group_entry
        replicas = (
            Replica(_to_int(each.port) if each.WhichOneof("port_kind") == "port" else each.egress_port, each.instance)
            for each in group.replicas
        )
        # Servers return them in any order.
        return MulticastGroup(group.multicast_group_id, tuple(sorted(replicas, key=replica_order)))
    entry = message.table_entry
    table = p4info.tables.by_id(entry.table_id)
    action = p4info.actions.by_id(entry.action.action.action_id)
    params = {action.params.by_id(param.param_id).name: _to_int(param.value) for param in entry.action.action.params}
    if entry.is_default_action:
        return DefaultAction(table.alias, action.alias, params)
    match = {table.keys.by_id(key.field_id).name: _decode_key(key, table) for key in entry.match}
    return TableEntry(table.alias, match, action.alias, params)


def decode_counter(message: p4runtime_pb2.CounterEntry) -> tuple[int, CounterValue]:
    """Decode a p4.v1.CounterEntry into its index and its value."""
    return message.index.index, CounterValue(message.data.packet_count, message.data.byte_count)


def _decode_key(message: p4runtime_pb2.FieldMatch, table: Table) -> int:
    if not message.HasField("ternary"):
        return _to_int(message.exact.value)
    key = table.keys.by_id(message.field_id)
    # This control plane writes full masks only, so that no two entries match one packet.
    if _to_int(message.ternary.mask) != _to_int(_all_bits(key)):
        raise ControlPlaneError(
            f"an entry of table {table.alias} does not match all bits of {key.name}",
            hint="another controller wrote it: remove it",
        )
    return _to_int(message.ternary.value)


def _all_bits(key: ProgramField) -> bytes:
    return ((1 << key.bits) - 1).to_bytes((key.bits + 7) // 8, "big")


def fields_with_values(
    fields: Names[ProgramField], values: Mapping[str, int], where: Entity
) -> list[tuple[ProgramField, int]]:
    """Pair every field with its value, in the order of `values`, and check the values. Errors name `where`.

    Raises ControlPlaneError for an unknown name, a missing value, and a value that does not fit its width.
    """
    named = [(fields[name], value) for name, value in values.items()]
    if len(named) < len(fields):
        missing = [field.name for field in fields if field.name not in values]
        raise ControlPlaneError(f"{where}: no value for {', '.join(missing)}", hint="give all keys and parameters")
    for field, value in named:
        if not 0 <= value < 1 << field.bits:
            raise ControlPlaneError(
                f"{where}: {field.name} = {value} does not fit bit<{field.bits}>",
                hint=f"the range is 0 .. 2^{field.bits} - 1",
            )
    return named


def check_match_types(keys: Names[ProgramField], table: str) -> None:
    """Raise ControlPlaneError for a key that is neither exact nor ternary."""
    for key in keys:
        if not (key.exact or key.ternary):
            raise ControlPlaneError(
                f"key {key.name} of table {table} is not matched exactly",
                hint="this control plane writes exact keys, and ternary ones with all bits",
            )


def _paired(fields: Names[ProgramField], values: Mapping[str, int], where: Entity) -> list[tuple[ProgramField, bytes]]:
    """Encode every field's value in the canonical form of P4Runtime: no leading zero bytes, one byte for 0."""
    named = fields_with_values(fields, values, where)
    # P4Runtime 1.4, section 8.4: the canonical form has no leading zero bytes, and one byte for 0.
    return [(field, value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")) for field, value in named]


def _to_int(value: bytes) -> int:
    return int.from_bytes(value, "big")
