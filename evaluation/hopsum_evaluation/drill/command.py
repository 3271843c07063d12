# SPDX-License-Identifier: Apache-2.0
"""Arguments of `hopsum drill`, and one process for each drill, so that none has another's threads or namespaces."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from hopsum_evaluation.bench.timing import commit, machine, versions
from hopsum_evaluation.drill.base import DrillContext, DrillError, DrillReport
from hopsum_evaluation.drill.catalogue import DRILLS
from hopsum_evaluation.drill.screen import catalogue_table, details, report_table
from hopsum_topologies.launch import die_with_parent
from hopsum_topologies.tempdirs import temporary_directory

_ALL: Final = "all"
_LIST: Final = "list"
_MAX_SCALE: Final = 1000.0
_JOIN_S: Final = 20.0


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = argparse.ArgumentParser(
        prog="hopsum drill",
        description="Kill, pause, restart and cut off parts of a real system, and check that nothing is lost, doubled "
        "or hung. Everything runs on this machine, in a temporary folder, and is taken away again.",
        epilog=f"`hopsum drill {_LIST}` says what there is; docs/reliability.md what each of them proves.",
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"names of drills, {_ALL!r} (the default), or {_LIST!r}"
    )
    parser.add_argument("--target", choices=("native", "bmv2"), default="native", help="switch (default native)")
    parser.add_argument("--scale", type=float, default=1.0, help="factor of the training steps (default 1)")
    parser.add_argument("--seed", type=int, default=1, help="seed of models and gradients (default 1)")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else on stdout")
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="keep logs and journals in this folder, a folder per drill"
    )
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run drills. Return 1 if one fails, or one of its checks is False."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    console = Console(stderr=options.json)
    if options.names == [_LIST]:
        if options.json:
            print(json.dumps({name: drill.what for name, drill in DRILLS.items()}))
        else:
            console.print(catalogue_table(options.target))
        return 0
    names = list(DRILLS) if options.names in ([], [_ALL]) else options.names
    for name in names:
        if name not in DRILLS:
            parser.error(f"no drill {name!r}; there are {', '.join(DRILLS)}; or {_ALL}, {_LIST}")
        if options.keep is not None and (options.keep / name).exists():
            parser.error(f"--keep {options.keep}: {options.keep / name} is there already; name another folder")
    if not 0 < options.scale <= _MAX_SCALE:
        parser.error(f"--scale {options.scale:g}: above 0, at most {_MAX_SCALE:g}")
    reports = run_all(names, options, console)
    if options.json:
        print(json.dumps(_document(reports)))
    else:
        console.print(report_table(reports))
        console.print(details(reports))
    return 0 if all(report.ok for report in reports) else 1


def run_all(names: Sequence[str], options: argparse.Namespace, console: Console) -> list[DrillReport]:
    """Run drills one after the other."""
    label, doing = TextColumn("{task.description:18}"), TextColumn("{task.fields[doing]}")
    reports = []
    with Progress(label, BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn(), doing, console=console) as progress:
        task = progress.add_task("", total=len(names), doing="")
        for name in names:
            progress.update(task, description=name, doing="")
            reports.append(run_one(name, options, lambda text: progress.update(task, doing=text)))
            progress.advance(task)
        progress.update(task, description="drills", doing="")
    return reports


def run_one(name: str, options: argparse.Namespace, note: Callable[[str], None]) -> DrillReport:
    """Run a drill in a process of its own. What it does goes to `note`."""
    reason = DRILLS[name].needs(options.target)
    if reason:
        return DrillReport(name, options.target, skipped=reason)
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    with temporary_directory("drill") as temporary:
        folder = temporary if options.keep is None else options.keep / name
        folder.mkdir(parents=True, exist_ok=True)
        context = DrillContext(options.target, folder, options.seed, options.scale)
        process = spawn.Process(target=_run, args=(name, context, os.getpid(), theirs))
        process.start()
        theirs.close()  # the end of the process is EOF here only if no other end is open
        report = DrillReport(name, options.target, failure="its process ended without a report")
        try:
            while True:
                message = ours.recv()
                if isinstance(message, DrillReport):
                    report = message
                else:
                    note(message)
        except EOFError:
            process.join(_JOIN_S)
        finally:
            if process.is_alive():  # it hangs at its end, or this process was interrupted
                process.kill()
            process.join()
    return report


def _run(name: str, context: DrillContext, parent_pid: int, pipe: Connection) -> None:
    die_with_parent(parent_pid)
    context = replace(context, note=pipe.send)
    try:
        report = DRILLS[name].run(context)
    except DrillError as error:
        report = DrillReport(name, context.target, failure=str(error))
    except Exception as error:
        report = DrillReport(name, context.target, failure=f"{type(error).__name__}: {error}")
        traceback.print_exc()
    pipe.send(report)


def _document(reports: Sequence[DrillReport]) -> dict[str, object]:
    return {
        "drills": [report.as_json() for report in reports],
        "ok": all(report.ok for report in reports),
        "machine": machine(),
        "versions": versions("hopsum", "numpy", "grpcio"),
        "commit": commit(),
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
