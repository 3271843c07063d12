# SPDX-License-Identifier: Apache-2.0
"""Malformed, inconsistent and unsupported programs are refused by name and place; the core knows no program."""

from __future__ import annotations

import ast
import copy
import json
import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import hopsum_switch
from hopsum_switch.engine import Engine, Output
from hopsum_switch.errors import ProgramError, UnsupportedError
from hopsum_switch.program import load_program
from hopsum_switch.program.p4_source import SourceInfo
from hopsum_switch.program.unsupported import UNSUPPORTED, unsupported_error

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
    (lambda b: b.data["header_types"][0]["fields"].append(["z", 3, False]), "no whole number of bytes"),
    (lambda b: b.data["header_types"][0]["fields"].append(["z", 1, True]), "width 1 is impossible"),
    (lambda b: b.data["register_arrays"][0].update(size=0), "register r has no cells"),
    (lambda b: b.data["counter_arrays"][0].update(size=0), "counter c has size 0"),
    (lambda b: b.data["counter_arrays"][0].update(is_direct=True, binding="tbl_in"), "table tbl_in does not count"),
    (lambda b: b.ingress.update(init_table="none"), "ingress starts at an unknown node none"),
    (lambda b: b.ingress["tables"][0].update(next_tables={"act": "none"}), r"unknown node none at test.p4\(42\)"),
    (lambda b: b.ingress["tables"][0].update(next_tables={"act": "tbl_in"}), "tbl_in follows itself"),
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
    (lambda b: b.primitives.append(primitive("mark_to_drop", {"type": "header", "value": "h"})), "no field egress"),
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
        (keyed("lpm", "lpm", entries=[entry(match_type="lpm", key="0x10", prefix_length=9)]), "does not fit key h.a"),
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


HERE = " at test.p4(42): the construct"
NOWHERE = " (no source position in the JSON)"


def section(key: str, **item: Any) -> Spoil:
    return lambda b: b.data.update({key: [{"name": "thing", "id": 0, "source_info": SOURCE, **item}]})


def call(op: str, *args: Any) -> Spoil:
    return lambda b: b.primitives.append(primitive(op, *args))


def value(tree: Any) -> Spoil:
    return call("assign", field("h", "a"), tree)


def table(**change: Any) -> Spoil:
    return lambda b: b.ingress["tables"][0].update(change)


def parser(op: str, *args: Any) -> Spoil:
    return lambda b: b.states[0]["parser_ops"].append({"op": op, "parameters": list(args)})


def other(kind: str) -> Any:
    return {"type": kind, "value": "thing"}


def stacked(op: str, *args: Any) -> Spoil:
    """A stack `gs` of the header `g` alone, and a primitive that uses it."""

    def spoil(builder: ProgramBuilder) -> None:
        builder.data["header_stacks"] = [{"name": "gs", "id": 0, "header_type": "h_t", "size": 1, "header_ids": [1]}]
        builder.primitives.append(primitive(op, *args))

    return spoil


def variable(*fields: Any) -> Spoil:
    return lambda b: b.data["header_types"][0].update(fields=list(fields), max_length=8)


HEADER = {"type": "header", "value": "h"}
GS = {"type": "header_stack", "value": "gs"}
CHOSEN = expression("dereference_header_stack", GS, field("h", "a"))
BEYOND = expression("dereference_header_stack", GS, hexstr(1))
THING = {"name": "thing", "source_info": SOURCE}
IPV4_CHECKSUM = section("checksums", name="sum", type="ipv4", target=["h", "a"], source_info=None)
TELEPORT = primitive("teleport")
SHIFT = {"op": "shift", "parameters": [1]}


def stack_key() -> Any:
    return [{"match_type": "valid", "target": "h", "mask": None, "name": "h"}]


