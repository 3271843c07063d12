# SPDX-License-Identifier: Apache-2.0
"""The table of a job fits, nothing better fits, every machine chooses it, and error feedback gains by it."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from hopsum.codec import CodecError, LookupTable, best_table, lookup_table
from hopsum.codec.lookup_table import expected_nmse, most_workers, optimal_table, pareto_front, require_switch_table
from hopsum.codec.solved_tables import SOLVED

pytestmark = pytest.mark.system
G21 = (0, 3, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 18, 21)
PUBLISHED = LookupTable((0, 3, 5, 7, 9, 11, 13, 14, 16, 17, 19, 21, 23, 25, 27, 30), 1 / 32)
BLOCK = 256


@pytest.mark.parametrize("workers", range(1, 18))
@pytest.mark.parametrize("error_feedback", [False, True])
def test_best_table_fits_and_beats_the_published_default(workers: int, error_feedback: bool) -> None:
    table = best_table(workers, error_feedback=error_feedback)
    counted = 1 if error_feedback else workers
    assert workers * table.granularity <= 255
    require_switch_table(table)
    assert expected_nmse(table, counted) < expected_nmse(PUBLISHED, counted)


def test_best_table_of_eight_workers() -> None:
    assert best_table(8).values == G21
    assert expected_nmse(best_table(8), 8) < 0.0029
    assert expected_nmse(PUBLISHED, 8) == pytest.approx(0.0089, abs=5e-5)


@pytest.mark.parametrize("workers", [8, 12, 16])
def test_nothing_on_the_whole_grid_is_better(workers: int) -> None:
    best = expected_nmse(best_table(workers), workers)
    for granularity in range(15, 255 // workers + 1):
        for eighths in range(16, 110):
            truncated = 2.0 ** (-eighths / 8)
            other = LookupTable(optimal_table(granularity, truncated), truncated)
            assert best <= expected_nmse(other, workers) * (1 + 1e-9)


@pytest.mark.parametrize(("bits", "workers", "lane_bits"), [(4, 8, 8), (4, 3, 8), (3, 8, 8), (2, 20, 8), (4, 300, 16)])
def test_a_front_holds_what_nothing_else_beats(bits: int, workers: int, lane_bits: int) -> None:
    front = pareto_front(bits, workers, lane_bits)
    for point in front:
        assert point.table.bits == bits
        assert point.workers_per_lane == ((1 << lane_bits) - 1) // point.table.granularity >= workers
        assert point.expected_nmse == expected_nmse(point.table, workers)
    for coarse, fine in pairwise(front):
        assert coarse.workers_per_lane > fine.workers_per_lane
        assert coarse.expected_nmse > fine.expected_nmse
    assert front[-1].table == best_table(workers, lane_bits, bits)
    assert front[0].workers_per_lane == most_workers(bits, lane_bits)
    for granularity in range((1 << bits) - 1, min(((1 << lane_bits) - 1) // workers, 60) + 1):
        for truncated in (2.0**-4, 2.0**-6, 2.0**-8, 2.0**-10):
            other = LookupTable(optimal_table(granularity, truncated, bits), truncated)
            roomy = [point for point in front if point.workers_per_lane >= ((1 << lane_bits) - 1) // granularity]
            assert min(point.expected_nmse for point in roomy) <= expected_nmse(other, workers) * (1 + 1e-9)


def test_wide_codes_are_searched_too() -> None:
    front = pareto_front(6, 200, 16)
    assert front[-1].table.bits == 6
    assert 200 * front[-1].table.granularity <= 65535
    assert front[-1].expected_nmse < expected_nmse(best_table(200, 16), 200) / 4


def test_bits_are_chosen_where_they_are_left_open() -> None:
    assert best_table(8, bits=None) == best_table(8)
    assert best_table(18, bits=None) == best_table(18, bits=3)
    assert best_table(36, bits=None).values == tuple(range(8))
    assert best_table(64, bits=None) == best_table(64, bits=2)
    assert best_table(200, bits=None).values == (0, 1)
    assert best_table(64, 16, bits=None) == best_table(64, 16)


@pytest.mark.parametrize(
    ("workers", "lane_bits", "bits", "message"),
    [
        (
            18,
            8,
            4,
            r"18 workers: a lane of 8 bits holds the sum of at most 17 with codes of 4 bits \(values up to 15 at least"
            r"\); take bits=3 \(up to 36 workers\), bits=2 \(up to 85 workers\), bits=1 \(up to 255 workers\), "
            r"lane_bits=16 or codec fixed",
        ),
        (40, 8, 4, r"take bits=2 \(up to 85 workers\), bits=1"),
        (40, 8, 3, r"at most 36 with codes of 3 bits .* take bits=2"),
        (256, 8, None, "at most 255 with codes of 1 bits .* take lane_bits=16"),
        (70_000, 16, 4, "take lane_bits=32"),
        (0, 8, 4, "0 workers"),
        (4, 0, 4, "lanes of 0 bits: 1 to 32"),
        (4, 33, None, "lanes of 33 bits: 1 to 32"),
        (4, 8, 9, "9 bits: 1 to 8"),
        (4, 8, 0, "0 bits: 1 to 8"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_would(
    workers: int, lane_bits: int, bits: int | None, message: str
) -> None:
    with pytest.raises(CodecError, match=message):
        best_table(workers, lane_bits, bits)


def test_the_choice_does_not_depend_on_the_last_bits_of_exp(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [(4, 8, 8, False), (4, 16, 8, False), (3, 20, 8, False), (4, 8, 8, True), (4, 300, 16, False)]
    fronts = [[point.table for point in pareto_front(*job)] for job in jobs]
    rng, exact = np.random.default_rng(5), lookup_table._density

    def blurred(a: NDArray[np.float64]) -> NDArray[np.float64]:
        return exact(a) * (1 + rng.integers(-2, 3, a.shape) * 2.0**-52)

    monkeypatch.setattr(lookup_table, "_density", blurred)
    monkeypatch.setattr(lookup_table, "_table", cache(lookup_table._table.__wrapped__))
    lookup_table.grid_costs.cache_clear()
    again = [[point.table for point in pareto_front.__wrapped__(*job)] for job in jobs]
    lookup_table.grid_costs.cache_clear()
    assert again == fronts


def hadamard() -> NDArray[np.float64]:
    matrix = np.ones((1, 1))
    while len(matrix) < BLOCK:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return np.asarray(matrix / np.sqrt(BLOCK))


def residual_energies(table: LookupTable, workers: int, shared: float, seed: int) -> tuple[float, float]:
    """Return the mean squared element of a worker's residual, and of the workers' mean residual, in the steady state.

    Each step brings N(0, 1) gradients of which a part `shared` of the energy is the same on all workers; they are
    rotated, divided by the largest root mean square, truncated and rounded, without anything of the codec.
    """
    rng, rotation = np.random.default_rng(seed), hadamard()
    points = -table.bound + 2 * table.bound * np.array(table.values) / table.granularity
    residual = np.zeros((workers, 12, BLOCK))
    own, common = [], []
    for step in range(30):
        x = np.sqrt(1 - shared) * rng.standard_normal(residual.shape)
        x += np.sqrt(shared) * rng.standard_normal(residual.shape[1:])
        compensated = x + residual
        scale = np.sqrt(np.square(compensated).mean(axis=2, keepdims=True)).max(axis=0)
        signs = rng.choice([-1.0, 1.0], residual.shape[1:])
        a = np.clip((compensated * signs) @ rotation / scale, -table.bound, table.bound)
        upper = np.clip(np.searchsorted(points, a), 1, len(points) - 1)
        low, high = points[upper - 1], points[upper]
        rounded = np.where(rng.random(a.shape) * (high - low) < a - low, high, low)
        residual = compensated - (rounded @ rotation) * signs * scale
        if step >= 6:
            own.append(np.square(residual).mean())
            common.append(np.square(residual.mean(axis=0)).mean())
    return float(np.mean(own)), float(np.mean(common))


@pytest.mark.parametrize(("workers", "least_gain"), [(8, 0.10), (16, 0.25)])
@pytest.mark.parametrize("shared", [0.0, 1.0])
def test_the_table_for_error_feedback_leaves_a_smaller_residual(workers: int, least_gain: float, shared: float) -> None:
    without, with_ = (
        residual_energies(best_table(workers, error_feedback=ef), workers, shared, 7) for ef in (False, True)
    )
    assert with_[0] < without[0] * (1 - least_gain)
    if shared == 0.0:
        assert with_[1] < without[1]


def test_the_residual_is_what_the_contraction_says() -> None:
    """Gradients of energy 1, new ones every step: R = c (1 + R), so R = c / (1 - c)."""
    table = best_table(8, error_feedback=True)
    contraction = expected_nmse(table, 1)
    measured, _ = residual_energies(table, 8, 1.0, 3)
    assert measured == pytest.approx(contraction / (1 - contraction), rel=0.03)


@pytest.mark.parametrize(("lane_bits", "workers"), [(8, 16), (8, 17), (8, 18), (8, 36), (8, 64), (16, 64)])
def test_solved_tables_are_what_the_search_finds(lane_bits: int, workers: int) -> None:
    """`tools/generate_tables.py --check` compares all of them, which takes minutes."""
    assert best_table(workers, lane_bits, bits=None) == lookup_table.search_table(workers, lane_bits, None, False)


def test_solved_tables_hold_all_jobs_of_64_workers_and_fit_their_lanes() -> None:
    assert list(SOLVED) == [(lane_bits, workers) for lane_bits in (8, 16) for workers in range(1, 65)]
    for (lane_bits, workers), (values, eighths) in SOLVED.items():
        table = LookupTable(values, 2.0 ** (-eighths / 8))
        require_switch_table(table)
        assert workers * table.granularity < 1 << lane_bits
