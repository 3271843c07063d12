# SPDX-License-Identifier: Apache-2.0
"""The levels of the course: their names, folders and cases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from hopsum_labs.cases import ethernet, floats, loss, racks, slots, udp
from hopsum_labs.control_plane import ControlPlane
from hopsum_labs.packets import network_port
from hopsum_labs.rule_checks import Case, LabError

_HERE = Path(__file__).parent
PROGRAM = "aggregate"
"""Stem of a level's P4 program: `aggregate.p4`, `aggregate.json`, `aggregate.p4info.txtpb`."""
WORKER = "worker.py"
"""The file with a level's worker."""


@dataclass(frozen=True)
class Level:
    """One exercise. `word` names its folders, and the level on the command line. `module` has the grader's cases."""

    word: str
    title: str
    module: ModuleType

    @property
    def exercise(self) -> Path:
        """The folder that a student gets a copy of."""
        return _HERE / "exercises" / self.word

    @property
    def solution(self) -> Path:
        """The folder of the solution: P4 program, p4c's output for it, and the worker."""
        return _HERE / "solutions" / self.word

    def cases(self) -> tuple[Case, ...]:
        """Return the grader's cases, in the order of the handout."""
        cases: tuple[Case, ...] = self.module.CASES
        return cases

    def worker_cases(self) -> tuple[Case, ...]:
        """Return the grader's cases for the level's `worker.py`, or no cases where the level has no worker."""
        cases: tuple[Case, ...] = getattr(self.module, "WORKER_CASES", ())
        return cases

    def set_up_network(self, switches: Mapping[str, ControlPlane], network: Mapping[str, Any]) -> None:
        """Write the entries of the handout's control plane to the switches of a network, by name.

        `network` is the description that `hopsum topology run --program` passes. Raises LabError: the level is for
        another network.
        """
        if hasattr(self.module, "set_up_network"):
            self.module.set_up_network(switches, network)
            return
        if len(switches) != 1:
            raise LabError(f"a network with one switch is needed; this one has {', '.join(switches)}")
        (switch,) = switches.values()
        self.module.set_up(switch, len(network["hosts"]), port=network_port)

    @property
    def points(self) -> int:
        """The points of all cases."""
        return sum(case.points for case in (*self.cases(), *self.worker_cases()))


LEVELS = {
    level.word: level
    for level in (
        Level("ethernet", "level 1: add vectors, over Ethernet", ethernet),
        Level("udp", "level 2: add vectors, over UDP, beside ordinary traffic", udp),
        Level("loss", "level 3: add vectors although packets are lost", loss),
        Level("slots", "bonus: several slots, for several chunks under way", slots),
        Level("floats", "bonus: floats in 4 bits, with a lookup table", floats),
        Level("racks", "bonus: two racks and a spine", racks),
    )
}
