# SPDX-License-Identifier: Apache-2.0
"""Digests: what a call tells, and how samples become lists."""

from __future__ import annotations

import random
from typing import Any

import pytest

from hopsum_switch.backend import Backend, engine_maker
from hopsum_switch.engine import Engine
from hopsum_switch.errors import (
    AlreadyExistsError,
    InvalidArgumentError,
    NotFoundError,
    ProgramError,
    TableError,
    UnsupportedError,
)
from hopsum_switch.observe.trace import Trace, render
from hopsum_switch.state.digest_store import DigestConfig, DigestStore

from .builder import SOURCE, Json, ProgramBuilder, assign, build, expression, field, hexstr, primitive

AT_ONCE = DigestConfig(0, 0, 0)
M = field("scalars", "m")


def digest(name: str, number: int, *elements: Json) -> Json:
    return {"id": number, "name": name, "source_info": SOURCE, "elements": list(elements)}


def send(number: int) -> Json:
    return primitive("generate_digest", hexstr(1), hexstr(number))


def program(*calls: Json) -> ProgramBuilder:
    """Two digests, `pair` (h.a, m) and `constant` (h.b, 7), and what ingress does."""
    builder = build(("a", 8), ("b", 12), ("rest", 4))
    builder.data["learn_lists"] = [
        digest("pair", 1, field("h", "a"), M),
        digest("constant", 2, field("h", "b"), hexstr(7)),
    ]
    builder.primitives += calls
    return builder


def told(builder: ProgramBuilder, frame: bytes = b"\x03\x12\x34", **options: Any) -> list[tuple[str, tuple[int, ...]]]:
    """Return what one frame tells of both digests."""
    engine = builder.engine(**options)
    for name in ("pair", "constant"):
        engine.digests.insert(name, AT_ONCE)
    engine.process(5, frame)
    return [(each.name, sample) for each in engine.digests.ready for sample in each.samples]


def test_a_digest_has_what_the_members_are_at_the_end_of_ingress() -> None:
    assert told(program(assign(M, hexstr(1)), send(1), assign(M, hexstr(2)))) == [("pair", (3, 2))]
    assert told(program(send(2))) == [("constant", (0x123, 7))]


def test_the_last_call_of_ingress_holds_and_egress_tells_nothing() -> None:
    assert told(program(send(1), send(2))) == [("constant", (0x123, 7))]
    builder = program()
    builder.egress_primitives.append(send(1))
    assert told(builder) == []


def test_a_dropped_packet_tells_and_each_turn_of_a_packet_tells() -> None:
    drop = primitive("mark_to_drop", {"type": "header", "value": "standard_metadata"})
    builder = program(send(1), drop)
    engine = Engine(builder.load())
    engine.digests.insert("pair", AT_ONCE)
    assert engine.process(5, b"\x03\x12\x34") == []
    assert len(engine.digests.ready) == 1
    builder = program(send(1))
    builder.data["field_lists"] = [{"id": 1, "name": "kept", "elements": [M]}]
    once = primitive("_jump_if_zero", expression("==", M, hexstr(0)), hexstr(4))
    once["parameters"][0] = expression("b2d", None, once["parameters"][0])
    builder.primitives += [once, assign(M, hexstr(9)), primitive("resubmit", hexstr(1))]
    assert told(builder) == [("pair", (3, 9)), ("pair", (3, 9))]


def test_a_digest_that_is_off_tells_nothing() -> None:
    engine = program(send(1)).engine()
    engine.process(5, b"\x03\x12\x34")
    assert not engine.digests.ready
    engine.digests.insert("pair", AT_ONCE)
    engine.process(5, b"\x03\x12\x34")
    engine.digests.delete("pair")
    engine.process(5, b"\x03\x12\x34")
    assert len(engine.digests.ready) == 1
    engine.reset_state()
    assert not engine.digests.ready
    assert not engine.digests.configs()


def test_the_trace_has_the_digest() -> None:
    texts: list[str] = []
    assert told(program(send(1)), observer=Trace(lambda record: texts.append(render(record))))
    assert "    digest pair(0x3, 0x0)" in texts[0].splitlines()


def test_programs_with_digests_are_interpreted() -> None:
    loaded = program(send(1)).load()
    with pytest.raises(UnsupportedError, match="digest"):
        engine_maker(Backend.NATIVE)(loaded)
    assert engine_maker(Backend.AUTO)(loaded).backend == "interpreter"


def test_a_learn_list_that_is_missing_is_refused() -> None:
    with pytest.raises(ProgramError, match=r"unknown learn list 3 at test\.p4"):
        program(send(3)).load()


def store(**config: int) -> DigestStore:
    made = DigestStore(program().load())
    made.insert("pair", DigestConfig(**({"max_timeout_ns": 0, "max_list_size": 0, "ack_timeout_ns": 0} | config)))
    return made


def lists(made: DigestStore) -> list[tuple[int, tuple[tuple[int, ...], ...]]]:
    """Take the lists that are ready."""
    found = [(each.number, each.samples) for each in made.ready]
    made.ready.clear()
    return found


