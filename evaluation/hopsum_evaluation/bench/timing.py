# SPDX-License-Identifier: Apache-2.0
"""Medians of alternating runs, where the runs took place, and cores and processor time of processes."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple


@dataclass(frozen=True, slots=True)
class Rate:
    """Median, least and greatest of several runs: units per second, or seconds."""

    median: float
    low: float
    high: float

    def as_json(self, key: str, digits: int | None = None) -> dict[str, float]:
        """Return the values of key, key_min and key_max, rounded to `digits` decimal digits. None: to integers."""
        values = {key: self.median, f"{key}_min": self.low, f"{key}_max": self.high}
        return {name: round(value, digits) for name, value in values.items()}


def measure(actions: Mapping[str, Callable[[], object]], units: int, runs: int) -> dict[str, Rate]:
    """Time actions that handle `units` each: once to warm up, then `runs` rounds through all of them in turn.

    Returns units per second by action. In turn, so that other load on the machine meets all actions alike.
    """
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
    """Return a description of this machine for JSON: processor, cores that this process may use, load, system."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "load_1min": round(os.getloadavg()[0], 2),
        "system": platform.platform(),
    }


def versions(*packages: str) -> dict[str, str | None]:
    """Return the versions of Python (key "python") and of packages, by name. None: not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


def source_commit() -> str | None:
    """Return the commit of the source tree, with "-dirty" where files differ. None outside a repository, or no git."""
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


_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class CpuTime(NamedTuple):
    """Processor time of all threads of a process, in its own code and in the kernel."""

    user_s: float
    system_s: float


def cpu_time(pid: int) -> CpuTime:
    """Read the processor time of a process, in steps of 10 ms. Raises OSError where there is no such process."""
    # The name of the process, in brackets, may have spaces: fields are counted behind it.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return CpuTime(int(fields[11]) / _TICKS_PER_S, int(fields[12]) / _TICKS_PER_S)


def processor_s(pid: int) -> float:
    """Read the processor time of all threads of a process, to the nanosecond, those that ended included.

    Raises OSError where there is no such process.
    """
    # The number of a process's clock in Linux, as clock_getcpuclockid(3) makes it. /proc/PID/stat counts in 10 ms.
    return time.clock_gettime((~pid << 3) | 2)


def memory(pid: int) -> dict[str, int]:
    """Read the resident bytes of a process, `rss` now and `peak`. Raises OSError where there is no such process."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {name: int(lines[key].split()[0]) * 1024 for name, key in (("rss", "VmRSS"), ("peak", "VmHWM"))}


def processors_of(workers: int, switches: int, cores: int, factor: float = 1.0) -> str:
    """Return a line of text with the number of processors for workers and switches. It begins with a fault, if any.

    The fault is "oversubscribed". `factor` is that of time dilation, which needs one dilated processor for each.
    Without dilation two for each are enough: one computes while the kernel's part of the network has the other.
    """
    programs = workers + switches
    named = f"{workers} workers and {switches} {'switch' if switches == 1 else 'switches'}"
    if factor > 1:
        held = f"dilated {factor:g} times: one processor for each of {named}, out of {cores}"
        return (
            held
            if programs <= factor * cores
            else f"oversubscribed: {held}, which are too few by {programs / factor:g}"
        )
    if is_oversubscribed(workers, switches, cores):
        return (
            f"oversubscribed: {named} share {cores} processors with everything else; with two for each "
            f"({2 * programs}) the figures would differ"
        )
    return f"{cores} processors for {named} and everything else"


def is_oversubscribed(workers: int, switches: int, cores: int) -> bool:
    """Return True if there are fewer processors (`cores`) than two for each worker and switch."""
    return cores < 2 * (workers + switches)


@contextmanager
def one_core() -> Iterator[int]:
    """Keep all threads of this process, and processes it starts, on one core for the block. Yields its number.

    The last one: the kernel prefers the first for its own work.
    """
    allowed = os.sched_getaffinity(0)
    core = max(allowed)
    _pin(_threads(os.getpid()), {core})
    try:
        yield core
    finally:
        _pin(_threads(os.getpid()), allowed)


@contextmanager
def two_cores(pid: int) -> Iterator[bool]:
    """Keep the calling thread on this process's first core and process `pid` on its last, for the block.

    Yields True, or False where this process has one core only: then nothing is changed.
    """
    allowed = os.sched_getaffinity(0)
    if len(allowed) < 2:
        yield False
        return
    _pin(_threads(pid), {max(allowed)})
    os.sched_setaffinity(0, {min(allowed)})
    try:
        yield True
    finally:
        os.sched_setaffinity(0, allowed)
        _pin(_threads(pid), allowed)


def _threads(pid: int) -> list[int]:
    # The process may have ended meanwhile.
    with suppress(FileNotFoundError):
        return [int(entry.name) for entry in Path(f"/proc/{pid}/task").iterdir()]
    return []


def _pin(threads: list[int], cores: set[int]) -> None:
    for thread in threads:
        # A thread may end between the listing and this call.
        with suppress(ProcessLookupError):
            os.sched_setaffinity(thread, cores)
