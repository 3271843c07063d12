# SPDX-License-Identifier: Apache-2.0
"""What a training by hosts:// survives, and what ends it, beside the same script in plain DDP.

`python -m tests.host.hosts.outages` prints the times of each outage at its full length, as docs/training.md has them.
Hosts are network namespaces with one rank each.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

from hopsum_topologies.star import Star

from ...support.processes import await_that

SCRIPT: Final = Path(__file__).with_name("outage_script.py")
LINE: Final = re.compile(r"^(connect|step \d+|end|error) (\d+\.\d+) (.*)$", re.MULTILINE)
GOAL_STEPS: Final = 60
"""Steps from the moment at which the goal is written: ranks are never so far apart, nor wait so long to read it."""


class Line(NamedTuple):
    """A line that a rank printed."""

    word: str
    at_s: float
    text: str


class Training:
    """A training on the hosts of a star, a rank on each, from its first step on. The stack ends its processes."""

    def __init__(
        self, stack: ExitStack, star: Star, folder: Path, way: str, *, settings: Sequence[dict[str, str]] = ()
    ) -> None:
        folder.mkdir()
        # Rules against datagrams come before that for addresses of the host itself, and apply to connected sockets too.
        for host in star.hosts:
            host.ip("rule", "add", "pref", "1", "lookup", "local")
            host.ip("rule", "del", "pref", "0")
            with host.inside():
                Path("/proc/sys/net/ipv4/udp_early_demux").write_text("0")
        self.star, self._folder, self.way = star, folder, way
        self.ranks = range(len(star.hosts))
        self.processes = []
        shared = {"MASTER_ADDR": star.host_ip(0), "MASTER_PORT": "29513", "WORLD_SIZE": str(len(star.hosts))}
        for rank, host in enumerate(star.hosts):
            own = {**shared, "RANK": str(rank), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0"}
            own["HOPSUM_URL"] = "hosts://"
            with self._log(rank).open("wb") as log:
                process = subprocess.Popen(
                    ["ip", "netns", "exec", host.name, sys.executable, str(SCRIPT), str(folder), way],
                    env={**os.environ, **own, **(settings[rank] if settings else {})},
                    stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                )  # fmt: skip
            self.processes.append(process)
            stack.callback(process.wait)
            stack.callback(process.kill)
        if not settings:
            self.continues(0.0)

    def lines(self, rank: int) -> list[Line]:
        return [Line(word, float(at_s), rest) for word, at_s, rest in LINE.findall(self.text(rank))]

    def text(self, rank: int) -> str:
        return self._log(rank).read_text(errors="replace")

    def tail(self, rank: int) -> str:
        return self.text(rank)[-3000:]

    def continues(self, since_s: float) -> float:
        """Wait until each rank has done a step after a time and five more. Return the seconds to the first step."""

        def steps(rank: int) -> list[Line]:
            return [line for line in self.lines(rank) if line.word.startswith("step") and line.at_s > since_s]

        for rank in self.ranks:
            await_that(lambda rank=rank: len(steps(rank)) > 5 or self.has_ended(rank), f"steps of rank {rank}")
            assert not self.has_ended(rank), self.tail(rank)
        return max(steps(rank)[0].at_s for rank in self.ranks) - since_s

    def fails(self, since_s: float, but: Sequence[int] = ()) -> tuple[float, dict[int, str]]:
        """Wait for an error of all ranks but some. Return the seconds to the last of them, and their texts."""
        found = {}
        for rank in self.ranks:
            if rank not in but:
                await_that(lambda rank=rank: self.has_ended(rank), f"end of rank {rank}")
                found[rank] = self.lines(rank)[-1]
                assert found[rank].word == "error", self.tail(rank)
        return max(line.at_s for line in found.values()) - since_s, {rank: line.text for rank, line in found.items()}

    def finish(self) -> None:
        """Let all ranks train to one step, and end. All have equal parameters after each step."""
        goal = max(self._step(rank) for rank in self.ranks) + GOAL_STEPS
        # Whole or not at all: ranks read it meanwhile.
        (self._folder / "new").write_text(str(goal))
        (self._folder / "new").rename(self._folder / "goal")
        for rank in self.ranks:
            assert self.processes[rank].wait(300) == 0, self.tail(rank)
        digests = [[line.text for line in self.lines(rank) if line.word.startswith("step")] for rank in self.ranks]
        assert all(each == digests[0] and len(each) == goal for each in digests)

    def has_ended(self, rank: int) -> bool:
        return self.processes[rank].poll() is not None

    def _step(self, rank: int) -> int:
        return len([line for line in self.lines(rank) if line.word.startswith("step")])

    def _log(self, rank: int) -> Path:
        return self._folder / f"rank{rank}.log"


Outage = Callable[[Training, float], None]
"""Disturbs a training for some seconds."""


def stops(rank: int) -> Outage:
    """Return the outage in which a rank's process is stopped."""

    def disturb(training: Training, seconds: float) -> None:
        training.processes[rank].send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        training.processes[rank].send_signal(signal.SIGCONT)

    return disturb


