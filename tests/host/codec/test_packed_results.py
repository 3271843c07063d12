# SPDX-License-Identifier: Apache-2.0
"""Packed results: `result_bits=6` keeps sums below 64, and a RESULT has 6 bits of each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.host.codec.vectors import layered, nmse, normal, require_equal_backends, require_equal_runs

from hopsum.codec import CodecError, ErrorFeedback, ReductionContext, make_codec
from hopsum.codec.interface import job_tables
from hopsum.codec.lookup_table import LookupTable, best_table, expected_nmse
from hopsum.codec.range_codec import RangeCodec
from hopsum.codec.simulate import simulate_allreduce, simulate_switch
from hopsum_controlplane.lanes import check_lane_overflow
from hopsum_wire import Op
from hopsum_wire.payload import pack_sums, unpack_sums

SIZES = (1, 1023, 1024, 1025, 3 * 1024, 5 * 1024 + 7)


def packed(workers: int, backend: str = "numpy", name: str = "thc", **options: Any) -> RangeCodec:
    made = make_codec(name, workers=workers, result_bits=6, backend=backend, **options)
    assert isinstance(made, RangeCodec)
    return made


@pytest.mark.parametrize(("workers", "entries"), [(1, 16), (4, 16), (5, 8), (9, 8), (10, 4), (21, 4), (22, 2), (63, 2)])
def test_no_packed_sum_overflows_and_the_controller_can_prove_it(workers: int, entries: int) -> None:
    codec = packed(workers)
    ((name, table),) = job_tables(codec).items()
    assert (codec.op, name, len(set(table))) == (Op.LOOKUP_ADD6, "table6", entries)
    check_lane_overflow(workers, max(table), lane_bits=6)


@pytest.mark.parametrize(
    ("workers", "name", "options", "message"),
    [
        (64, "thc", {}, "a lane of 6 bits holds the sum of at most 63 with codes of 1 bits .* take lane_bits=8"),
        (4, "thc", {"bits": 2}, "result_bits=6 with paired codes: two sums of 4 bits fill a lane"),
        (4, "thc", {"lane_bits": 16}, "result_bits=6 of lanes of 16 bits: take lanes of 8 bits"),
        (4, "thc", {"result_bits": 5}, "results of 5 bits a lane: 6, or the 8 of the lane"),
        (5, "thc", {"table": best_table(4, 6)}, r"5 workers \* granularity 15 = 75 overflows a lane, .* maximum is 63"),
        (5, "uhc", {}, r"5 workers \* granularity 15 = 75 overflows a lane, whose maximum is 63"),
        (2, "uhc", {"bits": 5}, "result_bits=6 with codes of 5 bits: the switch packs sums of codes that it looks up"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_numbers(
    workers: int, name: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(CodecError, match=message):
        make_codec(name, workers=workers, backend="numpy", **{"result_bits": 6, **options})


def test_result_bits_8_is_thc_as_it_is_without() -> None:
    plain, said = make_codec("thc", workers=4), make_codec("thc:result_bits=8", workers=4)
    assert job_tables(plain) == job_tables(said)
    assert said.op is Op.LOOKUP_ADD8


@pytest.mark.parametrize("elements", SIZES)
def test_four_bits_an_element_up_and_six_down(elements: int) -> None:
    codec = packed(4)
    ranks = [codec.start(normal(elements, seed=rank), ReductionContext(1, 2, rank)) for rank in range(4)]
    for _ in range(2):
        phases = [each.phase for each in ranks if each.phase is not None]
        results, everybody = simulate_switch(phases[0].op, [each.payloads for each in phases], codec.lookup)
        for each in ranks:
            each.take(results, everybody)
    assert phases[0].payloads.shape == (-(-elements // 1024), 512)
    assert results.shape == (-(-elements // 1024), 768)
    assert int(unpack_sums(results).max()) <= 60


@pytest.mark.parametrize("name", ["thc", "uhc"])
@pytest.mark.parametrize("elements", SIZES)
def test_backends_and_threads_give_equal_bytes(elements: int, name: str) -> None:
    require_equal_backends(lambda backend, threads: packed(3, backend, name, threads=threads), elements)


def test_packing_alone_changes_no_byte_of_the_mean() -> None:
    """With the same table in results of 8 bits, every byte of mean and residuals is the same."""
    table = best_table(4, 6)
    vectors = [layered(5 * 1024 + 9, seed=rank) for rank in range(4)]
    found = []
    for options in ({"result_bits": 6}, {"result_bits": 8}):
        codec = make_codec("thc", workers=4, table=table, **options)
        kept = [ErrorFeedback(vectors[0].size) for _ in range(4)]
        means = simulate_allreduce(codec, vectors, seed=3, step=7, feedback=kept)
        assert means is not None
        found.append((means[0].tobytes(), *(each.residual.tobytes() for each in kept)))
    assert found[0] == found[1]


def test_long_vectors_are_done_run_by_run(monkeypatch: pytest.MonkeyPatch) -> None:
    require_equal_runs(lambda: packed(2), monkeypatch)


@pytest.mark.parametrize("workers", [2, 4, 8])
def test_the_error_of_the_mean_is_that_of_theory(workers: int) -> None:
    codec, x, errors = packed(workers), normal(64 * 1024), []
    for step in range(12):
        means = simulate_allreduce(codec, [x] * workers, seed=1, step=step)
        assert means is not None
        errors.append(nmse(means[0], x))
    assert np.mean(errors) == pytest.approx(expected_nmse(best_table(workers, 6, None), workers), rel=0.05)


def test_sums_of_another_table_are_refused() -> None:
    codec = packed(2, table=LookupTable(tuple(range(16)), 2.0**-8))
    reductions = [codec.start(normal(4096), ReductionContext(1, 2, rank)) for rank in range(2)]
    for turn in range(2):
        phases = [each.phase for each in reductions if each.phase is not None]
        results, everybody = simulate_switch(phases[0].op, [each.payloads for each in phases], codec.lookup)
        if turn:
            sums = unpack_sums(results)
            sums[3, 1000] = 31
            with pytest.raises(CodecError, match="chunk 3: a lane of 31 from 2 workers, but the table ends at 15"):
                reductions[0].take(pack_sums(sums), everybody)
        else:
            for each in reductions:
                each.take(results, everybody)
