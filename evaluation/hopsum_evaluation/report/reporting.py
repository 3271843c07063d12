# SPDX-License-Identifier: Apache-2.0
"""`hopsum report`: do the experiments, and put them on two pages with the claims of papers.

Writes results.md (answers), claims.md, pictures as PNG and SVG, a CSV file for each table, and report.json with the raw
figures. All pages follow from the JSON: --read makes them again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from rich.console import Console

from hopsum.errors import HopsumError
from hopsum_base.units import list_of, one_of, whole
from hopsum_evaluation.bench.timing import machine, source_commit, versions
from hopsum_evaluation.experiment import NotRunError, Result, SectionView, Settings, Size, Tell, write_report
from hopsum_evaluation.report import (
    error,
    estimation,
    links,
    lossless_claims,
    packet_loss,
)
from hopsum_evaluation.report.claims import JudgedClaim, judge
from hopsum_evaluation.report.pages import claim_cells, write_pages

SECTIONS: Final[dict[str, tuple[str, ModuleType]]] = {
    "error": ("Error of the mean, bits and workers", error),
    "links": ("Trainings over shaped links", links),
    "loss": ("THC: lost packets, stragglers, bits and workers", packet_loss),
    "lossless": ("LHC: throughput against density, and what peels", lossless_claims),
    "estimation": ("Suresh et al.: mean estimation", estimation),
}
"""Title and module of each section, in the order of the page of claims."""
FORMAT: Final = 1
"""Version of report.json."""
NOT_RUN: Final = "not_run"
"""Key of a section's result that has the reason why it has no figures."""
OUT: Final = Path("hopsum-report")
JSON_NAME: Final = "report.json"
_PACKAGES: Final = ("hopsum", "numpy", "numba", "llvmlite", "torch", "scikit-learn", "constriction", "matplotlib")


