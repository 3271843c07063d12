# SPDX-License-Identifier: Apache-2.0
"""Compile a student's program, try every case of its level on a fresh switch, and count the points."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from hopsum_labs.control_plane import ProgramError
from hopsum_labs.lab_switch import StartSwitch, Testbed, start_embedded
from hopsum_labs.levels import PROGRAM, WORKER, Level
from hopsum_labs.rule_checks import Case, Failed, LabError
from hopsum_labs.workers import Workers

COMPILER = "p4c-bm2-ss"
# Ends a compiler that hangs. These programs take a second.
_COMPILE_S = 600
HOW_TO_GET_P4C = (
    f"{COMPILER} is not on PATH. p4lang has packages for Debian and Ubuntu (https://github.com/p4lang/p4c#installing). "
    "To see the grader without a compiler: hopsum lab grade LEVEL --solution"
)


@dataclass(frozen=True)
class CompiledProgram:
    """A compiled program: p4c's JSON and P4Info."""

    program: Path
    p4info: Path


@dataclass(frozen=True)
class Verdict:
    """The outcome of a case. `reason` is empty where the rule was kept."""

    case: Case
    reason: str

    @property
    def points(self) -> int:
        """The points of the case, or 0 where the rule was broken."""
        return 0 if self.reason else self.case.points


def compiled_solution(level: Level) -> CompiledProgram:
    """Return the solution as it was compiled for the installation."""
    return CompiledProgram(level.solution / f"{PROGRAM}.json", level.solution / f"{PROGRAM}.p4info.txtpb")


def compile_program(source: Path, folder: Path) -> CompiledProgram:
    """Compile `source` into `folder`.

    Raises LabError: no compiler, no such file, or the program is wrong, with the compiler's own words.
    """
    if shutil.which(COMPILER) is None:
        raise LabError(HOW_TO_GET_P4C)
    if not source.is_file():
        raise LabError(f"{source} is not there; `hopsum lab start LEVEL FOLDER` makes a folder with it")
    made = CompiledProgram(folder / f"{PROGRAM}.json", folder / f"{PROGRAM}.p4info.txtpb")
    command = [COMPILER, "--arch", "v1model", "--std", "p4-16", source.name]
    command += ["-o", str(made.program.absolute()), "--p4runtime-files", str(made.p4info.absolute())]
    try:
        done = subprocess.run(
            command, cwd=source.parent, capture_output=True, text=True, timeout=_COMPILE_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise LabError(f"{COMPILER} had not compiled {source} after {_COMPILE_S} s") from None
    if done.returncode:
        raise LabError(f"{COMPILER} refuses {source}:\n{done.stderr.strip()}")
    return made


def grade(cases: Sequence[Case], compiled: CompiledProgram, start: StartSwitch = start_embedded) -> Iterator[Verdict]:
    """Try every case in order, each on a new switch. Yield a verdict as soon as its case has ended.

    Raises LabError: the switch does not load the program, or does not start.
    """
    for case in cases:
        try:
            # A switch for each case: registers that one rule left would decide the next one.
            switch = Testbed(compiled.program, compiled.p4info, start)
        except ProgramError as error:
            raise LabError(str(error)) from error
        with switch:
            yield Verdict(case, _reason_of(partial(case.check, switch)))


def grade_worker(level: Level, worker: Path) -> Iterator[Verdict]:
    """Try a worker on embedded switches with the solution, and yield a verdict for each case of the level's worker.

    So the verdicts are not about the student's switch. A level without a worker has none.
    """
    # Points for the worker must not depend on the student's switch.
    solution = compiled_solution(level)
    for case in level.worker_cases():
        with Testbed(solution.program, solution.p4info) as switch:
            yield Verdict(case, _reason_of(partial(_check_worker, case, worker, switch)))


def grade_folder(level: Level, folder: Path, start: StartSwitch = start_embedded) -> Iterator[Verdict]:
    """Compile and grade a student's program, then the worker. Yield the verdicts.

    Raises LabError as `compile_program` and `grade` do.
    """
    with TemporaryDirectory(prefix="hopsum-lab-") as made:
        yield from grade(level.cases(), compile_program(folder / f"{PROGRAM}.p4", Path(made)), start)
    yield from grade_worker(level, folder / WORKER)


def grade_solution(level: Level, start: StartSwitch = start_embedded) -> Iterator[Verdict]:
    """Grade the compiled solution and its worker. Yield the verdicts. Raises LabError as `grade` does."""
    yield from grade(level.cases(), compiled_solution(level), start)
    yield from grade_worker(level, level.solution / WORKER)


def _check_worker(case: Case, worker: Path, switch: Testbed) -> None:
    with Workers(worker) as workers:
        case.check(workers, switch)


def _reason_of(check: Callable[[], None]) -> str:
    try:
        check()
    except (Failed, ProgramError) as error:
        return str(error)
    return ""
