# SPDX-License-Identifier: Apache-2.0
"""Ranks with other settings or options: refused on both, with both values."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.system
pytest.importorskip("torch")

WORKER = Path(__file__).with_name("agreement_worker.py")
WAIT_S = 600.0


def test_what_differs_is_refused_on_both_ranks(tmp_path: Path) -> None:
    """Seed, `start_iter` and `uncompressed`; `error_feedback` may differ."""
    command = [sys.executable, str(WORKER)]
    pipes = {"stdout": subprocess.PIPE, "text": True}
    ranks = [subprocess.Popen([*command, str(rank), str(tmp_path / "store")], **pipes) for rank in range(2)]
    try:
        told = [json.loads(rank.communicate(timeout=WAIT_S)[0].splitlines()[-1]) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert told[0] == told[1]
    assert re.search(r"rank 0 has .*seed 0.*; rank 1 has .*seed 1.*: all ranks need the same", told[0]["seed"])
    assert re.search(r"rank 0 has .*start_iter=0.*; rank 1 has .*start_iter=3", told[0]["start_iter"])
    assert re.search(r"rank 0 has .*uncompressed=\(\).*; rank 1 has .*\('bias',\)", told[0]["uncompressed"])
