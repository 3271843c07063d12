# SPDX-License-Identifier: Apache-2.0
"""p4/README.md says what the compiled program has: tables with keys, actions and sizes, registers, counters."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format

from hopsum_wire.p4runtime import p4info_pb2

P4 = Path(__file__).resolve().parents[2] / "p4"
LISTED_PARAMETERS = 6
"""Longer parameter lists are shortened to their first and last two."""


@pytest.fixture(scope="module")
def p4info() -> Any:
    return text_format.Parse((P4 / "build" / "hopsum.p4info.txtpb").read_text(), p4info_pb2.P4Info())


def section(title: str) -> list[list[str]]:
    """The cells of the table under a heading, without its head."""
    text = (P4 / "README.md").read_text().split(f"\n## {title}\n")[1].split("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"\s*\|\s*", "|".join(row))] for row in rows[2:]]


def call(action: Any) -> str:
    names = [param.name for param in action.params]
    if len(names) > LISTED_PARAMETERS:
        names = [*names[:2], "...", *names[-2:]]
    return f"`{action.preamble.alias.rpartition('.')[2]}({', '.join(names)})`"


def test_tables(p4info: Any) -> None:
    actions = {action.preamble.id: action for action in p4info.actions}
    program = json.loads((P4 / "build" / "hopsum.json").read_text())
    tables = [table for pipeline in program["pipelines"] for table in pipeline["tables"]]
    entries = {table["name"]: len(table.get("entries", ())) for table in tables}
    declared = {}
    for table in p4info.tables:
        refs = [ref for ref in table.action_refs if ref.scope != p4info_pb2.ActionRef.DEFAULT_ONLY]
        calls = [call(actions[ref.id]) for ref in refs if actions[ref.id].preamble.name != "NoAction"]
        written = "constant entries, above" if table.is_const_table else ", ".join(calls)
        keys = ", ".join(field.name for field in table.match_fields)
        size = entries[table.preamble.name] or table.size
        declared[f"`{table.preamble.alias}`"] = [keys, written, str(size)]
    assert {name: [keys, action, size] for name, _, keys, action, size in section("Tables")} == declared


def test_registers_and_their_budget() -> None:
    program = json.loads((P4 / "build" / "hopsum.json").read_text())
    arrays = {register["name"]: register for register in program["register_arrays"]}
    listed = {
        f"HopsumIngress.{name.strip('`')}": (int(bits), int(size)) for name, bits, size, _ in section("Registers")
    }
    assert listed == {
        name: (array["bitwidth"], array["bitwidth"] * array["size"] // 8) for name, array in arrays.items()
    }
    text = (P4 / "README.md").read_text()
    total = sum(size for _, size in listed.values())
    assert f"{sum(bits for bits, _ in listed.values()) // 8} bytes per copy, {total} bytes in all." in text


def test_counters(p4info: Any) -> None:
    listed = {name.strip("`"): int(cells) for name, cells, _ in section("Counters")}
    assert listed == {counter.preamble.alias: counter.size for counter in p4info.counters}
    total = sum(listed.values())
    assert f"{total} cells of packets; with the 8 bytes that a cell takes at least, {8 * total} bytes" in " ".join(
        (P4 / "README.md").read_text().split()
    )


def test_the_truth_table_is_the_programs() -> None:
    """Column by column against the entries in slot.p4."""
    classes = {"CLASS_NEW": "new", "CLASS_SAME": "same", "CLASS_OLD": "old"}
    bits = {"_": "", "0": "no", "1": "yes"}
    entry = re.compile(r"\((CLASS_\w+),\s*(.),\s*(.),\s*(.),\s*(.)\)\s*:\s*(\w+)\(\);")
    found = entry.findall((P4 / "v1model" / "slot.p4").read_text())
    expected = [[classes[kind], *(bits[bit] for bit in cells), f"`{action}`"] for kind, *cells, action in found]
    assert [row[:6] for row in section("The decision table")] == expected
    assert len(expected) == 8
