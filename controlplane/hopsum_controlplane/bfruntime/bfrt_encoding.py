# SPDX-License-Identifier: Apache-2.0
"""Between our entities and BF Runtime's table entries.

A value has the full length of its field, big-endian. A ternary key has a mask with all bits, and every entry of a table
with one has the priority 0: entries do not overlap. A multicast group is an entry of `$pre.mgid` and one of `$pre.node`
for each instance: the node has the instance as its replication id, and its ports. The node's number is the group's and
a count, so that groups never share a node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from hopsum_controlplane.bfruntime.bfrt_messages import CLASSES, UpdateType
from hopsum_controlplane.bfruntime.bfrt_schema import COUNTER_INDEX, PACKETS, PRIORITY, BfrtField, BfrtSchema, BfrtTable
from hopsum_controlplane.entries import MulticastGroup, Replica, TableEntry, replica_order
from hopsum_controlplane.errors import ControlPlaneError
from hopsum_controlplane.p4info import P4Info
from hopsum_controlplane.p4runtime_encoding import check_match_types, fields_with_values

GROUPS: Final = "$pre.mgid"
NODES: Final = "$pre.node"
_NODE_BITS: Final = 10
"""Bits of a node's number below its group's: 512 replicas, and one bit for the old and the new nodes of a change."""
Value = int | str | bool | Sequence[int] | Sequence[bool]
"""A value of a key or of data: a number, a text, a truth value, or a list of numbers or truth values."""


class BfrtEncoding:
    """The encoding of one switch's tables: entries and groups to messages of BF Runtime, and back. Sends nothing."""

    def __init__(self, schema: BfrtSchema) -> None:
        self.schema = schema
        self.p4info: P4Info = schema.p4info()
        self._match_tables = {table.id: schema.table(f"pipe.{table.name}") for table in self.p4info.tables}

    def encode_entry(self, entity: TableEntry) -> Any:
        """Encode an entry of a program's table. Raises as encode_update does."""
        message = CLASSES["TableEntry"]()
        self._fill(message, entity)
        return message

    def encode_update(self, kind: UpdateType, entity: TableEntry) -> Any:
        """Encode an update of an entry of a program's table. Raises as encode_update does."""
        # With protobuf in Python a copy of a message costs more than to fill it.
        message = CLASSES["Update"](type=kind)
        self._fill(message.entity.table_entry, entity)
        return message

    def _fill(self, message: Any, entity: TableEntry) -> None:
        table = self.p4info.tables[entity.table]
        message.table_id = table.id
        check_match_types(table.keys, entity.table)
        for key, value in fields_with_values(table.keys, entity.match, entity):
            field = message.key.fields.add(field_id=key.id)
            if key.exact:
                field.exact.value = _whole(value, key.bits)
            else:
                field.ternary.value = _whole(value, key.bits)
                field.ternary.mask = _whole((1 << key.bits) - 1, key.bits)
        if priority := self._match_tables[table.id].keys.get(PRIORITY):
            message.key.fields.add(field_id=priority.id).exact.value = _whole(0, priority.bits)
        action = self.p4info.actions[entity.action]
        message.data.action_id = action.id
        for param, value in fields_with_values(action.params, entity.params, entity):
            message.data.fields.add(field_id=param.id, stream=_whole(value, param.bits))

    def encode_query(self, table: str) -> Any:
        """Encode the query of all entries of a program's table. Raises ControlPlaneError for an unknown table."""
        return CLASSES["TableEntry"](table_id=self.p4info.tables[table].id)

    def decode_entry(self, message: Any) -> TableEntry:
        """Decode an entry of a program's table. Tables and actions get their aliases.

        Raises ControlPlaneError for an unknown id, and for a ternary key that does not match all bits.
        """
        table = self.p4info.tables.by_id(message.table_id)
        action = self.p4info.actions.by_id(message.data.action_id)
        params = {action.params.by_id(field.field_id).name: _to_int(field.stream) for field in message.data.fields}
        priority = self._match_tables[table.id].keys.get(PRIORITY)
        match = {}
        for field in message.key.fields:
            if priority is not None and field.field_id == priority.id:
                continue
            key = table.keys.by_id(field.field_id)
            if key.ternary and _to_int(field.ternary.mask) != (1 << key.bits) - 1:
                raise ControlPlaneError(
                    f"an entry of table {table.alias} does not match all bits of {key.name}",
                    hint="another controller wrote it: remove it",
                )
            match[key.name] = _to_int(field.ternary.value if key.ternary else field.exact.value)
        return TableEntry(table.alias, match, action.alias, params)

    def encode_counter_query(self, counter: str, index: int) -> Any:
        """Encode the query of one cell of a counter on the chip. Raises ControlPlaneError for an unknown counter."""
        info = self.p4info.counters[counter]
        message = self.encode_fixed_entry(f"pipe.{info.name}", {COUNTER_INDEX: index})
        message.table_flags.from_hw = True
        return message

    def decode_counter(self, counter: str, message: Any) -> tuple[int, int]:
        """Decode one cell of a counter, and return its index and its number of packets."""
        values = self.decode_fixed_entry(f"pipe.{self.p4info.counters[counter].name}", message)
        return values[COUNTER_INDEX], values[PACKETS]

    def encode_fixed_entry(self, name: str, key: Mapping[str, int], data: Mapping[str, Value] | None = None) -> Any:
        """Encode an entry of a table of the chip, or of a counter. Without `data` it has the key only.

        Raises ControlPlaneError for an unknown table or field, and for a text that the field does not take, and
        OverflowError for a number that does not fit its field.
        """
        table = self.schema.table(name)
        message = CLASSES["TableEntry"](table_id=table.id)
        for label, number in key.items():
            field = _field(table, table.keys, label)
            message.key.fields.add(field_id=field.id).exact.value = _whole(number, field.bits)
        for label, value in (data or {}).items():
            _set(message.data.fields.add(), _field(table, table.data, label), value, table)
        return message

    def decode_fixed_entry(self, name: str, message: Any) -> dict[str, Any]:
        """Decode an entry of a table of the chip, or of a counter: keys and data by name. Unknown data is left out.

        Raises ControlPlaneError for an unknown table, and KeyError for an unknown key.
        """
        table = self.schema.table(name)
        keys = {field.id: field for field in table.keys.values()}
        data = {field.id: field for field in table.data.values()}
        found: dict[str, Any] = {keys[each.field_id].name: _to_int(each.exact.value) for each in message.key.fields}
        for each in message.data.fields:
            if each.field_id in data:
                found[data[each.field_id].name] = _get(each)
        return found

    # ---- multicast groups -----------------------------------------------------------------------------------

    def plan_nodes(self, group: MulticastGroup, taken: Iterable[int] = ()) -> dict[int, tuple[int, list[int]]]:
        """Return the nodes of a group: replication id and ports by the node's number, which is none of `taken`."""
        ports: dict[int, list[int]] = {}
        for replica in group.replicas:
            ports.setdefault(replica.instance, []).append(replica.port)
        first = group.id << _NODE_BITS
        if first in taken:
            first |= 1 << _NODE_BITS - 1
        return {first + count: (instance, ports[instance]) for count, instance in enumerate(sorted(ports))}

    def encode_node(self, number: int, instance: int = 0, ports: Sequence[int] | None = None) -> Any:
        """Encode a multicast node. Without `ports` the entry has the node's key only, as deletions want."""
        data: dict[str, Value] = {}
        if ports is not None:
            data = {"$MULTICAST_RID": instance, "$MULTICAST_LAG_ID": (), "$DEV_PORT": ports}
        return self.encode_fixed_entry(NODES, {"$MULTICAST_NODE_ID": number}, data)

    def encode_group(self, number: int, nodes: Sequence[int] | None = None) -> Any:
        """Encode a multicast group. Without `nodes` the entry has the group's key only, as deletions want."""
        if nodes is None:
            return self.encode_fixed_entry(GROUPS, {"$MGID": number})
        data: dict[str, Value] = {
            "$MULTICAST_NODE_ID": nodes,
            "$MULTICAST_NODE_L1_XID_VALID": [False] * len(nodes),
            "$MULTICAST_NODE_L1_XID": [0] * len(nodes),
        }
        return self.encode_fixed_entry(GROUPS, {"$MGID": number}, data)

    def decode_groups(self, groups: Iterable[Any], nodes: Iterable[Any]) -> list[MulticastGroup]:
        """Decode all groups of a switch from all entries of both tables, in ascending order. Skips unknown nodes."""
        known = {each["$MULTICAST_NODE_ID"]: each for each in (self.decode_fixed_entry(NODES, node) for node in nodes)}
        found = []
        for values in (self.decode_fixed_entry(GROUPS, group) for group in groups):
            inside = [known[node] for node in values.get("$MULTICAST_NODE_ID", ()) if node in known]
            replicas = [Replica(port, node["$MULTICAST_RID"]) for node in inside for port in node.get("$DEV_PORT", ())]
            found.append(MulticastGroup(values["$MGID"], tuple(sorted(replicas, key=replica_order))))
        return sorted(found, key=lambda group: group.id)


