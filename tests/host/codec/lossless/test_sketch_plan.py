# SPDX-License-Identifier: Apache-2.0
"""Plans, supports that peel, and the index: sizes, thresholds, layouts, and filters that forget nobody."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsum.codec import CodecError
from hopsum.codec.lossless.sketch_kernels import SketchLayout
from hopsum.codec.lossless.sketch_plan import (
    CHUNK_BITS,
    GAMMA,
    ParallelKernels,
    SketchPlan,
    choose_index,
    expected_union,
    index_bits,
    make_plan,
    require_gamma,
    require_kind,
)
from hopsum_evaluation.report.lossless_claims import count_unpeeled

from .supports import Members, dense_blocks, one_column, random_members, sketch_kernels


def shape(plan: SketchPlan) -> list[object]:
    segments = [(s.members, s.layout, s.order.size, s.rest.tolist(), s.first_cell) for s in plan.segments]
    return [segments, plan.cells, plan.packed.tolist()]


def test_a_good_size_is_kept(backend: str) -> None:
    members = random_members(1 << 18, 0.05)
    plan = make_plan(sketch_kernels(backend), members, 1.25, 9)
    assert len(plan.segments) == 1
    assert 1.25 * members.size <= plan.cells < 1.25 * members.size + 3
    assert plan.packed.size <= members.size // 64


def test_large_supports_are_cut_and_threads_change_nothing() -> None:
    members = random_members(1 << 22, 0.1)
    kernels = sketch_kernels("numba")
    plan = make_plan(kernels, members, GAMMA, 9, threads=1)
    assert len(plan.segments) == members.size >> 16 == 6
    assert [s.members.start for s in plan.segments][1:] == [s.members.stop for s in plan.segments][:-1]
    assert plan.lanes < 1.27 * members.size
    assert shape(plan) == shape(make_plan(kernels, members, GAMMA, 9, threads=3))


def test_a_sketch_that_fails_grows(backend: str) -> None:
    members = random_members(1 << 17, 0.05)
    kernels = sketch_kernels(backend)
    assert count_unpeeled(kernels, members, 1.12) > members.size / 3
    plan = make_plan(kernels, members, 1.12, 9)
    assert 1.23 * members.size < plan.cells < 1.33 * members.size
    assert plan.packed.size <= members.size // 64


def test_what_never_peels_is_packed(backend: str) -> None:
    members = random_members(1 << 17, 0.05)
    plan = make_plan(sketch_kernels(backend), members, 0.5, 9)
    assert plan.cells == 0
    assert plan.lanes == members.size
    np.testing.assert_array_equal(plan.packed, np.arange(members.size))


def test_without_gamma_nothing_is_peeled(backend: str) -> None:
    members = random_members(1 << 18, 0.5)
    plan = make_plan(sketch_kernels(backend), members, 0, 9)
    assert (plan.cells, plan.lanes) == (0, members.size)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    elements=st.integers(1, 20_000),
    density=st.sampled_from([0.0, 0.001, 0.05, 1.0]),
    gamma=st.sampled_from([0.0, 0.9, 1.15, 1.22, 1.25, 2.0]),
    key=st.integers(0, (1 << 64) - 1),
)
def test_every_member_is_in_a_sketch_or_packed(elements: int, density: float, gamma: float, key: int) -> None:
    members = random_members(elements, density, key % 997)
    plans = [make_plan(sketch_kernels(b), members, gamma, key) for b in ("numpy", "numba")]
    assert shape(plans[0]) == shape(plans[1])
    plan = plans[0]
    sketched = [s.members.start + (s.order >> np.uint32(3)).astype(np.int64) for s in plan.segments]
    covered = np.concatenate([plan.packed.astype(np.int64), *sketched])
    np.testing.assert_array_equal(np.sort(covered), np.arange(members.size))
    assert (np.diff(plan.packed.astype(np.int64)) > 0).all()


@pytest.mark.parametrize(("gamma", "message"), [(-0.1, "gamma -0.1"), (float("nan"), "gamma nan"), (9.0, "up to 8")])
def test_impossible_sizes_are_refused(gamma: float, message: str) -> None:
    with pytest.raises(CodecError, match=message):
        require_gamma(gamma)


def left_over(backend: str, members: Members, gamma: float, block_elements: int = 1024) -> list[float]:
    """Return the share of members that do not peel, for five sets of hash functions."""
    kernels = sketch_kernels(backend)
    left = [count_unpeeled(kernels, members, gamma, block_elements=block_elements, key=key) for key in range(5)]
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


@pytest.mark.parametrize("third", [1, 2, 31, 32, 63, 64, 1000, 40_000])
@pytest.mark.parametrize("block_elements", [1, 4, 1024])
def test_blocks_are_short_compared_with_a_third(third: int, block_elements: int) -> None:
    layout = SketchLayout.with_blocks(third, block_elements, 1)
    assert 1 << layout.block_shift <= max(1, third // 32)
    assert 1 << layout.block_shift <= block_elements
    assert layout.cells == 3 * third


@pytest.mark.parametrize("density", [0.0005, 0.01, 0.05])
def test_a_filter_holds_its_members_and_few_others(backend: str, density: float) -> None:
    elements = 1 << 18
    members = random_members(elements, density)
    bloom = choose_index("bloom", elements, float(members.size), 1.25, 12345)
    assert bloom is not None
    held = np.zeros(bloom.bits // 8, np.uint8)
    kernels = ParallelKernels(sketch_kernels(backend), 2)
    kernels.kernels.bloom_add(members, bloom, held)
    found = kernels.select(kernels.query(elements, bloom, held))
    assert np.isin(members, found).all()
    expected = (elements - members.size) * (np.unpackbits(held).mean() ** bloom.hashes)
    assert abs(found.size - members.size - expected) < 6 * np.sqrt(expected) + 0.05 * expected + 3


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    elements=st.integers(1, 1 << 24),
    share=st.floats(0, 1),
    workers=st.integers(1, 64),
    gamma=st.sampled_from([1.0, 1.25, 8.0]),
)
def test_auto_is_never_larger_than_a_bitmap(elements: int, share: float, workers: int, gamma: float) -> None:
    union = max(1.0, expected_union(elements, max(1, int(share * elements)), workers))
    assert union <= elements * (1 + 1e-9)
    bloom = choose_index("auto", elements, union, gamma, 1)
    assert index_bits(elements, bloom) <= -(-elements // CHUNK_BITS) * CHUNK_BITS
    if share > 0.05:
        assert bloom is None, "a filter would save too little"


def test_auto_takes_a_filter_for_thin_supports() -> None:
    elements = 1 << 24
    thin = choose_index("auto", elements, elements / 1000, 1.25, 1)
    assert thin is not None
    assert index_bits(elements, thin) < elements / 30
    assert choose_index("auto", elements, elements / 5, 1.25, 1) is None
    assert choose_index("bitmap", elements, elements / 1000, 1.25, 1) is None
    assert choose_index("bloom", elements, elements / 5, 1.25, 1) is not None


def test_unknown_kinds_are_refused() -> None:
    with pytest.raises(CodecError, match="one of auto, bitmap, bloom"):
        require_kind("trie")
