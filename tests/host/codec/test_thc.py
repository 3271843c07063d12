# SPDX-License-Identifier: Apache-2.0
"""Codecs thc and uhc: their error against theory, the table of stochastic rounding, ranges, what is clipped."""

from __future__ import annotations

import numpy as np
import pytest

from hopsum.codec import ReductionContext, SharedRanges, make_codec
from hopsum.codec.lookup_table import best_table, expected_nmse, rounding_error, truncation_error
from hopsum.codec.thc import HUGE, TINY, LookupTableCodec, Thc
from hopsum.codec.vector_reduction import INFINITE
from hopsum_evaluation.expected_error import expected_normal_nmse
from hopsum_evaluation.simulated_allreduce import simulate_allreduce

from .conftest import MOST_NMSE, maker
from .vectors import dither_error, encode_alone, layered, nmse, normal

ELEMENTS = 1 << 19


ERRORS = [
    *(("thc:rounding=stochastic", workers, 0.03) for workers in (1, 2, 4, 8, 12, 15)),
    *(("thc:rounding=stochastic,error_feedback=true", workers, 0.05) for workers in (4, 7)),
    ("thc:rounding=stochastic,lane_bits=16", 4, 0.05),
    # Where 6 bits or more leave little else, truncation of a few elements is a good part of the error, and noisy.
    *((f"uhc:bits={bits}", 4, 0.04 if bits < 6 else 0.15) for bits in range(1, 9)),
]


@pytest.mark.parametrize(("spelled", "workers", "off"), ERRORS)
def test_error_is_the_expected_one(spelled: str, workers: int, off: float) -> None:
    codec, x = make_codec(spelled, workers=workers), normal(ELEMENTS, seed=workers)
    assert isinstance(codec, LookupTableCodec)
    means = simulate_allreduce(codec, [x] * workers, seed=3, step=workers)
    assert means is not None
    assert nmse(means[0], x) == pytest.approx(expected_nmse(codec.table, workers), rel=off)


@pytest.mark.parametrize(("lane_bits", "error_feedback"), [(8, False), (16, False), (8, True)])
def test_the_table_is_the_best_one(lane_bits: int, error_feedback: bool) -> None:
    options = {"lane_bits": lane_bits, "error_feedback": error_feedback}
    codec = make_codec("thc:rounding=stochastic", workers=4, **options)
    assert isinstance(codec, LookupTableCodec)
    assert codec.table == best_table(4, lane_bits, None, error_feedback)


@pytest.mark.parametrize(("spelled", "most"), [("thc:rounding=stochastic", 0.015), ("thc", 0.06)])
@pytest.mark.parametrize("shape", ["one element", "constant", "alternating", "layered"])
def test_rotation_makes_any_vector_normal(backend: str, shape: str, spelled: str, most: float) -> None:
    """Vectors whose own coordinates no table would fit have at most the error of a normal one, block by block."""
    blocks, element = 128, np.arange(128 * 1024)
    x = {
        "one element": np.where(element % 1024 == 77, 5.0, 0.0),
        "constant": np.full(element.size, 2.0),
        "alternating": 1.0 - 2.0 * (element % 2),
        "layered": layered(element.size),
    }[shape].astype(np.float32)
    codec = make_codec(spelled, workers=8, backend=backend)
    assert isinstance(codec, LookupTableCodec)
    means = simulate_allreduce(codec, [x] * 8, seed=3, step=1)
    assert means is not None
    errors = [nmse(means[0][b * 1024 : (b + 1) * 1024], x[b * 1024 : (b + 1) * 1024]) for b in range(blocks)]
    assert np.mean(errors) < 1.15 * expected_normal_nmse(codec)
    assert max(errors) < most


def test_a_range_per_block_serves_small_blocks_too(backend: str) -> None:
    """Energy concentrated in one block would leave a range per tensor nothing for the others."""
    x = normal(16 * 1024)
    x[:1024] *= np.float32(1e6)
    means = simulate_allreduce(make_codec("thc", workers=4, backend=backend), [x] * 4, seed=3, step=1)
    assert means is not None
    assert nmse(means[0][1024:], x[1024:]) < MOST_NMSE["thc"]


def test_ranges_are_root_mean_squares_with_limits(backend: str) -> None:
    codec = make_codec("thc", workers=4, backend=backend)
    x = layered(2500)
    padded = np.zeros(3072)
    padded[:2500] = x
    expected = np.sqrt((padded.reshape(3, 1024) ** 2).mean(axis=1))
    np.testing.assert_allclose(codec.ranges(x).view(np.float32), expected, rtol=1e-7)
    assert codec.ranges(np.full(1024, HUGE, np.float32)).view(np.float32)[0] == HUGE
    assert codec.ranges(np.full(1024, 2 * HUGE, np.float32))[0] == INFINITE
    assert codec.ranges(np.full(1024, 3.4e38, np.float32))[0] == INFINITE


def test_a_block_beyond_its_range_changes_no_other(backend: str) -> None:
    """Shifts are worked out only where some block needs one: the codes of the rest must be the same either way."""
    codec = make_codec("thc", workers=4, backend=backend)
    x = layered(8 * 1024)
    own = codec.ranges(x)
    shared = own.view(np.float32).copy()
    plain = codec.encode(x, own, SharedRanges(shared.copy()), ReductionContext(1, 1, 0))
    shared[3] /= 10
    clipped = codec.encode(x, own, SharedRanges(shared), ReductionContext(1, 1, 0))
    assert [block for block in range(8) if (plain[block] != clipped[block]).any()] == [3]


@pytest.mark.parametrize("form", ["thc", "thc2", "stochastic", "stochastic16"])
@pytest.mark.parametrize(("magnitude", "dropped"), [(TINY * 0.99, True), (TINY, False), (HUGE, False)])
def test_between_the_limits_nothing_is_lost(backend: str, form: str, magnitude: float, dropped: bool) -> None:
    codec = maker(form)(4, backend=backend)
    x = np.where(normal(2048) > 0, magnitude, -magnitude).astype(np.float32)
    payloads, shared = encode_alone(codec, x, ReductionContext(1, 1, 0))
    mine = codec.dequantize_own(payloads, shared, x.size, ReductionContext(1, 1, 0))
    assert np.isfinite(mine).all()
    assert not mine.any() if dropped else nmse(mine, x) < MOST_NMSE.get(form, 0.03)


@pytest.mark.parametrize("spelled", ["thc:rounding=stochastic", "thc", "thc:bits=2"])
@pytest.mark.parametrize("ratio", [1.0, 1.5, 3.0])
def test_a_block_beyond_its_range_is_clipped_and_not_shrunk(backend: str, spelled: str, ratio: float) -> None:
    """Shrinking would leave (1 - 1/ratio)^2 of the energy: 11 % and 44 %. 4 bits leave 3 % and 13 % or 21 %."""
    codec, x, context = make_codec(spelled, workers=8, backend=backend), normal(1 << 17), ReductionContext(1, 2, 0)
    assert isinstance(codec, Thc)
    bound = codec.bound / ratio
    left = rounding_error(codec.table.values, bound)
    if codec.dither is not None:
        left = (2 * bound / codec.granularity) ** 2 * dither_error(codec.dither)
    own = codec.ranges(x)
    shared = SharedRanges(own.view(np.float32) / np.float32(ratio))
    payloads = codec.encode(x, own, shared, context)
    left += truncation_error(bound)
    assert nmse(codec.dequantize_own(payloads, shared, x.size, context), x) == pytest.approx(left, rel=0.03)
