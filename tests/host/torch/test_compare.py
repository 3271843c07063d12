# SPDX-License-Identifier: Apache-2.0
"""An example says whether hopsum helps it: HOPSUM_COMPARE and log_every, through an embedded switch."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from .embedded import EXAMPLES, embedded_jobs, torchrun

pytestmark = pytest.mark.system


def test_the_verdict_and_a_line_now_and_then(tmp_path: Path) -> None:
    with embedded_jobs(tmp_path, 2):
        arguments = ("--membership", str(tmp_path / "job0.json"), "--steps", "24", "--log-every", "8")
        ranks, log = torchrun(EXAMPLES / "ddp_digits.py", *arguments, ranks=2, environment={"HOPSUM_COMPARE": "4"})
    assert ranks[0]["parameters_sha256"] == ranks[1]["parameters_sha256"]
    (verdict,) = [line for line in log.splitlines() if "median of 4 steps each way" in line]
    assert verdict.endswith("From here on gradients go through hopsum")
    lines = [line for line in log.splitlines() if "waiting for the network" in line]
    assert [line.split(":")[1] for line in lines] == [" step 8", " step 16", " step 24"], "rank 0 alone"
    for rank in ranks:
        assert rank["compresses"] == 1
        assert 0 < rank["wait_s"] < rank["step_s"]
        assert rank["ring_fp32_s"] == 2 * rank["ring_bf16_s"]
        assert 0.1 < rank["bytes_by_ring_fp32"] < 1, "two ranks: 4 and 8 bits beside 32, headers and ranges"
