# SPDX-License-Identifier: Apache-2.0
"""`hopsum doctor` with a real switch: its output and its exit status."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from hopsum.transport.offload import UDP_GRO, set_option
from hopsum_cli.doctor import main as doctor
from hopsum_topologies import LocalCluster, LocalJob

from ..support.printed import usage_error

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def testbed() -> Iterator[LocalCluster]:
    with LocalCluster(2, extra=("--backend", "interpreter")) as testbed:
        yield testbed


@pytest.fixture
def sockets(testbed: LocalCluster) -> Iterator[list[socket.socket]]:
    """One for each worker, bound and connected."""
    with ExitStack() as stack:
        opened = [stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) for _ in range(2)]
        for each in opened:
            each.bind(("127.0.0.1", 0))
            each.connect(testbed.seats[0].switch)
        yield opened


def make_job(testbed: LocalCluster, sockets: list[socket.socket], path: Path) -> LocalJob:
    job = testbed.create_job("digits", [[each.getsockname()] for each in sockets], {}, slots=16)
    job.write(path)
    return job


@pytest.fixture(autouse=True)
def _no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "HOPSUM_RANK"):
        monkeypatch.delenv(name, raising=False)


def test_a_healthy_job_then_one_that_has_ended(
    testbed: LocalCluster, sockets: list[socket.socket], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "job.json"
    job = make_job(testbed, sockets, path)
    sockets[0].close()
    assert doctor([str(path), "--rank", "0", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["good"] is True
    assert {check["status"] for check in report["checks"]} == {"pass"}
    controller = testbed.switch.controller
    events, drops = job.counters(), controller.drop_counters()
    assert events["probed"] == sum(events.values()) > 0
    job.close()
    assert doctor([str(path), "--rank", "0", "--timeout", "0.2"]) == 1
    told = capsys.readouterr().out
    assert "switch failed, 3 not made" in told
    assert f"(1) generation {job.generation} has ended" in " ".join(told.split())
    changed = {name: count - drops[name] for name, count in controller.drop_counters().items() if count != drops[name]}
    assert set(changed) == {"unknown_generation"}


@pytest.mark.skipif(os.geteuid() != 0, reason="a raw socket needs root")
def test_root_asks_next_to_a_worker_that_takes_datagrams_by_the_run(
    testbed: LocalCluster, sockets: list[socket.socket], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "job.json"
    job = make_job(testbed, sockets, path)
    set_option(sockets[0], UDP_GRO, 1)
    assert doctor([str(path), "--rank", "0", "--json"]) == 0
    checks = {check["check"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    assert checks["port"]["pid"] == os.getpid()
    assert "by a raw socket while the worker runs" in checks["switch"]["finding"]
    assert (checks["slots"]["idle"], checks["slots"]["unknown"]) == (16, 0)
    job.close()


def test_arguments_that_do_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--timeout: '0': a number above 0" in usage_error(capsys, doctor, "job.json", "--timeout", "0")


def test_a_table_for_people_names_the_fix(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor(["nowhere.json"]) == 1
    told = capsys.readouterr().out
    assert "FAIL  membership" in told
    assert "->" in told
    assert "membership failed, 11 not made" in told
