# SPDX-License-Identifier: Apache-2.0
"""The code of README and of docs/getting-started.md runs, and README stays short."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hopsum
from hopsum_controlplane.artifacts import compiled_program
from hopsum_switch.management import ManagementClient
from hopsum_topologies.free_port import free_port
from hopsum_topologies.native_process import NativeSwitch

pytestmark = pytest.mark.system
ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
GETTING_STARTED = (ROOT / "docs" / "getting-started.md").read_text()
WORKERS = 4


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


def test_two_ranks_of_torchrun_sum_through_the_switch_that_they_start(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    (code,) = [block for block in blocks(README, "python") if "hosts://" in block]
    script = tmp_path / "sum.py"
    script.write_text(code)
    # torchrun runs ranks unbuffered: in one pipe, the words of their lines mix. So each rank has a file.
    apart = ["--redirects", "1", "--log-dir", str(tmp_path / "logs")]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *apart]
    done = subprocess.run([*command, str(script)], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    printed = {path.parent.name: path.read_text() for path in (tmp_path / "logs").rglob("stdout.log")}
    assert sorted(printed) == ["0", "1"]
    lines = [line for rank in "01" for line in printed[rank].splitlines() if re.match(rf"{rank} \[", line)]
    assert [line[0] for line in lines] == ["0", "1"]
    assert lines[0][1:] == lines[1][1:]


def test_the_first_lines_of_the_readme_run_as_they_stand(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = [block for block in blocks(README, "python") if "memory://" in block]
    exec(compile(code, "README.md", "exec"), {})
    lines = sorted(capsys.readouterr().out.splitlines())
    assert [line.split()[0] for line in lines] == ["0", "1"]
    means = [[float(word) for word in re.findall(r"\d\.\d+|\d\.", line.partition(" ")[2])] for line in lines]
    assert means[0] == means[1]
    assert means[0] == pytest.approx([1.5] * 3, rel=0.2)


@pytest.mark.parametrize("backend", ["interpreter", "native"])
def test_the_job_made_by_hand_sums(backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = [block for block in blocks(GETTING_STARTED, "python") if "create_job" in block]
    (command,) = [block for block in blocks(GETTING_STARTED, "sh") if "hopsum switch" in block]
    udp = re.search(r"--udp 1=127\.0\.0\.1:24677,(as=\S+)", command)
    assert udp is not None
    monkeypatch.chdir(tmp_path)
    with ExitStack() as stack:
        ports = {1: f"127.0.0.1:0,{udp[1]}"}
        switch = stack.enter_context(NativeSwitch(*compiled_program(), udp=ports, extra=("--backend", backend)))
        with ManagementClient(switch.address) as management:
            bound = int(management.list_ports()[1]["address"].rpartition(":")[2])
        code = code.replace("127.0.0.1:9559", switch.address).replace('("127.0.0.1", 24677)', f'("127.0.0.1", {bound})')
        code = code.replace("6000 + rank", "ports[rank]")
        names: dict[str, Any] = {"ports": [free_port(socket.SOCK_DGRAM) for _ in range(WORKERS)]}
        exec(compile(code, "getting-started.md", "exec"), names)  # closes its device at the end; the job stays

        def work(rank: int) -> np.ndarray:
            with hopsum.connect(f"file://{tmp_path}/job.json", rank=rank) as comm:
                result = comm.allreduce(np.full(3000, rank + 1, np.float32))
            assert set(result.contributors.tolist()) == {0b1111}
            return result.mean

        with ThreadPoolExecutor(WORKERS) as pool:
            means = list(pool.map(work, range(WORKERS)))
    assert all(np.array_equal(mean, means[0]) for mean in means)
    assert np.mean(means[0]) == pytest.approx(2.5, rel=0.05)
