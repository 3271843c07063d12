# SPDX-License-Identifier: Apache-2.0
"""Counters, registers and multicast groups as the control plane sees them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hopsum_switch.engine import Engine
from hopsum_switch.errors import AlreadyExistsError, InvalidArgumentError, NotFoundError, TableError
from hopsum_switch.state.cells import PacketByteCount
from hopsum_switch.state.copies import MAX_GROUP_ID, MulticastStore, PortCopy
from hopsum_switch.state.entry_lookup import Exact

from .builder import build


@pytest.fixture
def engine() -> Engine:
    return build().engine()


def test_counters_are_read_and_written(engine: Engine) -> None:
    engine.counters.write("c", 2, PacketByteCount(5, 600))
    assert engine.counters.read("c", 2) == (5, 600)
    assert engine.counters.read_all("c") == [(0, 0), (0, 0), (5, 600), (0, 0)]
    engine.reset_state()
    assert engine.counters.read("c", 2) == (0, 0)


def test_registers_are_read_and_written(engine: Engine) -> None:
    engine.registers.write("r", 1, 4095)
    assert engine.registers.read_all("r") == [0, 4095, 0, 0]


ZERO = PacketByteCount(0, 0)

REFUSED: list[tuple[Callable[[Engine], object], type[TableError], str]] = [
    (lambda e: e.counters.read("x", 0), NotFoundError, "no indexed counter 'x'"),
    (lambda e: e.counters.read("c", 4), InvalidArgumentError, "index 4 is outside 0..3"),
    (lambda e: e.counters.write("c", -1, ZERO), InvalidArgumentError, "index -1"),
    (lambda e: e.counters.write("c", 0, PacketByteCount(-1, 0)), InvalidArgumentError, "cannot be negative"),
    (lambda e: e.counters.read_direct("tbl_in", 1), InvalidArgumentError, "has no direct counter"),
    (lambda e: e.counters.write_direct("nowhere", 1, ZERO), NotFoundError, "no table"),
    (lambda e: e.registers.read("x", 0), NotFoundError, "no register 'x'"),
    (lambda e: e.registers.write("r", 4, 0), InvalidArgumentError, "index 4"),
    (lambda e: e.registers.write("r", 0, 4096), InvalidArgumentError, "4096 is not a value of 12 bits"),
]


@pytest.mark.parametrize(("access", "error", "message"), REFUSED)
def test_refusals(engine: Engine, access: Callable[[Engine], object], error: type[TableError], message: str) -> None:
    with pytest.raises(error, match=message):
        access(engine)


def test_direct_counters_are_written() -> None:
    builder = build()
    builder.ingress["tables"][0].update(
        key=[{"match_type": "exact", "target": ["h", "a"], "mask": None}],
        with_counters=True,
    )
    engine = builder.engine()
    handle = engine.tables["tbl_in"].insert([Exact(1)], "act", [])
    engine.counters.write_direct("tbl_in", handle, PacketByteCount(10, 20))
    engine.process(0, b"\1\2")
    assert engine.counters.read_direct("tbl_in", handle) == (11, 22)


def test_groups_are_inserted_modified_and_deleted() -> None:
    store = MulticastStore()
    store.insert(5, [PortCopy(1, 0)])
    store.modify(5, [PortCopy(2, 0), PortCopy(2, 1)])
    assert store.get(5) == ((2, 0), (2, 1))
    assert store.everything() == {5: ((2, 0), (2, 1))}
    store.delete(5)
    assert store.replicas(5) == ()


@pytest.mark.parametrize(
    ("write", "error"),
    [
        (lambda s: s.insert(1, [PortCopy(1, 0)]), AlreadyExistsError),
        (lambda s: s.insert(0, []), InvalidArgumentError),
        (lambda s: s.insert(MAX_GROUP_ID + 1, []), InvalidArgumentError),
        (lambda s: s.insert(2, [PortCopy(1, 0), PortCopy(1, 0)]), InvalidArgumentError),
        (lambda s: s.insert(2, [PortCopy(-1, 0)]), InvalidArgumentError),
        (lambda s: s.modify(1, [PortCopy(1, 2**16)]), InvalidArgumentError),
        (lambda s: s.modify(3, []), NotFoundError),
        (lambda s: s.delete(3), NotFoundError),
        (lambda s: s.get(3), NotFoundError),
    ],
)
def test_refused_group_writes_change_nothing(write: Callable[[MulticastStore], None], error: type[TableError]) -> None:
    store = MulticastStore()
    store.insert(1, [PortCopy(4, 4)])
    with pytest.raises(error):
        write(store)
    assert store.everything() == {1: ((4, 4),)}
