# SPDX-License-Identifier: Apache-2.0
"""TableEntry, DirectCounterEntry and DirectMeterEntry: writing and reading them.

The caller holds the data plane's gate. A write that is refused has changed nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from p4.v1.p4runtime_pb2 import (
    CounterData,
    DirectCounterEntry,
    DirectMeterEntry,
    StreamMessageResponse,
    TableEntry,
    Update,
)

from hopsum_switch.errors import NotFoundError
from hopsum_switch.p4runtime.p4info_index import TableInfo
from hopsum_switch.p4runtime.pipeline_config import NO_NOTES, Notes, RunningPipeline
from hopsum_switch.p4runtime.status import P4RuntimeError, RpcCode, invalid, unsupported
from hopsum_switch.p4runtime.translate import (
    action_from_proto,
    counter_from_proto,
    counter_to_proto,
    fill_action,
    fill_match,
    match_from_proto,
    meter_from_proto,
    meter_to_proto,
    store_refusals,
)
from hopsum_switch.state.cells import PacketByteCount
from hopsum_switch.state.entry_lookup import Entry, Match, normalise
from hopsum_switch.state.meter import MeterConfig, check_meter_config
from hopsum_switch.state.table_store import TableState

INSERT, MODIFY, DELETE = Update.INSERT, Update.MODIFY, Update.DELETE


class _Table(NamedTuple):
    """A table as P4Info declares it, with its state in the engine and the pipeline that both belong to."""

    target: RunningPipeline
    info: TableInfo
    state: TableState

    @classmethod
    def of(cls, target: RunningPipeline, table_id: int) -> _Table:
        info = target.pipeline.p4info.table(table_id)
        return cls(target, info, target.engine.tables[info.name])

    def key(self, message: TableEntry) -> tuple[Match, ...]:
        """Return the entry's match as the store keeps it."""
        with store_refusals():
            return normalise(self.state.ir, match_from_proto(self.info, self.state.ir, message.match))

    def handle(self, message: TableEntry) -> int:
        """Return the handle of the entry that `message` names."""
        self.check_priority(message.priority)
        with store_refusals():
            return self.state.find(self.key(message), message.priority)

    def check_priority(self, priority: int) -> None:
        if self.info.needs_priority and priority <= 0:
            raise invalid(f"table {self.info.name} needs a priority > 0, not {priority}")
        if not self.info.needs_priority and priority:
            raise invalid(f"table {self.info.name} takes no priority, but {priority} is given")

    def action(self, message: TableEntry, *, default: bool) -> tuple[str, tuple[int, ...]]:
        info = self.target.pipeline.p4info
        return action_from_proto(info, self.info, self.state.ir, message.action, default=default)

    def counter(self, message: TableEntry) -> PacketByteCount | None:
        """Return the counter value that a table entry sets, or None."""
        if not message.HasField("counter_data"):
            return None
        self.require_counter()
        value = counter_from_proto(message.counter_data)
        if min(value) < 0:
            raise invalid(f"a counter of table {self.info.name} cannot be negative")
        return value

    def require_counter(self) -> None:
        if not self.info.direct_counter:
            raise invalid(f"table {self.info.name} has no direct counter")

    def meter(self, message: TableEntry | DirectMeterEntry, field: str) -> MeterConfig | None:
        """Return the meter configuration that a message sets, or None."""
        if not message.HasField(field):
            return None
        self.require_meter()
        with store_refusals():
            return check_meter_config(meter_from_proto(getattr(message, field)))

    def require_meter(self) -> None:
        if not self.info.direct_meter:
            raise invalid(f"table {self.info.name} has no direct meter")

    def write_meter(self, handle: int, config: MeterConfig | None) -> None:
        self.target.engine.meters.write_direct(self.info.name, handle, config)

    def read_meter(self, handle: int) -> MeterConfig | None:
        return self.target.engine.meters.read_direct(self.info.name, handle)

    def read_counter(self, handle: int) -> CounterData:
        return counter_to_proto(self.target.engine.counters.read_direct(self.info.name, handle))

    def write_counter(self, handle: int, value: PacketByteCount | None) -> None:
        if value is not None:
            self.target.engine.counters.write_direct(self.info.name, handle, value)


