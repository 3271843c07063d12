# SPDX-License-Identifier: Apache-2.0
"""A table of each attack, made in turn: `python -m tests.system.hostile [ATTACK ...]`."""

from __future__ import annotations

import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from .attacker import ATTACKS
from .site import HostileSite, Watched

SECONDS: Final = 8.0
TITLES: Final = ("steps/s", "`job list` ms, median", "most", "heartbeat ms, median", "most", "create + delete ms, most")


def row(name: str, found: Watched, counts: dict[str, int]) -> str:
    values = (found.list_ms, found.list_most_ms, found.heartbeat_ms, found.heartbeat_most_ms, found.create_most_ms)
    words = ", ".join(f"{count:,} {what}" for what, count in counts.items())
    return " | ".join((f"| {name}", f"{found.steps_a_second:.1f}", *(f"{each:.0f}" for each in values), f"{words} |"))


def main(names: list[str]) -> None:
    print(" | ".join(("| attack", *TITLES, "the attack's calls |")), "|---" * (len(TITLES) + 2) + "|", sep="\n")
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        site = HostileSite(Path(folder), stack)
        for name in names or ATTACKS:
            print(row("none", site.watch(SECONDS / 2), {}), flush=True)
            attacker = site.attack(name)
            found = site.watch(SECONDS)
            print(row(name, found, site.end(attacker)), flush=True)
        site.training.finish()
        site.training.check()
        print(f"generations of the victim: {site.training.generations()}; controller {found.controller_mb:.0f} MB")


main(sys.argv[1:])
