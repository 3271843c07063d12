# SPDX-License-Identifier: Apache-2.0
"""Idle timeouts of table entries: the notification, what a hit does, and what a read says."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator

import pytest
from google.protobuf import text_format
from google.rpc import code_pb2
from p4.v1.p4runtime_pb2 import Entity, TableEntry

from hopsum_base.p4runtime import p4info_pb2
from hopsum_switch.backend import Backend, engine_maker
from hopsum_switch.ports.port import MemoryPort
from hopsum_switch.server import SwitchServer

from .controller import DELETE, INSERT, MODIFY, NAMES, P4INFO, PROGRAM, Controller, l2

MAC, OTHER = b"\x0a\x0b\x0c\x0d\x0e\x0f", b"\x0a\x0b\x0c\x0d\x0e\x10"
FRAME = MAC + bytes(6) + b"\x12\x34payload"
SHORT_NS, LONG_NS = 100_000_000, 3_600_000_000_000
QUIET_S = 0.5
"""Several sweeps of entries with the short timeout."""


def timed_program() -> tuple[str, bytes]:
    """Return P4Info and JSON of the test program whose table l2 has `support_timeout`."""
    program = json.loads(PROGRAM.read_text())
    for pipeline in program["pipelines"]:
        for table in pipeline["tables"]:
            if table["name"].rpartition(".")[2] == "l2":
                table["support_timeout"] = True
    info = text_format.Parse(P4INFO.read_text(), p4info_pb2.P4Info())
    (table,) = [each for each in info.tables if each.preamble.id == NAMES.tables["l2"]]
    table.idle_timeout_behavior = p4info_pb2.Table.NOTIFY_CONTROL
    return text_format.MessageToString(info), json.dumps(program).encode()


@pytest.fixture(params=[Backend.INTERPRETER, Backend.NATIVE], ids=lambda backend: backend.value)
def switch(request: pytest.FixtureRequest) -> Iterator[SwitchServer]:
    with SwitchServer(device_id=1, make_engine=engine_maker(request.param)) as switch:
        switch.load(*timed_program())
        for number in range(4):
            switch.dataplane.bind(number, MemoryPort())
        yield switch


@pytest.fixture
def primary(switch: SwitchServer) -> Iterator[Controller]:
    with Controller(switch.grpc_address) as controller:
        yield controller.become_primary()


def hit(switch: SwitchServer) -> None:
    port = switch.dataplane._ports[0]
    assert isinstance(port, MemoryPort)
    port.inject(FRAME)


def test_an_idle_entry_is_told_once_and_again_after_a_hit(switch: SwitchServer, primary: Controller) -> None:
    written = l2(INSERT, MAC, controller_metadata=7, idle_timeout_ns=SHORT_NS)
    primary.write(written, l2(INSERT, OTHER, idle_timeout_ns=LONG_NS))
    for _ in range(2):
        (told,) = primary.next().idle_timeout_notification.table_entry
        assert told.table_id == written.entity.table_entry.table_id
        assert told.match == written.entity.table_entry.match
        assert (told.controller_metadata, told.idle_timeout_ns) == (7, SHORT_NS)
        threading.Event().wait(QUIET_S)
        assert primary.received.empty(), "an entry is told once"
        hit(switch)


def test_reads_have_the_timeout_and_the_time_since_the_last_hit(primary: Controller) -> None:
    primary.write(l2(INSERT, MAC, idle_timeout_ns=LONG_NS), l2(INSERT, OTHER))
    query = TableEntry(table_id=NAMES.tables["l2"])
    assert sorted(each.idle_timeout_ns for each in primary.read_tables(table_id=query.table_id)) == [0, LONG_NS]
    query.time_since_last_hit.elapsed_ns = 0
    found = [each.table_entry for each in primary.read(Entity(table_entry=query))]
    assert all(0 <= each.time_since_last_hit.elapsed_ns < LONG_NS for each in found)
    assert all(each.HasField("time_since_last_hit") for each in found)
    primary.write(l2(MODIFY, MAC, idle_timeout_ns=SHORT_NS))
    assert len(primary.next().idle_timeout_notification.table_entry) == 1
    primary.write(l2(DELETE, MAC, None), l2(MODIFY, OTHER))


def test_a_timeout_is_refused_where_it_has_no_meaning(primary: Controller) -> None:
    assert primary.refusals(l2(INSERT, MAC, idle_timeout_ns=-1)) == [code_pb2.INVALID_ARGUMENT]
    assert primary.read_tables(table_id=NAMES.tables["l2"]) == []


@pytest.mark.parametrize("kind", ["action_profile_member", "action_profile_group", "value_set_entry", "extern_entry"])
def test_all_of_a_kind_that_no_program_has_are_none(primary: Controller, kind: str) -> None:
    """Clients read all entities before they delete everything."""
    query = Entity()
    getattr(query, kind).SetInParent()
    assert primary.read(query) == []