def write_table_entry(target: RunningPipeline, update: int, message: TableEntry) -> None:
    """Insert, modify or delete an entry, or modify the default entry. Raises P4RuntimeError: nothing changed."""
    table = _Table.of(target, message.table_id)
    if message.is_const:
        raise invalid("is_const is for the server to set")
    if update != DELETE:
        _refuse_unsupported(table.info, message)
    if message.is_default_action:
        _write_default(table, update, message)
        return
    if table.info.is_const and (update != MODIFY or message.HasField("action")):
        raise P4RuntimeError(
            RpcCode.PERMISSION_DENIED,
            f"the entries of table {table.info.name} are constant; only their direct counters can be modified",
        )
    if update == INSERT:
        _insert(table, message)
    elif update == MODIFY:
        _modify(table, message)
    else:
        handle = table.handle(message)
        with store_refusals():
            table.state.delete(handle)
        # Handles are not used again, but the notes of deleted entries would pile up.
        target.table_notes.pop((table.info.name, handle), None)
        target.idle.forget(table.info.name, handle)


def read_table_entries(target: RunningPipeline, query: TableEntry) -> Iterator[TableEntry]:
    """Yield the TableEntry messages that `query` selects. Raises P4RuntimeError: the query makes no sense."""
    if query.table_id == 0:
        if query.match or query.priority or query.HasField("action"):
            raise invalid("table_id 0 selects all tables; no match, priority or action can be given with it")
        for table_id in target.pipeline.p4info.tables:
            yield from _read_table(_Table.of(target, table_id), query)
        return
    yield from _read_table(_Table.of(target, query.table_id), query)


def write_direct_counter(target: RunningPipeline, update: int, message: DirectCounterEntry) -> None:
    """Set the direct counter of an entry, if there is data. Only MODIFY. Raises P4RuntimeError: nothing changed."""
    _check_direct(message.table_entry, "counter", update)
    table = _Table.of(target, message.table_entry.table_id)
    table.require_counter()
    handle = table.handle(message.table_entry)
    if message.HasField("data"):
        with store_refusals():
            table.write_counter(handle, counter_from_proto(message.data))


def read_direct_counters(target: RunningPipeline, query: DirectCounterEntry) -> Iterator[DirectCounterEntry]:
    """Yield the DirectCounterEntry messages that `query` selects. Raises P4RuntimeError: no such entry or counter."""
    _check_direct(query.table_entry, "counter")
    if query.table_entry.table_id:
        _Table.of(target, query.table_entry.table_id).require_counter()
    for table, entry in _direct(target, query.table_entry):
        if table.info.direct_counter:
            message = DirectCounterEntry(data=table.read_counter(entry.handle))
            _fill_key(table, entry, message.table_entry)
            yield message


def write_direct_meter(target: RunningPipeline, update: int, message: DirectMeterEntry) -> None:
    """Configure the meter of an entry (None: always green). Only MODIFY. Raises P4RuntimeError: nothing changed."""
    _check_direct(message.table_entry, "meter", update)
    table = _Table.of(target, message.table_entry.table_id)
    table.require_meter()
    config, handle = table.meter(message, "config"), table.handle(message.table_entry)
    table.write_meter(handle, config)


def read_direct_meters(target: RunningPipeline, query: DirectMeterEntry) -> Iterator[DirectMeterEntry]:
    """Yield the DirectMeterEntry messages that `query` selects. Raises P4RuntimeError: no such entry or meter."""
    _check_direct(query.table_entry, "meter")
    if query.table_entry.table_id:
        _Table.of(target, query.table_entry.table_id).require_meter()
    for table, entry in _direct(target, query.table_entry):
        if table.info.direct_meter:
            message = DirectMeterEntry()
            config = table.read_meter(entry.handle)
            if config is not None:
                message.config.CopyFrom(meter_to_proto(config))
            _fill_key(table, entry, message.table_entry)
            yield message


