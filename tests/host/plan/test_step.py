# SPDX-License-Identifier: Apache-2.0
"""The time of a step: against a schedule simulated event by event, documented measurements, and laws."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from hopsum.codec import Codec, make_codec
from hopsum.plan import (
    Cost,
    PlanError,
    PlannedJob,
    Prediction,
    predict_ring,
    predict_summed,
    shipped_costs,
    winning_rates,
)
from hopsum.plan.step import AGGREGATORS, COMPUTE, codec_cpu_s, predict_two_shot

PLANNING = (Path(__file__).resolve().parents[3] / "docs" / "planning.md").read_text()
COSTS = shipped_costs()
SLOW_SWITCH = COSTS.replace({"update": Cost(4e-6, "made up")})
JOB = PlannedJob(elements=25_000_000, workers=4, compute_s=0.2, link_bits_per_s=1e9)


@cache
def codec_of(workers: int) -> Codec:
    return make_codec("thc", workers=workers, backend="numpy")


def thc(job: PlannedJob, aggregator: str = "switch") -> Prediction:
    return predict_summed(job, COSTS, codec_of(job.workers), aggregator)


def simulate(encode_s: float, network_s: float, decode_s: float, vectors: int) -> float:
    """Return when the last mean is there: one codec thread, which encodes ahead; one network; vectors in order."""
    codec_free = network_free = 0.0
    sent: list[float] = []
    encoded = decoded = 0
    while decoded < vectors:
        ready = decoded < len(sent) and (sent[decoded] <= codec_free or encoded == vectors)
        if ready:
            codec_free = max(codec_free, sent[decoded]) + decode_s
            decoded += 1
        else:
            codec_free += encode_s
            encoded += 1
            network_free = max(network_free, codec_free) + network_s
            sent.append(network_free)
    return codec_free


@pytest.mark.parametrize("rate", [1e8, 1e9, 3e9, 1e10, 1e11])
@pytest.mark.parametrize("vectors", [1, 8, 64])
def test_overlap_is_as_a_simulated_schedule_has_it(rate: float, vectors: int) -> None:
    """The formula has no share of vectors that wait for one another: within two vectors' work of the schedule."""
    job = replace(JOB, link_bits_per_s=rate, vectors=vectors, round_trip_s=0, worker_cores=64)
    found = thc(job)
    encode_s, decode_s = COSTS.codec_s("thc", job.elements, 1.0)
    decode_s += job.elements * COSTS["place"].seconds
    thread_s = found.traffic.chunks * COSTS["chunk"].seconds + vectors * COSTS["vector"].seconds
    network_s = max(found.busy_s["link down"], thread_s)
    expected = simulate(encode_s / vectors, network_s / vectors, decode_s / vectors, vectors)
    slack = 2 * (encode_s + decode_s + network_s) / vectors if vectors > 1 else 1e-9
    assert found.allreduce_s == pytest.approx(expected, abs=slack)
    assert found.allreduce_s <= encode_s + decode_s + network_s + 1e-9


SUBJECTS = ("thc", "thc-no-overlap", "fp32", "fp16")


def predicted(rate: float, subject: str) -> float:
    """Return the seconds of an all-reduce where everybody shares two cores, as in the benchmark."""
    job = replace(JOB, link_bits_per_s=rate, shared_cores=2, codec_overlap=subject != "thc-no-overlap")
    return (thc(job, "embedded") if subject.startswith("thc") else predict_ring(job, COSTS, subject)).allreduce_s


def documented() -> list[tuple[float, str, float, float]]:
    """Return rate, subject, predicted and measured seconds of the table in docs/planning.md."""
    rates = {"200 Mbit/s": 200e6, "1 Gbit/s": 1e9, "not shaped": 1e13}
    found = []
    for name, rate in rates.items():
        rows = re.search(rf"^\| {name}, predicted \|(.+)\|\n\| measured \|(.+)\|$", PLANNING, re.MULTILINE)
        assert rows is not None
        both = [[float(cell.strip().removesuffix(" s")) for cell in row.split("|")] for row in rows.groups()]
        found += [(rate, subject, *pair) for subject, pair in zip(SUBJECTS, zip(*both, strict=True), strict=True)]
    return found


@pytest.mark.parametrize(("rate", "subject", "printed", "measured"), documented())
def test_documented_all_reduces_are_predicted_within_a_quarter(
    rate: float, subject: str, printed: float, measured: float
) -> None:
    """On one machine of two cores. Costs of the network come from unshaped all-reduces; bytes and links do not."""
    assert predicted(rate, subject) == pytest.approx(printed, abs=0.005)
    assert predicted(rate, subject) == pytest.approx(measured, rel=0.25)


