# SPDX-License-Identifier: Apache-2.0
"""Processes on cores: the choice of the core for each process, and the CPU time of a process from its /proc entry."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class CpuTime(NamedTuple):
    """Seconds of all threads of a process, in its own code and in the kernel."""

    user_s: float
    system_s: float


def cpu_time(pid: int) -> CpuTime:
    """Read what a process has used, in steps of 10 ms. Raises OSError when there is none."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return CpuTime(int(fields[11]) / _TICKS_PER_S, int(fields[12]) / _TICKS_PER_S)


def memory(pid: int) -> dict[str, int]:
    """Return the resident bytes of a process, `rss` now and `peak`. Raises OSError when there is none."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {name: int(lines[key].split()[0]) * 1024 for name, key in (("rss", "VmRSS"), ("peak", "VmHWM"))}


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

    Yields whether it is so: with one core there is nothing to choose.
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
    with suppress(FileNotFoundError):  # the process has ended
        return [int(entry.name) for entry in Path(f"/proc/{pid}/task").iterdir()]
    return []


def _pin(threads: list[int], cores: set[int]) -> None:
    for thread in threads:
        with suppress(ProcessLookupError):  # a thread may end at any time
            os.sched_setaffinity(thread, cores)