def _check_direct(entry: TableEntry, what: str, update: int = MODIFY) -> None:
    if update != MODIFY:
        raise invalid(f"a direct {what} lives with its entry: it can be modified only")
    if entry.is_default_action:
        raise unsupported(f"default entries have no direct {what} here, as on bmv2")


def _direct(target: RunningPipeline, query: TableEntry) -> Iterator[tuple[_Table, Entry]]:
    """Yield the entries of one table or, without a table id, of all."""
    for number in [query.table_id] if query.table_id else target.pipeline.p4info.tables:
        table = _Table.of(target, number)
        if query.match:
            yield table, table.state.entry(table.handle(query))
        else:
            yield from ((table, each) for each in table.state.entries() if query.priority in (0, each.priority))


def _insert(table: _Table, message: TableEntry) -> None:
    table.check_priority(message.priority)
    # All parts of the message are checked before the entry is made: a refused write changes nothing.
    match = table.key(message)
    action, params = table.action(message, default=False)
    counter, meter = table.counter(message), table.meter(message, "meter_config")
    with store_refusals():
        handle = table.state.insert(match, action, params, message.priority)
        table.write_counter(handle, counter)
    if meter is not None:
        table.write_meter(handle, meter)
    _keep_notes(table, handle, message)
    _start_timeout(table, handle, message)


def _modify(table: _Table, message: TableEntry) -> None:
    handle = table.handle(message)
    counter, meter = table.counter(message), table.meter(message, "meter_config")
    with store_refusals():
        if message.HasField("action"):
            table.state.modify(handle, *table.action(message, default=False))
            _keep_notes(table, handle, message)
        table.write_counter(handle, counter)
        if message.HasField("action"):
            _start_timeout(table, handle, message)
    if meter is not None or (table.info.direct_meter and message.HasField("action")):
        table.write_meter(handle, meter)


def _write_default(table: _Table, update: int, message: TableEntry) -> None:
    if message.match or message.priority:
        raise invalid(f"the default entry of table {table.info.name} has neither match nor priority")
    if update != MODIFY:
        raise invalid(f"the default entry of table {table.info.name} always exists: it can be modified only")
    for field in ("counter_data", "meter_config"):
        if message.HasField(field):
            raise invalid(f"{field}: default entries have no direct counter or meter here, as on bmv2")
    if table.info.const_default:
        raise P4RuntimeError(RpcCode.PERMISSION_DENIED, f"the default entry of table {table.info.name} is constant")
    if not message.HasField("action"):
        table.state.reset_default()
        table.target.table_notes.pop((table.info.name, None), None)
        return
    with store_refusals():
        table.state.set_default(*table.action(message, default=True))
    _keep_notes(table, None, message)


def _refuse_unsupported(table: TableInfo, message: TableEntry) -> None:
    if message.HasField("meter_counter_data"):
        raise invalid(f"meter_counter_data: the meter of table {table.name} does not count by colour")
    if message.idle_timeout_ns < 0:
        raise invalid(f"idle_timeout_ns {message.idle_timeout_ns} of an entry of table {table.name} is negative")
    if message.idle_timeout_ns and (message.is_default_action or not table.idle_timeouts):
        which = "the default entry" if message.is_default_action else "an entry"
        raise invalid(
            f"idle_timeout_ns of {which} of table {table.name}, which has none: leave it 0, or declare "
            "support_timeout = true in the program"
        )


def _start_timeout(table: _Table, handle: int, message: TableEntry) -> None:
    if table.info.idle_timeouts:
        table.target.idle.start(table.info.name, handle, message.idle_timeout_ns, time.monotonic_ns())


def _keep_notes(table: _Table, handle: int | None, message: TableEntry) -> None:
    notes = Notes(message.controller_metadata, message.metadata)
    if notes == NO_NOTES:
        table.target.table_notes.pop((table.info.name, handle), None)
    else:
        table.target.table_notes[table.info.name, handle] = notes


