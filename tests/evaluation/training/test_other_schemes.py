# SPDX-License-Identifier: Apache-2.0
"""Other schemes in memory, and training over links that lose packets."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from hopsum.codec import CodecError, ErrorFeedback
from hopsum.codec.interface import blocks_of
from hopsum.codec.lookup_table import expected_nmse
from hopsum.codec.thc import LookupTableCodec
from hopsum.codec.two_shot import TwoShot
from hopsum_evaluation.baselines.thc_published import PUBLISHED, ThcPublished
from hopsum_evaluation.compare.methods import Int8RingMethod, PowerSgdMethod, TwoShotMethod
from hopsum_evaluation.report.lossy_training import (
    PARAMETERS,
    Deliveries,
    Learner,
    LossCase,
    allreduce,
    draw_deliveries,
    make_case_codec,
)

pytestmark = pytest.mark.system


def normal(elements: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(elements, dtype=np.float32)


def test_power_sgd_finds_a_matrix_of_low_rank_and_needs_its_bits_only() -> None:
    rng = np.random.default_rng(2)
    exact = (rng.standard_normal((64, 2)) @ rng.standard_normal((2, 64))).astype(np.float32).reshape(-1)
    method = PowerSgdMethod(4, 2)
    outcome = method.run([exact] * 4, 1, 1)
    assert np.linalg.norm(outcome.mean - exact) < 1e-4 * np.linalg.norm(exact)
    assert outcome.bits.up == pytest.approx(2 * 0.75 * 32 * 2 * (64 + 64) / 4096)
    noise = [normal(4096, rank) for rank in range(4)]
    errors = []
    for step in range(5):
        mean = np.mean(noise, axis=0)
        errors.append(np.linalg.norm(method.run(noise, 1, step).mean - mean) / np.linalg.norm(mean))
    assert errors[-1] < errors[0], "Q is kept: a power iteration"


@pytest.mark.parametrize("bits", [4, 8])
def test_two_shot_sends_its_codes_and_scales_twice(bits: int) -> None:
    outcome = TwoShotMethod(TwoShot(3, bits=bits)).run([normal(3000, rank) for rank in range(3)], 1, 1)
    assert outcome.bits.up == outcome.bits.down == pytest.approx(2 * (2 / 3) * (bits + 32 / 512))
    assert outcome.mean.size == 3000


def test_diloco_in_fp32_takes_its_outer_step_every_so_many_inner_ones(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from hopsum_evaluation.training.other_schemes import Fp32DiLoCo

    torch.distributed.init_process_group("gloo", f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = torch.nn.Linear(3, 2)
        start = [each.detach().clone() for each in model.parameters()]
        diloco = Fp32DiLoCo(model, 2)
        for step in (1, 2):
            with torch.no_grad():
                for each in model.parameters():
                    each -= 0.5
            if step == 1:
                diloco.step()
                assert all(torch.equal(each, at - 0.5) for each, at in zip(model.parameters(), start, strict=True))
        diloco.step()
        # Nesterov's first step: lr (1 + momentum) times the change of 1 = 0.7 * 1.9.
        for each, at in zip(model.parameters(), start, strict=True):
            assert torch.allclose(each, at - 1.33, atol=1e-6)
    finally:
        torch.distributed.destroy_process_group()


def test_a_ring_of_bytes_rounds_at_every_hop() -> None:
    x = normal(40_000)
    alone = np.sum((Int8RingMethod(2).run([x, -x], 1, 1).mean) ** 2) / np.sum(x**2)
    assert 0 < alone < 1e-4, "what one rank rounds the other does not take away"
    errors = []
    for workers in (2, 8):
        outcome = Int8RingMethod(workers).run([x] * workers, 1, 1)
        errors.append(float(np.sum((outcome.mean - x) ** 2) / np.sum(x**2)))
        assert outcome.bits.up == pytest.approx(16 * (workers - 1) / workers, rel=0.35)
    # The rounding of a step of 6/256, and more of what is beyond three standard deviations.
    assert all(1e-4 < each < 1e-3 for each in errors)
    assert Int8RingMethod(2).run([np.zeros(9, np.float32)] * 2, 1, 1).mean.tolist() == [0.0] * 9


def test_the_published_worker_makes_the_error_of_our_form_of_it() -> None:
    """THC's public worker rounds twice without bias: to a grid of 1,001 points, and from there by its table."""
    rng, bound = np.random.default_rng(5), ThcPublished(1).bound
    x = rng.standard_normal(1 << 20)
    place = np.clip(x, -bound, bound) / (2 * bound / 1000)
    point = np.clip(np.floor(place) + (rng.random(x.size) < place % 1), -500, 500) * 2 * bound / 1000
    levels = bound * (2 * np.array(PUBLISHED.values) / PUBLISHED.values[-1] - 1)
    upper = np.clip(np.searchsorted(levels, point), 1, len(levels) - 1)
    low, high = levels[upper - 1], levels[upper]
    coded = np.where(rng.random(x.size) < (point - low) / (high - low), high, low)
    assert np.mean((coded - x) ** 2) == pytest.approx(expected_nmse(PUBLISHED, 1), rel=0.02)


