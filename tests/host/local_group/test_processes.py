# SPDX-License-Identifier: Apache-2.0
"""`local_group` with real processes: two groups of two ranks on this machine stand for two hosts."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from hopsum_topologies.free_port import free_port
from hopsum_topologies.star import Star

from ...support.printed import parse_printed
from ...support.targets import require_namespaces
from ..torch.embedded import EXAMPLES, embedded_jobs

pytestmark = pytest.mark.system
HERE = Path(__file__).parent
RANKS, WAIT_S = 4, 600.0


def run_hosts(
    script: Path,
    *arguments: str,
    local_groups: tuple[str, str],
    prefixes: tuple[list[str], list[str]] = ([], []),
    master: str = "127.0.0.1",
    interface: str = "lo",
) -> list[str]:
    """Run a script with two torchruns of two ranks each, one for each host; return what each printed."""
    port = free_port(socket.SOCK_STREAM)
    with ExitStack() as kept:
        running = []
        for host, (group, prefix) in enumerate(zip(local_groups, prefixes, strict=True)):
            where = ["--nnodes=2", "--nproc-per-node=2", f"--node-rank={host}", f"--master-addr={master}"]
            command = [sys.executable, "-m", "torch.distributed.run", *where, f"--master-port={port}", str(script)]
            settings = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": interface, "HOPSUM_LOCAL_GROUP": group}
            process = subprocess.Popen(
                [*prefix, *command, *arguments],
                env={**os.environ, **settings}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
            running.append(process)
            kept.callback(end, process)
        printed = [process.communicate(timeout=WAIT_S) for process in running]
    for process, (_, errors) in zip(running, printed, strict=True):
        assert process.returncode == 0, "\n".join(each[1][-3000:] for each in printed) + errors[-3000:]
    return [out for out, _ in printed]


def end(process: subprocess.Popen[str]) -> None:
    """End a torchrun, which ends its ranks, if it is still there."""
    with process:
        process.terminate()


def train(
    folder: Path, workers: int, *, local_groups: tuple[str, str], lose_switch: bool = False
) -> list[dict[str, Any]]:
    """Train four ranks over a job of so many workers; return what each rank told."""
    folder.mkdir()
    with embedded_jobs(folder, workers) as switch:
        rest = ("fall_back", str(switch)) if lose_switch else ()
        url = f"file://{folder}/job0.json"
        run_hosts(HERE / "training_worker.py", url, str(folder), *rest, local_groups=local_groups)
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(RANKS)]


def test_training_through_two_workers_for_four_ranks(tmp_path: Path) -> None:
    shared = train(tmp_path / "shared", 2, local_groups=("a", "b"))
    alone = train(tmp_path / "alone", RANKS, local_groups=("", ""))
    for ranks in (shared, alone):
        assert [rank["seat"] for rank in ranks] == [[rank, RANKS] for rank in range(RANKS)]
        assert len({rank["digest"] for rank in ranks}) == 1
        for rank in ranks:
            assert rank["out"] < 2e-6
            assert rank["largest"] > 0.001, "there is no residual: the test proves nothing"
    assert [bool(rank["residual"]) for rank in shared] == [True, False, True, False], "error feedback is the leaders'"
    assert [rank["stats"]["local_ranks"] for rank in shared] == [2] * RANKS
    assert [rank["stats"]["bytes_up"] > 0 for rank in shared] == [True, False, True, False]
    assert [rank["stats"]["elements"] for rank in shared] == [alone[0]["stats"]["elements"]] * RANKS
    # Datagrams that were sent for the first time: half of them. A busy machine adds some that ask the switch.
    with_groups, without = (sum(rank["traffic"] for rank in ranks) for ranks in (shared, alone))
    assert without > 1.6 * with_groups


def test_a_switch_that_is_lost_for_good(tmp_path: Path) -> None:
    ranks = train(tmp_path / "lost", 2, local_groups=("a", "b"), lose_switch=True)
    assert len({rank["digest"] for rank in ranks}) == 1
    for rank in ranks:
        assert rank["stats"]["compresses"] == 0
        assert rank["out"] < 2e-6


def test_the_example(tmp_path: Path) -> None:
    with embedded_jobs(tmp_path, 2):
        arguments = ("--membership", str(tmp_path / "job0.json"), "--steps", "60")
        printed, _ = run_hosts(EXAMPLES / "ddp_digits.py", *arguments, local_groups=("a", "b"))
    ranks = parse_printed(printed)
    assert len({rank["parameters_sha256"] for rank in ranks}) == 1
    assert ranks[0]["accuracy"] > 0.7
    assert [rank["packets_up"] > 0 for rank in ranks] == [True, False, True, False]


def test_hosts_with_two_ranks_each_and_no_switch(tmp_path: Path) -> None:
    require_namespaces()
    with Star(2) as star:
        prefixes = tuple(["ip", "netns", "exec", host.name] for host in star.hosts)
        arguments = ("hosts://", str(tmp_path))
        run_hosts(
            HERE / "training_worker.py", *arguments, local_groups=("auto", "auto"),
            prefixes=(prefixes[0], prefixes[1]), master=star.host_ip(0), interface="eth0",
        )  # fmt: skip
    ranks = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(RANKS)]
    assert len({rank["digest"] for rank in ranks}) == 1
    assert [rank["stats"]["bytes_up"] > 0 for rank in ranks] == [True, False, True, False]
    assert all(rank["out"] < 2e-6 for rank in ranks)


@contextmanager
def four_ranks(killed: int) -> Iterator[list[subprocess.Popen[str]]]:
    """Start four ranks by themselves: nobody ends the others when one has died."""
    variables = {
        **os.environ, "WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1",
        "MASTER_PORT": str(free_port(socket.SOCK_STREAM)),
    }  # fmt: skip
    with ExitStack() as kept:
        ranks = []
        for rank in range(RANKS):
            process = subprocess.Popen(
                [sys.executable, str(HERE / "failing_worker.py"), str(killed)],
                env={**variables, "RANK": str(rank), "HOPSUM_LOCAL_GROUP": f"host{rank // 2}"},
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
            ranks.append(process)
            kept.callback(end, process)
        yield ranks


@pytest.mark.parametrize("killed", [2, 3], ids=["leader", "member"])
def test_a_rank_that_is_killed_ends_all_ranks_soon(killed: int) -> None:
    told = {}
    with four_ranks(killed) as ranks:
        for rank in (1, 2, 3, 0):
            if rank != killed:
                out, errors = ranks[rank].communicate(timeout=WAIT_S)
                assert ranks[rank].returncode == 0, errors
                told[rank] = json.loads(out.splitlines()[-1])
        assert ranks[killed].wait(WAIT_S) == -9
    its_host = told[5 - killed]
    assert its_host["kind"] == "RankLeftError"
    if killed == 2:
        assert "rank 2, which takes part in the job for this host, has ended" in its_host["text"]
    else:
        assert "rank 2 waits for the vector of rank 3 of its host, which has left" in its_host["text"]
    for rank in (0, 1):
        assert told[rank]["text"] == told[0]["text"]
        assert "worker 1 is the host of ranks 2, 3" in told[rank]["text"] or "rank 1" in told[rank]["text"]
    assert {each["after"] for each in told.values()} == {"GenerationEndedError"}
