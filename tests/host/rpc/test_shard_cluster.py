# SPDX-License-Identifier: Apache-2.0
"""A job over two embedded switches side by side, made with the command and joined by URL."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopsum.agent import Communicator
from hopsum.codec import ErrorFeedback
from hopsum_cli.doctor import main as doctor
from hopsum_cli.job.job_command import main as job_command
from hopsum_cli.top.top_command import main as top
from hopsum_topologies import LocalCluster
from hopsum_wire.control import control_pb2 as pb
from hopsum_wire.membership import format_membership

from ...support.processes import await_that
from ...support.restartable_controller import RestartableController, close_all, controller_of

pytestmark = pytest.mark.system
SLOTS, ELEMENTS, WAIT_S = 16, 20_000, 60


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[RestartableController]:
    with LocalCluster(2, switches=2) as cluster:
        yield controller_of(cluster, tmp_path, reconcile_interval_s=0.2)


def create(
    controller: RestartableController, capsys: pytest.CaptureFixture[str], *arguments: str, codec: str = "fixed"
) -> dict[str, Any]:
    given = ("create", "train", "--controller", controller.address, "--json", "--workers", "2", "--slots", str(SLOTS))
    assert job_command([*given, "--codec", codec, *arguments]) == 0
    made: dict[str, Any] = json.loads(capsys.readouterr().out)
    return made


def vectors(step: int) -> list[np.ndarray[Any, np.dtype[np.float32]]]:
    return [np.random.default_rng((step, rank)).standard_normal(ELEMENTS, dtype=np.float32) for rank in range(2)]


def sum_all(jobs: list[Communicator], step: int, feedback: list[ErrorFeedback]) -> None:
    # Before the call, which changes the residuals in place.
    before = [own.residual.astype(np.float64) for own in feedback]
    futures = [job.submit(x, feedback=own) for job, x, own in zip(jobs, vectors(step), feedback, strict=True)]
    results = [future.result(WAIT_S) for future in futures]
    assert results[0].mean.tobytes() == results[1].mean.tobytes()
    balance = sum(vectors(step)) + sum(before) - 2 * results[0].mean - sum(own.residual for own in feedback)
    assert np.abs(balance).max() < 1e-4


def test_the_doctor_names_what_a_controller_refuses(
    controller: RestartableController, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    token_file = tmp_path / "token"
    token_file.touch(mode=0o600)

    def told(job: str, path: Path = token_file) -> tuple[list[str], str]:
        """Return the first four checks' statuses, and the finding of the one that failed."""
        url = f"hopsum://{controller.address}/{job}?token_file={path}"
        assert doctor([url, "--json", "--stuck-after", "0"]) == 1
        checks = json.loads(capsys.readouterr().out)["checks"]
        assert [each["check"] for each in checks[:4]] == ["url", "controller", "job", "token"]
        (failed,) = [each["finding"] for each in checks if each["status"] == "fail"]
        return [each["status"] for each in checks[:4]], failed

    with controller.running():
        token = create(controller, capsys)["token"]
        token_file.write_text("nobody's")
        assert told("train")[0] == ["pass"] * 3 + ["fail"]
        token_file.write_text(token)
        assert told("trian")[0] == ["pass", "pass", "fail", "skip"]
        statuses, finding = told("train", Path("/nowhere"))
        assert statuses == ["fail"] + ["skip"] * 3
        assert "cannot be read" in finding
    assert told("train")[0] == ["pass", "fail", "skip", "skip"]


def test_a_job_over_two_switches(
    controller: RestartableController, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with controller.running() as cluster, ExitStack() as stack:
        operator = controller.operator(stack)
        made = create(controller, capsys, "--shards", "s2,s1")
        assert [part["switch"] for part in made["parts"]] == ["s2", "s1"]
        jobs = controller.connect_all("train", made["token"], codec=None)
        feedback = [ErrorFeedback(ELEMENTS), ErrorFeedback(ELEMENTS)]
        for step in range(3):
            sum_all(jobs, step, feedback)
        found = operator.job("train")
        added = [part.counters["added"] for part in found.parts]
        assert found.shards == 2
        assert min(added) > 200, added
        assert sum(added) == found.counters["added"]
        assert [each.slots_used for each in operator.switches()] == [SLOTS, SLOTS]
        here = ("--controller", controller.address, "--json")
        job_command(["show", "train", *here[:2]])
        shown = capsys.readouterr().out
        assert "shard 0" in shown
        assert "s1, slots 0-15" in shown
        top([*here, "--once", "--interval", "0.2"])
        assert json.loads(capsys.readouterr().out)["jobs"][0]["shards"] == 2
        token = tmp_path / "token"
        token.touch(mode=0o600)
        token.write_text(made["token"])
        doctor([f"hopsum://{controller.address}/train?token_file={token}", "--json", "--stuck-after", "0"])
        checks = {each["check"]: each for each in json.loads(capsys.readouterr().out)["checks"]}
        assert checks["route, shard 1"]["status"] == "pass"
        assert {each["status"] for each in checks.values()} <= {"pass", "skip"}, checks
        membership = tmp_path / "job.json"
        membership.write_text(format_membership(jobs[0].membership))
        doctor([str(membership), "--rank", "0", "--json"])
        checks = {each["check"]: each for each in json.loads(capsys.readouterr().out)["checks"]}
        assert {"switch", "switch, shard 1", "slots, shard 1"} <= set(checks)
        assert {each["status"] for each in checks.values()} <= {"pass", "skip"}, checks
        close_all(jobs)
        await_that(lambda: [job.state for job in cluster.jobs()] == [pb.JOB_STATE_FORMING])
        operator.delete("train")
        assert [each.slots_used for each in operator.switches()] == [0, 0]
