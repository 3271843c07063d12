# SPDX-License-Identifier: Apache-2.0
"""hopsum:// from generation to generation: workers, side channels and the service, around a desk that ends generations
at will.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest

import hopsum
from hopsum.agent import Agent, AllReduceResult, CommunicatorClosedError
from hopsum.codec import ErrorFeedback
from hopsum.errors import AllReduceTimeoutError, HopsumError, WorkersReplacedError
from hopsum.protocol import state_transfer
from hopsum.protocol.peer_messages import PeerKind, PeerMessage
from hopsum.rpc.job_agent import JobAgent
from hopsum.rpc.lease import Lease
from hopsum.rpc.member_client import MemberClient, Registration
from hopsum_controlplane.service.grpc_service import Service
from hopsum_wire import Header, Op
from hopsum_wire.control import control_pb2 as pb
from hopsum_wire.membership import JobMembership, MembershipError

from .desk import FIRST_GENERATION, NAME, TOKEN, Desk

pytestmark = pytest.mark.system
WAIT_S = 60.0
Served = tuple[Desk, Service]


def connect(service: Service, rank: int, **settings: Any) -> JobAgent:
    given: dict[str, Any] = {"codec": "fixed", "backend": "numpy", "deadline_s": WAIT_S, **settings}
    made = hopsum.connect(f"hopsum://{service.address}/{NAME}", rank=rank, token=TOKEN, **given)
    assert isinstance(made, JobAgent)
    return made


@contextmanager
def crew(service: Service, workers: int = 2, **settings: Any) -> Iterator[list[JobAgent]]:
    with ThreadPoolExecutor(workers) as pool:
        jobs = list(pool.map(lambda rank: connect(service, rank, **settings), range(workers)))
        try:
            yield jobs
        finally:
            list(pool.map(lambda job: job.close(), jobs))  # all at once, each waits for the others


def vector(job: JobAgent) -> np.ndarray:
    return np.float32([job.rank, 2, *range(700)])


def mean(future: Future[AllReduceResult]) -> list[float]:
    return future.result(WAIT_S).mean[:2].tolist()


def check_sum(jobs: list[JobAgent]) -> None:
    futures = [job.submit(vector(job)) for job in jobs]
    assert [mean(future) for future in futures] == [[(len(jobs) - 1) / 2, 2]] * len(jobs)


def vanish(job: JobAgent) -> None:
    """End a worker as a crash would: no LEAVE, no heartbeat."""
    job._ended = True
    job._lease._stopping.set()
    job._lease._member.leave = lambda wait_s=0.0: None  # type: ignore[method-assign]
    job.close()


def test_all_reduces_continue_in_the_next_generation(served: Served) -> None:
    desk, service = served
    with crew(service) as jobs:
        check_sum(jobs)
        for generation in range(FIRST_GENERATION + 1, FIRST_GENERATION + 4):
            waiting = jobs[0].submit(vector(jobs[0]))  # rank 1 comes after the change
            desk.end("the switch was restarted")
            desk.wait(lambda wanted=generation: desk.generation == wanted)  # type: ignore[misc]
            late = jobs[1].submit(vector(jobs[1]))
            assert [mean(waiting), mean(late)] == [[0.5, 2]] * 2
        assert {job.membership.generation for job in jobs} == {FIRST_GENERATION + 3}
        assert [job.statistics.allreduces for job in jobs] == [4, 4]
        assert not any(job.is_newcomer for job in jobs)
        report = desk.joins[-1].report
        assert report is not None
        assert (report.generation, report.allreduces_begun) == (
            FIRST_GENERATION + 2,
            4 - 1 + (desk.joins[-1].rank == 0),
        )
        position = jobs[0]._counts()["position"]
        assert 0 < position <= jobs[0]._transport.shards[0].worker.stream.end
    assert sorted(desk.left) == [0, 1]


def throttle(job: JobAgent, pause_s: float, stack: ExitStack) -> None:
    """Let the pieces of a state leave a worker one after the other, each after a pause, as over a slow link."""
    channel = job._transport.shards[0].states._channel
    send, pieces = channel.send_all, SimpleQueue[tuple[int, PeerMessage] | None]()

    def send_all(messages: Sequence[tuple[int, PeerMessage]]) -> None:
        for message in messages:
            if message[1].kind is PeerKind.STATE_PIECE:
                pieces.put(message)
            else:
                send([message])

    def serve() -> None:
        while (piece := pieces.get()) is not None:
            threading.Event().wait(pause_s)
            send([piece])

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    stack.callback(thread.join)
    stack.callback(pieces.put, None)
    channel.send_all = send_all  # type: ignore[method-assign]


def test_a_state_that_takes_longer_than_any_limit(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bytes come: neither the newcomer's `wait_s` nor the deadline of an all-reduce that waits is the end."""
    monkeypatch.setattr(state_transfer, "DATA_BYTES", 100)
    monkeypatch.setattr(state_transfer, "PIECES", 4)
    desk, service = served
    state, wait_s, deadline_s = bytes(range(100)) * 30, 6.0, 8.0
    with crew(service, deadline_s=deadline_s) as (survivor, lost), ExitStack() as stack:
        check_sum([survivor, lost])
        vanish(lost)
        desk.end("rank 1 was silent", lost=1)
        pool = stack.enter_context(ThreadPoolExecutor(1))
        coming = pool.submit(connect, service, 1, deadline_s=deadline_s)
        with pytest.raises(WorkersReplacedError):
            survivor.allreduce(vector(survivor))
        throttle(survivor, 0.4, stack)
        survivor.resume(lambda: state)
        waiting = survivor.submit(vector(survivor))
        newcomer = coming.result(WAIT_S)
        assert newcomer.fetch_state(wait_s) == state
        assert mean(newcomer.submit(vector(newcomer))) == [0.5, 2] == mean(waiting)
        closing = pool.submit(newcomer.close)
        survivor.close()
        closing.result(WAIT_S)


