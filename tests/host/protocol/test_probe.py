# SPDX-License-Identifier: Apache-2.0
"""PROBE and STATE at the oracle: what a slot copy holds, who may ask, and that asking changes nothing."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest

from hopsum_oracle.aggregator import Aggregator, OutputPacket, PacketOutcome, WorkerConfig
from hopsum_wire import Drop, Event, Flag, Header, Kind, Op, State

from .jobs import OBSERVER, job, probe, update, worker


def send(switch: Aggregator, header: Header, sender: WorkerConfig | None = None) -> PacketOutcome:
    where = sender or worker(header.worker)
    return switch.receive(where.port, where.ip, where.udp_port, header.pack() + bytes(header.length))


def state(switch: Aggregator, asked: Header, sender: WorkerConfig | None = None) -> Header:
    """Ask; nothing but the counter of questions changes. Return the STATE."""
    registers, drops = copy.deepcopy(switch.registers), dict(switch.drops)
    outcome = send(switch, asked, sender)
    assert outcome.events == (Event.PROBED,)
    assert (switch.registers.copies, switch.registers.ops) == (registers.copies, registers.ops)
    assert (switch.registers.values == registers.values).all()
    assert dict(switch.drops) == drops
    (output,) = outcome.outputs
    assert output == OutputPacket(sender or worker(asked.worker), output.header, b"")
    held = {"op", "held", "contributors", "count"}
    assert replace(output.header, kind=Kind.PROBE, **dict.fromkeys(held, 0)) == replace(asked, count=0)
    assert output.header.kind == Kind.STATE
    return output.header


def seen(header: Header) -> tuple[int, int, int, int]:
    return header.op, header.held, header.contributors, header.count


EMPTY = (0, 0, 0, State.EMPTY)


@pytest.mark.parametrize("round_", [1, 2])
def test_the_life_of_a_copy(round_: int) -> None:
    switch, asked = Aggregator(jobs=[job(workers=3)]), probe(1, slot=2, round=round_, count=77)
    other = replace(asked, round=3 - round_)
    assert seen(state(switch, asked)) == EMPTY
    send(switch, update(2, slot=2, round=round_, op=Op.OR))
    assert seen(state(switch, asked)) == (Op.OR, round_, 0b100, State.COLLECTING)
    send(switch, update(0, slot=2, round=round_, op=Op.OR))
    assert seen(state(switch, asked)) == (Op.OR, round_, 0b101, State.COLLECTING)
    send(switch, update(1, slot=2, round=round_, op=Op.OR))
    assert seen(state(switch, asked)) == (Op.OR, round_, 0b111, State.FINAL)
    assert seen(state(switch, other)) == EMPTY, "the other copy of the slot"
    assert seen(state(switch, replace(asked, slot=1))) == EMPTY


def test_any_round_of_the_copys_parity_asks_for_what_it_holds() -> None:
    switch = Aggregator(jobs=[job()])
    send(switch, update(0, round=5))
    for round_ in (1, 3, 5, 7, 2**32 - 1):
        assert seen(state(switch, probe(0, round=round_))) == (Op.ADD32, 5, 1, State.COLLECTING)


def test_late_workers_are_no_contributors() -> None:
    switch = Aggregator(jobs=[job(workers=3, quorum=2)])
    for rank in (0, 2, 1):
        send(switch, update(rank))
    assert seen(state(switch, probe(1))) == (Op.ADD32, 1, 0b101, State.FINAL)


def test_a_flushed_round_is_final() -> None:
    switch = Aggregator(jobs=[job(workers=3)])
    send(switch, update(2, flags=Flag.FLUSH))
    assert seen(state(switch, probe(0))) == (Op.ADD32, 1, 0b100, State.FINAL)


def test_another_generation_in_the_copy_is_nothing() -> None:
    switch = Aggregator(jobs=[job()])
    send(switch, update(0))
    switch.remove_job(7)
    switch.add_job(job(8))
    assert seen(state(switch, probe(0, generation=8))) == EMPTY


def test_observers_ask_and_do_nothing_else() -> None:
    switch = Aggregator(jobs=[job(observers=(OBSERVER,))])
    send(switch, update(1))
    asked = probe(OBSERVER.rank)
    assert seen(state(switch, asked, OBSERVER)) == (Op.ADD32, 1, 0b10, State.COLLECTING)
    for op in Op:
        assert send(switch, update(OBSERVER.rank, op=op), OBSERVER).drop is Drop.OBSERVER
    assert switch.drops == {Drop.OBSERVER: len(Op)}
    completed = send(switch, update(0))
    assert [output.worker.rank for output in completed.outputs] == [0, 1], "results are not theirs"


REFUSED = [
    ({"version": 2}, Drop.BAD_VERSION),
    ({"flags": 1}, Drop.BAD_FLAGS),
    ({"op": Op.ADD32}, Drop.BAD_OP),
    ({"op": 9}, Drop.BAD_OP),
    ({"length": 1}, Drop.BAD_LENGTH),
    ({"generation": 8}, Drop.UNKNOWN_GENERATION),
    ({"worker": 2}, Drop.UNKNOWN_WORKER),
    ({"worker": 65}, Drop.UNKNOWN_WORKER),
    ({"slot": 4}, Drop.BAD_SLOT),
    ({"round": 0}, Drop.BAD_ROUND),
]


@pytest.mark.parametrize("asker", [worker(0), OBSERVER])
@pytest.mark.parametrize(("changes", "reason"), REFUSED)
def test_refused_questions(asker: WorkerConfig, changes: dict[str, int], reason: Drop) -> None:
    switch = Aggregator(jobs=[job(observers=(OBSERVER,))])
    assert send(switch, replace(probe(asker.rank), **changes), asker).drop is reason
    assert not switch.job_events


@pytest.mark.parametrize("asker", [worker(0), OBSERVER])
@pytest.mark.parametrize(
    ("change", "reason"),
    [({"port": 1}, Drop.WRONG_PORT), ({"ip": 1}, Drop.WRONG_SOURCE), ({"udp_port": 1}, Drop.WRONG_SOURCE)],
)
def test_questions_from_elsewhere(asker: WorkerConfig, change: dict[str, int], reason: Drop) -> None:
    switch = Aggregator(jobs=[job(observers=(OBSERVER,))])
    assert send(switch, probe(asker.rank), replace(asker, **change)).drop is reason
