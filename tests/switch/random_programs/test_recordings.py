# SPDX-License-Identifier: Apache-2.0
"""Random programs as bmv2 ran them: both engines send what it sent."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..native.agreement import Pair
from .recordings import load, recordings

pytestmark = pytest.mark.system
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
