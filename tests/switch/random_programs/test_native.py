# SPDX-License-Identifier: Apache-2.0
"""Random programs: machine code against the interpreter, one frame at a time and in batches, with all state.

TEST_SCALE (make test SCALE=...) multiplies the number of programs.
"""

from __future__ import annotations

import os

import pytest

from hopsum_switch.engine import Engine
from hopsum_switch.observe.coverage import Coverage

from ..native.agreement import Pair
from .cases import random_case
from .summary import Summary

pytestmark = pytest.mark.system
PROGRAMS = 12 * int(os.environ.get("TEST_SCALE", "1"))
FRAMES = 300

# Some parts of a random program cannot be met: a branch that nothing leads to, a table that matches everything.
LEAST = {
    "state": 0.9,
    "transition": 0.8,
    "hit or miss": 0.65,
    "table action": 0.65,
    "call": 0.65,
    "condition": 0.7,
    "drop": 0.3,
    "counter": 0.15,
}


def compare(seed: int, summary: Summary) -> None:
    """Run a case through both engines and add what it met."""
    case = random_case(seed, FRAMES)
    pipeline = case.pipeline()
    pair, coverage = Pair(pipeline.program), Coverage(pipeline.program)
    watched = Engine(pipeline.program, observer=coverage)
    case.write_to(pipeline, pair.reference, pair.native, watched)
    for number, (port, frame) in enumerate(case.frames):
        outputs = pair.process(port, frame, now_us=number)
        assert watched.process(port, frame, now_us=number) == outputs
        summary.sent += len(outputs)
    pair.same_state()
    pair.process_batch(case.frames, now_us=77)
    pair.same_state()
    summary.add(coverage)
    summary.frames += len(case.frames)
    summary.mutations += case.mutations


def test_native_code_agrees_and_frames_meet_the_programs(capsys: pytest.CaptureFixture[str]) -> None:
    summary = Summary()
    for seed in range(PROGRAMS):
        try:
            compare(seed, summary)
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
    with capsys.disabled():
        print(f"\n{summary.report()}")
    assert summary.mutations >= 0.9 * summary.frames
    assert summary.sent > 0.5 * summary.frames
    for kind, share in LEAST.items():
        assert summary.share(kind) >= share, f"{kind}: less than {share:.0%}\n{summary.report()}"


def test_a_seed_always_gives_the_same() -> None:
    first, again, other = random_case(5, 20), random_case(5, 20), random_case(6, 20)
    assert first == again
    assert first != other
