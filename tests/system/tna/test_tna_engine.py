# SPDX-License-Identifier: Apache-2.0
"""The executor of the Tofino program: its arithmetic and tables, its dumps, and the data-plane cases on it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest
from tests.system.tna.bed import program

import compile_tna
import dump_tna
import hopsum_tna
from hopsum_ptf.case_runner import list_cases
from hopsum_ptf.tna_skips import SKIPS
from hopsum_tna.dump import Node, TnaError, UnsupportedNodeError
from hopsum_tna.externs import internet_checksum
from hopsum_tna.record_layout import PIPE, Number, Record, Types, Wire
from hopsum_tna.tna_expressions import NameScope, Value
from hopsum_tna.tna_switch import SentFrame, Switch, TnaControl
from hopsum_tna.tna_tables import BoundAction, Key, TnaTable
from hopsum_topologies.ptf.case_results import read_results

from ...support.cases_table import CASES_ON
from ..ptf.test_ptf import OF_LOOKUP_ADD16

NAMES = {"a": ("a", Number(8)), "b": ("b", Number(8)), "s": ("s", Number(8, True)), "t": ("t", Number(8, True))}


def _no_call(_: NameScope, node: Node) -> Value:
    raise UnsupportedNodeError("a call", node)


def _path(name: str) -> Node:
    return {"node": "PathExpression", "path": name}


def _value(node: Node, **fields: int) -> Any:
    return NameScope(Types({"objects": []}), NAMES, _no_call).value(node).read(dict(fields))


@pytest.mark.parametrize(
    ("name", "left", "right", "expected"),
    [
        ("Add", 200, 100, 44),
        ("Sub", 1, 2, 255),
        ("Mul", 16, 17, 16),
        ("AddSat", 200, 100, 255),
        ("SubSat", 1, 2, 0),
        ("BXor", 0xF0, 0xFF, 0x0F),
        ("Shl", 0x81, 1, 0x02),
        ("Shr", 0x81, 1, 0x40),
        ("Concat", 0x12, 0x34, 0x1234),
        ("Lss", 1, 255, True),
        ("Neq", 1, 1, False),
    ],
)
def test_unsigned(name: str, left: int, right: int, expected: int) -> None:
    assert _value({"node": name, "left": _path("a"), "right": _path("b")}, a=left, b=right) == expected


@pytest.mark.parametrize(
    ("name", "left", "right", "expected"),
    [
        ("Add", 127, 1, -128),
        ("Sub", -128, 1, 127),
        ("AddSat", 127, 1, 127),
        ("SubSat", -128, 1, -128),
        ("Shr", -128, 1, -64),
        ("Lss", -1, 0, True),
        ("Geq", -64, 0, False),
    ],
)
def test_signed(name: str, left: int, right: int, expected: int) -> None:
    assert _value({"node": name, "left": _path("s"), "right": _path("t")}, s=left, t=right) == expected


def test_casts_slices_and_choices() -> None:
    assert _value({"node": "Cast", "destType": "bit<8>", "expr": _path("s")}, s=-64) == 0xC0
    assert _value({"node": "Cast", "destType": "int<8>", "expr": _path("a")}, a=0xC0) == -64
    assert _value({"node": "Cast", "destType": "bit<4>", "expr": _path("a")}, a=0xAB) == 0xB
    ends = {"e1": {"node": "Constant", "value": 7}, "e2": {"node": "Constant", "value": 4}}
    assert _value({"node": "Slice", "e0": _path("a"), **ends}, a=0xAB) == 0xA
    test = {"node": "Grt", "left": _path("a"), "right": _path("b")}
    choice = {"node": "Mux", "e0": test, "e1": _path("a"), "e2": {"node": "Constant", "type": "infint", "value": 260}}
    assert _value(choice, a=2, b=1) == 2
    assert _value(choice, a=1, b=2) == 4


def test_what_is_unknown_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedNodeError, match="StructIndex"):
        _value({"node": "StructIndex"})
    with pytest.raises(UnsupportedNodeError, match="varbit_t"):
        Types({"objects": []}).find("varbit_t")


def test_a_header_on_the_wire() -> None:
    kind = Record("h", (("high", Number(4)), ("mid", Number(9)), ("low", Number(3, True))), header=True)
    wire, fields = Wire("hdr.h", kind), {}
    wire.read(fields, b"\xab\xcd")
    assert fields == {"hdr.h.high": 0xA, "hdr.h.mid": 0b101111001, "hdr.h.low": -3, "hdr.h.$valid": True}
    assert wire.write(fields) == b"\xab\xcd"
    assert wire.write({**fields, "hdr.h.$valid": False}) == b""


def test_the_checksum_of_rfc_1071() -> None:
    assert internet_checksum(bytes.fromhex("0001f203f4f5f6f7")) == 0x220D
    assert internet_checksum(bytes.fromhex("0001f203f4f5f6f7220d")) == 0


def _table(*matches: str, size: int = 4) -> TnaTable:
    keys = [Key(f"k{n}", Value(lambda f, n=n: f[n], Number(8)), match) for n, match in enumerate(matches)]
    return TnaTable("t", tuple(keys), {"x": "x"}, BoundAction("miss"), size)


def _look(table: TnaTable, *key: int) -> tuple[bool, str]:
    hit, bound = table.look_up(dict(enumerate(key)))
    return hit, bound.action


def test_exact_entries() -> None:
    table = _table("exact", "exact", size=1)
    table.set_entry([(1, 255), (2, 255)], 0, BoundAction("hit"))
    assert (_look(table, 1, 2), _look(table, 1, 3)) == ((True, "hit"), (False, "miss"))
    with pytest.raises(TnaError, match="full"):
        table.set_entry([(1, 255), (3, 255)], 0, BoundAction("more"))
    table.set_entry([(1, 255), (2, 255)], 0, None)
    assert _look(table, 1, 2) == (False, "miss")


def test_the_larger_priority_wins() -> None:
    table = _table("ternary")
    table.set_entry([(0, 0)], 1, BoundAction("any"))
    table.set_entry([(0x10, 0xF0)], 5, BoundAction("teens"))
    table.set_entry([(0x12, 0xFF)], 3, BoundAction("eighteen"))
    assert [_look(table, key)[1] for key in (0x12, 0x1F, 0x20)] == ["teens", "teens", "any"]


def test_of_the_programs_entries_the_first_wins() -> None:
    table = _table("ternary")
    for rank, (match, action) in enumerate([((0x12, 0xFF), "one"), ((0x10, 0xF0), "ten"), ((0, 0), "any")]):
        table.add_constant_entry([match], -rank, BoundAction(action))
    assert [_look(table, key)[1] for key in (0x12, 0x1F, 0x20)] == ["one", "ten", "any"]


# ---- on the small program -------------------------------------------------------------------------------------


def test_plain_frames_go_to_their_port() -> None:
    switch = Switch(program("small"))
    control = TnaControl(switch)
    frame = bytes.fromhex("020000000001 020000000002 88b5") + bytes(range(50))
    assert switch.process(3, frame) == []
    assert control.counter("drops") == {17: 1}
    control.write("l2", {"dst": 0x020000000001}, "forward", {"port": 5})
    assert switch.process(3, frame) == [SentFrame(5, frame)]


def test_names_numbers_and_parameters_are_checked() -> None:
    control = TnaControl(Switch(program("small")))
    for match, action, params, message in [
        ({"dst": 1 << 48}, "forward", {"port": 5}, "does not fit 48 bits"),
        ({"src": 1}, "forward", {"port": 5}, "src names nothing"),
        ({}, "forward", {"port": 5}, "no value for its exact key"),
        ({"dst": 1}, "forward", {"port": 512}, "does not fit 9 bits"),
        ({"dst": 1}, "forward", {}, "takes"),
        ({"dst": 1}, "nowhere", {}, "nowhere names nothing"),
    ]:
        with pytest.raises(TnaError, match=message):
            control.write("l2", match, action, params)
    with pytest.raises(TnaError, match="own entries"):
        control.write("slot.finish_result", {}, "too_late")


def test_a_register_is_touched_once_by_a_packet() -> None:
    switch = Switch(program("small"))
    register = next(iter(switch.state.registers.values()))
    fields: dict[str, Any] = {PIPE: 0}
    register.touch(0, fields)
    with pytest.raises(TnaError, match="touched twice"):
        register.touch(1, fields)
    with pytest.raises(TnaError, match="none of index"):
        register.touch(register.size, {PIPE: 0})


def test_a_program_with_more_is_refused_when_it_is_loaded() -> None:
    whole = json.dumps(program("small"))
    for known, other, message in [
        ('"path": "ternary"', '"path": "range"', "matches by range"),
        ('"baseType": "Counter"', '"baseType": "Meter"', "the extern Meter"),
        ('"member": "setInvalid"', '"member": "push_front"', "push_front"),
        ('"node": "Slice"', '"node": "PlusSlice"', "PlusSlice"),
    ]:
        assert known in whole
        with pytest.raises(UnsupportedNodeError, match=message):
            Switch(json.loads(whole.replace(known, other)))


RUN = Path(__file__).resolve().parents[3] / "ptf_tests" / "run"


def test_every_case_passes_or_is_about_something_that_the_program_does_not_have(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    command = [sys.executable, str(RUN), "--target", "tna", "--logs", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    results = read_results(tmp_path / "results", list_cases())
    record_property(f"{CASES_ON}tna", [astuple(each) for each in results])
    lines = [line.split() for line in done.stdout.splitlines()]
    start = lines.index(["case", "tna"])
    table = {line[0]: line[1] for line in lines[start + 1 :] if len(line) == 2}
    skipped = dict.fromkeys([*SKIPS, *OF_LOOKUP_ADD16], "skipped")
    assert table == {**dict.fromkeys(list_cases(), "ok"), **skipped}, done.stdout + done.stderr
    assert done.returncode == 0


def test_only_cases_are_skipped() -> None:
    assert set(SKIPS) <= set(list_cases())


def test_dumps_are_of_these_sources() -> None:
    said = json.loads(dump_tna.MANIFEST.read_text())
    assert said == dump_tna.manifest(said["version"]), "p4/tna, p4/shared or a dump changed: run make p4-tna-dump"


def test_the_front_end_makes_the_same_again(tmp_path: Path) -> None:
    """The small program only; make p4-tna-dump writes all."""
    version = compile_tna.compiler_version()
    if version != json.loads(dump_tna.MANIFEST.read_text())["version"]:
        pytest.skip(f"p4c-barefoot here: {version}")
    try:
        compile_tna.include_folder()
    except compile_tna.CompileError as error:
        pytest.skip(str(error))
    made = dump_tna.dump("small", tmp_path)
    assert made.read_bytes() == (dump_tna.BUILD / made.name).read_bytes(), "run make p4-tna-dump"


def test_the_executor_imports_nothing_of_the_protocol() -> None:
    for path in Path(hopsum_tna.__file__).parent.glob("*.py"):
        imported = re.findall(r"^\s*(?:from|import) (\w+)", path.read_text(), re.MULTILINE)
        assert [name for name in imported if name.startswith("hopsum") and name != "hopsum_tna"] == [], path
