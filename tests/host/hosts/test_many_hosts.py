# SPDX-License-Identifier: Apache-2.0
"""`hosts://` with sixteen hosts, each a loopback address with a switch of its own, on however few processors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from ...support.processes import await_that, run_hopsum

RANKS: Final = 16
RANK: Final = str(Path(__file__).with_name("loopback_rank.py"))
# No bound on the start: as long as the machine needs. A rank that hangs ends the test.
DEADLINE_S: Final = 1500.0


def start(stack: ExitStack, folder: Path, ranks: int) -> list[subprocess.Popen[bytes]]:
    """Start the ranks. The stack kills them and waits for them."""
    (folder / "store").mkdir()
    started = []
    for rank in range(ranks):
        log = stack.enter_context((folder / f"{rank}.log").open("w"))
        started.append(
            subprocess.Popen(
                [sys.executable, RANK, str(folder / "store"), str(rank), str(ranks)],
                env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(folder)},
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            )
        )  # fmt: skip
        stack.callback(started[-1].wait)
        stack.callback(started[-1].kill)
    return started


def printed(folder: Path, rank: int) -> str:
    return (folder / f"{rank}.log").read_text()


@pytest.mark.system
def test_sixteen_hosts_start_and_sum(tmp_path: Path) -> None:
    with ExitStack() as stack:
        for number, rank in enumerate(start(stack, tmp_path, RANKS)):
            assert rank.wait(DEADLINE_S) == 0, printed(tmp_path, number)[-3000:]
    told = [printed(tmp_path, rank) for rank in range(RANKS)]
    for lines in map(str.splitlines, told):
        assert [line for line in lines if line.endswith(f" {RANKS}")] == ["7.500 7.500 16", "8.500 8.500 16"], lines
    done = "hosts://: rank 0 summed 80,000 elements in 2 all-reduces: "
    assert [done in each for each in told] == [True] + [False] * (RANKS - 1)


@pytest.mark.system
def test_a_job_that_runs_is_shown_on_the_host_of_rank_0(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path), "HOPSUM_CONTROLLER": "hosts://"}
    with ExitStack() as stack:
        ranks = start(stack, tmp_path, 2)
        stay = tmp_path / "store" / "stay"
        stay.touch()
        await_that(lambda: "1.500" in printed(tmp_path, 0) or ranks[0].poll() is not None, "the last sum")
        shown = run_hopsum("job", "show", "hosts", "--json", env=environment)
        assert shown.returncode == 0, shown.stderr
        job = json.loads(shown.stdout)
        assert (job["name"], job["workers"], job["state"]) == ("hosts", 2, "running")
        top = run_hopsum("top", "--once", "--interval", "0.1", "--json", env=environment)
        assert [each["name"] for each in json.loads(top.stdout)["jobs"]] == ["hosts"], top.stderr
        stay.unlink()
        assert [rank.wait(DEADLINE_S) for rank in ranks] == [0, 0], printed(tmp_path, 0)[-3000:]
    over = run_hopsum("job", "list", env=environment)
    assert (over.returncode, "no job of this user by hosts://" in over.stderr) == (1, True)
