# SPDX-License-Identifier: Apache-2.0
"""The delay in user space: no frame is early, none changes its bytes or its place, and trains pass whole."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from threading import Thread

import numpy as np
import pytest

from hopsum_topologies import Star
from hopsum_topologies.netns import Namespace

ROUND_TRIP_S = 0.02
TIMEOUT_S = 60.0
pytestmark = [pytest.mark.system, pytest.mark.usefixtures("namespaces")]


@pytest.fixture(scope="module")
def star(namespaces: None) -> Iterator[Star]:
    with Star(2, ROUND_TRIP_S) as found:
        yield found


def udp(namespace: Namespace, ip: str) -> socket.socket:
    with namespace.inside():
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.settimeout(TIMEOUT_S)
    made.bind((ip, 0))
    return made


def received(star: Star) -> int:
    """Return the frames that have come to the middle from the first host. A train of segments is one."""
    return int(json.loads(star.middle.ip("-s", "-j", "link", "show", "dev", "s1"))[0]["stats64"]["rx"]["packets"])


def send_all(sender: socket.socket, data: bytes) -> None:
    sender.sendall(data)
    sender.shutdown(socket.SHUT_WR)


def test_no_answer_is_earlier_than_the_delay(star: Star) -> None:
    with udp(star.hosts[0], star.host_ip(0)) as asker, udp(star.middle, star.middle_ip) as answerer:
        for number in range(5):
            began = time.monotonic()
            asker.sendto(b"%d" % number, answerer.getsockname())
            asked, place = answerer.recvfrom(100)
            answerer.sendto(asked, place)
            assert asker.recv(100) == b"%d" % number
            assert time.monotonic() - began >= ROUND_TRIP_S


def test_frames_between_two_hosts_wait_twice(star: Star) -> None:
    with udp(star.hosts[0], star.host_ip(0)) as sender, udp(star.hosts[1], star.host_ip(1)) as receiver:
        began = time.monotonic()
        sender.sendto(b"there", receiver.getsockname())
        assert receiver.recv(100) == b"there"
        assert time.monotonic() - began >= ROUND_TRIP_S


def test_datagrams_keep_their_order(star: Star) -> None:
    with udp(star.hosts[1], star.host_ip(1)) as sender, udp(star.middle, star.middle_ip) as receiver:
        for number in range(100):
            sender.sendto(b"%d" % number, receiver.getsockname())
        assert [receiver.recv(100) for _ in range(100)] == [b"%d" % number for number in range(100)]


def test_trains_of_segments_arrive_byte_for_byte(star: Star) -> None:
    sent = np.random.default_rng(1).bytes(8 << 20)
    with star.middle.inside():
        listening = socket.create_server((star.middle_ip, 0))
    before = received(star)
    with star.hosts[0].inside():
        sender = socket.socket()
    with listening, sender:
        sender.settimeout(TIMEOUT_S)
        sender.connect(listening.getsockname())
        receiver, _ = listening.accept()
        with receiver:
            receiver.settimeout(TIMEOUT_S)
            thread = Thread(target=send_all, args=(sender, sent))
            thread.start()
            got = b"".join(iter(lambda: receiver.recv(1 << 20), b""))
            thread.join()
    assert got == sent
    assert 0 < received(star) - before < len(sent) // 1448, "trains are whole"