CASES: list[tuple[str, str, str, Spoil]] = [
    ("action profile", "thing", HERE, lambda b: b.ingress.update(action_profiles=[THING])),
    ("action profile", "table tbl_in of type indirect", HERE, table(type="indirect")),
    ("assert", "primitive assert", HERE, call("assert", hexstr(1))),
    ("assert", "primitive assume", HERE, call("assume", hexstr(1))),
    ("checksum type", "ipv4 of sum", NOWHERE, IPV4_CHECKSUM),
    ("division", "operator /", HERE, value(expression("/", field("h", "a"), field("h", "b")))),
    ("division", "operator %", HERE, value(expression("%", field("h", "a"), hexstr(0)))),
    ("division", "operator /", HERE, value(expression("/", field("scalars", "n"), hexstr(3)))),
    ("expression", "operator <=>", HERE, value(expression("<=>", field("h", "a"), field("h", "b")))),
    ("extern", "thing", HERE, section("extern_instances")),
    ("extern", "operand of type extern", HERE, value(other("extern"))),
    ("hash algorithm", "xxh64 of thing", HERE, section("calculations", algo="xxh64", input=[])),
    ("header stack", "an element of gs that is chosen at run time", HERE, stacked("assign_header", HEADER, CHOSEN)),
    ("header stack", "an element of gs that is chosen at run time", HERE, stacked("add_header", BEYOND)),
    ("header union", "thing", HERE, section("header_union_stacks")),
    (
        "header union",
        "operator dereference_union_stack",
        HERE,
        value(expression("dereference_union_stack", None, None)),
    ),
    ("header union", "extract to union_stack", NOWHERE, parser("extract", other("union_stack"))),
    ("match kind", "valid in table tbl_in", HERE, table(key=stack_key(), match_type="exact")),
    ("match kind", "fuzzy in table tbl_in", HERE, table(match_type="fuzzy")),
    ("meter", "thing with 3 rates", HERE, section("meter_arrays", type="packets", rate_count=3, size=4)),
    ("operand", "HexOperand in field list thing", HERE, section("field_lists", elements=[hexstr(1)])),
    ("operand", "operand of type surprise", HERE, value(other("surprise"))),
    ("parser operation", "shift in state start", NOWHERE, lambda b: b.states[0]["parser_ops"].append(SHIFT)),
    ("parser operation", "jump in state start", NOWHERE, parser("jump")),
    ("primitive", "teleport", HERE, call("teleport")),
    ("primitive", "teleport in the deparser", HERE, lambda b: b.data["deparsers"][0].update(primitives=[TELEPORT])),
    ("register reference", "operand of type register", HERE, value({"type": "register", "value": ["r", hexstr(1)]})),
    ("saturating field", "h.a", NOWHERE, lambda b: b.data["header_types"][0].update(fields=[["a", 8, False, True]])),
    ("validity write", "h.$valid$", HERE, call("assign", field("h", "$valid$"), hexstr(1))),
    ("validity write", "h.$valid$", NOWHERE, parser("set", field("h", "$valid$"), hexstr(1))),
    ("value set", "thing", HERE, section("parse_vsets")),
    (
        "value set",
        "transition of state start",
        NOWHERE,
        lambda b: b.states[0]["transitions"].insert(0, {"type": "parse_vset", "value": "x", "next_state": None}),
    ),
    ("varbit", "field of h", NOWHERE, variable(["a", "*"], ["b", "*"])),
    ("varbit", "field of scalars", NOWHERE, lambda b: b.data["header_types"][3].update(fields=[["m", "*"]])),
    ("varbit", "extract of h without a length", NOWHERE, variable(["a", "*"])),
    ("varbit", "extract with a length to something else than a header", NOWHERE, parser("extract_VL", GS, hexstr(8))),
]


@pytest.mark.parametrize(("construct", "what", "place", "spoil"), CASES, ids=[f"{c[0]}: {c[1]}" for c in CASES])
def test_refused_by_name_object_and_line(construct: str, what: str, place: str, spoil: Spoil) -> None:
    builder = build()
    spoil(builder)
    with pytest.raises(UnsupportedError) as caught:
        builder.load()
    assert str(caught.value) == f"unsupported {construct}: {what}{place}; not run: {UNSUPPORTED[construct]}"


