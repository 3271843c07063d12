# SPDX-License-Identifier: Apache-2.0
"""An engine that streams one long vector: who waits for whom, and what a failure in the middle leaves behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from hopsum.agent.allreduce_engine import CLOSE, AllReduceEngine
from hopsum.codec import ErrorFeedback, ReductionContext, make_codec
from hopsum.communicator.allreduce_results import CommunicatorClosedError
from hopsum.communicator.task import Task
from hopsum.communicator.vector import HostVector
from hopsum.errors import WorkersReplacedError

from .stage_transport import WAIT_S, StageTransport

CHUNKS = 8
X = np.linspace(-1, 1, CHUNKS * 1024 - 5, dtype=np.float32)
RANGES, CODES = 0, 1
"""Handles of the two phases of the first vector."""


class Stage:
    """An engine of one worker whose vectors travel in parts of two chunks."""

    def __init__(self) -> None:
        codec = make_codec("thc", workers=1, backend="numpy")
        self.transport = StageTransport(codec)
        self.failures: list[BaseException] = []
        self.engine = AllReduceEngine(
            codec,
            ReductionContext(0, 0, 0),
            self.transport,
            generation=70,
            overlap=True,
            follow_s=60.0,
            trace=None,
            on_failure=self.failures.append,
        )
        self.thread = threading.Thread(target=self.engine.run)
        self.thread.start()

    def submit(self, x: np.ndarray, feedback: ErrorFeedback | None, number: int = 0, *, in_place: bool = False) -> Task:
        vector = HostVector(x, feedback, x if in_place else None)
        task = Task(vector, (), "raise", False, number=number, step=number)
        self.engine.put(task)
        return task

    def exchange_ranges(self) -> None:
        self.transport.wait_for_phases(1)
        self.transport.do(RANGES)

    def wait_until_filled(self, handle: int = CODES) -> None:
        self.transport.wait(lambda: len(self.transport.ready) > handle and self.transport.ready[handle] == CHUNKS)

    def stop(self) -> None:
        self.engine.put(CLOSE)
        self.thread.join(WAIT_S)
        assert not self.thread.is_alive()


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    monkeypatch.setattr("hopsum.transport.spread.PART_CHUNKS", 2)
    stage = Stage()
    yield stage
    stage.stop()


def test_parts_are_sent_before_the_last_one_is_encoded_and_read_before_the_last_one_is_here(stage: Stage) -> None:
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


def test_a_vector_that_fails_in_the_middle_is_in_its_error_feedback(stage: Stage) -> None:
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


def test_the_next_vector_is_sent_behind_all_parts(stage: Stage) -> None:
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


def test_a_close_in_the_middle_gives_the_vector_back(stage: Stage) -> None:
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
    stage: Stage, monkeypatch: pytest.MonkeyPatch
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
    stage: Stage, monkeypatch: pytest.MonkeyPatch
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
