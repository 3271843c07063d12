# SPDX-License-Identifier: Apache-2.0
"""Reductions that are encoded and taken in parts, compared with the same ones as a whole: equal bytes, equal books."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.host.codec.vectors import layered

from hopsum.codec import CodecError, ErrorFeedback, ReductionContext, make_codec
from hopsum.codec.backends.stream_kernels import ChunkRun
from hopsum.codec.interface import ChunkStream, CollectivePhase, address_of
from hopsum.codec.range_codec import RangeCodec, RangeReduction
from hopsum.codec.simulate import simulate_switch
from hopsum.codec.vector_reduction import INFINITE
from hopsum_base.records import record_address

FORMS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("thc", {}),
    ("thc", {"bits": 3}),
    ("thc", {"bits": 2}),
    ("thc", {"result_bits": 8}),
    ("thc", {"rounding": "stochastic"}),
    ("thc", {"rounding": "stochastic", "lane_bits": 16}),
    ("uhc", {}),
    ("uhc", {"bits": 8}),
)
WHOLE_ONLY: tuple[tuple[str, dict[str, Any]], ...] = (("fixed", {}),)
WORKERS = 3


def codec_of(form: tuple[str, dict[str, Any]], backend: str) -> RangeCodec:
    name, options = form
    made = make_codec(name, workers=WORKERS, backend=backend, **options)
    assert isinstance(made, RangeCodec)
    return made


class Ranks:
    """The reductions of all ranks, each with its error feedback, after the ranges were summed."""

    def __init__(
        self, codec: RangeCodec, elements: int, seed: int, part_chunks: int = 0, *, compiled: bool = False, **start: Any
    ) -> None:
        self.vectors = [layered(elements, seed + rank) for rank in range(WORKERS)]
        self.kept = [ErrorFeedback(elements) for _ in range(WORKERS)]
        for rank, feedback in enumerate(self.kept):
            feedback.residual[:] = 0.1 * layered(elements, 1000 + seed + rank)
        self.residuals = [feedback.residual.copy() for feedback in self.kept]
        self.codec = codec
        self.each: list[RangeReduction] = [
            codec.start(self.vectors[rank], ReductionContext(7, seed, rank), self.kept[rank], **start)
            for rank in range(WORKERS)
        ]
        self.ranges = self.sums(None)
        for reduction in self.each:
            reduction.encode_in_parts(part_chunks, compiled=compiled)
            reduction.on_results(*self.ranges)

    def sums(self, present: NDArray[np.bool_] | None) -> tuple[NDArray[np.uint8], NDArray[np.uint64]]:
        phases = [each.phase for each in self.each if each.phase is not None]
        lookup, group = self.codec.lookup, self.codec.code_group
        return simulate_switch(phases[0].op, [each.payloads for each in phases], lookup, present, group)

    def encode(self) -> None:
        """Make all payloads that are left, part by part."""
        for reduction in self.each:
            phase = reduction.phase
            assert phase is not None
            while reduction.encoded < len(phase.payloads):
                first = reduction.encoded
                made = reduction.encode_part()
                np.testing.assert_array_equal(made, phase.payloads[first : reduction.encoded])


def require_equal(one: RangeReduction, other: RangeReduction) -> None:
    assert one.mean is not None
    assert other.mean is not None
    np.testing.assert_array_equal(one.mean, other.mean)
    np.testing.assert_array_equal(one.contributors, other.contributors)


def both(
    codec: RangeCodec, elements: int, seed: int, part_chunks: int
) -> tuple[Ranks, Ranks, NDArray[np.uint8], NDArray[np.uint64]]:
    """Return whole and streaming reductions with all payloads, and one sum, in which some contributions are missing."""
    whole, parts = Ranks(codec, elements, seed), Ranks(codec, elements, seed, part_chunks)
    parts.encode()
    for one, other in zip(whole.each, parts.each, strict=True):
        assert one.phase is not None
        assert other.phase is not None
        np.testing.assert_array_equal(one.phase.payloads, other.phase.payloads)
        assert one.phase[2:] == other.phase[2:]
    chunks = len(whole.each[0].phase.payloads) if whole.each[0].phase else 0
    present = np.random.default_rng(seed).random((WORKERS, chunks)) < 0.8
    present[0] |= ~present.any(axis=0)
    return whole, parts, *whole.sums(present)


@settings(deadline=None, max_examples=60)
@given(
    form=st.sampled_from(FORMS + WHOLE_ONLY),
    elements=st.integers(1, 20_000),
    part_chunks=st.integers(1, 9),
    cuts=st.lists(st.integers(1, 9), max_size=5),
    seed=st.integers(0, 999),
)
def test_parts_give_the_bytes_of_the_whole(
    form: tuple[str, dict[str, Any]], elements: int, part_chunks: int, cuts: list[int], seed: int
) -> None:
    whole, parts, results, contributors = both(codec_of(form, "auto"), elements, seed, part_chunks)
    for one, other in zip(whole.each, parts.each, strict=True):
        one.on_results(results, contributors)
        first = 0
        for cut in cuts:
            end = min(first + cut, len(results))
            if end > first:
                other.on_part(first, results[first:end], contributors[first:end])
            first = end
        other.on_results(results, contributors)
        require_equal(one, other)
    for one_kept, other_kept in zip(whole.kept, parts.kept, strict=True):
        np.testing.assert_array_equal(one_kept.residual, other_kept.residual)


@settings(deadline=None, max_examples=60)
@given(
    form=st.sampled_from(FORMS),
    elements=st.integers(1, 20_000),
    cuts=st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=9),
    seed=st.integers(0, 999),
    repeats=st.booleans(),
)
def test_machine_code_and_parts_in_turn_give_the_bytes_of_the_whole(
    form: tuple[str, dict[str, Any]], elements: int, cuts: list[tuple[int, bool]], seed: int, repeats: bool
) -> None:
    codec = codec_of(form, "auto")
    whole, mixed = Ranks(codec, elements, seed), Ranks(codec, elements, seed, 3, compiled=True)
    for one, other in zip(whole.each, mixed.each, strict=True):
        assert one.phase is not None
        assert other.phase is not None
        stream = other.stream
        assert (stream is None) == (codec.backend == "numpy")
        chunks = len(one.phase.payloads)
        for cut, compiled in (*cuts, *[(9, False)] * chunks):
            if other.encoded == chunks:
                break
            if stream is None or stream.run is None or stream.encoder is None or not compiled:
                other.encode_part()
            else:
                end = min(stream.encoded + cut, chunks)
                stream.encoder(record_address(stream.run), stream.encoded, end)
                stream.encoded = end
        np.testing.assert_array_equal(one.phase.payloads, other.phase.payloads)
    present = np.random.default_rng(seed).random((WORKERS, chunks)) < 0.8
    present[0] |= ~present.any(axis=0)
    results, contributors = whole.sums(present)
    for one, other in zip(whole.each, mixed.each, strict=True):
        one.on_results(results, contributors)
        stream = other.stream
        first = 0
        for cut, compiled in cuts:
            end = min(first + cut, len(results))
            if repeats and first == 3:
                other.on_part(0, results[:0], contributors[:0])
                first, end = 0, 1
            if end > first and compiled and stream and stream.run is not None and stream.decoder:
                places = (address_of(results), address_of(contributors))
                stream.decoder(record_address(stream.run), first, end, *places)
                assert not has_fault(stream)
                stream.taken = end
            elif end > first:
                other.on_part(first, results[first:end], contributors[first:end])
            first = end
        other.on_results(results, contributors)
        require_equal(one, other)
    for one_kept, other_kept in zip(whole.kept, mixed.kept, strict=True):
        if not repeats:
            np.testing.assert_array_equal(one_kept.residual, other_kept.residual)


@settings(deadline=None, max_examples=60)
@given(
    form=st.sampled_from(FORMS),
    elements=st.one_of(st.integers(1, 20_000), st.just(300_000)),
    seed=st.integers(0, 999),
    case=st.sampled_from(["plain", "late", "not finite", "zeros", "another call"]),
)
def test_machine_code_begins_as_python_does(
    form: tuple[str, dict[str, Any]], elements: int, seed: int, case: str
) -> None:
    """Scales follow from the shared ranges. Whatever is not plain is left to Python."""
    codec = codec_of(form, "auto")
    vectors = [layered(elements, seed + rank) for rank in range(2)]
    if case == "not finite":
        vectors[1][-1] = np.inf
    if case == "zeros":
        vectors = [vector * np.float32(1e-36) for vector in vectors]
    one, other = (codec.start(x, ReductionContext(7, seed, rank)) for rank, x in enumerate(vectors))
    assert one.phase is not None
    assert other.phase is not None
    shared = lanes(other.phase) if case == "late" else np.maximum(lanes(one.phase), lanes(other.phase))
    one.encode_in_parts(3, compiled=True)
    phase, stream = one.begin_second_phase(), one.stream
    if phase is None or stream is None or stream.run is None or stream.scale_kernel is None:
        assert codec.backend == "numpy"
        return
    # Eight lanes go before the ranges, and the first chunk is an array of its own.
    sent, room = np.arange(8, dtype=">u4"), np.zeros(shared.size + 256, ">u4")
    room[:8], room[8 : 8 + shared.size] = sent, shared
    room[7] += case == "another call"
    first, rest = room[:256].copy(), room[256:].copy()
    stream.scale_kernel(record_address(stream.run), address_of(sent), 8, address_of(first), address_of(rest))
    made = [array.copy() for array in stream.scales]
    late = (one._own > shared[: one._own.size]).any()
    assert has_fault(stream) == (case in ("not finite", "another call") or bool(late))
    if not has_fault(stream):
        one.on_results(
            shared.astype(">u4").view(np.uint8).reshape(-1, 1024), np.full(len(one.phase.payloads), 3, np.uint64)
        )
        for mine, expected in zip(made, stream.scales, strict=True):
            assert mine.tobytes() == expected.tobytes()


def has_fault(stream: ChunkStream) -> bool:
    """Say whether the last run of a stream's machine code found a fault."""
    assert isinstance(stream.run, ChunkRun)
    return stream.run.has_fault


