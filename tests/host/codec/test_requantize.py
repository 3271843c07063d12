# SPDX-License-Identifier: Apache-2.0
"""Results that the switch looks up again: tables, the values of cells, error and slope of the mean, and no drift."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations, pairwise
from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from hopsum.codec import ErrorFeedback, ReductionContext, SharedRanges, make_codec
from hopsum.codec.dither import CLASSES, MOST_WORKERS, Dither, _cells, granularity_for, job_dither, requantized_table
from hopsum.codec.interface import job_tables
from hopsum.codec.range_codec import RangeCodec
from hopsum.codec.simulate import simulate_switch
from hopsum.codec.thc import Thc
from hopsum_evaluation.expected_error import expected_normal_nmse
from hopsum_evaluation.simulated_allreduce import simulate_allreduce
from hopsum_wire.payload import requantize

from .vectors import Floats, nmse, require_equal_backends

Doubles = NDArray[np.float64]
SHARES = {"equal": 1.0, "half": 0.5, "independent": 0.0}
"""How much of the energy of workers' vectors they have in common."""
SLOPES = {4: 0.01, 3: 0.02, 2: 0.03}
"""How far the mean may be from its due length, by bits: the width of a sum is known by classes only."""
ELEMENTS = 1 << 16


def alike(share: float, workers: int, elements: int, seed: int) -> list[Floats]:
    """Return normal vectors that have this share of their energy in common."""
    rng = np.random.default_rng(seed)
    common = math.sqrt(share) * rng.standard_normal(elements)
    own = math.sqrt(1 - share) * rng.standard_normal((workers, elements))
    return [np.float32(common + each) for each in own]


def unlike(norms: Sequence[float], elements: int, seed: int) -> list[Floats]:
    """Return independent normal vectors of these norms."""
    return [np.float32(norm) * each for norm, each in zip(norms, alike(0.0, len(norms), elements, seed), strict=True)]


def inner(a: Floats | Doubles, b: Floats | Doubles) -> float:
    return float(a.astype(np.float64) @ b.astype(np.float64))


# ---- tables -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [4, 3, 2])
def test_thresholds_ascend_and_signed_sums_fit_lanes(bits: int) -> None:
    """Of every job: 2^bits values around 0, and a threshold fewer."""
    for workers in range(1, MOST_WORKERS[bits] + 1):
        table, granularity = requantized_table(workers, bits), granularity_for(workers, bits, requantized=True)
        values, thresholds = table[: 1 << bits], table[1 << bits :]
        assert len(thresholds) == (1 << bits) - 1
        assert 1 <= thresholds[0] <= thresholds[-1] <= 127
        assert all(low < high for low, high in pairwise(thresholds))
        # Sums are as likely on both sides of 0, which is 64 here. Equally good thresholds are a place apart.
        assert {low + high for low, high in zip(thresholds, reversed(thresholds), strict=True)} <= {128, 129}
        assert values[0] == -values[granularity]
        assert {high - low for low, high in pairwise(values[: granularity + 1])} <= {1, 2}
        assert set(values[granularity:]) == {values[granularity]}, "codes that are never sent"
        assert workers * values[granularity] <= 127


@pytest.mark.parametrize(("bits", "workers"), [(4, 1), (4, 4), (4, 9), (4, 17), (3, 2), (3, 17), (2, 1), (2, 42)])
def test_the_switch_counts_the_thresholds_that_a_sum_has_reached(bits: int, workers: int) -> None:
    table, granularity = requantized_table(workers, bits), granularity_for(workers, bits, requantized=True)
    values, thresholds = table[: 1 << bits], table[1 << bits :]
    step = values[1] - values[0]
    lanes = [workers * values[0] + step * total for total in range(workers * granularity + 1)]
    codes = requantize(np.array(lanes, np.int8), thresholds)
    assert codes.tolist() == [sum(each <= (lane + 128) >> 1 for each in thresholds) for lane in lanes]
    assert sorted(set(codes.tolist())) == list(range(1 << bits)), "every code is sent"
    assert (np.diff(codes.astype(int)) >= 0).all()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("cells", [2, 4])