def test_samples_wait_for_a_full_list_or_their_time() -> None:
    made = store(max_timeout_ns=5_000, max_list_size=3)
    for value in range(4):
        made.learn("pair", (value, 0), 10)
    assert lists(made) == [(1, ((0, 0), (1, 0), (2, 0)))]
    assert made.next_due_us() == 15
    made.expire(14)
    assert lists(made) == []
    made.learn("pair", (5, 0), 14)
    made.expire(15)
    assert lists(made) == [(2, ((3, 0), (5, 0)))]
    assert made.next_due_us() is None


def test_without_a_time_every_sample_goes_at_once_and_without_a_size_only_time_ends_a_list() -> None:
    made = store(max_list_size=3)
    made.learn("pair", (1, 1), 0)
    assert lists(made) == [(1, ((1, 1),))]
    made = store(max_timeout_ns=1)
    for value in range(1000):
        made.learn("pair", (value, 0), 7)
    assert lists(made) == []
    made.expire(8)
    assert [len(samples) for _, samples in lists(made)] == [1000]


def test_equal_samples_are_told_again_after_the_acknowledgement_or_its_time() -> None:
    made = store(ack_timeout_ns=10_000)
    for now_us in (0, 3, 9):
        made.learn("pair", (1, 1), now_us)
    assert lists(made) == [(1, ((1, 1),))]
    made.learn("pair", (1, 1), 10)
    assert lists(made) == [(2, ((1, 1),))]
    made.acknowledge("pair", 1)
    made.learn("pair", (1, 1), 11)
    assert lists(made) == []
    made.acknowledge("pair", 2)
    made.learn("pair", (1, 1), 11)
    assert lists(made) == [(3, ((1, 1),))]
    made = store()
    for _ in range(2):
        made.learn("pair", (1, 1), 0)
    assert len(lists(made)) == 2, "without a time nothing is remembered"


def test_a_sample_that_waits_is_not_taken_twice_and_a_change_keeps_it() -> None:
    made = store(max_timeout_ns=1_000_000, ack_timeout_ns=1_000_000)
    made.learn("pair", (1, 1), 0)
    made.learn("pair", (1, 1), 0)
    made.modify("pair", DigestConfig(1_000_000, 2, 1_000_000))
    made.learn("pair", (2, 2), 0)
    assert lists(made) == [(1, ((1, 1), (2, 2)))]
    made.delete("pair")
    made.insert("pair", AT_ONCE)
    made.learn("pair", (1, 1), 0)
    assert lists(made) == [(2, ((1, 1),))], "numbers of lists go on"


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (lambda s: s.insert("pair", AT_ONCE), AlreadyExistsError),
        (lambda s: s.insert("other", AT_ONCE), NotFoundError),
        (lambda s: s.modify("constant", AT_ONCE), NotFoundError),
        (lambda s: s.delete("constant"), NotFoundError),
        (lambda s: s.get("constant"), NotFoundError),
        (lambda s: s.modify("pair", DigestConfig(-1, 0, 0)), InvalidArgumentError),
    ],
)
def test_what_makes_no_sense_changes_nothing(wrong: Any, error: type[TableError]) -> None:
    made = store(max_list_size=9)
    with pytest.raises(error):
        wrong(made)
    assert made.configs() == {"pair": DigestConfig(0, 9, 0)}


@pytest.mark.parametrize("seed", range(5))
def test_random_histories_lose_nothing_and_tell_nothing_twice(seed: int) -> None:
    """Every sample is told, and an equal one only after it was acknowledged or its time was over."""
    rng, made = random.Random(seed), store(max_timeout_ns=20_000, max_list_size=4, ack_timeout_ns=30_000)
    unacknowledged: dict[tuple[int, ...], int] = {}  # when it was told
    waiting: set[tuple[int, ...]] = set()
    numbers: dict[int, tuple[tuple[int, ...], ...]] = {}
    for now_us in range(2000):
        sample = (rng.randrange(12), 0)
        if rng.random() < 0.4:
            for old in [old for old, since in unacknowledged.items() if now_us - since >= 30]:
                del unacknowledged[old]
            if sample not in unacknowledged:
                waiting.add(sample)
            made.learn("pair", sample, now_us)
        made.expire(now_us)
        for number, samples in lists(made):
            assert len(samples) == len(set(samples)) <= 4
            assert waiting.issuperset(samples)
            waiting.difference_update(samples)
            numbers[number] = samples
            unacknowledged.update(dict.fromkeys(samples, now_us))
        if numbers and rng.random() < 0.1:
            number = rng.choice(list(numbers))
            made.acknowledge("pair", number)
            for old in numbers.pop(number):
                unacknowledged.pop(old, None)
    made.expire(10**6)
    assert waiting == {sample for _, samples in lists(made) for sample in samples}
    assert sorted(numbers) == sorted(set(numbers))