def test_a_worker_that_is_replaced(served: Served) -> None:
    desk, service = served
    feedback = ErrorFeedback(702)
    with crew(service) as (survivor, lost), ThreadPoolExecutor(1) as pool:
        check_sum([survivor, lost])
        waiting = survivor.submit(vector(survivor), feedback=feedback)
        vanish(lost)
        desk.end("rank 1 was silent", lost=1)
        coming = pool.submit(connect, service, 1)
        with pytest.raises(WorkersReplacedError, match="rank 1 has a new worker") as raised:
            waiting.result(WAIT_S)
        assert raised.value.ranks == (1,)
        np.testing.assert_array_equal(feedback.residual, vector(survivor))
        with pytest.raises(WorkersReplacedError):
            survivor.allreduce(vector(survivor))
        calls: list[int] = []
        survivor.resume(lambda: calls.append(1) or b"step 1" * 1000)  # type: ignore[func-returns-value]
        with coming.result(WAIT_S) as newcomer:
            assert newcomer.is_newcomer
            assert not survivor.is_newcomer
            assert newcomer.fetch_state(WAIT_S) == b"step 1" * 1000
            check_sum([survivor, newcomer])
            survivor.resume(lambda: calls.append(2) or b"")  # type: ignore[func-returns-value]
            assert calls == [1], "nobody is new any more"
            desk.end("the switch was restarted")
            check_sum([survivor, newcomer])
            pool.submit(survivor.close)


@pytest.mark.parametrize("wait_s", [1.0, 0.0])
def test_nobody_takes_the_place(served: Served, wait_s: float, caplog: pytest.LogCaptureFixture) -> None:
    desk, service = served
    words = (
        "no worker has taken the place of rank 1" if wait_s else "^rank 0: rank 1 was silent .*: start all ranks again"
    )
    with crew(service, replacement_wait_s=wait_s) as (survivor, lost):
        waiting, queued = survivor.submit(vector(survivor)), survivor.submit(vector(survivor))
        vanish(lost)
        desk.end("rank 1 was silent", lost=1)
        for future in (waiting, queued):
            with pytest.raises(MembershipError, match=words):
                future.result(WAIT_S)
        with pytest.raises(MembershipError, match=words):
            survivor.submit(vector(survivor))
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    waits = "rank 0 of job 'ddp': waiting for another worker in the place of rank 1 (rank 1 was silent), for "
    assert any(each.startswith(waits) and "0 ends at once" in each for each in said) is (wait_s > 0)


