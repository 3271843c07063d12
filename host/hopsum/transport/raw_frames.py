# SPDX-License-Identifier: Apache-2.0
"""The frames of one worker without a kernel below it: UDP over IPv4 to its switch and back, and the ARP that it takes.

A frame that arrives is for the worker if its IPv4 header is whole (length, checksum, no options, no fragment), its UDP
datagram comes from the switch's port to the worker's, and its checksum is 0 ("none"), right, or vouched for by the
kernel. Bytes behind the datagram, Ethernet's padding, are nobody's. Whatever else arrives is no datagram.
"""

from __future__ import annotations

import socket
from typing import Final

from hopsum.transport.segments import split_segments
from hopsum_wire._layout import (
    ARP_BYTES,
    ARP_FIELDS,
    ETHERNET_BYTES,
    ETHERNET_FIELDS,
    ETHERTYPE_ARP,
    ETHERTYPE_IPV4,
    IPV4_BYTES,
    PROTO_ICMP,
    PROTO_UDP,
    UDP_BYTES,
)
from hopsum_wire.fields import pack_fields, unpack_fields
from hopsum_wire.frames import FramePath, lower_headers

LOWER_BYTES: Final = ETHERNET_BYTES + IPV4_BYTES + UDP_BYTES
_UDP_AT: Final = ETHERNET_BYTES + IPV4_BYTES
_QUOTED_AT: Final = _UDP_AT + 8
"""The place in an ICMP message of the packet that it is about."""
_PLAIN_IPV4: Final = ETHERTYPE_IPV4.to_bytes(2, "big") + b"\x45"
"""Version 4, no options."""
_BROADCAST: Final = (1 << 48) - 1
_ARP_REQUEST, _ARP_REPLY = 1, 2
_ARP_KIND: Final = {"hardware": 1, "protocol": ETHERTYPE_IPV4, "hardware_bytes": 6, "protocol_bytes": 4}
_ICMP_UNREACHABLE: Final = 3


