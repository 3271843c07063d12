# SPDX-License-Identifier: Apache-2.0
"""Programs that end before their work is done: the other ranks hear it at once, and a rank that comes again is let in.

The lease is a minute, and so is the deadline of a sum: what is over sooner was told, and not waited for.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopsum.communicator import Communicator
from hopsum.errors import GenerationEndedError, WorkersReplacedError
from hopsum.rpc.job_agent import JobAgent
from hopsum_controlplane.cluster import ClusterController, JobRequest
from hopsum_controlplane.cluster.cluster_controller import GRACE_S
from hopsum_wire.control import control_pb2 as pb

from .test_cluster import LEASE_S, SLOTS, Controller, _close, _sum, _until
from .test_cluster import controller as controller

pytestmark = pytest.mark.system
ROOT = Path(__file__).parents[3]
SERVES_PEERS_S = 10.0
"""Seconds for which `close` serves peers that are not done."""


@pytest.fixture
def desk(controller: Controller) -> Iterator[tuple[ClusterController, str]]:
    with controller.running() as cluster:
        yield cluster, cluster.create_job(JobRequest("train", 2, SLOTS)).token


def _reason(cluster: ClusterController, text: str) -> None:
    try:
        _until(lambda: cluster.job("train").reason == text)
    except AssertionError:
        raise AssertionError(f"the job says {cluster.job('train').reason!r}, not {text!r}") from None


def test_who_raises_is_replaced(controller: Controller, desk: tuple[ClusterController, str]) -> None:
    cluster, token = desk
    jobs = controller.connect_all("train", token)
    assert _sum(jobs) == [[0.5, 2]] * 2
    waiting = jobs[0].submit(np.ones(2, np.float32))
    raised_at = time.monotonic()
    with pytest.raises(RuntimeError, match="CUDA"), jobs[1]:
        raise RuntimeError("CUDA out of memory")
    assert time.monotonic() - raised_at < SERVES_PEERS_S / 2
    _reason(cluster, "rank 1 left unfinished: RuntimeError: CUDA out of memory")
    with ThreadPoolExecutor(1) as pool:
        newcomer = pool.submit(controller.connect, "train", token, 1)
        with pytest.raises(WorkersReplacedError):
            waiting.result(60)
        jobs[0].resume(lambda: b"state")
        jobs[1] = newcomer.result(60)
    assert jobs[1].fetch_state() == b"state"
    assert _sum(jobs) == [[0.5, 2]] * 2
    _close(jobs)
    _reason(cluster, "all its workers have left")


def test_who_closes_while_it_sums(controller: Controller, desk: tuple[ClusterController, str]) -> None:
    cluster, token = desk
    jobs = controller.connect_all("train", token)
    pending = jobs[1].submit(np.ones(2, np.float32))
    jobs[1].close()
    _reason(cluster, "rank 1 left unfinished: it was closed with 1 all-reduces under way")
    assert pending.exception() is not None
    jobs[0].close()


def test_an_agent_that_fails_says_so_though_nobody_closes_it(
    controller: Controller, desk: tuple[ClusterController, str]
) -> None:
    cluster, token = desk
    jobs = controller.connect_all("train", token)
    failed: Any = jobs[1]
    failed.end(GenerationEndedError("its switch does not answer"))
    _reason(cluster, "rank 1 left unfinished: GenerationEndedError: its switch does not answer")
    _close(jobs)


@pytest.mark.parametrize("end", [SystemExit(), SystemExit(0)])
def test_an_exit_without_an_error_is_no_failure(
    controller: Controller, desk: tuple[ClusterController, str], end: SystemExit
) -> None:
    cluster, token = desk
    jobs = controller.connect_all("train", token)

    def leave(job: Communicator) -> None:
        with pytest.raises(SystemExit), job:
            raise end

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(leave, jobs))
    _reason(cluster, "all its workers have left")


def test_an_exception_that_nobody_handles(controller: Controller, desk: tuple[ClusterController, str]) -> None:
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


def test_who_is_killed_is_given_up_long_before_its_lease(
    controller: Controller, desk: tuple[ClusterController, str], caplog: pytest.LogCaptureFixture
) -> None:
    """But by its lease where the controller's machine stood still: connections that end then prove nothing."""
    cluster, token = desk
    url = f"hopsum://{controller.address}/train"
    command = [sys.executable, "-m", "tests.host.rpc.elastic_worker", url, token, "1", "100"]
    ended = f"the connection of rank 1 ended, and nothing was heard of it for {GRACE_S:g} s"
    with (
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as child,
        closing(controller.connect("train", token, 0)),
    ):
        _until(lambda: cluster.job("train").members[1].statistics.get("datagrams_sent", 0) > 0)
        child.kill()
        _until(lambda: cluster.job("train").reason.startswith((ended, "the lease of rank 1 ran out")), 3 * LEASE_S)
        assert cluster.job("train").reason == ended or "the controller stood still" in caplog.text


def test_a_fork_that_exits_closes_nothing(controller: Controller, desk: tuple[ClusterController, str]) -> None:
    cluster, token = desk
    jobs = controller.connect_all("train", token)
    job = jobs[0]
    assert isinstance(job, JobAgent)
    child = os.fork()
    if child == 0:
        job._close_at_exit()  # as its atexit would
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert _sum(jobs) == [[0.5, 2]] * 2
    assert [member.phase for member in cluster.job("train").members] == [pb.MEMBER_PHASE_IN] * 2
    _close(jobs)
