# SPDX-License-Identifier: Apache-2.0
"""The levels of the course: their names, folders and cases."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path

from hopsum_labs.case import Case
from hopsum_labs.control_plane import ControlPlane

_HERE = Path(__file__).parent
PROGRAM = "aggregate"
"""Stem of a level's P4 program: `aggregate.p4`, `aggregate.json`, `aggregate.p4info.txtpb`."""
WORKER = "worker.py"
"""The file with a level's worker."""


class LabError(Exception):
    """Something that the student or the installation has to mend; the text says what and how."""


@dataclass(frozen=True)
class Level:
    """One exercise. `word` names its folders, the module of its cases, and the level on the command line."""

    word: str
    title: str

    @property
    def exercise(self) -> Path:
        """The folder that a student gets a copy of."""
        return _HERE / "exercises" / self.word

    @property
    def solution(self) -> Path:
        """The folder of the solution: P4 program, what p4c makes of it, and the worker."""
        return _HERE / "solutions" / self.word

    def cases(self) -> tuple[Case, ...]:
        """Return what the grader tries, in the order of the handout."""
        cases: tuple[Case, ...] = importlib.import_module(f"hopsum_labs.cases.{self.word}").CASES
        return cases

    def worker_cases(self) -> tuple[Case, ...]:
        """Return what the grader tries with the level's `worker.py`; nothing where the level has none."""
        module = importlib.import_module(f"hopsum_labs.cases.{self.word}")
        cases: tuple[Case, ...] = getattr(module, "WORKER_CASES", ())
        return cases

    def set_up(self, switch: ControlPlane, workers: int) -> None:
        """Write what the handout's control plane writes, for workers at the ports from 1 on."""
        importlib.import_module(f"hopsum_labs.cases.{self.word}").set_up(switch, workers)

    @property
    def points(self) -> int:
        """The points of all cases."""
        return sum(case.points for case in (*self.cases(), *self.worker_cases()))


LEVELS = {
    level.word: level
    for level in (
        Level("ethernet", "level 1: add vectors, over Ethernet"),
        Level("udp", "level 2: add vectors, over UDP, beside ordinary traffic"),
        Level("loss", "level 3: add vectors although packets are lost"),
        Level("slots", "bonus: several slots, for several chunks under way"),
    )
}
