# SPDX-License-Identifier: Apache-2.0
"""Coverage: what counts as a part, what is met, what is missed."""

from __future__ import annotations

from hopsum_switch.engine import Engine
from hopsum_switch.observe.coverage import Coverage

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
