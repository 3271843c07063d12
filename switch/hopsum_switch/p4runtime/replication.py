# SPDX-License-Identifier: Apache-2.0
"""MulticastGroupEntry: writing and reading groups. The caller holds the data plane's gate.

A replica names its port as a number (`egress_port`, deprecated, which p4runtime-shell uses) or as a byte
string (`port`); what is read has the form that was written.
"""

from __future__ import annotations

from collections.abc import Iterator

from p4.v1.p4runtime_pb2 import MulticastGroupEntry, PacketReplicationEngineEntry, Update
from p4.v1.p4runtime_pb2 import Replica as ReplicaMessage

from hopsum_switch.p4runtime.pipeline import Target
from hopsum_switch.p4runtime.status import Code, P4RuntimeError
from hopsum_switch.p4runtime.translate import invalid, store_refusals
from hopsum_switch.p4runtime.values import decode, encode
from hopsum_switch.ports.base import DROP_PORT
from hopsum_switch.state.multicast import Replica

_PORT_BITS = 9


def write_replication(target: Target, update: int, message: PacketReplicationEngineEntry) -> None:
    """Insert, modify or delete a multicast group. Raises P4RuntimeError: nothing changed."""
    group = _group(message)
    number = group.multicast_group_id
    if update == Update.DELETE:
        with store_refusals():
            target.engine.multicast.delete(number)
        target.group_notes.pop(number, None)
        target.group_forms.pop(number, None)
        return
    replicas = [_replica(number, replica) for replica in group.replicas]
    store = target.engine.multicast
    with store_refusals():
        (store.insert if update == Update.INSERT else store.modify)(number, replicas)
    target.group_notes[number] = group.metadata
    target.group_forms[number] = tuple(replica.WhichOneof("port_kind") for replica in group.replicas)


def read_replication(target: Target, query: PacketReplicationEngineEntry) -> Iterator[PacketReplicationEngineEntry]:
    """Yield the PacketReplicationEngineEntry messages that `query` selects.

    Raises P4RuntimeError: no such group.
    """
    number = _group(query).multicast_group_id
    if number:
        with store_refusals():
            groups = {number: target.engine.multicast.get(number)}
    else:
        groups = target.engine.multicast.groups()
    for number, replicas in groups.items():
        message = PacketReplicationEngineEntry()
        group = message.multicast_group_entry
        group.multicast_group_id = number
        group.metadata = target.group_notes.get(number, b"")
        for replica, form in zip(replicas, target.group_forms[number], strict=True):
            port = encode(replica.port) if form == "port" else replica.port
            group.replicas.add(instance=replica.instance, **{form: port})
        yield message


def _group(message: PacketReplicationEngineEntry) -> MulticastGroupEntry:
    kind = message.WhichOneof("type")
    if kind != "multicast_group_entry":
        raise P4RuntimeError(
            Code.UNIMPLEMENTED,
            f"{kind or 'an empty packet_replication_engine_entry'} is not"
            " supported: this switch has multicast groups only",
        )
    return message.multicast_group_entry


def _replica(group: int, message: ReplicaMessage) -> Replica:
    form = message.WhichOneof("port_kind")
    if form is None:
        raise invalid(f"multicast group {group}: a replica names no port")
    port = (
        decode(message.port, _PORT_BITS, f"port of multicast group {group}") if form == "port" else message.egress_port
    )
    if port >= DROP_PORT:
        raise invalid(f"multicast group {group}: port {port} does not exist: ports are 0..{DROP_PORT - 1}")
    return Replica(port, message.instance)
