# SPDX-License-Identifier: Apache-2.0
"""Ids of protocol rules in code, P4 and pages resolve to headings of docs/protocol.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "protocol.md").read_text()
ID = r"[NSTWRPOE][1-9]"
CITED = re.compile(rf"(?:\(|\brules? ){ID}(?:(?:, | and | to ){ID})*\b(?=\)|[ ,.;:]|$)", re.MULTILINE)
FOLDERS = {
    ".py": ("wire", "host", "switch", "controlplane", "topologies", "evaluation", "cli", "ptf_tests", "tests"),
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
