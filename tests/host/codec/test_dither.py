# SPDX-License-Identifier: Apache-2.0
"""Rounding with a subtractive dither: its numbers, kernels against the definition, its error, and whole sums."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hopsum.codec import ErrorFeedback, ReductionContext, SharedRanges, make_codec
from hopsum.codec.backends import load_kernels
from hopsum.codec.backends.kernels import BlockKeys, CodeTable, Form
from hopsum.codec.dither import CLASSES, MOST_WORKERS, Dither, ResultValues, even_levels, job_dither
from hopsum.codec.hashing import block_keys, derive_key, lane_bits
from hopsum.codec.interface import feeds_back
from hopsum.codec.lookup_table import truncation_error
from hopsum.codec.range_codec import RangeCodec
from hopsum.codec.simulate import simulate_switch
from hopsum.codec.thc import Thc
from hopsum_evaluation.expected_error import expected_normal_nmse
from hopsum_evaluation.simulated_allreduce import simulate_allreduce
from hopsum_wire import Op
from hopsum_wire.payload import pack_codes, unpack_codes

from .vectors import Floats, dither_error, encode_alone, layered, nmse, normal, phases, signed_hadamard

KEYS = BlockKeys(derive_key(1, 2), derive_key(3, 4), 5, derive_key(5, 6))
FORMS: list[tuple[int, bool, int]] = [
    *((4, True, workers) for workers in (1, 4, 8, 17)),
    *((3, True, workers) for workers in (2, 7, 17)),
    *((2, True, workers) for workers in (3, 16, 42)),
    *((4, False, workers) for workers in (1, 3, 8, 17, 18, 33, 64)),
]
"""Bits of codes, whether results have as many, and workers."""
ODD_SIZES = (1, 1023, 1025, 5 * 1024 + 7)


def form_of(bits: int, requantized: bool) -> Form:
    return Form(code_bits=bits, requantized=requantized)


def known_bits(block: int) -> NDArray[np.int64]:
    """Return the 4 bits of each coordinate of the wire that all ranks draw."""
    lanes = lane_bits(block_keys(KEYS.dither, KEYS.first + block, 1), 128)[0].astype(np.int64)
    coordinates = np.arange(1024)
    return lanes[coordinates % 128] >> 4 * (coordinates // 128) & 15


def matrix_of(block: int) -> NDArray[np.int64]:
    return signed_hadamard(KEYS, Form(), KEYS.first + block)


# ---- the numbers of a job ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workers", "granularity"), [(1, 15), (8, 15), (9, 14), (17, 14), (18, 7), (32, 7), (33, 3), (64, 3)]
)
def test_more_workers_have_fewer_levels(workers: int, granularity: int) -> None:
    codec = make_codec("thc:result_bits=8", workers=workers, backend="numpy")
    assert isinstance(codec, Thc)
    assert codec.granularity == granularity
    assert workers * granularity <= 255
    assert codec.lookup == tuple(min(code, granularity) for code in range(16))
    default = make_codec("thc", workers=workers, backend="numpy")
    assert default.op == (Op.LOOKUP_ADD_LOOKUP4 if workers <= 17 else Op.LOOKUP_ADD8)


@pytest.mark.parametrize(
    ("spelled", "feedback"),
    [
        ("thc", True),
        ("thc:bits=3", True),
        ("thc:bits=2", False),
        ("thc:result_bits=8", True),
        ("thc:bits=2,error_feedback=true", True),
        ("thc:error_feedback=false", False),
        ("thc:rounding=stochastic,error_feedback=false", True),
        ("uhc", True),
    ],
)
def test_two_bits_go_without_error_feedback_unless_told(spelled: str, feedback: bool) -> None:
    assert feeds_back(make_codec(spelled, workers=3, backend="numpy")) is feedback


@pytest.mark.system
@pytest.mark.parametrize("error_feedback", [False, True])
@pytest.mark.parametrize(("bits", "requantized"), [(4, True), (3, True), (2, True), (4, False)])
def test_no_sum_less_its_dithers_exceeds_255(bits: int, requantized: bool, error_feedback: bool) -> None:
    """Seven stages of the rotation multiply w by 2^7 in 16 bits. All jobs, subsets, sums, cells and dithers."""
    for workers in range(1, (MOST_WORKERS[bits] if requantized else 64) + 1):
        dither = job_dither(workers, bits, requantized, error_feedback)
        middle = dither.unit * dither.granularity / 2
        assert middle + np.abs(dither.own.astype(int)).max() <= 255, "one rank's own"
        # Of so many ranks, those with the largest known dithers and those with the smallest, for each shared value.
        ascending = np.sort(dither.own.astype(int), axis=0)
        least, most = np.cumsum(ascending, axis=0), np.cumsum(ascending[::-1], axis=0)
        for count in range(1, workers + 1):
            known = max(-least[count - 1].min(), most[count - 1].max())
            largest = count * middle
            if dither.results is not None:
                largest = int(np.abs(dither.results.values[count].astype(int)).max())
            assert largest + known <= 255, (workers, count)


def test_known_dithers_are_those_of_ranks_up_to_half_a_step_of_w() -> None:
    for bits, requantized, workers in FORMS:
        dither = job_dither(workers, bits, requantized, True)
        shift = 16 * np.arange(workers)[:, None] // workers
        exact = dither.unit * (((np.arange(16) + shift) % 16 + 0.5) / 16 - 0.5)
        assert np.abs(dither.own - exact).max() <= 0.5
        assert not dither.own.sum(axis=1).any(), "the mean of a dither is 0"


def test_another_process_has_the_same_numbers() -> None:
    code = (
        "import zlib; from hopsum.codec.dither import job_dither, requantized_table;"
        "jobs = [(4, 4, True, True), (7, 3, True, True), (5, 2, True, False)];"
        "made = [job_dither(*job) for job in jobs];"
        "print([(each.granularity, each.unit) for each in made], [requantized_table(*job[:2]) for job in jobs]);"
        "print([zlib.crc32(array.tobytes()) for each in made for array in (each.own, *each.results)])"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code], env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1
    assert len(found.pop()) > 100


# ---- kernels ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shift", [0, 3])
@pytest.mark.parametrize(("bits", "requantized", "workers"), FORMS)
def test_codes_are_those_of_the_definition(
    backend: str, bits: int, requantized: bool, workers: int, shift: int
) -> None:
    """Every code, from the rotation by a Kronecker product and from the random bits of the coordinate."""
    dither, form = job_dither(workers, bits, requantized, True), form_of(bits, requantized)
    x, top = normal(3 * 1024).reshape(3, -1), dither.granularity << 16
    # With 3 standard deviations at the end of the table some coordinates lie beyond it.
    scales = np.full(3, top / 32 / 4 / 2**shift, np.float32)
    out, rank = np.empty((3, form.up_bytes), np.uint8), workers - 1
    keys = KEYS._replace(shift=int(dither.shifts[rank]))
    table = CodeTable.from_values(tuple(range(dither.granularity + 1)))
    load_kernels(backend).thc_encode(x, scales, np.full(3, shift, np.int32), table, form, keys, out)
    codes = unpack_codes(out, bits=bits)
    for block in range(3):
        v = np.rint(x[block] * scales[block]).astype(np.int64)
        limit = (top // 2 >> shift) + 1
        y = matrix_of(block) @ v
        q = np.clip((np.clip(y, -limit, limit) if shift else y) * 2**shift + top // 2, 0, top)
        lanes = lane_bits(block_keys(KEYS.rounding, KEYS.first + block, 1), 512)[0].astype(np.int64)
        place = np.arange(1024)
        drawn = lanes[place // 512 * 256 + place % 256] >> 16 * (place // 256 % 2) & 0xFFFF
        u = drawn & 0xFFF | (known_bits(block) + 16 * rank // workers) % 16 << 12
        np.testing.assert_array_equal(codes[block], (q + u) >> 16)
        assert 0 in codes[block]
        assert dither.granularity in codes[block]


@pytest.mark.parametrize(("bits", "requantized", "workers"), FORMS)
def test_decoding_is_that_of_the_definition(backend: str, bits: int, requantized: bool, workers: int) -> None:
    """Any results of any contributors, and those that one row of the Hadamard matrix adds up with equal signs."""
    dither, form = job_dither(workers, bits, requantized, True), form_of(bits, requantized)
    rng, blocks, row = np.random.default_rng(7), 8, 77
    is_in = rng.random((blocks, workers)) < 0.5
    is_in[np.arange(blocks), rng.integers(0, workers, blocks)] = True
    is_in[:2] = True
    counts = is_in.sum(axis=1)
    top = np.full(blocks, (1 << bits) - 1) if requantized else counts * dither.granularity
    given = np.stack([rng.integers(0, most + 1, 1024) for most in top])
    for block in range(4):
        given[block] = np.where((matrix_of(block)[:, row] > 0) == block % 2, top[block], 0)
    results = pack_codes(given.astype(np.uint8), bits=bits) if requantized else given.astype(np.uint8)
    bitmaps = (is_in << np.arange(workers, dtype=np.uint64)).sum(axis=1).astype(np.uint64)
    out = np.empty((blocks, 1024), np.float32)
    factors = np.ones(blocks, np.float32)
    peaks = load_kernels(backend).dither_decode(results, bitmaps, factors, dither, form, KEYS, out)
    assert peaks.tolist() == ([0] * blocks if requantized else given.max(axis=1).tolist())
    for block, count in enumerate(counts):
        w = dither.unit * given[block] - count * dither.unit * dither.granularity // 2
        if dither.results is not None:
            energy = ((2 * given[block] - (1 << bits) + 1) ** 2).sum()
            number = (dither.results.bounds[count] > energy).sum()
            w = dither.results.values[count, number][given[block]].astype(np.int64)
        w = w - dither.own[is_in[block]].astype(np.int64).sum(axis=0)[known_bits(block)]
        np.testing.assert_array_equal(out[block], matrix_of(block).T @ w)


def test_results_of_255_do_not_overflow(backend: str) -> None:
    """The largest |w|, along rows of the Hadamard matrix: sums of 255 * 1024."""
    values = np.zeros((2, CLASSES, 16), np.int16)
    values[:, :, 0], values[:, :, 15] = -255, 255
    results = ResultValues(np.zeros((2, CLASSES - 1), np.int32), values)
    dither = replace(job_dither(1, 4, True, True), own=np.zeros((1, 16), np.int8), results=results)
    rows = np.arange(0, 1024, 41)
    codes = np.stack([np.where(matrix_of(block)[:, row] > 0, 15, 0) for block, row in enumerate(rows)]).astype(np.uint8)
    out, ones = np.empty((len(rows), 1024), np.float32), np.ones(len(rows), np.float32)
    form, everybody = form_of(4, True), np.ones(len(rows), np.uint64)
    load_kernels(backend).dither_decode(pack_codes(codes), everybody, ones, dither, form, KEYS, out)
    expected = np.zeros_like(out)
    expected[np.arange(len(rows)), rows] = 255 * 1024
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize(("bits", "requantized", "workers"), FORMS)
def test_own_codes_decode_as_defined_and_are_subtracted(
    backend: str, bits: int, requantized: bool, workers: int
) -> None:
    dither, form, rank = job_dither(workers, bits, requantized, True), form_of(bits, requantized), workers // 2
    codes = np.random.default_rng(bits).integers(0, dither.granularity + 1, (2, 1024), dtype=np.uint8)
    before = np.full((2, 1024), 3, np.float32)
    for subtract in (False, True):
        out = before.copy()
        given = (pack_codes(codes, bits=bits), np.ones(2, np.float32), dither, rank, form, KEYS)
        load_kernels(backend).dither_dequantize(*given, out, subtract)
        for block in range(2):
            w = dither.unit * codes[block].astype(np.int64) - dither.unit * dither.granularity // 2
            expected = matrix_of(block).T @ (w - dither.own[rank][known_bits(block)])
            np.testing.assert_array_equal(out[block], 3 - expected if subtract else expected)


ALL: dict[str, tuple[int, ...]] = {
    "thc": tuple(range(1, 18)),
    "thc:bits=3": tuple(range(1, 18)),
    "thc:bits=2": (*range(1, 18), 42),
    "thc:result_bits=8": (*range(1, 18), 18, 33, 64),
}


@pytest.mark.system
@pytest.mark.parametrize("stretch", [0.3, 1.0])
@pytest.mark.parametrize("spelled", list(ALL))
def test_numba_equals_numpy_for_any_number_of_workers(spelled: str, stretch: float) -> None:
    """Subsets of contributors that differ by chunk, blocks of zeros, blocks beyond the shared range, an odd length."""
    pytest.importorskip("numba")
    x = layered(7 * 1024 + 511)
    x[1024:2048] = 0
    for workers in ALL[spelled]:
        context = ReductionContext(7, workers, workers - 1)
        # `make_codec` compares the machine code for parts of a vector as well.
        numpy, numba = (make_codec(spelled, workers=workers, backend=backend) for backend in ("numpy", "numba"))
        assert isinstance(numpy, RangeCodec)
        assert isinstance(numba, RangeCodec)
        assert phases(numpy, x, context, stretch) == phases(numba, x, context, stretch), workers


# ---- the error --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [0.0, 0.13, 2.5, 3.97, 7.03125])
@pytest.mark.parametrize(("workers", "rank"), [(1, 0), (2, 1), (4, 1)])
def test_rounding_is_unbiased_and_errs_by_a_twelfth_at_any_coordinate(place: float, workers: int, rank: int) -> None:
    """Blocks whose coordinates are all one number: only their first element is not zero."""
    dither, form, blocks = job_dither(workers, 4, False, True), form_of(4, False), 256
    x, v = np.zeros((blocks, 1024), np.float32), round(place * 65536)
    x[:, 0] = [v * matrix_of(block)[0, 0] for block in range(blocks)]
    payloads, kernels = np.empty((blocks, form.up_bytes), np.uint8), load_kernels("auto")
    table, ones = CodeTable.from_values(tuple(range(16))), np.ones(blocks, np.float32)
    keys = KEYS._replace(shift=int(dither.shifts[rank]))
    kernels.thc_encode(x, ones, np.zeros(blocks, np.int32), table, form, keys, payloads)
    own = np.stack([dither.own[rank][known_bits(block)] for block in range(blocks)])
    errors = unpack_codes(payloads) - 7.5 - own / dither.unit - place
    spread = np.sqrt(dither_error(dither, rank))
    # The 4 bits that are known leave a sixteenth of a level, where a coordinate's error depends on its place.
    assert abs(errors.mean()) < 5 * spread / np.sqrt(errors.size)
    assert errors.std() == pytest.approx(spread, rel=0.03)
    assert spread**2 == pytest.approx(1 / 12, rel=0.02)


@pytest.mark.parametrize(
    ("spelled", "workers"),
    [("thc", 4), ("thc", 17), ("thc:bits=3", 8), ("thc:bits=2", 4), ("thc:bits=2", 42), ("thc:result_bits=8", 64)],
)
def test_a_rank_errs_by_rounding_and_truncation(spelled: str, workers: int) -> None:
    codec, x, rank = make_codec(spelled, workers=workers), normal(1 << 18), workers // 3
    assert isinstance(codec, Thc)
    assert codec.dither is not None
    context = ReductionContext(1, 2, rank)
    payloads, shared = encode_alone(codec, x, context)
    expected = (2 * codec.bound / codec.granularity) ** 2 * dither_error(codec.dither, rank)
    expected += truncation_error(codec.bound)
    assert nmse(codec.dequantize_own(payloads, shared, x.size, context), x) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("granularity", [15, 14, 7, 3])
def test_levels_end_where_one_worker_errs_least(granularity: int) -> None:
    def error(bound: float) -> float:
        return (2 * bound / granularity) ** 2 / 12 + truncation_error(bound)

    best = error(even_levels(granularity).bound)
    assert all(best <= error(bound) * (1 + 3e-3) for bound in np.arange(0.5, 5, 0.01))


@pytest.mark.parametrize("workers", [1, 2, 4, 8, 16, 17, 33, 64])
def test_equal_inputs_round_apart_and_their_errors_cancel(workers: int) -> None:
    codec, x = make_codec("thc:result_bits=8", workers=workers), normal(1 << 17, seed=workers)
    assert isinstance(codec, Thc)
    means = simulate_allreduce(codec, [x] * workers, seed=3, step=workers)
    assert means is not None
    found = nmse(means[0], x)
    assert found == pytest.approx(expected_normal_nmse(codec), rel=0.04)
    # Independent roundings would leave 1/n of the error of one.
    alone = (2 * codec.bound / codec.granularity) ** 2 / 12
    if 4 <= workers <= 8:
        assert found - truncation_error(codec.bound) < 0.4 * alone / workers


# ---- whole sums -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("elements", ODD_SIZES)
@pytest.mark.parametrize("workers", [1, 2, 5, 17, 40, 64])
def test_a_sum_is_that_of_its_contributors(workers: int, elements: int) -> None:
    """Of every subset, other ones in every chunk: what the ranks that are in it have subtracted, and nothing else."""
    codec = make_codec("thc:result_bits=8", workers=workers)
    assert isinstance(codec, RangeCodec)
    vectors = [layered(elements, seed=rank) for rank in range(workers)]
    own = [codec.ranges(x) for x in vectors]
    shared = SharedRanges(np.max([each.view(np.float32) for each in own], axis=0))
    contexts = [ReductionContext(3, 4, rank) for rank in range(workers)]
    payloads = [codec.encode(x, mine, shared, at) for x, mine, at in zip(vectors, own, contexts, strict=True)]
    chunks = len(payloads[0])
    present = np.random.default_rng(elements).random((workers, chunks)) < 0.6
    present[0] |= ~present.any(axis=0)
    results, contributors = simulate_switch(codec.op, payloads, codec.lookup, present)
    mean = codec.decode(results, contributors, shared, elements, contexts[0])
    counts = present.sum(axis=0).repeat(1024)[:elements]
    parts = [
        codec.dequantize_own(sent, shared, elements, at, rows).astype(np.float64)
        for sent, at, rows in zip(payloads, contexts, present, strict=True)
    ]
    # float32 rounds each of them once, and the mean in its factor and in the product.
    room = 2.0**-23 * (np.sum(np.abs(parts), axis=0) + np.abs(counts * mean))
    assert (np.abs(np.sum(parts, axis=0) - counts * mean.astype(np.float64)) <= room).all()


@pytest.mark.parametrize("spelled", ["thc", "thc:bits=3", "thc:bits=2,error_feedback=true", "thc:result_bits=8"])
def test_the_residual_is_the_vector_less_what_was_sent(spelled: str) -> None:
    """Exactly, for any form of results: what is lost on the way down is in no residual."""
    workers, elements = 3, 5000
    codec = make_codec(spelled, workers=workers)
    assert isinstance(codec, RangeCodec)
    vectors: list[Floats] = [layered(elements, seed=rank) for rank in range(workers)]
    kept = [ErrorFeedback(elements) for _ in range(workers)]
    present = np.ones((workers, 5), np.bool_)
    present[1, 2] = False
    sent = []
    ranks: list[Any] = [codec.start(x, ReductionContext(1, 2, at), kept[at]) for at, x in enumerate(vectors)]
    ranges = simulate_switch(Op.MAX32, [rank.phase.payloads for rank in ranks])
    for rank in ranks:
        rank.on_results(*ranges)
    payloads = [rank.phase.payloads for rank in ranks]
    own = np.max([codec.ranges(x).view(np.float32) for x in vectors], axis=0)
    for at in range(workers):
        given = (payloads[at], SharedRanges(own), elements, ReductionContext(1, 2, at))
        sent.append((codec.dequantize_own(*given), codec.dequantize_own(*given, ~present[at])))
    results = simulate_switch(codec.op, payloads, codec.lookup, present)
    for at, rank in enumerate(ranks):
        rank.on_results(*results)
        # What a sum has not is added again.
        np.testing.assert_array_equal(kept[at].residual, vectors[at] - sent[at][0] + sent[at][1])


def test_dithers_of_a_job_are_read_only() -> None:
    made = job_dither(4, 4, True, True)
    assert isinstance(made, Dither)
    assert made.results is not None
    for array in (made.own, *made.results):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
