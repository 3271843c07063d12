# SPDX-License-Identifier: Apache-2.0
"""Digits: `thc` with `digits=k` puts k elements into a lane of 32 bits, summed by ADD32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.host.codec.vectors import layered, nmse, normal, require_equal_backends, require_equal_runs

from hopsum.codec import CodecError, ErrorFeedback, ReductionContext, make_codec
from hopsum.codec.backends import load_kernels
from hopsum.codec.base import job_tables
from hopsum.codec.digits import LEAST_DIGITS, finest_granularity, largest_radix, pack_digits, split_digits
from hopsum.codec.range_codec import RangeReduction
from hopsum.codec.simulate import simulate_allreduce, simulate_switch
from hopsum.codec.table import LookupTable, even_table, expected_nmse
from hopsum.codec.thc import Thc
from hopsum_controlplane.errors import ControlPlaneError
from hopsum_controlplane.lanes import check_digits
from hopsum_wire import Op

SIZES = (1, 255, 256, 257, 6 * 256 - 1, 6 * 256, 6 * 256 + 1, 13 * 256 + 7)
"""Blocks that fill chunks of 6, and blocks that do not; a last block that is whole, nearly whole, or nearly empty."""


def with_digits(workers: int, digits: int, backend: str = "numpy", **options: Any) -> Thc:
    made = make_codec("thc", workers=workers, digits=digits, backend=backend, **options)
    assert isinstance(made, Thc)
    return made


def summed(
    reductions: list[RangeReduction], present: NDArray[np.bool_] | None = None
) -> tuple[NDArray[np.uint8], NDArray[np.uint64]]:
    phases = [each.phase for each in reductions if each.phase is not None]
    return simulate_switch(phases[0].op, [each.payloads for each in phases], None, present)


def begin(codec: Thc, vectors: list[NDArray[np.float32]], kept: list[ErrorFeedback]) -> list[RangeReduction]:
    """Begin an all-reduce, and take its ranges."""
    reductions = [
        codec.start(x, ReductionContext(1, 2, rank), feedback)
        for rank, (x, feedback) in enumerate(zip(vectors, kept, strict=True))
    ]
    ranges, everybody = summed(reductions)
    for each in reductions:
        each.take(ranges, everybody)
    return reductions


@settings(deadline=None, max_examples=60)
@given(workers=st.integers(1, 64), digits=st.integers(4, 20), chunks=st.integers(1, 3), seed=st.integers(0, 999))
def test_a_lane_holds_the_sum_of_each_of_its_digits(workers: int, digits: int, chunks: int, seed: int) -> None:
    if largest_radix(digits) <= workers:
        return
    granularity = finest_granularity(workers, digits)
    radix = workers * granularity + 1
    rng = np.random.default_rng(seed)
    values = rng.integers(0, granularity + 1, (workers, digits * chunks, 256), dtype=np.uint8)
    values[:, rng.random((digits * chunks, 256)) < 0.1] = granularity  # lanes that are full, beside lanes that are not
    payloads = [pack_digits(own, digits, radix) for own in values]
    for own, payload in zip(values, payloads, strict=True):
        assert payload.shape == (chunks, 1024)
        np.testing.assert_array_equal(split_digits(payload, digits, radix), own)
    results, _ = simulate_switch(Op.ADD32, payloads)
    np.testing.assert_array_equal(split_digits(results, digits, radix), values.sum(axis=0))


@pytest.mark.parametrize(("backend", "threads"), [("numpy", 1), ("numpy", 2), ("numba", 1), ("numba", 2)])
@pytest.mark.parametrize("digits", [4, 5, 6, 7, 13, 20, 32])
def test_kernels_pack_and_split_as_defined_also_what_no_sum_is(backend: str, threads: int, digits: int) -> None:
    """Every radix that fits, with lanes of all values: the ends of every digit, and lanes beyond the last number."""
    if backend == "numba":
        pytest.importorskip("numba")
    kernels, rng = load_kernels(backend, threads), np.random.default_rng(digits)
    for radix in {2, 3, largest_radix(digits) - 1, largest_radix(digits)} - {1}:
        values = rng.integers(0, radix, (300 * digits, 256), dtype=np.uint8)
        payloads, found = np.empty((300, 1024), np.uint8), np.empty_like(values)
        kernels.pack_digits(values, digits, radix, payloads)
        assert payloads.tobytes() == pack_digits(values, digits, radix).tobytes()
        multiples = radix ** rng.integers(0, 33, 256 * 300 // 2).astype(np.float64)
        near = np.minimum(multiples * rng.integers(1, 256, multiples.size), 2.0**32 - 1).astype(np.uint32)
        lanes = np.concatenate([near, near - np.uint32(1)]).astype(">u4").reshape(300, 256)
        lanes[0] = rng.integers(0, 1 << 32, 256, dtype=np.uint32)
        lanes[1] = (1 << 32) - 1
        for taken in (payloads, lanes.view(np.uint8)):
            kernels.split_digits(taken, digits, radix, found)
            assert found.tobytes() == split_digits(taken, digits, radix).tobytes()


def test_the_numbers_of_a_lane_are_digits_of_the_radix_that_the_workers_need() -> None:
    """8 workers with values up to 4 have digits up to 32: lane 0 of the first chunk, by hand."""
    codec = with_digits(8, 6)
    values = np.zeros((6, 256), np.uint8)
    values[:, 0] = (1, 2, 3, 4, 0, 2)
    number = 1 + 2 * 33 + 3 * 33**2 + 4 * 33**3 + 2 * 33**5
    assert codec.digits == (6, 4)
    assert bytes(pack_digits(values, 6, 33)[0, :4]) == number.to_bytes(4, "big")


@pytest.mark.parametrize("workers", [1, 2, 4, 5, 8, 16, 31, 64])
def test_no_digit_overflows_and_the_controller_can_prove_it(workers: int) -> None:
    fitting = [digits for digits in range(LEAST_DIGITS, 33) if workers < largest_radix(digits)]
    for digits in fitting:
        granularity = finest_granularity(workers, digits)
        check_digits(workers, (digits, granularity))
        with pytest.raises(ControlPlaneError, match=r"may overflow a lane of 32 bits|digits 4, 256"):
            check_digits(workers, (digits, granularity + 1))


@pytest.mark.parametrize(
    ("workers", "digits", "granularity", "bits"), [(8, 6, 4, 5.33), (16, 7, 1, 4.57), (16, 6, 2, 5.33), (4, 8, 3, 4.0)]
)
def test_the_same_bits_up_and_down(workers: int, digits: int, granularity: int, bits: float) -> None:
    codec, elements = with_digits(workers, digits), 256 * digits * 3
    assert codec.op is Op.ADD32
    assert codec.lookup is None
    assert job_tables(codec) == {"digits": (digits, granularity)}
    reductions = begin(codec, [normal(elements)] * workers, [ErrorFeedback(elements) for _ in range(workers)])
    phase = reductions[0].phase
    assert phase is not None
    results, _ = summed(reductions)
    assert phase.payloads.size * 8 / elements == results.size * 8 / elements == pytest.approx(bits, abs=5e-3)


@pytest.mark.parametrize(
    ("workers", "options", "message"),
    [
        (8, {"digits": 3}, "digits=3: a lane of 32 bits has 4 to 32"),
        (8, {"digits": 33}, "digits=33: a lane of 32 bits has 4 to 32"),
        (8, {"digits": 6.5}, "digits=6.5: a lane of 32 bits has 4 to 32"),
        (16, {"digits": 8}, "16 workers with digits=8: .* at most 15, .* up to 16; take digits=7 or fewer"),
        (8, {"digits": 6, "bits": 2}, "thc:digits=6 with bits=2, lane_bits=8, result_bits=None: digits alone say"),
        (8, {"digits": 6, "lane_bits": 16}, "thc:digits=6 with bits=4, lane_bits=16"),
        (8, {"digits": 6, "result_bits": 6}, "thc:digits=6 with bits=4, lane_bits=8, result_bits=6"),
        (
            8,
            {"digits": 6, "table": LookupTable(tuple(range(6)), 0.1)},
            r"the sum of 8 workers \* granularity 5 = 40 is no digit, of which 6 share .* the granularity is at most 4",
        ),
        (8, {"digits": 6, "table": LookupTable((0, 1, 2, 4), 0.1)}, "a table of 4 values up to 4: values travel as"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_numbers(workers: int, options: dict[str, Any], message: str) -> None:
    with pytest.raises(CodecError, match=message):
        make_codec("thc", workers=workers, backend="numpy", **options)


@pytest.mark.parametrize("options", [{}, {"rotation": "full"}, {"rotation": "none"}, {"scale": "tensor"}])
@pytest.mark.parametrize("elements", SIZES)
def test_backends_and_threads_give_equal_bytes(elements: int, options: dict[str, str]) -> None:
    require_equal_backends(lambda backend, threads: with_digits(3, 6, backend, threads=threads, **options), elements)


def test_long_vectors_are_done_run_by_run(monkeypatch: pytest.MonkeyPatch) -> None:
    require_equal_runs(lambda: with_digits(2, 7), monkeypatch)


@pytest.mark.parametrize(("workers", "digits", "kept"), [(8, 6, False), (8, 6, True), (16, 7, True), (16, 6, False)])
def test_the_error_of_the_mean_is_that_of_theory(workers: int, digits: int, kept: bool, backend: str) -> None:
    codec, x, errors = with_digits(workers, digits, backend, error_feedback=kept), normal(64 * 1024), []
    for step in range(6):
        means = simulate_allreduce(codec, [x] * workers, seed=1, step=step)
        assert means is not None
        errors.append(nmse(means[0], x))
    table = even_table(finest_granularity(workers, digits), 1 if kept else workers)
    assert np.mean(errors) == pytest.approx(expected_nmse(table, workers), rel=0.05)


@pytest.mark.parametrize("loss", [0.0, 0.3])
def test_what_went_in_came_out_or_is_in_the_residuals(loss: float, backend: str) -> None:
    codec, elements, steps = with_digits(4, 6, backend), 5 * 1024 + 100, 12
    rng, kept = np.random.default_rng(4), [ErrorFeedback(elements) for _ in range(4)]
    put_in, came_out = np.zeros(elements), np.zeros(elements)
    for step in range(steps):
        vectors = [layered(elements, seed=100 * step + rank) for rank in range(4)]
        present = rng.random((4, 4)) >= loss
        present[step % 4] = True
        means = simulate_allreduce(codec, vectors, seed=1, step=step, feedback=kept, present=present)
        assert means is not None
        put_in += np.sum(vectors, axis=0, dtype=np.float64)
        came_out += means[0].astype(np.float64) * present.sum(axis=0).repeat(6 * 256)[:elements]
    left = np.sum([feedback.residual for feedback in kept], axis=0, dtype=np.float64)
    scale = np.maximum.accumulate(np.abs(put_in)) + np.abs(left).max() * 1e-3
    assert np.all(np.abs(put_in - came_out - left) < 1e-5 * scale)


def test_a_rank_that_is_missing_from_a_chunk_keeps_all_of_its_blocks() -> None:
    codec, x, kept = with_digits(3, 6), layered(5000), [ErrorFeedback(5000) for _ in range(3)]
    reductions = begin(codec, [x] * 3, kept)
    present = np.ones((3, 4), np.bool_)
    present[2, 1] = False
    results, contributors = summed(reductions, present)
    for each in reductions:
        each.take(results, contributors)
    rows = slice(6 * 256, 12 * 256)
    assert kept[2].residual[rows].tobytes() == x[rows].tobytes()
    assert kept[1].residual[rows].tobytes() != x[rows].tobytes()
    assert reductions[0].contributors.tolist() == [*6 * [7], *6 * [3], *8 * [7]]


@pytest.mark.parametrize(("number", "told"), [(7 * 7**6, 7), ((1 << 32) - 1, 255)])
def test_sums_that_the_workers_cannot_make_are_refused(number: int, told: int) -> None:
    """Two workers send values up to 3, so that digits end at 6 and the radix is 7."""
    codec, x = with_digits(2, 7, table=LookupTable((0, 1, 2, 3), 0.1)), normal(4096)
    reductions = begin(codec, [x] * 2, [ErrorFeedback(x.size) for _ in range(2)])
    results, contributors = summed(reductions)
    results[1, 36:40] = np.frombuffer(number.to_bytes(4, "big"), np.uint8)
    with pytest.raises(CodecError, match=f"chunk 1: a lane of {told} from 2 workers, but the table ends at 3"):
        reductions[0].take(results, contributors)


def test_a_vector_that_is_not_finite_is_skipped_on_all_ranks() -> None:
    x = normal(3000)
    x[2999] = np.nan
    assert simulate_allreduce(with_digits(2, 6), [x, normal(3000)], seed=1, step=1) is None
