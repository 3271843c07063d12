# SPDX-License-Identifier: Apache-2.0
"""Snapshots: what they hold, files, comparison."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hopsum_switch.engine import Engine
from hopsum_switch.native.native_engine import NativeEngine
from hopsum_switch.observe.snapshot import (
    Change,
    CounterCellRange,
    RegisterCellRange,
    Snapshot,
    SnapshotError,
    compare,
    freeze,
    full_name,
)
from hopsum_switch.state.cells import PacketByteCount

from ..core.builder import build
from .programs import STATION, frame, station

REGISTER, COUNTER = "StationIngress.last_source", "StationIngress.received"


def wide(seed: int = 1) -> Snapshot:
    """A snapshot with registers of many widths, random values and the largest ones."""
    rng = random.Random(seed)
    registers = {
        f"r{bits}": RegisterCellRange(bits, 3, [0, (1 << bits) - 1, rng.getrandbits(bits)])
        for bits in (1, 7, 8, 9, 32, 63, 64, 65, 2048)
    }
    return Snapshot("p.p4", "abc", registers, {"c": CounterCellRange(3, [0, 1, 2**63], [0, 60, 2**64 - 1])})


@pytest.mark.parametrize("backend", [Engine, NativeEngine])
def test_it_holds_all_cells_and_stays_as_it_was_taken(backend: type[Engine]) -> None:
    engine = backend(STATION)
    engine.process(3, frame(4))
    snapshot = freeze(engine)
    engine.process(3, frame(4))
    engine.registers.write(REGISTER, 5, 99)
    assert snapshot.registers[REGISTER].bits == 48
    assert list(snapshot.select().registers[REGISTER].values) == [0, 0, 0, 1, *[0] * 12]
    counter = snapshot.select([COUNTER], first=2, count=3).counters[COUNTER]
    assert (counter.first, list(counter.packets), list(counter.bytes)) == (2, [0, 1, 0], [0, 14, 0])
    assert len(snapshot.counters[COUNTER].packets) == 512


@pytest.mark.parametrize("backend", [Engine, NativeEngine])
def test_only_cells_that_changed_are_listed(backend: type[Engine]) -> None:
    engine = backend(STATION)
    before = freeze(engine)
    assert compare(before, freeze(engine)) == []
    engine.process(3, frame(4))
    engine.registers.write(REGISTER, 15, 2**48 - 1)
    engine.counters.write(COUNTER, 511, PacketByteCount(1, 0))
    after = freeze(engine)
    assert compare(before, after) == [
        Change("register", REGISTER, 3, 0, 1),
        Change("register", REGISTER, 15, 0, 2**48 - 1),
        Change("counter", COUNTER, 3, (0, 0), (1, 14)),
        Change("counter", COUNTER, 511, (0, 0), (1, 0)),
    ]
    part = {"names": [REGISTER], "first": 10}
    assert [change.index for change in compare(before.select(**part), after.select(**part))] == [15]


def test_names_may_be_cut_to_their_last_parts() -> None:
    arrays = ["In.slot.tag", "In.other.tag", "In.slot.seen"]
    assert full_name("seen", arrays) == full_name("slot.seen", arrays) == full_name("In.slot.seen", arrays)
    assert full_name("slot.tag", arrays) == "In.slot.tag"
    with pytest.raises(SnapshotError, match=r"'tag' may be each of In\.slot\.tag, In\.other\.tag: give more"):
        full_name("tag", arrays)
    with pytest.raises(SnapshotError, match="no register or counter 'een': there are In"):
        full_name("een", arrays)


@pytest.mark.parametrize("name", ["snapshot.json", "snapshot.npz"])
def test_files_hold_every_bit(tmp_path: Path, name: str) -> None:
    wide().save(tmp_path / name)
    assert Snapshot.load(tmp_path / name) == wide()
    empty = wide().select(first=0, count=0)
    empty.save(tmp_path / name)
    assert Snapshot.load(tmp_path / name) == empty
    assert Snapshot.load(tmp_path / name) != wide()


def test_files_of_numpy_can_be_read_without_us(tmp_path: Path) -> None:
    engine = station()
    engine.process(3, frame(4))
    freeze(engine).save(tmp_path / "s.npz")
    with np.load(tmp_path / "s.npz") as arrays:
        cells = arrays[f"registers/{REGISTER}"]
        assert (cells.dtype, cells.shape) == (np.uint8, (16, 6))
        assert cells[3].tolist() == [0, 0, 0, 0, 0, 1]
        assert arrays[f"counters/{COUNTER}"][3].tolist() == [1, 14]


def test_what_is_no_snapshot_is_named(tmp_path: Path) -> None:
    for name, content in {
        "a.json": b"{",
        "b.json": b"[]",
        "c.json": b'{"format": "hopsum_switch snapshot 2"}',
        "d.npz": b"not a zip file",
        "e.npz": b"PK\x03\x04",
    }.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(SnapshotError, match=rf"{name} is not a snapshot"):
            Snapshot.load(tmp_path / name)
    np.savez(tmp_path / "f.npz", other=np.zeros(3))
    with pytest.raises(SnapshotError, match="is not a snapshot"):
        Snapshot.load(tmp_path / "f.npz")
    with pytest.raises(FileNotFoundError):
        Snapshot.load(tmp_path / "none.json")


def test_what_cannot_be_selected_is_named() -> None:
    with pytest.raises(SnapshotError, match=r"no register or counter 'nothing': there are r1, .*, c"):
        wide().select(["r1", "nothing"])
    with pytest.raises(SnapshotError, match="cannot be negative"):
        wide().select(first=-1)
    with pytest.raises(SnapshotError, match="cannot be negative"):
        wide().select(count=-1)


def test_what_cannot_be_compared_is_named() -> None:
    with pytest.raises(SnapshotError, match="different programs"):
        compare(wide(), replace(wide(), digest="abd"))
    with pytest.raises(SnapshotError, match=r"these registers: r1; take both with the same names"):
        compare(wide(), replace(wide(), registers={n: r for n, r in wide().registers.items() if n != "r1"}))
    with pytest.raises(SnapshotError, match=r"these counters: c"):
        compare(wide(), replace(wide(), counters={}))
    with pytest.raises(SnapshotError, match="r1: one snapshot has 3 cells from index 3, the other 2 from 0"):
        compare(wide(), wide().select(first=0, count=2))
    moved = replace(wide(), counters={"c": replace(wide().counters["c"], first=4)})
    with pytest.raises(SnapshotError, match="c: one snapshot has 3 cells from index 3, the other 3 from 4"):
        compare(wide(), moved)


def test_direct_counters_are_left_to_table_reads() -> None:
    assert set(freeze(station()).counters) == {COUNTER}
    assert freeze(Engine(build().load())).counters.keys() == {"c"}
