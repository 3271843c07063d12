# SPDX-License-Identifier: Apache-2.0
"""The process-group backend, in two processes on loopback; group_worker.py uses it. Sums of codec `fixed` are exact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from .job import run_ranks

pytestmark = pytest.mark.system
WORKER = Path(__file__).with_name("group_worker.py")
Rank = dict[str, Any]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[Rank]:
    """What the two ranks printed."""
    return run_ranks(WORKER, tmp_path_factory.mktemp("group"))


def test_large_floats_go_through_the_agent_and_nothing_else(ranks: list[Rank]) -> None:
    for rank in ranks:
        assert rank["backend"] == "hopsum"
        assert rank["sums"] == {
            "float32 SUM": ["torch.float32", 1, "3.0", "3.0"],
            "float32 AVG": ["torch.float32", 1, "1.5", "1.5"],
            "float16 AVG": ["torch.float16", 1, "1.5", "1.5"],
            "bfloat16 SUM": ["torch.bfloat16", 1, "3.0", "3.0"],
            "float32 MAX": ["torch.float32", 0, "2.0", "2.0"],
            "float64 SUM": ["torch.float64", 0, "3.0", "3.0"],
            "int64 SUM": ["torch.int64", 0, "3.0", "3.0"],
            "small SUM": ["torch.float32", 0, "3.0", "3.0"],
            "small AVG": ["torch.float32", 0, "1.5", "1.5"],
            "infinite SUM": ["torch.float32", 1, "nan", "nan"],
        }


def test_several_in_flight(ranks: list[Rank]) -> None:
    assert all(rank["in_flight"] == [1, 3, 5, 7] for rank in ranks)


def test_a_dtensor_whose_work_torch_alone_holds(ranks: list[Rank]) -> None:
    assert all(rank["replicate"] == [3, 1] for rank in ranks)


def test_everything_else_is_gloo(ranks: list[Rank]) -> None:
    for number, rank in enumerate(ranks):
        assert rank["rest"] == {
            "gathered": [0, 1],
            "objects": [{"rank": 0}, {"rank": 1}],
            "broadcast": 1,
            "halves": [7, 7] if number else [3, 3],
            "received": number,
            "swapped": [3, 4] if number else [1, 2],
            "coalesced": [3, 7],
            "subgroup": ["hopsum", 3, 0],
        }


def test_ddp_without_a_hook(ranks: list[Rank]) -> None:
    first, second = (rank["train"] for rank in ranks)
    assert first["total"] == second["total"]
    for rank in (first, second):
        assert rank["gone"] == 10
        assert sum(rank["losses"][-3:]) < 0.7 * sum(rank["losses"][:3])
        assert "this process group is hopsum's own" in rank["texts"][0]


def test_what_is_refused_and_what_fails(ranks: list[Rank]) -> None:
    for number, rank in enumerate(ranks):
        foreign, options, infinite, closed = rank["refuse"]
        assert f"rank 0 of 1 in the process group, but the agent is rank {number} of 2" in foreign
        assert options.startswith("TypeError: pg_options of backend 'hopsum' is a ProcessGroupHopsum.Options of ")
        assert "hopsum.torch, not str" in options
        assert f"NonFiniteError: rank {number}: 2048 of 2048 elements are NaN" in infinite
        assert f"CommunicatorClosedError: agent of rank {number} is closed" in closed
