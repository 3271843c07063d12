# SPDX-License-Identifier: Apache-2.0
"""Namespaces and veth pairs: their contents, and that nothing of them stays."""

from __future__ import annotations

import array
import fcntl
import itertools
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hopsum_topologies import Namespace, TopologyError, VethPair, remove_stale_namespaces

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("namespaces")]

# Takes a namespace with a veth pair and a child inside, says so, and waits to be killed.
_OWNER = """
import sys, time
from pathlib import Path
from hopsum_topologies import Namespace
from hopsum_topologies.process import ManagedProcess
with Namespace() as namespace:
    namespace.add_veth("a", "b")
    child = ManagedProcess(["sleep", "600"], Path(sys.argv[1]) / "log", namespace=namespace.name)
    child.wait_for(lambda: Path(f"/proc/{child.pid}/comm").read_text() == "sleep\\n", "sleep", 20)
    print(namespace.name, child.pid, flush=True)
    time.sleep(600)
"""


def _names() -> set[str]:
    listing = subprocess.run(("ip", "netns", "list"), capture_output=True, text=True, check=True).stdout
    return {line.split()[0] for line in listing.splitlines() if line}


def _gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def _wait(condition: object, deadline_s: float = 20.0) -> bool:
    assert callable(condition)
    give_up = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > give_up:
            return False
        time.sleep(0.02)
    return True


def test_name_carries_the_process_id_and_goes_away() -> None:
    with Namespace() as namespace:
        assert namespace.name.startswith(f"hopsum-{os.getpid()}-")
        assert namespace.name in _names()
    assert namespace.name not in _names()


def test_veth_is_inside_only_and_carries_frames_unchanged() -> None:
    before = socket.if_nameindex()
    with Namespace() as left, Namespace() as right:
        assert left.add_veth("a", "b", right) == VethPair("a", "b")
        assert "a@" in left.ip("link")
        assert "b@" in right.ip("link")
        assert "inet6" not in left.ip("addr") + right.ip("addr")
        assert socket.if_nameindex() == before
        with left.inside():
            sender = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        with right.inside():
            receiver = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        with sender, receiver:
            sender.bind(("a", 3))
            receiver.bind(("b", 3))
            receiver.settimeout(60)
            frame = bytes(12) + b"\x88\xb5" + bytes(range(256)) * 5
            sender.send(frame)
            assert receiver.recv(4096) == frame
    assert socket.if_nameindex() == before


def test_an_interface_that_carries_nothing_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hopsum_topologies.netns._CARRY_S", 0.05)
    with Namespace() as namespace:
        namespace.ip("link", "add", "name", "a", "type", "veth", "peer", "name", "b")
        with pytest.raises(TopologyError, match=r"a in hopsum-.* carries nothing after 0\.05 s: are both ends up\?"):
            namespace.wait_until_carrying("a")


def test_offloads_are_off() -> None:
    get_commands = {"tx checksum": 0x16, "TSO": 0x1E, "GSO": 0x23, "GRO": 0x2B}
    with Namespace() as namespace:
        namespace.add_veth("a", "b")
        for interface, (name, command) in itertools.product(("a", "b"), get_commands.items()):
            value = array.array("B", struct.pack("=II", command, 1))
            with namespace.inside(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
                fcntl.ioctl(handle, 0x8946, struct.pack("16sP", interface.encode(), value.buffer_info()[0]))
            assert struct.unpack("=II", value)[1] == 0, f"{name} of {interface} is on"


def test_inside_is_left_again_after_an_exception() -> None:
    home = os.readlink("/proc/thread-self/ns/net")
    seen = []

    def fail() -> None:
        seen.append(os.readlink("/proc/thread-self/ns/net"))
        raise ZeroDivisionError

    with Namespace() as namespace:
        with pytest.raises(ZeroDivisionError), namespace.inside():
            fail()
        assert seen[0] != home
        assert os.readlink("/proc/thread-self/ns/net") == home


def test_errors_name_what_failed() -> None:
    with Namespace() as namespace:
        with pytest.raises(TopologyError, match="link set nowhere up"):
            namespace.ip("link", "set", "nowhere", "up")
        with pytest.raises(TopologyError, match="longer than 15 bytes"):
            namespace.add_veth("a-name-that-is-too-long", "b")


def test_stale_ones_are_removed_and_live_ones_are_not() -> None:
    dead = subprocess.run((sys.executable, "-c", "import os; print(os.getpid())"), capture_output=True, check=True)
    stale = f"hopsum-{int(dead.stdout)}-0"
    alive = f"hopsum-{os.getppid()}-99999"
    for name in (stale, alive):
        subprocess.run(("ip", "netns", "add", name), check=True)
    try:
        with Namespace() as own:
            assert stale not in _names()
            assert {alive, own.name} <= _names()
            assert remove_stale_namespaces() == []
    finally:
        subprocess.run(("ip", "netns", "delete", alive), check=True)


def test_killed_owner_leaves_nothing_behind(tmp_path: Path) -> None:
    owner = subprocess.Popen((sys.executable, "-c", _OWNER, str(tmp_path)), stdout=subprocess.PIPE, text=True)
    try:
        assert owner.stdout is not None
        name, child = owner.stdout.readline().split()
        assert name in _names()
        assert not _gone(int(child))
    finally:
        owner.send_signal(signal.SIGKILL)
        owner.communicate()
    assert _wait(lambda: _gone(int(child))), f"process {child} outlived its parent"
    assert _wait(lambda: name not in _names()), f"nobody removed {name}"
