# SPDX-License-Identifier: Apache-2.0
"""The router program: longest prefix, TTL, MACs and checksum, with frames that scapy computed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import ARP, Ether

from hopsum_switch.engine import Engine
from hopsum_switch.state.entry_lookup import Exact, Lpm

ROUTES = [("10.0.0.0", 8, 1), ("10.1.0.0", 16, 2), ("10.1.2.3", 32, 3), ("0.0.0.0", 0, 4), ("192.168.7.128", 25, 9)]
HOPS = {
    number: (number + 10, f"02:aa:00:00:00:{number:02x}", f"02:bb:00:00:00:{number:02x}") for number in (1, 2, 3, 4)
}


def address(text: str) -> int:
    return int.from_bytes(bytes(int(part) for part in text.split(".")), "big")


def mac(text: str) -> int:
    return int(text.replace(":", ""), 16)


@pytest.fixture
def router(engine_of: Callable[[str], Engine]) -> Engine:
    engine = engine_of("router")
    for prefix, length, hop in ROUTES:
        engine.tables["Forward.routes"].insert([Lpm(address(prefix), length)], "Forward.route", [hop])
    for hop, (port, src, dst) in HOPS.items():
        engine.tables["Forward.next_hops"].insert([Exact(hop)], "Forward.send", [port, mac(src), mac(dst)])
    return engine


def frame(
    dst: str, ttl: int = 64, src_mac: str = "02:00:00:00:00:01", dst_mac: str = "02:00:00:00:00:02", **ip: int
) -> bytes:
    return bytes(
        Ether(src=src_mac, dst=dst_mac) / IP(src="172.16.0.9", dst=dst, ttl=ttl, **ip) / UDP(sport=5, dport=6) / b"data"
    )


@pytest.mark.parametrize(
    ("dst", "hop"),
    [("10.9.9.9", 1), ("10.1.9.9", 2), ("10.1.2.3", 3), ("10.1.2.4", 2), ("8.8.8.8", 4), ("192.168.7.1", 4)],
)
@pytest.mark.parametrize("ttl", [2, 64, 255])
def test_the_longest_prefix_routes(router: Engine, dst: str, hop: int, ttl: int) -> None:
    port, src_mac, dst_mac = HOPS[hop]
    expected = frame(dst, ttl - 1, src_mac, dst_mac, tos=7, id=999, flags=2)
    assert router.process(1, frame(dst, ttl, tos=7, id=999, flags=2)) == [(port, expected)]


@pytest.mark.parametrize(
    "bad",
    [
        frame("10.9.9.9", ttl=1),
        frame("10.9.9.9", ttl=0),
        frame("10.9.9.9", chksum=0x1234),
        frame("10.9.9.9", ihl=6),
        frame("10.9.9.9")[:33],
        frame("192.168.7.200"),  # a route to a next hop that does not exist
        bytes(Ether(src="02:00:00:00:00:01", dst="ff:ff:ff:ff:ff:ff") / ARP()),
        b"",
    ],
    ids=["ttl 1", "ttl 0", "checksum", "options", "cut", "no next hop", "arp", "empty"],
)
def test_what_is_dropped(router: Engine, bad: bytes) -> None:
    assert router.process(1, bad) == []


def test_routes_change_while_packets_pass(router: Engine) -> None:
    routes = router.tables["Forward.routes"]
    handle = routes.find([Lpm(address("10.1.2.3"), 32)])
    assert router.process(1, frame("10.1.2.3"))[0].port == 13
    routes.modify(handle, "Forward.drop", [])
    # a hit, so control goes on to next_hops with next_hop 0: its default drops
    assert router.process(1, frame("10.1.2.3")) == []
    routes.delete(handle)
    assert router.process(1, frame("10.1.2.3"))[0].port == 12
