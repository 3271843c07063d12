# SPDX-License-Identifier: Apache-2.0
"""`local_group` with real processes: two groups of two ranks on this machine stand for two hosts."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from hopsum_topologies.free_port import free_port

from ...support.printed import parse_printed
from ..torch.embedded import embedded_jobs

pytestmark = pytest.mark.system
WORKER = Path(__file__).parents[1] / "torch" / "ledger_worker.py"
RANKS, WAIT_S = 4, 600.0


def run_hosts(url: str, local_groups: tuple[str, str]) -> Any:
    """Run two torchruns of two ranks each, one for each host; return what rank 0 prints as JSON."""
    port = free_port(socket.SOCK_STREAM)
    with ExitStack() as kept:
        running = []
        for host, group in enumerate(local_groups):
            where = ["--nnodes=2", "--nproc-per-node=2", f"--node-rank={host}", "--master-addr=127.0.0.1"]
            command = [sys.executable, "-m", "torch.distributed.run", *where, f"--master-port={port}", str(WORKER), url]
            settings = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "HOPSUM_LOCAL_GROUP": group}
            process = subprocess.Popen(
                command, env={**os.environ, **settings}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
            running.append(process)
            kept.callback(end, process)
        printed = [process.communicate(timeout=WAIT_S) for process in running]
    for process, (_, errors) in zip(running, printed, strict=True):
        assert process.returncode == 0, "\n".join(each[1][-3000:] for each in printed) + errors[-3000:]
    return parse_printed(printed[0][0])


def end(process: subprocess.Popen[str]) -> None:
    """End a torchrun, which ends its ranks, if it is still there."""
    with process:
        process.terminate()


def test_training_through_two_workers_for_four_ranks(tmp_path: Path) -> None:
    with embedded_jobs(tmp_path, 2):
        shared = run_hosts(f"file://{tmp_path}/job0.json", ("a", "b"))
    assert [rank["seat"] for rank in shared] == [[rank, RANKS] for rank in range(RANKS)]
    assert len({rank["digest"] for rank in shared}) == 1
    for rank in shared:
        assert rank["out"] < 2e-6
        assert rank["largest"] > 0.001, "there is no residual: the test proves nothing"
    assert [bool(rank["residual"]) for rank in shared] == [True, False, True, False], "error feedback is the leaders'"
    assert [rank["stats"]["local_ranks"] for rank in shared] == [2] * RANKS
    assert [rank["stats"]["bytes_up"] > 0 for rank in shared] == [True, False, True, False]


def test_low_rank_keeps_a_residual_on_every_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A member's factors are summed whole within the host, and the leader's residual of Q says what the host's lack."""
    monkeypatch.setenv("HOPSUM_LOW_RANK", "1")
    with embedded_jobs(tmp_path, 2):
        shared = run_hosts(f"file://{tmp_path}/job0.json", ("a", "b"))
    assert len({rank["digest"] for rank in shared}) == 1
    for rank in shared:
        assert rank["out"] < 4e-6
        assert rank["largest"] > 0.001, "there is no residual: the test proves nothing"
        assert rank["residual"], "each rank has that of its own matrices"
        assert rank["stats"]["low_rank"] == 1
