# SPDX-License-Identifier: Apache-2.0
"""A reader of a page: types its blocks in a folder of its own, on ports that are free here."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from hopsum_topologies.free_port import free_port
from hopsum_topologies.process import ManagedProcess

from .processes import await_that

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 300.0
CONTROLLER_PORT = "4700"
PROGRAMS = {"hopsum": "-m hopsum_cli.main", "torchrun": "-m torch.distributed.run", "python": ""}
"""The commands of the pages, as arguments of this Python."""
CTRL_C = "env --default-signal=INT"
"""A shell that runs the tests in the background ignores SIGINT, and its processes inherit that. Terminals do not."""


class Reader:
    """Types what the page says, in a folder of its own."""

    def __init__(self, folder: Path, stack: ExitStack, ports: Mapping[str, socket.SocketKind]) -> None:
        self.folder = folder
        self._stack = stack
        self._ports = {name: free_port(kind) for name, kind in ports.items()}
        self._terminals = 0
        programs = folder / "bin"
        programs.mkdir()
        for name, arguments in PROGRAMS.items():
            program = programs / name
            program.write_text(f'#!/bin/sh\nexec {CTRL_C} "{sys.executable}" {arguments} "$@"\n')
            program.chmod(0o755)
        (folder / "examples").symlink_to(ROOT / "examples")
        path = f"{programs}{os.pathsep}{os.environ['PATH']}"
        self.environment = {
            **os.environ,
            "PATH": path,
            "OMP_NUM_THREADS": "1",
            "PYTHONFAULTHANDLER": "1",
            "HOME": str(folder),
        }

    def here(self, text: str) -> str:
        """Replace the page's ports, also the one that goes without saying."""
        text = re.sub(rf"(?<=:)({'|'.join(self._ports)})\b", lambda found: str(self._ports[found[1]]), text)
        if CONTROLLER_PORT not in self._ports:
            return text
        return re.sub(r"hopsum (job \w+|top)", rf"\g<0> --controller 127.0.0.1:{self._ports[CONTROLLER_PORT]}", text)

    def type(self, block: str) -> str:
        """Run a block to its end, and return what it printed."""
        command = ["bash", "-euo", "pipefail", "-c", self.here(block)]
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
        assert done.returncode == 0, (block, done.stderr)
        return done.stdout

    def open_terminal(self, block: str) -> ManagedProcess:
        """Begin a block of one command that keeps running."""
        self._terminals += 1
        log = self.folder / f"terminal{self._terminals}"
        script = f"cd '{self.folder}' && exec {self.here(block)}"
        process = ManagedProcess(["bash", "-c", script], log, environment=self.environment)
        self._stack.callback(process.stop)
        return process


def await_end(process: ManagedProcess) -> int:
    """Wait until a process ends by itself, and return its exit status."""
    await_that(lambda: not process.running(), f"end of {process.name}")
    return process.stop()


def end(process: ManagedProcess) -> int:
    """Send SIGTERM and return the exit status; one that does not end in time tells where its threads are."""
    os.kill(process.pid, signal.SIGTERM)
    give_up_s = time.monotonic() + PATIENCE_S
    while process.running():
        if time.monotonic() > give_up_s:
            os.kill(process.pid, signal.SIGABRT)
            break
        time.sleep(0.05)
    return process.stop()
