# SPDX-License-Identifier: Apache-2.0
"""Coverage and snapshots: parts that packets met or missed, and all cells of a state or those that were asked for."""

from __future__ import annotations

import pytest

from hopsum_switch.engine import Engine
from hopsum_switch.native.native_engine import NativeEngine
from hopsum_switch.observe.coverage import Coverage
from hopsum_switch.observe.snapshot import SnapshotError, freeze, full_name

from ..core.builder import build, primitive
from .programs import STATION, frame, ipv4, station


def test_nothing_is_met_before_the_first_packet() -> None:
    coverage = Coverage(STATION)
    assert coverage.met() == ()
    assert coverage.missed() == coverage.parts()
    assert len(set(coverage.parts())) == len(coverage.parts())


def test_each_packet_meets_what_it_went_through() -> None:
    coverage = Coverage(STATION)
    station(coverage).process(3, frame(4))
    assert coverage.met() == (
        "state start",
        "transition start -> ethernet",
        "state ethernet",
        "transition ethernet -> accept",
        "table tbl_station132: station132",
        "table tbl_station137: station137",
        "table StationIngress.kinds: miss",
        "table StationIngress.kinds: NoAction",
        "table StationIngress.l2: miss",
        "table StationIngress.l2: StationIngress.drop",
        "drop StationIngress.drop station.p4(84): mark_to_drop(s)",
        "condition station.p4(133): h.packet_out.isValid(): false",
        "condition station.p4(140): h.ipv4.isValid(): false",
    )
    assert set(coverage.met()) | set(coverage.missed()) == set(coverage.parts())


def test_what_is_missed_has_a_name() -> None:
    coverage = Coverage(STATION)
    engine = station(coverage)
    for data in (frame(4), frame(5), frame(6), ipv4(5, "10.0.0.1"), ipv4(5, "11.0.0.1"), frame(0, 0x88CC)):
        engine.process(0, data)
    missed = coverage.missed()
    assert missed == (
        "transition start -> from_controller",
        "state from_controller",
        "transition from_controller -> ethernet",
        "table tbl_station134: station134",
        "table StationIngress.l2: StationIngress.to_controller",
        "table StationIngress.classes: hit",
        "table StationIngress.classes: StationIngress.mark",
        "condition station.p4(133): h.packet_out.isValid(): true",
    )
    assert coverage.report().splitlines()[:3] == ["state: 3 of 4", "transition: 4 of 6", "table: 17 of 21"]
    assert coverage.report().splitlines()[-len(missed) :] == [f"missed {part}" for part in missed]


def test_engines_of_one_program_add_up() -> None:
    coverage = Coverage(STATION)
    station(coverage).process(0, frame(4))
    before = set(coverage.met())
    station(coverage).process(510, b"\x01\x00" + frame(4))
    assert set(coverage.met()) - before >= {"state from_controller", "table tbl_station134: station134"}


def test_cells_of_small_counters_are_parts() -> None:
    builder = build()
    counter = {"type": "counter_array", "value": "c"}
    builder.primitives.append(primitive("count", counter, {"type": "hexstr", "value": "0x2"}))
    program = builder.load()
    coverage = Coverage(program)
    Engine(program, observer=coverage).process(0, b"\x00\x00")
    cells = [part for part in coverage.parts() if part.startswith("counter ")]
    assert cells == [f"counter c[{index}]" for index in range(4)]
    assert [cell for cell in cells if cell in coverage.met()] == ["counter c[2]"]


def test_cells_of_large_counters_are_not() -> None:
    assert not [part for part in Coverage(STATION).parts() if part.startswith("counter ")]


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
