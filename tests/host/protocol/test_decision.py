# SPDX-License-Identifier: Apache-2.0
"""`decide` against the specification's table, over random schedules and over all short ones."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field

import pytest

from hopsum_oracle import decision
from hopsum_oracle.decision import FINAL, Copy, Decision, DecisionRow, LaneAction, PacketClass, Reply, Update, decide
from hopsum_wire import Event

from .decision_table import Cell, Sent, step


@dataclass(frozen=True)
class Packet:
    worker: int
    generation: int
    slot: int
    round: int
    flush: bool

    @property
    def value(self) -> str:
        return f"w{self.worker} e{self.generation} s{self.slot} r{self.round}"


@dataclass
class Subject:
    """`decide` with multisets for lanes."""

    copy: Copy = field(default_factory=Copy)
    values: list[str] = field(default_factory=list)

    def step(self, packet: Packet, quorum: int, min_quorum: int) -> tuple[Decision, list[Sent]]:
        update = Update(packet.generation, packet.round, 1 << packet.worker, packet.flush)
        decided = decide(self.copy, update, quorum=quorum, min_quorum=min_quorum)
        self.copy = decided.copy
        if decided.lanes is LaneAction.WRITE:
            self.values = [packet.value]
        elif decided.lanes is LaneAction.ADD:
            self.values = sorted([*self.values, packet.value])
        return decided, self.sent(decided.reply, packet)

    def sent(self, reply: Reply, packet: Packet) -> list[Sent]:
        who = members(self.copy.contributors)
        values = tuple(self.values)
        return {
            Reply.NONE: [],
            Reply.RESULT_TO_ALL: [Sent("RESULT", None, packet.round, 0, who, values)],
            Reply.RESULT_TO_SENDER: [Sent("RESULT", packet.worker, packet.round, 0, who, values)],
            Reply.STALE_TO_SENDER: [Sent("STALE", packet.worker, packet.round, self.copy.round, who, ())],
        }[reply]


def members(bitmap: int) -> frozenset[int]:
    return frozenset(rank for rank in range(64) if bitmap >> rank & 1)


def same(subject: Subject, cell: Cell) -> bool:
    copy = subject.copy
    return (copy.generation, copy.round, members(copy.seen), copy.ctr, members(copy.contributors), subject.values) == (
        cell.generation,
        cell.round,
        frozenset(cell.seen),
        FINAL if cell.final else cell.count,
        frozenset(cell.contributors),
        cell.values,
    )


def schedule(rng: random.Random, workers: int, slots: int, steps: int, flush: bool) -> Iterator[Packet]:
    """Workers at their own pace, generation changes, and a network that repeats anything ever sent."""
    sent: list[Packet] = []
    rounds = [[1] * slots for _ in range(workers)]
    generation = 1
    for _ in range(steps):
        if sent and rng.random() < 0.4:
            yield rng.choice(sent)
            continue
        if rng.random() < 0.01:
            generation += 1
            rounds = [[1] * slots for _ in range(workers)]
        worker, slot = rng.randrange(workers), rng.randrange(slots)
        packet = Packet(worker, generation, slot, rounds[worker][slot], flush and rng.random() < 0.2)
        rounds[worker][slot] += rng.random() < 0.3
        sent = [old for old in [*sent, packet][-200:] if old.generation == generation]  # S1: others are not admitted
        yield packet


def run(seed: int, steps: int) -> list[str]:
    """Return the differences on one random schedule."""
    rng = random.Random(seed)
    workers, slots = rng.randint(1, 4), rng.randint(1, 3)
    quorum = rng.randint(1, workers)
    min_quorum, flush = rng.randint(1, quorum), rng.random() < 0.5
    cells = {(slot, version): Cell() for slot in range(slots) for version in (0, 1)}
    subjects = {place: Subject() for place in cells}
    differences = []
    for packet in schedule(rng, workers, slots, steps, flush):
        place = (packet.slot, packet.round & 1)
        expected = step(
            cells[place], packet.worker, packet.generation, packet.round, packet.flush, packet.value, quorum, min_quorum
        )
        _, got = subjects[place].step(packet, quorum, min_quorum)
        if got != expected or not same(subjects[place], cells[place]):
            differences.append(f"seed {seed}, {packet}: {got} {subjects[place]}, not {expected} {cells[place]}")
            break
    return differences


def test_random_schedules() -> None:
    differences = [text for seed in range(120) for text in run(seed, 400)]
    assert not differences, differences[0]


def test_all_short_schedules() -> None:
    """Every three packets of two workers, two generations, two rounds of one version, with and without FLUSH."""
    alphabet = [
        Packet(worker, generation, 0, round_, flush)
        for worker, generation, round_, flush in itertools.product((0, 1), (1, 2), (1, 3), (False, True))
    ]
    for quorum, min_quorum in [(1, 1), (2, 1), (2, 2)]:
        for packets in itertools.product(alphabet, repeat=3):
            cell, subject = Cell(), Subject()
            for p in packets:
                expected = step(cell, p.worker, p.generation, p.round, p.flush, p.value, quorum, min_quorum)
                assert subject.step(p, quorum, min_quorum)[1] == expected, packets
                assert same(subject, cell), packets


THRESHOLDS = [
    (workers, quorum, min_quorum)
    for workers in (1, 2, 3)
    for quorum in range(1, workers + 1)
    for min_quorum in range(1, quorum + 1)
]


@pytest.mark.parametrize(("workers", "quorum", "min_quorum"), THRESHOLDS)
def test_every_reachable_state(workers: int, quorum: int, min_quorum: int) -> None:
    """Every packet (two generations, three rounds of one version, with and without FLUSH) at every state reached by
    them.
    """
    alphabet = [
        Packet(worker, generation, 0, round_, flush)
        for worker, generation, round_, flush in itertools.product(range(workers), (1, 2), (1, 3, 5), (False, True))
    ]
    reached = {(Copy(), ()): Cell()}
    waiting = list(reached.items())
    while waiting:
        (copy, values), cell = waiting.pop()
        for p in alphabet:
            subject, after = Subject(copy, list(values)), deepcopy(cell)
            expected = step(after, p.worker, p.generation, p.round, p.flush, p.value, quorum, min_quorum)
            assert subject.step(p, quorum, min_quorum)[1] == expected, (copy, p)
            assert same(subject, after), (copy, p)
            state = (subject.copy, tuple(subject.values))
            if state not in reached:
                reached[state] = after
                waiting.append((state, after))
    assert {copy.ctr for copy, _ in reached} == {*range(quorum), FINAL}, "all counts were met"


def mutate_dup_check(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(decision, "is_repeat", lambda copy, update: False)


def mutate_reset_all(patch: pytest.MonkeyPatch) -> None:
    row = decision.TABLE[PacketClass.NEW]
    patch.setitem(decision.TABLE, PacketClass.NEW, row._replace(lanes=LaneAction.ADD))


def mutate_generation_tag(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(decision, "is_new", lambda copy, update: update.round > copy.round)


def mutate_close(patch: pytest.MonkeyPatch) -> None:
    row = DecisionRow(LaneAction.ADD, decision.CloseThreshold.NEVER, Reply.RESULT_TO_SENDER, Event.ANSWERED)
    patch.setitem(decision.TABLE, PacketClass.COMPLETE, row)


def mutate_answer_dup(patch: pytest.MonkeyPatch) -> None:
    row = decision.TABLE[PacketClass.COMPLETE]
    patch.setitem(decision.TABLE, PacketClass.COMPLETE, row._replace(reply=Reply.NONE))


def mutate_stale_touches(patch: pytest.MonkeyPatch) -> None:
    row = decision.TABLE[PacketClass.OLD]
    patch.setitem(decision.TABLE, PacketClass.OLD, row._replace(closes=decision.CloseThreshold.AT_NEED))


def mutate_or_with_add(patch: pytest.MonkeyPatch) -> None:
    merge = decision._merge

    def everybody(copy: Copy, update: Update, lanes: LaneAction, which: PacketClass) -> Copy:
        after = merge(copy, update, lanes, which)
        return after._replace(contributors=after.contributors | after.seen)

    patch.setattr(decision, "_merge", everybody)


def mutate_flush_ignores_quorum(patch: pytest.MonkeyPatch) -> None:
    closes = decision._closes
    patch.setattr(
        decision, "_closes", lambda row, ctr, flush, quorum, minimum: flush or closes(row, ctr, flush, quorum, minimum)
    )


@pytest.mark.parametrize(
    "mutate",
    [
        mutate_dup_check,
        mutate_reset_all,
        mutate_generation_tag,
        mutate_close,
        mutate_answer_dup,
        mutate_stale_touches,
        mutate_or_with_add,
        mutate_flush_ignores_quorum,
    ],
)
def test_a_rule_less_is_found(mutate: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch)
    assert any(run(seed, 400) for seed in range(60))


CASES = [
    # copy before, packet (generation, round, worker), quorum -> events, reply
    (Copy(), (7, 1, 0), 2, (Event.ADDED,), Reply.NONE),
    (Copy(), (7, 1, 0), 1, (Event.ADDED, Event.COMPLETED), Reply.RESULT_TO_ALL),
    (Copy(7, 1, 1, 1, 1), (7, 1, 1), 2, (Event.ADDED, Event.COMPLETED), Reply.RESULT_TO_ALL),
    (Copy(7, 1, 1, 1, 1), (7, 1, 0), 2, (Event.DUPLICATE,), Reply.NONE),
    (Copy(7, 1, 3, FINAL, 3), (7, 1, 2), 2, (Event.ANSWERED,), Reply.RESULT_TO_SENDER),
    (Copy(7, 3, 3, FINAL, 3), (7, 1, 0), 2, (Event.STALE,), Reply.STALE_TO_SENDER),
    (Copy(7, 1, 1, 1, 1), (7, 3, 0), 2, (Event.FAULT, Event.ADDED), Reply.NONE),
    (Copy(6, 1, 1, 1, 1), (7, 3, 0), 2, (Event.ADDED,), Reply.NONE),
    (Copy(7, 1, 1, 1, 1), (7, 3, 0), 1, (Event.FAULT, Event.ADDED, Event.COMPLETED), Reply.RESULT_TO_ALL),
    (Copy(8, 4294967295, 255, 255, 255), (7, 1, 0), 2, (Event.ADDED,), Reply.NONE),
]


@pytest.mark.parametrize(("copy", "packet", "quorum", "events", "reply"), CASES)
def test_events(copy: Copy, packet: tuple[int, int, int], quorum: int, events: tuple[Event, ...], reply: Reply) -> None:
    generation, round_, worker = packet
    decided = decide(copy, Update(generation, round_, 1 << worker), quorum=quorum, min_quorum=1)
    assert decided.events == events
    assert decided.reply is reply


def test_a_flush_that_repeats_closes() -> None:
    decided = decide(Copy(7, 1, 1, 1, 1), Update(7, 1, 1, flush=True), quorum=3, min_quorum=1)
    assert (decided.events, decided.reply, decided.lanes) == ((Event.COMPLETED,), Reply.RESULT_TO_ALL, LaneAction.KEEP)
    assert decided.copy == Copy(7, 1, 1, FINAL, 1)