@pytest.mark.parametrize("aggregator", AGGREGATORS)
def test_a_faster_link_never_takes_longer(aggregator: str) -> None:
    steps = [thc(replace(JOB, link_bits_per_s=10**exponent), aggregator).step_s for exponent in range(6, 13)]
    assert all(slow >= fast for slow, fast in pairwise(steps))
    assert steps[0] > steps[-1]


def test_who_adds_decides() -> None:
    switch, embedded, server, _ = (
        predict_summed(JOB, SLOW_SWITCH, codec_of(JOB.workers), aggregator) for aggregator in AGGREGATORS
    )
    assert switch.allreduce_s < embedded.allreduce_s < server.allreduce_s
    assert server.busy_s["server out"] == pytest.approx(JOB.workers * server.busy_s["link down"])
    assert server.busy_s["server in"] == pytest.approx(JOB.workers * server.busy_s["link up"])
    assert switch.aggregator_cpu_s == 0 < embedded.aggregator_cpu_s


def test_hosts_carry_the_codes_of_all_shards_and_the_sums_of_one() -> None:
    slow = replace(JOB, link_bits_per_s=1e8)
    switch, hosts = thc(slow), thc(slow, "hosts")
    share = (JOB.workers - 1) / JOB.workers
    both_ways = switch.traffic.up_bytes + switch.traffic.down_bytes
    assert hosts.traffic.up_bytes == hosts.traffic.down_bytes == pytest.approx(share * both_ways)
    assert hosts.busy_s["link up"] == pytest.approx(share * (switch.busy_s["link up"] + switch.busy_s["link down"]))
    assert hosts.busy_s["switch cpu"] == pytest.approx(thc(slow, "embedded").busy_s["switch cpu"] / JOB.workers)
    assert hosts.allreduce_s < thc(slow, "server").allreduce_s
    racks = thc(replace(slow, racks=2), "hosts")  # each host's codes to, and sums for, the two hosts of the other rack
    assert racks.busy_s["trunk"] == pytest.approx(2 * 2 / 3 * hosts.busy_s["link up"])


@pytest.mark.parametrize(
    ("changes", "aggregator", "binds"),
    [
        ({"link_bits_per_s": 1e8}, "switch", "link down"),
        ({"link_bits_per_s": 1e11, "compute_s": 0.0}, "switch", "worker cpu"),
        ({"link_bits_per_s": 1e11, "compute_s": 0.0}, "embedded", "switch cpu"),
        ({"link_bits_per_s": 1e8}, "server", "server out"),
        ({"link_bits_per_s": 1e11, "compute_s": 0.0, "shared_cores": 2}, "embedded", "shared cpu"),
        ({"compute_s": 5.0}, "server", COMPUTE),
        ({"racks": 2, "trunk_bits_per_s": 1e8}, "switch", "trunk"),
    ],
)
def test_what_binds_is_named(changes: dict[str, Any], aggregator: str, binds: str) -> None:
    assert thc(replace(JOB, **changes), aggregator).binds == binds


def test_codes_up_bind_where_lanes_are_not_wider() -> None:
    codec = make_codec("fixed", workers=4, backend="numpy")
    slow = replace(JOB, link_bits_per_s=1e8)
    found = predict_summed(slow, COSTS, codec, "switch")
    assert found.busy_s["link up"] == found.busy_s["link down"]
    assert found.binds == "link up"


def test_overlap_hides_all_but_the_last_vector() -> None:
    none, half = thc(JOB), thc(replace(JOB, overlap=0.5))
    assert none.step_s == pytest.approx(JOB.compute_s + none.allreduce_s)
    assert half.step_s == pytest.approx(none.step_s - 0.1)
    hidden = thc(replace(JOB, overlap=1.0, compute_s=10.0))
    assert hidden.exposed_s == pytest.approx(none.allreduce_s / JOB.vectors)
    assert hidden.binds == COMPUTE


def test_turns_take_longer_than_overlap() -> None:
    assert thc(replace(JOB, codec_overlap=False)).allreduce_s > thc(JOB).allreduce_s * 1.1


@pytest.mark.parametrize(("bits", "workers", "expected"), [(4, 2, 4), (4, 4, 6), (4, 8, 7), (8, 4, 12), (8, 16, 15)])
def test_two_shots_send_their_codes_twice_but_for_the_own_part(bits: int, workers: int, expected: float) -> None:
    """The figures of codes alone; with scales and frames 1.6 % and 4.9 % more."""
    found = predict_two_shot(replace(JOB, workers=workers), COSTS, bits)
    assert found.traffic.up_bytes == found.traffic.down_bytes
    sent = 8 * found.traffic.up_bytes / JOB.elements
    assert sent == pytest.approx(expected * (1 + 32 / 512 / bits) * (1514 / 1448), rel=1e-9)
    slow = predict_two_shot(replace(JOB, workers=workers, link_bits_per_s=1e8), COSTS, bits)
    assert slow.binds == "link up"
    assert slow.allreduce_s == pytest.approx(sent * JOB.elements / 1e8 + JOB.round_trip_s)


