# SPDX-License-Identifier: Apache-2.0
"""Pages have one sentence a line, and no sentence that is a paragraph."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
LONGEST = 400
"""Characters of a line that is neither table nor code."""


def _tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("one_sentence_a_line", ROOT / "tools" / "one_sentence_a_line.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TOOL = _tool()
PAGES = TOOL.pages()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_has_one_sentence_a_line(page: Path) -> None:
    """Else `python tools/one_sentence_a_line.py` makes it so."""
    text = page.read_text(encoding="utf-8")
    made = TOOL.reflow(text).splitlines()
    differ = [
        number for number, (line, wanted) in enumerate(zip(text.splitlines(), made, strict=False), 1) if line != wanted
    ]
    assert not differ, f"line {differ[0]}: run python tools/one_sentence_a_line.py"
    assert len(text.splitlines()) == len(made)
    written, _, rest = text.partition(TOOL.GENERATED_SECTION)
    fenced = False
    for line in [*written.splitlines(), *rest.partition("\n## ")[2].splitlines()]:
        fenced ^= line.lstrip().startswith("```")
        assert fenced or "|" in line[:4] or len(line) <= LONGEST, f"{len(line)} characters: {line[:80]} ..."


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("One is here. Two\nis there! Is three? Yes.\n", "One is here.\nTwo is there!\nIs three?\nYes.\n"),
        ("It is `a. b` (see [x. y](z.md)). hopsum adds.\n", "It is `a. b` (see [x.\ny](z.md)).\nhopsum adds.\n"),
        ("After Li et al. 2023, e.g. this ... and that.\n", "After Li et al. 2023, e.g. this ... and that.\n"),
        ("- One. Two\n  wrapped.\n  1. Inner. More.\n", "- One.\n  Two wrapped.\n  1. Inner.\n     More.\n"),
        ("word\n: Meaning. More\n  of it.\n", "word\n: Meaning.\n  More of it.\n"),
        ("**Is it so?** Yes.\n", "**Is it so?**\nYes.\n"),
        ("It ends. 2) is no list.\n", "It ends. 2) is no list.\n"),
        ("# A head. Line\n\n| a. b | c. d |\n|---|---|\n", "# A head. Line\n\n| a. b | c. d |\n|---|---|\n"),
        ("```sh\na. b\nc. d\n```\n\n    indented. code\n", "```sh\na. b\nc. d\n```\n\n    indented. code\n"),
        (
            "<!-- generated: x -->\nOne. Two.\n<!-- end -->\nOne. Two.\n",
            "<!-- generated: x -->\nOne. Two.\n<!-- end -->\nOne.\nTwo.\n",
        ),
        ("> Quoted. More\n> of it.\n", "> Quoted.\n> More of it.\n"),
    ],
)
def test_what_a_sentence_is(text: str, made: str) -> None:
    assert TOOL.reflow(text) == made
    assert TOOL.reflow(made) == made