def lanes(phase: CollectivePhase) -> NDArray[Any]:
    """Return the lanes of a phase of ranges."""
    return phase.payloads.reshape(-1).view(">u4")


@pytest.mark.parametrize("options", [{"result_bits": 8}, {"rounding": "stochastic"}], ids=str)
def test_machine_code_settles_nothing_of_impossible_sums(options: dict[str, Any]) -> None:
    codec = codec_of(("thc", options), "auto")
    reduction = Ranks(codec, 3000, 1, 3, compiled=True).each[0]
    stream = reduction.stream
    if stream is None or stream.run is None or stream.encoder is None or stream.decoder is None:
        pytest.skip("no machine code: HOPSUM_COMPILED=0")
    stream.encoder(record_address(stream.run), 0, 3)
    stream.encoded = 3
    pending = reduction._kept[1] if reduction._kept else np.zeros(0, np.float32)
    before = pending.copy()
    results, contributors = np.full((3, 1024), 255, np.uint8), np.full(3, 0b110, np.uint64)
    places = (address_of(results), address_of(contributors))
    stream.decoder(record_address(stream.run), 0, 3, *places)
    assert has_fault(stream)
    np.testing.assert_array_equal(pending, before)
    others = np.zeros((3, 1024), np.uint8)
    stream.decoder(record_address(stream.run), 0, 3, address_of(others), places[1])
    assert not has_fault(stream), "other sums after a change of generation"
    with pytest.raises(CodecError, match="the switch has another table"):
        reduction.on_results(results, contributors)


