# SPDX-License-Identifier: Apache-2.0
"""Mutated frames through bmv2, where it is installed: its outputs and counts are those of the oracle.

TEST_SCALE (make test SCALE=...) multiplies the number of frames.
"""

from __future__ import annotations

import os

import pytest

from hopsum_wire import Drop

from ...switch.programs import bmv2
from .reference import compare, reference

FRAMES = 1500 * int(os.environ.get("TEST_SCALE", "1"))

pytestmark = pytest.mark.skipif(bmv2.unavailable() is not None, reason=str(bmv2.unavailable()))


def test_bmv2_does_what_the_oracle_says() -> None:
    with reference() as subject:
        met, drops = compare(subject, 5, FRAMES)
    print(met, drops)
    assert met["frames"] > 0.9 * FRAMES
    assert met["outputs"] > 0.2 * FRAMES
    assert set(drops) == set(Drop) - {Drop.NONE, Drop.SIMULATED}
