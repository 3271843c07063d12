# SPDX-License-Identifier: Apache-2.0
"""A switch that is killed for good in the middle of a step: no gradient is lost or counted twice."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")


from .embedded import embedded_jobs, torchrun

pytestmark = pytest.mark.system


WORKER = Path(__file__).with_name("ledger_worker.py")
LOST_IN_STEP = 4


@pytest.mark.parametrize("low_rank", ["", "1"], ids=["whole", "low rank"])
def test_all_ranks_continue_over_the_process_group_from_the_same_step(tmp_path: Path, low_rank: str) -> None:
    """With low rank the residuals of matrices are as before the step, and the process group averages them too."""
    setting = {"HOPSUM_LOW_RANK": low_rank} if low_rank else {}
    with embedded_jobs(tmp_path, 2) as switch:
        ranks, log = torchrun(WORKER, f"file://{tmp_path}/job0.json", str(switch), ranks=2, environment=setting)
    first, second = ranks
    assert first["digest"] == second["digest"]
    assert first["ways"] == second["ways"] == [1.0] * LOST_IN_STEP + [0.0] * 3
    for rank in ranks:
        assert rank["largest"] == 0, "the process group has delivered what was left"
        assert rank["out"] < 2e-6
    assert log.count("torch's process group averages gradients from here on") == 2
