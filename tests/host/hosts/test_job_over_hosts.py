# SPDX-License-Identifier: Apache-2.0
"""`hosts://`: a script under torchrun on two hosts sums over switches on both, and leaves no process."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from hopsum_topologies.star import Star

from ...support.processes import await_that, is_alive
from ...support.targets import require_namespaces

pytestmark = pytest.mark.system
SCRIPT = Path(__file__).with_name("training_script.py")
HOSTS_WAIT_S = 240.0


@contextmanager
def torchrun(star: Star, host: int, folder: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run the script under torchrun on a host of two, without capabilities."""
    plain = [shutil.which("setpriv") or "setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]
    where = ["--nnodes=2", "--nproc-per-node=1", f"--node-rank={host}", f"--master-addr={star.host_ip(0)}"]
    command = ["-m", "torch.distributed.run", *where, "--master-port=29511", str(SCRIPT), str(folder), *arguments]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0"}
    with (folder / f"log{host}").open("wb") as log:
        process = subprocess.Popen(
            ["ip", "netns", "exec", star.hosts[host].name, *plain, sys.executable, *command],
            env=variables, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    try:
        yield process
    finally:
        process.terminate()  # torchrun ends its ranks
        process.wait(60)


def told(folder: Path, processes: list[subprocess.Popen[bytes]] | None = None) -> list[dict[str, Any]]:
    """Return what both ranks wrote."""
    until = time.monotonic() + HOSTS_WAIT_S
    files = [folder / f"rank{rank}.json" for rank in range(2)]
    while not all(file.exists() and file.stat().st_size for file in files):
        logs = "\n".join((folder / f"log{host}").read_text(errors="replace")[-3000:] for host in range(2))
        assert time.monotonic() < until, logs
        assert processes is None or all(each.poll() in (None, 0) for each in processes), logs
        time.sleep(0.05)
    return [json.loads(file.read_text()) for file in files]


@pytest.fixture
def star() -> Iterator[Star]:
    require_namespaces()
    with Star(2) as star:
        yield star


def test_one_line_in_a_script_sums_over_the_hosts(star: Star, tmp_path: Path) -> None:
    with ExitStack() as stack:
        running = [stack.enter_context(torchrun(star, host, tmp_path)) for host in range(2)]
        first, second = told(tmp_path, running)
        for process in running:
            assert process.wait(HOSTS_WAIT_S) == 0, (tmp_path / "log0").read_text() + (tmp_path / "log1").read_text()
    assert first["digest"] == second["digest"]
    assert first["losses"][-1] < first["losses"][0]
    assert [place.split(":")[0] for place in first["shards"]] == ["10.0.0.1", "10.0.0.2"]
    assert first["shards"] == second["shards"]
    assert (len(first["children"]), len(second["children"])) == (2, 1)
    for pid in (*first["children"], *second["children"]):
        assert not Path(f"/proc/{pid}").exists()


def test_children_end_with_a_rank_that_is_killed(star: Star, tmp_path: Path) -> None:
    with ExitStack() as stack:
        running = [stack.enter_context(torchrun(star, host, tmp_path, "stay")) for host in range(2)]
        found = told(tmp_path, running)
        for each in found:
            os.kill(each["pid"], signal.SIGKILL)
        children = [pid for each in found for pid in each["children"]]
        await_that(lambda: not any(map(is_alive, children)), "end of the ranks' children")
