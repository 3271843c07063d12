# SPDX-License-Identifier: Apache-2.0
"""The time of a step from bytes, rates and costs, and what binds it.

Everything that is busy during an all-reduce has a time: links, each worker's threads, the aggregator. While vectors
follow one another, codec and network work side by side, so the longest of these times counts; in front of and behind
it, what one vector needs of the other.

    network        = the longest of: links, the worker's network thread, the aggregator
    all-reduce     = longest of   network + codec / vectors   and   codec + network / vectors
                     (codec_overlap off: network + codec), and no less than a processor's work on all its cores,
                     + a round trip for each phase of the first vector (off: of each vector)
    ring           = longest of link and processor, + 2 (n - 1) half round trips, + conversion to fp16 and back, which
                     gloo's user does in front of it and behind it
    two-shot       = longest of link and processor, + 2 half round trips
    step           = compute + what of the all-reduce is not hidden behind `overlap` of it; the last vector never is

Aggregators: "switch" adds at the rate of its links, which is assumed of hardware and measured of none. "embedded" is
the embedded switch on one core, with a link for each worker. "server" is the same behind one link: a parameter server.
"hosts" is an embedded switch on every worker's host, for 1/n of each vector: the codes and sums of its shard pass the
host's one link, but for those of the host's own worker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from math import log10
from typing import Final

from hopsum.codec import Codec
from hopsum.codec.lossless.sketch_plan import expected_union
from hopsum.codec.range_codec import RangeCodec
from hopsum.plan.costs import Costs
from hopsum.plan.setting import LEAST_BITS_PER_S, MOST_BITS_PER_S, PlanError, PlannedJob
from hopsum.plan.traffic import StepTraffic, ring_traffic, summed_traffic, two_shot_traffic
from hopsum_wire import Op

AGGREGATORS: Final = ("switch", "embedded", "server", "hosts")
RING_BYTES: Final = {"fp32": 4, "fp16": 2}
TWO_SHOT_BITS: Final = (4, 8)
COMPUTE: Final = "compute"
_BITS: Final = 8
_STEPS_PER_DECADE: Final = 8
_EXACT: Final = 1.001


@dataclass(frozen=True, slots=True)
class Prediction:
    """Of one method."""

    method: str
    traffic: StepTraffic
    busy_s: Mapping[str, float]
    """The busy seconds of each resource during an all-reduce, by the resource's name."""
    allreduce_s: float
    exposed_s: float
    """The part of it that computing does not hide."""
    step_s: float
    allreduce_binds: str
    """One of busy_s."""
    binds: str
    """`COMPUTE` if that is the larger part of the step, else as allreduce_binds."""
    worker_cpu_s: float
    """Processor time of a worker for one all-reduce."""
    aggregator_cpu_s: float


def predict_ring(job: PlannedJob, costs: Costs, precision: str) -> Prediction:
    """Return what a ring all-reduce takes. `precision`: "fp32" or "fp16". Raises PlanError for another one."""
    if precision not in RING_BYTES:
        raise PlanError(f"ring in {precision!r}: one of {', '.join(RING_BYTES)}")
    traffic = ring_traffic(job.elements, job.workers, RING_BYTES[precision])
    cpu_s = traffic.up_bytes * costs[f"ring_{precision}"].seconds
    convert_s = max(0.0, cpu_s - traffic.up_bytes * costs["ring_fp32"].seconds)
    busy = _links(job, traffic)
    busy |= _trunk(job, traffic.up_bytes)
    busy |= _processor(job, cpu_s - convert_s, cpu_s - convert_s, 0.0)
    allreduce_s = max(busy.values()) + (job.workers - 1) * job.round_trip_s + convert_s * _crowd(job)
    return _finish(job, f"ring {precision}", traffic, busy, allreduce_s, cpu_s, 0.0)