def test_who_gives_up_at_the_same_time_is_not_the_rank_that_was_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 2 is gone. Rank 0 has waited for its replacement as long as rank 1, and leaves a moment before."""
    member = MemberClient(None, NAME, TOKEN)  # type: ignore[arg-type]  # it calls nobody
    member._registration = Registration(1, 60.0, 1.0, "")
    answers = iter((([2], 60.0), ([0, 2], 0.0)))

    def poll(*_: Any) -> Any:
        gone, again_s = next(answers)
        pending = pb.AwaitMembershipResponse.Pending(gone_ranks=gone, again_s=again_s)
        return pb.AwaitMembershipResponse(pending=pending)

    monkeypatch.setattr(member, "_poll", poll)
    with pytest.raises(MembershipError, match="no worker has taken the place of rank 2 in job"):
        member.membership(60.0, known_generation=1, replacement_wait_s=0.1)


def test_a_closing_rank_continues_for_the_others(served: Served) -> None:
    """Rank 0 has its last sum and leaves; rank 1 has not, and the switch is restarted: rank 0 alone holds it."""
    desk, service = served
    with crew(service) as jobs, ThreadPoolExecutor(1) as pool:
        check_sum(jobs)
        silent = Deaf(desk.switch._socket, jobs[1].membership.worker(1).endpoint.address)
        desk.switch._socket = silent  # type: ignore[assignment]
        first, second = (job.submit(vector(job)) for job in jobs)
        assert mean(first) == [0.5, 2]
        closing = pool.submit(jobs[0].close)
        desk.end("the switch was restarted")
        assert mean(second) == [0.5, 2]
        assert jobs[1].statistics.repaired > 0
        jobs[1].close()
        closing.result(WAIT_S)


class Deaf:
    """A switch's socket; of what it sends to one address, chunks never arrive."""

    def __init__(self, inner: socket.socket, deaf: tuple[str, int]) -> None:
        self._inner, self._deaf = inner, deaf

    def sendto(self, data: bytes, to: tuple[str, int]) -> None:
        if to != self._deaf or Header.unpack(data).op == Op.MAX32:
            self._inner.sendto(data, to)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def test_a_change_that_is_refused_since_its_worker_left_says_nothing(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller's refusal comes before the agent's own thread hears that it is closed."""
    desk, service = served
    with crew(service) as jobs:
        waiting = jobs[0].submit(vector(jobs[0]))
        asked = threading.Event()

        def note(name: str) -> None:
            if name == "await_membership":
                asked.set()

        def stop_late(agent: Agent) -> None:
            changing = jobs[0]._change._thread  # type: ignore[attr-defined]
            changing.join(WAIT_S)
            assert not changing.is_alive()
            stop(agent)

        vanish(jobs[1])
        stop = Agent._stop
        monkeypatch.setattr(Agent, "_stop", stop_late)
        jobs[0]._transport.shards[0]._linger_s = 0.5  # type: ignore[attr-defined]  # nobody is there
        desk.before = note
        desk.end("rank 1 was silent", lost=1)
        assert asked.wait(WAIT_S)
        jobs[0].close()
        monkeypatch.undo()
        with pytest.raises(CommunicatorClosedError):
            waiting.result(WAIT_S)


def test_close_waits_for_no_controller(served: Served) -> None:
    """The controller goes while a worker waits for its next generation, as it may for `membership_wait_s`."""
    desk, service = served
    closed = threading.Event()

    def close_last() -> None:
        jobs[0].close()
        closed.set()

    with crew(service, membership_wait_s=100 * WAIT_S, replacement_wait_s=100 * WAIT_S) as jobs:
        jobs[0]._transport.shards[0]._linger_s = 0.5  # type: ignore[attr-defined]  # nobody is there
        vanish(jobs[1])
        desk.end("rank 1 was silent", lost=1)
        desk.wait(lambda: 0 in desk.waiting)
        service.close()
        threading.Thread(target=close_last, daemon=True).start()
        assert closed.wait(WAIT_S)


def test_ranks_that_fail_for_want_of_the_switch_are_not_waited_for_anew(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller tells nothing of the switch once the generation has ended; what it told before still counts."""
    desk, service = served
    with crew(service, membership_wait_s=WAIT_S, replacement_wait_s=10 * WAIT_S) as jobs:
        survivor = jobs[0]
        desk.switch._answer = lambda *_: None  # type: ignore[method-assign]
        waiting = survivor.submit(vector(survivor))
        desk.unreachable = "leaf1: no session"
        desk.wait(lambda: survivor._told_unreachable_s > 0.2)
        told_s = survivor._told_unreachable_s
        asked: list[float] = []

        def refuse(*_: float, replacement_wait_s: float, **__: int) -> JobMembership:
            asked.append(replacement_wait_s)
            raise MembershipError("nobody came")

        monkeypatch.setattr(survivor._change._member, "membership", refuse)
        vanish(jobs[1])
        desk.end("rank 1 left unfinished", lost=1)
        with pytest.raises(MembershipError, match="nobody came"):
            waiting.result(WAIT_S)
        assert asked
        assert 0 <= asked[0] <= WAIT_S - told_s


def test_a_worker_that_tls_keeps_from_the_controller_says_so_and_ends_when_its_switch_is_silent(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller has evicted it, and it would not hear of that before its deadline."""
    _, service = served
    monkeypatch.setattr(Lease, "lease_s", property(lambda _: 0.3))
    with crew(service, deadline_s=10 * WAIT_S) as jobs:
        waiting = jobs[0].submit(vector(jobs[0]))
        jobs[0]._lease._no_tls = "certificate has expired", -WAIT_S
        vanish(jobs[1])
        with pytest.raises(AllReduceTimeoutError, match="TLS: certificate has expired"):
            waiting.result(WAIT_S)


def test_what_only_a_controllers_job_has() -> None:
    with hopsum.connect("memory://alone?workers=1", rank=0, codec="fixed") as alone:
        assert not alone.is_newcomer
        alone.resume(lambda: b"nobody asks for it")
        with pytest.raises(HopsumError, match="is no newcomer"):
            alone.fetch_state()
    with pytest.raises(CommunicatorClosedError):
        alone.resume()


def test_fetch_state_is_for_newcomers(served: Served) -> None:
    _, service = served
    with crew(service) as jobs:
        with pytest.raises(HopsumError, match="agent of rank 0 is no newcomer"):
            jobs[0].fetch_state()
        jobs[0].resume(lambda: b"nobody was replaced")
        check_sum(jobs)