class RawFrames:
    """Makes and reads the frames of one worker.

    Args:
        mac: of its interface.
        own, switch: (IPv4 address, UDP port).
        hop: IPv4 address that frames to the switch go to: its own, or a router's.
    """

    def __init__(self, mac: int, own: tuple[str, int], switch: tuple[str, int], hop: str) -> None:
        self._own_ip, self._switch_ip, self._hop_ip = (socket.inet_aton(ip) for ip in (own[0], switch[0], hop))
        self._mac, self._own_port, self._switch_port = mac, own[1], switch[1]
        way_down = (switch[1].to_bytes(2, "big"), own[1].to_bytes(2, "big"))
        self._from_switch = b"".join((self._switch_ip, self._own_ip, *way_down))
        """Addresses and ports, as they stand behind each other in a frame without options."""
        self._to_switch = b"".join((self._own_ip, self._switch_ip, *reversed(way_down)))
        self.hop_mac: int | None = None
        """Learnt from ARP; None: not yet."""
        self._lower: dict[int, bytes] = {}

    def lower(self, datagram_bytes: int) -> bytes:
        """Return what goes in front of a datagram of this size. `hop_mac` has to be known."""
        found = self._lower.get(datagram_bytes)
        if found is None:
            assert self.hop_mac is not None, "nothing is sent before the next hop has answered"
            own_ip, switch_ip = (int.from_bytes(ip, "big") for ip in (self._own_ip, self._switch_ip))
            path = FramePath(self._mac, self.hop_mac, own_ip, switch_ip, self._own_port, self._switch_port)
            found = self._lower[datagram_bytes] = lower_headers(path, datagram_bytes)
        return found

    def datagrams(self, frame: memoryview, *, mtu_bytes: int, vouched: bool) -> list[memoryview]:
        """Return the datagrams in a frame, views into it; none unless it is for the worker.

        Args:
            mtu_bytes: what is longer is a run of datagrams which nobody has cut yet.
            vouched: the kernel has verified the UDP checksum, or it was never on a wire.
        """
        if len(frame) < LOWER_BYTES or not self._is_for_us(frame, PROTO_UDP):
            return []
        total_bytes = int.from_bytes(frame[16:18], "big")
        udp_bytes = int.from_bytes(frame[38:40], "big")
        whole = UDP_BYTES <= udp_bytes == total_bytes - IPV4_BYTES <= len(frame) - _UDP_AT
        if not whole or frame[26:38] != self._from_switch:
            return []
        if not vouched and any(frame[40:42]) and not _udp_checksum_fits(frame, udp_bytes):
            return []
        datagram = frame[LOWER_BYTES : _UDP_AT + udp_bytes]
        return split_segments(datagram) if total_bytes > mtu_bytes else [datagram]

    def says_unreachable(self, frame: memoryview) -> bool:
        """Say whether a frame is the network's word that a datagram to the switch arrives nowhere."""
        return (
            len(frame) >= _QUOTED_AT + IPV4_BYTES + 4
            and self._is_for_us(frame, PROTO_ICMP)
            and frame[_UDP_AT] == _ICMP_UNREACHABLE
            and frame[_QUOTED_AT + 12 : _QUOTED_AT + IPV4_BYTES + 4] == self._to_switch
        )

    def _is_for_us(self, frame: memoryview, protocol: int) -> bool:
        return (
            bytes(frame[12:15]) == _PLAIN_IPV4
            and not int.from_bytes(frame[20:22], "big") & 0x3FFF
            and frame[23] == protocol
            and frame[30:34] == self._own_ip
            and int.from_bytes(frame[ETHERNET_BYTES:_UDP_AT], "big") % 0xFFFF == 0  # the sum with end-around carry
        )

    def hear_arp(self, frame: memoryview) -> bytes | None:
        """Learn where the next hop is. Return the answer to a request for the worker's address, None for all else."""
        if len(frame) < ETHERNET_BYTES + ARP_BYTES or frame[12:14] != ETHERTYPE_ARP.to_bytes(2, "big"):
            return None
        arp = unpack_fields(ARP_FIELDS, bytes(frame[ETHERNET_BYTES : ETHERNET_BYTES + ARP_BYTES]))
        own_ip, hop_ip = (int.from_bytes(ip, "big") for ip in (self._own_ip, self._hop_ip))
        if not arp.items() >= _ARP_KIND.items():
            return None
        if arp["sender_ip"] == hop_ip and arp["sender_mac"] not in (0, _BROADCAST, self.hop_mac):
            self.hop_mac = arp["sender_mac"]
            self._lower.clear()
        if (arp["operation"], arp["target_ip"]) != (_ARP_REQUEST, own_ip):
            return None
        return self._arp(_ARP_REPLY, arp["sender_mac"], arp["sender_mac"], arp["sender_ip"])

    def arp_request(self) -> bytes:
        """Return the question who has the next hop's address."""
        return self._arp(_ARP_REQUEST, _BROADCAST, 0, int.from_bytes(self._hop_ip, "big"))

    def _arp(self, operation: int, to_mac: int, target_mac: int, target_ip: int) -> bytes:
        ethernet = {"dst": to_mac, "src": self._mac, "ethertype": ETHERTYPE_ARP}
        sender = {"sender_mac": self._mac, "sender_ip": int.from_bytes(self._own_ip, "big")}
        target = {"target_mac": target_mac, "target_ip": target_ip}
        body = {**_ARP_KIND, "operation": operation, **sender, **target}
        return pack_fields(ETHERNET_FIELDS, ethernet) + pack_fields(ARP_FIELDS, body)


def _udp_checksum_fits(frame: memoryview, udp_bytes: int) -> bool:
    """Say whether a UDP checksum is right: addresses, protocol, length and datagram add up to 0 modulo 65535."""
    covered = bytes(frame[26:34]) + bytes(frame[_UDP_AT : _UDP_AT + udp_bytes]) + bytes(udp_bytes % 2)
    return (int.from_bytes(covered, "big") + PROTO_UDP + udp_bytes) % 0xFFFF == 0
