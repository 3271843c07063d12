# SPDX-License-Identifier: Apache-2.0
"""Rules about the tree itself."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("wire", "host", "switch", "controlplane", "topologies", "evaluation", "cli")
SOURCES = [
    path
    for folder in (*PACKAGES, "ptf_tests", "tests", "tools", "p4")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in {".py", ".p4"} and "__pycache__" not in path.parts
]


def test_p4_holds_no_python() -> None:
    """A package `p4` of ours would shadow the P4Runtime bindings."""
    assert list((ROOT / "p4").rglob("*.py")) == []


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_source_carries_the_licence_and_stays_readable(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert any("SPDX-License-Identifier: Apache-2.0" in line for line in lines[:3]), "no SPDX line"
    assert len(lines) <= 800 or path.name == "_layout.py", f"{len(lines)} lines: split it"


def test_importing_hopsum_needs_numpy_only() -> None:
    code = (
        "import hopsum, hopsum_wire, hopsum_wire.membership, hopsum.protocol, hopsum.transport, hopsum.codec, sys;"
        "import hopsum.agent;"
        "bad = [m for m in ('scapy', 'grpc', 'google.protobuf', 'p4', 'torch', 'numba', 'rich') if m in sys.modules];"
        "sys.exit(', '.join(bad) or None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_changelog_has_the_form_of_keep_a_changelog() -> None:
    """Sections by kind below Unreleased and below every version, the newest first; the package's version is named."""
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None
    text = (ROOT / "CHANGELOG.md").read_text()
    assert version[1] in text
    first, *released = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert first == "Unreleased"
    assert all(re.fullmatch(r"\d+\.\d+\.\d+ - \d{4}-\d\d-\d\d", heading) for heading in released)
    kinds = ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")
    for part in re.split(r"^## .+\n", text, flags=re.MULTILINE)[1:]:
        headings = re.findall(r"^### (.+)$", part, re.MULTILINE)
        assert headings
        assert set(headings) <= set(kinds)
        assert len(headings) == len(set(headings))
        assert not re.search(r"^- ", part.partition("### ")[0], re.MULTILINE), "a line belongs to a section"


def test_readme_ends_in_non_goals() -> None:
    headings = re.findall(r"^## (.+)$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert headings[-1] == "Non-goals"


def test_every_record_of_a_decision_has_status_date_and_consequences() -> None:
    folder = ROOT / "docs" / "adr"
    records = sorted(folder.glob("0*.md"))
    assert len(records) > 35
    for record in records:
        text = record.read_text(encoding="utf-8")
        title, status = text.split("\n\n")[:2]
        assert re.fullmatch(rf"# {int(record.name[:4])}\. .+", title), record
        form = r"\*\*Status\.\*\* (Accepted|Rejected|Superseded)(, changed by .+)?\. \*\*Date\.\*\* \d{4}-\d\d-\d\d\."
        assert re.fullmatch(form, status), (
            f"{record}: a line `**Status.** Accepted. **Date.** YYYY-MM-DD.` below the title"
        )
        for part in ("Decision", "Consequences"):
            assert text.count(f"\n**{part}.**") == 1, f"{record} has no **{part}.**"
        for later in re.findall(r"\((\d{4}-[\w-]+\.md)\)", status):
            assert (folder / later).exists()
