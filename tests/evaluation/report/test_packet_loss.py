# SPDX-License-Identifier: Apache-2.0
"""Training over links that lose packets: the gradient, both settlements of what is missing, what trainings come to."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from hopsum.codec import ErrorFeedback
from hopsum.codec.interface import blocks_of
from hopsum.codec.thc import LookupTableCodec
from hopsum_evaluation.report import packet_loss as loss
from hopsum_evaluation.report.experiment import Settings, Size
from hopsum_evaluation.report.lossy_training import (
    PARAMETERS,
    Case,
    Fate,
    Learner,
    allreduce,
    draw_fate,
    make_case_codec,
    train,
)

pytestmark = pytest.mark.system
WORKERS = 4
ELEMENTS = 3000
SETTINGS = Settings(7, Size.SMALL)


@cache
def codec() -> LookupTableCodec:
    return make_case_codec(Case("published", WORKERS, 1))


@pytest.fixture(scope="module")
def block() -> int:
    return codec().block_elements


@pytest.fixture(scope="module")
def learner() -> Learner:
    return Learner()


def vectors(workers: int = WORKERS) -> list[np.ndarray[tuple[int], np.dtype[np.float32]]]:
    return [np.random.default_rng([1, rank]).standard_normal(ELEMENTS, dtype=np.float32) for rank in range(workers)]


def fate(missing: tuple[int, int] | None = None, lost: tuple[int, int] | None = None) -> Fate:
    """Return what loses one contribution and one result, (worker, chunk) each."""
    present = np.ones((WORKERS, blocks_of(ELEMENTS, codec().block_elements)), np.bool_)
    gone = np.zeros_like(present)
    if missing:
        present[missing] = False
    if lost:
        gone[lost] = True
    return Fate(present, gone)


def test_the_gradient_is_that_of_the_loss(learner: Learner) -> None:
    rng = np.random.default_rng(2)
    parameters, batch = learner.start(rng), np.arange(64)
    gradient = learner.gradient(parameters, batch)
    for _ in range(5):
        way = rng.standard_normal(PARAMETERS).astype(np.float32) * np.float32(1e-3)
        rise = learner.loss(parameters + way, batch) - learner.loss(parameters - way, batch)
        assert rise / 2 == pytest.approx(float(gradient @ way), rel=0.02, abs=2e-5)
    assert gradient.shape == (PARAMETERS,)


def test_a_missing_contribution_is_divided_away_here_and_zero_there(block: int) -> None:
    feedback = {published: [ErrorFeedback(ELEMENTS) for _ in range(WORKERS)] for published in (False, True)}
    missing = fate(missing=(2, 1))
    ours, theirs = (
        allreduce(codec(), vectors(), (5, 1), feedback[published], missing, published=published)
        for published in (False, True)
    )
    assert all(np.array_equal(each, ours[0]) for each in ours)
    assert all(np.array_equal(each, theirs[0]) for each in theirs)
    here = slice(block, 2 * block)
    np.testing.assert_allclose(theirs[0][here], ours[0][here] * (WORKERS - 1) / WORKERS, atol=1e-5)
    np.testing.assert_array_equal(theirs[0][:block], ours[0][:block])
    mine, whole = feedback[False][2].residual, vectors()[2]
    np.testing.assert_array_equal(mine[here], whole[here])  # all of it comes back
    believed = feedback[True][2].residual
    assert np.linalg.norm(believed[here]) < 0.5 * np.linalg.norm(whole[here])
    np.testing.assert_array_equal(believed[:block], mine[:block])


def test_a_missing_result_is_zero_at_one_worker_there_and_nowhere_here(block: int) -> None:
    lost = fate(lost=(1, 0))
    ours, theirs = (
        allreduce(codec(), vectors(), (5, 1), [ErrorFeedback(ELEMENTS) for _ in vectors()], lost, published=published)
        for published in (False, True)
    )
    assert not theirs[1][:block].any()
    np.testing.assert_array_equal(theirs[1][block:], theirs[0][block:])
    assert all(np.array_equal(each, theirs[0]) for each in (*ours, theirs[0], theirs[2], theirs[3]))


def test_fates_lose_their_share_and_leave_somebody() -> None:
    found = draw_fate(np.random.default_rng(1), 10, 10_000, 0.05, 3)
    late = ~found.present.any(axis=1)
    assert late.sum() == 3
    assert found.present[~late].mean() == pytest.approx(0.95, abs=0.004)
    assert found.lost.mean() == pytest.approx(0.05, abs=0.004)
    hard = draw_fate(np.random.default_rng(1), 3, 1000, 0.9, 1)
    assert hard.present.any(axis=0).all()
    assert not hard.present.all(axis=1).any()


def test_lost_results_drive_replicas_apart_unless_they_are_sent_again(learner: Learner) -> None:
    case = Case("published", WORKERS, 30, loss=0.05)
    theirs, ours = (train(learner, replace(case, scheme=scheme), SETTINGS, 0) for scheme in ("published", "ours"))
    pass_steps = len(learner.y) // (16 * WORKERS)
    synced = train(learner, replace(case, sync=True, steps=pass_steps), SETTINGS, 0)
    assert ours.apart < 1e-6
    assert theirs.apart > 1e-3
    assert synced.apart < 1e-6


def test_trainings_learn_and_repeat_byte_for_byte(learner: Learner) -> None:
    case = Case("ours", WORKERS, 40, loss=0.01)
    first, again = (train(learner, case, SETTINGS, 0) for _ in range(2))
    assert first == again
    assert first != train(learner, case, SETTINGS, 1)
    assert first.accuracy > 0.7
    assert all(residual > 0 for residual in first.residual)
    assert train(learner, replace(case, scheme="fp32"), SETTINGS, 0).residual == [0.0] * 10


def test_the_last_step_before_stability_is_not_taken_for_it() -> None:
    row = {"accuracy": 0.9, "apart": 0.0, "residual": [1.0] * 8 + [3.0, 3.0]}
    trainings = [{"case": vars_of(case), "outcomes": [row, row]} for case in loss.make_cases(SETTINGS)]
    assert loss.show({"trainings": trainings}).samples["feedback-stable"] == []
    trainings[-1]["case"]["steps"] = loss.LOSSY_STEPS
    assert loss.show({"trainings": trainings}).samples["feedback-stable"] == [3.0, 3.0]


def vars_of(case: Case) -> dict[str, object]:
    return {name: getattr(case, name) for name in Case.__slots__}
