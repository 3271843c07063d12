# SPDX-License-Identifier: Apache-2.0
"""DDP over a dimension of a mesh: what tensor parallelism replicates stays the same, and the ranks that connect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from .job import run_processes

pytestmark = pytest.mark.system
WORKER = Path(__file__).with_name("tensor_parallel_worker.py")
SHARDED = ["down.weight", "up.bias", "up.weight"]
REPLICATED = ["down.bias", "head.bias", "head.weight", "norm.bias", "norm.weight"]
Rank = dict[str, Any]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[Rank]:
    """The lines that the four ranks printed: data-parallel times tensor-parallel."""
    return run_processes(WORKER, [[str(rank)] for rank in range(4)], tmp_path_factory.mktemp("tensor_parallel"))


@pytest.mark.parametrize("way", ["plain", "whole", "factors"])
def test_copies_stay_the_same(ranks: list[Rank], way: str) -> None:
    digests = [rank[way]["digests"] for rank in ranks]
    for name in REPLICATED:
        assert len({each[name] for each in digests}) == 1, name
    for name in SHARDED:
        assert digests[0][name] == digests[2][name], f"replicas of {name} differ"
        assert digests[1][name] == digests[3][name], f"replicas of {name} differ"
        assert digests[0][name] != digests[1][name], f"{name} has no shards: the test proves nothing"


@pytest.mark.parametrize("way", ["whole", "factors"])
def test_shards_alone_are_compressed(ranks: list[Rank], way: str) -> None:
    for number, rank in enumerate(ranks):
        assert rank[way]["compressed"] == SHARDED
        line = (
            "not compressed, since tensor parallelism replicates them: "
            "down.bias, head.bias, head.weight, norm.bias and 1 more"
        )
        assert rank[way]["lines"].count(line) == (number < 2), "the first data-parallel rank says it"
    assert ranks[0][way]["digests"]["up.weight"] != ranks[0]["plain"]["digests"]["up.weight"]


def test_what_cannot_be_left_uncompressed(ranks: list[Rank]) -> None:
    for rank in ranks:
        late, rare, *module = rank["refused"]
        assert "register the hook before it" in late
        names = "down.bias, head.bias, head.weight, norm.bias and 1 more would drift apart"
        assert f"DiLoCo with tensor parallelism: {names}" in rare
        # Older torch has no `replicate`.
        assert all(f"register_all_reduce_hook with tensor parallelism: {names}" in each for each in module)


def test_the_one_line_connects_the_ranks_of_the_process_group(ranks: list[Rank]) -> None:
    """Ranks 0 and 3 do not take part. A setting of rank 2 that does not fit is an error on both that do."""
    first, second = ranks[1]["one_line"], ranks[2]["one_line"]
    assert (first["place"], second["place"]) == ([0, 2], [1, 2])
    assert first["digest"] == second["digest"]
    for rank in (first, second):
        collective, setting = rank["texts"]
        assert "has 2 of 4 ranks, and needs its process group for itself: make another group" in collective
        assert "environment variable HOPSUM_LEASE_S is 'sixty'" in setting
    assert "rank 1: " in first["texts"][1]
