# SPDX-License-Identifier: Apache-2.0
"""The switch's own address: ARP and ping are answered, so that a user sees that the link works; nothing else is."""

from __future__ import annotations

from hopsum_controlplane.addresses import ipv4_to_int, mac_to_int
from hopsum_ptf.case import SwitchCase
from hopsum_ptf.case_places import PORTS, SWITCH, station_mac
from hopsum_ptf.frames import UDP_AT, altered, arp_request, ping
from hopsum_wire import Drop

SWITCH_MAC, SWITCH_IP = mac_to_int(SWITCH.mac), ipv4_to_int(SWITCH.ip)
STATION, SENDER = mac_to_int(station_mac(6)), mac_to_int(station_mac(1))
HOST_IP, OTHER_IP = 0x0A000901, 0x0A0000FD
WHO_HAS = arp_request(SENDER, HOST_IP, SWITCH_IP)
PING = ping(SENDER, HOST_IP, SWITCH_IP, bytes(range(60)), dst_mac=SWITCH_MAC)


class AnswersArp(SwitchCase):
    """To the asker alone, through the port that the question came through, with the switch's MAC address."""

    def runTest(self) -> None:
        for port in PORTS:
            reply = self.replied(port, WHO_HAS)
            self.assertEqual(reply[:12].hex(), f"{SENDER:012x}{SWITCH_MAC:012x}")
            answer = f"0001080006040002{SWITCH_MAC:012x}{SWITCH_IP:08x}{SENDER:012x}{HOST_IP:08x}"
            self.assertEqual(reply[14:].hex(), answer)
        self.replied(1, arp_request(SENDER, HOST_IP, SWITCH_IP, dst_mac=SWITCH_MAC))
        self.replied(1, arp_request(SENDER, 0, SWITCH_IP))


class ArpPadding(SwitchCase):
    """Ethernet's padding is no part of the question, and may come back."""

    def runTest(self) -> None:
        self.assertEqual(self.replied(1, WHO_HAS + bytes(18))[42:], bytes(18))


class OtherArp(SwitchCase):
    """Other addresses, replies, other media and cut ones: forwarded untouched."""

    def runTest(self) -> None:
        flooded = [port for port in PORTS if port != 1]
        for fields in (
            {"target_ip": OTHER_IP},
            {"operation": 2},
            {"operation": 0},
            {"hardware": 6},
            {"protocol": 0x86DD},
            {"hardware_bytes": 8},
            {"protocol_bytes": 16},
        ):
            self.forwarded(1, altered(WHO_HAS, "arp", **fields), flooded)
        self.forwarded(1, WHO_HAS[:41], flooded)
        self.forwarded(1, altered(altered(WHO_HAS, "ethernet", dst=STATION), "arp", target_ip=OTHER_IP), [6])


class AnswersPing(SwitchCase):
    """Of any size, through any port; the payload comes back, with right checksums."""

    def runTest(self) -> None:
        for port, size in zip(PORTS, (4, 5, 12, 56, 100, 1000, 1471, 1472), strict=True):
            data = bytes(i * 7 % 256 for i in range(size))
            reply = self.replied(port, ping(SENDER, HOST_IP, SWITCH_IP, data, dst_mac=SWITCH_MAC))
            self.assertEqual(reply[:12].hex(), f"{SENDER:012x}{SWITCH_MAC:012x}")
            self.assertEqual((reply[22], reply[26:34].hex()), (64, f"{SWITCH_IP:08x}{HOST_IP:08x}"))
            self.assertEqual((reply[UDP_AT], reply[UDP_AT + 4 :]), (0, data))
            self.assertEqual(_sum(reply[14:UDP_AT]), 0xFFFF)
            self.assertEqual(_sum(reply[UDP_AT:]), 0xFFFF)


class PingChecksums(SwitchCase):
    """Every kind of ICMP checksum is adjusted right: also those that carry, and 0."""

    def runTest(self) -> None:
        for checksum in (0x0000, 0x0001, 0xF7FE, 0xF7FF, 0xF800, 0xFFFE, 0xFFFF):
            reply = self.replied(2, altered(PING, "icmp", checksum=checksum))
            found = int.from_bytes(reply[UDP_AT + 2 : UDP_AT + 4], "big")
            # RFC 1624: the type goes from 8 to 0 in the upper byte, so 0x0800 is added. 0 and 0xFFFF are one value.
            self.assertEqual(found % 0xFFFF, (checksum + 0x0800) % 0xFFFF)


class PingWithABadHeader(SwitchCase):
    """A wrong IPv4 checksum: dropped and counted, not answered."""

    def runTest(self) -> None:
        self.refused(1, altered(PING, "ipv4", checksum=0x1234), Drop.BAD_CHECKSUM)
        self.replied(1, PING)


class OtherPings(SwitchCase):
    """Other addresses, other types, fragments, options, cut ones: forwarded untouched."""

    def runTest(self) -> None:
        passing = altered(PING, "ethernet", dst=STATION)
        for fields in (
            {"dst": OTHER_IP},
            {"flags": 1},
            {"flags": 3},
            {"fragment_offset": 1},
            {"ihl": 6},
            {"version": 6},
            {"protocol": 2},
        ):
            self.forwarded(1, altered(passing, "ipv4", **fields), [6])
        self.forwarded(1, altered(altered(passing, "ipv4", dst=OTHER_IP), "ipv4", checksum=1, dst=OTHER_IP), [6])
        for kind in (0, 3, 13, 9, 255):
            self.forwarded(1, altered(passing, "icmp", type=kind), [6])
        for size in (14, 20, 33, 34, 37):
            self.forwarded(1, passing[:size], [6])
        self.replied(1, passing)


def _sum(data: bytes) -> int:
    """Return the ones' complement sum, 0xFFFF where the checksum in it is right."""
    total = sum(int.from_bytes((data + bytes(len(data) % 2))[at : at + 2], "big") for at in range(0, len(data), 2))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total
