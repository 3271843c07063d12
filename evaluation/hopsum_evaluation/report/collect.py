# SPDX-License-Identifier: Apache-2.0
"""One JSON object of a run: what every section found, and where, a report that is read again, its claims judged."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from hopsum.errors import HopsumError
from hopsum_evaluation.bench.timing import commit, machine, versions
from hopsum_evaluation.report.claims import Judged, judge
from hopsum_evaluation.report.sections import SECTIONS
from hopsum_evaluation.report.settings import NotRunError, Result, Settings, Tell
from hopsum_evaluation.report.shown import Shown

FORMAT: Final = 1
NOT_RUN: Final = "not_run"
_PACKAGES: Final = ("hopsum", "numpy", "numba", "llvmlite", "torch", "scikit-learn", "constriction", "matplotlib")


class ReportError(Exception):
    """A file is not a report that this version can show. The message says where and why."""


def collect(
    settings: Settings,
    wanted: Sequence[str],
    console: Console,
    save: Callable[[dict[str, Any]], None] = lambda report: None,
    earlier: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Run the wanted sections in their usual order, with a progress bar each. Return the report.

    A section that cannot run has the reason in place of figures. The others continue.

    Args:
        settings: seed and size.
        wanted: names of sections.
        console: where progress is shown.
        save: told the report so far after each section, so that a run that is stopped has lost one section at most.
        earlier: a report of `same_run`, to continue: what was run in it is kept and not run again.
    """
    report, tree = earlier or begin(settings), commit()
    found = report["sections"]
    missing = [name for name in SECTIONS if name in wanted and NOT_RUN in found.get(name, {NOT_RUN: ""})]
    columns = (TextColumn("{task.description:12}"), BarColumn(), TextColumn("{task.fields[now]}"), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        tasks = {name: progress.add_task(name, total=1.0, now="", start=False) for name in missing}
        for name, task in tasks.items():
            progress.start_task(task)

            plain = _lines(name, console)

            def tell(done: float, now: str, task: Any = task, plain: Tell = plain) -> None:
                progress.update(task, completed=done, now=now)
                plain(done, now)

            load, since, begun = machine()["load_1min"], time.perf_counter(), _now()
            result = _run(name, settings, tell)
            found[name] = {
                **result, "seconds": round(time.perf_counter() - since, 2), "load_1min": load, "begun": begun,
                "commit": tree, "machine": report["machine"], "versions": report["versions"],
            }  # fmt: skip
            report["seconds"] = round(sum(each["seconds"] for each in found.values()), 1)
            tell(1.0, "not run" if NOT_RUN in found[name] else "")
            save(report)
    return report


def _lines(name: str, console: Console) -> Tell:
    """Return what prints a line at each twentieth of a section where the console is a file, which shows no bar."""
    printed = -1

    def tell(done: float, now: str) -> None:
        nonlocal printed
        if not console.is_terminal and int(20 * done) > printed:
            printed = int(20 * done)
            console.print(f"{name:12} {done:4.0%}  {now}", highlight=False, markup=False)

    return tell


def begin(settings: Settings) -> dict[str, Any]:
    """Return a report in which nothing was run yet."""
    return {
        "format": FORMAT,
        "begun": _now(),
        "seconds": 0.0,
        "seed": settings.seed,
        "size": str(settings.size),
        "sections": {},
        "machine": machine(),
        "versions": versions(*_PACKAGES),
        "p4_manifest_sha256": manifest_hash(),
        "commit": commit(),
    }


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def same_run(settings: Settings, path: Path) -> dict[str, Any] | None:
    """Return the report of a file, to continue, or None where there is no file.

    Raises:
        ReportError: it is no report, or one of another seed, size, P4 program, machine or software. Another commit is
            no other run: each section has the commit that it was run with.
    """
    if not path.exists():
        return None
    earlier, now = read_report(path), begin(settings)
    of = {"seed", "size", "p4_manifest_sha256", "versions"}
    differ = sorted(name for name in of if earlier.get(name) != now[name])
    if any(earlier.get("machine", {}).get(name) != now["machine"][name] for name in ("processor", "cores", "system")):
        differ.append("machine")
    if differ:
        was = ", ".join(f"{name} {earlier.get(name)}, now {now[name]}" for name in differ)
        raise ReportError(f"{path}: not of this run ({was}): leave --resume away, or choose another --output-dir")
    return earlier


def _run(name: str, settings: Settings, tell: Any) -> Result:
    try:
        return SECTIONS[name].load().run(settings, tell)
    except NotRunError as error:
        return {NOT_RUN: str(error)}
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0].startswith("hopsum"):
            raise
        return {NOT_RUN: f"needs the module {error.name}"}
    except (HopsumError, OSError) as error:
        return {NOT_RUN: f"{type(error).__name__}: {error}"}


def manifest_hash() -> str | None:
    """Return the SHA-256 of the manifest of the compiled P4 program, or None outside a source tree."""
    path = Path(__file__).resolve().parents[3] / "p4" / "build" / "manifest.json"
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def read_report(path: Path) -> dict[str, Any]:
    """Read a report.json. Raises ReportError."""
    try:
        report = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ReportError(f"{path}: {error}") from error
    if not isinstance(report, dict) or report.get("format") != FORMAT:
        raise ReportError(f"{path}: not a report of format {FORMAT}; make one with `hopsum report`")
    unknown = set(report["sections"]) - set(SECTIONS)
    if unknown:
        raise ReportError(f"{path}: sections {', '.join(sorted(unknown))}: this version has {', '.join(SECTIONS)}")
    return report


def write_report(report: dict[str, Any], path: Path) -> None:
    """Write it as JSON, whole or not at all. Numbers that are not finite become null."""
    part = path.with_name(f".{path.name}.part")
    part.write_text(json.dumps(_finite(report), indent=1) + "\n")
    part.replace(path)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def shown(report: dict[str, Any], name: str) -> tuple[Shown, list[Judged]]:
    """Return what a section of the report shows, and its claims with their verdicts.

    A section that was not run shows why, and all its claims are not run.
    """
    module, result = SECTIONS[name].load(), report["sections"].get(name)
    if result is None or NOT_RUN in result:
        reason = "not asked for" if result is None else result[NOT_RUN]
        return Shown([f"Not run: {reason}."]), [judge(claim, (), reason) for claim in module.CLAIMS]
    part = module.show(result)
    if remark := result.get("remark"):  # written by hand into the file: what happened beside the run
        part = replace(part, words=[str(remark), *part.words])
    judged = [
        judge(claim, part.samples.get(claim.name, ()), part.reasons.get(claim.name, "")) for claim in module.CLAIMS
    ]
    return part, judged
