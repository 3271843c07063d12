# SPDX-License-Identifier: Apache-2.0
"""Meters: colours over time, indexed and direct, and what configurations are refused."""

from __future__ import annotations

import random

import pytest

from hopsum_switch.engine import Engine
from hopsum_switch.errors import InvalidArgumentError, NotFoundError, ProgramError
from hopsum_switch.state.entry_lookup import Exact
from hopsum_switch.state.meter import GREEN, RED, YELLOW, MeterCell, MeterConfig

from .builder import Json, ProgramBuilder, build, field, hexstr, primitive

METER: Json = {"type": "meter_array", "value": "meter"}


def metering(unit: str = "packets") -> ProgramBuilder:
    """Meter `meter`, indexed by `a`; the colour goes into `b`."""
    builder = build()
    builder.data["meter_arrays"] = [
        {"name": "meter", "id": 0, "type": unit, "rate_count": 2, "size": 4, "is_direct": False}
    ]
    builder.primitives.append(primitive("execute_meter", METER, field("h", "a"), field("h", "b")))
    return builder


def directly_metering() -> ProgramBuilder:
    """Table `tbl_in` on `a` with a direct meter of bytes; the colour goes into `b`."""
    builder = build()
    builder.data["meter_arrays"] = [
        {
            "name": "meter",
            "id": 0,
            "type": "bytes",
            "rate_count": 2,
            "is_direct": True,
            "binding": "tbl_in",
            "result_target": ["h", "b"],
        }
    ]
    key = [{"match_type": "exact", "name": "a", "target": ["h", "a"], "mask": None}]
    builder.ingress["tables"][0].update(key=key, direct_meters="meter", default_entry=None)
    return builder


def colour(engine: Engine, a: int, now_us: int = 0, size: int = 10) -> int:
    return engine.process(0, bytes([a, 0xEE]) + bytes(size - 2), now_us)[0].frame[1]


def test_a_meter_without_configuration_is_green_and_one_outside_does_nothing() -> None:
    engine = metering().engine()
    assert [colour(engine, a) for a in (0, 3, 4, 255)] == [GREEN, GREEN, 0xEE, 0xEE]


@pytest.mark.parametrize(("unit", "scale"), [("packets", 1), ("bytes", 10)])
def test_bursts_give_colours_and_time_fills_the_buckets(unit: str, scale: int) -> None:
    engine = metering(unit).engine()
    engine.meters.write("meter", 1, MeterConfig(1 * scale, 2 * scale, 2 * scale, 5 * scale))
    assert [colour(engine, 1) for _ in range(7)] == [GREEN] * 2 + [YELLOW] * 3 + [RED] * 2
    assert colour(engine, 1, 499_999) == RED
    assert colour(engine, 1, 500_000) == YELLOW
    assert [colour(engine, 1, 1_000_000) for _ in range(2)] == [GREEN, RED]
    assert [colour(engine, 1, 10**12) for _ in range(6)] == [GREEN] * 2 + [YELLOW] * 3 + [RED]
    engine.meters.write("meter", 1, None)
    assert colour(engine, 1, 10**12) == GREEN


def test_random_traffic_against_buckets_that_are_filled_all_the_time() -> None:
    rng = random.Random(3)
    seen = set()
    for _ in range(20):
        cir = rng.randrange(10**6)
        config = MeterConfig(cir, rng.randrange(3000), cir + rng.randrange(10**6), rng.randrange(3000))
        cell, now = MeterCell(), 0
        cell.configure(config)
        committed, peak = config.cburst, config.pburst
        for _ in range(300):
            before, now = now, now + rng.randrange(4000)
            committed = min(committed + now * config.cir // 10**6 - before * config.cir // 10**6, config.cburst)
            peak = min(peak + now * config.pir // 10**6 - before * config.pir // 10**6, config.pburst)
            amount, expected = rng.randrange(64, 1500), RED
            if peak >= amount:
                peak, expected = peak - amount, YELLOW
                if committed >= amount:
                    committed, expected = committed - amount, GREEN
            assert cell.execute(now, amount) == expected
            seen.add(expected)
    assert seen == {GREEN, YELLOW, RED}


def test_a_direct_meter_lives_with_its_entry() -> None:
    builder = directly_metering()
    builder.primitives.append(primitive("no_op"))
    engine = builder.engine()
    table = engine.tables["tbl_in"]
    handles = [table.insert([Exact(a)], "act", []) for a in (1, 2)]
    engine.meters.write_direct("tbl_in", handles[0], MeterConfig(0, 10, 0, 20))
    assert [colour(engine, 1) for _ in range(3)] == [GREEN, YELLOW, RED]
    assert [colour(engine, 2) for _ in range(3)] == [GREEN] * 3
    assert engine.meters.read_direct("tbl_in", handles[0]) == (0, 10, 0, 20)
    assert engine.meters.read_direct("tbl_in", handles[1]) is None
    table.delete(handles[0])
    with pytest.raises(NotFoundError):
        engine.meters.read_direct("tbl_in", handles[0])
    table.insert([Exact(1)], "act", [])
    assert colour(engine, 1) == GREEN


def test_configurations_and_cells_are_checked() -> None:
    engine = metering().engine()
    for config in (MeterConfig(2, 0, 1, 0), MeterConfig(-1, 0, 1, 0), MeterConfig(0, -1, 1, 0)):
        with pytest.raises(InvalidArgumentError, match="pir >= cir"):
            engine.meters.write("meter", 0, config)
    with pytest.raises(InvalidArgumentError, match="index 4 is outside"):
        engine.meters.write("meter", 4, None)
    with pytest.raises(NotFoundError, match="no indexed meter 'x'"):
        engine.meters.read("x", 0)
    with pytest.raises(InvalidArgumentError, match="has no direct meter"):
        engine.meters.read_direct("tbl_in", 1)
    engine.meters.write("meter", 0, MeterConfig(1, 1, 1, 1))
    engine.reset_state()
    assert engine.meters.read("meter", 0) is None


def test_wrong_meters_are_refused() -> None:
    builder = directly_metering()
    builder.primitives.append(primitive("execute_meter", METER, hexstr(0), field("h", "b")))
    with pytest.raises(ProgramError, match=r"execute_meter\(\) on the direct meter"):
        builder.load()
    builder = directly_metering()
    builder.data["meter_arrays"][0]["binding"] = "tbl_eg"
    with pytest.raises(ProgramError, match="the meter meter is not its own"):
        builder.load()
    builder = metering()
    builder.data["meter_arrays"][0]["size"] = 0
    with pytest.raises(ProgramError, match="size 0 is impossible"):
        builder.load()
