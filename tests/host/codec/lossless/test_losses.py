# SPDX-License-Identifier: Apache-2.0
"""Workers that are missing from some chunks, and cells that are wrong: an exact mean, or an error on all ranks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hopsum.codec import CollectiveError, CollectivePhase, ErrorFeedback, ReductionContext
from hopsum.codec.interface import ReductionState
from hopsum.codec.lossless import Lossless
from hopsum_wire import Op

from .jobs import exact, run, start
from .supports import Floats, sparse
from .test_lossless_codec import make

pytestmark = pytest.mark.system
WORKERS = 4
ELEMENTS = 300_000


def job(backend: str, **options: object) -> tuple[Lossless, list[Floats], list[ErrorFeedback]]:
    vectors = [sparse(ELEMENTS, 0.03, rank) for rank in range(WORKERS)]
    return make(backend, WORKERS, **options), vectors, [ErrorFeedback(ELEMENTS) for _ in vectors]


def without(phase: CollectivePhase, rank: int, chunks: slice) -> NDArray[np.bool_]:
    present = np.ones((WORKERS, len(phase.payloads)), np.bool_)
    present[rank, chunks] = False
    return present


@pytest.mark.parametrize("chunk", [0, -1])
def test_unequal_contributors_are_never_summed(backend: str, chunk: int) -> None:
    """One chunk lacks one worker, each time: all ranks fail, and every vector is in its error feedback."""
    codec, vectors, kept = job(backend, repeats=3)
    asked: list[int] = []

    def present(number: int, phase: CollectivePhase) -> NDArray[np.bool_] | None:
        if phase.op != Op.ADD32:
            return None
        asked.append(number)
        return without(phase, 2, slice(chunk, None) if chunk < 0 else slice(chunk, chunk + 1))

    reductions = start(codec, vectors, kept)
    error = run(reductions, present)
    assert isinstance(error, CollectiveError)
    assert "2 different sets of contributors" in str(error)
    assert len(asked) == 3
    for x, feedback, reduction in zip(vectors, kept, reductions, strict=True):
        assert reduction.mean is None
        assert reduction.state is ReductionState.GONE
        assert feedback.residual.tobytes() == x.tobytes()


def test_asking_again_repairs_a_loss(backend: str) -> None:
    codec, vectors, kept = job(backend, repeats=2)
    payloads: list[bytes] = []

    def present(number: int, phase: CollectivePhase) -> NDArray[np.bool_] | None:
        if phase.op == Op.ADD32:
            payloads.append(phase.payloads.tobytes())
        return without(phase, 1, slice(3, 5)) if number == 2 else None

    reductions = start(codec, vectors, kept)
    assert run(reductions, present) is None
    assert len(payloads) == 2
    assert payloads[0] == payloads[1]
    _, mean = exact(WORKERS, vectors)
    assert reductions[0].mean is not None
    assert reductions[0].mean.tobytes() == mean.tobytes()
    assert all(np.abs(feedback.residual).max() < 1e-3 for feedback in kept)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    lost=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 60)), max_size=6),
    gamma=st.sampled_from([0.0, 1.25]),
    index=st.sampled_from(["bitmap", "bloom"]),
)
def test_whatever_is_lost_nothing_is_wrong_and_nothing_disappears(
    lost: list[tuple[int, int, int]], gamma: float, index: str
) -> None:
    """Any worker may miss any chunk of any phase, once or always: sum of means + residuals = sum of vectors."""
    codec, vectors, kept = job("numpy", gamma=gamma, index=index, repeats=2)
    vectors = [x[:40_000].copy() for x in vectors]
    kept = [ErrorFeedback(40_000) for _ in vectors]
    counts: list[NDArray[np.int64]] = []

    def present(number: int, phase: CollectivePhase) -> NDArray[np.bool_]:
        there = np.ones((WORKERS, len(phase.payloads)), np.bool_)
        for rank, at, chunk in lost:
            if at == number:
                there[rank, chunk % len(phase.payloads)] = False
        there[0, ~there.any(axis=0)] = True
        counts[:] = [there.sum(axis=0)]
        return there

    reductions = start(codec, vectors, kept)
    error = run(reductions, present)
    put_in = np.sum(vectors, axis=0, dtype=np.float64)
    left = np.sum([feedback.residual for feedback in kept], axis=0, dtype=np.float64)
    if error is not None:
        assert gamma
        np.testing.assert_array_equal(left, put_in)
        return
    mean = reductions[0].mean
    assert mean is not None
    assert {r.mean.tobytes() for r in reductions if r.mean is not None} == {mean.tobytes()}
    divided = np.full(mean.size, counts[0][0], np.float64)
    plan = reductions[0].plan
    if plan is not None and not plan.cells:
        members = reductions[0].members
        divided[members] = counts[0].repeat(256)[: members.size]
    scale = np.maximum.accumulate(np.abs(put_in)) + np.abs(put_in).max() * 1e-4
    assert np.all(np.abs(put_in - mean * divided - left) < 1e-5 * scale)


@pytest.mark.parametrize("index", ["bitmap", "bloom"])
def test_a_worker_missing_from_the_index_sends_what_the_others_have(backend: str, index: str) -> None:
    codec, vectors, kept = job(backend, index=index)
    reductions = start(codec, vectors, kept)
    assert run(reductions, lambda n, e: without(e, 1, slice(None)) if e.op == Op.OR else None) is None
    others = (vectors[0] != 0) | (vectors[2] != 0) | (vectors[3] != 0)
    members = np.zeros(ELEMENTS, np.bool_)
    members[reductions[0].members] = True
    assert (kept[1].residual[~members] == vectors[1][~members]).all()
    assert np.count_nonzero(vectors[1][~members]) > 1000
    sent = others & (vectors[1] != 0)
    assert np.count_nonzero(sent) > 100
    assert np.abs(kept[1].residual[sent]).max() < 1e-3
    assert reductions[0].mean is not None
    expected = np.where(members, np.sum(vectors, axis=0), 0) / WORKERS
    np.testing.assert_allclose(reductions[0].mean, expected, rtol=1e-5, atol=1e-5)


def test_a_worker_missing_from_the_ranges_keeps_what_does_not_fit(backend: str) -> None:
    codec, vectors, kept = job(backend)
    vectors[2][:ELEMENTS:7] *= np.float32(1e6)
    reductions = start(codec, vectors, kept)
    assert run(reductions, lambda n, e: without(e, 2, slice(None)) if e.op == Op.MAX32 else None) is None
    runs = -(-ELEMENTS // 1024)
    peaks = [np.pad(np.abs(x), (0, runs * 1024 - ELEMENTS)).reshape(runs, 1024).max(axis=1) for x in vectors]
    above = (peaks[2] > np.max([peaks[0], peaks[1], peaks[3]], axis=0)).repeat(1024)[:ELEMENTS]
    assert above.any()
    assert (kept[2].residual[above] == vectors[2][above]).all()
    assert np.abs(kept[0].residual).max() < 1e-3
    assert reductions[0].mean is not None
    expected = np.sum([vectors[0], vectors[1], np.where(above, 0, vectors[2]), vectors[3]], axis=0) / WORKERS
    np.testing.assert_allclose(reductions[0].mean, expected, rtol=1e-5, atol=1e-5)


def test_an_infinite_vector_that_came_too_late_is_forgotten(backend: str) -> None:
    """The others continue; what was in the residual before stays there, the infinite gradient does not."""
    codec, vectors, kept = job(backend)
    kept[2].residual[:] = 0.25
    vectors[2][5000] = np.inf
    reductions = start(codec, vectors, kept)
    assert run(reductions, lambda n, e: without(e, 2, slice(None)) if e.op == Op.MAX32 else None) is None
    assert np.isfinite(kept[2].residual).all()
    assert kept[2].residual[5000] == 0.25
    assert reductions[2].mean is not None
    assert np.isfinite(reductions[2].mean).all()


@settings(max_examples=80, deadline=None, derandomize=True)
@given(cell=st.integers(0, 1 << 30), delta=st.integers(1, (1 << 32) - 1), always=st.booleans())
def test_a_wrong_cell_is_found(cell: int, delta: int, always: bool) -> None:
    """Cells that are left over tell of it. Packed members have no such redundancy."""
    codec = make("numpy", 2, gamma=1.3, repeats=2)
    vectors = [sparse(30_000, 0.05, rank) for rank in range(2)]
    kept = [ErrorFeedback(30_000), ErrorFeedback(30_000)]

    def tamper(number: int, results: NDArray[np.uint8]) -> None:
        if number == 2 or (number > 2 and always):
            lanes = results.reshape(-1).view(">u4")
            plan = reductions[0].plan
            assert plan is not None
            lanes[cell % plan.cells] = (int(lanes[cell % plan.cells]) + delta) & 0xFFFF_FFFF

    reductions = start(codec, vectors, kept)
    error = run(reductions, tamper=tamper)
    if always:
        assert error is not None
        assert "cells are left" in str(error)
        assert kept[0].residual.tobytes() == vectors[0].tobytes()
    else:
        assert error is None
        assert reductions[0].mean is not None
        assert reductions[0].mean.tobytes() == exact(2, vectors)[1].tobytes()


def test_packed_sums_need_no_equal_contributors(backend: str) -> None:
    """Without a sketch each chunk is divided by its own contributors."""
    codec, vectors, kept = job(backend, gamma=0.0)
    reductions = start(codec, vectors, kept)
    assert run(reductions, lambda n, e: without(e, 1, slice(2, 4)) if e.op == Op.ADD32 else None) is None
    members = reductions[0].members
    lost = np.zeros(ELEMENTS, np.bool_)
    lost[members[512:1024]] = True
    assert (kept[1].residual[lost] == vectors[1][lost]).all()
    assert reductions[0].mean is not None
    three = (vectors[0] + vectors[2] + vectors[3]) / np.float32(3)
    expected = np.where(lost, three, np.sum(vectors, axis=0) / np.float32(4))
    np.testing.assert_allclose(reductions[0].mean, expected, rtol=1e-5, atol=1e-5)


def test_giving_up_returns_the_vector(backend: str) -> None:
    for phases in range(3):
        codec, vectors, kept = job(backend)
        reduction = codec.start(vectors[0], ReductionContext(1, 1, 0), kept[0])
        for _ in range(phases):
            assert reduction.phase is not None
            payloads = reduction.phase.payloads
            reduction.on_results(payloads, np.full(len(payloads), 1, np.uint64))
        reduction.abort()
        assert reduction.phase is None
        assert kept[0].residual.tobytes() == vectors[0].tobytes()
