# SPDX-License-Identifier: Apache-2.0
"""The policing program: an indexed meter of packets, a direct meter of bytes, and the log."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hopsum_switch.engine import Engine
from hopsum_switch.state.entry_lookup import Exact
from hopsum_switch.state.meter import MeterConfig

CLASSES, FLOWS = "PoliceIngress.classes", "PoliceIngress.flows"
UNMETERED = 9


def item(group: int, flow: int, size: int = 10) -> bytes:
    return (bytes([group, 0xEE]) + flow.to_bytes(2, "big") + b"\xee").ljust(size, b".")


def colours(engine: Engine, group: int, flow: int, now_us: int = 0, size: int = 10) -> tuple[int, int] | None:
    outputs = engine.process(0, item(group, flow, size), now_us)
    return (outputs[0].frame[1], outputs[0].frame[4]) if outputs else None


@pytest.fixture
def engine(engine_of: Callable[[str], Engine]) -> Engine:
    engine = engine_of("police")
    handles = [engine.tables[FLOWS].insert([Exact(flow)], "PoliceIngress.forward", [3]) for flow in (1, 2)]
    engine.meters.write(CLASSES, 5, MeterConfig(1, 1, 2, 3))
    engine.meters.write_direct(FLOWS, handles[0], MeterConfig(10, 25, 20, 45))
    return engine


def test_both_meters_colour_the_frame_and_red_flows_are_dropped(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="hopsum_switch.program"):
        got = [colours(engine, 5, 1) for _ in range(5)]
    assert got == [(0, 0), (1, 0), (1, 1), (2, 1), None]
    assert caplog.messages == ["flow 1 is red"]
    # A second later there are 25 bytes at the peak and 15 committed, and 2 and 1 packets.
    assert colours(engine, 5, 1, 1_000_000) == (0, 0)
    assert colours(engine, 5, 1, 1_000_000, 11) == (1, 1)
    assert colours(engine, 5, 1, 1_000_000) is None


def test_other_classes_and_flows_are_green_or_not_metered(engine: Engine) -> None:
    assert [colours(engine, 4, 2) for _ in range(5)] == [(0, 0)] * 5
    assert colours(engine, 200, 7) == (0xEE, UNMETERED), "no such class, no such flow"
