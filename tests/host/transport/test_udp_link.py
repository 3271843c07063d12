# SPDX-License-Identifier: Apache-2.0
"""Batches of datagrams: whatever the kernel helps with, the other side gets the datagrams that were sent, in order."""

from __future__ import annotations

import errno
import select
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from mmap import PAGESIZE

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hopsum.transport.offload import PLAIN, SEGMENTS_MAX, UDP_SEGMENT, Offload, probe_offload
from hopsum.transport.udp_link import SegmentRun, UdpLink
from hopsum_evaluation.bench.socket_load import rows_of

LOCALHOST = "127.0.0.1"
SO_NO_CHECK = 11
BUFFER_BYTES = 1 << 20
WAIT_S = 60.0
KERNEL = probe_offload()
OFFLOADS = sorted({PLAIN, KERNEL, Offload(KERNEL.segment, False), Offload(False, KERNEL.gro)})

batches = st.lists(st.tuples(st.integers(1, 70), st.sampled_from([1, 32, 544, 1056, 1472])), min_size=1, max_size=6)


@contextmanager
def pair(sender: Offload, receiver: Offload) -> Iterator[tuple[UdpLink, UdpLink]]:
    """Two links that are each other's switch."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as placeholder:
        placeholder.bind((LOCALHOST, 0))
        local = placeholder.getsockname()
    with ExitStack() as stack:
        to = UdpLink(local, (LOCALHOST, 9), gso=receiver)
        stack.callback(to.close)
        link = UdpLink((LOCALHOST, 0), to.local, gso=sender)
        stack.callback(link.close)
        to._socket.connect(link.local)
        yield link, to


def datagrams_of(buffer: NDArray[np.uint8], runs: Sequence[SegmentRun]) -> list[bytes]:
    """Return copies of all datagrams, in the order of arrival."""
    return [
        buffer[at : min(at + run.datagram_bytes, run.stop)].tobytes()
        for run in runs
        for at in range(run.start, run.stop, run.datagram_bytes)
    ]


def take(link: UdpLink, count: int) -> list[bytes]:
    """Receive so many datagrams."""
    buffer = np.empty(BUFFER_BYTES, np.uint8)
    datagrams: list[bytes] = []
    while len(datagrams) < count:
        assert select.select([link], [], [], WAIT_S)[0], f"{len(datagrams)} of {count} came"
        datagrams += datagrams_of(buffer, link.receive_batch(buffer))
    return datagrams


@pytest.mark.parametrize("sender", OFFLOADS)
@pytest.mark.parametrize("receiver", OFFLOADS)
@given(batches=batches, seed=st.integers(0, 2**32 - 1))
@settings(max_examples=15, deadline=None)
def test_batches_arrive_as_the_datagrams_that_they_are(
    sender: Offload, receiver: Offload, batches: list[tuple[int, int]], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    with pair(sender, receiver) as (link, to):
        for shape in batches:
            rows = rng.integers(0, 256, shape, dtype=np.uint8)
            link.send_rows(rows)
            assert take(to, len(rows)) == [row.tobytes() for row in rows]
        sent = sum(count for count, _ in batches)
        octets = sum(count * size for count, size in batches)
        assert (link.statistics.datagrams_sent, link.statistics.bytes_sent) == (sent, octets)
        assert (to.statistics.datagrams_received, to.statistics.bytes_received) == (sent, octets)
        assert link.offload.segment == sender.segment


@pytest.mark.parametrize("receiver", OFFLOADS)
def test_sizes_follow_each_other_without_a_pause(receiver: Offload) -> None:
    """A segment size that is set must not cut the longer datagram that follows alone."""
    with pair(KERNEL, receiver) as (link, to):
        batches = [np.full((n, size), n, np.uint8) for n, size in ((5, 32), (1, 1056), (3, 1056), (1, 31), (2, 544))]
        for rows in batches:
            link.send_rows(rows)
        assert take(to, 12) == [row.tobytes() for rows in batches for row in rows]


@pytest.mark.skipif(not KERNEL.segment, reason="this kernel has no UDP_SEGMENT")
def test_a_train_is_one_call() -> None:
    with pair(KERNEL, KERNEL) as (link, to):
        link.send_rows(np.zeros((2 * SEGMENTS_MAX, 64), np.uint8))
        assert link.statistics.sends == 2
        take(to, 2 * SEGMENTS_MAX)
        if KERNEL.gro:
            assert to.statistics.receives == 2


@pytest.mark.parametrize("refusal", [errno.EINVAL, errno.EIO, errno.EMSGSIZE])
@pytest.mark.parametrize("first", [20, 1], ids=["a train", "a datagram, when the size is set already"])
def test_a_kernel_that_refuses_trains_gets_datagrams(
    refusal: int, first: int, caplog: pytest.LogCaptureFixture
) -> None:
    class Refusing:
        """A socket that takes UDP_SEGMENT and then refuses all that is sent with it."""

        def __init__(self, real: socket.socket) -> None:
            self.real = real
            self.segment_bytes = link._segment_bytes

        def getsockopt(self, level: int, option: int) -> int:
            return self.real.getsockopt(level, option)

        def setsockopt(self, level: int, option: int, value: int) -> None:
            assert option == UDP_SEGMENT
            self.segment_bytes = value

        def send(self, data: memoryview) -> int:
            if self.segment_bytes:
                raise OSError(refusal, "refused")
            return self.real.send(data)

    with pair(Offload(True, False), PLAIN) as (link, to):
        rows = np.arange(20 * 100, dtype=np.uint8).reshape(20, 100)
        link.send_rows(rows)
        real = link._socket
        link._socket = Refusing(real)  # type: ignore[assignment]
        link.send_rows(rows[:first])
        link.send_rows(rows)
        link._socket = real
        assert take(to, 40 + first) == [row.tobytes() for row in (*rows, *rows[:first], *rows)]
        (line,) = [record.getMessage() for record in caplog.records]
        assert "the kernel refuses datagrams sent together (refused); from now on they are sent one by one" in line
        assert (link.offload.segment, link.statistics.refused_segment_sends) == (False, 1)


def test_a_receive_leaves_what_has_no_room() -> None:
    with pair(KERNEL, KERNEL) as (link, to):
        rows = np.arange(300 * 544, dtype=np.uint8).reshape(300, 544)
        link.send_rows(rows)
        small, got = np.empty(65535, np.uint8), list[bytes]()
        while len(got) < 300:
            assert select.select([to], [], [], WAIT_S)[0]
            got += datagrams_of(small, to.receive_batch(small))
        assert got == [row.tobytes() for row in rows]


def test_rows_of_a_size_are_found_among_others() -> None:
    buffer = np.arange(100, dtype=np.uint8)
    runs = [
        SegmentRun(0, 20, 10),
        SegmentRun(20, 45, 10),
        SegmentRun(45, 55, 10),
        SegmentRun(55, 70, 5),
        SegmentRun(70, 80, 25),
    ]
    assert rows_of(buffer, runs, 10)[:, 0].tolist() == [0, 10, 20, 30, 45, 70]
    assert rows_of(buffer, runs, 5)[:, 0].tolist() == [40, 55, 60, 65]
    assert rows_of(buffer, runs, 7).shape == (0, 7)
    assert np.shares_memory(rows_of(buffer, runs[:1], 10), buffer)
    assert rows_of(buffer, [], 10).shape == (0, 10)


@pytest.mark.skipif(not KERNEL.segment, reason="this kernel has no UDP_SEGMENT")
def test_a_way_without_checksums_gets_single_datagrams_or_what_is_wanted() -> None:
    rows = np.arange(150 * 544, dtype=np.uint8).reshape(150, 544)
    with pair(KERNEL, KERNEL) as (link, to):
        link._socket.setsockopt(socket.SOL_SOCKET, SO_NO_CHECK, 1)  # as good as a device without checksums
        link.send_rows(rows)
        assert take(to, len(rows)) == [row.tobytes() for row in rows]
        assert not link.offload.segment
        assert link.statistics.datagrams_sent == len(rows)
        with closing(UdpLink((LOCALHOST, 0), to.local, gso="on")) as strict:
            strict._socket.setsockopt(socket.SOL_SOCKET, SO_NO_CHECK, 1)
            strict.send_rows(rows)
            assert strict.offload.segment
            assert set(strict.statistics.failures) in ({"EINVAL"}, {"EIO"}), "lost, as long as it lasts"


@pytest.fixture
def peer() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        peer.bind((LOCALHOST, 0))
        peer.settimeout(WAIT_S)
        yield peer


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
    with closing(UdpLink((LOCALHOST, 0), peer.getsockname())) as link:
        peer.sendto(bytes(1056), link.local)
        (datagram,) = link.receive(5.0)
        assert len(datagram) == 1056
        assert np.frombuffer(datagram, np.uint8).ctypes.data % PAGESIZE == 0


def test_a_link_continues_with_another_switch_from_the_same_address(peer: socket.socket) -> None:
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
