# SPDX-License-Identifier: Apache-2.0
"""The controller's side of a random program: its P4Info, table entries and multicast groups."""

from __future__ import annotations

import random
from collections.abc import Iterator

from p4.v1.p4runtime_pb2 import Entity, FieldMatch, TableEntry, Update

from hopsum_base.p4runtime import p4info_pb2

from ..core.builder import Json
from .shape import METADATA, STANDARD_BITS, Shape, constant
from .statements import GROUPS, PORTS

_ACTION, _TABLE, _COUNTER, _DIRECT, _REGISTER = (kind << 24 for kind in (0x01, 0x02, 0x12, 0x13, 0x16))
_BITS = {("standard_metadata", name): bits for name, bits in STANDARD_BITS.items()}
_BITS.update({("scalars", name): bits for name, bits in METADATA})


def keyed_tables(program: Json) -> list[Json]:
    """Return the tables that a controller writes."""
    return [table for pipeline in program["pipelines"] for table in pipeline["tables"] if table["key"]]


def key_bits(shape: Shape, key: Json) -> int:
    """Return the width of a key."""
    header, name = key["target"]
    if name == "$valid$":
        return 1
    return _BITS.get((header, name)) or next(f.bits for f in shape.headers[header] if f.name == name)


def p4info(shape: Shape, program: Json) -> p4info_pb2.P4Info:
    """Return the P4Info of a program."""
    info = p4info_pb2.P4Info()
    info.pkg_info.arch = "v1model"
    tables = keyed_tables(program)
    used = {number for table in tables for number in table["action_ids"]}
    for action in program["actions"]:
        if action["id"] in used:
            declared = info.actions.add(preamble=_preamble(_ACTION, action))
            for number, param in enumerate(action["runtime_data"], 1):
                declared.params.add(id=number, name=param["name"], bitwidth=param["bitwidth"])
    for table in tables:
        _declare_table(info, shape, table)
    for counter in program["counter_arrays"]:
        if counter["is_direct"]:
            direct = info.direct_counters.add(preamble=_preamble(_DIRECT, counter))
            owner = next(t for t in info.tables if t.preamble.name == counter["binding"])
            direct.direct_table_id = owner.preamble.id
            direct.spec.unit = p4info_pb2.CounterSpec.BOTH
            owner.direct_resource_ids.append(direct.preamble.id)
        else:
            plain = info.counters.add(preamble=_preamble(_COUNTER, counter), size=counter["size"])
            plain.spec.unit = p4info_pb2.CounterSpec.BOTH
    for register in program["register_arrays"]:
        array = info.registers.add(preamble=_preamble(_REGISTER, register), size=register["size"])
        array.type_spec.bitstring.bit.bitwidth = register["bitwidth"]
    return info


def _preamble(kind: int, item: Json) -> p4info_pb2.Preamble:
    return p4info_pb2.Preamble(id=kind + 1 + item["id"], name=item["name"], alias=item["name"])


def _declare_table(info: p4info_pb2.P4Info, shape: Shape, table: Json) -> None:
    declared = info.tables.add(preamble=_preamble(_TABLE, table), size=table["max_size"])
    for number, key in enumerate(table["key"], 1):
        kind = p4info_pb2.MatchField.MatchType.Value(key["match_type"].upper())
        declared.match_fields.add(id=number, name=key["name"], bitwidth=key_bits(shape, key), match_type=kind)
    for number in table["action_ids"]:
        declared.action_refs.add(id=_ACTION + 1 + number)


def random_writes(rng: random.Random, shape: Shape, program: Json) -> list[Update]:
    """Return what a controller writes before the first frame: groups, then entries, with priorities that differ."""
    updates = [_group(rng, number) for number in range(1, GROUPS + 1)]
    for table in keyed_tables(program):
        updates += _entries(rng, shape, program, table)
        if rng.random() < 0.4:
            message = TableEntry(table_id=_TABLE + 1 + table["id"], is_default_action=True)
            _choose_action(rng, program, table, message)
            updates.append(Update(type=Update.MODIFY, entity=Entity(table_entry=message)))
    return updates


def _group(rng: random.Random, number: int) -> Update:
    update = Update(type=Update.INSERT)
    group = update.entity.packet_replication_engine_entry.multicast_group_entry
    group.multicast_group_id = number
    for instance in range(rng.randrange(1, 4)):
        group.replicas.add(egress_port=rng.randrange(PORTS), instance=instance + number)
    return update


def _entries(rng: random.Random, shape: Shape, program: Json, table: Json) -> Iterator[Update]:
    seen: set[bytes] = set()
    priorities = rng.sample(range(1, 1000), 12)
    for priority in priorities[: rng.randrange(4, 13)]:
        message = TableEntry(table_id=_TABLE + 1 + table["id"])
        for number, key in enumerate(table["key"], 1):
            _add_match(rng, shape, key, message.match, number)
        identity = message.SerializeToString(deterministic=True)
        if identity in seen:
            continue
        seen.add(identity)
        if table["match_type"] in ("ternary", "range"):
            message.priority = priority
        _choose_action(rng, program, table, message)
        yield Update(type=Update.INSERT, entity=Entity(table_entry=message))


def _choose_action(rng: random.Random, program: Json, table: Json, message: TableEntry) -> None:
    action = program["actions"][rng.choice(table["action_ids"])]
    message.action.action.action_id = _ACTION + 1 + action["id"]
    for number, param in enumerate(action["runtime_data"], 1):
        value = _bytes(constant(rng, param["bitwidth"]))
        message.action.action.params.add(param_id=number, value=value)


def _add_match(rng: random.Random, shape: Shape, key: Json, matches: list[FieldMatch], number: int) -> None:
    """Add the match of one key; one that matches everything is left out, as P4Runtime wants it."""
    bits = key_bits(shape, key)
    full = (1 << bits) - 1
    value = _likely(rng, shape, key, bits)
    match = FieldMatch(field_id=number)
    if key["match_type"] == "exact":
        match.exact.value = _bytes(value)
    elif key["match_type"] == "lpm":
        length = rng.randrange(bits + 1)
        mask = full ^ full >> length
        match.lpm.value, match.lpm.prefix_len = _bytes(value & mask), length
        if length == 0:
            return
    elif key["match_type"] == "ternary":
        mask = rng.choice([0, full, 1 << rng.randrange(bits), rng.getrandbits(bits)])
        match.ternary.value, match.ternary.mask = _bytes(value & mask), _bytes(mask)
        if mask == 0:
            return
    else:
        low, high = sorted((value, rng.choice([value, _likely(rng, shape, key, bits), rng.getrandbits(bits)])))
        if (low, high) == (0, full):
            return
        if set(_bytes(high)) == {0xFF}:  # from 0, bmv2's P4Runtime server takes it for everything and refuses it
            low = max(low, 1)
        match.range.low, match.range.high = _bytes(low), _bytes(high)
    matches.append(match)


def _likely(rng: random.Random, shape: Shape, key: Json, bits: int) -> int:
    """Return a value that frames are likely to have."""
    header, name = key["target"]
    if header in ("scalars", "standard_metadata") or name == "$valid$":
        return rng.randrange(min(1 << bits, PORTS))
    return rng.choice([*shape.favourites[header, name], constant(rng, bits)])


def _bytes(value: int) -> bytes:
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")
