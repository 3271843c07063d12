# SPDX-License-Identifier: Apache-2.0
"""The oracle itself: checks in their order, lanes, replies, leftovers, and several jobs at once."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hopsum_oracle.aggregator import Aggregator, JobConfig, PacketOutcome, Registers
from hopsum_oracle.decision import FINAL, Copy, Reply
from hopsum_wire import Drop, Event, Flag, Header, Kind, Op, pack_codes
from hopsum_wire.payload import lanes

from .jobs import OF_TREES, TABLE, job, probe, update, words, worker


def send(aggregator: Aggregator, header: Header, payload: Any = None, **source: int) -> PacketOutcome:
    """Deliver one datagram from where its rank lives."""
    where = worker(header.worker)
    body = np.zeros(header.length, np.uint8) if payload is None else payload
    return aggregator.receive(
        source.get("port", where.port),
        source.get("ip", where.ip),
        source.get("udp_port", where.udp_port),
        header.pack() + body.tobytes(),
    )


def result_lanes(outcome: PacketOutcome, op: int = Op.ADD32) -> list[int]:
    values: list[int] = lanes(op, np.frombuffer(outcome.outputs[0].payload, np.uint8)).tolist()
    return values


def test_two_workers() -> None:
    aggregator = Aggregator(jobs=[job()])
    first = send(aggregator, update(0, slot=1), words(1, 0xFFFFFFFF))
    assert (first.events, first.outputs) == ((Event.ADDED,), ())
    second = send(aggregator, update(1, slot=1), words(10, 1, 5))
    assert second.events == (Event.ADDED, Event.COMPLETED)
    assert second.reply is Reply.RESULT_TO_ALL
    assert [output.worker.rank for output in second.outputs] == [0, 1]
    assert [output.header.worker for output in second.outputs] == [0, 1]
    expected = Header(
        kind=Kind.RESULT,
        op=Op.ADD32,
        worker=0,
        slot=1,
        generation=7,
        round=1,
        contributors=3,
        count=256,
        length=1024,
    )
    assert second.outputs[0].header == expected
    assert result_lanes(second)[:4] == [11, 0, 5, 0]
    again = send(aggregator, update(0, slot=1, count=9), words(77))
    assert (again.events, again.reply) == ((Event.ANSWERED,), Reply.RESULT_TO_SENDER)
    assert [(o.worker.rank, o.header.count, o.payload) for o in again.outputs] == [(0, 9, second.outputs[0].payload)]
    assert aggregator.job_events == {
        (0, Event.ADDED): 2,
        (0, Event.COMPLETED): 1,
        (0, Event.ANSWERED): 1,
    }
    assert not aggregator.drops


def test_stale_names_asked_and_held() -> None:
    aggregator = Aggregator(jobs=[job()])
    for round_ in (1, 3):
        for rank in (0, 1):
            send(aggregator, update(rank, round=round_), words(round_))
    outcome = send(aggregator, update(1, round=1, op=Op.MAX32, count=3))
    assert (outcome.events, outcome.reply) == ((Event.STALE,), Reply.STALE_TO_SENDER)
    (stale,) = outcome.outputs
    assert stale.payload == b""
    assert stale.header == Header(
        kind=Kind.STALE, op=Op.MAX32, worker=1, generation=7, round=1, held=3, contributors=3, count=3
    )


def test_both_versions_of_a_slot_are_apart() -> None:
    aggregator = Aggregator(jobs=[job()])
    send(aggregator, update(0, round=1), words(1))
    send(aggregator, update(0, round=2), words(2))
    assert result_lanes(send(aggregator, update(1, round=1), words(10)))[0] == 11
    assert result_lanes(send(aggregator, update(1, round=2), words(20)))[0] == 22


def test_lookup_adds_bytes_without_carry() -> None:
    rng = np.random.default_rng(3)
    codes = rng.integers(0, 16, (3, 1024), dtype=np.uint8)
    table = (*TABLE[:15], 255)
    aggregator = Aggregator(jobs=[job(workers=3, table=table)])
    for rank in range(3):
        outcome = send(aggregator, update(rank, op=Op.LOOKUP_ADD8), pack_codes(codes[rank]))
    expected = np.asarray(table)[codes].sum(axis=0) % 256
    assert result_lanes(outcome, Op.LOOKUP_ADD8) == expected.tolist()
    assert (np.asarray(table)[codes].sum(axis=0) > 255).any()


def test_max_takes_the_larger_lane() -> None:
    aggregator = Aggregator(jobs=[job()])
    send(aggregator, update(0, op=Op.MAX32), words(1, 0x7F800000, 5))
    outcome = send(aggregator, update(1, op=Op.MAX32), words(2, 0x3F800000))
    assert result_lanes(outcome, Op.MAX32)[:4] == [2, 0x7F800000, 5, 0]


def test_quorum_below_n_and_flush() -> None:
    aggregator = Aggregator(jobs=[job(workers=3, quorum=2, min_quorum=1)])
    flushed = send(aggregator, update(2, flags=Flag.FLUSH), words(1))
    assert (flushed.events, len(flushed.outputs)) == ((Event.ADDED, Event.COMPLETED), 3)
    assert flushed.outputs[0].header.flags == 0
    late = send(aggregator, update(0), words(1))
    assert late.events == (Event.ANSWERED,)
    assert late.outputs[0].header.contributors == 0b100
    send(aggregator, update(0, round=2), words(1))
    assert send(aggregator, update(1, round=2), words(1)).outputs[0].header.contributors == 0b011


GOOD = update(0)
ALL_WRONG = replace(
    GOOD, version=2, kind=Kind.RESULT, flags=2, op=0, length=3, generation=9, worker=9, slot=99, round=0
)
"""Wrong in everything; `test_order_of_checks` mends it check by check."""

MENDINGS = [
    (Drop.BAD_VERSION, {"version": 1}),
    (Drop.BAD_KIND, {"kind": Kind.UPDATE}),
    (Drop.BAD_FLAGS, {"flags": 0}),
    (Drop.BAD_OP, {"op": Op.MAX32}),
    (Drop.BAD_LENGTH, {"length": 1024}),
    (Drop.UNKNOWN_GENERATION, {"generation": 7}),
    (Drop.UNKNOWN_WORKER, {"worker": 0}),
    (Drop.WRONG_PORT, {}),
    (Drop.WRONG_SOURCE, {}),
    (Drop.BAD_SLOT, {"slot": 3}),
    (Drop.BAD_ROUND, {"round": 1}),
    (Drop.BAD_VALUE, {}),
]


def test_order_of_checks() -> None:
    aggregator = Aggregator(jobs=[job()])
    header, source = ALL_WRONG, {"port": 99, "ip": 1, "udp_port": 1}
    payload = words(1, 1 << 31)
    for count, (reason, mending) in enumerate(MENDINGS):
        data = header.pack() + payload[: header.length].tobytes()
        outcome = aggregator.receive(source["port"], source["ip"], source["udp_port"], data)
        assert outcome == PacketOutcome(drop=reason)
        assert sum(aggregator.drops.values()) == count + 1
        header = replace(header, **mending)
        if reason is Drop.WRONG_PORT:
            source["port"] = worker(0).port
        if reason is Drop.WRONG_SOURCE:
            source |= {"ip": worker(0).ip, "udp_port": worker(0).udp_port}
    assert send(aggregator, header, words(1)).events == (Event.ADDED,)
    assert aggregator.drops == {reason: 1 for reason, _ in MENDINGS}


@pytest.mark.parametrize(
    ("source", "reason"),
    [({"port": 11}, Drop.WRONG_PORT), ({"ip": 5}, Drop.WRONG_SOURCE), ({"udp_port": 5}, Drop.WRONG_SOURCE)],
)
def test_a_rank_is_bound_to_its_place(source: dict[str, int], reason: Drop) -> None:
    assert send(Aggregator(jobs=[job()]), update(0), **source).drop is reason


def test_lookup_without_a_table() -> None:
    aggregator = Aggregator(jobs=[job(table=None)])
    assert send(aggregator, update(0, op=Op.LOOKUP_ADD8)).drop is Drop.NO_TABLE
    assert send(aggregator, update(0)).events == (Event.ADDED,)


def test_another_op_in_the_same_round() -> None:
    aggregator = Aggregator(jobs=[job()])
    send(aggregator, update(0), words(1))
    assert send(aggregator, update(1, op=Op.MAX32)).drop is Drop.OP_MISMATCH
    assert send(aggregator, update(0, op=Op.MAX32)).drop is Drop.OP_MISMATCH
    assert result_lanes(send(aggregator, update(1), words(2)))[0] == 3
    assert send(aggregator, update(1, op=Op.MAX32)).drop is Drop.OP_MISMATCH
    assert send(aggregator, update(0, op=Op.MAX32, round=3)).events == (Event.ADDED,)


@pytest.mark.parametrize("cut", [1, 500, 1024, 1025, 1055])
def test_truncated(cut: int) -> None:
    data = update(0).pack() + bytes(1024)
    outcome = Aggregator(jobs=[job()]).receive(10, worker(0).ip, 5000, data[:-cut])
    assert outcome.drop is Drop.TRUNCATED


def test_bytes_beyond_the_payload() -> None:
    data = update(0).pack() + bytes(1025)
    assert Aggregator(jobs=[job()]).receive(10, worker(0).ip, 5000, data).drop is Drop.BAD_LENGTH


def test_flags_that_mean_nothing_here() -> None:
    for flags in (2, 3, 0x80, 0xFF):
        assert send(Aggregator(jobs=[job()]), update(0, flags=flags)).drop is Drop.BAD_FLAGS
    assert send(Aggregator(jobs=[job()]), probe(0, flags=Flag.FLUSH)).drop is Drop.BAD_FLAGS


def test_jobs_do_not_meet() -> None:
    jobs = [
        job(7, slots=4),
        job(8, slot_base=4, slots=2, job_index=1),
        job(9, slot_base=6, slots=1, job_index=2),
    ]
    aggregator = Aggregator(jobs=jobs)
    for generation in (7, 8, 9):
        send(aggregator, update(0, generation=generation), words(generation))
    for generation in (9, 7, 8):
        outcome = send(aggregator, update(1, generation=generation), words(100))
        assert result_lanes(outcome)[0] == generation + 100
        assert outcome.job_index == generation - 7
    assert send(aggregator, update(0, generation=8, slot=2)).drop is Drop.BAD_SLOT


def test_a_removed_job_leaves_its_registers_and_nothing_else() -> None:
    aggregator = Aggregator(jobs=[job(7)])
    for rank in (0, 1):
        send(aggregator, update(rank, round=9), words(5))
    aggregator.remove_job(7)
    assert send(aggregator, update(0, round=9)).drop is Drop.UNKNOWN_GENERATION
    aggregator.add_job(job(8))
    assert send(aggregator, update(0, generation=8), words(1)).events == (Event.ADDED,)
    assert result_lanes(send(aggregator, update(1, generation=8), words(2)))[0] == 3


def garbage(seed: int) -> Registers:
    """Registers after anything at all, except a tag of a live generation: generations are never used twice."""
    rng = random.Random(seed)
    registers = Registers()
    registers.copies = [
        Copy(
            rng.randrange(1000, 2**32),
            rng.randrange(2**32),
            rng.getrandbits(64),
            rng.choice([0, 1, 2, FINAL, rng.randrange(256)]),
            rng.getrandbits(64),
        )
        for _ in registers.copies
    ]
    registers.ops = [rng.randrange(256) for _ in registers.ops]
    registers.values[:] = np.random.default_rng(seed).integers(0, 256, registers.values.shape, dtype=np.uint8)
    return registers


def test_garbage_in_the_registers_changes_nothing() -> None:
    rng = random.Random(5)
    clean = Aggregator(jobs=[job()])
    dirty = Aggregator(jobs=[job()], registers=garbage(5))
    for _ in range(300):
        place = {"slot": rng.randrange(5), "round": rng.randrange(4)}
        if rng.random() < 0.2:
            asked = probe(rng.randrange(2), **place)
            assert send(dirty, asked) == send(clean, asked)
            continue
        header = update(rng.randrange(2), **place, op=rng.choice([5, 7]))
        payload = words(rng.randrange(2**31), rng.randrange(2**31))
        assert send(dirty, header, payload) == send(clean, header, payload)
    assert dirty.job_events == clean.job_events
    assert {event for _, event in clean.job_events} == set(Event) - OF_TREES


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"generation": 0}, "generation 0 is not in 1"),
        ({"quorum": 3}, "quorum 3 is not in 1..2"),
        ({"min_quorum": 3}, "min_quorum 3 is not in 1..2"),
        ({"slot_base": 2047}, "slots 2047..2050 are not within 0..2047"),
        ({"slots": 0}, "slots 0..-1 are not within"),
        ({"job_index": 64}, "job_index 64 is not in 0..63"),
        ({"table": (1, 2)}, "is not 16 values"),
        ({"table": (256,) * 16}, "is not 16 values"),
        ({"table16": (65536,) * 16}, "is not 16 values of 0..65535"),
        ({"observers": (worker(3),)}, r"observers' ranks \[3\] are not distinct in 64..65535"),
        ({"observers": (worker(64), worker(64))}, "observers' ranks"),
        ({"workers": ()}, "ranks"),
        ({"workers": (worker(1), worker(1))}, r"ranks \[1, 1\] are not distinct"),
        ({"workers": (worker(64), worker(1))}, r"ranks \[64, 1\] are not distinct in 0..63"),
    ],
)
def test_impossible_jobs(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(job(), **change)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (job(7, slot_base=8, job_index=1), "one is taken by"),
        (job(8, slot_base=8, job_index=0), "one is taken by"),
        (job(8, slot_base=3, job_index=1), "slots of generation 8 overlap those of generation 7"),
    ],
)
def test_at_most_one_generation_per_region(other: JobConfig, message: str) -> None:
    aggregator = Aggregator(jobs=[job()])
    with pytest.raises(ValueError, match=message):
        aggregator.add_job(other)
    assert list(aggregator.jobs) == [7]
