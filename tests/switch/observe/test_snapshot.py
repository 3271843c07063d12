# SPDX-License-Identifier: Apache-2.0
"""Snapshots: all cells, or the part that was asked for."""

from __future__ import annotations

import pytest

from hopsum_switch.engine import Engine
from hopsum_switch.native.native_engine import NativeEngine
from hopsum_switch.observe.snapshot import SnapshotError, freeze, full_name

from ..core.builder import build
from .programs import STATION, frame, station

REGISTER, COUNTER = "StationIngress.last_source", "StationIngress.received"


@pytest.mark.parametrize("backend", [Engine, NativeEngine])
def test_it_holds_all_cells_and_stays_as_it_was_taken(backend: type[Engine]) -> None:
    engine = backend(STATION)
    engine.process(3, frame(4))
    snapshot = freeze(engine)
    engine.process(3, frame(4))
    engine.registers.write(REGISTER, 5, 99)
    shown = snapshot.as_json()
    assert shown["registers"][REGISTER] == {"bits": 48, "first": 0, "values": ["0x0"] * 3 + ["0x1"] + ["0x0"] * 12}
    assert len(shown["counters"][COUNTER]["packets"]) == 512
    part = snapshot.as_json([COUNTER], first=2, count=3)
    assert (part["registers"], part["counters"]) == (
        {},
        {COUNTER: {"first": 2, "packets": [0, 1, 0], "bytes": [0, 14, 0]}},
    )


def test_names_may_be_cut_to_their_last_parts() -> None:
    arrays = ["In.slot.tag", "In.other.tag", "In.slot.seen"]
    assert full_name("seen", arrays) == full_name("slot.seen", arrays) == full_name("In.slot.seen", arrays)
    assert full_name("slot.tag", arrays) == "In.slot.tag"
    with pytest.raises(SnapshotError, match=r"'tag' may be each of In\.slot\.tag, In\.other\.tag: give more"):
        full_name("tag", arrays)
    with pytest.raises(SnapshotError, match="no register or counter 'een': there are In"):
        full_name("een", arrays)


def test_what_cannot_be_selected_is_named() -> None:
    snapshot = freeze(station())
    with pytest.raises(SnapshotError, match="no register or counter 'nothing': there are Station"):
        snapshot.as_json([REGISTER, "nothing"])
    for numbers in ({"first": -1}, {"count": -1}):
        with pytest.raises(SnapshotError, match="cannot be negative"):
            snapshot.as_json(**numbers)


def test_direct_counters_are_left_to_table_reads() -> None:
    assert set(freeze(station()).counters) == {COUNTER}
    assert freeze(Engine(build().load())).counters.keys() == {"c"}
