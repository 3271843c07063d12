# SPDX-License-Identifier: Apache-2.0
"""Blocks of code on the pages of docs/, which tests type as a reader does."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"


def blocks(page: str, section: str, language: str = "sh") -> list[str]:
    """Return the blocks of `language` below the heading `section` of a page, up to the next heading of its level."""
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    (found,) = re.findall(rf"^(#+) {re.escape(section)}\n(.*?)(?=^\1 |^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return re.findall(rf"^```{language}\n(.*?)^```", found[1], re.MULTILINE | re.DOTALL)


def type_in(folder: Path, block: str, **environment: str) -> str:
    """Run a block to its end in a folder, with the `hopsum` of this Python; return what it printed."""
    script = f'hopsum() {{ "{sys.executable}" -m hopsum_cli.main "$@"; }}\n{block}'
    given = {**os.environ, **environment}
    done = subprocess.run(["bash", "-euc", script], cwd=folder, env=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (block, done.stdout + done.stderr)
    return done.stdout
