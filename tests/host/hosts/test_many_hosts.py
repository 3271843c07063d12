# SPDX-License-Identifier: Apache-2.0
"""`hosts://` with sixteen hosts, each a loopback address with a switch of its own, on however few processors."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

RANKS: Final = 16
RANK: Final = str(Path(__file__).with_name("loopback_rank.py"))
# No bound on the start: as long as the machine needs. A rank that hangs ends the test.
DEADLINE_S: Final = 1500.0


@pytest.mark.system
def test_sixteen_hosts_start_and_sum(tmp_path: Path) -> None:
    meets = tmp_path / "store"
    meets.mkdir()
    with ExitStack() as stack:
        ranks = []
        for rank in range(RANKS):
            log = stack.enter_context((tmp_path / f"{rank}.log").open("w"))
            ranks.append(
                subprocess.Popen(
                    [sys.executable, RANK, str(meets), str(rank), str(RANKS)],
                    env={**os.environ, "OMP_NUM_THREADS": "1"},
                    stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                )
            )  # fmt: skip
            stack.callback(ranks[-1].wait)
            stack.callback(ranks[-1].kill)
        for number, rank in enumerate(ranks):
            assert rank.wait(DEADLINE_S) == 0, (tmp_path / f"{number}.log").read_text()[-3000:]
    for number in range(RANKS):
        lines = (tmp_path / f"{number}.log").read_text().splitlines()
        assert [line for line in lines if line.endswith(f" {RANKS}")] == ["7.500 7.500 16", "8.500 8.500 16"], lines
