# SPDX-License-Identifier: Apache-2.0
"""The table of docs/reliability.md: `python tools/drill_table.py NATIVE.json BMV2.json`, of `hopsum drill all --json`.

Prints Markdown: one line for each drill and target, in the order of the catalogue. It fails for a run in which a check
does not hold, or a drill was skipped.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HEAD = """\
| drill | target | detected, ms | what became of it | lost with the dead (norm) | largest error | steps | s |
|---|---|---:|---|---:|---:|---:|---:|"""
_NORM = "lost_norm_of_rank_"


def row(report: dict[str, Any]) -> str:
    """Return the line of one drill. Raises ValueError for one that failed or was skipped."""
    name, target = report["name"], report["target"]
    if not report["ok"]:
        raise ValueError(f"{name} on {target}: {report['failure'] or report['skipped'] or report['checks']}")
    why = report["why"]
    same = " =" if "same training in memory" in why.get("replicas_equal", "") else ""
    detected = "-" if report["detected_ms"] is None else f"{report['detected_ms']:,.0f}"
    norms = [f"{norm:.1f}" for key, norm in report["numbers"].items() if key.startswith(_NORM)]
    error = re.search(r"largest error of .*?(\d\.\de-?\d+)", why.get("mass_conserved", ""))
    cells = [f"`{name}`{same}", target, detected, report["recovered"], ", ".join(norms) or "-"]
    cells += [error[1] if error else "-", f"{report['steps']:,}", f"{report['seconds']:.0f}"]
    return f"| {' | '.join(cells)} |"


def main(paths: Sequence[str]) -> int:
    """Print the table of some runs."""
    runs = [json.loads(Path(path).read_text(encoding="utf-8"))["drills"] for path in paths]
    print(HEAD)
    for reports in zip(*runs, strict=True):
        for report in reports:
            print(row(report))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
