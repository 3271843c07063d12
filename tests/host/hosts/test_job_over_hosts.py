# SPDX-License-Identifier: Apache-2.0
"""`hosts://`: a script under torchrun on two hosts sums over switches on both, and leaves no process."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from hopsum_topologies.star import Star

from ...support.processes import await_that, is_alive
from ...support.targets import require_namespaces
from .host_process import JOB, HostProcess

pytestmark = pytest.mark.system


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[list[HostProcess]]:
    """Two hosts that run the script under torchrun."""
    require_namespaces()
    with Star(2) as star, ExitStack() as stack:
        words = ["-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", "--master-port=29511"]
        words.append(f"--master-addr={star.host_ip(0)}")
        script = [JOB, str(tmp_path), "raise"]
        yield [
            HostProcess(stack, star, host, tmp_path / f"{host}.log", *words, f"--node-rank={host}", *script)
            for host in range(2)
        ]


def jobs(hosts: list[HostProcess]) -> list[dict[str, Any]]:
    """Return what both ranks print of their job when they have begun it."""
    for host in hosts:
        await_that(lambda host=host: host.lines("step") or host.has_ended, f"step of {host.log}")
        assert host.lines("step"), host.tail
    return [json.loads(host.lines("job")[0].text) for host in hosts]


def test_one_line_in_a_script_sums_over_the_hosts(hosts: list[HostProcess], tmp_path: Path) -> None:
    (tmp_path / "goal").write_text("5")
    first, second = jobs(hosts)
    for host in hosts:
        assert host.process.wait(300) == 0, host.tail
    digests = [[line.text for line in host.lines("step")] for host in hosts]
    assert digests[0] == digests[1]
    assert len(set(digests[0])) == 5
    assert [place.split(":")[0] for place in first["shards"]] == ["10.0.0.1", "10.0.0.2"]
    assert first["shards"] == second["shards"]
    assert (len(first["children"]), len(second["children"])) == (2, 1)
    assert not any(Path(f"/proc/{pid}").exists() for pid in (*first["children"], *second["children"]))


def test_children_end_with_a_rank_that_is_killed(hosts: list[HostProcess]) -> None:
    found = jobs(hosts)
    for each in found:
        os.kill(each["pid"], signal.SIGKILL)
    children = [pid for each in found for pid in each["children"]]
    await_that(lambda: not any(map(is_alive, children)), "end of the ranks' children")
