# SPDX-License-Identifier: Apache-2.0
"""Blocks of docs/operating.md outside its one session, and docs/tutorial-two-jobs.md as its reader types it."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from hopsum_cli.job.job_command import main
from hopsum_topologies.process import ManagedProcess

from ...support.pages import blocks
from ...support.reader import PATIENCE_S, Reader, await_end, end
from ..cluster.world import Cluster

pytestmark = pytest.mark.system


@pytest.fixture
def switches() -> int:
    return 4


def test_shards_are_made_and_moved(cluster: Cluster, at: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    (create,) = blocks("operating", "Shards: several switches side by side", "text")
    (move,) = blocks("operating", "Moving a job to another switch", "text")
    named, counted, of_shards, of_one = (shlex.split(line, comments=True)[2:] for line in (create + move).splitlines())
    assert main([*named, *at]) == 0
    assert cluster.controller.job("train").switches == ["s1", "s2"]
    assert main([*of_shards, *at]) == 0
    assert cluster.controller.job("train").switches == ["s1", "s4"]
    assert main(["delete", "train", *at]) == 0
    assert main([*counted, *at]) == 0
    assert len(cluster.controller.job("train").switches) == 2
    assert main(["delete", "train", *at]) == 0
    assert main(["create", "train", "--workers", "2", "--switch", "s2", *at]) == 0
    assert main([*of_one, *at]) == 0
    assert cluster.controller.job("train").switches != ("s2",)


PAGE = (Path(__file__).resolve().parents[3] / "docs" / "tutorial-two-jobs.md").read_text()
PORTS = {"9559": socket.SOCK_STREAM, "47500": socket.SOCK_DGRAM, "4700": socket.SOCK_STREAM, "4701": socket.SOCK_STREAM}


def steps(worker: ManagedProcess) -> int:
    """Return how many averages a worker has printed."""
    averages = re.findall(r"^\w+: rank \d, step \d+, average (\S+)$", worker.log_text(), re.MULTILINE)
    assert set(averages) <= {"1.5"}
    return len(averages)


def more_than(worker: ManagedProcess, count: int) -> Callable[[], bool]:
    return lambda: steps(worker) > count


def test_two_jobs_share_a_switch_and_one_outlives_the_other(tmp_path: Path, stack: ExitStack) -> None:
    switch, controller, create, workers, look, after, delete = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    (config,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    reader = Reader(tmp_path, stack, PORTS)
    (tmp_path / "cluster.toml").write_text(reader.here(config))
    (tmp_path / "worker.py").write_text(reader.here(program))

    serving = reader.open_terminal(switch)
    serving.wait_for(lambda: "ready " in serving.log_text(), "the switch", PATIENCE_S)
    token, command = controller.splitlines()
    reader.type(token)
    controlling = reader.open_terminal(command)
    controlling.wait_for(lambda: "ready " in controlling.log_text(), "the controller", PATIENCE_S)
    created = reader.type(create)
    assert "job 'red' on leaf1: slots 0 to 31, forming\n" in created
    assert "job 'blue' on leaf1: slots 32 to 63, forming\n" in created

    terminals = {line.split("worker.py ")[1]: reader.open_terminal(line) for line in workers.splitlines()}
    assert list(terminals) == ["red 0", "red 1", "blue 0", "blue 1"]
    for worker in terminals.values():
        worker.wait_for(more_than(worker, 2), "averages", PATIENCE_S)
    running = reader.type(look)
    assert re.search(r"^blue +leaf1 +running +2/2", running, re.MULTILINE)
    assert re.search(r"^red +leaf1 +running +2/2", running, re.MULTILINE)
    assert re.search(r"^leaf1 +native +up +2 +64/2048", running, re.MULTILINE)

    red, blue = ([terminals[f"{job} {rank}"] for rank in range(2)] for job in ("red", "blue"))
    for worker in red:
        os.kill(worker.pid, signal.SIGINT)
    for worker in red:
        await_end(worker)
    for worker in blue:
        worker.wait_for(more_than(worker, steps(worker) + 2), "more averages", PATIENCE_S)
    assert reader.type(after).splitlines()[0] == "job 'red' is gone"
    assert re.fullmatch(r"job 'blue' is gone: ended for ranks 0, 1, generation \d+\n", reader.type(delete))
    for worker in blue:
        await_end(worker)
        assert "was deleted" in worker.log_text(), worker.log_text()
    assert end(controlling) == 0, controlling.log_text()
    assert end(serving) == 0, serving.log_text()
