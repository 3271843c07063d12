# SPDX-License-Identifier: Apache-2.0
"""Every order in which a few packets can meet in their passes, on the small build of the Tofino program.

Mutants of the program are found: the search, and the comparison with the oracle, can say no.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from tests.system.tna.bed import Arrival, Bed, program

from hopsum_ptf import frames
from hopsum_tna.dump import Node
from hopsum_tna.errors import TnaError
from hopsum_tna.explore import Explorer
from hopsum_wire import Op

# ---- a few packets --------------------------------------------------------------------------------------------


def _few(bed: Bed, rng: random.Random, count: int) -> list[Arrival]:
    """Return packets of two workers for the two copies of one slot, mostly, and for another's."""
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


def _search(loaded: Node, seeds: range, count: int) -> tuple[list[str], int, int]:
    """Return what is wrong in the first order with something wrong, and the numbers of steps and overtaken replies."""
    steps = late = 0
    for seed in seeds:
        bed = Bed("small", loaded)
        arrivals = _few(bed, random.Random(seed), count)
        explorer = Explorer(bed.switch)
        for end in explorer.ends([(arrival.port, arrival.frame) for arrival in arrivals]):
            problems = bed.problems(arrivals, end.sent)
            if problems:
                return [f"seed {seed}, order {end.order}", *problems], steps, late
            late += len(end.sent) != sum(len(arrival.expected) for arrival in arrivals)
        steps += explorer.steps
    return [], steps, late


@pytest.mark.parametrize(("count", "seeds"), [(3, range(10)), (4, range(10, 16)), (5, range(20, 22))])
def test_every_order_of_a_few_packets(count: int, seeds: range) -> None:
    problems, steps, late = _search(program("small"), seeds, count)
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
        assert bed.problems([first], bed.switch.settle(first.port, first.frame)) == []
        bed.switch.arrive(again.port, again.frame)
        for _ in range(loops):
            if steps := bed.switch.steps():
                bed.switch.step(steps[0])
        sent = bed.switch.take()
        bed.controller.delete_job(old)
        bed.oracle.remove_job(old.generation)
        new = bed.job(2, quorum=1, min_quorum=1)
        assert new.slot_base == old.slot_base
        other = bed.arrival(new, 0, frames.update(new, 0, b"\x33" * 1024, op=Op.ADD32))
        sent += bed.switch.settle(other.port, other.frame)
        answered = bed.problems([first, again, other], [*first.expected, *sent]) == []
        ends.add(answered)
        if not answered:
            assert bed.problems([first, other], [*first.expected, *sent]) == []
        bed.controller.delete_job(new)
        bed.oracle.remove_job(new.generation)
    assert ends == {True, False}, "the answer was always out, or never"


# ---- the entry into the loop as a step of its own ----------------------------------------------------------------


def _first_problem(rounds: list[tuple[int, int]], **options: Any) -> tuple[str, list[str]] | None:
    """Return the shortest order of UPDATEs (rank, round) of one slot that sends what it must not, and what is wrong.

    A reply that is missing alone is no problem here: workers send again.
    """
    bed = Bed("small")
    job = bed.job(2)
    arrivals = [
        bed.arrival(job, rank, frames.update(job, rank, bytes([0, 0, 0, rank + 1] * 256), op=Op.ADD32, round=round_))
        for rank, round_ in rounds
    ]
    for end in Explorer(bed.switch, **options).ends([(arrival.port, arrival.frame) for arrival in arrivals]):
        problems = bed.problems(arrivals, end.sent)
        if any(problem.startswith("unexpected") for problem in problems):
            return end.order, problems
    return None


def test_frames_queued_in_another_order_than_decided_are_a_wrong_sum() -> None:
    """Hazard 1 of docs/tofino.md: the packet that adds is queued before the packet that opens the round."""
    found = _first_problem([(0, 1), (1, 1)], apart=True)
    assert found is not None
    order, problems = found
    assert order == "a0 a1 s1 s0 . . . . . ."
    assert sum("missing of packet 1" in problem for problem in problems) == 1
    assert sum("unexpected" in problem for problem in problems) == 2, "a wrong RESULT to each worker"


def test_a_decided_frame_that_the_loop_drops_is_a_wrong_sum() -> None:
    """Hazard 2 of docs/tofino.md: the bit of the dropped packet is set, and its lanes are not there."""
    found = _first_problem([(0, 1), (1, 1)], drops=1)
    assert found is not None
    order, problems = found
    assert order == "a0! a1 . . . ."
    assert sum("unexpected" in problem for problem in problems) == 2, "a wrong RESULT to each worker"


def test_neither_hazard_without_its_step() -> None:
    """The same packets, decided and queued in one step, with a loop that is never full."""
    assert _first_problem([(0, 1), (1, 1)]) is None


def test_one_port_cannot_swap_its_own_frames() -> None:
    """A port stores a frame before it decides the next one."""
    assert _first_problem([(0, 1), (0, 1), (0, 2)], apart=True) is None


# ---- mutants --------------------------------------------------------------------------------------------------


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
    """A copy is what its round says, whoever's it is."""
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
            arrival = bed.arrival(job, rank, frames.update(job, rank, fill * 1024, op=Op.ADD32))
            problems += bed.problems([arrival], bed.switch.settle(arrival.port, arrival.frame))
        bed.controller.delete_job(job)
        bed.oracle.remove_job(job.generation)
    assert bool(problems) == (mutate is not None)
