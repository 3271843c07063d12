# SPDX-License-Identifier: Apache-2.0
"""ARP and ping at the oracle: what is answered, and that all else is a plain frame. Read and written with scapy."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.inet import ICMP, IP, TCP
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Packet, Raw

from hopsum_oracle.aggregator import AggregatorConfig, PacketOutcome
from hopsum_oracle.frame_aggregator import FrameAggregator
from hopsum_wire import Drop

MAC, OTHER_MAC = "02:00:00:00:00:01", "02:00:00:00:00:77"
IP_, OTHER_IP = "10.0.0.254", "10.0.0.253"
HOST, HOST_IP = "02:00:00:00:00:aa", "10.0.0.7"
SWITCH = AggregatorConfig(forwarding={0x0200000000EE: 3}, floods={0xFFFFFFFFFFFF: (1, 2, 3)})
NEIGHBOUR = "02:00:00:00:00:ee"


def explain(frame: Packet | bytes, port: int = 2) -> tuple[PacketOutcome, list[tuple[int, bytes]]]:
    return FrameAggregator(SWITCH).explain_frame(port, bytes(frame))


def answer(frame: Packet | bytes, port: int = 2) -> bytes:
    outcome, ((out, reply),) = explain(frame, port)
    assert (out, outcome) == (port, PacketOutcome())
    return reply


def who_has(**changes: object) -> Packet:
    fields = {"op": 1, "hwsrc": HOST, "psrc": HOST_IP, "hwdst": "00:00:00:00:00:00", "pdst": IP_, **changes}
    return Ether(src=HOST, dst="ff:ff:ff:ff:ff:ff") / ARP(**fields)


def ping(payload: bytes = b"abcdefgh", **changes: object) -> Packet:
    fields = {"src": HOST_IP, "dst": IP_, "ttl": 3, "id": 77, "tos": 4, **changes}
    return Ether(src=HOST, dst=MAC) / IP(**fields) / ICMP(type=8, id=5, seq=9) / Raw(payload)


@pytest.mark.parametrize("port", [0, 2, 511])
def test_arp_is_answered_where_it_came_from(port: int) -> None:
    expected = Ether(src=MAC, dst=HOST) / ARP(op=2, hwsrc=MAC, psrc=IP_, hwdst=HOST, pdst=HOST_IP)
    assert answer(who_has(), port) == bytes(expected)


def test_padding_of_an_arp_request_stays() -> None:
    assert answer(bytes(who_has()) + b"\x11" * 18)[42:] == b"\x11" * 18


def test_a_unicast_request_and_a_probe_for_the_address_are_answered() -> None:
    request = bytes(who_has())
    assert answer(bytes.fromhex(MAC.replace(":", "")) + request[6:])[:6] == bytes.fromhex(HOST.replace(":", ""))
    assert Ether(answer(who_has(psrc="0.0.0.0")))[ARP].pdst == "0.0.0.0"


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(who_has(pdst=OTHER_IP), id="another address"),
        pytest.param(who_has(op=2), id="a reply"),
        pytest.param(who_has(op=3), id="reverse ARP"),
        pytest.param(who_has(hwtype=6), id="another medium"),
        pytest.param(who_has(ptype=0x86DD), id="another protocol"),
        pytest.param(who_has(hwlen=8), id="longer MAC addresses"),
        pytest.param(who_has(plen=16), id="longer addresses"),
        pytest.param(bytes(who_has())[:41], id="cut"),
    ],
)
def test_other_arp_is_flooded_untouched(frame: Packet | bytes) -> None:
    assert explain(frame) == (PacketOutcome(), [(1, bytes(frame)), (3, bytes(frame))])


@given(st.binary(max_size=100), st.integers(0, 0xFFFF), st.integers(0, 0xFFFF), st.integers(0, 255))
def test_ping_is_answered(payload: bytes, identifier: int, sequence: int, code: int) -> None:
    request = ping(payload)
    request[ICMP].id, request[ICMP].seq, request[ICMP].code = identifier, sequence, code
    reply = Ether(answer(request))
    assert (reply.src, reply.dst) == (MAC, HOST)
    layer = reply[IP]
    assert (layer.src, layer.dst, layer.ttl, layer.id, layer.tos) == (IP_, HOST_IP, 64, 77, 4)
    assert (reply[ICMP].type, reply[ICMP].code, reply[ICMP].id, reply[ICMP].seq) == (0, code, identifier, sequence)
    assert bytes(reply[ICMP].payload) == payload
    sums = layer.chksum, reply[ICMP].chksum
    del layer.chksum, reply[ICMP].chksum
    again = Ether(bytes(reply))
    # both forms of zero are right in ones' complement
    assert [total % 0xFFFF for total in sums] == [again[IP].chksum % 0xFFFF, again[ICMP].chksum % 0xFFFF]


def test_ping_to_any_mac_address_of_ours_is_answered() -> None:
    """The address decides, as it does for the service."""
    frame = ping()
    frame.dst = NEIGHBOUR
    assert Ether(answer(frame)).src == MAC


def test_a_broken_icmp_checksum_stays_broken() -> None:
    good, bad = ping(), ping()
    bad[ICMP].chksum = 0x1234
    correct = Ether(answer(good))[ICMP].chksum
    assert Ether(answer(bad))[ICMP].chksum not in (correct, correct ^ 0xFFFF)


def test_a_bad_ipv4_checksum_is_dropped() -> None:
    outcome, frames = explain(ping(chksum=1))
    assert (outcome.drop, frames) == (Drop.BAD_CHECKSUM, [])


def to_neighbour(frame: Packet) -> Packet:
    frame.dst = NEIGHBOUR
    return frame


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(ping(dst=OTHER_IP), id="another address"),
        pytest.param(ping(dst=OTHER_IP, chksum=1), id="another address, bad checksum"),
        pytest.param(ping(flags="MF"), id="first fragment"),
        pytest.param(ping(frag=1), id="later fragment"),
        pytest.param(ping(ihl=6), id="options"),
        pytest.param(ping(version=6), id="another version"),
        pytest.param(Ether(src=HOST) / IP(src=HOST_IP, dst=IP_) / ICMP(type=0), id="an echo reply"),
        pytest.param(Ether(src=HOST) / IP(src=HOST_IP, dst=IP_) / ICMP(type=13), id="a timestamp request"),
        pytest.param(Ether(src=HOST) / IP(src=HOST_IP, dst=IP_) / TCP(dport=80), id="TCP"),
        pytest.param(Ether(bytes(ping())[:37]), id="cut in the ICMP header"),
    ],
)
def test_other_traffic_to_the_address_is_forwarded(frame: Packet) -> None:
    data = bytes(to_neighbour(frame))
    assert explain(data) == (PacketOutcome(), [(3, data)])
