# SPDX-License-Identifier: Apache-2.0
"""A worker's log on a wait: one line with whom it waits for, one when the wait has ended."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import pytest

from hopsum.agent import progress
from hopsum.agent.progress import ShardWatch
from hopsum.errors import AllReduceTimeoutError
from hopsum.notice import AFTER_S, WaitMonitor
from hopsum.protocol.worker import Membership, Timing
from hopsum.transport.shard import Shard
from hopsum.transport.transport import Transport
from hopsum_wire import Op

from ...support.clock import FakeClock
from .cluster import EAGER, Cluster

WAIT_S = 60.0
X = np.arange(1, 1001, dtype=np.float32)


def lines(caplog: pytest.LogCaptureFixture, logger: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == logger]


def test_a_wait_has_one_line_and_another_when_it_has_ended(caplog: pytest.LogCaptureFixture) -> None:
    clock, log = FakeClock(), logging.getLogger("hopsum.tests.waiting")
    waiting = WaitMonitor(log, "rank 3", clock=clock)
    assert waiting.log_in_s == AFTER_S
    clock.now_s += AFTER_S - 1
    waiting.check(pytest.fail, 7.0)
    waiting.end()
    assert not lines(caplog, log.name), "a short wait is no matter"
    clock.now_s += AFTER_S + 1
    assert waiting.log_in_s == 0
    for left_s in (7.0, 6.0):
        waiting.check(lambda: "rank 2", left_s)
    assert waiting.log_in_s is None
    clock.now_s += 1
    waiting.end()
    waiting.end()
    assert lines(caplog, log.name) == [
        "rank 3 has waited 6 s for rank 2; it waits 7 s more at most", "rank 3 has ended its wait after 7.0 s",
    ]  # fmt: skip
    clock.now_s += AFTER_S
    waiting.check(lambda: "rank 2")
    assert lines(caplog, log.name)[2] == "rank 3 has waited 5 s for rank 2; it waits without a limit"


def test_the_line_names_who_is_missing(stack: ExitStack, caplog: pytest.LogCaptureFixture) -> None:
    """The switch is asked before the line is due; a result ends the wait."""
    # The deadline is of the transport's clock, which on a machine that has just started is near 0.
    cluster, clock = Cluster(stack, 2), FakeClock(time.monotonic())
    host, port = cluster.switch.address
    switch = f"switch {host}:{port}"
    shards = [
        Shard(
            link,
            Membership(cluster.membership.generation, rank, 2, 8, switch),
            replace(EAGER, lease_s=1.5, deadline_s=WAIT_S),
        )
        for rank, link in enumerate(cluster.links)
    ]
    first, second = (stack.enter_context(Transport([shard])) for shard in shards)
    looks, worker = ShardWatch(shards[0], clock=clock), shards[0].worker
    payloads = np.zeros((1, 1024), np.uint8)
    first.submit(Op.ADD32, payloads)
    looks.begin()
    first.step(0.01)
    clock.now_s += AFTER_S - 0.5
    looks.check()
    _step(first, lambda: "rank 1 is missing" in worker.watch.missing_text())
    clock.now_s += 1
    looks.check()
    (line,) = lines(caplog, progress.__name__)
    assert line.startswith("rank 0 has waited 6 s for the result of 1 chunk from switch 127.0.0.1:"), line
    assert "rank 1 is missing in slot 0, round 1 (arrived: rank 0); it waits" in line
    assert line.endswith(" s more at most, but 1.5 s for a rank of which nothing is heard (lease_s)")
    second.submit(Op.ADD32, payloads)
    _step(first, lambda: bool(worker.statistics.results) or not second.step(0.01))
    _step(first, lambda: bool(worker.statistics.results))
    looks.check()
    assert lines(caplog, progress.__name__)[1:] == ["rank 0 has ended its wait after 5.5 s"]


def _step(transport: Transport, holds: Callable[[], bool]) -> None:
    until = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < until
        transport.step(0.01)


def test_a_switch_that_is_gone_is_said_and_then_the_error(
    stack: ExitStack, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On every rank, long before the deadline."""
    monkeypatch.setattr(progress, "ABSENT_S", 0.2)
    cluster = Cluster(stack, 2)
    timing = Timing(retransmit_s=0.02, retransmit_max_s=0.05, deadline_s=WAIT_S, unreachable_s=1.0)
    agents = cluster.agents("fixed", timing)
    for future in [agent.submit(X) for agent in agents]:
        future.result(WAIT_S)
    cluster.switch.stop()
    started = time.monotonic()
    futures = [agent.submit(X) for agent in agents]
    for rank, future in enumerate(futures):
        with pytest.raises(AllReduceTimeoutError, match=f"is not there: all that rank {rank} sent to it for"):
            future.result(WAIT_S)
    assert time.monotonic() - started < WAIT_S / 2
    for rank in range(2):
        said = [line for line in lines(caplog, progress.__name__) if line.startswith(f"rank {rank}: switch")]
        assert len(said) == 1
        assert "is not there: all that was sent to it" in said[0]


def test_a_group_that_does_not_end_is_said(
    stack: ExitStack, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last all-reduce of an open group waits for the group's end."""
    monkeypatch.setattr("hopsum.notice.AFTER_S", 0.1)
    agent = Cluster(stack, 1).agent(0, "fixed", replace(EAGER, deadline_s=WAIT_S))
    said = threading.Event()
    handler = logging.Handler()
    handler.emit = lambda record: said.set() if "its end" in record.getMessage() else None  # type: ignore[method-assign]
    logger = logging.getLogger("hopsum.agent.phase_order")
    logger.addHandler(handler)
    stack.callback(logger.removeHandler, handler)
    agent.group_start()
    future = agent.submit(X)
    assert said.wait(WAIT_S)
    agent.group_end()
    future.result(WAIT_S)