def test_no_other_cells_keep_more(seed: int, cells: int) -> None:
    rng, places = np.random.default_rng(seed), 9
    weight = rng.random((3, places)) * (rng.random((3, places)) < 0.9)
    first = weight * np.sort(rng.standard_normal((3, places)), axis=1)

    def kept(ends: tuple[int, ...]) -> float:
        mass = np.add.reduceat(weight, (0, *ends), axis=1)
        moment = np.add.reduceat(first, (0, *ends), axis=1)
        return float(np.divide(moment**2, mass, out=np.zeros_like(mass), where=mass > 0).mean(axis=0).sum())

    found = _cells(weight, first, cells, 20)
    best = max(kept(ends) for ends in combinations(range(1, places), cells - 1))
    assert kept(tuple(end - 20 for end in found)) == pytest.approx(best, rel=1e-9)


def test_fewer_sums_than_cells_repeat_the_last_threshold() -> None:
    assert _cells(np.ones((1, 3)), np.array([[-1.0, 0.0, 1.0]]), 8, 63) == (64, 65, 65, 65, 65, 65, 65)


def test_a_job_has_the_table_of_its_codes() -> None:
    for bits in (4, 3, 2):
        codec = make_codec("thc", workers=5, bits=bits, backend="numpy")
        assert job_tables(codec) == {f"table{bits}": requantized_table(5, bits)}


# ---- values of cells --------------------------------------------------------------------------------------


class Drawn(NamedTuple):
    """What a coordinate of each of many elements becomes, drawn in float64 without the codec's kernels."""

    codes: NDArray[np.uint8]
    """[draws], of the result."""
    sent: Doubles
    """[draws], what workers' codes stand for, in distances of levels, as a sum."""
    true: Doubles
    """[draws], their coordinates, likewise."""
    known: Doubles
    """[draws], their known dithers, as a sum."""


