# SPDX-License-Identifier: Apache-2.0
"""Reports of drills as tables for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group
from rich.markup import escape
from rich.table import Table

from hopsum.cli.drill.base import CHECKS, DrillReport
from hopsum.cli.drill.catalogue import DRILLS

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
    table = _table(
        "drill", "target", "detected", "recovered", *(name.replace("_", " ") for name in CHECKS), "steps", "s"
    )
    for report in reports:
        if report.skipped:
            table.add_row(report.name, report.target, "", f"[yellow]skipped: {escape(report.skipped)}[/]")
            continue
        found = "" if report.detected_ms is None else f"{report.detected_ms:,.0f} ms: {escape(report.detected)}"
        recovered = f"[red]{escape(report.failure)}[/]" if report.failure else escape(report.recovered)
        checks = [_mark(report, name) for name in CHECKS]
        table.add_row(
            report.name, report.target, found, recovered, *checks, f"{report.steps:,}", f"{report.seconds:.0f}"
        )
    return table


def details(reports: Sequence[DrillReport]) -> Group:
    """Return what was done when, and why a check says what it says."""
    lines = []
    for report in reports:
        if report.skipped:
            continue
        lines.append(f"[bold]{report.name}[/]")
        lines += [f"  {event.at_s:8.3f} s  {escape(event.what)}" for event in report.killed[:_SHOWN_EVENTS]]
        if len(report.killed) > _SHOWN_EVENTS:
            lines.append(f"              and {len(report.killed) - _SHOWN_EVENTS} more")
        lines += [f"  {name}: {escape(check.why)}" for name, check in report.checks.items()]
    return Group(*lines)


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
