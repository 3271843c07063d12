# SPDX-License-Identifier: Apache-2.0
"""Supports that peel: the threshold, structured supports, and the published layout beside ours."""

from __future__ import annotations

import numpy as np
import pytest

from hopsum.codec.hashing import block_keys
from hopsum.codec.lossless.sketch_kernels import SketchLayout
from hopsum.codec.lossless.sketch_plan import unpeeled

from .supports import Members, dense_blocks, one_column, random_members, sketch_kernels


def left_over(backend: str, members: Members, gamma: float, block_elements: int = 1024) -> list[float]:
    """Return the share of members that do not peel, for five sets of hash functions."""
    kernels = sketch_kernels(backend)
    left = [unpeeled(kernels, members, gamma, block_elements=block_elements, key=key) for key in range(5)]
    return [count / members.size for count in left]


@pytest.mark.parametrize("block_elements", [1, 64, 1024])
@pytest.mark.parametrize(("gamma", "fails"), [(1.0, True), (1.1, True), (1.2, True), (1.25, False), (1.5, False)])
def test_the_threshold_is_sharp(gamma: float, fails: bool, block_elements: int) -> None:
    """1.222 cells per element in theory (Molloy 2005): below it most elements stay, above it hardly any."""
    shares = left_over("numba", random_members(1 << 20, 0.05), gamma, block_elements)
    if fails:
        assert min(shares) > 0.4
    else:
        assert max(shares) < 1e-3


@pytest.mark.parametrize(
    "members",
    [one_column(20_000), dense_blocks(64, 4096), dense_blocks(512, 4096), np.arange(1 << 18, dtype=np.uint32)],
    ids=["one column", "64 dense blocks", "512 dense blocks", "dense vector"],
)
def test_structured_supports_peel_too(members: Members) -> None:
    assert sorted(left_over("numba", members, 1.3))[3] < 1e-3, "4 of 5 sets of hash functions"


def aligned_left_over(members: Members, gamma: float, key: int) -> int:
    """Peel with the published layout: a block of 1024 is three whole rows, an element keeps its column."""
    rows = max(1, -(-int(gamma * members.size) // 3072))
    bits = block_keys(key, 0, int(members[-1]) // 1024 + 1)[members // 1024]
    row = [(bits >> np.uint64(20 * j) & np.uint64(0xFFFFF)).astype(np.int64) * rows >> 20 for j in range(3)]
    cells = np.stack([(j * rows + row[j]) * 1024 + members % 1024 for j in range(3)])
    left = np.ones(members.size, np.bool_)
    while True:
        degrees = np.bincount(cells[:, left].reshape(-1), minlength=3072 * rows)
        alone = left & (degrees[cells] == 1).any(axis=0)
        if not alone.any():
            return int(left.sum())
        left &= ~alone


def test_shifted_blocks_peel_where_aligned_ones_do_not() -> None:
    """1 M elements at 5 %: 51 elements in a column on average, so half of the columns have more than they can bear."""
    members = random_members(1 << 20, 0.05)
    aligned = aligned_left_over(members, 1.3, 3) / members.size
    assert aligned > 0.1
    assert max(left_over("numba", members, 1.3)) == 0
    column = one_column(5000)
    assert aligned_left_over(column, 1.3, 3) > 0.5 * column.size
    assert max(left_over("numba", column, 1.3)) < 0.01


@pytest.mark.parametrize("third", [1, 2, 31, 32, 63, 64, 1000, 40_000])
@pytest.mark.parametrize("block_elements", [1, 4, 1024])
def test_blocks_are_short_beside_a_third(third: int, block_elements: int) -> None:
    layout = SketchLayout.of(third, block_elements, 1)
    assert 1 << layout.block_shift <= max(1, third // 32)
    assert 1 << layout.block_shift <= block_elements
    assert layout.cells == 3 * third