def draw(workers: int, bits: int, share: float, draws: int, wider: float = 1.0) -> Drawn:
    """Draw sums of coordinates. `wider`: the range that workers share, over the root mean square of their vectors."""
    codec = make_codec("thc", workers=workers, bits=bits, backend="numpy")
    assert isinstance(codec, Thc)
    rng, granularity = np.random.default_rng((workers, bits)), codec.granularity
    scale = granularity / (2 * codec.bound) / wider
    shared, common = rng.integers(0, 16, draws), rng.standard_normal(draws)
    total, sent, true, known = np.zeros((4, draws))
    for rank in range(workers):
        place = scale * (math.sqrt(share) * common + math.sqrt(1 - share) * rng.standard_normal(draws))
        step = (shared + 16 * rank // workers) % 16
        code = np.floor(np.clip(place + granularity / 2, 0, granularity) + (step + rng.random(draws)) / 16)
        dither = (step + 0.5) / 16 - 0.5
        total, true, known = total + code, true + place, known + dither
        sent += code - granularity / 2 - dither
    table = requantized_table(workers, bits)
    lanes = workers * table[0] + (table[1] - table[0]) * total
    return Drawn(requantize(lanes.astype(np.int8), table[1 << bits :]), sent, true, known)


def share_of(number: int, workers: int) -> float:
    """Return the share of energy in common of workers whose mean has the width of a class."""
    return (workers * 2 ** (-number / 2) - 1) / (workers - 1)


@pytest.mark.system
@pytest.mark.parametrize("error_feedback", [True, False])
@pytest.mark.parametrize(
    ("workers", "bits", "number"),
    [(2, 4, 1), (4, 4, 2), (4, 4, 4), (8, 4, 3), (16, 4, 8), (3, 3, 2), (8, 3, 6), (2, 2, 2), (5, 2, 3), (16, 2, 8)],
)
def test_values_are_the_means_of_their_sums_times_an_unbiased_gain(
    workers: int, bits: int, number: int, error_feedback: bool
) -> None:
    """Before known dithers are subtracted: cells of the sum of codes, of which the dithers are a part."""
    draws = 1 << 20
    drawn = draw(workers, bits, max(share_of(number, workers), 0), draws)
    dither = job_dither(workers, bits, True, error_feedback)
    assert dither.results is not None
    stands_for = drawn.sent if error_feedback else drawn.true
    cells = range(1 << bits)
    inside = [stands_for[drawn.codes == code] for code in cells]
    gain = float((stands_for**2).mean()) / sum(each.size * each.mean() ** 2 for each in inside if each.size) * draws
    found = dither.results.values[workers, number]
    for code, each in zip(cells, inside, strict=True):
        if each.size < 1000:
            continue
        noise = 5 * (each.std() / math.sqrt(each.size) + abs(each.mean()) / math.sqrt(draws))
        assert abs(found[code] / dither.unit - gain * each.mean()) <= 0.5 / dither.unit + gain * noise, code


def classes_of(dither: Dither, count: int, energies: NDArray[np.int64]) -> NDArray[np.int64]:
    assert dither.results is not None
    return np.asarray((dither.results.bounds[count] > energies[:, None]).sum(axis=1))


@pytest.mark.parametrize(
    ("workers", "bits", "number"), [(4, 4, 0), (4, 4, 2), (4, 4, 4), (16, 4, 8), (8, 3, 3), (2, 2, 0), (12, 2, 6)]
)
def test_a_block_shows_its_width(workers: int, bits: int, number: int) -> None:
    codes = draw(workers, bits, min(share_of(number, workers), 1), 128 * 1024).codes.astype(np.int64)
    energies = ((2 * codes - (1 << bits) + 1) ** 2).reshape(128, 1024).sum(axis=1)
    found = classes_of(job_dither(workers, bits, True, True), workers, energies)
    assert np.abs(found - number).max() <= 1
    assert (found == number).mean() > 0.8


@pytest.mark.parametrize("bits", [4, 3, 2])
def test_bounds_descend_and_every_energy_has_a_class(bits: int) -> None:
    dither = job_dither(7, bits, True, True)
    assert dither.results is not None
    assert dither.results.bounds.shape == (8, CLASSES - 1)
    assert (np.diff(dither.results.bounds[1:], axis=1) <= 0).all()
    most = 1024 * ((1 << bits) - 1) ** 2
    assert classes_of(dither, 7, np.array([most, 0])).tolist()[0] == 0


# ---- error and slope of the mean --------------------------------------------------------------------------


def summed(codec: RangeCodec, share: float, workers: int, steps: int) -> tuple[float, float]:
    """Return slope and NMSE of means of normal vectors."""
    along = energy = error = 0.0
    for step in range(steps):
        vectors = alike(share, workers, ELEMENTS, step)
        means = simulate_allreduce(codec, vectors, seed=9, step=step)
        assert means is not None
        true = np.mean(vectors, axis=0, dtype=np.float64)
        along, energy = along + inner(means[0], true), energy + inner(true, true)
        error += inner(means[0] - true, means[0] - true)
    return along / energy, error / energy


@pytest.mark.system
@pytest.mark.parametrize("kind", list(SHARES))
@pytest.mark.parametrize("workers", [2, 3, 4, 8, 16])
@pytest.mark.parametrize("bits", [4, 3, 2])
def test_a_mean_without_feedback_has_the_length_of_the_true_one(bits: int, workers: int, kind: str) -> None:
    """Also of what is clipped: E[mean' . mean] = |mean|^2, and the error is that of coordinates drawn one by one."""
    codec = make_codec("thc", workers=workers, bits=bits, error_feedback=False)
    assert isinstance(codec, Thc)
    slope, error = summed(codec, SHARES[kind], workers, 4)
    noise = 4 * math.sqrt(error / (4 * ELEMENTS))
    assert abs(slope - 1) < SLOPES[bits] + noise
    # The range of a block is the largest of its workers.
    ranges = [codec.ranges(x).view(np.float32) for x in alike(SHARES[kind], workers, ELEMENTS, 0)]
    drawn = draw(workers, bits, SHARES[kind], 1 << 18, float(np.max(ranges, axis=0).mean() / np.mean(ranges)))
    cells = [drawn.true[drawn.codes == code] for code in range(1 << bits)]
    means = np.array([each.mean() if each.size else 0.0 for each in cells])
    gain = inner(drawn.true, drawn.true) / sum(each.size * each.mean() ** 2 for each in cells if each.size)
    left = gain * means[drawn.codes] - drawn.known - drawn.true
    assert error == pytest.approx(inner(left, left) / inner(drawn.true, drawn.true), rel=0.08)


UNLIKE = [(1, 4), (1, 1, 1, 2), (1, 1, 1, 4), (1, 2.52, 6.35, 16), (1, 1, 1, 1, 1, 1, 4, 4), (1,) * 7 + (10,)]
UNLIKE_SLOPES = {4: 0.02, 3: 0.03, 2: 0.05}


@pytest.mark.system
@pytest.mark.parametrize("norms", UNLIKE, ids=lambda norms: "-".join(map(str, norms)))
@pytest.mark.parametrize("bits", [4, 3, 2])
def test_workers_of_unlike_norms_have_a_mean_of_the_true_length(bits: int, norms: Sequence[float]) -> None:
    """Only the largest one is clipped. Values for workers of one norm made it 0.84 to 0.94 of its length in 2 bits."""
    codec = make_codec("thc", workers=len(norms), bits=bits, error_feedback=False)
    along = energy = error = 0.0
    for step in range(8):
        vectors = unlike(norms, ELEMENTS, step)
        means = simulate_allreduce(codec, vectors, seed=9, step=step)
        assert means is not None
        true = np.mean(vectors, axis=0, dtype=np.float64)
        along, energy = along + inner(means[0], true), energy + inner(true, true)
        error += inner(means[0] - true, means[0] - true)
    reference = make_codec("thc", workers=len(norms), bits=bits, error_feedback=False, backend="numpy")
    expected = simulate_allreduce(reference, unlike(norms, 8192, 1), seed=9, step=1)
    found = simulate_allreduce(codec, unlike(norms, 8192, 1), seed=9, step=1)
    assert expected is not None
    assert found is not None
    assert found[0].tobytes() == expected[0].tobytes()
    assert abs(along / energy - 1) < UNLIKE_SLOPES[bits] + 4 * math.sqrt(error / energy / (8 * ELEMENTS))


@pytest.mark.parametrize(
    ("spelled", "most"),
    [
        ("thc", (0.018, 0.016, 0.027)),
        ("thc:bits=3", (0.068, 0.059, 0.09)),
        ("thc:bits=2", (0.25, 0.26, 0.32)),
        ("thc:result_bits=8", (0.0035, 0.006, 0.0135)),
        ("thc:rounding=stochastic", (0.0058, 0.0092, 0.023)),
    ],
)
def test_errors_of_four_workers_are_as_small_as_they_were(spelled: str, most: tuple[float, ...]) -> None:
    """Of equal inputs, half equal and independent ones: 15 % above what was measured."""
    codec = make_codec(spelled, workers=4)
    assert isinstance(codec, RangeCodec)
    for share, limit in zip(SHARES.values(), most, strict=True):
        assert summed(codec, share, 4, 2)[1] < limit


@pytest.mark.parametrize("workers", [1, 2, 5, 16])
@pytest.mark.parametrize("spelled", ["thc", "thc:bits=3", "thc:bits=2"])
def test_the_error_of_equal_inputs_is_the_expected_one(spelled: str, workers: int) -> None:
    codec = make_codec(spelled, workers=workers)
    assert isinstance(codec, Thc)
    assert summed(codec, 1.0, workers, 2)[1] == pytest.approx(expected_normal_nmse(codec), rel=0.05)


@pytest.mark.parametrize("kind", list(SHARES))
@pytest.mark.parametrize(("bits", "workers"), [(4, 4), (4, 8), (3, 4), (3, 8), (2, 4), (2, 8)])
def test_a_mean_with_feedback_has_the_length_of_what_was_sent(bits: int, workers: int, kind: str) -> None:
    """Ranks keep what is clipped. So the mean of what they sent is what the way down must not shorten."""
    codec = make_codec("thc", workers=workers, bits=bits, error_feedback=True)
    assert isinstance(codec, RangeCodec)
    vectors = alike(SHARES[kind], workers, 2 * ELEMENTS, workers)
    own = [codec.ranges(x) for x in vectors]
    shared = SharedRanges(np.max([each.view(np.float32) for each in own], axis=0))
    contexts = [ReductionContext(3, 4, rank) for rank in range(workers)]
    payloads = [codec.encode(x, mine, shared, at) for x, mine, at in zip(vectors, own, contexts, strict=True)]
    results, everybody = simulate_switch(codec.op, payloads, codec.lookup)
    mean = codec.decode(results, everybody, shared, vectors[0].size, contexts[0])
    parts = [codec.dequantize_own(sent, shared, mean.size, at) for sent, at in zip(payloads, contexts, strict=True)]
    sent = np.mean(parts, axis=0, dtype=np.float64)
    noise = 4 * math.sqrt(nmse(mean, sent) / mean.size)
    assert abs(inner(mean, sent) / inner(sent, sent) - 1) < SLOPES[bits] + noise


PARTS = {4: (0.028, 0.030, 0.036, 0.049), 3: (0.097, 0.104, 0.128, 0.175), 2: (0.32, 0.33, 0.38, 0.76)}
"""NMSE of the mean of 4, 3, 2 and 1 of 4 workers, of independent inputs: 15 % above what was measured."""


@pytest.mark.parametrize("bits", [4, 3, 2])
def test_a_sum_of_some_is_the_mean_of_those(bits: int) -> None:
    """Other ones in every chunk. Their dithers are subtracted, and no others'."""
    codec = make_codec("thc", workers=4, bits=bits, error_feedback=False)
    vectors, chunks = np.stack(alike(0.0, 4, 2 * ELEMENTS, 5)), 2 * ELEMENTS // 1024
    for missing, most in enumerate(PARTS[bits]):
        present = np.random.default_rng(missing).random((4, chunks)).argsort(axis=0) >= missing
        means = simulate_allreduce(codec, list(vectors), seed=2, step=missing, present=present)
        assert means is not None
        true = (vectors * present.repeat(1024, axis=1)).sum(axis=0, dtype=np.float64) / (4 - missing)
        error = nmse(means[0], true)
        assert error < most
        assert abs(inner(means[0], true) / inner(true, true) - 1) < SLOPES[bits] + 4 * math.sqrt(error / true.size)


@pytest.mark.parametrize("elements", [1, 1023, 1024, 1025, 5 * 1024 + 7])
@pytest.mark.parametrize("spelled", ["thc", "thc:bits=3", "thc:bits=2,error_feedback=true"])
def test_backends_and_threads_give_equal_bytes(elements: int, spelled: str) -> None:
    def made(backend: str, threads: int) -> RangeCodec:
        codec = make_codec(spelled, workers=3, backend=backend, threads=threads)
        assert isinstance(codec, RangeCodec)
        return codec

    require_equal_backends(made, elements)


# ---- the sum of many means --------------------------------------------------------------------------------


def errors_of_sums(spelled: str, share: float, times: tuple[int, ...], *, one_rotation: bool = False) -> list[float]:
    """Return the relative error of the mean of so many means of the same vectors."""
    codec, elements = make_codec(spelled, workers=4), 8192
    vectors = alike(share, 4, elements, 3)
    kept = [ErrorFeedback(elements) for _ in vectors] if getattr(codec, "error_feedback", True) else None
    true, total, found = np.mean(vectors, axis=0, dtype=np.float64), np.zeros(elements), []
    for step in range(max(times)):
        means = simulate_allreduce(codec, vectors, seed=9, step=0 if one_rotation else step, feedback=kept)
        assert means is not None
        total += means[0]
        if step + 1 in times:
            found.append(math.sqrt(nmse(total / (step + 1), true)))
    return found


DRIFTS = [
    ("thc", 0.5),
    ("thc:error_feedback=false", 0.5),
    ("thc:bits=3", 0.5),
    ("thc:bits=2", 1.0),
    ("thc:bits=2,error_feedback=true", 0.0),
]


@pytest.mark.system
@pytest.mark.parametrize(("spelled", "share"), DRIFTS)
def test_errors_of_the_way_down_average_out(spelled: str, share: float) -> None:
    """As 1/sqrt(T), for they are noise of mean zero: new rotations, and a gain that keeps the length."""
    errors = errors_of_sums(spelled, share, (16, 64, 256))
    for before, after in pairwise(errors):
        assert after / before == pytest.approx(0.5, rel=0.3)


@pytest.mark.system
@pytest.mark.parametrize(
    ("spelled", "share"), [each for each in DRIFTS if "bits=2" not in each[0] or "true" in each[0]]
)
def test_one_rotation_for_all_steps_would_drift(spelled: str, share: float) -> None:
    """The error of the way down is the same one in every step then, and stays."""
    errors = errors_of_sums(spelled, share, (64, 256), one_rotation=True)
    assert errors[1] > 0.75 * errors[0]
    assert errors[1] > 2.5 * errors_of_sums(spelled, share, (256,))[0]
