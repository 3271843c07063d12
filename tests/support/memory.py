# SPDX-License-Identifier: Apache-2.0
"""Resident memory of processes, for tests that watch it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def resident_kib(pid: int) -> int:
    """Return the resident memory of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


def growth_kib(samples: Sequence[int]) -> tuple[int, int]:
    """Return how far samples rise above that at a tenth of them, after it, and that one."""
    start = len(samples) // 10
    return max(samples[start:]) - samples[start], samples[start]
