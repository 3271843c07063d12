# SPDX-License-Identifier: Apache-2.0
"""Unsupported constructs are refused by name and line, and the core knows nothing of the programs that it runs."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import hopsum_switch
from hopsum_switch.errors import UnsupportedError
from hopsum_switch.program.unsupported import UNSUPPORTED, refuse

from .builder import SOURCE, ProgramBuilder, assign, build, expression, field, hexstr, primitive

Spoil = Callable[[ProgramBuilder], Any]
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
    (
        "action profile",
        "thing",
        HERE,
        lambda b: b.ingress.update(action_profiles=[THING]),
    ),
    ("action profile", "table tbl_in of type indirect", HERE, table(type="indirect")),
    ("assert", "primitive assert", HERE, call("assert", hexstr(1))),
    ("assert", "primitive assume", HERE, call("assume", hexstr(1))),
    (
        "checksum type",
        "ipv4 of sum",
        NOWHERE,
        IPV4_CHECKSUM,
    ),
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
    (
        "parser operation",
        "shift in state start",
        NOWHERE,
        lambda b: b.states[0]["parser_ops"].append(SHIFT),
    ),
    ("parser operation", "jump in state start", NOWHERE, parser("jump")),
    ("primitive", "teleport", HERE, call("teleport")),
    (
        "primitive",
        "teleport in the deparser",
        HERE,
        lambda b: b.data["deparsers"][0].update(primitives=[TELEPORT]),
    ),
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
        refuse("something else", "thing")


def test_the_program_itself_loads() -> None:
    builder = build()
    builder.primitives.append(assign(field("h", "a"), hexstr(1)))
    builder.load()


PACKAGE = Path(hopsum_switch.__file__).parent
CORE = [PACKAGE / "engine.py", PACKAGE / "errors.py"]
CORE += [path for folder in ("program", "interp", "state") for path in sorted((PACKAGE / folder).glob("*.py"))]

# Words of in-network aggregation; the package's own name is the one exception.
VOCABULARY = re.compile(
    r"hopsum(?!_switch)|gradient|worker|\bslot_|contribut|quorum|generation|aggregat", re.IGNORECASE
)


def test_there_is_a_core_to_look_at() -> None:
    assert len(CORE) > 20


def test_the_core_has_no_word_of_aggregation() -> None:
    for path in CORE:
        found = VOCABULARY.findall(path.read_text())
        assert not found, f"{path.name}: {found}"


def test_the_package_has_no_identifier_named_after_the_protocol() -> None:
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [getattr(node, attribute, None) for attribute in ("id", "attr", "name", "arg")]
            for name in names:
                assert not (isinstance(name, str) and re.search(r"hopsum(?!_switch)", name)), f"{path.name}: {name}"


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
