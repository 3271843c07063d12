# SPDX-License-Identifier: Apache-2.0
"""Hosts around a bridge: they reach each other, links have their rate, and what passes is counted."""

from __future__ import annotations

import shutil
import socket

import pytest

from hopsum_topologies import Namespace, Star, TopologyError

pytestmark = [
    pytest.mark.system,
    pytest.mark.usefixtures("namespaces"),
    pytest.mark.skipif(shutil.which("tc") is None, reason="tc (iproute2) is not installed"),
]
WAIT_S = 60.0
PAYLOAD = bytes(1000)


def bound(namespace: Namespace, ip: str) -> socket.socket:
    with namespace.inside():
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.bind((ip, 0))
    made.settimeout(WAIT_S)
    return made


def test_links_carry_and_count() -> None:
    with Star(2) as star:
        for rate, bits_per_s in (("200mbit", 200e6), ("1gbit", 1e9), (None, None)):
            star.shape(rate)
            assert star.rate_bits_per_s() == bits_per_s
            with bound(star.hosts[0], "10.0.0.1") as sender, bound(star.middle, star.middle_ip) as middle:
                before = star.counts()
                for _ in range(10):
                    sender.sendto(PAYLOAD, middle.getsockname())
                    assert middle.recvfrom(2000) == (PAYLOAD, sender.getsockname())
                up = star.counts()[0].since(before[0])
                assert 10 * 1042 <= up.wire_bytes_up < 10 * 1042 + 500  # ARP may be among them
                assert up.interface_bytes_up == up.wire_bytes_up
                assert up.wire_bytes_down < 500
                assert up.dropped == 0
                with bound(star.hosts[1], "10.0.0.2") as other:
                    sender.sendto(PAYLOAD, other.getsockname())
                    assert other.recv(2000) == PAYLOAD
                assert star.counts()[1].since(before[1]).wire_bytes_down >= 1042


def test_a_rate_that_is_none_leaves_a_clear_error() -> None:
    with Star(1) as star, pytest.raises(TopologyError, match=r"`tc qdisc replace .*rate fast.*` failed"):
        star.shape("fast")
