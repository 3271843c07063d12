# SPDX-License-Identifier: Apache-2.0
"""`hosts://` under torchrun or without: hosts are network namespaces, and nobody has a capability inside."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from hopsum_topologies.star import Star

from ...support.targets import require_namespaces

pytestmark = pytest.mark.system
SCRIPT = Path(__file__).with_name("training_script.py")
WAIT_S = 240.0


@contextmanager
def on_host(
    star: Star, host: int, folder: Path, command: list[str], environment: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command on a host of two, without capabilities."""
    plain = [shutil.which("setpriv") or "setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0", **environment}
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


def torchrun(star: Star, host: int, folder: Path, *arguments: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """Run the script under torchrun on a host of two."""
    where = ["--nnodes=2", "--nproc-per-node=1", f"--node-rank={host}", f"--master-addr={star.host_ip(0)}"]
    command = ["-m", "torch.distributed.run", *where, "--master-port=29511", str(SCRIPT), str(folder), *arguments]
    return on_host(star, host, folder, command, {})


def rank_alone(
    star: Star, rank: int, folder: Path, environment: Mapping[str, str]
) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """Run the script on the host of a rank with what torchrun would tell it: half as many processes import torch."""
    where = {"MASTER_ADDR": star.host_ip(0), "MASTER_PORT": "29511", "WORLD_SIZE": "2", "RANK": str(rank)}
    local = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": str(rank)}
    return on_host(star, rank, folder, [str(SCRIPT), str(folder)], {**where, **local, **environment})


def told(folder: Path, processes: list[subprocess.Popen[bytes]] | None = None) -> list[dict[str, Any]]:
    """Return what both ranks wrote."""
    until = time.monotonic() + WAIT_S
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
            assert process.wait(WAIT_S) == 0, (tmp_path / "log0").read_text() + (tmp_path / "log1").read_text()
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
        until = time.monotonic() + 60
        while any(alive(pid) for pid in children):
            assert time.monotonic() < until, children
            time.sleep(0.05)


def alive(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"HOPSUM_IP": "127.0.0.1"}, "127.0.0.1 does not answer datagrams"),
        ({"HOPSUM_IP": "10.0.0.77"}, "rank 1: ip '10.0.0.77' is not this host's"),
        ({"HOPSUM_CODEC": "uhc"}, "rank 0 has codec thc.*rank 1 has codec uhc"),
    ],
)
def test_a_wrong_choice_is_one_error_on_all_ranks(
    star: Star, tmp_path: Path, environment: dict[str, str], words: str
) -> None:
    with ExitStack() as stack:
        running = [
            stack.enter_context(rank_alone(star, rank, tmp_path, environment if rank else {})) for rank in range(2)
        ]
        first, second = told(tmp_path, running)
        assert first["error"] == second["error"]
        with pytest.raises(RuntimeError, match=words):
            raise RuntimeError(first["error"])
