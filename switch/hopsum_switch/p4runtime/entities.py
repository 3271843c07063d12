# SPDX-License-Identifier: Apache-2.0
"""Write and Read of all kinds of entities. Those of tables are in `table_entries`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeAlias

from p4.v1.p4data_pb2 import P4Data

from hopsum_base.p4runtime import p4runtime_pb2 as p4rt
from hopsum_switch.p4runtime import table_entries
from hopsum_switch.p4runtime.p4info_index import CounterInfo, DigestInfo, DigestShape, MeterInfo, RegisterInfo
from hopsum_switch.p4runtime.pipeline_config import RunningPipeline
from hopsum_switch.p4runtime.status import P4RuntimeError, RpcCode, decode, encode, invalid, unsupported
from hopsum_switch.p4runtime.translate import (
    counter_from_proto,
    counter_to_proto,
    meter_from_proto,
    meter_to_proto,
    store_refusals,
)
from hopsum_switch.ports.port import DROP_PORT
from hopsum_switch.state.copies import PortCopy
from hopsum_switch.state.digest_store import DigestConfig, DigestList, Sample

# Writing and reading DigestEntry, the configuration of a digest, and lists of digests as messages.
#
# The caller holds the data plane's gate.


def write_digest(target: RunningPipeline, update: int, message: p4rt.DigestEntry) -> None:
    """Switch a digest on (INSERT), configure it (MODIFY) or switch it off (DELETE). Raises P4RuntimeError."""
    name, store = target.pipeline.p4info.digests.find(message.digest_id).name, target.engine.digests
    config = message.config
    with store_refusals():
        if update == p4rt.Update.DELETE:
            store.delete(name)
        else:
            write = store.insert if update == p4rt.Update.INSERT else store.modify
            write(name, DigestConfig(config.max_timeout_ns, config.max_list_size, config.ack_timeout_ns))


def read_digests(target: RunningPipeline, query: p4rt.DigestEntry) -> Iterator[p4rt.DigestEntry]:
    """Yield the DigestEntry messages that `query` selects. Raises P4RuntimeError: no such digest, or not configured."""
    info, store = target.pipeline.p4info, target.engine.digests
    digests, configs = info.digests.select(query.digest_id), store.configs()
    if query.digest_id:
        with store_refusals():
            store.get(digests[0].name)
    for digest in digests:
        if digest.name in configs:
            message = p4rt.DigestEntry(digest_id=digest.id)
            config = message.config
            config.max_timeout_ns, config.max_list_size, config.ack_timeout_ns = configs[digest.name]
            yield message


def acknowledge(target: RunningPipeline, ack: p4rt.DigestListAck) -> None:
    """Record that the controller has a list. An unknown list is ignored. Raises P4RuntimeError: no such digest."""
    target.engine.digests.acknowledge(target.pipeline.p4info.digests.find(ack.digest_id).name, ack.list_id)


def digest_message(target: RunningPipeline, complete: DigestList) -> p4rt.StreamMessageResponse | None:
    """Return a list as the message for the controller, or None if P4Info does not have the digest."""
    infos = (info for info in target.pipeline.p4info.digests.values() if info.name == complete.name)
    digest = next(infos, None)
    if digest is None:
        return None
    message = p4rt.StreamMessageResponse()
    message.digest.digest_id, message.digest.list_id = digest.id, complete.number
    message.digest.data.extend(_data(digest, sample) for sample in complete.samples)
    message.digest.timestamp = time.time_ns()
    return message


def _data(digest: DigestInfo, sample: Sample) -> P4Data:
    # P4Info says whether the digest is a struct, a tuple or a single value.
    members = [P4Data(bitstring=encode(value)) for value in sample]
    if digest.shape is DigestShape.BITSTRING:
        return members[0]
    data = P4Data()
    (data.struct if digest.shape is DigestShape.STRUCT else data.tuple).members.extend(members)
    return data


# CounterEntry, MeterEntry and RegisterEntry: cells of arrays, one by one or all at once.
#
# The caller holds the data plane's gate. A write that is refused has changed nothing.

_Entry: TypeAlias = p4rt.CounterEntry | p4rt.MeterEntry | p4rt.RegisterEntry
_Array: TypeAlias = CounterInfo | MeterInfo | RegisterInfo


def write_counter(target: RunningPipeline, update: int, message: p4rt.CounterEntry) -> None:
    """Set one cell, or all cells if the index is left out. Without data nothing changes.

    Raises P4RuntimeError, and nothing has changed: `update` is not MODIFY, no such counter or cell, or a bad value.
    """
    counter = target.pipeline.p4info.counters.find(message.counter_id)
    cells = _cells(update, message, counter)
    if not message.HasField("data"):
        return
    value = counter_from_proto(message.data)
    with store_refusals():
        for index in cells:
            target.engine.counters.write(counter.name, index, value)


def read_counters(target: RunningPipeline, query: p4rt.CounterEntry) -> Iterator[p4rt.CounterEntry]:
    """Yield the CounterEntry messages that `query` selects. Raises P4RuntimeError: no such counter or cell."""
    for counter in target.pipeline.p4info.counters.select(query.counter_id):
        for index in _selected(query, counter):
            message = p4rt.CounterEntry(counter_id=counter.id)
            message.index.index = index
            message.data.CopyFrom(counter_to_proto(target.engine.counters.read(counter.name, index)))
            yield message


def write_meter(target: RunningPipeline, update: int, message: p4rt.MeterEntry) -> None:
    """Configure one cell, or all cells if the index is left out. Without a config the colour is always green.

    Raises P4RuntimeError, and nothing has changed: `update` is not MODIFY, no such meter or cell, or a bad value.
    """
    meter = target.pipeline.p4info.meters.find(message.meter_id)
    config = meter_from_proto(message.config) if message.HasField("config") else None
    for index in _cells(update, message, meter):
        with store_refusals():
            target.engine.meters.write(meter.name, index, config)


def read_meters(target: RunningPipeline, query: p4rt.MeterEntry) -> Iterator[p4rt.MeterEntry]:
    """Yield the MeterEntry messages that `query` selects. Raises P4RuntimeError: no such meter or cell."""
    for meter in target.pipeline.p4info.meters.select(query.meter_id):
        for index in _selected(query, meter):
            message = p4rt.MeterEntry(meter_id=meter.id)
            message.index.index = index
            config = target.engine.meters.read(meter.name, index)
            if config is not None:
                message.config.CopyFrom(meter_to_proto(config))
            yield message


def write_register(target: RunningPipeline, update: int, message: p4rt.RegisterEntry) -> None:
    """Set one cell, or all cells if the index is left out. Without data nothing changes.

    Raises P4RuntimeError, and nothing has changed: `update` is not MODIFY, no such register or cell, or a bad value.
    """
    register = target.pipeline.p4info.registers.find(message.register_id)
    cells = _cells(update, message, register)
    _require_plain(register)
    if not message.HasField("data"):
        return
    if message.data.WhichOneof("data") != "bitstring":
        raise invalid(f"register {register.name} holds bit<{register.width}>, not {message.data.WhichOneof('data')}")
    value = decode(message.data.bitstring, register.width, register.name)
    with store_refusals():
        for index in cells:
            target.engine.registers.write(register.name, index, value)


def read_registers(target: RunningPipeline, query: p4rt.RegisterEntry) -> Iterator[p4rt.RegisterEntry]:
    """Yield the RegisterEntry messages that `query` selects.

    Raises P4RuntimeError: no such register or cell, or a selected register does not hold plain integers.
    """
    for register in target.pipeline.p4info.registers.select(query.register_id):
        _require_plain(register)
        for index in _selected(query, register):
            message = p4rt.RegisterEntry(register_id=register.id)
            message.index.index = index
            message.data.bitstring = encode(target.engine.registers.read(register.name, index))
            yield message


def _cells(update: int, message: _Entry, array: _Array) -> range:
    if update != p4rt.Update.MODIFY:
        raise invalid(f"the cells of {array.name} always exist: they can be modified only")
    return _selected(message, array)


def _selected(message: _Entry, array: _Array) -> range:
    if not message.HasField("index"):
        return range(array.size)
    index = message.index.index
    if index < 0:
        raise invalid(f"{array.name}: index {index} is negative")
    if index >= array.size:
        raise P4RuntimeError(RpcCode.OUT_OF_RANGE, f"{array.name}: index {index} is outside 0..{array.size - 1}")
    return range(index, index + 1)


def _require_plain(register: RegisterInfo) -> None:
    if not register.width:
        raise unsupported(
            f"register {register.name} holds something else than bit<W>, which cannot be read or written here"
        )


# Writing and reading MulticastGroupEntry and CloneSessionEntry. The caller holds the data plane's gate.
#
# A replica names its port as a number (`egress_port`, deprecated, which p4runtime-shell uses) or as a byte string
# (`port`). A read returns the form that was written.

_PORT_BITS = 9
_NUMBERS = {"multicast_group_entry": "multicast_group_id", "clone_session_entry": "session_id"}
"""By the field of a PacketReplicationEngineEntry, the number in its message."""


def write_replication(target: RunningPipeline, update: int, message: p4rt.PacketReplicationEngineEntry) -> None:
    """Insert, modify or delete a multicast group or a clone session. Raises P4RuntimeError: nothing changed."""
    kind, entry, number, store = _replication(target, message)
    owner = f"{store.kind} {number}"
    if update == p4rt.Update.DELETE:
        with store_refusals():
            store.delete(number)
        target.replications[kind].pop(number, None)
        return
    settings: tuple[int, ...] = ()
    if kind == "clone_session_entry":
        if entry.class_of_service:
            raise unsupported(f"{owner}: there is one class of service, 0")
        settings = (entry.packet_length_bytes,)
    replicas = [_replica(owner, each) for each in entry.replicas]
    with store_refusals():
        (store.insert if update == p4rt.Update.INSERT else store.modify)(number, replicas, *settings)
    # A read answers with each port in the form in which it was written.
    written = type(entry)()
    written.CopyFrom(entry)
    del written.replicas[:]
    for replica, each in zip(replicas, entry.replicas, strict=True):
        form = str(each.WhichOneof("port_kind"))
        port = encode(replica.port) if form == "port" else replica.port
        written.replicas.add(instance=replica.instance, **{form: port})
    target.replications[kind][number] = written


def read_replication(
    target: RunningPipeline, query: p4rt.PacketReplicationEngineEntry
) -> Iterator[p4rt.PacketReplicationEngineEntry]:
    """Yield the PacketReplicationEngineEntry messages that `query` selects.

    Raises P4RuntimeError: no such group or session.
    """
    kind, _, number, store = _replication(target, query)
    written = target.replications[kind]
    if number:
        with store_refusals():
            store.get(number)
    for entry in [written[number]] if number else written.values():
        yield p4rt.PacketReplicationEngineEntry(**{kind: entry})


def _replication(target: RunningPipeline, message: p4rt.PacketReplicationEngineEntry) -> tuple[str, Any, int, Any]:
    """Return the field that is set, its message, the number in it, and the store of the engine."""
    kind = message.WhichOneof("type")
    if kind is None:
        raise unsupported("an empty packet_replication_engine_entry names nothing")
    entry = getattr(message, kind)
    store = target.engine.clones if kind == "clone_session_entry" else target.engine.multicast
    return kind, entry, getattr(entry, _NUMBERS[kind]), store


def _replica(owner: str, message: p4rt.Replica) -> PortCopy:
    form = message.WhichOneof("port_kind")
    if form is None:
        raise invalid(f"{owner}: a replica names no port")
    port = decode(message.port, _PORT_BITS, f"port of {owner}") if form == "port" else message.egress_port
    if port >= DROP_PORT:
        raise invalid(f"{owner}: port {port} does not exist: ports are 0..{DROP_PORT - 1}")
    return PortCopy(port, message.instance)


class _Kind(NamedTuple):
    write: Callable[[RunningPipeline, int, Any], None]
    read: Callable[[RunningPipeline, Any], Iterator[Any]]


_KINDS = {
    "table_entry": _Kind(table_entries.write_table_entry, table_entries.read_table_entries),
    "direct_counter_entry": _Kind(table_entries.write_direct_counter, table_entries.read_direct_counters),
    "counter_entry": _Kind(write_counter, read_counters),
    "meter_entry": _Kind(write_meter, read_meters),
    "direct_meter_entry": _Kind(table_entries.write_direct_meter, table_entries.read_direct_meters),
    "register_entry": _Kind(write_register, read_registers),
    "digest_entry": _Kind(write_digest, read_digests),
    "packet_replication_engine_entry": _Kind(write_replication, read_replication),
}

_ABSENT = {
    "action_profile_member": "action_profile_id",
    "action_profile_group": "action_profile_id",
    "value_set_entry": "value_set_id",
    "extern_entry": "extern_id",
}
"""By the kinds that programs are refused for, the field whose zero selects all."""


def write_update(target: RunningPipeline, update: p4rt.Update) -> None:
    """Apply one Update message. The caller holds the gate. Raises P4RuntimeError: nothing changed."""
    name, kind = _kind(update.entity)
    # The first value of the enumeration: a client that sets no type would otherwise insert.
    if update.type == p4rt.Update.UNSPECIFIED:
        raise invalid("the update's type is not set: INSERT, MODIFY or DELETE")
    kind.write(target, update.type, getattr(update.entity, name))


def read_entity(target: RunningPipeline, query: p4rt.Entity) -> list[tuple[str, Any]]:
    """Return the entities that `query` selects, each as field name and message of an Entity. The caller holds the gate.

    Raises P4RuntimeError: the query makes no sense or names something that does not exist.
    """
    entity = query.WhichOneof("entity")
    # All of a kind of which no program here has any are none. Clients read them before they delete everything.
    if entity in _ABSENT and not getattr(getattr(query, entity), _ABSENT[entity]):
        return []
    name, kind = _kind(query)
    return [(name, message) for message in kind.read(target, getattr(query, name))]


def error_messages(errors: Iterable[P4RuntimeError | None]) -> list[p4rt.Error]:
    """Return one p4.v1.Error for each element of a batch. None becomes an Error without a code: success."""
    return [
        p4rt.Error() if error is None else p4rt.Error(canonical_code=int(error.code), message=str(error))
        for error in errors
    ]


def _kind(entity: p4rt.Entity) -> tuple[str, _Kind]:
    name = entity.WhichOneof("entity")
    if name is None:
        raise invalid("the entity is empty")
    if name not in _KINDS:
        raise unsupported(f"{name} is not supported: {', '.join(_KINDS)} are")
    return name, _KINDS[name]
