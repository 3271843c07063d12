# SPDX-License-Identifier: Apache-2.0
"""The oracle itself: checks in their order, lanes, replies, leftovers, and several jobs at once."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hopsum_oracle.aggregator import Aggregator, JobConfig, PacketOutcome, Registers
from hopsum_oracle.decision import FINAL, Copy
from hopsum_wire import Event, Header

from ...support.jobs import OF_TREES, job, probe, update, words, worker


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
