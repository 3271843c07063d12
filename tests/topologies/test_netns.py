# SPDX-License-Identifier: Apache-2.0
"""Namespaces, veth pairs and commands in them: their contents, output and ends, and that nothing stays."""

from __future__ import annotations

import array
import fcntl
import itertools
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from hopsum_topologies import Namespace, TopologyError, VethPair, remove_stale_namespaces
from hopsum_topologies.commands import Event, HostTask, LineSplitter, OutputLine, TaskEnded, run_in_namespaces
from hopsum_topologies.reachability import find_unreachable

from ..support.processes import await_that

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("namespaces")]


def _names() -> set[str]:
    listing = subprocess.run(("ip", "netns", "list"), capture_output=True, text=True, check=True).stdout
    return {line.split()[0] for line in listing.splitlines() if line}


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


DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def host() -> Iterator[Namespace]:
    with Namespace() as namespace:
        yield namespace


def heard(host: Namespace, *scripts: str) -> list[Event]:
    commands = [HostTask(str(at), "h", ("sh", "-c", script), os.environ) for at, script in enumerate(scripts)]
    return list(run_in_namespaces(commands, {"h": host}))


def test_lines_and_ends_are_heard(host: Namespace) -> None:
    events = heard(host, "echo one; printf two", "echo three >&2; exit 7", "kill -9 $$")
    assert [event for event in events if event.label == "0"] == [
        OutputLine("0", "stdout", "one"), OutputLine("0", "stdout", "two"), TaskEnded("0", 0)
    ]  # fmt: skip
    assert [event for event in events if event.label == "1"] == [OutputLine("1", "stderr", "three"), TaskEnded("1", 7)]
    assert [event for event in events if event.label == "2"] == [TaskEnded("2", 137)]


def test_a_command_that_is_not_there_is_named(host: Namespace) -> None:
    said, ended = run_in_namespaces([HostTask("0", "h", ("no-such-program",), os.environ)], {"h": host})
    assert isinstance(said, OutputLine)
    assert "cannot run no-such-program" in said.text
    assert ended == TaskEnded("0", 1)


def test_a_command_ends_though_what_it_left_behind_holds_its_output_and_that_is_ended_too(host: Namespace) -> None:
    *_, pid, ended = heard(host, "setsid sleep 600 & echo $!")
    assert ended == TaskEnded("0", 0)
    assert isinstance(pid, OutputLine)
    await_that(lambda: not processes_in(host), "end of what ran there")


def test_closing_ends_even_what_ignores_sigterm(host: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hopsum_topologies.commands.END_S", 0.2)
    stubborn = HostTask("0", "h", ("sh", "-c", "trap '' TERM; setsid sleep 600 & echo up; wait; sleep 600"), os.environ)
    with closing(run_in_namespaces([stubborn], {"h": host})) as events:
        assert next(events) == OutputLine("0", "stdout", "up")
        assert processes_in(host)
    await_that(lambda: not processes_in(host), "end of what ran there")


def test_what_ran_there_before_stays(host: Namespace) -> None:
    with host.inside():
        before = subprocess.Popen(("sleep", "600"))
    with before:
        try:
            assert heard(host, "setsid sleep 600 & true") == [TaskEnded("0", 0)]
            await_that(lambda: processes_in(host) == [str(before.pid)], "end of what ran there")
            assert before.poll() is None
        finally:
            before.kill()


def processes_in(host: Namespace) -> list[str]:
    inode = Path(f"/var/run/netns/{host.name}").stat().st_ino
    return [path.name for path in Path("/proc").glob("[0-9]*") if _namespace_of(path) == inode]


def _namespace_of(process: Path) -> int:
    try:
        return (process / "ns/net").stat().st_ino
    except OSError:
        return 0


def test_lines_come_whole_however_they_are_cut() -> None:
    splitter = LineSplitter()
    assert splitter.feed(b"on") == []
    assert splitter.feed(b"e\n\ntw") == ["one", ""]
    assert splitter.feed(b"o\xff\n") == ["two\ufffd"]
    assert splitter.finish() == []
    assert splitter.feed(b"rest") == []
    assert splitter.finish() == ["rest"]


def test_reach_tells_who_answers_from_who_does_not(host: Namespace) -> None:
    with host.inside():
        assert find_unreachable(["127.0.0.1", "127.0.0.2"], DEADLINE_S) == []
        assert find_unreachable(["127.0.0.1", "10.9.9.9"], 0.3) == ["10.9.9.9"]
