# SPDX-License-Identifier: Apache-2.0
"""Times in words, and the tones of a job's health, for every view of a controller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

TONES: Final = {"healthy": "good", "idle": "quiet", "waiting": "wait", "failed": "wait", "degraded": "bad"}
"""The tone of each health. `stalled` is bad, and so is a word that this version does not know."""
_UNITS: Final = ((86400, "days"), (3600, "h"), (60, "min"))
_TWO: Final = 2


def ago(seconds: float | None) -> str:
    """Return how long something is over, "6 min ago", or "at an unknown time" for None."""
    if seconds is None:
        return "at an unknown time"
    for size, unit in _UNITS:
        if seconds >= _TWO * size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def tone(job: Mapping[str, Any]) -> str:
    """Return good, quiet, wait or bad: how a job's state is to be shown."""
    return TONES.get(job["health"], "bad")


def state(job: Mapping[str, Any]) -> str:
    """Return a job's state, with its health beside it unless that is good: "running, stalled"."""
    return str(job["state"]) if job["health"] == "healthy" else f"{job['state']}, {job['health']}"


def switch_path(switches: Sequence[str], shards: int) -> str:
    """Return the switches of a job in words: its one switch, `LEAF, LEAF, then SPINE`, or `SHARD + SHARD`."""
    if shards > 1:
        return " + ".join(switches)
    *leaves, top = switches
    return f"{', '.join(leaves)}, then {top}" if leaves else top
