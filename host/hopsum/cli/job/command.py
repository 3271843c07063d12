# SPDX-License-Identifier: Apache-2.0
"""The words after `hopsum job`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console

from hopsum.cli.job import create, report
from hopsum.cli.operator import operator
from hopsum.cli.operator_arguments import add_operator_arguments
from hopsum.errors import HopsumError
from hopsum.rpc.jobs import as_values


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = argparse.ArgumentParser(prog="hopsum job", description="Make, see and delete a controller's jobs.")
    words = parser.add_subparsers(required=True, metavar="WORD")
    making = _word(words, "create", create.SUMMARY, create.run)
    create.add_arguments(making)
    _word(words, "list", "all jobs, a line for each", _list)
    showing = _word(words, "show", "one job: members, leases, and what the switch counted of it", _show)
    showing.add_argument("name", metavar="JOB")
    deleting = _word(words, "delete", "end jobs, whoever is in them, and free their slots", _delete)
    deleting.add_argument("names", metavar="JOB", nargs="+")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run the command; 0 unless the controller refused or cannot be reached."""
    options = build_parser().parse_args(arguments)
    try:
        status: int = options.run(options)
    except HopsumError as error:
        print(f"hopsum job: {error}", file=sys.stderr)
        return 1
    return status


def _word(words: Any, name: str, summary: str, run: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
    word: argparse.ArgumentParser = words.add_parser(
        name, help=summary, description=f"{summary[:1].upper()}{summary[1:]}."
    )
    add_operator_arguments(word)
    word.add_argument("--json", action="store_true", help="print one JSON object and nothing else on stdout")
    word.set_defaults(run=run, parser=word)
    return word


def _list(options: argparse.Namespace) -> int:
    with operator(options) as client:
        jobs = [as_values(job) for job in client.jobs()]
    if options.json:
        print(json.dumps({"jobs": jobs}))
    else:
        report.print_jobs(jobs, Console())
    return 0


def _show(options: argparse.Namespace) -> int:
    with operator(options) as client:
        job = as_values(client.job(options.name))
    if options.json:
        print(json.dumps(job))
    else:
        report.print_job(job, Console())
    return 0


def _delete(options: argparse.Namespace) -> int:
    """Delete one after the other; the first that fails ends it, and what is named before it is gone."""
    gone: list[str] = []
    with operator(options) as client:
        try:
            for name in options.names:
                client.delete(name)
                gone.append(name)
        finally:
            if options.json:
                print(json.dumps({"deleted": gone}))
            else:
                for name in gone:
                    print(f"job {name!r} is gone")
    return 0
