# SPDX-License-Identifier: Apache-2.0
"""The reference is readable in the repository: its parts are what the code says now, and nothing is left to a build."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from hopsum_cli.main import COMMANDS
from hopsum_controlplane.metrics.collect import CONDITION_REASONS

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / "tools"
DOCS = ROOT / "docs"

if str(TOOLS) not in sys.path:
    sys.path.insert(0, str(TOOLS))

import generate_reference  # noqa: E402
from reference_docstrings import UnknownNameError, find, render, to_markdown  # noqa: E402
from reference_errors import INTERNAL, REMEDIES, exceptions  # noqa: E402

DOCSTRING = """\
First line, of *args and <b>.

A block::

  one    1

After it.

Args:
    rank: number of it,
        in two lines.
Raises:
    KeyError: none.
"""


def test_the_parts_are_fresh(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Else: `make generate`. Neither the width of a terminal nor the user's folder is in the pages."""
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    assert generate_reference.main(["--check"]) == 0, capsys.readouterr().out


def test_check_shows_a_stale_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A page\n\n<!-- generated: settings -->\n| `seed` |\n<!-- end -->\n\nThe end.\n")
    monkeypatch.setattr(generate_reference, "DOCS", tmp_path)
    assert generate_reference.main(["--check"]) == 1
    assert "-| `seed` |" in capsys.readouterr().out
    assert generate_reference.main([]) == 0
    assert page.read_text().startswith("# A page\n\n<!-- generated: settings -->\n\n| setting |")
    assert page.read_text().endswith("|\n\n<!-- end -->\n\nThe end.\n")
    assert generate_reference.main(["--check"]) == 0


def test_no_page_needs_a_build_to_be_read() -> None:
    pages = {path: path.read_text() for path in DOCS.rglob("*.md") if "_build" not in path.parts}
    assert len(pages) > 30
    assert [path for path, text in pages.items() if re.search(r"```\{(eval-rst|literalinclude)|^\.\. auto", text)] == []


def test_every_command_is_in_the_reference() -> None:
    titles = re.findall(r"^### hopsum (.+)$", (DOCS / "reference" / "cli.md").read_text(), re.MULTILINE)
    assert set(COMMANDS) <= set(titles)
    assert len(titles) == len(set(titles))


def test_every_reason_of_a_condition_is_in_the_reference() -> None:
    rows = re.findall(r"^\| `(\w+)` \| [a-z]", (DOCS / "reference" / "metrics.md").read_text(), re.MULTILINE)
    assert set(CONDITION_REASONS) <= set(rows)


def test_every_exception_has_a_remedy() -> None:
    assert exceptions() == set(REMEDIES) | set(INTERNAL)
    assert set(REMEDIES).isdisjoint(INTERNAL)
    page = (DOCS / "reference" / "errors.md").read_text()
    assert all(f"| `{name.rpartition('.')[2]}`<br>{name.rpartition('.')[0]} |" in page for name in REMEDIES)


def test_a_quote_ends_where_it_says() -> None:
    lines = list(generate_reference.quote("examples/int16_codec.py", "python", "class Int16"))
    assert lines[:3] == ["", "```python", next(line for line in lines if line.startswith("class Int16"))]
    after = list(
        generate_reference.quote("tools/error_remedies.toml", "text", "after:[remedies]", "before:MembershipError")
    )
    assert [line[:24] for line in after] == [
        "",
        "```text",
        '"hopsum_wire.errors.Hops',
        '"hopsum_wire.errors.Wire',
        "```",
        "",
    ]


def test_docstrings_become_markdown() -> None:
    assert list(to_markdown(DOCSTRING.strip())) == [
        *("First line, of \\*args and &lt;b>.", "", "A block:", "", "```text", "one    1", "```", "", "After it.", ""),
        *("Arguments:", "", "- `rank`: number of it,", "  in two lines.", "Raises:", "", "- `KeyError`: none."),
    ]


def test_a_name_is_followed_through_imports() -> None:
    assert next(iter(render("hopsum.disconnect", None))) == "```text"
    assert list(render("hopsum.disconnect", None))[1] == "hopsum.disconnect(url: str | None = None) -> None"
    with pytest.raises(UnknownNameError, match="hopsum has no 'sum_up'"):
        find("hopsum.sum_up")


def test_the_glossary_is_in_order() -> None:
    page = (DOCS / "reference" / "glossary.md").read_text()
    terms = re.findall(r"^(\S.*)\n: ", page, re.MULTILINE)
    assert len(terms) > 40
    assert terms == sorted(set(terms), key=str.lower)
