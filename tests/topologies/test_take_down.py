# SPDX-License-Identifier: Apache-2.0
"""`hopsum topology run` leaves nothing, however it ends: no process, no namespace, no interface, no file."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from hopsum_cli.topology import run
from hopsum_topologies.description import topology

from ..support.processes import await_that, descendants, is_alive

pytestmark = pytest.mark.system
DEADLINE_S = 300.0
# A command with two children, one of them in a session of its own, that care for no hangup.
FAMILY = "trap '' HUP; setsid sleep 600 & sleep 600 & echo up; wait"


def left_of(pid: int) -> list[Path]:
    folders = Path(tempfile.gettempdir()).glob(f"hopsum-topology-{pid}-*")
    return [*Path("/var/run/netns").glob(f"hopsum-{pid}-*"), *folders]


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


@pytest.mark.parametrize(
    ("target", "number", "status"),
    [
        ("native", signal.SIGINT, 130),
        ("native", signal.SIGKILL, -signal.SIGKILL),
        ("mininet", signal.SIGTERM, 143),
        ("mininet", signal.SIGKILL, -signal.SIGKILL),
    ],
    indirect=["target"],
)
def test_nothing_is_left(target: str, number: int, status: int) -> None:
    interfaces = socket.if_nameindex()
    arguments = ("run", "star", "--workers", "2", "--target", target, "--codec", "fixed")
    command = (sys.executable, "-m", "hopsum_cli.main", "topology", *arguments, "--", "sh", "-c", FAMILY)
    owner = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert owner.stdout is not None
    try:
        assert sorted(owner.stdout.readline() for _ in range(2)) == ["[0] up\n", "[1] up\n"]
        await_that(lambda: [name_of(pid) for pid in descendants(owner.pid)].count("sleep 600 ") == 4, "sleeping")
        started = descendants(owner.pid)
        assert any("hopsum_switch" in name_of(pid) or "simple_switch_grpc" in name_of(pid) for pid in started)
        assert len(left_of(owner.pid)) >= 2, "namespaces and a folder"
        owner.send_signal(number)
        assert owner.wait(DEADLINE_S) == status
        await_that(lambda: not any(map(is_alive, started)), "end of what it had started")
        await_that(lambda: not left_of(owner.pid), "end of its namespaces and files")
        assert socket.if_nameindex() == interfaces
    finally:
        owner.kill()
        owner.communicate()


@pytest.mark.usefixtures("namespaces")
def test_an_error_that_nobody_expects_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    before = descendants(os.getpid())
    monkeypatch.setattr(run, "require_all_reachable", fail)
    with pytest.raises(ZeroDivisionError):
        run.run(run.Request(topology("star", 1), "native", (), "fixed", 32, None, None))
    assert left_of(os.getpid()) == []
    more = descendants(os.getpid()) - before
    assert not [name for pid in more if "hopsum_switch" in (name := name_of(pid))]
