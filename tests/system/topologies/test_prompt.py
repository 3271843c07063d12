# SPDX-License-Identifier: Apache-2.0
"""`hopsum topology run --cli`: Mininet's prompt on a terminal."""

from __future__ import annotations

import os
import pty
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from hopsum_cli.topology.topology_command import main

from ...support.targets import require_network

DEADLINE_S = 120.0
COMMAND = (sys.executable, "-m", "hopsum_cli.main", "topology", "run", "star", "--workers", "2")


class Terminal:
    """A command with a terminal of its own."""

    def __init__(self, command: tuple[str, ...]) -> None:
        self.pid, self._descriptor = pty.fork()
        if self.pid == 0:
            os.execv(command[0], command)

    def type(self, text: str) -> None:
        os.write(self._descriptor, text.encode())

    def until(self, text: str) -> str:
        """Return what was written up to and with `text`."""
        said, give_up = b"", time.monotonic() + DEADLINE_S
        while text.encode() not in said:
            assert time.monotonic() < give_up, f"no {text!r} in {said.decode()!r}"
            if select.select([self._descriptor], [], [], 1.0)[0]:
                said += os.read(self._descriptor, 1)
        return said.decode()

    def leave(self) -> int:
        """Leave the prompt and read to the end; return the exit status. What does not end is told to."""
        self.type("exit\n")
        give_up = time.monotonic() + DEADLINE_S
        while (ended := os.waitpid(self.pid, os.WNOHANG)) == (0, 0):
            if time.monotonic() > give_up:
                os.kill(self.pid, signal.SIGTERM)
                give_up += DEADLINE_S
            if select.select([self._descriptor], [], [], 0.1)[0]:
                with suppress(OSError):  # the other end is closed
                    os.read(self._descriptor, 4096)
        return os.waitstatus_to_exitcode(ended[1])


def wait_for_process(*arguments: str) -> None:
    """Wait until somebody on this machine runs this command."""
    wanted, give_up = "\0".join([*arguments, ""]).encode(), time.monotonic() + DEADLINE_S
    while True:
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                if path.read_bytes() == wanted:
                    return
        assert time.monotonic() < give_up, f"nobody runs {arguments}"
        time.sleep(0.02)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    require_network("mininet")
    opened = Terminal((*COMMAND, "--target", "mininet", "--cli"))
    yield opened
    assert opened.leave() == 0


def test_the_prompt_runs_commands_on_hosts_and_ctrl_c_ends_them_alone(terminal: Terminal) -> None:
    told = terminal.until("mininet> ")
    assert "h2: HOPSUM_URL=file:///" in told
    terminal.type("h2 cat /sys/class/net/eth0/address\n")
    assert "02:00:00:00:02:01" in terminal.until("mininet> ")
    seconds = str(100_000 + terminal.pid)
    terminal.type(f"h1 sleep {seconds}\n")
    wait_for_process("sleep", seconds)  # Ctrl-C before would end what Mininet's shell does around it
    terminal.type("\x03")
    terminal.until("mininet> ")
    terminal.type("nodes\n")
    assert "h1 h2 s1" in terminal.until("mininet> ")


@pytest.mark.parametrize(
    "arguments", [["--cli"], ["--cli", "--target", "bmv2"], ["--cli", "--target", "mininet", "--", "ls"]]
)
def test_the_prompt_is_mininets(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["run", "star", *arguments])
    assert "--cli gives Mininet's prompt: it needs --target mininet, and no COMMAND" in capsys.readouterr().err