def test_parts_are_taken_with_every_backend(backend: str) -> None:
    for form in FORMS:
        whole, parts, results, contributors = both(codec_of(form, backend), 9_000, 5, 2)
        whole.each[1].on_results(results, contributors)
        parts.each[1].on_part(0, results[:1], contributors[:1])
        parts.each[1].on_results(results, contributors)
        np.testing.assert_array_equal(whole.kept[1].residual, parts.kept[1].residual)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_an_abort_after_parts_gives_the_whole_vector_back(form: tuple[str, dict[str, Any]]) -> None:
    _, parts, results, contributors = both(codec_of(form, "auto"), 12_345, 3, 2)
    before = [x + residual for x, residual in zip(parts.vectors, parts.residuals, strict=True)]
    for rank, reduction in enumerate(parts.each):
        reduction.on_part(0, results[:2], contributors[:2])
        reduction.abort()
        largest = np.abs(before[rank]).max()
        np.testing.assert_allclose(parts.kept[rank].residual, before[rank], rtol=0, atol=4e-6 * largest)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_sums_may_come_before_the_codes_of_a_vector_that_they_overwrite(form: tuple[str, dict[str, Any]]) -> None:
    """With a quorum this rank may be in no sum, and the mean takes the place of its vector."""
    codec = codec_of(form, "auto")
    ranks = Ranks(codec, 9_000, 4)
    place, feedback = ranks.vectors[1].copy(), ErrorFeedback(9_000)
    feedback.residual[:] = ranks.residuals[1]
    late = codec.start(place, ReductionContext(7, 4, 1), feedback, out=place)
    late.encode_in_parts(2)
    late.on_results(*ranks.ranges)
    assert late.phase is not None
    assert late.encoded == 2
    present = np.ones((WORKERS, len(late.phase.payloads)), np.bool_)
    present[1, 1:] = False
    results, contributors = ranks.sums(present)
    late.on_results(results, contributors)
    ranks.each[1].on_results(results, contributors)
    require_equal(ranks.each[1], late)
    np.testing.assert_array_equal(ranks.kept[1].residual, feedback.residual)


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("encoded", [0, 2])
def test_an_abort_of_codes_that_machine_code_has_begun_gives_the_whole_vector_back(
    form: tuple[str, dict[str, Any]], encoded: int
) -> None:
    """Python does not have the sums of the ranges yet."""
    codec, x, feedback = codec_of(form, "auto"), layered(5_000, 3), ErrorFeedback(5_000)
    feedback.residual[:] = 0.1 * layered(5_000, 4)
    expected = x + feedback.residual
    reduction = codec.start(x, ReductionContext(7, 3, 1), feedback)
    reduction.encode_in_parts(2, compiled=True)
    stream = reduction.stream if reduction.begin_second_phase() is not None else None
    if stream is None or stream.run is None or stream.scale_kernel is None or stream.encoder is None:
        pytest.skip("no machine code: HOPSUM_COMPILED=0")
    assert reduction.phase is not None
    sums, sent = lanes(reduction.phase).copy(), np.zeros(1, ">u4")
    stream.scale_kernel(record_address(stream.run), address_of(sent), 0, address_of(sums), 0)
    assert not has_fault(stream)
    stream.encoder(record_address(stream.run), 0, encoded)
    stream.encoded, stream.begun = encoded, True
    reduction.abort()
    np.testing.assert_allclose(feedback.residual, expected, rtol=0, atol=2.0**-22 * float(np.abs(expected).max()))


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_feedback_that_can_be_given_back_has_the_same_residual(form: tuple[str, dict[str, Any]]) -> None:
    """Machine code has a loop of its own for an array that is the residual and what becomes it."""
    codec, found = codec_of(form, "auto"), []
    for revocable in (False, True):
        x, feedback = layered(5_000, 1), ErrorFeedback(5_000, revocable=revocable)
        before = feedback.residual[:] = 0.1 * layered(5_000, 2)
        reduction = codec.start(x, ReductionContext(7, 3, 1), feedback)
        reduction.encode_in_parts(2, compiled=True)
        assert reduction.phase is not None
        reduction.on_results(reduction.phase.payloads, np.ones(len(reduction.phase.payloads), np.uint64))
        stream = reduction.stream
        if stream is not None and stream.run is not None and stream.encoder is not None:
            stream.encoder(record_address(stream.run), 0, 3)
            stream.encoded = 3
        while reduction.encoded < len(reduction.phase.payloads):
            reduction.encode_part()
        results, contributors = simulate_switch(
            reduction.phase.op, [reduction.phase.payloads], codec.lookup, code_group=codec.code_group
        )
        reduction.on_results(results, contributors << np.uint64(1))
        found.append(feedback.residual.copy())
        feedback.rollback(slice(None))
        assert np.array_equal(feedback.residual, before) is revocable

    assert found[0].tobytes() == found[1].tobytes()


