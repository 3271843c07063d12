# SPDX-License-Identifier: Apache-2.0
"""The scenarios of test_register.py with matrices of rank 1, in two processes with gloo on loopback.

Rank 1 multiplies as on a device. Model's matrices are of 8 x 32, 32 x 48 and 48 x 20; the first step of each scenario
is whole.
"""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from .job import run_ranks
from .test_register import ROUNDING, WORKER, Rank, assert_balanced

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[Rank]:
    """The lines that the two ranks printed."""
    return run_ranks(WORKER, tmp_path_factory.mktemp("low_rank"), "low rank")


@pytest.mark.parametrize(("scenario", "steps"), [("no_sync", 6), ("accumulated", 12)])
def test_gradient_accumulation(ranks: list[Rank], scenario: str, steps: int) -> None:
    for rank in ranks:
        assert_balanced(rank[scenario])
        assert rank[scenario]["steps"] == steps
        assert rank[scenario]["allreduces"] == 1 + 9 * (steps - 1), "three buckets, of vectors, P and Q"


@pytest.mark.parametrize(("dtype", "rounding"), [("float32", 2 * ROUNDING), ("bfloat16", 0.04), ("float16", 0.004)])
def test_parameters_of_each_type(ranks: list[Rank], dtype: str, rounding: float) -> None:
    first, second = (rank[f"torch.{dtype}"] for rank in ranks)
    assert first["digest"] == second["digest"]
    for rank in (first, second):
        assert_balanced(rank, rounding)
        assert sum(rank["losses"][-5:]) < 0.8 * sum(rank["losses"][:5])


def test_a_grad_scaler_skips_the_whole_step_on_all_ranks(ranks: list[Rank]) -> None:
    first, second = (rank["scale"] for rank in ranks)
    assert first["digest"] == second["digest"]
    for rank in (first, second):
        assert rank["moved"] == [step != 4 for step in range(9)]
        assert rank["nan"] == [8 if step == 4 else 0 for step in range(9)]
        assert rank["kept"] == [step == 4 for step in range(9)]
        assert_balanced(rank, 2 * ROUNDING)


def test_parameters_that_no_rank_uses_keep_their_residuals(ranks: list[Rank]) -> None:
    for rank in ranks:
        assert_balanced(rank["unused"], 2 * ROUNDING)
        idle = [[], ["right"], [], ["left"], [], ["right"], []]
        assert rank["unused"]["nothing"] == rank["unused"]["kept"] == idle


def test_both_ways_and_warm_up(ranks: list[Rank]) -> None:
    """A trial compares steps of factors with the process group. Residuals go from one to the other."""
    for rank in ranks:
        assert_balanced(rank["warm_up"], 2 * ROUNDING)
        through_gloo, through_hopsum = rank["auto"]["books"]
        assert through_gloo["largest"] == 0, "what was left has been delivered"
        assert through_gloo["out"] < 2 * ROUNDING
        assert_balanced(through_hopsum, 4 * ROUNDING)


def test_parameters_that_are_no_matrices(ranks: list[Rank]) -> None:
    for rank in ranks:
        assert_balanced(rank["small"], 2 * ROUNDING)
        assert rank["small"]["left"] == ["trunk.0.weight", "trunk.2.weight"]
        if rank["kinds"]:
            assert_balanced(rank["kinds"], 1e-4)


@pytest.mark.parametrize("run", [0, 1], ids=["compressed", "uncompressed"])
def test_a_nan_is_an_error_on_all_ranks_and_the_next_step_follows(ranks: list[Rank], run: int) -> None:
    for number, rank in enumerate(ranks):
        book = rank["error"]["runs"][run]
        assert_balanced(book, 2 * ROUNDING)
        (text,) = book["texts"]
        assert ("right.weight" in text) if number else "another rank's vector" in text
        assert book["kept"] == [False, True, False, False]
        assert book["failure"] == "NonFiniteError"


def test_two_models_in_one_backward_pass(ranks: list[Rank]) -> None:
    for rank in ranks:
        for book in rank["pair"]:
            assert_balanced(book, 2 * ROUNDING)


def test_torchs_own_wrapper_around_the_hook(ranks: list[Rank]) -> None:
    first, second = (rank["registered"] for rank in ranks)
    assert first["digest"] == second["digest"]
    assert first["finite"]
