# SPDX-License-Identifier: Apache-2.0
"""`hopsum topology run` with a program of one's own and with `--cli`, on every target that runs here."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from hopsum_cli.topology.topology_command import main
from hopsum_labs.levels import LEVELS, WORKER

from ...support.printed import usage_error
from ...support.targets import require_network

NETWORK = f"{sys.executable} -m hopsum_labs.network"
DEADLINE_S = 300.0
RIGHT = re.compile(r"^\[\d+\] rank (\d+) of 3: 20 sums are right", re.MULTILINE)


def _run(level: str, *arguments: str, command: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    program = LEVELS[level].solution / "aggregate.json"
    words = [sys.executable, "-m", "hopsum_cli.main", "topology", "run", "star", "--workers", "3"]
    words += ["--program", str(program), *arguments, *(("--", *command) if command else ())]
    return subprocess.run(words, capture_output=True, text=True, timeout=DEADLINE_S, check=False)


@pytest.mark.parametrize(
    ("level", "target"), [("ethernet", "native"), ("ethernet", "bmv2"), ("ethernet", "mininet"), ("loss", "native")]
)
def test_the_course_runs_on_interfaces(level: str, target: str) -> None:
    require_network(target)
    worker = (*NETWORK.split(), "worker", str(LEVELS[level].solution / WORKER))
    done = _run(level, "--target", target, "--control", f"{NETWORK} control {level}", command=worker)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(RIGHT.findall(done.stdout)) == ["0", "1", "2"], done.stdout + done.stderr


def test_a_wrong_sum_is_told(tmp_path: Path) -> None:
    require_network("native")
    (tmp_path / WORKER).write_text("def all_reduce(port, rank, workers, vector):\n    return vector\n")
    worker = (*NETWORK.split(), "worker", str(tmp_path / WORKER))
    done = _run("ethernet", "--control", f"{NETWORK} control ethernet", command=worker)
    assert done.returncode == 1
    assert "rank 2: the sum is [6000, 6003," in done.stderr
    assert "all_reduce returned [3000, 3001," in done.stderr


@pytest.mark.parametrize("target", ["native", "mininet"])
def test_commands_are_told_the_network(target: str) -> None:
    require_network(target)
    show = "import json, os; print(os.environ.get('HOPSUM_HOST'), open(os.environ['HOPSUM_NETWORK']).read())"
    compact = show.replace("open(", "json.dumps(json.load(open(").replace(".read()", "))")
    done = _run(
        "ethernet",
        "--target",
        target,
        "--control",
        f'{sys.executable} -c "{compact}"',
        command=(sys.executable, "-c", compact),
    )
    assert done.returncode == 0, done.stderr
    rows = [line.split(" ", 1) for line in re.sub(r"^\[\d+\] ", "", done.stdout, flags=re.MULTILINE).splitlines()]
    assert sorted(host for host, _ in rows) == ["None", "h1", "h2", "h3"]
    networks = {document for _, document in rows}
    assert len(networks) == 1
    network = json.loads(networks.pop())
    assert network["driver"] == ("native" if target == "native" else "bmv2")
    assert network["switches"]["s1"]["ports"] == {"1": "h1", "2": "h2", "3": "h3"}
    assert network["hosts"]["h2"] == {"ip": "10.0.0.2", "mac": "02:00:00:00:02:01", "switch": "s1", "port": 2}


def test_no_worker_starts_after_a_failed_control_command() -> None:
    require_network("native")
    done = _run("ethernet", "--control", "false", command=("echo", "started"))
    assert done.returncode == 1
    assert "the control command 'false' ended with 1; no worker was started" in done.stderr
    assert "started" not in done.stdout


def test_a_program_that_the_switch_refuses_is_told(tmp_path: Path) -> None:
    require_network("native")
    program = tmp_path / "empty.json"
    program.write_text("{}")
    (tmp_path / "empty.p4info.txtpb").write_text("")
    words = [sys.executable, "-m", "hopsum_cli.main", "topology", "run", "star", "--program", str(program)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 1
    assert "hopsum topology: " in done.stderr
    assert "Traceback" not in done.stderr


PROMPT_DEADLINE_S = 120.0
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
        said, give_up = b"", time.monotonic() + PROMPT_DEADLINE_S
        while text.encode() not in said:
            assert time.monotonic() < give_up, f"no {text!r} in {said.decode()!r}"
            if select.select([self._descriptor], [], [], 1.0)[0]:
                said += os.read(self._descriptor, 1)
        return said.decode()

    def leave(self) -> int:
        """Leave the prompt and read to the end; return the exit status. What does not end is told to."""
        self.type("exit\n")
        give_up = time.monotonic() + PROMPT_DEADLINE_S
        while (ended := os.waitpid(self.pid, os.WNOHANG)) == (0, 0):
            if time.monotonic() > give_up:
                os.kill(self.pid, signal.SIGTERM)
                give_up += PROMPT_DEADLINE_S
            if select.select([self._descriptor], [], [], 0.1)[0]:
                with suppress(OSError):  # the other end is closed
                    os.read(self._descriptor, 4096)
        return os.waitstatus_to_exitcode(ended[1])


def wait_for_process(*arguments: str) -> None:
    """Wait until somebody on this machine runs this command."""
    wanted, give_up = "\0".join([*arguments, ""]).encode(), time.monotonic() + PROMPT_DEADLINE_S
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
    assert "--cli gives Mininet's prompt: it needs --target mininet, and no COMMAND" in usage_error(
        capsys, main, "run", "star", *arguments
    )
