# SPDX-License-Identifier: Apache-2.0
"""AF_UNIX ports: socketpairs, bound paths, and what is left on the file system."""

from __future__ import annotations

import os
import select
import socket
from pathlib import Path

import pytest

from hopsum_switch.ports.port import PortError
from hopsum_switch.ports.unix import UnixPort, open_peer


def test_frames_cross_a_socketpair_both_ways() -> None:
    inside, outside = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    port = UnixPort(inside)
    with outside:
        outside.setblocking(False)
        outside.send(b"a" * 60)
        outside.send(b"b" * 9000)
        assert port.receive() == [b"a" * 60, b"b" * 9000]
        assert port.receive() == []
        port.send(b"c" * 1514)
        assert outside.recv(65536) == b"c" * 1514
    port.send(b"d")
    assert port.receive() == []
    assert port.counters.as_dict() == {
        "received": 2,
        "received_bytes": 9060,
        "sent": 1,
        "sent_bytes": 1514,
        "dropped": {"no_peer": 1},
    }
    port.close()
    port.close()


def test_a_lost_peer_does_not_keep_the_loop_busy() -> None:
    inside, outside = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    port = UnixPort(inside)
    outside.close()
    port.receive()
    assert select.select([inside], [], [], 0)[0] == []
    port.close()


def test_a_bound_path_serves_its_peer_and_is_removed(tmp_path: Path) -> None:
    path = str(tmp_path / "p1")
    port = UnixPort.bind(path)
    port.send(b"too early")
    with open_peer(path) as peer:
        peer.setblocking(False)
        port.send(b"before the peer has said anything")
        assert peer.recv(100) == b"before the peer has said anything"
        peer.send(b"hello")
        assert port.receive() == [b"hello"]
    port.send(b"too late")
    assert port.counters.dropped == {"no_peer": 2}
    port.close()
    assert os.listdir(tmp_path) == ["p1.peer"]


def test_a_slow_peer_costs_frames_and_not_the_switch(tmp_path: Path) -> None:
    path = str(tmp_path / "p1")
    port = UnixPort.bind(path)
    with open_peer(path) as peer:
        while not port.counters.dropped:
            port.send(bytes(100))
        assert port.counters.dropped == {"queue_full": 1}
        peer.setblocking(False)
        for _ in range(port.counters.sent):
            assert peer.recv(200) == bytes(100)
    port.close()


def test_what_a_killed_process_left_is_reused_and_what_lives_is_not(tmp_path: Path) -> None:
    path = str(tmp_path / "p1")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stale:
        stale.bind(path)
    port = UnixPort.bind(path)
    with pytest.raises(PortError, match="in use"):
        UnixPort.bind(path)
    with open_peer(path), pytest.raises(PortError, match="in use"):
        open_peer(path)
    with open_peer(path) as again:
        again.send(b"x")
    assert port.receive() == [b"x"]
    port.close()


def test_other_files_are_not_touched(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(PortError, match="not a socket"):
        UnixPort.bind(str(file))
    assert file.read_text() == "mine"


@pytest.mark.parametrize("path", ["", "/tmp/" + "x" * 98])
def test_paths_that_do_not_fit_are_refused(path: str) -> None:
    with pytest.raises(PortError, match=r"1\.\.102 fit"):
        UnixPort.bind(path)


def test_a_missing_directory_and_a_missing_switch_are_named(tmp_path: Path) -> None:
    with pytest.raises(PortError, match="No such file"):
        UnixPort.bind(str(tmp_path / "no" / "p1"))
    with pytest.raises(PortError, match="no switch port listens"):
        open_peer(str(tmp_path / "p1"))
    assert os.listdir(tmp_path) == []
