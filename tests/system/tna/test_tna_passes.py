# SPDX-License-Identifier: Apache-2.0
"""Every order in which packets can meet in their passes, and random streams of jobs, against the oracle."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hopsum_ptf import frames
from hopsum_tna.dump import Node, TnaError
from hopsum_tna.tna_switch import SentFrame
from hopsum_wire import Drop, Op
from hopsum_wire.payload import SHAPES

from .bed import TABLES, Arrival, Bed, Stream, ToldArrival, follow_one_by_one, program, three_jobs
from .explorer import End, Explorer

LOOP = 68

# ---- a few packets --------------------------------------------------------------------------------------------


def _few(bed: Bed, rng: random.Random, count: int) -> list[Arrival]:
    """Return packets of two workers for the two copies of one slot, mostly, and for those of another slot."""
    quorum = rng.choice([1, 1, 2])
    job = bed.job(2, quorum=quorum, min_quorum=1)
    arrivals = []
    for _ in range(count):
        rank, slot, round_ = rng.randrange(2), rng.choice([0, 0, 0, 1]), rng.choice([1, 1, 1, 2, 3, 3, 5])
        if rng.random() < 0.1:
            frame = frames.probe(job, job.spec.workers[rank], slot=slot, round=round_)
        else:
            payload = rng.randbytes(1024)
            flags = int(rng.random() < 0.2)
            frame = frames.update(job, rank, payload, op=Op.ADD32, slot=slot, round=round_, flags=flags)
        arrivals.append(bed.arrival(job, rank, frame))
    return arrivals


def _ends(explorer: Explorer, bed: Bed, arrivals: list[Arrival]) -> Iterator[tuple[End, list[ToldArrival]]]:
    """Yield each end with what the oracle makes of the arrivals in the order in which they were stored."""
    foretold = functools.cache(lambda stored: bed.foretell(arrivals[number] for number in stored))
    for end in explorer.ends([(arrival.port, arrival.frame) for arrival in arrivals]):
        yield end, foretold(end.stored)


def _search(loaded: Node, seeds: range, count: int, **options: Any) -> tuple[list[str], int, int]:
    """Return what is wrong in the first order with something wrong, and the numbers of steps and overtaken replies."""
    steps = late = 0
    for seed in seeds:
        bed = Bed("small", loaded)
        arrivals = _few(bed, random.Random(seed), count)
        explorer = Explorer(bed.switch, **options)
        for end, told in _ends(explorer, bed, arrivals):
            problems = bed.problems(told, end.sent)
            if problems:
                return [f"seed {seed}, order {end.order}", *problems], steps, late
            late += len(end.sent) != sum(len(each.expected) for each in told)
        steps += explorer.steps
    return [], steps, late


ORDERS = [
    (3, range(10), {}),
    (4, range(10, 16), {}),
    (5, range(20, 22), {}),
    (3, range(30, 36), {"apart": True, "drops": 1, "drop_from": 1}),
    (4, range(40, 42), {"apart": True, "drops": 1, "drop_from": 1}),
]


@pytest.mark.parametrize(("count", "seeds", "options"), ORDERS)
def test_every_order_of_a_few_packets(count: int, seeds: range, options: dict[str, Any]) -> None:
    """Also where a packet is stored later than its header is read, and where the queue of undecided packets is full."""
    problems, steps, late = _search(program("small"), seeds, count, **options)
    assert problems == []
    assert steps > 50 * len(seeds), "the packets do not meet"
    assert late, "no reply was ever overtaken"


def test_an_answer_is_never_of_two_jobs() -> None:
    """A job ends and another takes its slots while an answer of the first is on its way: all of it, or nothing."""
    bed = Bed("small")
    ends = set()
    for loops in range(12):
        old = bed.job(2, quorum=1, min_quorum=1)
        first = bed.arrival(old, 0, frames.update(old, 0, b"\x11" * 1024, op=Op.ADD32))
        again = bed.arrival(old, 1, frames.update(old, 1, b"\x22" * 1024, op=Op.ADD32))
        first_told, again_told = bed.tell([first, again])
        assert bed.problems([first_told], bed.switch.process(first.port, first.frame)) == []
        bed.switch.arrive(again.port, again.frame)
        for _ in range(loops):
            if steps := bed.switch.steps():
                bed.switch.step(steps[0])
        sent = bed.switch.drain_sent()
        bed.controller.delete_job(old)
        bed.oracle.remove_job(old.generation)
        new = bed.job(2, quorum=1, min_quorum=1)
        assert new.slot_base == old.slot_base
        other = bed.arrival(new, 0, frames.update(new, 0, b"\x33" * 1024, op=Op.ADD32))
        sent += bed.switch.process(other.port, other.frame)
        others = bed.tell([other])
        answered = bed.problems([again_told, *others], sent) == []
        ends.add(answered)
        if not answered:
            assert bed.problems(others, sent) == []
        bed.controller.delete_job(new)
        bed.oracle.remove_job(new.generation)
    assert ends == {True, False}, "the answer was always out, or never"


# ---- changed programs --------------------------------------------------------------------------------------------


def _find(item: object, label: str) -> Node:
    """Return the declaration whose name ends so."""
    if isinstance(item, dict):
        if str(item.get("label", "")).endswith(label) and "node" in item:
            return item
        item = list(item.values())
    for value in item if isinstance(item, list) else []:
        try:
            return _find(value, label)
        except LookupError:
            continue
    raise LookupError(label)


def _entries(loaded: Node, table: str) -> list[Node]:
    properties = _find(loaded, table)["properties"]["properties"]
    return next(item["value"]["entries"] for item in properties if item["name"] == "entries")


def _any(loaded: Node, table: str, key: int) -> None:
    for entry in _entries(loaded, table):
        entry["keys"]["components"][key] = {"node": "DefaultExpression"}


# ---- the entry into the loop as a step of its own, and drops ------------------------------------------------------


def decided_at_front(loaded: Node) -> None:
    """The program as it was: a packet is decided at its front port, and enters the loop's queue afterwards."""
    entries = _entries(loaded, "admit.admission")
    entries[:] = [entry for entry in entries if "at_front" not in entry["action"]["method"]["path"]]
    for action in ("open", "open_close", "add", "add_close", "close", "answer", "stale"):
        for statement in _find(loaded, f"HopsumIngress.slot.{action}")["body"]["components"]:
            if statement["left"].get("member") == "ucast_egress_port":
                statement["right"] = {"node": "Constant", "type": "bit<9>", "value": LOOP}


