# SPDX-License-Identifier: Apache-2.0
"""`hopsum doctor`: why does a worker not begin, or hang?"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hopsum.config import ConfigError, resolve
from hopsum_base.units import real, seconds, whole
from hopsum_cli.diagnosis import DiagnosisReport, Patience, Status, examine

_MARKS: Final = {Status.PASS: "[green]pass[/]", Status.FAIL: "[bold red]FAIL[/]", Status.SKIP: "[dim]skip[/]"}


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = argparse.ArgumentParser(
        prog="hopsum doctor",
        description="Check a worker's path to its switch, on the worker's host: each line passes, or fails with a "
        "remedy. A running job is not disturbed. With hosts:// it checks this host before a job. The exit status is 1 "
        "if a line failed. `hopsum job show` and `hopsum top` show the state of a controller and its jobs.",
    )
    parser.add_argument(
        "target",
        metavar="URL",
        help="address of the job (hopsum://, hosts:// or file://), or path of its membership file",
    )
    parser.add_argument(
        "--rank",
        type=whole(0),
        help="rank of the worker (default: HOPSUM_RANK or RANK, else the rank whose address is on this host)",
    )
    parser.add_argument(
        "--timeout",
        type=seconds,
        default=1.0,
        metavar="SECONDS",
        help="time to wait for an answer (default %(default)s)",
    )
    parser.add_argument(
        "--stuck-after",
        type=real(0, 86_400),
        default=1.0,
        metavar="SECONDS",
        help="time that a slot may wait for the same ranks before it counts as stuck (default %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else on stdout")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Make the checks, and print the report, or one JSON object. Return 0 if nothing failed, else 1."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    # A refusal ('port unreachable') comes at once or never: half of the patience is enough for it.
    patience = Patience(answer_s=options.timeout, refusal_s=options.timeout / 2, settle_s=options.stuck_after)
    try:
        # A job's URL has no membership file: the controller is asked first, as a worker asks it.
        if options.target.startswith("hopsum://"):
            from hopsum_cli.diagnosis.joining_side import examine_url  # here: gRPC, which other targets do not need

            report = examine_url(resolve({"url": options.target, "rank": options.rank}), patience)
        elif options.target.startswith("hosts:"):
            from hopsum_cli.diagnosis.hosts_side import examine_host  # here: gRPC too

            report = examine_host(options.target, options.timeout)
        else:
            # By the settings of workers: HOPSUM_RANK and RANK count here as for a worker in this terminal.
            rank = resolve({"rank": options.rank}).rank
            report = examine(options.target, rank, patience=patience)
    except ConfigError as error:
        print(f"hopsum doctor: {error}", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps(report.as_json()))
    else:
        print_report(report, Console())
    return 0 if report.good else 1


def print_report(report: DiagnosisReport, console: Console) -> None:
    """Print one line for each check, a remedy or advice below it, and a verdict."""
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
