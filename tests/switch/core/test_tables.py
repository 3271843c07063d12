# SPDX-License-Identifier: Apache-2.0
"""Table entries: lookups against a brute-force model, and every refusal, after which nothing has changed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsum_switch.errors import (
    AlreadyExistsError,
    InvalidArgumentError,
    NotFoundError,
    OutOfSpaceError,
    ReadOnlyError,
    TableError,
)
from hopsum_switch.state.entry_lookup import Exact, Lpm, Match, Optional, Range, Ternary
from hopsum_switch.state.table_store import TableState

from .builder import Json, ProgramBuilder, assign, build, field, hexstr, primitive

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
    assert [entry.priority for entry in table.entries()] == [2**31 - 2, 2**31 - 3]
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


def test_a_table_without_default_action_goes_on() -> None:
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


def test_reset_returns_to_the_state_after_loading() -> None:
    engine = with_table("exact", "exact").engine()
    table = engine.tables["t"]
    table.insert([Exact(1)], "set", [9])
    table.set_default("set", [1])
    engine.reset_state()
    assert engine.tables["t"].entries() == ()
    assert engine.process(0, b"\x01\x00")[0].frame == b"\x01\x00"
