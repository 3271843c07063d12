# SPDX-License-Identifier: Apache-2.0
"""Malformed JSON and inconsistent programs: a ProgramError that names the place, never another exception."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hopsum_switch.errors import ProgramError, UnsupportedError
from hopsum_switch.program import load_program
from hopsum_switch.program.p4_source import SourceInfo

from .builder import SOURCE, ProgramBuilder, assign, build, expression, field, hexstr, primitive

REGISTER_X = {"type": "register_array", "value": "x"}
PROGRAMS = Path(__file__).parent.parent / "programs"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"),
        ("[]", "program: Expected `object`, got `array`"),
        ('{"__meta__": {"version": [3, 0]}}', r"JSON format \[3, 0\] is not 2.x"),
        ("{}", "0 parsers"),
        ('{"headers": [{"name": 5}]}', r"program.headers\[0\].name: Expected `str`, got `int`"),
        ('{"headers": [{"name": "x"}]}', r"program.headers\[0\]: Object missing required field `id`"),
        ('{"headers": [{"name": "x", "id": true}]}', r"program.headers\[0\].id: Expected `int`, got `bool`"),
        ('{"headers": 7}', "program.headers: Expected `array`, got `int`"),
        ('{"errors": [["a"]]}', r"program.errors\[0\]: Expected `array` of length 2"),
        (
            '{"field_aliases": [["a", ["b"]]]}',
            r"program.field_aliases\[0\]\[1\]: Expected `array` of at least length 2",
        ),
        (
            '{"actions": [{"name": "a", "id": 0, "primitives": [{"op": "b", "parameters":'
            ' [{"type": "expression", "value": {"op": "+", "left": {"type": "hexstr", "value": "zz"}}}]}]}]}',
            r"program.actions\[0\].primitives\[0\].parameters\[0\].value.left: 'zz' is not a hexadecimal number",
        ),
    ],
)
def test_wrong_shapes_are_named_with_their_path(text: str, message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        load_program(text)


Spoil = Callable[[ProgramBuilder], Any]

INCONSISTENT: list[tuple[Spoil, str]] = [
    (lambda b: b.data.pop("parsers"), "0 parsers"),
    (lambda b: b.data.pop("deparsers"), "0 deparsers"),
    (lambda b: b.data["pipelines"].pop(1), "no egress control"),
    (lambda b: b.data["headers"].pop(3), "unknown field"),
    (lambda b: (b.data["headers"].pop(3), b.data.pop("field_aliases")), "no field standard_metadata.ingress_port"),
    (lambda b: b.data["headers"][0].update(header_type="none"), "header h: unknown type 'none'"),
    (
        lambda b: b.data["header_types"][0]["fields"].append(["z", 3, False]),
        "no whole number of bytes",
    ),
    (lambda b: b.data["header_types"][0]["fields"].append(["z", 1, True]), "width 1 is impossible"),
    (lambda b: b.data["register_arrays"][0].update(size=0), "register r has no cells"),
    (lambda b: b.data["counter_arrays"][0].update(size=0), "counter c has size 0"),
    (lambda b: b.data["counter_arrays"][0].update(is_direct=True, binding="tbl_in"), "table tbl_in does not count"),
    (lambda b: b.ingress.update(init_table="none"), "ingress starts at an unknown node none"),
    (lambda b: b.ingress["tables"][0].update(next_tables={"act": "none"}), r"unknown node none at test.p4\(42\)"),
    (
        lambda b: b.ingress["tables"][0].update(next_tables={"act": "tbl_in"}),
        "tbl_in follows itself",
    ),
    (lambda b: b.ingress["tables"][0].update(next_tables={}), "no successor for action act"),
    (lambda b: b.ingress["tables"][0].update(action_ids=[99]), "unknown action 99"),
    (lambda b: b.ingress["tables"][0]["default_entry"].update(action_data=["0x1"]), "1 arguments for 0 parameters"),
    (lambda b: b.ingress["tables"][0]["default_entry"].update(action_data=["zz"]), "'zz' is not a hexadecimal number"),
    (lambda b: b.ingress["tables"][0]["default_entry"].update(action_id=1), "the default action egress_act is foreign"),
    (lambda b: b.data["parsers"][0].update(init_state="none"), "starts in an unknown state none"),
    (lambda b: b.primitives.append(primitive("assign", field("h", "a"))), "assign takes 2 arguments, 1 given"),
    (lambda b: b.primitives.append(assign(hexstr(1), hexstr(1))), "not a field"),
    (lambda b: b.primitives.append(assign(field("h", "z"), hexstr(1))), "unknown field"),
    (lambda b: b.primitives.append(assign(field("h", "a"), {"type": "runtime_data", "value": 0})), "0 parameters"),
    (lambda b: b.primitives.append(assign(field("h", "a"), {"type": "bool", "value": True})), "expected an integer"),
    (
        lambda b: b.primitives.append(assign(field("h", "a"), expression("b2d", None, hexstr(1)))),
        "expected a condition",
    ),
    (lambda b: b.primitives.append(assign(field("h", "a"), expression("+", hexstr(1), None))), "found nothing"),
    (
        lambda b: b.primitives.append(assign(field("h", "a"), expression("<<", hexstr(1), field("scalars", "n")))),
        "shift by a value that may be negative",
    ),
    (
        lambda b: b.primitives.append(assign(field("h", "a"), expression("usat_cast", hexstr(1), field("h", "b")))),
        "width that is not a positive constant",
    ),
    (lambda b: b.primitives.append(primitive("_jump", field("h", "a"))), "a jump's offset is not a constant"),
    (
        lambda b: b.primitives.append(primitive("mark_to_drop", {"type": "header", "value": "h"})),
        "no field egress",
    ),
    (lambda b: b.primitives.append(primitive("count", hexstr(1), hexstr(1))), "expected a counter array"),
    (
        lambda b: b.primitives.append(primitive("register_read", field("h", "a"), REGISTER_X, hexstr(0))),
        "unknown register 'x'",
    ),
]


@pytest.mark.parametrize(("spoil", "message"), INCONSISTENT)
def test_inconsistent_programs_are_refused(spoil: Spoil, message: str) -> None:
    builder = build()
    spoil(builder)
    with pytest.raises(ProgramError, match=message):
        builder.load()


def keyed(kind: str, *keys: str, entries: Any = None) -> ProgramBuilder:
    builder = build()
    key = [{"match_type": k, "target": ["h", n], "mask": None} for k, n in zip(keys, "ab", strict=False)]
    builder.ingress["tables"][0].update(match_type=kind, key=key)
    if entries is not None:
        builder.ingress["tables"][0]["entries"] = entries
    return builder


def entry(action: int = 0, **match: Any) -> Any:
    call = {"action_id": action, "action_data": []}
    return {"match_key": [match], "action_entry": call, "priority": 1, "source_info": SOURCE}


@pytest.mark.parametrize(
    ("builder", "message"),
    [
        (keyed("exact", "lpm"), "of kind exact has a key that needs more"),
        (keyed("lpm", "lpm", "lpm"), "has not exactly one lpm key"),
        (keyed("lpm", "exact"), "has not exactly one lpm key"),
        (keyed("exact", "exact", entries=[entry(match_type="exact", key="0x100")]), "does not fit key h.a"),
        (keyed("exact", "exact", entries=[entry(match_type="exact", key="0x1")] * 2), "is there twice"),
        (keyed("exact", "exact", entries=[entry(match_type="exact", key=hex(i)) for i in range(17)]), "17 constant"),
        (keyed("range", "range", entries=[entry(match_type="range", start="0x2", end="0x1")]), "does not fit key h.a"),
        (keyed("exact", "exact", entries=[{**entry(), "match_key": []}]), "an entry has 0 of 1 keys"),
        (keyed("exact", "exact", entries=[entry(1, match_type="exact", key="0x1")]), "the foreign action egress_act"),
        (
            keyed("lpm", "lpm", entries=[entry(match_type="lpm", key="0x10", prefix_length=9)]),
            "does not fit key h.a",
        ),
    ],
)
def test_inconsistent_tables_are_refused(builder: ProgramBuilder, message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        builder.load()


def test_source_positions_and_digest_survive_loading() -> None:
    builder = build()
    program = builder.load()
    assert program.tables["tbl_in"].source == SourceInfo("test.p4", 42, 8, "the construct")
    assert len(program.digest) == 64
    builder.data["program"] = "other.p4"
    assert builder.load().digest != program.digest


@pytest.mark.parametrize("name", ["router", "firewall"])
def test_damaged_programs_raise_program_errors_only(name: str) -> None:
    """Remove or replace parts of compiled programs at random; loading them works or raises ProgramError."""
    whole = json.loads((PROGRAMS / name / f"{name}.json").read_text())
    rng = random.Random(20)
    outcomes = set()
    for _ in range(150):
        damaged = copy.deepcopy(whole)
        damage(damaged, rng)
        try:
            load_program(json.dumps(damaged))
            outcomes.add("loaded")
        except UnsupportedError:
            outcomes.add("unsupported")
        except ProgramError:
            outcomes.add("refused")
    assert {"loaded", "refused"} <= outcomes


def damage(node: Any, rng: random.Random) -> None:
    while True:
        if not isinstance(node, dict | list) or not node:
            return
        key = rng.choice(list(node)) if isinstance(node, dict) else rng.randrange(len(node))
        child = node[key]
        if isinstance(child, dict | list) and child and rng.random() < 0.85:
            node = child
            continue
        if rng.random() < 0.5:
            del node[key]
        else:
            node[key] = rng.choice([None, 7, -1, "x", [], {}, True, "0xffff"])
        return
