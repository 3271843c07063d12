# SPDX-License-Identifier: Apache-2.0
"""A short soak: 5 % loss each way over UDP sockets against the switch process, every result compared on every worker.

TEST_SCALE (make test SCALE=...) multiplies its length.
"""

from __future__ import annotations

import os

import numpy as np
import pytest

from hopsum.protocol.worker import AllReduceDone
from hopsum_wire import Op

from .rig import SLOTS, WORKERS, bench, close, make_soak, patterns

UPDATES = 10_000 * int(os.environ.get("TEST_SCALE", "1"))
LOSS = 0.05


@pytest.mark.parametrize("compiled", ["wait", "0"])
def test_every_worker_ends_with_the_same_sums(compiled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker's whole transport and the switch's UDP ports, both with and both without their compiled loops."""
    monkeypatch.setenv("HOPSUM_COMPILED", compiled)
    with bench(LOSS, seed=7) as stage:
        soak = make_soak(stage, seed=7)
        soak.run(UPDATES)
        figures = close(soak, LOSS)
    print(figures)
    assert figures["sent"] >= UPDATES
    assert min(figures[name] for name in ("again", "lost_in", "lost_out")) > 0


def test_a_wrong_result_is_seen() -> None:
    """Of one lane, of the contributors, on one worker only, or of another round."""
    with bench(0.0, seed=1) as stage:
        soak = make_soak(stage, seed=1)
        chunks = np.full(256, (1 << WORKERS) - 1, np.uint64)
        right = soak.tasks[Op.LOOKUP_ADD8].expected[patterns(0)].astype(np.uint8)
        wrong = right.copy()
        wrong[7, 5] ^= 1
        fewer = chunks.copy()
        fewer[3] = 1
        cases = {
            "ranks 0 and 3": [(right, chunks)] * 3 + [(wrong, chunks)],
            "ranks 0 and 1": [(right, chunks), *[(right, fewer)] * 3],
            "not in it": [(right, fewer)] * 4,
            "are no sums": [(np.roll(right, -2 * SLOTS, axis=0), chunks)] * 4,
        }
        for complaint, given in cases.items():
            for member, (results, contributors) in zip(stage.members, given, strict=True):
                member.done[0] = AllReduceDone(1, results, contributors)
            with pytest.raises(AssertionError, match=complaint):
                soak.settle()
