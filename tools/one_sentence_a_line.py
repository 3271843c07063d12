# SPDX-License-Identifier: Apache-2.0
"""One sentence a line in Markdown: this command rewrites the pages, and with `--check` names those that differ.

A changed sentence is then a changed line, and no line is filled up to a width again. Tables, code, headings, directives
and what programs write stay as they are.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
GENERATED: Final = ("docs/results.md", "docs/claims.md")
"""Pages of recorded runs (tools/render_results.py)."""
GENERATED_SECTION: Final = "## Does it pay?"
"""The section of README that the same program writes."""
_FENCE: Final = re.compile(r"\s*(`{3,}|~{3,}|:{3,})")
_ITEM: Final = re.compile(r"(\s*)([-*+] +|\d+[.)] +|: +|> ?)(?=\S)")
_APART: Final = re.compile(r"\s*(\||#{1,6} |<|\[[^\]]+\]: |-{3,}$|\* \* \*|!\[[^\]]*\]\([^)]*\)$|\([\w-]+\)=$)")
"""Lines that are no part of a paragraph: tables, headings, HTML, targets of links, rules, images, labels."""
_CODE: Final = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)")
_END: Final = re.compile(r"[.!?](?:[\"')\]*_]|\]\([^)\s]*\))*\s+")
_NO_END: Final = re.compile(r"(?:\b(?:e\.g|i\.e|cf|vs|al|Fig|No|ca)|\.\.)\.$")
_BEGINS_A_LINE_ONLY: Final = re.compile(r"(?:[-+*] |\d+[.)] |#{1,6} |>|:)")
"""What would be another element of Markdown at the beginning of a line."""


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a paragraph."""
    # A full stop in code ends nothing.
    plain = _CODE.sub(lambda code: "x" * len(code[0]), text)
    begin = 0
    for end in _END.finditer(plain):
        if _NO_END.search(plain[: end.start() + 1]) or _BEGINS_A_LINE_ONLY.match(plain[end.end() :]):
            continue
        yield text[begin : end.end()].rstrip()
        begin = end.end()
    yield text[begin:].rstrip()


def reflow(text: str) -> str:
    """Return a page with one sentence a line."""
    made: list[str] = []
    paragraph: list[str] = []
    fence = mark = indent = ""
    in_list = generated = part = False

    def end() -> None:
        nonlocal paragraph
        if paragraph:
            first, *rest = sentences(" ".join(paragraph))
            made.append(f"{mark}{first}")
            made.extend(f"{indent}{each}" for each in rest)
            paragraph = []

    for line in text.splitlines():
        bare = line.strip()
        marker = _FENCE.match(line)
        if fence:
            made.append(line)
            fence = "" if bare.startswith(fence) and not bare.strip(fence[0]) else fence
            continue
        if line.startswith("## ") and not part:
            generated = line == GENERATED_SECTION
        part = (part or bare.startswith("<!-- generated")) and bare != "<!-- end -->"
        if marker or not bare or _APART.match(line) or generated or part:
            end()
            made.append(line)
            fence = marker[1] if marker and not generated and not part else ""
            in_list = in_list and (not bare or line.startswith(" "))
            continue
        item = _ITEM.match(line)
        if item and paragraph and ">" in mark and item[0] == mark:  # a quotation continues
            paragraph.append(line[len(mark) :].strip())
        elif item:
            end()
            in_list, mark = True, item[0]
            indent = mark if item[2].startswith(">") else " " * len(mark)
            paragraph = [line[len(mark) :].rstrip()]
        elif paragraph:
            paragraph.append(bare)
        elif line.startswith("    ") and not in_list:
            made.append(line)
        else:
            in_list = in_list and line.startswith(" ")
            mark = indent = line[: len(line) - len(line.lstrip())]
            paragraph = [bare]
    end()
    return "\n".join(made) + "\n"


def pages() -> list[Path]:
    """Return the Markdown pages in git that people write."""
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files", "*.md"], capture_output=True, text=True, check=True)
    return [ROOT / name for name in listed.stdout.splitlines() if name not in GENERATED]


def main(arguments: Sequence[str] | None = None) -> int:
    """Rewrite the pages, or name those that differ. Return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--check", action="store_true", help="change nothing; end with 1 if a page differs")
    check = parser.parse_args(arguments).check
    changed = [page for page in pages() if reflow(page.read_text(encoding="utf-8")) != page.read_text(encoding="utf-8")]
    for page in changed:
        print(page.relative_to(ROOT))
        if not check:
            page.write_text(reflow(page.read_text(encoding="utf-8")), encoding="utf-8")
    return int(check and bool(changed))


if __name__ == "__main__":
    sys.exit(main())