def predict_two_shot(job: PlannedJob, costs: Costs, bits: int) -> Prediction:
    """Return what a two-shot all-reduce in so many bits takes: all-to-all, sum, all-gather among the workers.

    Raises:
        PlanError: other bits than TWO_SHOT_BITS.
    """
    if bits not in TWO_SHOT_BITS:
        raise PlanError(f"two-shot in {bits} bits: one of {', '.join(map(str, TWO_SHOT_BITS))}")
    traffic = two_shot_traffic(job.elements, job.workers, bits)
    cpu_s = job.elements * costs[f"two_shot_{bits}"].seconds
    busy = _links(job, traffic)
    elsewhere = job.workers - job.workers // job.racks
    busy |= _trunk(job, traffic.up_bytes * job.workers // job.racks * elsewhere / max(1, job.workers - 1))
    busy |= _processor(job, cpu_s, cpu_s, 0.0)
    allreduce_s = max(busy.values()) + job.round_trip_s
    return _finish(job, f"two-shot {bits} bits", traffic, busy, allreduce_s, cpu_s, 0.0)


def predict_summed(job: PlannedJob, costs: Costs, codec: Codec, aggregator: str, spelled: str = "") -> Prediction:
    """Return what an all-reduce takes whose payloads an aggregator sums.

    Args:
        codec: made for the job's workers.
        aggregator: one of AGGREGATORS.
        spelled: the codec's name with its options, for the method's name. Left out: the codec's name alone.

    Raises:
        PlanError: another aggregator, a codec for another number of workers, or one without known sizes or costs.
    """
    if aggregator not in AGGREGATORS:
        raise PlanError(f"aggregator {aggregator!r}: one of {', '.join(AGGREGATORS)}")
    if codec.workers != job.workers:
        raise PlanError(f"codec {codec.name} is made for {codec.workers} workers, the job has {job.workers}")
    traffic = summed_traffic(codec, job.elements, job.vectors, job.density)
    union = expected_union(job.elements, max(1, round(job.density * job.elements)), job.workers) / job.elements
    codec_s = codec_cpu_s(costs, codec, job.elements, union) + job.elements * costs["place"].seconds
    network_s = traffic.chunks * costs["chunk"].seconds + job.vectors * costs["vector"].seconds
    switch_s = 0.0 if aggregator == "switch" else job.workers * traffic.chunks * costs["update"].seconds
    each_s, worker_s = switch_s, codec_s + network_s
    if aggregator == "hosts":
        traffic = _over_hosts(job, traffic)
        each_s = switch_s / job.workers
        worker_s += each_s if job.shared_cores is None else 0.0
    busy = _links(job, traffic) | _between(job, traffic, aggregator)
    if switch_s:
        busy["switch cpu"] = each_s
    processor = _processor(job, worker_s, max(codec_s, network_s), switch_s)
    allreduce_s = _pipeline(job, codec_s, max(network_s, *busy.values()), max(processor.values()), traffic.phases)
    busy |= processor
    method = f"{aggregator} {spelled or codec.name}"
    return _finish(job, method, traffic, busy, allreduce_s, codec_s + network_s, switch_s)


def codec_cpu_s(costs: Costs, codec: Codec, elements: int, union_density: float) -> float:
    """Return the seconds of one core to encode and to decode a vector. Raises PlanError as `Costs.codec_s` does."""
    seconds = sum(costs.codec_s(f"{codec.name}{_form(codec)}", elements, union_density))
    return seconds + (elements * costs["decode_packed"].seconds if codec.op == Op.LOOKUP_ADD6 else 0.0)


def _form(codec: Codec) -> str:
    """Return what stands behind the codec's name in the names of its costs."""
    if not isinstance(codec, RangeCodec) or codec.chunk_blocks == 1:
        return ""
    return "_paired"


def winning_rates(
    job: PlannedJob, ours: Callable[[PlannedJob], Prediction], theirs: Callable[[PlannedJob], Prediction]
) -> list[tuple[float, float]]:
    """Return the ranges of link rates at which `ours` has the shorter all-reduce, ascending, in bits per second.

    Searched from LEAST to MOST_BITS_PER_S in steps of an eighth of a decade. Ends are exact to 0.1 %. A range that
    reaches the first or the last of these rates has it as its end. A trunk without a rate of its own goes along.
    """

    def gains(rate: float) -> bool:
        at = replace(job, link_bits_per_s=rate)
        return ours(at).allreduce_s < theirs(at).allreduce_s

    steps = round(_STEPS_PER_DECADE * log10(MOST_BITS_PER_S / LEAST_BITS_PER_S))
    rates = [LEAST_BITS_PER_S * 10 ** (step / _STEPS_PER_DECADE) for step in range(steps)] + [MOST_BITS_PER_S]
    won = [gains(rate) for rate in rates]
    ends = [rates[0]] if won[0] else []
    for (low, before), (high, after) in pairwise(zip(rates, won, strict=True)):
        if before != after:
            ends.append(_boundary(gains, low, high, before))
    if won[-1]:
        ends.append(rates[-1])
    return list(zip(ends[::2], ends[1::2], strict=True))


def _boundary(gains: Callable[[float], bool], low: float, high: float, at_low: bool) -> float:
    """Return where `gains` changes between two rates, which it does."""
    while high / low > _EXACT:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if gains(middle) == at_low else (low, middle)
    return low


def _links(job: PlannedJob, traffic: StepTraffic) -> dict[str, float]:
    """Return the seconds of a worker's link, both ways."""
    return {
        "link up": traffic.up_bytes * _BITS / job.link_bits_per_s,
        "link down": traffic.down_bytes * _BITS / job.link_bits_per_s,
    }


def _trunk(job: PlannedJob, each_way_bytes: float) -> dict[str, float]:
    """Return the seconds of a rack's link to the switch above, where there is one."""
    if job.racks == 1:
        return {}
    return {"trunk": each_way_bytes * _BITS / (job.trunk_bits_per_s or job.link_bits_per_s)}


def _between(job: PlannedJob, traffic: StepTraffic, aggregator: str) -> dict[str, float]:
    """Return the seconds of links between the workers' own and the aggregator."""
    if aggregator == "hosts":
        rack = job.workers // job.racks  # of what leaves its hosts, this leaves it
        return _trunk(job, rack * (job.workers - rack) / (job.workers - 1) * traffic.up_bytes)
    if aggregator != "server":
        return _trunk(job, traffic.down_bytes)  # partial sums go up as lanes, as large as results
    rate = job.link_bits_per_s
    elsewhere = job.workers - job.workers // job.racks
    return {
        "server in": job.workers * traffic.up_bytes * _BITS / rate,
        "server out": job.workers * traffic.down_bytes * _BITS / rate,
    } | _trunk(job, elsewhere * max(traffic.up_bytes, traffic.down_bytes))


def _over_hosts(job: PlannedJob, traffic: StepTraffic) -> StepTraffic:
    """Return the traffic of a host's link where every host sums a share of each vector.

    A host sends its codes to the shards of the others and its own shard's sums to their workers, and receives as much.
    """
    each_way_bytes = (job.workers - 1) / job.workers * (traffic.up_bytes + traffic.down_bytes)
    return traffic._replace(up_bytes=each_way_bytes, down_bytes=each_way_bytes)


def _processor(job: PlannedJob, worker_s: float, longest_thread_s: float, aggregator_s: float) -> dict[str, float]:
    """Return the seconds that processors need at least: of a worker's cores, or of those that everybody shares."""
    if job.shared_cores is None:
        return {"worker cpu": max(longest_thread_s, worker_s / job.worker_cores)}
    return {
        "shared cpu": max(longest_thread_s, (job.workers * worker_s + aggregator_s) / job.shared_cores),
    }


def _pipeline(job: PlannedJob, codec_s: float, network_s: float, processor_s: float, phases: int) -> float:
    """Return the seconds from the first vector's start to the last one's mean."""
    codec_s *= _crowd(job)  # all workers encode at once
    if not job.codec_overlap:
        return max(codec_s + network_s, processor_s) + job.vectors * phases * job.round_trip_s
    stages = max(network_s + codec_s / job.vectors, codec_s + network_s / job.vectors)
    return max(stages, processor_s) + phases * job.round_trip_s


def _crowd(job: PlannedJob) -> float:
    """Return the workers that want a core at once, for each core."""
    return 1.0 if job.shared_cores is None else max(1.0, job.workers / job.shared_cores)


def _finish(
    job: PlannedJob,
    method: str,
    traffic: StepTraffic,
    busy: dict[str, float],
    allreduce_s: float,
    worker_cpu_s: float,
    aggregator_cpu_s: float,
) -> Prediction:
    exposed_s = allreduce_s
    if job.overlap:
        exposed_s = max(allreduce_s / job.vectors, allreduce_s - job.overlap * job.compute_s)
    slowest = max(busy, key=lambda name: busy[name])
    return Prediction(
        method, traffic, busy, allreduce_s, exposed_s, job.compute_s + exposed_s, slowest,
        COMPUTE if exposed_s <= job.compute_s else slowest, worker_cpu_s, aggregator_cpu_s,
    )  # fmt: skip
