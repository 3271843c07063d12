# SPDX-License-Identifier: Apache-2.0
"""Reports of drills as tables for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from hopsum_evaluation.drill.base import CHECKS, DrillReport
from hopsum_evaluation.drill.catalogue import DRILLS

_SHOWN_EVENTS = 12


def catalogue_table(target: str) -> Table:
    """Return all drills, what they do, and which of them cannot run on a target here."""
    table = _table("drill", "what it does", "here")
    for drill in DRILLS.values():
        reason = drill.needs(target)
        table.add_row(drill.name, escape(drill.what), f"[yellow]{escape(reason)}[/]" if reason else "[green]yes[/]")
    return table


def report_table(reports: Sequence[DrillReport]) -> Table:
    """Return one line for each drill."""
    table = _table("drill", "target", "detected ms", *(name.replace("_", " ") for name in CHECKS), "steps", "s", "")
    for report in reports:
        if report.skipped:
            table.add_row(report.name, report.target, *[""] * (len(CHECKS) + 3), "[yellow]skipped[/]")
            continue
        found = "-" if report.detected_ms is None else f"{report.detected_ms:,.0f}"
        checks = [_mark(report, name) for name in CHECKS]
        verdict = "[green]ok[/]" if report.ok else "[red]FAILED[/]"
        steps, seconds = f"{report.steps:,}", f"{report.seconds:.0f}"
        table.add_row(report.name, report.target, found, *checks, steps, seconds, verdict)
    return table


def details(reports: Sequence[DrillReport]) -> Group:
    """Return what was done when, what became of it, and why a check says what it says."""
    parts: list[Text | Table] = []
    for report in reports:
        parts.append(Text(f"\n{report.name}", style="bold"))
        grid = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        grid.add_column(justify="right", no_wrap=True)
        grid.add_column(overflow="fold")
        for what, text in _lines(report):
            grid.add_row(f"[dim]{what}[/]", Text(text))
        parts.append(grid)
    return Group(*parts)


def _lines(report: DrillReport) -> Iterator[tuple[str, str]]:
    if report.skipped:
        yield "skipped", report.skipped
        return
    for event in report.killed[:_SHOWN_EVENTS]:
        yield f"{event.at_s:.3f} s", event.what
    if len(report.killed) > _SHOWN_EVENTS:
        yield "", f"and {len(report.killed) - _SHOWN_EVENTS} more"
    if report.detected_ms is not None:
        yield "detected", f"after {report.detected_ms:,.0f} ms: {report.detected}"
    if report.recovered:
        yield "recovered", report.recovered
    if report.failure:
        yield "FAILED", report.failure
    for name, check in report.checks.items():
        yield name.replace("_", " "), check.why


def _mark(report: DrillReport, name: str) -> str:
    check = report.checks.get(name)
    if check is None or check.ok is None:
        return "[dim]-[/]"
    return "[green]yes[/]" if check.ok else "[red]NO[/]"


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column)
    return table
