# SPDX-License-Identifier: Apache-2.0
"""A report of checks as a table for people."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hopsum.diagnosis import DiagnosisReport, Status

_MARKS = {Status.PASS: "[green]pass[/]", Status.FAIL: "[bold red]FAIL[/]", Status.SKIP: "[dim]skip[/]"}


def print_report(report: DiagnosisReport, console: Console) -> None:
    """Print one line for each check, below it what to do, and a verdict."""
    table = Table(title=escape(report.subject), title_justify="left", show_header=False, box=None, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for row in report.rows:
        table.add_row(_MARKS[row.status], row.check, escape(row.finding))
        if row.fix:
            table.add_row("", "", f"[bold]->[/] {escape(row.fix)}")
    console.print(table)
    failures = [row.check for row in report.rows if row.status is Status.FAIL]
    skips = sum(row.status is Status.SKIP for row in report.rows)
    left_out = f", {skips} not made" if skips else ""
    if failures:
        console.print(f"[bold red]{', '.join(failures)} failed[/]{left_out}")
    else:
        console.print(f"[bold green]nothing failed[/]{left_out}")
