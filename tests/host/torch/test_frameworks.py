# SPDX-License-Identifier: Apache-2.0
"""The recipes for frameworks, through an embedded switch; each is skipped where its framework is not installed."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from .embedded import embedded_jobs, torchrun

pytestmark = pytest.mark.system
WORKER = Path(__file__).with_name("frameworks_worker.py")
STEPS = 6
NEEDS = {"transformers": ["accelerate"]}
"""The modules that a framework's trainer imports beside it."""


@pytest.mark.parametrize("framework", ["accelerate", "lightning", "transformers"])
def test_every_step_goes_through_the_switch(tmp_path: Path, framework: str) -> None:
    if missing := [each for each in {framework, *NEEDS.get(framework, ())} if find_spec(each) is None]:
        pytest.skip(f"{', '.join(missing)} is not installed")
    with embedded_jobs(tmp_path, 2):
        (first, second), _ = torchrun(WORKER, framework, str(tmp_path / "job0.json"), ranks=2)
    assert first["digest"] == second["digest"]
    for rank in (first, second):
        assert rank["steps"] == STEPS
        assert rank["sums"] >= STEPS
