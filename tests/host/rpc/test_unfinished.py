# SPDX-License-Identifier: Apache-2.0
"""Programs that end before their work is done, and connections that die in silence: places are kept."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopsum.agent import Communicator
from hopsum.errors import GenerationEndedError
from hopsum.rpc.channel import (
    MISSED_MAX,
    START_AGAIN,
    Channel,
    ControllerAddress,
    ControllerError,
    ControllerUnreachableError,
    Replies,
)
from hopsum.rpc.lease import Lease
from hopsum.rpc.member_client import MemberClient
from hopsum_controlplane import JobSpec
from hopsum_controlplane.cluster import ClusterController
from hopsum_controlplane.errors import UnauthenticatedError
from hopsum_wire.membership import MembershipError

from ...support.processes import await_that
from ...support.restartable_controller import SLOTS, RestartableController, close_all
from ...support.restartable_controller import controller as controller
from ...system.drills.silent_proxy import SilentProxy
from .desk import NAME, TOKEN, attend, desk_service, join

pytestmark = pytest.mark.system
ROOT = Path(__file__).parents[3]


@pytest.fixture
def desk(controller: RestartableController) -> Iterator[tuple[ClusterController, str]]:
    with controller.running() as cluster:
        yield cluster, cluster.create_job(JobSpec("train", ranks=2, slots=SLOTS)).token


def _reason(cluster: ClusterController, text: str) -> None:
    try:
        await_that(lambda: cluster.job("train").reason == text)
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


@contextmanager
def job_and_holder(
    controller: RestartableController, cluster: ClusterController, lease_s: float, hold_s: int
) -> Iterator[tuple[Communicator, subprocess.Popen[bytes]]]:
    """Yield rank 0 of a job of two, and the process of rank 1, which has summed once and runs no Python for a while."""
    token = cluster.create_job(JobSpec("held", ranks=2, slots=SLOTS, lease_s=lease_s)).token
    url = f"hopsum://{controller.address}/held"
    command = [sys.executable, "-m", "tests.host.rpc.holding_worker", url, token, "1", str(hold_s)]
    with subprocess.Popen(command, cwd=ROOT) as child:
        try:
            with controller.connect("held", token, 0, deadline_s=120, replacement_wait_s=0.0) as job:
                assert job.allreduce(np.float32([0, 2])).mean.tolist() == [0.5, 2]
                yield job, child
        finally:
            child.kill()


def test_who_holds_the_interpreter_lock_for_longer_than_its_lease_keeps_its_place(
    controller: RestartableController, desk: tuple[ClusterController, str]
) -> None:
    """Its heartbeats stay away, and gRPC's pings come every 5 s."""
    with job_and_holder(controller, desk[0], lease_s=12.0, hold_s=24) as (job, child):
        assert job.allreduce(np.float32([0, 4])).mean.tolist() == [0.5, 4]
        job.close()
        assert child.wait(60) == 0


def test_who_is_stopped_for_longer_than_its_lease_loses_its_place(
    controller: RestartableController, desk: tuple[ClusterController, str]
) -> None:
    """Its connection stays as it was, and nothing comes over it."""
    with job_and_holder(controller, desk[0], lease_s=3.0, hold_s=600) as (job, child):
        child.send_signal(signal.SIGSTOP)
        with pytest.raises(MembershipError, match=r"lease of rank 1 ran out: nothing .* for 3 s .*HOPSUM_LEASE_S"):
            job.allreduce(np.float32([0, 4]))


WAIT_S = 30.0
SHORT_S = 0.5


@contextmanager
def attending() -> Iterator[tuple[SilentProxy, Channel, MemberClient, Replies]]:
    """Yield a way to a desk whose connections can die, a member beyond it, and the stream that the member attends."""
    with (
        desk_service() as (_, service),
        closing(SilentProxy("127.0.0.1", service.address)) as way,
        Channel(ControllerAddress.of(way.address)) as channel,
    ):
        member = join(channel)
        replies = attend(channel, member)
        next(replies)
        yield way, channel, member, replies


def test_after_two_missed_answers_there_is_another_connection() -> None:
    with attending() as (way, _, member, replies):
        way.kill_connections()
        for _ in range(MISSED_MAX):
            with pytest.raises(ControllerUnreachableError):
                member.heartbeat(0, {}, SHORT_S)
        assert member.heartbeat(0, {}, WAIT_S).reason == ""
        assert way.accepted == 2
        with pytest.raises(ControllerUnreachableError):  # who waited on the dead one hears that it has ended
            next(replies)


def assert_true(value: bool) -> None:
    assert value


def test_a_controller_that_ended_with_its_rank_is_no_wait() -> None:
    """hosts://: rank 0's process has the controller, and nobody starts it again."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = replace(ControllerAddress.of(f"127.0.0.1:{silent.getsockname()[1]}"), host_rank=0)
        with Channel(address) as channel, pytest.raises(ControllerUnreachableError):
            MemberClient(channel, NAME, TOKEN).locate(SHORT_S)
    with Channel(address) as channel, pytest.raises(ControllerError, match=r"^rank 0 has ended: nothing") as caught:
        MemberClient(channel, NAME, TOKEN).locate(WAIT_S)
    assert not isinstance(caught.value, ControllerUnreachableError)
    with desk_service() as (desk, service):

        def evict(_: str) -> None:
            raise UnauthenticatedError("rank 1 was evicted", hint="close, and connect again")

        desk.before = evict
        for host_rank, hint in ((None, "close, and connect again"), (0, START_AGAIN)):
            address = replace(ControllerAddress.of(service.address), host_rank=host_rank)
            with Channel(address) as channel, pytest.raises(ControllerError, match=f"rank 1 was evicted; {hint}$"):
                MemberClient(channel, NAME, TOKEN).locate(WAIT_S)


def test_an_answer_between_two_that_are_missed_keeps_the_connection() -> None:
    with desk_service() as (desk, service), Channel(ControllerAddress.of(service.address)) as channel:
        member = join(channel)
        before, proceed = channel._channel, threading.Event()
        desk.before = lambda _: assert_true(proceed.wait(WAIT_S))
        for _ in range(2 * MISSED_MAX):
            proceed.clear()
            with pytest.raises(ControllerUnreachableError):
                member.heartbeat(0, {}, SHORT_S)
            proceed.set()
            member.heartbeat(0, {}, WAIT_S)
        assert channel._channel is before
        assert desk.left == []


def test_a_controller_that_is_slow_keeps_the_stream_until_another_one_is_heard() -> None:
    with desk_service(workers=1) as (desk, service), Channel(ControllerAddress.of(service.address)) as channel:
        member = join(channel)
        proceed, before = threading.Event(), channel._channel
        lease = Lease(member)
        try:
            await_that(lambda: channel._streams)
            (first,) = channel._streams
            desk.before = lambda name: assert_true(name != "heartbeat" or proceed.wait(WAIT_S))
            await_that(lambda: channel._channel is not before)
            assert first.is_given_up
            assert list(channel._streams) == [first]
            proceed.set()
            await_that(lambda: channel._streams and first not in channel._streams)
            (second,) = channel._streams
            assert not second.is_given_up
            assert desk.gone == []
        finally:
            proceed.set()
            lease.stop()
        assert desk.gone == []
        assert desk.left == [0]


def test_a_dead_connection_is_noticed_without_a_call() -> None:
    """By keepalive: the worker's stream ends, on which nothing was to come."""
    with attending() as (way, _, _, replies):
        way.kill_connections()
        with pytest.raises(ControllerUnreachableError):
            next(replies)
