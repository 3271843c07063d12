# SPDX-License-Identifier: Apache-2.0
"""`hopsum lab`: start an exercise, test a program against its rules, grade it."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from hopsum_labs.grading import Verdict, grade_folder, grade_solution
from hopsum_labs.lab_switch import TARGETS
from hopsum_labs.levels import LEVELS, PROGRAM, WORKER, Level
from hopsum_labs.rule_checks import LabError

_EPILOG = """\
examples:
  hopsum lab list
  hopsum lab start ethernet my-switch     # a folder with the handout and a program with gaps
  hopsum lab test ethernet my-switch      # compile it; stop at the first rule that it breaks
  hopsum lab grade ethernet my-switch     # all rules, with points
  hopsum lab grade ethernet --solution    # the same for the solution; needs no compiler
  hopsum lab grade ethernet my-switch --target bmv2
"""
_WIDTH = 110


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = argparse.ArgumentParser(
        prog="hopsum lab",
        description="Write a P4 switch that aggregates, in levels, and have it graded. No root is needed.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    words = parser.add_subparsers(required=True, metavar="WORD")
    words.add_parser("list", help="show the levels and their points").set_defaults(run=_list)
    start = words.add_parser("start", help="copy a level's handout and skeleton into a new folder")
    _add_level(start)
    start.add_argument("folder", type=Path, metavar="FOLDER", help="the folder to make; must not exist")
    start.set_defaults(run=_start)
    for word, run, text in (
        ("test", _test, "compile the program of a folder and stop at the first rule that it breaks"),
        ("grade", _grade, "compile the program of a folder and count the points of all rules"),
    ):
        one = words.add_parser(word, help=text)
        _add_level(one)
        which = one.add_mutually_exclusive_group(required=True)
        which.add_argument("folder", type=Path, metavar="FOLDER", nargs="?", help=f"the folder with {PROGRAM}.p4")
        which.add_argument("--solution", action="store_true", help="take the compiled solution; needs no compiler")
        one.add_argument(
            "--target",
            choices=list(TARGETS),
            default="native",
            help="switch that runs the program: the embedded one (native, the default), or bmv2",
        )
        one.set_defaults(run=run)
        if word == "grade":
            one.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run the command. Return 1 if a rule is broken, or the program cannot be compiled or loaded, else 0."""
    options = build_parser().parse_args(arguments)
    try:
        status: int = options.run(options)
    except LabError as error:
        print(f"hopsum lab: {error}", file=sys.stderr)
        return 1
    return status


def _add_level(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("level", choices=list(LEVELS), metavar="LEVEL", help=f"one of {', '.join(LEVELS)}")


def _list(options: argparse.Namespace) -> int:
    for level in LEVELS.values():
        print(f"{level.word:10} {level.title} ({level.points} points)")
    return 0


def _start(options: argparse.Namespace) -> int:
    level, folder = LEVELS[options.level], options.folder
    try:
        shutil.copytree(level.exercise, folder, ignore=_left_behind)
    except FileExistsError:
        raise LabError(f"{folder} exists already; nothing was changed. Choose another folder") from None
    except OSError as error:
        raise LabError(f"{folder} cannot be made: {error}") from error
    print(f"{folder}/README.md is the handout. Fill the gaps of {_files(level)} in {folder}, then:")
    print(f"  hopsum lab test {level.word} {folder}")
    return 0


def _left_behind(folder: str, names: Sequence[str]) -> set[str]:
    """Return what is no part of an exercise: Python leaves bytecode there, an editor copies and locks."""
    return {name for name in names if name.startswith((".", "#")) or Path(name).suffix not in (".md", ".p4", ".py")}


def _files(level: Level) -> str:
    return f"{PROGRAM}.p4 and {WORKER}" if level.worker_cases() else f"{PROGRAM}.p4"


def _verdicts(options: argparse.Namespace) -> Iterator[Verdict]:
    level, start = LEVELS[options.level], TARGETS[options.target]
    if options.solution:
        return grade_solution(level, start)
    return grade_folder(level, options.folder, start)


def _test(options: argparse.Namespace) -> int:
    for verdict in _verdicts(options):
        _show(verdict)
        if verdict.reason:
            return 1
    return 0


def _grade(options: argparse.Namespace) -> int:
    if options.json:
        verdicts = list(_verdicts(options))
        print(json.dumps(_document(LEVELS[options.level], verdicts), indent=2))
    else:
        verdicts = list(_shown(_verdicts(options)))
        print(f"{sum(verdict.points for verdict in verdicts)} of {LEVELS[options.level].points} points")
    return int(any(verdict.reason for verdict in verdicts))


def _shown(verdicts: Iterable[Verdict]) -> Iterator[Verdict]:
    for verdict in verdicts:
        _show(verdict)
        yield verdict


def _show(verdict: Verdict) -> None:
    case = verdict.case
    print(f"{verdict.points}/{case.points}  {case.name:24} {case.rule}", flush=True)
    if verdict.reason:
        print(textwrap.fill(verdict.reason, _WIDTH, initial_indent="     ", subsequent_indent="     "), flush=True)


def _document(level: Level, verdicts: Sequence[Verdict]) -> dict[str, object]:
    cases = [
        {
            "name": verdict.case.name,
            "rule": verdict.case.rule,
            "points": verdict.points,
            "of": verdict.case.points,
            "reason": verdict.reason,
        }
        for verdict in verdicts
    ]
    return {"level": level.word, "points": sum(one.points for one in verdicts), "of": level.points, "cases": cases}
