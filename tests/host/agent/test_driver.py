# SPDX-License-Identifier: Apache-2.0
"""Who drives an agent: a caller that waits and finds nothing under way, else the agent's own thread."""

from __future__ import annotations

import signal
import sys
import threading
import time
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from hopsum.agent import Agent, CommunicatorClosedError
from hopsum.agent.allreduce_results import Span
from hopsum.codec.backends.jit import LazyKernel
from hopsum.transport.udp_link import UdpLink

from .cluster import PATIENT, Cluster

WAIT_S = 60
X = np.arange(1, 1001, dtype=np.float32)


class Alarm(BaseException):
    """The error of this test's signal handler."""


def traced(cluster: Cluster, threads: set[threading.Thread], rank: int = 0) -> Agent:
    """Return an agent that says in which threads it works."""

    def trace(_: Span) -> None:
        threads.add(threading.current_thread())

    made = Agent(cluster.membership, rank, codec="thc", timing=PATIENT, link=cluster.links[rank], trace=trace)
    return cluster.stack.enter_context(made)


def test_a_caller_that_waits_serves_itself_and_futures_have_the_agents_thread(stack: ExitStack) -> None:
    threads: set[threading.Thread] = set()
    agent = traced(Cluster(stack, 1), threads)
    for _ in range(3):
        agent.allreduce(X)
    assert threads == {threading.current_thread()}
    threads.clear()
    agent.submit(X).result(WAIT_S)
    assert [each.name for each in threads] == ["hopsum-agent-0"]


def test_what_is_left_when_the_caller_has_its_mean_is_served_by_the_agents_thread(stack: ExitStack) -> None:
    """Rank 1 submits its second vector only when rank 0's caller has returned."""
    cluster, threads = Cluster(stack, 2), set[threading.Thread]()
    agent, other = traced(cluster, threads), cluster.agent(1, "thc", PATIENT)
    late: list[Any] = []

    def submit() -> None:
        while not threads:  # the caller drives
            pass
        late.append(agent.submit(2 * X))
        other.submit(X)

    thread = threading.Thread(target=submit)
    thread.start()
    agent.allreduce(X)
    thread.join(WAIT_S)
    assert not late[0].done()
    other.submit(2 * X)
    np.testing.assert_allclose(late[0].result(WAIT_S).mean, 2 * X, atol=800)
    assert {each.name for each in threads} == {threading.current_thread().name, "hopsum-agent-0"}


def test_a_signal_handler_that_raises_ends_the_wait_and_not_the_all_reduce(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(stack, 2)
    first, second = (
        stack.enter_context(Agent(cluster.membership, rank, codec="thc", timing=PATIENT, link=link._link))  # type: ignore[arg-type]
        for rank, link in enumerate(cluster.links)
    )

    def ring(*_: Any) -> None:
        raise Alarm

    pass_on = first._engine.driver._pass_on

    def pass_on_slowly() -> None:
        """Let the agent's thread drive before the caller raises the handler's error."""
        pass_on()
        time.sleep(0.2)

    monkeypatch.setattr(first._engine.driver, "_pass_on", pass_on_slowly)

    caller = threading.main_thread().ident or 0
    waits = LazyKernel.__call__.__code__ if first._engine.transport.has_loop else UdpLink.receive.__code__

    def alarm() -> None:
        # A loaded machine may take long from there to the machine code, in which the caller waits for a second.
        while not first._engine.driver.in_network or sys._current_frames()[caller].f_code is not waits:
            time.sleep(0.01)
        time.sleep(0.2)
        signal.pthread_kill(caller, signal.SIGALRM)

    before = signal.signal(signal.SIGALRM, ring)
    rings = threading.Thread(target=alarm)
    rings.start()
    try:
        with pytest.raises(Alarm):
            first.allreduce(X)
    finally:
        rings.join(WAIT_S)
        signal.signal(signal.SIGALRM, before)
    again = first.submit(X)
    futures = [second.submit(X) for _ in range(2)]
    means = [future.result(WAIT_S).mean.tobytes() for future in (*futures, again)]
    assert means[1] == means[2]
    assert first.statistics.allreduces == 2


def test_a_callback_in_a_callers_thread_may_close(stack: ExitStack) -> None:
    cluster = Cluster(stack, 2)
    agent, other = cluster.agents("thc", PATIENT)
    closed = threading.Event()

    def close(_: Any) -> None:
        agent.close()
        closed.set()

    agent.submit(X).add_done_callback(close)
    threading.Timer(0.2, lambda: other.submit(X)).start()
    with pytest.raises(CommunicatorClosedError):
        agent.allreduce(X)
    assert closed.wait(WAIT_S)


def test_a_thread_with_the_identity_of_the_agents_hears_that_the_agent_is_closed(stack: ExitStack) -> None:
    agent = Cluster(stack, 1).agent(0, "thc", PATIENT)
    agent.submit(X).result(WAIT_S)
    agent.close()
    errors: list[Exception] = []

    def call() -> None:
        try:
            agent.allreduce(X)
        except Exception as error:
            errors.append(error)

    # Threads that follow each other usually have one identity.
    thread = threading.Thread(target=call)
    thread.start()
    thread.join(WAIT_S)
    assert [type(each) for each in errors] == [CommunicatorClosedError]
