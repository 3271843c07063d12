# SPDX-License-Identifier: Apache-2.0
"""The index: Bloom filters forget nobody, and the cheaper kind is chosen."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsum.codec import CodecError
from hopsum.codec.lossless.sketch_plan import (
    CHUNK_BITS,
    ParallelKernels,
    choose_index,
    expected_union,
    index_bits,
    require_kind,
)

from .supports import random_members, sketch_kernels


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
