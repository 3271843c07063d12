# SPDX-License-Identifier: Apache-2.0
"""Generate from docs/results.json, the recorded run, what the documentation says of it.

Written are docs/results.md, its picture, the section of docs/claims.md and README's "Does it pay?".

python tools/render_results.py             write them
python tools/render_results.py --check     exit 1 with a diff where a text is stale
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tools")]

from hopsum_evaluation.charts import write_chart  # noqa: E402
from hopsum_evaluation.report.answers import answers_of, speed_bars  # noqa: E402
from hopsum_evaluation.report.pages import LINKS, answer_lines, answers_page, claim_lines  # noqa: E402
from hopsum_evaluation.report.reporting import SECTIONS, read_report, view_and_judge  # noqa: E402
from p4_subset import write_or_compare  # noqa: E402


def replace_section(text: str, heading: str, lines: list[str]) -> str:
    """Return `text` with `lines` between a heading of the second level and the next. Raises ValueError without it."""
    before, found, rest = text.partition(f"\n## {heading}\n")
    if not found:
        raise ValueError(f"no heading {heading!r}")
    _, following, after = rest.partition("\n## ")
    return "\n".join([before + found, *lines]).rstrip() + "\n" + following + after


def main(arguments: list[str], root: Path = ROOT) -> int:
    """Write the pages of the recorded run, or with --check print which are stale. Return the exit status."""
    parser = argparse.ArgumentParser(description="Generate the pages of the recorded run.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a text is stale")
    check = parser.parse_args(arguments).check
    docs, readme = root / "docs", root / "README.md"
    report = read_report(docs / "results.json")
    claims = claim_lines(report, LINKS, view_and_judge(report, LINKS)[1])
    texts = {
        docs / "results.md": answers_page(report).rstrip() + "\n",
        docs / "claims.md": replace_section((docs / "claims.md").read_text(), SECTIONS[LINKS][0], claims),
        readme: replace_section(readme.read_text(), "Does it pay?", answer_lines(report, "docs/")),
    }
    bars = speed_bars(answers_of(report["sections"][LINKS]))
    if bars is not None and not check:
        for path in write_chart(bars, docs / "images"):
            # Pages show the drawing alone.
            path.unlink() if path.suffix == ".png" else None
    return max(write_or_compare(path, text, check=check) for path, text in texts.items())


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