def _first_problem(
    rounds: list[tuple[int, int]], mutate: Callable[[Node], None] | None = None, **options: Any
) -> tuple[str, list[str]] | None:
    """Return the shortest order of UPDATEs (rank, round) of one slot that sends what it must not, and what is wrong.

    A reply that is missing alone is no problem here: workers send again.
    """
    loaded = program("small")
    if mutate is not None:
        mutate(loaded)
    bed = Bed("small", loaded)
    job = bed.job(2)
    arrivals = [
        bed.arrival(job, rank, frames.update(job, rank, bytes([0, 0, 0, rank + 1] * 256), op=Op.ADD32, round=round_))
        for rank, round_ in rounds
    ]
    for end, told in _ends(Explorer(bed.switch, **options), bed, arrivals):
        problems = bed.problems(told if mutate is None else bed.foretell(arrivals), end.sent)
        if any(problem.startswith("unexpected") for problem in problems):
            return end.order, problems
    return None


TWO = [(0, 1), (1, 1)]
AGAIN = [(0, 1), (1, 1), (0, 1), (1, 3)]
"""Two workers, a duplicate, and a newer round of the same copy."""


def test_frames_queued_in_another_order_than_decided_are_a_wrong_sum() -> None:
    """Decided at the front port, the packet that adds may be queued before the packet that opens the round."""
    found = _first_problem(TWO, decided_at_front, apart=True)
    assert found is not None
    order, problems = found
    assert order == "a0 a1 s1 s0 . . . . . ."
    assert sum("missing of packet 1" in problem for problem in problems) == 1
    assert sum("unexpected" in problem for problem in problems) == 2, "a wrong RESULT to each worker"


def test_a_decided_frame_that_the_loop_drops_is_a_wrong_sum() -> None:
    """Decided at the front port, a dropped packet has set its bit, and its lanes are not there."""
    found = _first_problem(TWO, decided_at_front, drops=1)
    assert found is not None
    order, problems = found
    assert order == "a0! a1 . . . ."
    assert sum("unexpected" in problem for problem in problems) == 2, "a wrong RESULT to each worker"


