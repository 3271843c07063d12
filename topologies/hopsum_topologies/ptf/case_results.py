# SPDX-License-Identifier: Apache-2.0
"""Outcomes of cases: written by the case process one line at a time, read and shown by the runner."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

Outcome = Literal["ok", "FAILED", "ERROR", "skipped", "not run"]


@dataclass(frozen=True)
class Result:
    """The outcome of one case on one target. `reason` is that of a case that was skipped, not run, or failed."""

    case: str
    outcome: Outcome
    reason: str = ""


def append_result(path: Path, result: Result) -> None:
    """Add one result to a results file, as a line of JSON. The file is made where there is none."""
    with path.open("a") as lines:
        lines.write(json.dumps(asdict(result)) + "\n")


def read_results(path: Path, cases: Iterable[str]) -> list[Result]:
    """Return one result for each of `cases`, in their order: the last of its lines, or "not run" without a line.

    A missing file has no lines.
    """
    lines = path.read_text().splitlines() if path.exists() else []
    seen = {result.case: result for result in (Result(**json.loads(line)) for line in lines)}
    return [seen.get(case, Result(case, "not run", "the run ended before it")) for case in cases]


def format_table(columns: Mapping[str, Iterable[Result]]) -> str:
    """Return a text: a table of outcomes, cases by targets, then all reasons of results, one a line.

    `columns` has the results by target. A case that a target does not have is "-".
    """
    by_target = {target: {result.case: result for result in results} for target, results in columns.items()}
    cases = list(dict.fromkeys(case for results in by_target.values() for case in results))
    width = max(map(len, ["case", *cases]))
    lines = [" ".join([f"{'case':{width}}", *(f"{target:>8}" for target in by_target)])]
    reasons = []
    for case in cases:
        results = [by_target[target].get(case) for target in by_target]
        cells = (f"{result.outcome if result else '-':>8}" for result in results)
        lines.append(" ".join([f"{case:{width}}", *cells]))
        reasons += [
            f"{target}: {case}: {result.reason}"
            for target, result in zip(by_target, results, strict=True)
            if result and result.reason
        ]
    return "\n".join([*lines, *reasons])


def format_totals(target: str, results: Iterable[Result]) -> str:
    """Return one line: the target, and the number of results of each outcome that occurs."""
    counts: dict[str, int] = {}
    for result in results:
        counts[result.outcome] = counts.get(result.outcome, 0) + 1
    return f"{target}: " + ", ".join(f"{number} {outcome}" for outcome, number in counts.items())
