# SPDX-License-Identifier: Apache-2.0
"""The loss simulator of the compiled program: per port and direction, off without entries, and nothing but loss."""

from __future__ import annotations

import random

import pytest

from hopsum_switch.engine import Engine
from hopsum_switch.native.native_engine import NativeEngine
from hopsum_wire import Drop

from .bed import AnyEngine, Bed
from .traffic import Traffic

HALF = 1 << 31

backends = pytest.mark.parametrize("backend", [Engine, NativeEngine])


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
