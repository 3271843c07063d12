# SPDX-License-Identifier: Apache-2.0
"""The firewall program: priorities against an independent reading of the rules; counters; flooding."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

import pytest
from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.l2 import ARP, Ether

from hopsum_switch.engine import Engine
from hopsum_switch.state.copies import PortCopy
from hopsum_switch.state.entry_lookup import Exact, Optional, Range, Ternary

ALLOWED, DENIED, IGNORED = range(3)
LINK = Ether(src="02:00:00:00:00:01", dst="ff:ff:ff:ff:ff:ff")
"""Both addresses are given: scapy would send an ARP request of its own for the destination."""


class Rule(NamedTuple):
    src: tuple[int, int]
    dst: tuple[int, int]
    ports: tuple[int, int]
    protocol: int | None
    priority: int
    port: int | None  # None: deny

    def covers(self, src: int, dst: int, port: int, protocol: int) -> bool:
        return (
            src & self.src[1] == self.src[0]
            and dst & self.dst[1] == self.dst[0]
            and self.ports[0] <= port <= self.ports[1]
            and self.protocol in (None, protocol)
        )


ANY = (0, 0)
RULES = [
    Rule(ANY, ANY, (0, 65535), None, 1, None),
    Rule((0x0A000000, 0xFF000000), ANY, (0, 1023), 6, 10, 2),
    Rule((0x0A000000, 0xFF000000), ANY, (80, 90), None, 20, 3),
    Rule((0x0A000001, 0xFFFFFFFF), ANY, (85, 85), None, 30, None),
    Rule(ANY, (0x00000007, 0x0000000F), (0, 65535), 17, 15, 4),
]


@pytest.fixture
def firewall(engine_of: Callable[[str], Engine]) -> Engine:
    engine = engine_of("firewall")
    for rule in random.Random(3).sample(RULES, len(RULES)):
        match = [Ternary(*rule.src), Ternary(*rule.dst), Range(*rule.ports), Optional(rule.protocol)]
        action, params = ("Forward.deny", []) if rule.port is None else ("Forward.allow", [rule.port])
        engine.tables["Forward.rules"].insert(match, action, params, rule.priority)
    return engine


def text(address: int) -> str:
    return ".".join(str(byte) for byte in address.to_bytes(4, "big"))


def verdict(src: int, dst: int, port: int, protocol: int) -> Rule:
    return max((r for r in RULES if r.covers(src, dst, port, protocol)), key=lambda r: r.priority)


def test_random_traffic_gets_the_best_rule_and_is_counted(firewall: Engine) -> None:
    rng = random.Random(11)
    hits: dict[Rule, list[int]] = {rule: [0, 0] for rule in RULES}
    for _ in range(300):
        src, dst = rng.choice([0x0A000001, 0x0A000002, 0x0B000000]), rng.randrange(16)
        port, protocol = rng.choice([22, 80, 85, 1023, 1024, 60000]), rng.choice([6, 17])
        layer = TCP(dport=port) if protocol == 6 else UDP(dport=port)
        frame = bytes(LINK / IP(src=text(src), dst=text(dst)) / layer / bytes(rng.randrange(30)))
        best = verdict(src, dst, port, protocol)
        hits[best][0] += 1
        hits[best][1] += len(frame)
        assert firewall.process(1, frame) == ([] if best.port is None else [(best.port, frame)])
    for rule, counted in hits.items():
        match = [Ternary(*rule.src), Ternary(*rule.dst), Range(*rule.ports), Optional(rule.protocol)]
        handle = firewall.tables["Forward.rules"].find(match, rule.priority)
        assert firewall.counters.read_direct("Forward.rules", handle) == tuple(counted)
    allowed = sum(count[0] for rule, count in hits.items() if rule.port is not None)
    verdicts = firewall.counters.read_all("Forward.verdicts")
    assert [v.packets for v in verdicts] == [allowed, 300 - allowed, 0]


@pytest.mark.parametrize(
    "frame",
    [
        bytes(LINK / ARP(pdst="10.0.0.1")),
        bytes(LINK / IP(src="10.0.0.1", dst="1.1.1.1") / ICMP()),
        bytes(LINK / IP(src="10.0.0.1", dst="1.1.1.1", proto=0x86) / b"12345678"),
        bytes(LINK / IP(src="10.0.0.1", dst="1.1.1.1", frag=5) / UDP(dport=80)),
        bytes(LINK / IP(src="10.0.0.1", dst="1.1.1.1") / UDP(dport=80))[:36],
    ],
    ids=["arp", "icmp", "constant entry without inspection", "fragment", "cut ports"],
)
def test_what_cannot_be_inspected_is_ignored_and_counted(firewall: Engine, frame: bytes) -> None:
    assert firewall.process(1, frame) == []
    assert firewall.counters.read("Forward.verdicts", IGNORED) == (1, len(frame))
    assert firewall.counters.read("Forward.verdicts", DENIED) == (0, 0)


def test_broadcasts_flood_to_all_but_the_sender(firewall: Engine) -> None:
    firewall.tables["Forward.broadcast"].insert([Exact(2**48 - 1)], "Forward.flood", [5])
    firewall.multicast.insert(5, [PortCopy(port, 0x1100 + port) for port in (1, 2, 3)])
    frame = bytes(Ether(src="02:00:00:00:00:00", dst="ff:ff:ff:ff:ff:ff") / ARP(pdst="10.0.0.1"))
    copies = firewall.process(2, frame)
    assert copies == [(port, frame[:10] + bytes([0x11, port]) + frame[12:]) for port in (1, 3)]


def test_the_default_verdict_counts_without_a_rule(engine_of: Callable[[str], Engine]) -> None:
    engine = engine_of("firewall")
    assert engine.process(1, bytes(LINK / IP() / UDP(dport=80))) == []
    assert engine.counters.read("Forward.verdicts", DENIED).packets == 1
