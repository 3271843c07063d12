# SPDX-License-Identifier: Apache-2.0
"""The jobs of a benchmark at its switches."""

from __future__ import annotations

import pytest

from hopsum_evaluation.bench.placements import window_of
from hopsum_wire import MAX_SLOTS


@pytest.mark.parametrize("jobs", range(1, 12))
def test_the_jobs_of_all_subjects_fit_a_switch(jobs: int) -> None:
    """Subjects take turns at one switch, and each has a job of its own all the time."""
    window = window_of(512, jobs)
    assert jobs * window <= MAX_SLOTS
    assert window == 512 or (jobs + 1) * 512 > MAX_SLOTS


def test_a_benchmark_without_jobs_has_its_window() -> None:
    assert window_of(512, 0) == 512
