# SPDX-License-Identifier: Apache-2.0
"""Time dilation: few processors measure as more would, K times as long.

Gupta et al., To Infinity and Beyond: Time-Warped Network Emulation (NSDI 2006). Rates of links are divided by K, delays
and the timers of hopsum's workers multiplied by K. Each worker and each switch has 1/K of a processor, and measured
times are divided by K: the times of links K times as fast and of a whole processor for each process. K = 2.5 makes of
two processors one for each of four workers and a switch. Processor times stay as they are. Timers of the kernel's TCP,
of side channels and of the switch are not multiplied: they count where something was lost.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Final

from hopsum.agent import TIMING
from hopsum.protocol.worker import Timing
from hopsum_base.units import rate_bits_per_s
from hopsum_topologies.errors import TopologyError

MOST: Final = 50.0
# A few milliseconds: a process that has used up its share stops for less than a round trip over a busy link takes.
_PERIOD_US: Final = 5000
# The kernel refuses a smaller quota.
_LEAST_QUOTA_US: Final = 1000
_NAME: Final = re.compile(r"hopsum-(\d+)-\d+")


def add_dilate_option(parser: argparse.ArgumentParser) -> None:
    """Add --dilate."""
    parser.add_argument(
        "--dilate", type=_factor, default=1.0, metavar="K",
        help="factor of time dilation: links K times as slow, 1/K of a processor for each worker and switch, times "
        "divided by K (default: none)",
    )  # fmt: skip


def _factor(text: str) -> float:
    with suppress(ValueError):
        if 1 <= (factor := float(text)) <= MOST:
            return factor
    raise argparse.ArgumentTypeError(f"{text!r}: a factor of 1 to {MOST:g}")


def dilated_rate(rate: str | None, factor: float) -> str | None:
    """Return a rate in tc's notation divided by the factor. None, for links that are not shaped, stays None.

    Raises ArgumentTypeError for a rate that is none.
    """
    return rate if rate is None or factor == 1 else f"{rate_bits_per_s(rate) / factor:.0f}bit"


def dilated_timing(factor: float) -> Timing:
    """Return an agent's usual timing with all times multiplied by the factor."""
    given = asdict(TIMING)
    return Timing(**{name: s * factor if name.endswith("_s") and s is not None else s for name, s in given.items()})


class ProcessorQuotas:
    """Control groups of version 1 or 2, each with 1/factor of a processor for the processes of one worker or switch.

    A context manager that removes the groups. The processes must have ended then. With a factor of 1 there are none.

    Raises TopologyError where no group can be made. Nothing is left then.
    """

    def __init__(self, factor: float, mounts: Path = Path("/proc/self/mounts")) -> None:
        self._factor = factor
        self._groups: list[Path] = []
        if factor == 1:
            return
        try:
            self._home, self._second = _find_home(mounts)
            _remove_stale(self._home)
            # The first group is tried here, before links and processes are made.
            self._make()
        except OSError as error:
            self.close()
            raise TopologyError(
                f"--dilate: no control group with a quota of processor time can be made: {error}; be root, on a "
                "machine or in a container (docker run --privileged) whose cgroup file system can be written"
            ) from error

    def assign(self, programs: Iterable[Iterable[int | None]]) -> None:
        """Move processes into control groups, one for each program: the ids of its processes. Raises OSError.

        With a factor of 1 nothing is done. An id of None is left out. Missing groups are made.
        """
        for number, processes in enumerate(programs if self._factor > 1 else ()):
            if number == len(self._groups):
                self._make()
            for process in filter(None, processes):
                (self._groups[number] / "cgroup.procs").write_text(str(process))

    def _make(self) -> None:
        group = self._home / f"hopsum-{os.getpid()}-{len(self._groups)}"
        group.mkdir()
        self._groups.append(group)
        quota_us = max(_LEAST_QUOTA_US, round(_PERIOD_US / self._factor))
        period_us = round(quota_us * self._factor)
        if self._second:
            (group / "cpu.max").write_text(f"{quota_us} {period_us}")
            return
        (group / "cpu.cfs_period_us").write_text(str(period_us))
        (group / "cpu.cfs_quota_us").write_text(str(quota_us))

    def close(self) -> None:
        """Remove the groups. A group that still has a process stays, for the next owner to remove."""
        for group in self._groups:
            with suppress(OSError):
                group.rmdir()
        self._groups.clear()

    def __enter__(self) -> ProcessorQuotas:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _find_home(mounts: Path) -> tuple[Path, bool]:
    """Find the folder of control groups that share out processors, and whether its version is 2. Raises OSError."""
    for line in mounts.read_text().splitlines():
        _, folder, kind, options, *_ = line.split()
        if kind == "cgroup" and "cpu" in options.split(","):
            return Path(folder), False
        if kind == "cgroup2" and "cpu" in (Path(folder) / "cgroup.controllers").read_text().split():
            # Groups below have files of the controller only where their parent hands it on.
            (Path(folder) / "cgroup.subtree_control").write_text("+cpu")
            return Path(folder), True
    raise FileNotFoundError(f"{mounts} has no cgroup file system with the controller cpu")


def _remove_stale(home: Path) -> None:
    """Remove the groups of owners that were killed."""
    for group in home.glob("hopsum-*"):
        match = _NAME.fullmatch(group.name)
        if match is not None and not Path(f"/proc/{match[1]}").exists():
            with suppress(OSError):
                group.rmdir()
