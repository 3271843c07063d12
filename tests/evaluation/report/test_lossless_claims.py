# SPDX-License-Identifier: Apache-2.0
"""Peeling: graphs worked out by hand, the threshold of theory; and the arithmetic of speed-ups."""

from __future__ import annotations

import numpy as np
import pytest

from hopsum_evaluation.report.experiment import Settings, Size
from hopsum_evaluation.report.lossless_claims import (
    THRESHOLD,
    iteration_speedup,
    measure_density,
    measure_iterations,
    our_share_left,
    our_threshold,
    peels,
    published_columns,
    speedup,
)

pytestmark = pytest.mark.system


@pytest.mark.parametrize(
    ("edges", "whole"),
    [
        ([], True),
        ([[0, 1, 2]], True),
        ([[0, 1, 2], [0, 1, 2]], False),  # no cell has one edge only
        ([[0, 1, 2], [0, 1, 3]], True),
        ([[0, 0, 0]], False),  # three times in one cell
        ([[0, 1, 2], [2, 3, 4], [4, 5, 0]], True),
        ([[0, 1, 2], [0, 1, 2], [2, 3, 4]], False),
        ([[0, 1, 2], [0, 1, 3], [0, 2, 3], [1, 2, 3]], False),
    ],
)
def test_graphs_peel_as_they_do_by_hand(edges: list[list[int]], whole: bool) -> None:
    assert peels(np.array(edges, np.int64).reshape(-1, 3), 6) is whole


def test_sketches_peel_above_the_threshold_and_fail_at_once_below() -> None:
    rng = np.random.default_rng(3)
    assert our_threshold(1 << 15, 0.05, rng) == pytest.approx(THRESHOLD, abs=0.04)
    assert our_share_left(1 << 15, 1.1, 0.05, rng) > 0.4
    assert our_share_left(1 << 15, 1.35, 0.05, rng) == 0


def test_columns_of_the_published_layout_need_more() -> None:
    shares = [published_columns(1 << 13, gamma, 0.05, 8, np.random.default_rng(4)) for gamma in (1.0, 2.5)]
    assert shares == [0.0, 1.0]


def test_speedups_are_those_of_codec_and_link_one_after_the_other() -> None:
    assert speedup(float("inf"), 0.1, 1e9) == pytest.approx(10)
    assert speedup(1e9 / 32, 0.0, 1e9) == pytest.approx(1)
    assert speedup(1e9 / 32, 0.5, 1e9) == pytest.approx(1 / 1.5)


def test_iterations_have_the_compute_on_both_sides() -> None:
    million = 10**6
    assert iteration_speedup(0.0, million, 5e7, 0.1, 1e9) == pytest.approx(speedup(5e7, 0.1, 1e9))
    assert iteration_speedup(0.032, million, float("inf"), 0.0, 1e9) == pytest.approx(2)  # a link of 32 ms, then none
    assert iteration_speedup(0.032, million, 1e6 / 0.032, 0.5, 1e9) == pytest.approx(64 / 80)
    assert iteration_speedup(1e9, million, 5e7, 0.1, 1e9) == pytest.approx(1)


def test_compute_is_measured_in_one_thread_that_is_given_back() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        found = measure_iterations(Settings(1, Size.SMALL), 2)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert found is not None
    assert found["parameters"] == 1_012_426
    assert len(found["compute_s"]) == 2
    assert min(found["compute_s"]) > 1e-4  # a million parameters, 32 images: 0.3 G operations at the least


def test_word_embeddings_have_a_gradient_in_the_rows_of_their_words_alone() -> None:
    pytest.importorskip("torch")
    found = measure_density(Settings(1, Size.SMALL))
    assert found is not None
    assert found["parameters"] == 2 * 512 * 256
    # Of the 1,024 rows: at most 64 predicted words with four around each, the word itself and five negative samples.
    assert 0 < found["worker"] * 1024 <= 64 * (4 + 1 + 5)
    assert found["worker"] < found["sum"] <= 4 * found["worker"]
    assert measure_density(Settings(2, Size.SMALL)) != found
