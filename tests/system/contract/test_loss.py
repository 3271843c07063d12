# SPDX-License-Identifier: Apache-2.0
"""The loss simulator of the compiled program: per port and direction, off without entries, and nothing but loss."""

from __future__ import annotations

import math
import random

import pytest

from hopsum_switch.engine import Engine
from hopsum_switch.native.native_engine import NativeEngine
from hopsum_wire import Drop

from .bed import BROADCAST, AnyEngine, Bed
from .traffic import Traffic

ALWAYS = (1 << 32) - 1
HALF = 1 << 31
PLAIN = BROADCAST.to_bytes(6, "big") + bytes(6) + b"\x88\xb5" + bytes(46)
"""Flooded to ports 1, 2, 10, 11, less its own."""

backends = pytest.mark.parametrize("backend", [Engine, NativeEngine])


def bound(draws: int, probability_of_alarm: float = 1e-9) -> float:
    """Return the distance from its mean that a count of `draws` draws may have, by Hoeffding."""
    return math.sqrt(draws * math.log(2 / probability_of_alarm) / 2)


@backends
def test_a_port_that_loses_all_that_comes_in(backend: type[AnyEngine]) -> None:
    bed = Bed.make(random.Random(1), backend)
    bed.lose("ingress_loss", 1, ALWAYS)
    for _ in range(20):
        assert bed.process(1, PLAIN) == []
        assert len(bed.process(2, PLAIN)) == 3
    assert bed.lost("ingress_loss") == {1: 20}
    assert bed.counters()["drops"] == {Drop.SIMULATED: 20}
    assert bed.lost("egress_loss") == {}


@backends
def test_a_port_that_loses_all_that_goes_out(backend: type[AnyEngine]) -> None:
    bed = Bed.make(random.Random(1), backend)
    bed.lose("egress_loss", 10, ALWAYS)
    for _ in range(20):
        assert [port for port, _ in bed.process(1, PLAIN)] == [2, 11]
    assert len(bed.process(10, PLAIN)) == 3, "its own flood is not lost, but not sent"
    assert bed.lost("egress_loss") == {10: 20}
    assert bed.lost("ingress_loss") == {}
    assert bed.counters()["drops"] == {}, "drops counts what was lost on the way in only"


@backends
def test_half_of_the_frames(backend: type[AnyEngine]) -> None:
    bed = Bed.make(random.Random(1), backend, seed=20240601)
    bed.lose("ingress_loss", 1, HALF)
    bed.lose("egress_loss", 2, HALF)
    draws = 2000
    arrived = sum(len(bed.process(1, PLAIN)) > 0 for _ in range(draws))
    lost = bed.lost("ingress_loss")[1]
    assert lost + arrived == draws
    assert abs(lost - draws / 2) <= bound(draws)
    assert abs(bed.lost("egress_loss")[2] - arrived / 2) <= bound(arrived)


@backends
def test_what_is_not_lost_is_treated_as_ever(backend: type[AnyEngine]) -> None:
    """The oracle is told of what came in; of what it sends, the lost copies are missing and nothing else."""
    rng = random.Random(7)
    bed = Bed.make(rng, backend, seed=7)
    for port in (*range(1, 4), *range(10, 18)):
        bed.lose("ingress_loss", port, HALF // 2)
        bed.lose("egress_loss", port, HALF // 2)
    lost_out = 0
    for port, frame in Traffic(rng, bed.jobs).frames(1200):
        lost_in = sum(bed.lost("ingress_loss").values())
        got = bed.process(port, frame)
        if sum(bed.lost("ingress_loss").values()) > lost_in:
            assert got == []
            continue
        expected = bed.oracle.receive_frame(port, frame)
        rest = iter(expected)
        assert all(output in rest for output in got), "a part of what the oracle sends, in its order"
        lost_out += len(expected) - len(got)
    lost_in = sum(bed.lost("ingress_loss").values())
    assert lost_out == sum(bed.lost("egress_loss").values()) > 100
    assert lost_in > 100
    drops = bed.counters()["drops"]
    assert drops.pop(Drop.SIMULATED) == lost_in
    assert (drops, bed.counters()["job_events"]) == tuple(bed.oracle_counters().values())
    assert bed.registers() == bed.oracle_registers()
