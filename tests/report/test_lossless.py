# SPDX-License-Identifier: Apache-2.0
"""What peels: graphs worked out by hand, the threshold of theory; and the arithmetic of speed-ups."""

from __future__ import annotations

import numpy as np
import pytest

from hopsum.cli.report.lossless import speedup
from hopsum.cli.report.peeling import THRESHOLD, our_share_left, our_threshold, peels, published_columns


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
