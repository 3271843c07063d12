# SPDX-License-Identifier: Apache-2.0
"""Arbitrary bytes as frames to every compiled program: a frame, or nothing."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from hopsum_switch.engine import Engine

pytestmark = pytest.mark.system


@pytest.mark.parametrize("name", ["router", "firewall", "segments", "mirror", "rounds", "police", "learner"])
def test_random_bytes_are_frames_too(engine_of: Callable[[str], Engine], name: str) -> None:
    engine, rng = engine_of(name), random.Random(name)
    starts = [
        b"",
        b"\xff" * 12 + b"\x08\x00",
        b"\xff" * 12 + b"\x08\x00\x45",
        bytes(12) + b"\x08\x00\x45" + bytes(5) + b"\0\0\x40\x06",
    ]
    for _ in range(500):
        frame = rng.choice(starts) + rng.randbytes(rng.choice([0, 1, 7, 8, 20, 40, 1500]))
        for output in engine.process(rng.randrange(512), frame, rng.randrange(2**50)):
            assert len(output.frame) <= len(frame) + 12
