# SPDX-License-Identifier: Apache-2.0
"""Random streams of several jobs through the executed Tofino program, against the oracle."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from tests.system.tna.bed import TABLES, Arrival, Bed, Stream, follow_one_by_one, program, three_jobs
from tests.system.tna.test_tna_passes import decided_at_front

from hopsum_ptf import frames
from hopsum_tna.dump import Node
from hopsum_tna.tna_switch import SentFrame
from hopsum_wire import Op
from hopsum_wire.payload import SHAPES


def _bed(chip: str = "tofino") -> tuple[Bed, Stream]:
    bed = Bed(chip)
    return bed, three_jobs(bed)


@pytest.mark.parametrize("chip", ["tofino", "tofino2"])
def test_one_packet_after_the_other(chip: str) -> None:
    follow_one_by_one(Bed(chip))


class _Mix:
    """Packets that arrive while up to `inside` frames are on their way. Ports are served in any order.

    `apart`: a frame enters its queue some steps after ingress has seen its header. `loss`: the probability that the
    queue of undecided packets is full then.
    """

    def __init__(self, bed: Bed, seed: int, inside: int, *, apart: bool = False, loss: float = 0.0) -> None:
        self._switch = bed.switch
        self._rng = random.Random(seed)
        self._inside = inside
        self._apart = apart
        self._loss = loss
        self._arrived: dict[int, Arrival] = {}
        self.stored: list[Arrival] = []
        """The packets in the order in which they entered their queues."""
        self.lost = 0

    def run(self, arrivals: list[Arrival]) -> list[SentFrame]:
        """Let all packets arrive and go all their ways. Return what left."""
        waiting, rng = list(reversed(arrivals)), self._rng
        while waiting or self._arrived or self._switch.steps():
            steps = self._switch.steps()
            if self._arrived and (not (steps or waiting) or rng.random() < 0.1):
                self._store(rng.choice(sorted(self._arrived)))
            elif waiting and (not steps or (self._frames_inside() < self._inside and rng.random() < 0.3)):
                self._arrive(waiting.pop())
            else:
                self._switch.step(rng.choice(steps))
        return self._switch.take()

    def _frames_inside(self) -> int:
        traffic = self._switch.traffic
        queues = [queue for of_port in traffic.queues.values() for queue in of_port.values()]
        return sum(map(len, queues)) + sum(map(len, traffic.wires.values()))

    def _arrive(self, arrival: Arrival) -> None:
        self._store(arrival.port)
        self._switch.decide(arrival.port, arrival.frame)
        self._arrived[arrival.port] = arrival
        if not self._apart:
            self._store(arrival.port)

    def _store(self, port: int) -> None:
        arrival = self._arrived.pop(port, None)
        if arrival is None:
            return
        dropped = self._switch.store(port, full=(1,) if self._rng.random() < self._loss else ())
        self.lost += dropped
        if not dropped:
            self.stored.append(arrival)


@pytest.mark.parametrize("seed", range(3))
def test_packets_meet_each_other_in_their_passes(seed: int) -> None:
    """Packets that are stored later than their header is read, a lossy queue of undecided packets, three loop ports."""
    bed, stream = _bed()
    for number, port in enumerate((68, 196, 452)):
        bed.device.control.write("loop", {"slot_bits": number}, "loop_through", {"port": port})
    late = lost = 0
    for inside, apart, loss in ((2, False, 0.0), (4, True, 0.0), (12, True, 0.1)):
        mix = _Mix(bed, seed, inside, apart=apart, loss=loss)
        sent = mix.run(stream.take(40))
        told = bed.tell(mix.stored)
        assert bed.problems(told, sent) == []
        late += sorted(sent) != sorted(out for each in told for out in each.expected)
        lost += mix.lost
    assert late, "no reply was ever overtaken: packets do not meet"
    assert lost


@pytest.mark.parametrize("mutate", [None, decided_at_front])
def test_random_streams_find_the_swap(mutate: Callable[[Node], None] | None) -> None:
    """With packets that are decided at their front port and stored later, sums are wrong."""
    loaded = program("tofino")
    if mutate is not None:
        mutate(loaded)
    bed = Bed("tofino", loaded)
    stream = Stream(bed, [bed.job(3, slots=1, table=TABLES[0])], seed=7, rounds=1)
    arrivals = stream.take(40)
    mix = _Mix(bed, 0, 6, apart=True)
    sent = mix.run(arrivals)
    problems = bed.problems(bed.tell(mix.stored if mutate is None else arrivals), sent)
    assert any(problem.startswith("unexpected") for problem in problems) == (mutate is not None), problems


@pytest.mark.parametrize("chip", ["tofino", "tofino2"])
def test_how_many_passes_a_packet_makes(chip: str) -> None:
    """All make the same number of consuming passes; a reply with values as many harvesting ones, and a last look."""
    bed = Bed(chip)
    job = bed.job(2, slots=1)
    passes = SHAPES[Op.LOOKUP_ADD8].elements // bed.device.program.code_group // 2
    made = {}
    for what, rank, round_ in [("added", 0, 3), ("completed", 1, 3), ("answered", 1, 3), ("stale", 0, 1)]:
        frame = frames.update(job, rank, bytes(1024), op=Op.ADD32, round=round_)
        before = bed.switch.passes.ingress, bed.switch.passes.egress
        sent = bed.device.exchange(job.spec.workers[rank].port, frame)
        after = bed.switch.passes.ingress, bed.switch.passes.egress
        made[what] = (after[0] - before[0], after[1] - before[1] - len(sent))
    assert made == {
        "added": (2 + passes, passes),
        "completed": (2 + 2 * passes, 2 * passes),
        "answered": (2 + 2 * passes, 2 * passes),
        "stale": (2 + passes, passes),
    }
