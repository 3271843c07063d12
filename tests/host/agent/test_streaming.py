# SPDX-License-Identifier: Apache-2.0
"""An engine that streams one long vector: who waits for whom, and what a failure in the middle leaves behind."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from hopsum.agent.allreduce_results import CommunicatorClosedError
from hopsum.codec import ErrorFeedback, NonFiniteError
from hopsum.errors import WorkersReplacedError

from .stage_transport import WAIT_S, Stage

CHUNKS = 8
X = np.linspace(-1, 1, CHUNKS * 1024 - 5, dtype=np.float32)
RANGES, CODES = 0, 1
"""Handles of the two phases of the first vector."""


class Streaming(Stage):
    def exchange_ranges(self) -> None:
        self.transport.wait_for_phases(1)
        self.transport.do(RANGES)

    def wait_until_filled(self, handle: int = CODES) -> None:
        self.transport.wait(lambda: len(self.transport.ready) > handle and self.transport.ready[handle] == CHUNKS)


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Streaming]:
    monkeypatch.setattr("hopsum.transport.sharded_allreduce.PART_CHUNKS", 2)
    stage = Streaming("thc")
    yield stage
    stage.stop()


def test_parts_are_sent_before_the_last_one_is_encoded_and_read_before_the_last_one_is_here(stage: Streaming) -> None:
    feedback = ErrorFeedback(X.size)
    task = stage.submit(X, feedback)
    stage.exchange_ranges()
    stage.transport.wait_for_phases(2)
    stage.wait_until_filled()
    stage.transport.do_part(CODES, 0, 2)
    stage.transport.do_part(CODES, 2, 6)
    stage.transport.wait(lambda: len(stage.transport.read) == 2)
    assert not task.future.done()
    stage.transport.do(CODES)
    mean = task.future.result(WAIT_S).mean
    assert stage.transport.made == [CODES] * (CHUNKS // 2 - 1), "the first part was there when the phase was submitted"
    np.testing.assert_allclose(mean + feedback.residual, X, atol=1e-5)


def test_a_vector_that_fails_in_the_middle_is_in_its_error_feedback(stage: Streaming) -> None:
    feedback, x = ErrorFeedback(X.size), X.copy()
    task = stage.submit(x, feedback, in_place=True)
    stage.exchange_ranges()
    stage.wait_until_filled()
    stage.transport.do_part(CODES, 0, 4)
    stage.transport.wait(lambda: len(stage.transport.read) == 1)
    stage.transport.void(CODES)
    assert isinstance(task.future.exception(WAIT_S), WorkersReplacedError)
    np.testing.assert_allclose(feedback.residual, X, atol=1e-5)
    assert stage.failures == [], "the next all-reduce can follow"


def test_the_next_vector_is_sent_behind_all_parts(stage: Streaming) -> None:
    first = stage.submit(X, ErrorFeedback(X.size))
    second = stage.submit(X, ErrorFeedback(X.size), number=1)
    stage.exchange_ranges()
    stage.transport.wait_for_phases(3)
    stage.wait_until_filled()
    stage.transport.do(CODES)
    stage.transport.do(2)
    first.future.result(WAIT_S)
    stage.wait_until_filled(3)
    stage.transport.do(3)
    second.future.result(WAIT_S)


def test_a_close_in_the_middle_gives_the_vector_back(stage: Streaming) -> None:
    feedback = ErrorFeedback(X.size)
    task = stage.submit(X, feedback)
    stage.exchange_ranges()
    stage.wait_until_filled()
    stage.transport.do_part(CODES, 0, 4)
    stage.transport.wait(lambda: len(stage.transport.read) == 1)
    stage.stop()
    assert isinstance(task.future.exception(WAIT_S), CommunicatorClosedError)
    np.testing.assert_allclose(feedback.residual, X, atol=1e-5)


def test_codes_that_cannot_be_made_fail_the_vector_and_give_it_back(
    stage: Streaming, monkeypatch: pytest.MonkeyPatch
) -> None:
    feedback = ErrorFeedback(X.size)
    task = stage.submit(X, feedback)
    stage.transport.wait_for_phases(1)
    assert task.reduction is not None

    def encode_part() -> np.ndarray:
        raise MemoryError("no room for codes")

    reduction = task.reduction
    made = type(reduction).encode_part
    calls: list[int] = []

    def second_fails(self: object) -> np.ndarray:
        calls.append(1)
        return made(self) if len(calls) == 1 else encode_part()  # type: ignore[arg-type]

    monkeypatch.setattr(type(reduction), "encode_part", second_fails)
    stage.transport.do(RANGES)
    assert isinstance(task.future.exception(WAIT_S), MemoryError)
    np.testing.assert_allclose(feedback.residual, X, atol=1e-5)


def test_an_error_feedback_that_takes_nothing_back_leaves_no_future_open(
    stage: Streaming, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = stage.submit(X, ErrorFeedback(X.size))
    stage.transport.wait_for_phases(1)
    assert task.reduction is not None

    def abort(self: object) -> None:
        raise ValueError("the residual has another length")

    monkeypatch.setattr(type(task.reduction), "abort", abort)
    stage.transport.void(RANGES)
    error = task.future.exception(WAIT_S)
    assert isinstance(error, WorkersReplacedError)
    assert "another length" in error.__notes__[0]


def test_the_codes_of_a_skipped_vector_come_behind_those_of_the_one_before(stage: Streaming) -> None:
    """Its ranges are here first, though they were sent later."""
    first = stage.submit(X, None, 0, more=True)
    skipped = stage.submit(X * np.float32(np.nan), None, 1)
    stage.transport.wait_for_phases(2)
    stage.transport.do(1)
    with pytest.raises(NonFiniteError):
        skipped.future.result(WAIT_S)
    stage.transport.do(0)
    stage.wait_until_filled(2)
    stage.transport.do(2)
    np.testing.assert_allclose(first.future.result(WAIT_S).mean, X, atol=1)
    stage.transport.wait_for_phases(4)
    assert not stage.transport.stream[3].payloads.any()