class ReportError(Exception):
    """A file cannot be read, or is no report that this version can show. The message has the path and the cause."""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = argparse.ArgumentParser(prog="hopsum report", description=(__doc__ or "").partition(": ")[2])
    parser.add_argument(
        "--output-dir", type=Path, default=OUT, metavar="DIR", help="folder for everything (default %(default)s)"
    )
    parser.add_argument("--full", action="store_const", dest="size", const=Size.FULL, help="run all sizes: hours")
    parser.add_argument(
        "--size", type=Size, dest="size", choices=tuple(Size), metavar="SIZE", help=f"sizes to run: {', '.join(Size)}"
    )
    parser.add_argument(
        "--sections",
        type=list_of(one_of(SECTIONS)),
        default=tuple(SECTIONS),
        metavar="NAME,...",
        help=f"sections to run, of {', '.join(SECTIONS)} (default: all)",
    )
    parser.add_argument(
        "--dilated", dest="dilate", action="store_true",
        help="give workers and switches of section links a processor each, by time dilation where there are fewer",
    )  # fmt: skip
    parser.add_argument("--seed", type=whole(0), default=1, help="seed of everything random (default %(default)s)")
    parser.add_argument(
        "--read", type=Path, dest="source", metavar="JSON", help="report.json to show, in place of a run"
    )
    parser.set_defaults(size=Size.DEFAULT)
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run the sections or read a report, write the pages, and print the verdicts. Return 0, whatever the verdicts.

    Returns 1 where files cannot be read or written, and 130 after Ctrl-C.
    """
    parser = build_parser()
    options = parser.parse_args(arguments)
    # Asked before the run: pages are made at its end, hours later.
    missing = [name for name in ("matplotlib", "scipy") if find_spec(name) is None]
    if missing:
        parser.exit(1, f"hopsum report: {' and '.join(missing)} not installed: pip install 'hopsum[demo,plot]'\n")
    try:
        if options.source is not None:
            report = read_report(options.source)
        else:
            # Written and read again: pages show what the file has.
            report = _run(options)
            write_report(report, options.output_dir / JSON_NAME)
            report = read_report(options.output_dir / JSON_NAME)
        options.output_dir.mkdir(parents=True, exist_ok=True)
        parts = {name: (SECTIONS[name][0], *view_and_judge(report, name)) for name in SECTIONS}
        write_pages(report, parts, options.output_dir)
    except (ReportError, OSError) as problem:
        print(f"hopsum report: {problem}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        done = options.output_dir / JSON_NAME
        print(f"hopsum report: stopped; {done} has the finished sections: --read shows them", file=sys.stderr)
        return 130
    for _, _, judged in parts.values():
        for each in judged:
            verdict, text, condition, ours, *_ = claim_cells(each)
            print(f"{verdict:15} {text}: {condition}; measured {ours}")
    print(options.output_dir / "results.md")
    return 0


def _run(options: argparse.Namespace) -> dict[str, Any]:
    settings = Settings(options.seed, options.size, options.output_dir, options.dilate)
    path = options.output_dir / JSON_NAME
    # Before anything is measured: hours of figures would have no place.
    options.output_dir.mkdir(parents=True, exist_ok=True)
    return run_sections(settings, options.sections, Console(stderr=True), lambda report: write_report(report, path))


def run_sections(
    settings: Settings,
    wanted: Sequence[str],
    console: Console,
    save: Callable[[dict[str, Any]], None] = lambda report: None,
) -> dict[str, Any]:
    """Run the wanted sections in the order of SECTIONS. Return the report.

    A section that cannot run has the reason in place of figures. The others continue.

    Args:
        settings: seed and size.
        wanted: names of sections.
        console: where progress is shown.
        save: called with the report after each section, so that a run that is stopped loses one section at most.
    """
    report = new_report(settings)
    found = report["sections"]
    for name in (name for name in SECTIONS if name in wanted):
        load, since, begun = machine()["load_1min"], time.perf_counter(), _now()
        tell = _lines(name, console)
        result = _run_section(name, settings, tell)
        seconds = round(time.perf_counter() - since, 2)
        found[name] = {**result, "seconds": seconds, "load_1min": load, "begun": begun}
        report["seconds"] = round(sum(each["seconds"] for each in found.values()), 1)
        stopped = result.get("stopped", False)
        tell(1.0, "not run" if NOT_RUN in result else "stopped" if stopped else "done")
        save(report)
        # Who stops a section that keeps what it has stops the report.
        if stopped:
            break
    return report


def _lines(name: str, console: Console) -> Tell:
    """Make a Tell that prints a line at each twentieth of a section, which a terminal and a file can hold."""
    printed = -1

    def tell(done: float, now: str) -> None:
        nonlocal printed
        if int(20 * done) > printed:
            printed = int(20 * done)
            console.print(f"{name:12} {done:4.0%}  {now}", highlight=False, markup=False)

    return tell


def new_report(settings: Settings) -> dict[str, Any]:
    """Return a report without sections: date, seed, size, machine, versions and commit."""
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
        "commit": source_commit(),
    }


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _run_section(name: str, settings: Settings, tell: Tell) -> Result:
    try:
        found: Result = SECTIONS[name][1].run(settings, tell)
    except NotRunError as problem:
        return {NOT_RUN: str(problem)}
    except ModuleNotFoundError as problem:
        # A module of ours that is missing is a fault of this program, not of the machine.
        if (problem.name or "").split(".")[0].startswith("hopsum"):
            raise
        return {NOT_RUN: f"needs the module {problem.name}"}
    except (HopsumError, OSError) as problem:
        return {NOT_RUN: f"{type(problem).__name__}: {problem}"}
    return found


def manifest_hash() -> str | None:
    """Return the SHA-256 of the manifest of the compiled P4 program, in hexadecimal. None outside a source tree."""
    path = Path(__file__).resolve().parents[3] / "p4" / "build" / "manifest.json"
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def read_report(path: Path) -> dict[str, Any]:
    """Return the report in a report.json. Raises ReportError."""
    try:
        report = json.loads(path.read_text())
    except (OSError, ValueError) as problem:
        raise ReportError(f"{path}: {problem}") from problem
    if not isinstance(report, dict) or report.get("format") != FORMAT or not isinstance(report.get("sections"), dict):
        raise ReportError(f"{path}: not a report of format {FORMAT}; make one with `hopsum report`")
    unknown = set(report["sections"]) - set(SECTIONS)
    if unknown:
        raise ReportError(f"{path}: sections {', '.join(sorted(unknown))}: this version has {', '.join(SECTIONS)}")
    return report


def view_and_judge(report: dict[str, Any], name: str) -> tuple[SectionView, list[JudgedClaim]]:
    """Make the tables and plots of a section of the report and the verdicts of its claims. Writes nothing.

    Of a section without figures the view is empty, and all of its claims are "not run".
    """
    module, result = SECTIONS[name][1], report["sections"].get(name)
    if result is None or NOT_RUN in result:
        reason = "not asked for" if result is None else result[NOT_RUN]
        return SectionView(), [judge(claim, (), reason) for claim in module.CLAIMS]
    part: SectionView = module.make_view(result)
    judged = [
        judge(claim, part.samples.get(claim.name, ()), part.reasons.get(claim.name, "")) for claim in module.CLAIMS
    ]
    return part, judged