def test_every_construct_of_the_list_is_refused_somewhere() -> None:
    assert {case[0] for case in CASES} == set(UNSUPPORTED)


def test_only_listed_constructs_can_be_refused() -> None:
    with pytest.raises(KeyError):
        unsupported_error("something else", "thing")


PACKAGE = Path(hopsum_switch.__file__).parent
CORE = [PACKAGE / "engine.py", PACKAGE / "errors.py"]
CORE += [path for folder in ("program", "interp", "state") for path in sorted((PACKAGE / folder).glob("*.py"))]

# Words of in-network aggregation; the package's own name is the one exception.
VOCABULARY = re.compile(
    r"hopsum(?!_switch)|gradient|worker|\bslot_|contribut|quorum|generation|aggregat", re.IGNORECASE
)


def test_the_core_has_no_word_of_aggregation() -> None:
    assert len(CORE) > 20
    for path in CORE:
        found = VOCABULARY.findall(path.read_text())
        assert not found, f"{path.name}: {found}"


def test_the_package_has_no_identifier_named_after_the_protocol() -> None:
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [getattr(node, attribute, None) for attribute in ("id", "attr", "name", "arg")]
            for name in filter(None, names):
                assert not re.search(r"hopsum(?!_switch|_base)", str(name)), f"{path.name}: {name}"


def test_importing_the_core_loads_nothing_foreign() -> None:
    script = (
        "import sys; before = set(sys.modules); import hopsum_switch.engine, hopsum_switch.program;"
        "new = {m.split('.')[0] for m in set(sys.modules) - before} - {*sys.stdlib_module_names, 'typing_extensions'};"
        "print(sorted(new)); print('socket' in sys.modules, 'threading' in sys.modules)"
    )
    environment = {"PYTHONPATH": f"{PACKAGE.parent}:{Path(msgspec.__file__).parents[1]}"}
    output = subprocess.run(
        [sys.executable, "-S", "-c", script], capture_output=True, text=True, check=True, env=environment, timeout=60
    ).stdout
    assert output.split("\n")[0] == "['hopsum_switch', 'msgspec']"
    assert output.split("\n")[1].split()[0] == "False"


def test_the_json_of_older_compilers_runs_as_on_bmv2() -> None:
    """Transitions without a type, `drop` without an argument and `modify_field`, as p4c wrote them before 2.23."""
    builder = build()
    builder.data["__meta__"] = {"version": [2, 18]}
    builder.states[0] |= {
        "transition_key": [field("h", "a")],
        "transitions": [
            {"value": "0x07", "mask": None, "next_state": "again"},
            {"value": "default", "mask": None, "next_state": None},
        ],
    }
    again = builder.state("again", "g")
    del again["transitions"][0]["type"]
    builder.states.append(again)
    builder.primitives += [
        primitive("modify_field", field("standard_metadata", "egress_spec"), hexstr(1)),
        primitive("_jump_if_zero", field("h", "b"), hexstr(3)),
        {"op": "drop", "parameters": []},
    ]
    engine = Engine(builder.load())
    assert engine.process(5, b"\x07\x00\x08\x09") == [Output(1, b"\x07\x00\x08\x09")]
    assert engine.process(5, b"\x06\x01\x08\x09") == []


@pytest.mark.parametrize(
    ("version", "words"), [([2, 18], "format 2.18, current ones write 2.23"), (None, "no version"), ([2, 23], "")]
)
def test_a_refusal_of_an_old_file_says_how_old_it_is(version: list[int] | None, words: str) -> None:
    builder = build()
    builder.data["__meta__"] = {"version": version}
    if version is None:
        del builder.data["__meta__"]
    builder.primitives.append(primitive("add_to_field", field("h", "a"), hexstr(1)))
    with pytest.raises(UnsupportedError, match="unsupported primitive: add_to_field") as caught:
        builder.load()
    assert words in str(caught.value)
    assert ("compile the P4 source again" in str(caught.value)) == bool(words)
