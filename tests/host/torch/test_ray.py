# SPDX-License-Identifier: Apache-2.0
"""Ray Train on a local cluster of two nodes: one job; ranks that Ray starts again are admitted again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("ray", reason="ray is not installed")

from hopsum.codec import job_tables, make_codec

from ...support.restartable_controller import SLOTS, RestartableController, controller
from .embedded import EXAMPLES

pytestmark = pytest.mark.system
__all__ = ["controller"]
STEPS, RANKS_S = 40, 900.0


def test_a_rank_that_ray_starts_again_is_admitted_again(controller: RestartableController, tmp_path: Path) -> None:
    folder, token_file = tmp_path / "ray", tmp_path / "job.token"
    folder.mkdir()
    tables = dict(job_tables(make_codec("thc", workers=2, backend="numpy")))
    with controller.running() as cluster, ExitStack() as stack:
        made = controller.operator(stack).create("ray", 2, SLOTS, **tables)
        token_file.write_text(made.token)
        url = f"hopsum://{controller.address}/ray?token_file={token_file}"
        command = [
            sys.executable, str(EXAMPLES / "ray_digits.py"), "--url", url, "--ip", "127.0.0.1",
            "--steps", str(STEPS), "--folder", str(folder), "--dies-at-step", "5",
        ]  # fmt: skip
        settings = {
            "RAY_USAGE_STATS_ENABLED": "0", "RAY_raylet_start_wait_time_s": "300",  # a busy machine takes its time
            "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=RANKS_S, env={**os.environ, **settings}
        )
        assert done.returncode == 0, done.stderr
        assert cluster is not None
    ranks = json.loads(done.stdout.splitlines()[-1])
    assert len({rank["parameters_sha256"] for rank in ranks}) == 1
    assert len({rank["node"] for rank in ranks}) == 2
    for rank in ranks:
        assert rank["lives"] == 2
        assert rank["steps"] == STEPS
        assert rank["ratio_up"] > 1
        assert rank["loss_last"] < rank["loss_first"]
