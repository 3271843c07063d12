# SPDX-License-Identifier: Apache-2.0
"""The agent's UDP socket: the same datagrams in the same order whatever the kernel helps with, and a wake-up."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from contextlib import closing
from itertools import groupby
from mmap import PAGESIZE

import numpy as np
import pytest

from hopsum.transport.link import RowLink
from hopsum.transport.offload import PLAIN, Offload, probe_offload
from hopsum.transport.udp_link import UdpLink

LOCALHOST = "127.0.0.1"
WAIT_S = 60.0
SO_NO_CHECK = 11


@pytest.fixture
def peer() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        peer.bind((LOCALHOST, 0))
        peer.settimeout(WAIT_S)
        yield peer


def some_datagrams(seed: int) -> list[bytes]:
    """Return runs of equal sizes, longer than one send with UDP_SEGMENT, and single ones between them."""
    rng = random.Random(seed)
    runs = [(150, 544), (1, 32), (3, 1056), (70, 1056), (1, 1), (2, 1472)]
    return [rng.randbytes(size) for count, size in runs for _ in range(count)]


def send_runs(link: UdpLink, datagrams: list[bytes]) -> None:
    """Send runs of equal size as rows."""
    assert isinstance(link, RowLink)
    for size, run in groupby(datagrams, len):
        link.send_rows(np.frombuffer(b"".join(run), np.uint8).reshape(-1, size))


def test_segments_that_arrive_as_one_buffer_are_cut(peer: socket.socket) -> None:
    """Two links as each other's switch: what one sends by UDP_SEGMENT the other receives by UDP_GRO, where it can."""
    there = UdpLink((LOCALHOST, 0), peer.getsockname())
    here = UdpLink((LOCALHOST, 0), there.local)
    there._socket.connect(here.local)
    datagrams = some_datagrams(seed=2)
    send_runs(here, datagrams)
    received: list[bytes] = []
    while len(received) < len(datagrams):
        received += [bytes(view) for view in there.receive(WAIT_S)]
    assert received == datagrams
    here.close()
    there.close()


@pytest.mark.skipif(not probe_offload().segment, reason="this kernel has no UDP_SEGMENT")
def test_a_way_that_refuses_trains_gets_single_datagrams(peer: socket.socket) -> None:
    datagrams = some_datagrams(seed=3)
    link = UdpLink((LOCALHOST, 0), peer.getsockname())
    link._socket.setsockopt(socket.SOL_SOCKET, SO_NO_CHECK, 1)  # as good as a device without checksums
    send_runs(link, datagrams)
    assert [peer.recv(65535) for _ in datagrams] == datagrams
    assert not link.offload.segment
    assert link.statistics.datagrams_sent == len(datagrams)
    link.close()
    strict = UdpLink((LOCALHOST, 0), peer.getsockname(), gso="on")
    strict._socket.setsockopt(socket.SOL_SOCKET, SO_NO_CHECK, 1)
    send_runs(strict, datagrams)
    assert strict.offload.segment
    assert set(strict.statistics.failures) <= {"EINVAL", "EIO"}, "lost, as long as it lasts"
    assert strict.statistics.failures
    strict.close()


def test_words_for_gso(monkeypatch: pytest.MonkeyPatch, peer: socket.socket) -> None:
    with pytest.raises(ValueError, match="gso='yes': one of auto, on, off"):
        UdpLink((LOCALHOST, 0), peer.getsockname(), gso="yes")  # type: ignore[arg-type]
    monkeypatch.setattr("hopsum.transport.offload.probe_offload", lambda: Offload(False, False))
    with pytest.raises(OSError, match="this kernel has no UDP_SEGMENT"):
        UdpLink((LOCALHOST, 0), peer.getsockname(), gso="on")
    link = UdpLink((LOCALHOST, 0), peer.getsockname())
    assert link.offload == PLAIN
    link.close()


def test_what_arrives_first_lies_at_the_start_of_a_page(peer: socket.socket) -> None:
    with closing(UdpLink(("127.0.0.1", 0), peer.getsockname())) as link:
        peer.sendto(bytes(1056), link.local)
        (datagram,) = link.receive(5.0)
        assert len(datagram) == 1056
        assert np.frombuffer(datagram, np.uint8).ctypes.data % PAGESIZE == 0


def test_a_link_goes_on_to_another_switch_from_the_same_address(peer: socket.socket) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind((LOCALHOST, 0))
        other.settimeout(WAIT_S)
        with closing(UdpLink((LOCALHOST, 0), peer.getsockname(), gso=PLAIN)) as link:
            link.send(b"first")
            assert peer.recvfrom(64) == (b"first", link.local)
            link.redirect(other.getsockname())
            assert link.switch == other.getsockname()
            link.send(b"second")
            assert other.recvfrom(64) == (b"second", link.local)
            peer.sendto(b"late", link.local)
            other.sendto(b"answer", link.local)
            assert [bytes(each) for each in link.receive(WAIT_S)] == [b"answer"], "the former switch is not heard"
            with pytest.raises(OSError, match=r"unreachable|Invalid argument"):  # nothing leads there from loopback
                link.redirect(("240.0.0.1", 1))
            link.send(b"third")
            assert other.recv(64) == b"third"
