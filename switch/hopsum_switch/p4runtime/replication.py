# SPDX-License-Identifier: Apache-2.0
"""Writing and reading MulticastGroupEntry and CloneSessionEntry. The caller holds the data plane's gate.

A replica names its port as a number (`egress_port`, deprecated, which p4runtime-shell uses) or as a byte
string (`port`). A read returns the form that was written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from p4.v1.p4runtime_pb2 import CloneSessionEntry, MulticastGroupEntry, PacketReplicationEngineEntry, Update
from p4.v1.p4runtime_pb2 import Replica as ReplicaMessage

from hopsum_switch.p4runtime.pipeline import RunningPipeline
from hopsum_switch.p4runtime.status import P4RuntimeError, RpcCode
from hopsum_switch.p4runtime.translate import invalid, store_refusals
from hopsum_switch.p4runtime.values import decode, encode
from hopsum_switch.ports.base import DROP_PORT
from hopsum_switch.state.copies import PortCopy

_PORT_BITS = 9


def write_replication(target: RunningPipeline, update: int, message: PacketReplicationEngineEntry) -> None:
    """Insert, modify or delete a multicast group or a clone session. Raises P4RuntimeError: nothing changed."""
    if _kind(message) == "clone_session_entry":
        _write_session(target, update, message.clone_session_entry)
    else:
        _write_group(target, update, message.multicast_group_entry)


def read_replication(
    target: RunningPipeline, query: PacketReplicationEngineEntry
) -> Iterator[PacketReplicationEngineEntry]:
    """Yield the PacketReplicationEngineEntry messages that `query` selects.

    Raises P4RuntimeError: no such group or session.
    """
    if _kind(query) == "clone_session_entry":
        for session in _read_sessions(target, query.clone_session_entry.session_id):
            yield PacketReplicationEngineEntry(clone_session_entry=session)
    else:
        for group in _read_groups(target, query.multicast_group_entry.multicast_group_id):
            yield PacketReplicationEngineEntry(multicast_group_entry=group)


def _kind(message: PacketReplicationEngineEntry) -> str:
    kind = message.WhichOneof("type")
    if kind is None:
        raise P4RuntimeError(RpcCode.UNIMPLEMENTED, "an empty packet_replication_engine_entry names nothing")
    return str(kind)


def _write_group(target: RunningPipeline, update: int, group: MulticastGroupEntry) -> None:
    number, store = group.multicast_group_id, target.engine.multicast
    if update == Update.DELETE:
        with store_refusals():
            store.delete(number)
        target.group_notes.pop(number, None)
        target.group_forms.pop(number, None)
        return
    replicas = _replicas(f"multicast group {number}", group.replicas)
    with store_refusals():
        (store.insert if update == Update.INSERT else store.modify)(number, replicas)
    target.group_notes[number] = group.metadata
    target.group_forms[number] = _forms(group.replicas)


def _write_session(target: RunningPipeline, update: int, session: CloneSessionEntry) -> None:
    number, store = session.session_id, target.engine.clones
    if update == Update.DELETE:
        with store_refusals():
            store.delete(number)
        target.clone_forms.pop(number, None)
        return
    if session.class_of_service:
        raise P4RuntimeError(RpcCode.UNIMPLEMENTED, f"clone session {number}: there is one class of service, 0")
    replicas = _replicas(f"clone session {number}", session.replicas)
    with store_refusals():
        write = store.insert if update == Update.INSERT else store.modify
        write(number, replicas, session.packet_length_bytes)
    target.clone_forms[number] = _forms(session.replicas)


def _read_groups(target: RunningPipeline, number: int) -> Iterator[MulticastGroupEntry]:
    with store_refusals():
        groups = {number: target.engine.multicast.get(number)} if number else target.engine.multicast.groups()
    for number, replicas in groups.items():
        message = MulticastGroupEntry(multicast_group_id=number, metadata=target.group_notes.get(number, b""))
        message.replicas.extend(_messages(replicas, target.group_forms[number]))
        yield message


def _read_sessions(target: RunningPipeline, number: int) -> Iterator[CloneSessionEntry]:
    with store_refusals():
        sessions = {number: target.engine.clones.get(number)} if number else target.engine.clones.sessions()
    for number, session in sessions.items():
        message = CloneSessionEntry(session_id=number, packet_length_bytes=session.length)
        message.replicas.extend(_messages(session.replicas, target.clone_forms[number]))
        yield message


def _replicas(owner: str, messages: Iterable[ReplicaMessage]) -> list[PortCopy]:
    return [_replica(owner, message) for message in messages]


def _forms(messages: Iterable[ReplicaMessage]) -> tuple[str, ...]:
    return tuple(str(message.WhichOneof("port_kind")) for message in messages)


def _messages(replicas: Iterable[PortCopy], forms: Iterable[str]) -> Iterator[ReplicaMessage]:
    for replica, form in zip(replicas, forms, strict=True):
        port = encode(replica.port) if form == "port" else replica.port
        yield ReplicaMessage(instance=replica.instance, **{form: port})


def _replica(owner: str, message: ReplicaMessage) -> PortCopy:
    form = message.WhichOneof("port_kind")
    if form is None:
        raise invalid(f"{owner}: a replica names no port")
    port = decode(message.port, _PORT_BITS, f"port of {owner}") if form == "port" else message.egress_port
    if port >= DROP_PORT:
        raise invalid(f"{owner}: port {port} does not exist: ports are 0..{DROP_PORT - 1}")
    return PortCopy(port, message.instance)
