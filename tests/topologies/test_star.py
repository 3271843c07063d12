# SPDX-License-Identifier: Apache-2.0
"""Hosts around a bridge with rates that are counted, and delays or their refusal where there is no netem."""

from __future__ import annotations

import shutil
import socket

import pytest
from msgspec.structs import replace

from hopsum_topologies import Namespace, Star, TopologyError
from hopsum_topologies.description import topology
from hopsum_topologies.shaping import require_delay_support

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
                before = star.read_counts()
                for _ in range(10):
                    sender.sendto(PAYLOAD, middle.getsockname())
                    assert middle.recvfrom(2000) == (PAYLOAD, sender.getsockname())
                up = star.read_counts()[0].since(before[0])
                assert 10 * 1042 <= up.wire_bytes_up < 10 * 1042 + 500  # ARP may be among them
                assert up.wire_bytes_down < 500
                assert up.dropped == 0
                with bound(star.hosts[1], "10.0.0.2") as other:
                    sender.sendto(PAYLOAD, other.getsockname())
                    assert other.recv(2000) == PAYLOAD
                assert star.read_counts()[1].since(before[1]).wire_bytes_down >= 1042


def test_a_rate_that_is_none_leaves_a_clear_error() -> None:
    with Star(1) as star, pytest.raises(TopologyError, match=r"`tc qdisc replace .*rate fast.*` failed"):
        star.shape("fast")


def test_a_delay_is_refused_by_name_where_there_is_no_netem(monkeypatch: pytest.MonkeyPatch) -> None:
    net = topology("two_rack", 2)
    require_delay_support(net)  # asks nobody
    delayed = replace(net, links=tuple(replace(link, delay_s=0.002 * ("spine" in link.ends)) for link in net.links))
    monkeypatch.setattr("hopsum_topologies.shaping.tc", _kernel_without_netem)
    with pytest.raises(TopologyError, match=r"delay of leaf1-spine .*, leaf2-spine .* needs netem, .* kind is unknown"):
        require_delay_support(delayed)


def _kernel_without_netem(namespace: Namespace, *arguments: str) -> str:
    assert "netem" in arguments
    raise TopologyError("`tc qdisc add` failed: Error: Specified qdisc kind is unknown.")
