# SPDX-License-Identifier: Apache-2.0
"""The base of drills: their context, their report and its checks, and waits with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from hopsum_topologies.process import ManagedProcess

CHECKS: Final = ("replicas_equal", "mass_conserved", "nothing_left_behind")
PATIENCE_S: Final = 60.0
"""The wait for an event that should come at once: an overloaded machine takes its time."""
_POLL_S: Final = 0.02


class DrillError(Exception):
    """An event that the drill waits for did not come, or a bound was missed. The message names it."""


class DrillSkipped(Exception):  # noqa: N818
    """This machine can not run the drill. The message names the reason."""


class Check(NamedTuple):
    """One of CHECKS: whether it holds, and the text of the comparison."""

    ok: bool
    why: str


@dataclass
class DrillReport:
    """The findings of a drill. Its `checks` are computed from journals and the switch, never assumed."""

    name: str
    target: str
    events: list[tuple[str, float]] = field(default_factory=list)
    """The faults and repairs, each with its seconds since the drill began."""
    times: dict[str, float] = field(default_factory=dict)
    """The seconds that something took, by what."""
    lost_norms: dict[int, float] = field(default_factory=dict)
    """The norms of the error feedback that died with a worker, by rank."""
    checks: dict[str, Check] = field(default_factory=dict)
    steps: int = 0
    """The training steps that all live workers have done."""
    seconds: float = 0.0
    failure: str = ""
    skipped: str = ""

    def took(self, seconds: float, what: str) -> None:
        """Note the seconds from a fault or a repair to its sign, the longest of several."""
        self.times[what] = max(seconds, self.times.get(what, 0.0))


@dataclass(frozen=True)
class DrillContext:
    """The arguments of a drill.

    Args:
        name: the drill's name in the catalogue.
        target: the switch, `native` or `bmv2`.
        folder: empty; takes logs, journals and the controller's database.
        seed: of models, gradients and random choices.
        scale: factor of the training steps between two events. Below 1 some leases and pauses are shorter too.
    """

    name: str
    target: str
    folder: Path
    seed: int = 1
    scale: float = 1.0

    def steps(self, count: int) -> int:
        """Scale a number of steps."""
        return max(1, round(count * self.scale))

    def seats_for(self, workers: int) -> int:
        """Return the number of network namespaces that workers need: none on loopback, which bmv2 has not."""
        return workers if self.target == "bmv2" else 0


def await_that(
    condition: Callable[[], object], what: str, *, within_s: float = PATIENCE_S, alive: ManagedProcess | None = None
) -> None:
    """Wait until a condition holds. Raises DrillError after `within_s`, or when the process `alive` ends before."""
    give_up = time.monotonic() + within_s
    while not condition():
        if alive is not None and not alive.running():
            raise DrillError(f"{alive.name} ended before {what}: {alive.log_text()[-1500:].strip()}")
        if time.monotonic() > give_up:
            raise DrillError(f"no {what} within {within_s:g} s")
        time.sleep(_POLL_S)


def first_sign(look: Callable[[], float | None], what: str, *, within_s: float = PATIENCE_S) -> float:
    """Wait until `look` returns a time, and return it. Raises DrillError after `within_s`."""
    found: list[float] = []

    def there() -> bool:
        at_s = look()
        if at_s is not None:
            found.append(at_s)
        return bool(found)

    await_that(there, what, within_s=within_s)
    return found[0]


def require_within(what: str, took_s: float, bound_s: float) -> None:
    """Raise DrillError where something took longer than it may."""
    if took_s > bound_s:
        raise DrillError(f"{what} after {took_s:.1f} s, {bound_s:g} s are allowed")