def make_update(kind: UpdateType, entry: Any) -> Any:
    """Return a new Update message of BF Runtime with a copy of an encoded entry."""
    message = CLASSES["Update"](type=kind)
    message.entity.table_entry.CopyFrom(entry)
    return message


def _field(table: BfrtTable, fields: Mapping[str, BfrtField], name: str) -> BfrtField:
    if name not in fields:
        hint = "see whether its SDE is one that the driver knows (docs/tofino.md)"
        raise ControlPlaneError(f"the switch's table {table.name} has no field {name!r}", hint=hint)
    return fields[name]


def _set(message: Any, field: BfrtField, value: Value, table: BfrtTable) -> None:
    message.field_id = field.id
    if field.repeated:
        target = message.bool_arr_val if field.kind == "bool" else message.int_arr_val
        target.SetInParent()
        target.val.extend(value)
    elif isinstance(value, str):
        if field.choices and value not in field.choices:
            raise ControlPlaneError(
                f"{field.name} = {value} for the switch's table {table.name}",
                hint=f"it takes {', '.join(field.choices)}",
            )
        message.str_val = value
    elif field.kind == "bool":
        message.bool_val = bool(value)
    else:
        assert isinstance(value, int)
        message.stream = _whole(value, field.bits)


def _get(message: Any) -> Any:
    kind = message.WhichOneof("value")
    if kind == "stream":
        return _to_int(message.stream)
    value = getattr(message, kind)
    return list(value.val) if kind.endswith("arr_val") else value


def _whole(value: int, bits: int) -> bytes:
    return value.to_bytes((bits + 7) // 8, "big")


def _to_int(value: bytes) -> int:
    return int.from_bytes(value, "big")
