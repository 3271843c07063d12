# SPDX-License-Identifier: Apache-2.0
"""The table that `make drills` ends with: rows for docs/reliability.md."""

from __future__ import annotations

import re
from typing import Any

import pytest

HEAD = """\
| drill | target | seconds until | lost with the dead (norm) | largest error | steps | s |
|---|---|---|---:|---:|---:|---:|"""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    passed = terminalreporter.getreports("passed")
    rows = [row(found) for report in passed for name, found in report.user_properties if name == "drill"]
    if rows:
        terminalreporter.section("drills")
        terminalreporter.write_line("\n".join([HEAD, *rows]))


def row(report: dict[str, Any]) -> str:
    checks = report["checks"]
    same = " =" if "same training in memory" in checks["replicas_equal"][1] else ""
    times = "; ".join(f"{what}: {seconds:.2f}" for what, seconds in report["times"].items())
    norms = ", ".join(f"{norm:.1f}" for norm in report["lost_norms"].values()) or "-"
    error = re.search(r"largest error of .*?(\d\.\de-?\d+)", checks["mass_conserved"][1])
    cells = [f"`{report['name']}`{same}", report["target"], times, norms]
    cells += [error[1] if error else "-", f"{report['steps']:,}", f"{report['seconds']:.0f}"]
    return f"| {' | '.join(cells)} |"
