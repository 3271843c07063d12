# SPDX-License-Identifier: Apache-2.0
"""Programs that end before their work is done: the other ranks hear it at once, and a rank that comes again is let in.

The lease is a minute, and so is the deadline of a sum: what is over sooner was told, and not waited for.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopsum.communicator import Communicator
from hopsum.errors import GenerationEndedError
from hopsum_controlplane.cluster import ClusterController, JobRequest

from ...support.restartable_controller import SLOTS, RestartableController, await_condition, close_all
from ...support.restartable_controller import controller as controller

pytestmark = pytest.mark.system
ROOT = Path(__file__).parents[3]


@pytest.fixture
def desk(controller: RestartableController) -> Iterator[tuple[ClusterController, str]]:
    with controller.running() as cluster:
        yield cluster, cluster.create_job(JobRequest("train", 2, SLOTS)).token


def _reason(cluster: ClusterController, text: str) -> None:
    try:
        await_condition(lambda: cluster.job("train").reason == text)
    except AssertionError:
        raise AssertionError(f"the job says {cluster.job('train').reason!r}, not {text!r}") from None


def test_who_closes_while_it_sums(controller: RestartableController, desk: tuple[ClusterController, str]) -> None:
    cluster, token = desk
    jobs = controller.connect_all("train", token)
    pending = jobs[1].submit(np.ones(2, np.float32))
    jobs[1].close()
    _reason(cluster, "rank 1 left unfinished: it was closed with 1 all-reduces under way")
    assert pending.exception() is not None
    jobs[0].close()


def test_an_agent_that_fails_says_so_though_nobody_closes_it(
    controller: RestartableController, desk: tuple[ClusterController, str]
) -> None:
    cluster, token = desk
    jobs = controller.connect_all("train", token)
    failed: Any = jobs[1]
    failed.end(GenerationEndedError("its switch does not answer"))
    _reason(cluster, "rank 1 left unfinished: GenerationEndedError: its switch does not answer")
    close_all(jobs)


def test_an_exit_without_an_error_is_no_failure(
    controller: RestartableController, desk: tuple[ClusterController, str]
) -> None:
    cluster, token = desk
    jobs = controller.connect_all("train", token)

    def leave(job: Communicator) -> None:
        with pytest.raises(SystemExit), job:
            raise SystemExit

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(leave, jobs))
    _reason(cluster, "all its workers have left")


def test_an_exception_that_nobody_handles(
    controller: RestartableController, desk: tuple[ClusterController, str]
) -> None:
    cluster, token = desk
    url = f"hopsum://{controller.address}/train"
    command = [sys.executable, "-m", "tests.host.rpc.raising_worker", url, token, "1"]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as child:
        job = controller.connect("train", token, 0)
        assert job.allreduce(np.float32([0, 2])).mean.tolist() == [0.5, 2]
        job.submit(np.float32([0, 2]))
        _, said = child.communicate(timeout=60)
    assert "RuntimeError: a bad batch" in said
    _reason(cluster, "rank 1 left unfinished: RuntimeError: a bad batch")
    job.close()
