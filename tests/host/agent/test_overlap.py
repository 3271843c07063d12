# SPDX-License-Identifier: Apache-2.0
"""Codec and network at the same time: shown by who waits for whom, not by clocks."""

from __future__ import annotations

import threading
from contextlib import ExitStack, nullcontext
from typing import Any

import numpy as np
import pytest

from hopsum.agent import Agent, Span
from hopsum.codec import Codec, CodecError, ErrorFeedback, make_codec
from hopsum.errors import GenerationEndedError, HopsumError
from hopsum_wire import Op

from ...support.overlap import overlap_s
from .cluster import HASTY, PATIENT, Cluster, Gate

WAIT_S = 60
X = np.arange(1, 1001, dtype=np.float32)


@pytest.mark.parametrize(("more", "stage"), [(True, "encode"), (False, "prepare")])
def test_the_codec_works_while_the_network_has_the_vector_before(stack: ExitStack, more: bool, stage: str) -> None:
    """The sums of vector 0 come only after vector 1 was encoded (with `more`), or after its ranges were found."""
    cluster, opened = Cluster(stack, 2), threading.Event()
    spans: list[Span] = []

    def trace(span: Span) -> None:
        spans.append(span)
        if (span.number, span.stage) == (1, stage):
            opened.set()

    gate = Gate(cluster.links[0], Op.ADD32, opened)
    agents = [
        stack.enter_context(
            Agent(cluster.membership, 0, codec="fixed", timing=PATIENT, link=gate, trace=trace)
        ),
        cluster.agent(1, "fixed", PATIENT),
    ]  # fmt: skip
    futures = []
    for agent in agents:
        with agent.group() if more else nullcontext():
            futures.append([agent.submit(X), agent.submit(2 * X)])
    for first, second in futures:
        np.testing.assert_array_equal(first.result(WAIT_S).mean, X)
        np.testing.assert_array_equal(second.result(WAIT_S).mean, 2 * X)
    assert [span.stage for span in spans if span.number == 1] == [
        "prepare", "network MAX32", "encode", "network ADD32", "decode",
    ]  # fmt: skip
    sums = next(span for span in spans if (span.number, span.stage) == (0, "network ADD32"))
    early = next(span for span in spans if (span.number, span.stage) == (1, stage))
    assert sums.start_s <= early.start_s
    assert early.stop_s <= sums.stop_s
    assert overlap_s(spans) > 0


def test_the_same_feedback_in_a_group_is_refused(stack: ExitStack) -> None:
    agent, feedback = Cluster(stack, 1).agent(0, "fixed"), ErrorFeedback(X.size)
    with agent.group():
        first = agent.submit(X, feedback=feedback)
        with pytest.raises(CodecError, match="in the same group and has the same error feedback"):
            agent.submit(X, feedback=feedback)
    agent.allreduce(X, feedback=feedback)
    assert first.result(WAIT_S).mean.tolist() == X.tolist()


def test_groups_inside_each_other_end_with_the_outermost(stack: ExitStack) -> None:
    agent = Cluster(stack, 1).agent(0, "fixed")
    with agent.group():
        with agent.group():
            inner = agent.submit(X)
        with pytest.raises(RuntimeError, match="allreduce in a group would wait for the group's end: use submit"):
            agent.allreduce(X)
        outer = agent.submit(2 * X)
    assert inner.result(WAIT_S).mean.tolist() == X.tolist()
    assert outer.result(WAIT_S).mean.tolist() == (2 * X).tolist()
    with pytest.raises(RuntimeError, match="group_end without group_start"):
        agent.group_end()


def test_a_group_that_does_not_end_is_an_error(stack: ExitStack) -> None:
    agent, feedback = Cluster(stack, 1).agent(0, "fixed", HASTY), ErrorFeedback(X.size)
    agent.group_start()
    future = agent.submit(X, feedback=feedback)
    with pytest.raises(HopsumError, match=r"in an open group, and none followed within 0\.3 s"):
        future.result(WAIT_S)
    np.testing.assert_array_equal(feedback.residual, X)
    with pytest.raises(GenerationEndedError):
        agent.submit(X)


def failing_at(number: int) -> Codec:
    """Make a codec that cannot find ranges the number-th time."""
    codec, calls = make_codec("fixed", workers=2), iter(range(100))
    ranges = codec.ranges  # type: ignore[attr-defined]

    def fail(x: Any) -> Any:
        if next(calls) == number:
            raise ZeroDivisionError("no ranges today")
        return ranges(x)

    codec.ranges = fail  # type: ignore[attr-defined]
    return codec


def test_what_is_all_in_the_stream_outlives_the_failure_of_the_next(stack: ExitStack) -> None:
    cluster, opened = Cluster(stack, 2), threading.Event()
    gate = Gate(cluster.links[0], Op.ADD32, opened)
    broken = stack.enter_context(Agent(cluster.membership, 0, codec=failing_at(1), timing=PATIENT, link=gate))
    sound = cluster.agent(1, "fixed", PATIENT)
    feedback = [ErrorFeedback(X.size) for _ in range(3)]
    futures = [broken.submit(X, feedback=each) for each in feedback]
    other = sound.submit(X)
    while True:
        try:
            broken.submit(X)
        except GenerationEndedError:  # the failure is known, while vector 0 is still on its way
            break
    assert not any(future.done() for future in futures)
    opened.set()
    np.testing.assert_array_equal(futures[0].result(WAIT_S).mean, X)
    np.testing.assert_array_equal(other.result(WAIT_S).mean, X)
    with pytest.raises(ZeroDivisionError, match="no ranges today"):
        futures[1].result(WAIT_S)
    with pytest.raises(GenerationEndedError, match="no ranges today"):
        futures[2].result(WAIT_S)
    assert np.abs(feedback[0].residual).max() < 1e-3
    for each in feedback[1:]:
        np.testing.assert_array_equal(each.residual, X)


def test_overlap_counts_a_codec_during_the_network_of_another_all_reduce() -> None:
    spans = [
        Span(0, "prepare", 1, 2), Span(0, "network ADD32", 2, 7), Span(1, "prepare", 3, 4),
        Span(1, "network ADD32", 7, 17), Span(11, "decode", 16, 17),
    ]  # fmt: skip
    assert overlap_s(spans) == 2
