# SPDX-License-Identifier: Apache-2.0
"""The contract of every link to a switch: over the kernel's UDP, or scapy's packets."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import NamedTuple

import pytest

from hopsum.transport import link as link_module
from hopsum.transport import scapy_link as scapy_module
from hopsum.transport.scapy_link import ScapyLink
from hopsum.transport.udp_link import UdpLink

from .veth import SWITCH_IP, Veth

LOCALHOST = "127.0.0.1"
WAIT_S = 60.0
AnyLink = UdpLink | ScapyLink


class Ends(NamedTuple):
    """A link, the socket that it sends to, and a way to make a link to another port there."""

    link: AnyLink
    peer: socket.socket
    link_to: Callable[[int], AnyLink]


@pytest.fixture(params=["udp", "scapy over udp", "scapy"])
def ends(request: pytest.FixtureRequest) -> Iterator[Ends]:
    with ExitStack() as stack:
        if request.param == "scapy":
            request.getfixturevalue("namespaces")
            yield interface_ends(stack)
        else:
            yield udp_ends(stack, UdpLink if request.param == "udp" else ScapyLink)


def interface_ends(stack: ExitStack) -> Ends:
    veth = Veth(stack)
    peer = veth.socket(veth.far, SWITCH_IP)
    return Ends(veth.scapy_link(peer.getsockname()), peer, lambda port: veth.scapy_link((SWITCH_IP, port), port=5001))


def udp_ends(stack: ExitStack, make: type[UdpLink] | type[ScapyLink]) -> Ends:
    peer = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    peer.bind((LOCALHOST, 0))
    peer.settimeout(WAIT_S)

    def link_to(port: int) -> UdpLink | ScapyLink:
        link = make((LOCALHOST, 0), (LOCALHOST, port))
        stack.callback(link.close)
        return link

    return Ends(link_to(peer.getsockname()[1]), peer, link_to)


def some_datagrams(seed: int) -> list[bytes]:
    rng = random.Random(seed)
    return [rng.randbytes(size) for size in [1056] * 70 + [32, 544, 544, 1, 1472] for _ in range(2)]


def everything(link: AnyLink, count: int) -> list[bytes]:
    received: list[bytes] = []
    while len(received) < count:
        some = [bytes(view) for view in link.receive(WAIT_S)]
        assert some, f"{len(received)} of {count} came"
        received += some
    return received


def test_datagrams_pass_both_ways_unchanged_and_in_order(ends: Ends) -> None:
    link, peer, _ = ends
    datagrams = some_datagrams(1)
    for datagram in datagrams:
        link.send(memoryview(datagram))
    link.send(b"one more")
    assert [peer.recv(65535) for _ in range(len(datagrams) + 1)] == [*datagrams, b"one more"]
    peer.connect(link.local)
    for datagram in datagrams:
        peer.send(datagram)
    assert everything(link, len(datagrams)) == datagrams
    sizes, counted = sum(map(len, datagrams)), link.statistics
    assert (counted.datagrams_sent, counted.bytes_sent) == (len(datagrams) + 1, sizes + 8)
    assert (counted.datagrams_received, counted.bytes_received) == (len(datagrams), sizes)


def test_views_stay_as_they_are_until_the_next_receive(ends: Ends) -> None:
    link, peer, _ = ends
    datagrams = some_datagrams(2)[:40]
    for datagram in datagrams:
        peer.sendto(datagram, link.local)
    held: list[memoryview] = []
    until = time.monotonic() + WAIT_S
    while len(held) < 2 and time.monotonic() < until:
        held = list(link.receive(WAIT_S))
        assert [bytes(view) for view in held] == datagrams[: len(held)]
        datagrams = datagrams[len(held) :]
    assert len(held) > 1


def test_another_thread_ends_a_wait(ends: Ends) -> None:
    link = ends.link
    start = time.monotonic()
    waker = threading.Thread(target=link.wake)
    waker.start()
    assert list(link.receive(WAIT_S)) == []
    waker.join()
    link.wake()
    assert list(link.receive(WAIT_S)) == []
    assert time.monotonic() - start < WAIT_S
    assert list(link.receive(0.0)) == []
    assert list(link.receive(-1.0)) == []
    link.close()
    # A sender of a message to the thread of a link does not know that the thread has just ended.
    link.wake()


def test_a_link_hears_only_what_is_for_it(ends: Ends) -> None:
    link, peer, _ = ends
    other = ends.link_to(peer.getsockname()[1])
    peer.sendto(b"for the other", other.local)
    peer.sendto(b"for this one", link.local)
    assert everything(link, 1) == [b"for this one"]
    assert everything(other, 1) == [b"for the other"]


def test_a_receive_leaves_the_rest_for_the_next(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    link, peer, _ = ends
    for module in (link_module, scapy_module):
        monkeypatch.setattr(module, "BATCH_DATAGRAMS", 3)
    for number in range(5):
        peer.sendto(bytes([number] * (number + 1)), link.local)
    assert everything(link, 5) == [bytes([number] * (number + 1)) for number in range(5)]


def test_what_the_network_says_is_counted(ends: Ends) -> None:
    ends.peer.close()
    link = ends.link
    link.send(b"anybody?")
    assert list(link.receive(WAIT_S)) == []
    assert link.statistics.unreachable == 1


def test_closing_twice_is_harmless(ends: Ends) -> None:
    ends.link.close()
    ends.link.close()
