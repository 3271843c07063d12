# SPDX-License-Identifier: Apache-2.0
"""Frames of a raw link against scapy's, and which of those that arrive are datagrams: none of others, none damaged."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest
from scapy.layers.inet import ICMP, IP, UDP, IPerror, UDPerror
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Packet, Raw

from hopsum.transport.raw_frames import RawFrames
from hopsum_wire import Header, Kind

MAC, HOP_MAC, OTHER_MAC = "02:00:00:00:01:01", "02:00:00:00:00:fe", "02:00:00:00:09:09"
OWN, SWITCH, HOP = ("10.0.0.1", 5001), ("10.0.0.254", 24677), "10.0.0.254"


def number(mac: str) -> int:
    return int(mac.replace(":", ""), 16)


def made(hop: str = HOP) -> RawFrames:
    frames = RawFrames(number(MAC), OWN, SWITCH, hop)
    frames.hop_mac = number(HOP_MAC)
    return frames


def read(frame: bytes | Packet, *, vouched: bool = False, mtu_bytes: int = 1500) -> list[bytes]:
    found = made().datagrams(memoryview(bytes(frame)), mtu_bytes=mtu_bytes, vouched=vouched)
    return [bytes(datagram) for datagram in found]


def down(payload: bytes = b"result", **changes: object) -> Packet:
    """A datagram of the switch's, with scapy's checksum unless told otherwise."""
    ip = {"src": SWITCH[0], "dst": OWN[0], **{k: v for k, v in changes.items() if k in IP().default_fields}}
    udp = {
        "sport": SWITCH[1],
        "dport": OWN[1],
        **{k: v for k, v in changes.items() if k in ("sport", "dport", "chksum")},
    }
    ip.pop("chksum", None)
    return Ether(src=HOP_MAC, dst=MAC) / IP(**ip) / UDP(**udp) / Raw(payload)


@pytest.mark.parametrize("size", [1, 32, 544, 1056, 1472])
def test_lower_headers_are_scapys(size: int) -> None:
    payload = bytes(range(256)) * 6
    frame = made().lower(size) + payload[:size]
    path = IP(src=OWN[0], dst=SWITCH[0], id=0, flags="DF", ttl=64) / UDP(sport=OWN[1], dport=SWITCH[1], chksum=0)
    assert frame == bytes(Ether(src=MAC, dst=HOP_MAC) / path / Raw(payload[:size]))


@pytest.mark.parametrize("size", [0, 1, 17, 18, 1056])
@pytest.mark.parametrize("padding", [0, 1, 46])
def test_a_datagram_without_its_padding(size: int, padding: int) -> None:
    payload = bytes(range(1, 251)) * 5
    for checksum in ({}, {"chksum": 0}):
        assert read(bytes(down(payload[:size], **checksum)) + bytes(padding)) == [payload[:size]]


OTHERS: list[tuple[str, Callable[[], bytes | Packet]]] = [
    ("another address", lambda: down(dst="10.0.0.2")),
    ("another sender", lambda: down(src="10.0.0.2")),
    ("another port", lambda: down(dport=5002)),
    ("another port of the switch", lambda: down(sport=1)),
    ("a fragment", lambda: down(frag=5)),
    ("a first fragment", lambda: down(flags="MF")),
    ("options", lambda: Ether(dst=MAC) / IP(src=SWITCH[0], dst=OWN[0], options=b"\x01" * 4) / UDP() / Raw(b"x")),
    ("TCP", lambda: down(proto=6)),
    ("IPv6", lambda: Ether(dst=MAC, type=0x86DD) / Raw(bytes(60))),
    ("an IPv4 checksum", lambda: damage(bytes(down()), 24)),
    ("a UDP checksum", lambda: damage(bytes(down()), 43)),
    ("an IPv4 length beyond the frame", lambda: bytes(down(chksum=0))[:-1]),
    ("a UDP length that is not IPv4's", lambda: down(len=40)),
    ("nothing", lambda: b""),
    ("an Ethernet header", lambda: bytes(down())[:14]),
]


def damage(frame: bytes, at: int) -> bytes:
    return frame[:at] + bytes([frame[at] ^ 1]) + frame[at + 1 :]


@pytest.mark.parametrize("frame", [make for _, make in OTHERS], ids=[name for name, _ in OTHERS])
def test_other_frames_are_none(frame: Callable[[], bytes | Packet]) -> None:
    assert read(frame()) == []


def test_a_checksum_that_the_kernel_vouches_for() -> None:
    frame = bytes(down(chksum=0x1234))
    assert read(frame) == []
    assert read(frame, vouched=True) == [b"result"]


def test_a_run_is_cut_only_where_it_is_longer_than_the_mtu() -> None:
    result = Header(kind=Kind.RESULT, length=1024).pack() + bytes(1024)
    assert read(down(result * 3), vouched=True) == [result] * 3
    assert read(down(result[:32] + bytes(2))) == [result[:32] + bytes(2)], "no run fits the MTU"


def unreachable(**changes: str | int) -> Packet:
    quoted = {"src": OWN[0], "dst": SWITCH[0], "sport": OWN[1], "dport": SWITCH[1], **changes}
    inner = IPerror(src=quoted["src"], dst=quoted["dst"]) / UDPerror(sport=quoted["sport"], dport=quoted["dport"])
    return Ether(dst=MAC) / IP(src="10.0.0.77", dst=OWN[0]) / ICMP(type=quoted.get("type", 3), code=3) / inner


def test_what_icmp_says() -> None:
    frames = made()
    assert frames.says_unreachable(memoryview(bytes(unreachable())))
    for changes in ({"dst": "10.0.0.2"}, {"dport": 1}, {"sport": 1}, {"src": "10.0.0.2"}, {"type": 11}):
        assert not frames.says_unreachable(memoryview(bytes(unreachable(**changes)))), changes
    assert not frames.says_unreachable(memoryview(bytes(down())))
    assert not frames.says_unreachable(memoryview(b""))


def test_arp_requests_for_the_address_are_answered() -> None:
    request = Ether(src=OTHER_MAC, dst="ff:ff:ff:ff:ff:ff") / ARP(hwsrc=OTHER_MAC, psrc="10.0.0.3", pdst=OWN[0])
    answer = made().hear_arp(memoryview(bytes(request) + bytes(18)))
    assert answer is not None
    reply = Ether(answer)
    assert (reply.src, reply.dst, reply[ARP].op) == (MAC, OTHER_MAC, 2)
    assert (reply[ARP].hwsrc, reply[ARP].psrc, reply[ARP].hwdst, reply[ARP].pdst) == (
        MAC,
        OWN[0],
        OTHER_MAC,
        "10.0.0.3",
    )
    for other in (
        ARP(psrc="10.0.0.3", pdst="10.0.0.9"),
        ARP(op=2, psrc="10.0.0.3", pdst=OWN[0]),
        ARP(hwtype=6, pdst=OWN[0]),
    ):
        assert made().hear_arp(memoryview(bytes(Ether(src=OTHER_MAC, dst=MAC) / other) + bytes(18))) is None
    assert made().hear_arp(memoryview(bytes(request)[:40])) is None


def test_the_next_hop_is_asked_for_and_learnt_and_followed() -> None:
    frames = RawFrames(number(MAC), OWN, SWITCH, "10.0.0.9")
    request = Ether(frames.arp_request())
    assert (request.dst, request[ARP].op, request[ARP].pdst) == ("ff:ff:ff:ff:ff:ff", 1, "10.0.0.9")
    assert (request[ARP].hwsrc, request[ARP].psrc) == (MAC, OWN[0])
    for mac in (HOP_MAC, OTHER_MAC):  # it has moved
        reply = Ether(src=mac, dst=MAC) / ARP(op=2, hwsrc=mac, psrc="10.0.0.9", hwdst=MAC, pdst=OWN[0])
        assert frames.hear_arp(memoryview(bytes(reply))) is None
        assert Ether(frames.lower(32)).dst == mac
    stranger = Ether(src=MAC, dst=MAC) / ARP(op=2, hwsrc=HOP_MAC, psrc=SWITCH[0], hwdst=MAC, pdst=OWN[0])
    frames.hear_arp(memoryview(bytes(stranger)))
    assert frames.hop_mac == number(OTHER_MAC)
    assert socket.inet_aton(SWITCH[0]) in frames.lower(32)
