# SPDX-License-Identifier: Apache-2.0
"""Examples under torchrun: gloo and a switch end with the same parameters."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from ...support.printed import parse_printed
from .job import serve_job

pytestmark = pytest.mark.system

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "collective.py"
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", "2"]


def run(url: str) -> list[dict[str, Any]]:
    command = [sys.executable, *TORCHRUN, str(EXAMPLE), "--steps", "60", "--url", url]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    figures: list[dict[str, Any]] = parse_printed(done.stdout)
    return figures


def test_gloo_and_a_switch_make_the_same_parameters(tmp_path: Path) -> None:
    path = tmp_path / "membership.json"
    with serve_job(path, 2) as switch:
        through_switch = run(path.as_uri())
        assert not switch.aggregator.drops
    through_gloo = run("collective://gloo")
    digests = {rank["parameters_sha256"] for rank in (*through_switch, *through_gloo)}
    assert len(digests) == 1, "the bytes depend on what sums"
    for first in (through_gloo[0], through_switch[0]):
        assert first["allreduces"] == 60 * 4
        assert first["loss_last"] < 0.6 * first["loss_first"]