def test_other_two_shots_are_refused() -> None:
    with pytest.raises(PlanError, match="two-shot in 2 bits: one of 4, 8"):
        predict_two_shot(JOB, COSTS, 2)


def test_forms_of_thc_have_costs_of_their_own() -> None:
    elements = 1_000_000
    plain, paired, packed = (
        codec_cpu_s(COSTS, make_codec(name, workers=4, backend="numpy"), elements, 1.0)
        for name in ("thc", "thc:bits=2", "thc:result_bits=6")
    )
    assert plain == pytest.approx(sum(COSTS.codec_s("thc", elements, 1.0)))
    assert paired == pytest.approx(sum(COSTS.codec_s("thc_paired", elements, 1.0)))
    assert packed == pytest.approx(plain + elements * COSTS["decode_packed"].seconds)


def test_the_trunk_of_a_server_carries_the_other_racks() -> None:
    racks = replace(JOB, racks=2)
    found = thc(racks, "server")
    assert found.busy_s["trunk"] == pytest.approx(2 * found.traffic.down_bytes * 8 / 1e9)
    ring = predict_ring(racks, COSTS, "fp32")
    assert ring.busy_s["trunk"] == pytest.approx(ring.busy_s["link up"])


def test_more_workers_cost_a_server_and_not_a_switch() -> None:
    eight = replace(JOB, workers=8)
    assert thc(eight).allreduce_s == pytest.approx(thc(JOB).allreduce_s, rel=1e-3)
    assert thc(eight, "server").allreduce_s == pytest.approx(2 * thc(JOB, "server").allreduce_s, rel=0.03)


def test_winning_rates_are_where_the_all_reduces_cross() -> None:
    def ours(job: PlannedJob) -> Prediction:
        return predict_summed(job, SLOW_SWITCH, codec_of(job.workers), "embedded")

    def theirs(job: PlannedJob) -> Prediction:
        return predict_ring(job, COSTS, "fp16")

    ((low, high),) = winning_rates(JOB, ours, theirs)
    for rate, wins in ((low, True), (0.99 * high, True), (1.01 * high, False)):
        at = replace(JOB, link_bits_per_s=rate)
        assert (ours(at).allreduce_s < theirs(at).allreduce_s) is wins
    assert winning_rates(JOB, theirs, theirs) == []
    slower = COSTS.replace({"encode_thc": Cost(1.0, "a snail")})
    never = winning_rates(JOB, lambda job: predict_summed(job, slower, codec_of(4), "switch"), theirs)
    assert never == []


def test_a_range_may_begin_where_processors_begin_to_count() -> None:
    """A server loses while links bind, and wins where a ring's processors do."""
    dear = COSTS.replace({"ring_fp32": Cost(1e-7, "made up")})

    ((low, high),) = winning_rates(
        replace(JOB, workers=8), lambda job: thc(job, "server"), lambda job: predict_ring(job, dear, "fp32")
    )
    assert 1e5 < low < high == 1e13


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"elements": 0}, "elements: 0, where 1 to"),
        ({"workers": 65}, "workers: 65, where 2 to 64"),
        ({"workers": 1}, "workers: 1, where 2 to 64"),
        ({"compute_s": -1.0}, "compute_s: -1"),
        ({"compute_s": float("nan")}, "compute_s: nan"),
        ({"link_bits_per_s": 0.0}, "link_bits_per_s: 0"),
        ({"overlap": 1.5}, "overlap: 1.5, where 0 to 1"),
        ({"elements": 3, "vectors": 8}, "vectors: 8, where 1 to 3"),
        ({"density": 0.0}, "density: 0"),
        ({"shared_cores": 0}, "shared_cores: 0"),
        ({"trunk_bits_per_s": 1.0}, "trunk_bits_per_s: 1"),
        ({"racks": 3}, "4 workers do not stand in 3 racks"),
    ],
)
def test_a_job_that_is_none_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        replace(JOB, **changes)


def test_unknown_methods_are_refused() -> None:
    with pytest.raises(PlanError, match="'bf16': one of fp32, fp16"):
        predict_ring(JOB, COSTS, "bf16")
    with pytest.raises(PlanError, match="'fpga': one of switch"):
        thc(JOB, "fpga")
    with pytest.raises(PlanError, match="made for 8 workers, the job has 4"):
        predict_summed(JOB, COSTS, codec_of(8), "switch")
