# SPDX-License-Identifier: Apache-2.0
"""The base of drills: a drill, its context, and its report."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from hopsum_topologies.bmv2 import bmv2_unavailable
from hopsum_topologies.process import ManagedProcess

CHECKS: Final = ("replicas_equal", "mass_conserved", "nothing_left_behind")
PATIENCE_S: Final = 60.0
"""The wait for whatever should come at once: a busy machine takes its time."""
_POLL_S: Final = 0.02


class DrillError(Exception):
    """Something that the drill waits for did not come. The message says what, and what there was instead."""


class DrillEvent(NamedTuple):
    """Something that the drill did."""

    what: str
    at_s: float
    """The time since its first step."""


class Check(NamedTuple):
    """One of CHECKS: whether it holds, None where it does not apply. What was compared, or why not."""

    ok: bool | None
    why: str


@dataclass
class DrillReport:
    """The findings of a drill. Its `checks` are computed, never assumed."""

    name: str
    target: str
    killed: list[DrillEvent] = field(default_factory=list)
    detected_ms: float | None = None
    """The time from the event to its first sign, which `detected` names."""
    detected: str = ""
    recovered: str = ""
    numbers: dict[str, float] = field(default_factory=dict)
    """The numbers of what was recovered, with units in their names."""
    checks: dict[str, Check] = field(default_factory=dict)
    steps: int = 0
    """The steps that all live workers have done."""
    seconds: float = 0.0
    failure: str = ""
    """The words for what did not come, or broke."""
    skipped: str = ""
    """The reason why it cannot run here."""

    @property
    def ok(self) -> bool:
        """Return whether it came to its end and no check is False."""
        return not self.failure and not any(check.ok is False for check in self.checks.values())

    def as_json(self) -> dict[str, Any]:
        """Return the object that --json prints."""
        return {
            "name": self.name,
            "target": self.target,
            "ok": None if self.skipped else self.ok,
            "skipped": self.skipped or None,
            "failure": self.failure or None,
            "killed": [{"what": event.what, "at_s": round(event.at_s, 3)} for event in self.killed],
            "detected_ms": None if self.detected_ms is None else round(self.detected_ms, 1),
            "detected": self.detected,
            "recovered": self.recovered,
            "numbers": self.numbers,
            "checks": {name: check.ok for name, check in self.checks.items()},
            "why": {name: check.why for name, check in self.checks.items()},
            "steps": self.steps,
            "seconds": round(self.seconds, 2),
        }


@dataclass(frozen=True)
class DrillContext:
    """What a drill is given. `scale` makes it long: steps between two events are multiplied by it."""

    target: str
    folder: Path
    """Empty. Its owner removes it after the drill."""
    seed: int = 1
    scale: float = 1.0
    note: Callable[[str], object] = str
    """Takes what the drill is doing, for who looks on."""

    def steps(self, count: int) -> int:
        """Return how many steps `count` of a small run are in this one."""
        return max(1, round(count * self.scale))


@dataclass(frozen=True)
class Drill:
    """One drill. `needs` returns why it cannot run on a target here, an empty string when it can."""

    name: str
    what: str
    needs: Callable[[str], str]
    run: Callable[[DrillContext], DrillReport]


def await_that(
    condition: Callable[[], object], what: str, *, within_s: float = PATIENCE_S, alive: ManagedProcess | None = None
) -> None:
    """Wait until a condition holds. Raises DrillError when it does not in time, or a process ends before."""
    give_up = time.monotonic() + within_s
    while not condition():
        if alive is not None and not alive.running():
            raise DrillError(f"{alive.name} ended before {what}: {alive.log_text()[-1500:].strip()}")
        if time.monotonic() > give_up:
            raise DrillError(f"no {what} within {within_s:g} s")
        time.sleep(_POLL_S)


def needs_nothing(target: str) -> str:
    """Return why a drill that needs only the target cannot run on it."""
    return needs_namespaces(target) if target == "bmv2" else ""


def needs_namespaces(target: str) -> str:
    """The same for a drill whose workers have network namespaces of their own."""
    if target == "bmv2":
        return bmv2_unavailable() or ""
    if shutil.which("ip") is None:
        return "the `ip` command (iproute2) is not on PATH"
    return "" if os.geteuid() == 0 else "network namespaces need root"
