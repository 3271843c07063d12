# SPDX-License-Identifier: Apache-2.0
"""The lossy link itself."""

from __future__ import annotations

import random
from collections import Counter

from hopsum.transport.link import LinkStatistics

from .lossy import LossyLink, Mishaps


class Wire:
    """A link that records what was sent and delivers what it is given."""

    def __init__(self, arriving: list[bytes] | None = None) -> None:
        self.statistics = LinkStatistics()
        self.sent: list[bytes] = []
        self.arriving = arriving or []
        self.closed = False

    def send(self, datagram: bytes | memoryview) -> None:
        self.sent.append(bytes(datagram))

    def receive(self, timeout_s: float) -> list[bytes]:
        arrived, self.arriving = self.arriving, []
        return arrived

    def close(self) -> None:
        self.closed = True


DATAGRAMS = [bytes([value % 256, value // 256]) for value in range(1000)]


def through(mishaps: Mishaps, seed: int = 1) -> tuple[list[bytes], list[bytes]]:
    """Send 1000 datagrams and receive 1000: what passes each way."""
    wire = Wire(list(DATAGRAMS))
    link = LossyLink(wire, mishaps, random.Random(seed))
    for datagram in DATAGRAMS:
        link.send(datagram)
    received = link.receive(0.0)
    link.close()
    assert wire.closed
    return wire.sent, received


def test_without_mishaps_nothing_happens() -> None:
    assert through(Mishaps()) == (DATAGRAMS, DATAGRAMS)


def test_each_mishap_both_ways() -> None:
    for passed in through(Mishaps(drop=0.2)):
        assert 700 < len(passed) < 900
        assert passed == sorted(passed, key=DATAGRAMS.index)
    for passed in through(Mishaps(duplicate=0.2)):
        assert 1100 < len(passed) < 1300
        assert max(Counter(passed).values()) == 2
    for passed in through(Mishaps(reorder=0.2)):
        assert 990 < len(passed) <= 1000
        assert passed != sorted(passed, key=DATAGRAMS.index)
        assert max(Counter(passed).values()) == 1


def test_the_seed_decides() -> None:
    mishaps = Mishaps(drop=0.1, duplicate=0.1, reorder=0.1)
    assert through(mishaps) == through(mishaps)
    assert through(mishaps) != through(mishaps, seed=2)