def test_a_vector_in_place_takes_no_second_vector() -> None:
    """Neither for x + residual nor for the mean: codes and sums of half a byte, and what a block needs."""
    codec, elements = codec_of(("thc", {}), "auto"), 1 << 20
    x, feedback = layered(elements, 1), ErrorFeedback(elements)
    # Compiles what is used.
    simulate(codec, x[:3000].copy(), ErrorFeedback(3000))
    tracemalloc.start()
    try:
        simulate(codec, x, feedback)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # Payloads, and twice results: the simulated switch adds in int64.
    assert peak < (0.5 if codec.backend == "numba" else 9) * x.nbytes


def simulate(codec: RangeCodec, x: NDArray[np.float32], feedback: ErrorFeedback) -> None:
    """Let one rank alone sum a vector in place, with sums of zeros."""
    reduction = codec.start(x, ReductionContext(7, 3, 1), feedback, out=x)
    reduction.encode_in_parts(2, compiled=True)
    assert reduction.phase is not None
    reduction.on_results(reduction.phase.payloads, np.ones(len(reduction.phase.payloads), np.uint64))
    while reduction.encoded < len(reduction.phase.payloads):
        reduction.encode_part()
    reduction.on_results(reduction.phase.payloads, np.full(len(reduction.phase.payloads), 2, np.uint64))
    assert reduction.mean is x


