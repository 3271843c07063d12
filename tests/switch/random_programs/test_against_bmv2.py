# SPDX-License-Identifier: Apache-2.0
"""Random programs: bmv2 against the interpreter; what comes out must be the same.

Registers cannot be read from bmv2: programs read them into their packets. TEST_SCALE multiplies the programs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from hopsum_switch.engine import Engine

from ..programs import bmv2
from . import reference
from .cases import random_case
from .recordings import load, recordings

pytestmark = [pytest.mark.system, pytest.mark.skipif(bmv2.unavailable() is not None, reason=str(bmv2.unavailable()))]

FIRST_SEED = 1000
PROGRAMS = 24 * int(os.environ.get("TEST_SCALE", "1"))
FRAMES = 60


@pytest.fixture(scope="module")
def switch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[reference.Reference]:
    with reference.running(tmp_path_factory.mktemp("bmv2")) as running:
        yield running


def test_bmv2_agrees(switch: reference.Reference) -> None:
    sent = 0
    for seed in range(FIRST_SEED, FIRST_SEED + PROGRAMS):
        case = random_case(seed, FRAMES, guarded=True)
        pipeline = case.pipeline()
        engine = Engine(pipeline.program)
        case.write_to(pipeline, engine)
        for (port, frame), expected in zip(case.frames, switch.outputs(case), strict=True):
            got = sorted((output.port, output.frame) for output in engine.process(port, frame))
            assert got == expected, f"seed {seed}, port {port}, frame {frame.hex()}"
            sent += len(got)
    assert sent > PROGRAMS * FRAMES / 2


def test_bmv2_still_does_what_was_recorded(switch: reference.Reference) -> None:
    for path in recordings():
        case, recorded = load(path)
        assert switch.outputs(case) == recorded, path.name