def test_neither_hazard_without_its_step() -> None:
    """The same packets, decided and queued in one step, with a loop that is never full."""
    assert _first_problem(TWO, decided_at_front) is None


def test_one_port_cannot_swap_its_own_frames() -> None:
    """A port stores a frame before it decides the next one."""
    assert _first_problem([(0, 1), (0, 1), (0, 2)], decided_at_front, apart=True) is None


@pytest.mark.parametrize("rounds", [TWO, AGAIN])
def test_decided_on_return_neither_hazard_is_left(rounds: list[tuple[int, int]]) -> None:
    """Any order of queueing, and any undecided packet dropped."""
    assert _first_problem(rounds, apart=True, drops=1, drop_from=1) is None


def test_the_queue_of_decided_frames_must_not_drop() -> None:
    """This stays: the program needs a traffic manager that serves decided packets first, and gives them room."""
    found = _first_problem(TWO, drops=1, drop_from=0)
    assert found is not None
    assert found[0].split().count("a0!") == 0, "an undecided packet"


def test_a_frame_of_an_ended_job_is_not_decided() -> None:
    """Rule S1: the packet is admitted, its job ends, another takes the slots, and the packet comes back."""
    bed = Bed("small")
    old = bed.job(2)
    late = bed.arrival(old, 0, frames.update(old, 0, b"\x11" * 1024, op=Op.ADD32))
    bed.switch.arrive(late.port, late.frame)
    bed.controller.delete_job(old)
    bed.oracle.remove_job(old.generation)
    new = bed.job(2)
    assert new.slot_base == old.slot_base
    for rank in range(2):
        arrival = bed.arrival(new, rank, frames.update(new, rank, b"\x22" * 1024, op=Op.ADD32))
        assert bed.settle(arrival) == []
    assert bed.device.control.counter("drops") == {int(Drop.UNKNOWN_GENERATION): 1}


# ---- mutants --------------------------------------------------------------------------------------------------


def swapped_lanes(loaded: Node) -> None:
    """Egress puts what ingress and egress read of a word into its neighbour."""
    for action in ("write", "add"):
        body = _find(loaded, f"HopsumEgress.aggregate.word0.{action}")["body"]
        body["components"][0]["left"]["member"] = "w1"


def forgotten_duplicates(loaded: Node) -> None:
    """Nobody was seen before."""
    entries = _entries(loaded, "slot.count")
    entries[:] = [entry for entry in entries if "close" not in entry["action"]["method"]["path"]]


def no_last_look(loaded: Node) -> None:
    """A RESULT leaves, whatever the copy holds by then."""
    _any(loaded, "slot.finish_result", 0)


def nothing_is_stale(loaded: Node) -> None:
    """An older round is taken for the held one."""
    body = _find(loaded, "slot.update_tag")["initializer"]["components"][0]["body"]
    body["components"][0]["condition"] = body["components"][0]["condition"]["left"]


@pytest.mark.parametrize("mutate", [swapped_lanes, forgotten_duplicates, no_last_look, nothing_is_stale])
def test_a_mutant_is_found(mutate: Callable[[Node], None]) -> None:
    loaded = program("small")
    mutate(loaded)
    try:
        problems, _, _ = _search(loaded, range(10, 60), 4)
    except TnaError as error:
        problems = [str(error)]
    assert problems


def no_generation_check(loaded: Node) -> None:
    """A copy is what its round says, whichever generation it belongs to."""
    body = _find(loaded, "slot.update_tag")["initializer"]["components"][0]["body"]
    body["components"][0]["condition"] = body["components"][0]["condition"]["right"]


@pytest.mark.parametrize("mutate", [None, no_generation_check])
def test_a_later_job_finds_empty_slots(mutate: Callable[[Node], None] | None) -> None:
    loaded = program("small")
    if mutate is not None:
        mutate(loaded)
    bed = Bed("small", loaded)
    problems = []
    for fill in (b"\x11", b"\x22"):
        job = bed.job(2)
        for rank in range(2):
            problems += bed.settle(bed.arrival(job, rank, frames.update(job, rank, fill * 1024, op=Op.ADD32)))
        bed.controller.delete_job(job)
        bed.oracle.remove_job(job.generation)
    assert bool(problems) == (mutate is not None)


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
        return self._switch.drain_sent()

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
