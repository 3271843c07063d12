# SPDX-License-Identifier: Apache-2.0
"""Programs on the hosts of a star, each with a log of what it prints."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

from hopsum_topologies.star import Star

JOB: Final = str(Path(__file__).with_name("job_script.py"))
LINE: Final = re.compile(r"^(newcomer|begins|connect|job|step \d+|error|end) (\d+\.\d{3}) (.*)$", re.MULTILINE)


class Line(NamedTuple):
    """A line that `job_script.py` printed."""

    word: str
    at_s: float
    text: str


class HostProcess:
    """A Python program on a host of a star, without capabilities, as rank of that number for a script without torchrun.

    The stack kills all that runs on the host, and waits for the program.
    """

    def __init__(self, stack: ExitStack, star: Star, host: int, log: Path, *words: str, **variables: str) -> None:
        self.log = log
        plain = [shutil.which("setpriv") or "setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]
        own = {"RANK": str(host), "WORLD_SIZE": str(len(star.hosts)), "MASTER_ADDR": star.host_ip(0)}
        torch = {"MASTER_PORT": "29513", "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"}
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                ["ip", "netns", "exec", star.hosts[host].name, *plain, sys.executable, *words],
                env={**os.environ, **own, **torch, **variables},
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip
        stack.callback(self.process.wait)
        stack.callback(kill, star, host)

    @property
    def text(self) -> str:
        return self.log.read_text(errors="replace")

    @property
    def tail(self) -> str:
        return self.text[-3000:]

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def lines(self, word: str = "") -> list[Line]:
        """Return the lines so far that begin with a word."""
        found = [Line(first, float(at_s), rest) for first, at_s, rest in LINE.findall(self.text)]
        return [line for line in found if line.word.startswith(word)]


def kill(star: Star, host: int) -> None:
    """Kill all that runs on a host, as a power cut does."""
    listed = subprocess.run(["ip", "netns", "pids", star.hosts[host].name], capture_output=True, text=True, check=True)
    for pid in listed.stdout.split():
        os.kill(int(pid), signal.SIGKILL)
