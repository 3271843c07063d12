# SPDX-License-Identifier: Apache-2.0
"""Codec two-shot: its error, the books of its error feedback, what all ranks skip; kernels equal the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsum.codec import CodecError, ErrorFeedback, NonFiniteError, ReductionContext, job_tables, make_codec
from hopsum.codec.backends import COMPILED_VARIABLE, load_kernels
from hopsum.codec.backends.kernels import TWO_SHOT_BLOCK as BLOCK
from hopsum.codec.backends.kernels import TWO_SHOT_SCALE_BYTES, Kernels
from hopsum.codec.interface import Reduction
from hopsum.codec.simulate import simulate_phase
from hopsum.codec.two_shot import TwoShot
from hopsum_evaluation.simulated_allreduce import simulate_allreduce

from .vectors import Floats, layered, nmse, normal

BITS = pytest.mark.parametrize("bits", [4, 8])


def encode(kernels: Kernels, x: Floats, bits: int, blocks: int) -> np.ndarray:
    # Whatever was in the memory before.
    made = np.full((blocks, TWO_SHOT_SCALE_BYTES + BLOCK * bits // 8), 0xA5, np.uint8)
    kernels.two_shot_encode(x, bits, made)
    return made


def decode(kernels: Kernels, blocks: np.ndarray, bits: int, base: Floats, factor: float = 1) -> Floats:
    made = base.copy()
    kernels.two_shot_add(blocks, bits, np.float32(factor), made)
    return made


@BITS
def test_a_block_errs_by_half_a_step_at_most(bits: int, backend: str) -> None:
    kernels, x = load_kernels(backend), normal(7 * BLOCK)
    x[BLOCK : 2 * BLOCK] = 0
    x[2 * BLOCK : 3 * BLOCK] *= 1e-30
    x[6 * BLOCK + 77 :] = 0
    blocks = encode(kernels, x[: 6 * BLOCK + 77], bits, 7)
    steps = np.abs(x.reshape(7, BLOCK)).max(axis=1) / ((1 << bits - 1) - 1)
    found = decode(kernels, blocks, bits, np.zeros_like(x))
    assert (np.abs(found - x).reshape(7, BLOCK).max(axis=1) <= steps * 0.50001).all()
    again = encode(kernels, found, bits, 7)
    assert again[:, TWO_SHOT_SCALE_BYTES:].tobytes() == blocks[:, TWO_SHOT_SCALE_BYTES:].tobytes(), "codes are kept"


@BITS
def test_every_code_comes_back_from_every_place(bits: int, backend: str) -> None:
    kernels, most = load_kernels(backend), (1 << bits - 1) - 1
    for turn in range(3):
        x = np.roll(np.resize(np.arange(-most, most + 1, dtype=np.float32), BLOCK), turn)
        assert np.array_equal(decode(kernels, encode(kernels, x, bits, 1), bits, np.zeros_like(x)), x)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    bits=st.sampled_from([2, 4, 8]),
    elements=st.integers(1, 4000),
    padding=st.integers(0, 40),
    exponent=st.integers(-45, 37),
    factor=st.sampled_from([1.0, -1.0, 1 / 3]),
    odd=st.sampled_from([None, np.nan, np.inf, -np.inf, 3e38, 0.0, -0.0]),
)
def test_compiled_kernels_are_the_reference(
    bits: int, elements: int, padding: int, exponent: int, factor: float, odd: float | None
) -> None:
    pytest.importorskip("numba")
    ways = [load_kernels("numpy"), load_kernels("numba"), load_kernels("numba", 2)]
    with np.errstate(over="ignore", invalid="ignore"):
        x = layered(elements, seed=elements) * np.float32(10.0**exponent)
        if odd is not None:
            x[elements // 3 :][:600] = odd
        made = [encode(kernels, x, bits, -(-elements // BLOCK) + padding) for kernels in ways]
        values = [decode(kernels, made[0], bits, x, factor) for kernels in ways]
    assert len({each.tobytes() for each in made}) == 1
    assert all(np.array_equal(values[0], each, equal_nan=True) for each in values)


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
@BITS
def test_what_is_not_delivered_is_in_the_residuals(bits: int, workers: int, backend: str) -> None:
    """The second rounding, too: it is kept by the rank that owns the part."""
    codec, elements = make_codec("two-shot", workers=workers, backend=backend, bits=bits), 5 * BLOCK + 9
    kept = [ErrorFeedback(elements) for _ in range(workers)]
    put_in, came_out = np.zeros(elements), np.zeros(elements)
    for step in range(20):
        vectors = [normal(elements, 100 * step + rank) for rank in range(workers)]
        means = simulate_allreduce(codec, vectors, seed=1, step=step, feedback=kept)
        assert means is not None
        assert len({mean.tobytes() for mean in means}) == 1
        put_in += np.mean(vectors, axis=0, dtype=np.float64)
        came_out += means[0]
        residuals = np.mean([each.residual for each in kept], axis=0, dtype=np.float64)
        np.testing.assert_allclose(came_out + residuals, put_in, atol=1e-4)
        most, limit = (1 << bits - 1) - 1, max(float(np.abs(x).max()) for x in vectors)
        assert max(np.abs(each.residual).max() for each in kept) < 1.3 * limit * (workers + 1) / (2 * most - 2)


def test_its_bits_and_its_error_are_those_of_the_page() -> None:
    """docs/codecs.md has the errors: of normal vectors, by 4 workers, without error feedback."""
    for bits, error in ((4, 0.037), (8, 1.1e-4)):
        codec = make_codec("two-shot", workers=4, bits=bits)
        assert isinstance(codec, TwoShot)
        assert 8 * codec.block_bytes / BLOCK == bits + 1 / 16
        vectors = [normal(1 << 18, rank) for rank in range(4)]
        means = simulate_allreduce(codec, vectors, seed=1, step=1)
        assert means is not None
        assert nmse(means[0], np.mean(vectors, axis=0, dtype=np.float64)) == pytest.approx(error, rel=0.05)


def started(codec: Any, vectors: list[Floats], kept: list[ErrorFeedback], **options: Any) -> list[Reduction]:
    return [codec.start(x, ReductionContext(1, 1, r), kept[r], **options) for r, x in enumerate(vectors)]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 2e36])
def test_one_block_that_is_not_finite_ends_the_all_reduce_on_all_ranks(bad: float, backend: str) -> None:
    codec = make_codec("two-shot", workers=3, backend=backend)
    vectors = [normal(4000, rank) for rank in range(3)]
    vectors[1][2345] = bad
    for on_nonfinite in ("raise", "skip"):
        kept = [ErrorFeedback(4000) for _ in vectors]
        reductions = started(codec, vectors, kept, on_nonfinite=on_nonfinite, tensors=[("w", 2000), ("b", 2000)])
        results, contributors = simulate_phase(codec, [each.phase for each in reductions if each.phase])
        told = []
        for reduction in reductions:
            try:
                reduction.on_results(results, contributors)
            except NonFiniteError as error:
                told.append(str(error))
            assert reduction.mean is None
            assert reduction.phase is None
        if on_nonfinite == "raise":
            assert ("finite, but too large" if bad == 2e36 else "b: 1 of 2000") in told[1]
            assert told[0].startswith("another rank's vector is not finite")
        assert not any(each.residual.any() for each in kept)


def test_an_aborted_vector_stays_in_the_residual() -> None:
    codec, vectors = make_codec("two-shot", workers=2), [normal(700, rank) for rank in range(2)]
    kept = [ErrorFeedback(700) for _ in vectors]
    reductions = started(codec, vectors, kept)
    results, contributors = simulate_phase(codec, [each.phase for each in reductions if each.phase])
    with pytest.raises(CodecError, match="results of 700 elements"):
        reductions[0].on_results(results[:-1], contributors[:-1])
    for reduction in reductions:
        reduction.abort()
    assert [each.residual.tobytes() for each in kept] == [x.tobytes() for x in vectors]


@pytest.mark.parametrize("bits", [2, 6, 4.0, "4"])
def test_other_bits_are_refused(bits: object) -> None:
    why = f"two-shot with codes of {bits} bits: 4 or 8" if type(bits) is int else "integer"
    with pytest.raises(CodecError, match=why):
        make_codec("two-shot", workers=2, bits=bits)


def test_no_switch_can_sum_for_it() -> None:
    with pytest.raises(CodecError, match=r"codec two-shot: its ranks add .* collective://gloo .* thc:bits=2"):
        job_tables(make_codec("two-shot", workers=2))


def test_compiled_code_can_be_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(COMPILED_VARIABLE, "0")
    assert make_codec("two-shot", workers=2).backend == "numpy"