def test_one_worker_has_nobody_to_exchange_with() -> None:
    with pytest.raises(CodecError, match="two-shot: 1 worker has nobody"):
        TwoShotMethod(TwoShot(1))
    with pytest.raises(CodecError, match="powersgd: 1 worker has nobody"):
        PowerSgdMethod(1, 2)


PACKET_LOSS_WORKERS = 4
ELEMENTS = 3000


@cache
def codec() -> LookupTableCodec:
    return make_case_codec(LossCase("published", PACKET_LOSS_WORKERS, 1))


@pytest.fixture(scope="module")
def block() -> int:
    return codec().block_elements


@pytest.fixture(scope="module")
def learner() -> Learner:
    return Learner()


def vectors(workers: int = PACKET_LOSS_WORKERS) -> list[np.ndarray[tuple[int], np.dtype[np.float32]]]:
    return [np.random.default_rng([1, rank]).standard_normal(ELEMENTS, dtype=np.float32) for rank in range(workers)]


def fate(missing: tuple[int, int] | None = None, lost: tuple[int, int] | None = None) -> Deliveries:
    """Return what loses one contribution and one result, (worker, chunk) each."""
    present = np.ones((PACKET_LOSS_WORKERS, blocks_of(ELEMENTS, codec().block_elements)), np.bool_)
    gone = np.zeros_like(present)
    if missing:
        present[missing] = False
    if lost:
        gone[lost] = True
    return Deliveries(present, gone)


def test_the_gradient_is_that_of_the_loss(learner: Learner) -> None:
    rng = np.random.default_rng(2)
    parameters, batch = learner.draw_parameters(rng), np.arange(64)
    gradient = learner.gradient(parameters, batch)
    for _ in range(5):
        way = rng.standard_normal(PARAMETERS).astype(np.float32) * np.float32(1e-3)
        rise = learner.loss(parameters + way, batch) - learner.loss(parameters - way, batch)
        assert rise / 2 == pytest.approx(float(gradient @ way), rel=0.02, abs=2e-5)
    assert gradient.shape == (PARAMETERS,)


def test_a_missing_contribution_is_divided_away_here_and_zero_there(block: int) -> None:
    feedback = {published: [ErrorFeedback(ELEMENTS) for _ in range(PACKET_LOSS_WORKERS)] for published in (False, True)}
    missing = fate(missing=(2, 1))
    ours, theirs = (
        allreduce(codec(), vectors(), (5, 1), feedback[published], missing, published=published)
        for published in (False, True)
    )
    assert all(np.array_equal(each, ours[0]) for each in ours)
    assert all(np.array_equal(each, theirs[0]) for each in theirs)
    here = slice(block, 2 * block)
    np.testing.assert_allclose(
        theirs[0][here], ours[0][here] * (PACKET_LOSS_WORKERS - 1) / PACKET_LOSS_WORKERS, atol=1e-5
    )
    np.testing.assert_array_equal(theirs[0][:block], ours[0][:block])
    mine, whole = feedback[False][2].residual, vectors()[2]
    # All of it comes back, rounded to float32.
    np.testing.assert_allclose(mine[here], whole[here], rtol=0, atol=2.0**-21)
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
    found = draw_deliveries(np.random.default_rng(1), 10, 10_000, 0.05, 3)
    late = ~found.present.any(axis=1)
    assert late.sum() == 3
    assert found.present[~late].mean() == pytest.approx(0.95, abs=0.004)
    assert found.lost.mean() == pytest.approx(0.05, abs=0.004)
    hard = draw_deliveries(np.random.default_rng(1), 3, 1000, 0.9, 1)
    assert hard.present.any(axis=0).all()
    assert not hard.present.all(axis=1).any()