def test_parts_are_taken_back_and_taken_again() -> None:
    whole, parts, results, contributors = both(codec_of(("thc", {}), "auto"), 9_999, 8, 2)
    other_sum = whole.sums(None)
    for one, other in zip(whole.each, parts.each, strict=True):
        other.on_part(0, other_sum[0][:3], other_sum[1][:3])
        other.on_part(0, results[:0], contributors[:0])
        other.on_part(0, results[:2], contributors[:2])
        one.on_results(results, contributors)
        other.on_results(results, contributors)
        require_equal(one, other)
    for one_kept, other_kept in zip(whole.kept, parts.kept, strict=True):
        largest = np.abs(one_kept.residual).max()
        np.testing.assert_allclose(one_kept.residual, other_kept.residual, rtol=0, atol=1e-5 * max(largest, 1))


def test_a_part_behind_sums_that_were_taken_back_is_left_to_the_end() -> None:
    """Machine code read new sums while parts of an earlier generation, and the word to take them back, were pending."""
    whole, parts, results, contributors = both(codec_of(("thc", {}), "auto"), 9_999, 8, 2)
    stale = whole.sums(None)
    one, other = whole.each[0], parts.each[0]
    other.on_part(0, results[:1], contributors[:1])  # as the machine code did
    other.on_part(0, stale[0][:3], stale[1][:3])
    other.on_part(0, results[:0], contributors[:0])
    other.on_part(1, results[1:5], contributors[1:5])
    one.on_results(results, contributors)
    other.on_results(results, contributors)
    np.testing.assert_array_equal(one.mean, other.mean)
    np.testing.assert_allclose(whole.kept[0].residual, parts.kept[0].residual, rtol=0, atol=1e-5)


def test_a_vector_in_place_without_error_feedback_is_kept_until_the_end() -> None:
    codec = codec_of(("thc", {}), "auto")
    x = layered(5_000)
    before = x.copy()
    reduction = codec.start(x, ReductionContext(1, 1, 0), out=x)
    assert reduction.phase is not None
    ranges = simulate_switch(reduction.phase.op, [reduction.phase.payloads] * WORKERS)
    reduction.encode_in_parts(1)
    reduction.on_results(*ranges)
    while reduction.encoded < len(reduction.phase.payloads):
        reduction.encode_part()
    results, contributors = simulate_switch(
        codec.op, [reduction.phase.payloads] * WORKERS, codec.lookup, code_group=codec.code_group
    )
    reduction.on_part(0, results[:2], contributors[:2])
    np.testing.assert_array_equal(x, before)
    reduction.on_results(results, contributors)
    assert not np.array_equal(x, before)


def test_all_payloads_are_made_once() -> None:
    parts = Ranks(codec_of(("thc", {}), "auto"), 5_000, 1, 2)
    parts.encode()
    with pytest.raises(CodecError, match="all payloads are made"):
        parts.each[0].encode_part()


def test_a_vector_that_is_not_finite_is_skipped_before_any_part() -> None:
    codec = codec_of(("thc", {}), "auto")
    x = np.full(5_000, np.inf, np.float32)
    reduction = codec.start(x, ReductionContext(1, 1, 0), on_nonfinite="skip")
    assert reduction.phase is not None
    assert int(reduction._own.max()) >= INFINITE
    reduction.encode_in_parts(1)
    reduction.on_results(*simulate_switch(reduction.phase.op, [reduction.phase.payloads] * WORKERS))
    assert reduction.phase is None
    assert reduction.encoded == 0
