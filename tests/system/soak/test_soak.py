# SPDX-License-Identifier: Apache-2.0
"""A short soak: 5 % loss each way over UDP sockets against the switch process, every result compared on every worker.

TEST_SCALE (make test SCALE=...) multiplies its length.
"""

from __future__ import annotations

import os

import pytest

from .rig import bench, close, make_soak

UPDATES = 10_000 * int(os.environ.get("TEST_SCALE", "1"))
LOSS = 0.05


@pytest.mark.parametrize("compiled", ["1", "0"])
def test_every_worker_ends_with_the_same_sums(compiled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker's whole transport and the switch's UDP ports, both with and both without their compiled loops."""
    monkeypatch.setenv("HOPSUM_COMPILED", compiled)
    with bench(LOSS, seed=7) as stage:
        soak = make_soak(stage, seed=7)
        soak.run(UPDATES)
        figures = close(soak, LOSS)
    print("\n".join(figures.lines()))
    assert figures.sent >= UPDATES
    assert figures.again > 0
    assert figures.lost_in > 0
    assert figures.lost_out > 0
