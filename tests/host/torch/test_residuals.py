# SPDX-License-Identifier: Apache-2.0
"""Residuals stay with their parameters, whatever buckets these are in."""

from __future__ import annotations

import random

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

from hopsum.codec import ErrorFeedback
from hopsum.torch.residuals import Residuals

SIZES = {"a": 3, "b": 1, "c": 4, "d": 2, "e": 7}


def test_the_same_layout_is_the_same_feedback() -> None:
    residuals = Residuals()
    assert residuals.feedback(["a", "b"], [3, 1]) is residuals.feedback(["a", "b"], [3, 1])


@pytest.mark.parametrize("seed", range(5))
def test_random_layouts_against_a_plain_dictionary(seed: int) -> None:
    rng, residuals = random.Random(seed), Residuals()
    truth: dict[str, np.ndarray] = {name: np.zeros(size, np.float32) for name, size in SIZES.items()}
    for turn in range(40):
        names = rng.sample(sorted(SIZES), rng.randint(1, len(SIZES)))
        feedback = residuals.feedback(names, [SIZES[name] for name in names])
        np.testing.assert_array_equal(feedback.residual, np.concatenate([truth[name] for name in names]))
        feedback.compensate(np.full(feedback.residual.size, turn, np.float32))
        feedback.commit(None)
        for name in names:
            truth[name] = truth[name] + np.float32(turn)
        if rng.random() < 0.2:
            copied, residuals = residuals.as_dict(), Residuals()
            residuals.load(copied)
    for name, residual in residuals.as_dict().items():
        np.testing.assert_array_equal(residual, truth[name])


def test_loading_replaces_and_copies() -> None:
    residuals = Residuals()
    residuals.feedback(["a"], [3]).residual[:] = 1
    loaded = {"b": np.ones(1, np.float32)}
    residuals.load(loaded)
    loaded["b"][0] = 5
    assert {name: each.tolist() for name, each in residuals.as_dict().items()} == {"b": [1.0]}


def test_the_last_allreduce_can_be_undone() -> None:
    feedback = Residuals().feedback(["a", "b"], [3, 1])
    feedback.residual[:] = [1, 2, 3, 4]
    sent = feedback.compensate(np.full(4, 10, np.float32))
    assert sent.tolist() == [11, 12, 13, 14]
    feedback.commit(np.full(4, 9, np.float32))
    feedback.give_back(slice(1, 3))
    assert feedback.residual.tolist() == [2, 2, 3, 5]
    feedback.give_back(slice(None))
    assert feedback.residual.tolist() == [1, 2, 3, 4]
    feedback.compensate(np.full(4, 10, np.float32))
    feedback.give_back()
    feedback.give_back(slice(None))
    assert feedback.residual.tolist() == [1, 2, 3, 4]


def test_what_can_be_undone_is_nobody_elses() -> None:
    """Error feedbacks of one length share vectors, but not the one that an undo needs."""
    first, second = ErrorFeedback(4, revocable=True), ErrorFeedback(4, revocable=True)
    for value in (1, 2):
        for feedback in (first, second):
            feedback.compensate(np.full(4, value, np.float32))
            feedback.commit(None)
    first.give_back(slice(None))
    assert first.residual.tolist() == [1.0] * 4
    second.compensate(np.full(4, 5, np.float32))
    second.give_back()
    second.give_back(slice(None))  # nothing is left to undo
    assert second.residual.tolist() == [3.0] * 4
    third = ErrorFeedback(4, revocable=True)
    third.compensate(np.full(4, 9, np.float32))
    assert (first.residual.tolist(), second.residual.tolist()) == ([1.0] * 4, [3.0] * 4)


def test_reading_clearing_and_scaling() -> None:
    residuals = Residuals()
    residuals.feedback(["a", "c"], [3, 4]).residual[:] = 2
    residuals.scale(0.5)
    read = residuals.read("a")
    assert read is not None
    assert read.tolist() == [1, 1, 1]
    residuals.clear("a")
    assert read.tolist() == [1, 1, 1]
    assert residuals.read("a") is None
    assert residuals.read("b") is None
    assert {name: each.tolist() for name, each in residuals.as_dict().items()} == {"a": [0] * 3, "c": [1] * 4}
