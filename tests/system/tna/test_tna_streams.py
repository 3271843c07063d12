# SPDX-License-Identifier: Apache-2.0
"""Random streams of several jobs through the executed Tofino program, against the oracle."""

from __future__ import annotations

import random

import pytest
from tests.system.tna.bed import Arrival, Bed, Stream

from hopsum_ptf import control, frames
from hopsum_tna.switch import SentFrame
from hopsum_wire import Op
from hopsum_wire.payload import SHAPES

TABLES = (tuple(range(16)), tuple(min(2 * value, 11) for value in range(16)))


def _bed(chip: str = "tofino") -> tuple[Bed, Stream]:
    bed = Bed(chip)
    jobs = [
        bed.job(2, slots=1, table=TABLES[0]),
        bed.job(3, slots=2, table=TABLES[1], quorum=2, min_quorum=1),
        bed.job(5, slots=1, table=TABLES[0], quorum=1),
    ]
    return bed, Stream(bed, jobs, seed=7)


@pytest.mark.parametrize("chip", ["tofino", "tofino2"])
def test_one_packet_after_the_other(chip: str) -> None:
    """Each packet alone in the switch: all replies are the oracle's, and so are the counters."""
    bed, stream = _bed(chip)
    kinds = set()
    for arrival in stream.take(150):
        sent = bed.switch.settle(arrival.port, arrival.frame)
        assert sorted(sent) == sorted(arrival.expected), arrival
        kinds.add(arrival.outcome.events)
    assert len(kinds) >= 7, "too little happened"
    counted = control.read_counters(bed.device)
    told = {
        key: packets
        for key, packets in bed.oracle.job_events.items()
        if key[1] not in control.UNCOUNTED_EVENTS["tofino"]
    }
    assert counted == control.oracle_counters(bed.oracle.drops, told)


def _mix(bed: Bed, arrivals: list[Arrival], rng: random.Random, inside: int, *, apart: bool = False) -> list[SentFrame]:
    """Let packets arrive while up to `inside` frames are on their way; queues are served in any order.

    `apart`: a frame enters its queue some steps after ingress has decided it.
    """
    waiting = list(reversed(arrivals))
    storing = bed.switch.traffic.storing
    while waiting or storing or bed.switch.steps():
        steps = bed.switch.steps()
        frames_inside = sum(map(len, bed.switch.traffic.queues.values())) + len(bed.switch.traffic.loop)
        if storing and (not (steps or waiting) or rng.random() < 0.1):
            bed.switch.store(rng.choice(sorted(storing)))
        elif waiting and (not steps or (frames_inside < inside and rng.random() < 0.3)):
            arrival = waiting.pop()
            bed.switch.store(arrival.port)
            bed.switch.decide(arrival.port, arrival.frame)
            if not apart:
                bed.switch.store(arrival.port)
        else:
            bed.switch.step(rng.choice(steps))
    return bed.switch.take()


@pytest.mark.parametrize("seed", range(3))
def test_packets_meet_each_other_in_their_passes(seed: int) -> None:
    bed, stream = _bed()
    rng = random.Random(seed)
    late = 0
    for inside in (2, 4, 12):
        arrivals = stream.take(40)
        sent = _mix(bed, arrivals, rng, inside)
        assert bed.problems(arrivals, sent) == []
        late += sorted(sent) != sorted(out for arrival in arrivals for out in arrival.expected)
    assert late, "no reply was ever overtaken: packets do not meet"


@pytest.mark.parametrize("apart", [False, True])
def test_random_streams_find_the_swap(apart: bool) -> None:
    """Hazard 1 of docs/tofino.md: with the entry into the loop as a step of its own, sums are wrong."""
    bed = Bed("tofino")
    stream = Stream(bed, [bed.job(3, slots=1, table=TABLES[0])], seed=7, rounds=1)
    arrivals = stream.take(40)
    sent = _mix(bed, arrivals, random.Random(0), 6, apart=apart)
    problems = bed.problems(arrivals, sent)
    assert any(problem.startswith("unexpected") for problem in problems) == apart, problems


@pytest.mark.parametrize("chip", ["tofino", "tofino2"])
def test_how_many_passes_a_packet_makes(chip: str) -> None:
    """All make the same number of consuming passes; a reply with values as many harvesting ones, and a last look."""
    bed = Bed(chip)
    job = bed.job(2, slots=1)
    passes = SHAPES[Op.LOOKUP_ADD8].elements // bed.device.program.code_group // 2
    made = {}
    for what, rank, round_ in [
        ("added", 0, 3),
        ("completed", 1, 3),
        ("answered", 1, 3),
        ("stale", 0, 1),
    ]:
        frame = frames.update(job, rank, bytes(1024), op=Op.ADD32, round=round_)
        before = bed.switch.passes.ingress, bed.switch.passes.egress
        sent = bed.device.exchange(job.spec.workers[rank].port, frame)
        after = bed.switch.passes.ingress, bed.switch.passes.egress
        made[what] = (after[0] - before[0], after[1] - before[1] - len(sent))
    assert made == {
        "added": (1 + passes, passes),
        "completed": (1 + 2 * passes, 2 * passes),
        "answered": (1 + 2 * passes, 2 * passes),
        "stale": (1 + passes, passes),
    }
