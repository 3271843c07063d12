# SPDX-License-Identifier: Apache-2.0
"""Plans: sizes, growth, what is packed, and that all ranks make the same one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsum.codec import CodecError
from hopsum.codec.lossless.sketch_plan import Sizing, SketchPlan, make_plan, unpeeled

from .supports import Members, random_members, sketch_kernels


def shape(plan: SketchPlan) -> list[object]:
    segments = [(s.members, s.layout, s.order.size, s.rest.tolist(), s.first_cell) for s in plan.segments]
    return [segments, plan.cells, plan.packed.tolist()]


def test_a_good_size_is_kept(backend: str) -> None:
    members = random_members(1 << 18, 0.05)
    plan = make_plan(sketch_kernels(backend), members, Sizing(1.25), 9)
    assert len(plan.segments) == 1
    assert 1.25 * members.size <= plan.cells < 1.25 * members.size + 3
    assert plan.packed.size <= members.size // 64


def test_large_supports_are_cut_and_threads_change_nothing() -> None:
    members = random_members(1 << 22, 0.1)
    kernels = sketch_kernels("numba")
    plan = make_plan(kernels, members, Sizing(), 9, threads=1)
    assert len(plan.segments) == members.size >> 16 == 6
    assert [s.members.start for s in plan.segments][1:] == [s.members.stop for s in plan.segments][:-1]
    assert plan.lanes < 1.27 * members.size
    assert shape(plan) == shape(make_plan(kernels, members, Sizing(), 9, threads=3))


def test_a_sketch_that_fails_grows(backend: str) -> None:
    members = random_members(1 << 17, 0.05)
    kernels = sketch_kernels(backend)
    assert unpeeled(kernels, members, 1.12) > members.size / 3
    plan = make_plan(kernels, members, Sizing(1.12), 9)
    assert 1.23 * members.size < plan.cells < 1.33 * members.size
    assert plan.packed.size <= members.size // 64


def test_what_never_peels_is_packed(backend: str) -> None:
    members = random_members(1 << 17, 0.05)
    plan = make_plan(sketch_kernels(backend), members, Sizing(0.5), 9)
    assert plan.cells == 0
    assert plan.lanes == members.size
    np.testing.assert_array_equal(plan.packed, np.arange(members.size))


def test_without_gamma_nothing_is_peeled(backend: str) -> None:
    members = random_members(1 << 18, 0.5)
    plan = make_plan(sketch_kernels(backend), members, Sizing(0), 9)
    assert (plan.cells, plan.lanes) == (0, members.size)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    elements=st.integers(1, 20_000),
    density=st.sampled_from([0.0, 0.001, 0.05, 1.0]),
    gamma=st.sampled_from([0.0, 0.9, 1.15, 1.22, 1.25, 2.0]),
    block=st.sampled_from([1, 64, 1024]),
    key=st.integers(0, (1 << 64) - 1),
)
def test_every_member_is_in_a_sketch_or_packed(
    elements: int, density: float, gamma: float, block: int, key: int
) -> None:
    members = random_members(elements, density, key % 997)
    plans = [make_plan(sketch_kernels(b), members, Sizing(gamma, block), key) for b in ("numpy", "numba")]
    assert shape(plans[0]) == shape(plans[1])
    plan = plans[0]
    sketched = [s.members.start + (s.order >> np.uint32(3)).astype(np.int64) for s in plan.segments]
    covered = np.concatenate([plan.packed.astype(np.int64), *sketched])
    np.testing.assert_array_equal(np.sort(covered), np.arange(members.size))
    assert (np.diff(plan.packed.astype(np.int64)) > 0).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gamma": -0.1}, "gamma -0.1"),
        ({"gamma": float("nan")}, "gamma nan"),
        ({"gamma": 9.0}, "up to 8"),
        ({"block_elements": 1000}, "power of two"),
        ({"block_elements": 0}, "power of two"),
        ({"attempts": 0}, "at least 1"),
    ],
)
def test_impossible_sizes_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(CodecError, match=message):
        Sizing(**options)  # type: ignore[arg-type]


def test_the_study_function_refuses_more_than_words_can_count() -> None:
    members: Members = np.zeros((1 << 24) + 1, np.uint32)
    with pytest.raises(CodecError, match="at most 16777216"):
        unpeeled(sketch_kernels("numpy"), members, 1.3)
