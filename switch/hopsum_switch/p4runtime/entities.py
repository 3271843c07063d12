# SPDX-License-Identifier: Apache-2.0
"""Write and Read of all kinds of entities, alone and in batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from hopsum_switch.p4runtime import arrays, digests, replication, table_entries
from hopsum_switch.p4runtime.pipeline import RunningPipeline
from hopsum_switch.p4runtime.status import P4RuntimeError, RpcCode
from hopsum_wire.p4runtime import p4runtime_pb2


class _Kind(NamedTuple):
    write: Callable[[RunningPipeline, int, Any], None]
    read: Callable[[RunningPipeline, Any], Iterator[Any]]


_KINDS = {
    "table_entry": _Kind(table_entries.write_table_entry, table_entries.read_table_entries),
    "direct_counter_entry": _Kind(table_entries.write_direct_counter, table_entries.read_direct_counters),
    "counter_entry": _Kind(arrays.write_counter, arrays.read_counters),
    "meter_entry": _Kind(arrays.write_meter, arrays.read_meters),
    "direct_meter_entry": _Kind(table_entries.write_direct_meter, table_entries.read_direct_meters),
    "register_entry": _Kind(arrays.write_register, arrays.read_registers),
    "digest_entry": _Kind(digests.write_digest, digests.read_digests),
    "packet_replication_engine_entry": _Kind(replication.write_replication, replication.read_replication),
}


def write_update(target: RunningPipeline, update: p4runtime_pb2.Update) -> None:
    """Apply one Update message. The caller holds the gate. Raises P4RuntimeError: nothing changed."""
    name, kind = _kind(update.entity)
    if update.type == p4runtime_pb2.Update.UNSPECIFIED:
        raise P4RuntimeError(RpcCode.INVALID_ARGUMENT, "the update's type is not set: INSERT, MODIFY or DELETE")
    kind.write(target, update.type, getattr(update.entity, name))


def read_entity(target: RunningPipeline, query: p4runtime_pb2.Entity) -> list[tuple[str, Any]]:
    """Return the selection of one Entity of a ReadRequest: its field and its message. The caller holds the gate.

    Raises P4RuntimeError: the query makes no sense or names something that does not exist.
    """
    name, kind = _kind(query)
    return [(name, message) for message in kind.read(target, getattr(query, name))]


def error_messages(errors: Iterable[P4RuntimeError | None]) -> list[p4runtime_pb2.Error]:
    """Return one p4.v1.Error for each element of a batch. None stands for success."""
    return [
        p4runtime_pb2.Error()
        if error is None
        else p4runtime_pb2.Error(canonical_code=int(error.code), message=str(error))
        for error in errors
    ]


def _kind(entity: p4runtime_pb2.Entity) -> tuple[str, _Kind]:
    name = entity.WhichOneof("entity")
    if name is None:
        raise P4RuntimeError(RpcCode.INVALID_ARGUMENT, "the entity is empty")
    if name not in _KINDS:
        raise P4RuntimeError(RpcCode.UNIMPLEMENTED, f"{name} is not supported: {', '.join(_KINDS)} are")
    return name, _KINDS[name]
