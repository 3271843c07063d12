# SPDX-License-Identifier: Apache-2.0
"""Rates as medians of alternating runs, and a description of what they were measured on."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any


@dataclass(frozen=True, slots=True)
class Rate:
    """Units per second (or seconds) over several runs."""

    median: float
    low: float
    high: float

    def as_json(self, key: str, digits: int | None = None) -> dict[str, float]:
        """Return key, key_min and key_max, rounded to whole units or to so many decimal digits."""
        values = {key: self.median, f"{key}_min": self.low, f"{key}_max": self.high}
        return {name: round(value, digits) for name, value in values.items()}


def measure(actions: Mapping[str, Callable[[], object]], units: int, runs: int) -> dict[str, Rate]:
    """Time actions that handle `units` each: once to warm up, then `runs` rounds through all of them in turn."""
    for action in actions.values():
        action()
    seconds: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(runs):
        for name, action in actions.items():
            start = time.perf_counter()
            action()
            seconds[name].append(time.perf_counter() - start)
    return {name: Rate(units / median(took), units / max(took), units / min(took)) for name, took in seconds.items()}


def machine() -> dict[str, Any]:
    """Return processor, cores and load of this machine."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "load_1min": round(os.getloadavg()[0], 2),
        "system": platform.platform(),
    }


def versions(*packages: str) -> dict[str, str | None]:
    """Return the versions of Python and of packages, or None for what is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


def commit() -> str | None:
    """Return the commit of the source tree, with "-dirty" where files differ, or None outside a repository."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
