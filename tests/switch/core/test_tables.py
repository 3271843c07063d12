# SPDX-License-Identifier: Apache-2.0
"""Table entries against a brute-force model, refusals that change nothing, and digests that become lists."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsum_switch.backend import Backend, engine_maker
from hopsum_switch.engine import Engine
from hopsum_switch.errors import (
    AlreadyExistsError,
    InvalidArgumentError,
    NotFoundError,
    OutOfSpaceError,
    ProgramError,
    ReadOnlyError,
    TableError,
    UnsupportedError,
)
from hopsum_switch.observe.trace import Trace
from hopsum_switch.state.cells import PacketByteCount
from hopsum_switch.state.digest_store import DigestConfig, DigestStore
from hopsum_switch.state.entry_lookup import Exact, Lpm, Match, Optional, Range, Ternary
from hopsum_switch.state.table_store import TableState

from .builder import SOURCE, Json, ProgramBuilder, assign, build, expression, field, hexstr, primitive

PARAM: Json = {"type": "runtime_data", "value": 0}


def with_table(kind: str, *key_kinds: str, **table: Any) -> ProgramBuilder:
    """A table "t" on h.a and h.b; `set` writes its argument into h.b, `hide` removes h; default: nothing."""
    builder = build(("a", 8), ("b", 8))
    builder.data["actions"] += [
        {
            "name": "set",
            "id": 2,
            "runtime_data": [{"name": "value", "bitwidth": 8}],
            "primitives": [assign(field("h", "b"), PARAM)],
        },
        {"name": "nothing", "id": 3, "runtime_data": [], "primitives": []},
        {"name": "foreign", "id": 4, "runtime_data": [], "primitives": []},
    ]
    keys = [
        {"match_type": key, "target": ["h", name], "mask": None, "name": name}
        for key, name in zip(key_kinds, ("a", "b"), strict=False)
    ]
    ir = {
        **builder.table("t", 9, "set"),
        "match_type": kind,
        "key": keys,
        "action_ids": [2, 3],
        "next_tables": {"set": "tbl_in", "nothing": "tbl_in"},
        "base_default_next": "tbl_in",
        "max_size": 4,
        "default_entry": {"action_id": 3, "action_const": False, "action_data": [], "action_entry_const": False},
        **table,
    }
    builder.ingress["tables"].append(ir)
    builder.ingress["init_table"] = "t"
    return builder


def state(builder: ProgramBuilder) -> TableState:
    return builder.engine().tables["t"]


def test_hit_miss_and_parameters_reach_the_packet() -> None:
    engine = with_table("exact", "exact").engine()
    engine.tables["t"].insert([Exact(5)], "set", [77])
    assert engine.process(0, b"\x05\x00")[0].frame == b"\x05\x4d"
    assert engine.process(0, b"\x06\x00")[0].frame == b"\x06\x00"
    engine.tables["t"].set_default("set", [1])
    assert engine.process(0, b"\x06\x00")[0].frame == b"\x06\x01"


def test_modify_and_delete() -> None:
    table = state(with_table("exact", "exact"))
    handle = table.insert([Exact(5)], "set", [77])
    table.modify(handle, "nothing", [])
    assert table.entry(handle).call.action.name == "nothing"
    assert table.find([Exact(5)]) == handle
    table.delete(handle)
    assert table.entries() == ()
    assert table.lookup((5,)) is None
    with pytest.raises(NotFoundError, match="no entry with handle"):
        table.delete(handle)
    with pytest.raises(NotFoundError, match="no entry"):
        table.find([Exact(5)])


KEY_KINDS = {
    "exact": st.integers(0, 255).map(Exact),
    "lpm": st.builds(lambda v, n: Lpm(v >> (8 - n) << (8 - n), n), st.integers(0, 255), st.integers(0, 8)),
    "ternary": st.builds(lambda v, m: Ternary(v & m, m), st.integers(0, 255), st.integers(0, 255)),
    "range": st.builds(lambda x, y: Range(min(x, y), max(x, y)), st.integers(0, 255), st.integers(0, 255)),
}


def matches(match: Match, value: int) -> bool:
    if isinstance(match, Exact):
        return value == match.value
    if isinstance(match, Lpm):
        return f"{value:08b}"[: match.prefix_len] == f"{match.value:08b}"[: match.prefix_len]
    if isinstance(match, Ternary):
        return value & match.mask == match.value
    assert isinstance(match, Range)
    return value in range(match.low, match.high + 1)


@settings(max_examples=60, deadline=None, derandomize=True)
@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("exact", ("exact", "exact")),
        ("lpm", ("lpm",)),
        ("lpm", ("exact", "lpm")),
        ("ternary", ("ternary", "lpm")),
        ("ternary", ("exact", "ternary")),
        ("range", ("range", "ternary")),
    ],
)
@given(data=st.data())
def test_lookup_equals_brute_force(kind: str, keys: tuple[str, ...], data: st.DataObject) -> None:
    table = state(with_table(kind, *keys, max_size=64))
    entries: list[tuple[tuple[Match, ...], int]] = []
    for _ in range(data.draw(st.integers(0, 12))):
        match = tuple(data.draw(KEY_KINDS[key]) for key in keys)
        priority = data.draw(st.integers(1, 3)) if table.ir.needs_priority else 0
        if (match, priority) not in entries:
            table.insert(match, "set", [len(entries)], priority)
            entries.append((match, priority))
    for position in sorted(data.draw(st.sets(st.integers(0, 11))), reverse=True):
        if position < len(entries):
            table.delete(table.find(*entries[position]))
            entries[position] = (entries[position][0], -1)
    for _ in range(5):
        key = tuple(data.draw(st.integers(0, 255)) for _ in keys)
        hits = [
            (priority, sum(m.prefix_len for m in match if isinstance(m, Lpm)) if kind == "lpm" else 0, -age)
            for age, (match, priority) in enumerate(entries)
            if priority >= 0 and all(matches(m, value) for m, value in zip(match, key, strict=True))
        ]
        found = table.lookup(key)
        assert (None if found is None else found.call.args[0]) == (-max(hits)[2] if hits else None)


REFUSALS: list[tuple[str, tuple[str, ...], Any, str, list[int], int, type[TableError], str]] = [
    ("exact", ("exact",), [Exact(256)], "set", [1], 0, InvalidArgumentError, "256 is not a value of 8 bits"),
    ("exact", ("exact",), [Exact(-1)], "set", [1], 0, InvalidArgumentError, "-1 is not a value"),
    ("exact", ("exact",), [], "set", [1], 0, InvalidArgumentError, "0 match values for 1 key"),
    ("exact", ("exact",), [Ternary(1, 1)], "set", [1], 0, InvalidArgumentError, "kind ternary does not fit"),
    ("exact", ("exact",), [Exact(1)], "foreign", [], 0, InvalidArgumentError, "'foreign' is not one of: nothing, set"),
    ("exact", ("exact",), [Exact(1)], "set", [], 0, InvalidArgumentError, "0 parameters given, 1 needed"),
    ("exact", ("exact",), [Exact(1)], "set", [256], 0, InvalidArgumentError, "set.value: 256"),
    ("exact", ("exact",), [Exact(1)], "set", [1], 5, InvalidArgumentError, "takes no priority"),
    ("exact", ("exact",), [Exact(9)], "set", [1], 0, AlreadyExistsError, "exists; modify it"),
    ("lpm", ("lpm",), [Lpm(0x81, 1)], "set", [1], 0, InvalidArgumentError, "bits beyond its prefix of 1"),
    ("lpm", ("lpm",), [Lpm(0, 9)], "set", [1], 0, InvalidArgumentError, "outside 0..8"),
    ("lpm", ("lpm",), [Lpm(0x80, 1)], "set", [1], 3, InvalidArgumentError, "takes no priority"),
    ("ternary", ("ternary",), [Ternary(3, 1)], "set", [1], 1, InvalidArgumentError, "bits outside its mask"),
    ("ternary", ("ternary",), [Ternary(1, 1)], "set", [1], 0, InvalidArgumentError, "priority 0 is outside"),
    ("ternary", ("ternary",), [Ternary(1, 1)], "set", [1], 2**31, InvalidArgumentError, "priority 2147483648"),
    ("ternary", ("ternary",), [Optional(300)], "set", [1], 1, InvalidArgumentError, "300 is not a value"),
    ("range", ("range",), [Range(5, 4)], "set", [1], 1, InvalidArgumentError, "range 5..4 is empty"),
]


@pytest.mark.parametrize(("kind", "keys", "match", "action", "params", "priority", "error", "message"), REFUSALS)
def test_refused_inserts_change_nothing(
    kind: str,
    keys: tuple[str, ...],
    match: list[Match],
    action: str,
    params: list[int],
    priority: int,
    error: type[TableError],
    message: str,
) -> None:
    table = state(with_table(kind, *keys))
    if error is AlreadyExistsError:
        table.insert([Exact(9)], "set", [42])
    before = [(e.handle, e.match, e.call, e.priority) for e in table.entries()]
    with pytest.raises(error, match=message):
        table.insert(match, action, params, priority)
    assert [(e.handle, e.match, e.call, e.priority) for e in table.entries()] == before


def test_a_full_table_refuses_and_takes_again_after_a_delete() -> None:
    table = state(with_table("exact", "exact"))
    handles = [table.insert([Exact(i)], "set", [i]) for i in range(4)]
    with pytest.raises(OutOfSpaceError, match=r"t is full \(4 entries\)"):
        table.insert([Exact(9)], "set", [9])
    table.delete(handles[0])
    table.insert([Exact(9)], "set", [9])
    assert len(table) == 4


def test_a_refused_modify_or_default_changes_nothing() -> None:
    table = state(with_table("exact", "exact"))
    handle = table.insert([Exact(1)], "set", [1])
    with pytest.raises(InvalidArgumentError):
        table.modify(handle, "set", [999])
    with pytest.raises(InvalidArgumentError):
        table.set_default("foreign", [])
    default = table.get_default()
    assert default is not None
    assert default.action.name == "nothing"
    assert table.entry(handle).call.args == (1,)


def test_optional_keys_are_ternary_ones() -> None:
    table = state(with_table("ternary", "ternary"))
    table.insert([Optional(None)], "set", [1], 1)
    table.insert([Optional(7)], "set", [2], 2)
    hits = [table.lookup((value,)) for value in (6, 7)]
    assert [hit.call.args for hit in hits if hit is not None] == [(1,), (2,)]


CONST_ENTRIES = [
    {
        "match_key": [{"match_type": "ternary", "key": key, "mask": mask}],
        "action_entry": {"action_id": 2, "action_data": [value]},
        "priority": priority,
    }
    for key, mask, value, priority in [("0xff", "0x01", "0x11", 1), ("0x55", "0x00", "0x22", 2)]
]


def test_constant_entries_match_by_the_sources_order_and_cannot_be_written() -> None:
    builder = with_table("ternary", "ternary", entries=CONST_ENTRIES)
    engine = builder.engine()
    assert [engine.process(0, bytes([v, 0]))[0].frame[1] for v in (1, 2)] == [0x11, 0x22]
    table = engine.tables["t"]
    assert [entry.priority for entry in table.entries()] == [2, 1]
    assert all(entry.is_const for entry in table.entries())
    for write in (
        lambda: table.insert([Ternary(4, 4)], "set", [1], 7),
        lambda: table.modify(1, "set", [1]),
        lambda: table.delete(1),
    ):
        with pytest.raises(ReadOnlyError, match="constant in the program"):
            write()
    table.set_default("set", [3])


@pytest.mark.parametrize(
    ("default", "action", "params", "allowed"),
    [
        ({"action_const": True, "action_entry_const": True}, "set", [5], False),
        ({"action_const": True, "action_entry_const": True}, "nothing", [], True),
        ({"action_const": False, "action_entry_const": False}, "set", [5], True),
        ({"action_const": True, "action_entry_const": False, "action_id": 2, "action_data": ["0x1"]}, "set", [5], True),
        ({"action_const": True, "action_entry_const": True, "action_id": 2, "action_data": ["0x1"]}, "set", [5], False),
    ],
)
def test_constant_default_actions(default: Json, action: str, params: list[int], allowed: bool) -> None:
    entry = {"action_id": 3, "action_data": [], **default}
    table = state(with_table("exact", "exact", default_entry=entry))
    before = table.get_default()
    if allowed:
        table.set_default(action, params)
        table.reset_default()
    else:
        with pytest.raises(ReadOnlyError, match="default action is constant"):
            table.set_default(action, params)
    assert table.get_default() == before


def test_the_pipeline_continues_after_a_table_without_default_action() -> None:
    builder = with_table("exact", "exact")
    del builder.ingress["tables"][1]["default_entry"]
    assert builder.run(b"\x01\x02") == b"\x01\x02"
    assert state(builder).get_default() is None


def test_keyless_tables_take_no_entries() -> None:
    engine = build().engine()
    with pytest.raises(InvalidArgumentError, match="has no key"):
        engine.tables["tbl_in"].insert([], "act", [])


def test_fields_of_invalid_headers_match_as_zero() -> None:
    builder = with_table("exact", "exact")
    builder.states[0]["parser_ops"] = [{"op": "set", "parameters": [field("h", "a"), hexstr(7)]}]
    builder.primitives += [
        primitive("add_header", {"type": "header", "value": "extra"}),
        assign(field("extra", "x"), field("h", "b")),
    ]
    engine = builder.engine()
    engine.tables["t"].insert([Exact(0)], "set", [0x55])
    assert engine.process(0, b"")[0].frame == b"\x00\x55"


def test_static_masks_and_validity_keys() -> None:
    builder = with_table("exact", "exact", "exact")
    builder.ingress["tables"][1]["key"][0]["mask"] = "0x0f"
    builder.ingress["tables"][1]["key"][1]["target"] = ["h", "$valid$"]
    engine = builder.engine()
    engine.tables["t"].insert([Exact(5), Exact(1)], "set", [0x55])
    assert engine.process(0, b"\xf5\x00")[0].frame == b"\xf5\x55"
    with pytest.raises(InvalidArgumentError, match="2 is not a value of 1 bits"):
        engine.tables["t"].insert([Exact(5), Exact(2)], "set", [0x55])


def test_hit_and_miss_branches() -> None:
    builder = with_table("exact", "exact", next_tables={"__HIT__": "tbl_in", "__MISS__": None})
    engine = builder.engine()
    engine.tables["t"].insert([Exact(1)], "set", [9])
    assert engine.process(0, b"\x01\x00") == [(1, b"\x01\x09")]
    assert engine.process(0, b"\x02\x00") == [(0, b"\x02\x00")]


def test_direct_counters_count_hits_only_and_go_with_their_entries() -> None:
    builder = with_table("exact", "exact", with_counters=True)
    builder.data["counter_arrays"].append({"name": "d", "id": 7, "is_direct": True, "binding": "t"})
    engine = builder.engine()
    handle = engine.tables["t"].insert([Exact(1)], "set", [9])
    for frame in (b"\x01\x00", b"\x02\x00", b"\x01\x00abc"):
        engine.process(0, frame)
    assert engine.counters.read_direct("t", handle) == (2, 7)
    engine.tables["t"].modify(handle, "set", [8])
    assert engine.counters.read_direct("t", handle) == (2, 7)
    engine.counters.write_direct("t", handle, PacketByteCount(10, 20))
    engine.process(0, b"\x01\x00")
    assert engine.counters.read_direct("t", handle) == (11, 22)
    engine.tables["t"].delete(handle)
    again = engine.tables["t"].insert([Exact(1)], "set", [9])
    assert engine.counters.read_direct("t", again) == (0, 0)
    assert engine.program.tables["t"].direct_counter == "d"


def test_unknown_tables() -> None:
    tables = build().engine().tables
    assert "tbl_in" in tables
    assert "t" not in tables
    assert list(tables) == ["tbl_in", "tbl_eg"]
    assert len(tables) == 2
    with pytest.raises(NotFoundError, match="no table 't'"):
        tables["t"]


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


def test_the_trace_has_the_digest() -> None:
    texts: list[str] = []
    assert told(program(send(1)), observer=Trace(texts.append))
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
    assert lists(made) == [(2, ((1, 1),))], "numbers of lists continue"


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


@pytest.mark.parametrize("ack_us", [0, 30])
@pytest.mark.parametrize("size", [0, 4])
@pytest.mark.parametrize("timeout_ns", [0, 1, 19_001])
def test_lists_are_those_of_a_model(timeout_ns: int, size: int, ack_us: int) -> None:
    """With an ack time an equal sample is told only after it was acknowledged or that time was over."""
    made = store(max_timeout_ns=timeout_ns, max_list_size=size, ack_timeout_ns=1000 * ack_us)
    rng, wait_us, since_us, number = random.Random(5), -(-timeout_ns // 1000), 0, 0
    waiting: list[tuple[int, int]] = []
    told: dict[int, tuple[int, tuple[tuple[int, int], ...]]] = {}
    for now_us in range(2000):
        if rng.random() < 0.6:
            sample = (rng.randrange(12), 0)
            told = {key: each for key, each in told.items() if now_us - each[0] < ack_us}
            if not ack_us or sample not in {*waiting, *(old for _, samples in told.values() for old in samples)}:
                since_us = since_us if waiting else now_us
                waiting.append(sample)
            made.learn("pair", sample, now_us)
        made.expire(now_us)
        expected = []
        if waiting and (now_us >= since_us + wait_us or 0 < size <= len(waiting)):
            number += 1
            told[number] = now_us, tuple(waiting)
            expected, waiting = [(number, tuple(waiting))], []
        assert lists(made) == expected
        assert made.next_due_us() == (since_us + wait_us if waiting else None)
        if told and rng.random() < 0.1:
            made.acknowledge("pair", acknowledged := rng.choice(list(told)))
            del told[acknowledged]
    assert number > 20
