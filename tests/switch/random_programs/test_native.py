# SPDX-License-Identifier: Apache-2.0
"""Random programs: machine code against the interpreter, one frame at a time and in batches, with all state.

TEST_SCALE (make test SCALE=...) multiplies the number of programs.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hopsum_switch.engine import Engine

from ..coverage import Coverage
from ..native.agreement import Pair
from .cases import Summary, random_case
from .recordings import load, recordings

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


MAX_BYTES = 300_000


@pytest.mark.parametrize("path", recordings(), ids=lambda path: path.name.partition(".")[0])
def test_both_engines_send_what_bmv2_sent(path: Path) -> None:
    case, recorded = load(path)
    pipeline = case.pipeline()
    pair = Pair(pipeline.program)
    case.write_to(pipeline, pair.reference, pair.native)
    for (port, frame), expected in zip(case.frames, recorded, strict=True):
        outputs = sorted((output.port, output.frame) for output in pair.process(port, frame))
        assert outputs == expected, f"port {port}, frame {frame.hex()}"
    pair.same_state()
    assert any(recorded)


def test_the_recordings_are_there_and_small() -> None:
    outputs = [outs for path in recordings() for outs in load(path)[1]]
    assert len(recordings()) >= 8
    assert sum(map(bool, outputs)) > len(outputs) / 2
    assert sum(path.stat().st_size for path in recordings()) < MAX_BYTES
