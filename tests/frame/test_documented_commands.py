# SPDX-License-Identifier: Apache-2.0
"""Commands, options, test modules, ids of protocol rules and tables on pages are those of the repository."""

from __future__ import annotations

import argparse
import json
import re
import shlex
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format

from hopsum_base.p4runtime import p4info_pb2
from hopsum_cli.main import COMMANDS, GROUPS
from hopsum_controlplane.web.prometheus_metrics import CONDITION_REASONS

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    path
    for path in (
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "labs" / "README.md",
        *(ROOT / "docs").rglob("*.md"),
    )
    if "_build" not in path.parts and path.name != "cli.md" and "adr" not in path.parts
]


@cache
def parser(name: str) -> argparse.ArgumentParser:
    built: argparse.ArgumentParser = import_module(COMMANDS[name].module).build_parser()
    return built


def command_of(words: list[str]) -> str | None:
    """Return the command that the words after `hopsum` begin with: two words before one."""
    names = [" ".join(words[:2]), words[0] if words else ""]
    return next((name for name in names if name in COMMANDS), None)


def in_blocks(page: str) -> Iterator[list[str]]:
    """Yield the words after `hopsum` of each command in a shell block."""
    for block in re.findall(r"^```sh\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] == ["hopsum"]:
                kept = words[1 : words.index("--")] if "--" in words else words[1:]  # a command for workers follows
                yield [word for word in kept if word not in ("2>>", "controller.log")]


def in_text(page: str) -> Iterator[list[str]]:
    """Yield the words after `hopsum` of each command in code within a sentence."""
    prose = re.sub(r"^```.*?^```", "", page, flags=re.MULTILINE | re.DOTALL)
    for code in re.findall(r"`hopsum ([^`]+)`", prose):
        yield code.split()


def options_of(name: str) -> set[str]:
    found: set[str] = set()
    parsers = [parser(name)]
    while parsers:
        for action in parsers.pop()._actions:
            found.update(action.option_strings)
            if isinstance(action, argparse._SubParsersAction):
                parsers += action.choices.values()
    return found


def test_commands_in_blocks_are_taken_by_their_parsers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Files that commands name are there: parsers look for some."""
    monkeypatch.chdir(tmp_path)
    seen = 0
    for path in PAGES:
        for words in in_blocks(path.read_text(encoding="utf-8")):
            name = command_of(words)
            assert name is not None, f"{path}: hopsum {' '.join(words)}"
            if "int16" in words:  # the codec of `examples`: tests/host/codec/test_third_party.py installs it
                continue
            for word in words:
                if re.fullmatch(r"[\w./-]+\.(json|txtpb|toml|token)", word):
                    Path(word).parent.mkdir(parents=True, exist_ok=True)
                    Path(word).touch()
            try:
                parser(name).parse_args(words[len(name.split()) :])
            except SystemExit:
                pytest.fail(f"{path}: hopsum {' '.join(words)}: {capsys.readouterr().err}")
            seen += 1
    assert seen > 25


def test_options_in_running_text_exist() -> None:
    wrong, seen = [], 0
    for path in PAGES:
        for words in in_text(path.read_text(encoding="utf-8")):
            name = command_of(words)
            if name is None:  # a group, or a name of something else
                assert words[0] in GROUPS or words[0] in ("COMMAND", "--help"), f"{path}: hopsum {' '.join(words)}"
                continue
            text = " ".join(words).partition(" -- ")[0]
            options = re.findall(r"(?<![\w-])--[a-z][\w-]*", text)
            wrong += [f"{path.name}: hopsum {text}: {each}" for each in options if each not in options_of(name)]
            seen += len(options)
    assert wrong == []
    assert seen > 10


def test_test_modules_on_pages_exist() -> None:
    """Modules of tests are folded and renamed more often than pages are read."""
    named = [(path, name) for path in PAGES for name in re.findall(r"\btests/[\w/]+\.py\b", path.read_text())]
    assert [(path.name, name) for path, name in named if not (ROOT / name).is_file()] == []
    assert len(named) > 5


PAGE = (ROOT / "docs" / "protocol.md").read_text()
ID = r"[NSTWRPOEM][1-9]"
CITED = re.compile(rf"(?:\(|\brules? ){ID}(?:(?:, | and | to ){ID})*\b(?=\)|[ ,.;:]|$)", re.MULTILINE)
FOLDERS = {
    ".py": ("base", "wire", "host", "switch", "controlplane", "topologies", "evaluation", "cli", "ptf_tests", "tests"),
    ".p4": ("p4",),
    ".md": ("p4", "docs"),
}


def headings() -> list[str]:
    return re.findall(rf"^### ({ID})$", PAGE, re.MULTILINE)


def cited(text: str) -> set[str]:
    """Return the ids that a text cites, those of a range like `E2 to E4` among them."""
    ids: set[str] = set()
    for match in CITED.findall(text):
        for first, last in re.findall(rf"({ID}) to ({ID})", match):
            ids |= {f"{first[0]}{number}" for number in range(int(first[1]), int(last[1]) + 1)}
        ids |= set(re.findall(ID, match))
    return ids


def test_every_cited_rule_has_a_heading() -> None:
    places: dict[str, set[str]] = {}
    for suffix, folders in FOLDERS.items():
        for path in (path for folder in folders for path in sorted((ROOT / folder).rglob(f"*{suffix}"))):
            if path != Path(__file__):
                for name in cited(path.read_text(encoding="utf-8")):
                    places.setdefault(name, set()).add(str(path.relative_to(ROOT)))
    assert len(places) > 25
    assert {name: files for name, files in places.items() if name not in headings()} == {}


def test_every_rule_has_one_heading_and_is_in_the_index() -> None:
    found = headings()
    assert len(found) == len(set(found)) > 35
    assert set(re.findall(rf"\[({ID})\]\(#", PAGE.partition("## State")[0])) == set(found)
    assert all(name.lower() == anchor for name, anchor in re.findall(rf"\[({ID})\]\(#(\w+)\)", PAGE))


def test_the_model_has_no_rule_that_the_page_lacks() -> None:
    rules = pytest.importorskip("tests.system.model.rules")
    assert {rule.letter for rule in rules.RULES.values()} <= set(headings())


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


def test_registers_and_counters_and_their_budgets(p4info: Any) -> None:
    program = json.loads((P4 / "build" / "hopsum.json").read_text())
    arrays = {
        each["name"]: (each["bitwidth"], each["bitwidth"] * each["size"] // 8) for each in program["register_arrays"]
    }
    rows = section("Registers")
    assert {f"HopsumIngress.{name.strip('`')}": (int(bits), int(size)) for name, bits, size, _ in rows} == arrays
    text = " ".join((P4 / "README.md").read_text().split())
    bits, size = (sum(column) for column in zip(*arrays.values(), strict=True))
    assert f"{bits // 8} bytes per copy, {size} bytes in all." in text
    listed = {name.strip("`"): int(cells) for name, cells, _ in section("Counters")}
    assert listed == {counter.preamble.alias: counter.size for counter in p4info.counters}
    cells = sum(listed.values())
    assert f"{cells} cells of packets; with the 8 bytes that a cell takes at least, {8 * cells} bytes" in text


def test_the_truth_table_is_the_programs() -> None:
    """Column by column against the entries in slot.p4."""
    classes = {"CLASS_NEW": "new", "CLASS_SAME": "same", "CLASS_OLD": "old"}
    bits = {"_": "", "0": "no", "1": "yes"}
    entry = re.compile(r"\((CLASS_\w+),\s*(.),\s*(.),\s*(.),\s*(.)\)\s*:\s*(\w+)\(\);")
    found = entry.findall((P4 / "v1model" / "slot.p4").read_text())
    expected = [[classes[kind], *(bits[bit] for bit in cells), f"`{action}`"] for kind, *cells, action in found]
    assert [row[:6] for row in section("The decision table")] == expected
    assert len(expected) == 8


def test_every_exception_has_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs")
    reference_parts = import_module("reference_parts")
    remedies, internal = reference_parts.remedies()
    assert reference_parts.exceptions().keys() == set(remedies) | set(internal), "docs/reference/error_remedies.toml"
    assert set(remedies).isdisjoint(internal)


def test_every_reason_of_a_condition_is_in_the_reference() -> None:
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    assert set(CONDITION_REASONS) <= set(re.findall(r"^\| `(\w+)` \| [a-z]", page, re.MULTILINE))
