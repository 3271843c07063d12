# SPDX-License-Identifier: Apache-2.0
"""Commands that run to their end, and checks that a killed one leaves no process and no namespace."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

DEADLINE_S = 300.0


def run_hopsum(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run `hopsum` with these words to its end; options are those of subprocess.run."""
    command = [sys.executable, "-m", "hopsum_cli.main", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=3 * DEADLINE_S, **options)


def assert_killed_leaves_nothing(
    command: list[str], processes: int, environment: Mapping[str, str] | None = None
) -> None:
    """Start a command, wait until it has so many descendants, SIGKILL it, and wait for all of them to end."""
    parent = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        await_that(lambda: len(descendants(parent.pid)) >= processes, "the processes")
        children = descendants(parent.pid)
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    await_that(lambda: not any(is_alive(child) for child in children), "the end of the processes")
    await_that(lambda: not namespaces(parent.pid), "the end of the namespaces, and of the veths in them")


def namespaces(pid: int) -> list[Path]:
    return list(Path("/var/run/netns").glob(f"hopsum-{pid}-*"))


def await_that(condition: Callable[[], object], what: str = "sign of the awaited event") -> None:
    """Wait until a condition holds. Fails after DEADLINE_S, so long that no overloaded machine needs it."""
    give_up = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < give_up, f"no {what} in {DEADLINE_S:.0f} s"
        time.sleep(0.01)


def descendants(pid: int) -> set[int]:
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        parents[int(path.parent.name)] = int(fields[1])
    found: set[int] = set()
    while more := {child for child, parent in parents.items() if parent in found | {pid}} - found:
        found |= more
    return found


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