def _read_table(table: _Table, query: TableEntry) -> Iterator[TableEntry]:
    if query.is_default_action:
        yield from _filtered([_default_message(table)], query)
        return
    messages = (_entry_message(table, entry, query) for entry in _selected(table, query))
    yield from _filtered(messages, query)


def _selected(table: _Table, query: TableEntry) -> Iterable[Entry]:
    """Return the entries with the match and priority that `query` gives."""
    entries: Iterable[Entry] = table.state.entries()
    if query.match:
        wanted = table.key(query)
        # Without priorities at most one entry has this match, and the store finds it without looking at the others.
        if not table.info.needs_priority:
            try:
                return [table.state.entry(table.state.find(wanted))]
            except NotFoundError:
                return []
        entries = [entry for entry in entries if entry.match == wanted]
    return [entry for entry in entries if query.priority in (0, entry.priority)]


def _filtered(messages: Iterable[TableEntry], query: TableEntry) -> Iterator[TableEntry]:
    for message in messages:
        action_id = query.action.action.action_id
        if action_id and action_id != message.action.action.action_id:
            continue
        if query.metadata and query.metadata != message.metadata:
            continue
        if query.controller_metadata and query.controller_metadata != message.controller_metadata:
            continue
        yield message


def _entry_message(table: _Table, entry: Entry, query: TableEntry) -> TableEntry:
    message = TableEntry()
    _fill_key(table, entry, message)
    fill_action(table.target.pipeline.p4info, table.info, entry.call, message.action)
    message.is_const = table.info.is_const
    _fill_notes(table, entry.handle, message)
    _fill_timeout(table, entry.handle, query, message)
    if query.HasField("counter_data") and table.info.direct_counter:
        message.counter_data.CopyFrom(table.read_counter(entry.handle))
    config = table.read_meter(entry.handle) if query.HasField("meter_config") and table.info.direct_meter else None
    if config is not None:
        message.meter_config.CopyFrom(meter_to_proto(config))
    return message


def _default_message(table: _Table) -> TableEntry:
    message = TableEntry(table_id=table.info.id, is_default_action=True)
    message.is_const = table.info.const_default
    call = table.state.get_default()
    if call is not None:
        fill_action(table.target.pipeline.p4info, table.info, call, message.action)
    _fill_notes(table, None, message)
    return message


def _fill_key(table: _Table, entry: Entry, message: TableEntry) -> None:
    message.table_id = table.info.id
    fill_match(table.info, table.state.ir, entry.match, message)
    message.priority = entry.priority


def _fill_notes(table: _Table, handle: int | None, message: TableEntry) -> None:
    notes = table.target.table_notes.get((table.info.name, handle), NO_NOTES)
    message.controller_metadata, message.metadata = notes


def _fill_timeout(table: _Table, handle: int, query: TableEntry, message: TableEntry) -> None:
    idle = table.target.idle
    message.idle_timeout_ns = idle.timeout_ns(table.info.name, handle)
    if query.HasField("time_since_last_hit"):
        since_ns = idle.since_hit_ns(table.info.name, handle, time.monotonic_ns())
        if since_ns is not None:
            message.time_since_last_hit.elapsed_ns = since_ns


def idle_message(target: RunningPipeline, names: Iterable[tuple[str, int]]) -> StreamMessageResponse:
    """Return the notification that the entries (table, handle) are idle: their keys, metadata and timeouts."""
    message, ids = (
        StreamMessageResponse(),
        {info.name: number for number, info in target.pipeline.p4info.tables.items()},
    )
    notification = message.idle_timeout_notification
    for name, handle in names:
        table = _Table.of(target, ids[name])
        told = notification.table_entry.add()
        _fill_key(table, table.state.entry(handle), told)
        _fill_notes(table, handle, told)
        told.idle_timeout_ns = target.idle.timeout_ns(name, handle)
    notification.timestamp = time.time_ns()
    return message
