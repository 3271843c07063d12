# SPDX-License-Identifier: Apache-2.0
"""Idle timeouts of table entries: when an entry is told, and over P4Runtime in both back ends."""

from __future__ import annotations

import json

import pytest
from p4.v1.p4runtime_pb2 import TableEntry

from hopsum_base.p4runtime import p4info_pb2
from hopsum_switch.backend import Backend, engine_maker
from hopsum_switch.p4runtime.idle_timeouts import IdleTimeouts
from hopsum_switch.ports.port import MemoryPort
from hopsum_switch.program import load_program
from hopsum_switch.server import SwitchServer
from hopsum_switch.state.entry_lookup import Exact
from hopsum_switch.state.table_store import TableStore

from .controller import DELETE, INSERT, MODIFY, NAMES, PROGRAM, Controller, l2

MAC, OTHER = b"\1" * 6, b"\2" * 6
SECOND = 10**9


def station() -> bytes:
    """Return the test program with idle timeouts in tables l2 and routes."""
    document = json.loads(PROGRAM.read_text())
    for pipeline in document["pipelines"]:
        for table in pipeline["tables"]:
            table["support_timeout"] = table["name"] in ("StationIngress.l2", "StationIngress.routes")
    return json.dumps(document).encode()


def test_an_entry_is_told_once_until_it_is_hit_again() -> None:
    tables = TableStore(load_program(station().decode()))
    table = tables["StationIngress.l2"]
    handles = [table.insert([Exact(each)], "StationIngress.forward", [1]) for each in (1, 2)]
    entry, name = table.entry(handles[0]), (table.ir.name, handles[0])
    idle = IdleTimeouts(tables)
    assert idle.period_s() is None
    idle.start(*name, 2 * SECOND, 0)
    idle.start(table.ir.name, handles[1], 0, 0)
    assert idle.period_s() == 0.5
    assert idle.sweep(2 * SECOND - 1) == []
    assert idle.sweep(2 * SECOND) == idle.sweep(2 * SECOND) == [name], "nobody was told"
    idle.mark_notified([name])
    assert idle.sweep(9 * SECOND) == []
    entry.packets += 1
    assert idle.sweep(10 * SECOND) == []
    assert idle.since_hit_ns(*name, 11 * SECOND) == SECOND
    assert idle.sweep(12 * SECOND) == [name]
    idle.forget(*name)
    assert idle.sweep(99 * SECOND) == []
    assert idle.period_s() is None


def test_tables_count_for_their_timeouts() -> None:
    assert load_program(station().decode()).tables["StationIngress.routes"].with_counters


@pytest.mark.parametrize("backend", [Backend.INTERPRETER, Backend.NATIVE])
def test_the_primary_is_told(backend: Backend) -> None:
    info = p4info_pb2.P4Info()
    info.CopyFrom(NAMES.message)
    for table in info.tables:
        if table.preamble.alias in ("l2", "routes"):
            table.idle_timeout_behavior = p4info_pb2.Table.NOTIFY_CONTROL
    make = engine_maker(backend)
    with SwitchServer(device_id=1, make_engine=make) as switch, Controller(switch.grpc_address) as primary:
        switch.dataplane.bind(1, MemoryPort())
        primary.become_primary().set_pipeline("VERIFY_AND_COMMIT", p4info=info, program=station())
        timed = l2(INSERT, MAC, idle_timeout_ns=SECOND // 5, metadata=b"mine")
        primary.write(timed, l2(INSERT, OTHER))
        for _ in range(2):
            told = primary.next().idle_timeout_notification
            (entry,) = told.table_entry
            wanted = TableEntry(table_id=NAMES.tables["l2"], match=timed.entity.table_entry.match, metadata=b"mine")
            wanted.idle_timeout_ns = SECOND // 5
            assert entry == wanted
            assert told.timestamp
            # A hit lets the time run again.
            switch.dataplane.inject(1, MAC + OTHER + b"\x12\x34" + bytes(50))
        query = TableEntry(table_id=NAMES.tables["l2"])
        query.time_since_last_hit.SetInParent()
        first, second = primary.read_tables(table_id=query.table_id, time_since_last_hit=query.time_since_last_hit)
        assert (first.idle_timeout_ns, second.idle_timeout_ns) == (SECOND // 5, 0)
        assert second.time_since_last_hit.elapsed_ns >= SECOND // 5
        primary.write(l2(MODIFY, MAC, idle_timeout_ns=0))
        assert primary.read_tables(table_id=query.table_id)[0].idle_timeout_ns == 0
        primary.write(l2(DELETE, MAC, None))
        assert len(primary.read_tables(table_id=query.table_id)) == 1
