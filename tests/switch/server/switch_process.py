# SPDX-License-Identifier: Apache-2.0
"""The switch as a process."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from .controller import P4INFO, PROGRAM

SWITCH = [sys.executable, "-m", "hopsum_switch"]
COMMAND = [*SWITCH, "--grpc", "127.0.0.1:0"]
LOADED = ["--program", str(PROGRAM), "--p4info", str(P4INFO)]


class Running(NamedTuple):
    """A switch process, the address of its P4Runtime server, and the URL of its metrics if it has any."""

    process: subprocess.Popen[str]
    address: str
    metrics: str


@contextmanager
def started(*arguments: str, command: Sequence[str] = COMMAND) -> Iterator[Running]:
    """Run a switch; kill it if the test has not stopped it."""
    process = subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process:
        try:
            line, metrics = process.stdout.readline(), ""
            if line.startswith("metrics "):
                line, metrics = process.stdout.readline(), line.split()[1]
            yield Running(process, address_in(line), metrics)
        finally:
            if process.poll() is None:
                process.kill()


def address_in(line: str) -> str:
    match = re.fullmatch(r"ready grpc=(\S+) device_id=\d+\n", line)
    assert match, line
    return match[1]
