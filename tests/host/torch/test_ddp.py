# SPDX-License-Identifier: Apache-2.0
"""Two DDP processes, gloo on loopback, gradients through the hook and the oracle behind a UDP socket."""

from __future__ import annotations

from pathlib import Path

import pytest

from .job import run_ranks

pytestmark = pytest.mark.system
pytest.importorskip("torch", reason="torch is not installed")

WORKER = Path(__file__).with_name("ddp_worker.py")
PARAMETERS = {f"{layer}.{what}" for layer in (0, 2, 4) for what in ("weight", "bias")}


def test_training_over_a_rebuild(tmp_path: Path) -> None:
    first, second = run_ranks(WORKER, tmp_path)
    assert first["digest"] == second["digest"]
    assert first["residual_digest"] != second["residual_digest"]
    for rank in (first, second):
        assert sum(rank["losses"][-5:]) / 5 < 0.7 * rank["losses"][0]
        assert rank["residuals"].keys() == PARAMETERS
        assert all(norm > 0 for norm in rank["residuals"].values())
        assert rank["statistics"]["ratio_up"] > 1
    assert first["layouts"] == second["layouts"]
    before, after = first["layouts"][0], first["layouts"][1]
    assert (len(before), len(after)) == (1, 2), "DDP did not rebuild its buckets: the test proves nothing"
    assert all(layout == after for layout in first["layouts"][1:])
    ranges, codes = "network MAX32", "network LOOKUP_ADD8"
    expected = [[0, ranges], [0, codes]]
    for bucket in range(1, 49, 2):  # a bucket's ranges before the codes of the one before, whatever the timing
        expected += [[bucket, ranges], [bucket + 1, ranges], [bucket, codes], [bucket + 1, codes]]
    assert first["network"] == second["network"] == expected