def cuts_link(host: int) -> Outage:
    """Return the outage in which a host's link is down."""

    def disturb(training: Training, seconds: float) -> None:
        training.star.hosts[host].ip("link", "set", "dev", "eth0", "down")
        time.sleep(seconds)
        training.star.hosts[host].ip("link", "set", "dev", "eth0", "up")

    return disturb


def drops_udp(training: Training, seconds: float) -> None:
    """Let no datagram of host 2 reach host 1 for some seconds. No sender is told."""
    loses_udp(training.star)
    time.sleep(seconds)
    training.star.hosts[1].ip("rule", "del", "pref", "0")


def loses_udp(star: Star) -> None:
    """Let no datagram of host 2 reach host 1, for ever."""
    star.hosts[1].ip("rule", "add", "from", star.host_ip(2), "ipproto", "udp", "pref", "0", "blackhole")


def narrows(star: Star, host: int = 1) -> None:
    """Let the MTU of a host fall to 900, for good."""
    star.hosts[host].ip("link", "set", "dev", "eth0", "mtu", "900")


def slows(training: Training, seconds: float) -> None:
    """Let the last host compute a fifth of the time."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        stops(training.ranks[-1])(training, 0.4)
        time.sleep(0.1)


OUTAGES: Final[dict[str, Outage]] = {
    "rank 1 is stopped": stops(1),
    "rank 0 is stopped": stops(0),
    "host 1 has no link": cuts_link(1),
    "host 0 has no link": cuts_link(0),
    "UDP is lost between hosts 1 and 2": drops_udp,
    "the last host is slow": slows,
    "the MTU of host 1 falls to 900": lambda training, seconds: narrows(training.star),
}
"""What both ways survive."""


def loses_power(training: Training) -> None:
    """End all that runs on host 1 without a word to the others."""
    training.star.hosts[1].ip("link", "set", "dev", "eth0", "down")
    training.processes[1].kill()


def signals(rank: int, number: int) -> Callable[[Training], None]:
    """Return the end of a rank by a signal."""
    return lambda training: training.processes[rank].send_signal(number)


ENDS: Final = {
    "rank 1 is killed": (1, signals(1, signal.SIGKILL), r"rank 1\b"),
    "rank 0 is killed": (0, signals(0, signal.SIGKILL), r"rank 0 has ended"),
    "an exception on rank 1": (1, signals(1, signal.SIGUSR1), r"rank 1\b.*ValueError: a bad batch"),
    "an exception on rank 0": (0, signals(0, signal.SIGUSR1), r"rank 0\b"),
    "Ctrl-C on rank 1": (1, signals(1, signal.SIGINT), r"rank 1\b.*KeyboardInterrupt"),
    "host 1 loses power": (1, loses_power, r"rank 1\b"),
}
"""What no way survives: the rank that ends, how, and the words of hopsum's error on the others."""


def survives(training: Training, name: str, seconds: float) -> float:
    """Disturb a training. Return the seconds from then to the first step of all ranks after the outage."""
    began_s = time.monotonic()
    OUTAGES[name](training, seconds)
    over_s = time.monotonic()
    return training.continues(over_s) + over_s - began_s


def ends(training: Training, name: str) -> tuple[float, dict[int, str]]:
    """End a rank. Return the seconds until all others have failed, and their errors."""
    rank, end, _ = ENDS[name]
    began_s = time.monotonic()
    end(training)
    return training.fails(began_s, but=[rank])


def measure(hosts: int = 3, seconds: float = 20.0) -> None:
    """Print the times of all outages, in trainings by plain DDP and by hosts://."""
    with tempfile.TemporaryDirectory() as folder:
        for way in sys.argv[1:] or ("plain", "hosts"):
            with Star(hosts) as star, ExitStack() as stack:
                training = Training(stack, star, Path(folder) / way, way)
                for name in OUTAGES:
                    print(f"{way}: {name}: continues after {survives(training, name, seconds):.1f} s", flush=True)
                training.finish()
            for number, name in enumerate(ENDS):
                # Plain DDP waits for minutes, until TCP gives up.
                if way == "plain" and name == "host 1 loses power":
                    continue
                with Star(hosts) as star, ExitStack() as stack:
                    training = Training(stack, star, Path(folder) / f"{way}{number}", way)
                    print(f"{way}: {name}: error after %.1f s: %s" % ends(training, name), flush=True)


if __name__ == "__main__":
    measure()
