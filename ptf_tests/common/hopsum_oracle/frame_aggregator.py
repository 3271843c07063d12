# SPDX-License-Identifier: Apache-2.0
"""The oracle for whole frames: the exact frames that leave a switch for any Ethernet frame.

In the order of the tests
    UDP to the service's port of the switch's address   Aggregator
    ARP request for the switch's address                ARP reply
    ICMP echo request to the switch's address           echo reply; a bad IPv4 checksum is dropped
    anything else                                       plain layer-2 forwarding

The loss simulator is not here, since it is random. Frames that it passes are treated as above.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from hopsum_oracle.admission import Source, read_header
from hopsum_oracle.aggregator import Aggregator, OutputPacket, PacketOutcome
from hopsum_wire import HOPSUM_BYTES, HOPSUM_UDP_PORT, Drop
from hopsum_wire._layout import (
    ARP_BYTES,
    ARP_FIELDS,
    ETHERNET_BYTES,
    ETHERNET_FIELDS,
    ETHERTYPE_ARP,
    ETHERTYPE_IPV4,
    ICMP_BYTES,
    ICMP_FIELDS,
    IPV4_BYTES,
    IPV4_FIELDS,
    PROTO_ICMP,
    PROTO_UDP,
    REPLY_TTL,
    UDP_BYTES,
    UDP_FIELDS,
)
from hopsum_wire.fields import pack_fields, unpack_fields
from hopsum_wire.frames import FramePath, build_frame, ipv4_checksum

_ARP_REQUEST: Final = {
    "hardware": 1,
    "protocol": ETHERTYPE_IPV4,
    "hardware_bytes": 6,
    "protocol_bytes": 4,
    "operation": 1,
}
_ARP_REPLY: Final = 2
_ECHO_REQUEST: Final = 8
_ECHO_REPLY: Final = 0
_ICMP_AT: Final = ETHERNET_BYTES + IPV4_BYTES


class FrameAggregator(Aggregator):
    """A switch, fed with Ethernet frames."""

    def receive_frame(self, port: int, frame: bytes) -> list[tuple[int, bytes]]:
        """Process one frame at a port, and return the frames that leave, as (port, frame), in the order of emission."""
        return self.explain_frame(port, frame)[1]

    def explain_frame(self, port: int, frame: bytes) -> tuple[PacketOutcome, list[tuple[int, bytes]]]:
        """Process one frame as `receive_frame` does. Return its outcome, and the frames that leave."""
        arp = _arp_request(frame)
        if arp is not None and arp["target_ip"] == self.switch.ip:
            return PacketOutcome(), [(port, self._arp_reply(frame, arp))]
        lower = _Lower.parse(frame)
        if lower is None or lower.ipv4["dst"] != self.switch.ip:
            return self._forward(port, frame)
        if lower.udp is None:
            # The switch checks what it answers. A frame that it only forwards is its receiver's to check.
            if ipv4_checksum(frame[ETHERNET_BYTES:_ICMP_AT]):
                return self._dropped(Drop.BAD_CHECKSUM), []
            return PacketOutcome(), [(port, self._echo_reply(frame, lower))]
        # Only here do packets reach admission: all tests before belong to the network, and count no drop of a job.
        outcome = self._service(port, lower.ipv4, lower.udp, frame)
        return outcome, [(output.worker.port, self._reply_frame(output)) for output in outcome.outputs]

    def _service(self, port: int, ipv4: dict[str, int], udp: dict[str, int], frame: bytes) -> PacketOutcome:
        data = memoryview(frame)[ETHERNET_BYTES + IPV4_BYTES + UDP_BYTES :]
        header = read_header(data)
        if header is None:
            return self._dropped(Drop.TRUNCATED)
        if ipv4_checksum(frame[ETHERNET_BYTES : ETHERNET_BYTES + IPV4_BYTES]):
            return self._dropped(Drop.BAD_CHECKSUM)
        # Bytes behind the datagram (an Ethernet trailer) are nobody's: only the three length fields must fit.
        lengths_fit = (
            ipv4["total_length"] == IPV4_BYTES + udp["length"]
            and udp["length"] == UDP_BYTES + HOPSUM_BYTES + header.length
        )
        source = Source(port, ipv4["src"], udp["src_port"])
        return self._process(source, header, data, lengths_fit)

    def _forward(self, port: int, frame: bytes) -> tuple[PacketOutcome, list[tuple[int, bytes]]]:
        """Plain layer-2 forwarding. A frame without a whole Ethernet header has no destination."""
        destination = int.from_bytes(frame[:6], "big") if len(frame) >= ETHERNET_BYTES else 0
        if destination in self.switch.forwarding:
            return PacketOutcome(), [(self.switch.forwarding[destination], frame)]
        if destination in self.switch.floods:
            # Never back through its own port: floods would loop between two switches.
            return PacketOutcome(), [(out, frame) for out in self.switch.floods[destination] if out != port]
        return self._dropped(Drop.NO_ROUTE), []

    def _reply_frame(self, output: OutputPacket) -> bytes:
        path = FramePath(
            src_mac=self.switch.mac,
            dst_mac=output.worker.mac,
            src_ip=self.switch.ip,
            dst_ip=output.worker.ip,
            src_port=HOPSUM_UDP_PORT,
            dst_port=output.worker.udp_port,
        )
        return build_frame(path, output.header, output.payload)

    def _arp_reply(self, frame: bytes, request: dict[str, int]) -> bytes:
        reply = {
            **request,
            "operation": _ARP_REPLY,
            "sender_mac": self.switch.mac,
            "sender_ip": self.switch.ip,
            "target_mac": request["sender_mac"],
            "target_ip": request["sender_ip"],
        }
        # The padding of a short frame goes back as it came: the P4 program emits its payload unchanged.
        return self._back(frame) + pack_fields(ARP_FIELDS, reply) + frame[ETHERNET_BYTES + ARP_BYTES :]

    def _echo_reply(self, frame: bytes, lower: _Lower) -> bytes:
        ipv4 = {**lower.ipv4, "src": self.switch.ip, "dst": lower.ipv4["src"], "ttl": REPLY_TTL, "checksum": 0}
        ipv4["checksum"] = ipv4_checksum(pack_fields(IPV4_FIELDS, ipv4))
        icmp = unpack_fields(ICMP_FIELDS, frame[_ICMP_AT:])
        # The reply differs from the request in the type alone, so the checksum is adjusted, not computed again.
        total = icmp["checksum"] + (_ECHO_REQUEST << 8)  # RFC 1624
        icmp = {**icmp, "type": _ECHO_REPLY, "checksum": (total + (total >> 16)) & 0xFFFF}
        rest = frame[_ICMP_AT + ICMP_BYTES :]
        return self._back(frame) + pack_fields(IPV4_FIELDS, ipv4) + pack_fields(ICMP_FIELDS, icmp) + rest

    def _back(self, frame: bytes) -> bytes:
        """Return the Ethernet header of an answer to `frame`."""
        ethernet = unpack_fields(ETHERNET_FIELDS, frame)
        return pack_fields(ETHERNET_FIELDS, {**ethernet, "dst": ethernet["src"], "src": self.switch.mac})


class _Lower(NamedTuple):
    """IPv4 and UDP header of an unfragmented packet to the service's port, or IPv4 header of an echo request."""

    ipv4: dict[str, int]
    udp: dict[str, int] | None

    @classmethod
    def parse(cls, frame: bytes) -> _Lower | None:
        """Return the headers, or None if the frame is anything else."""
        if len(frame) < _ICMP_AT or unpack_fields(ETHERNET_FIELDS, frame)["ethertype"] != ETHERTYPE_IPV4:
            return None
        ipv4 = unpack_fields(IPV4_FIELDS, frame[ETHERNET_BYTES:])
        # A fragment has no whole UDP datagram, so it is none for the service and is forwarded.
        whole = not ipv4["flags"] & 1 and ipv4["fragment_offset"] == 0
        if not whole or (ipv4["version"], ipv4["ihl"]) != (4, IPV4_BYTES // 4):
            return None
        rest = frame[_ICMP_AT:]
        if ipv4["protocol"] == PROTO_ICMP and len(rest) >= ICMP_BYTES:
            return cls(ipv4, None) if unpack_fields(ICMP_FIELDS, rest)["type"] == _ECHO_REQUEST else None
        if ipv4["protocol"] == PROTO_UDP and len(rest) >= UDP_BYTES:
            udp = unpack_fields(UDP_FIELDS, rest)
            return cls(ipv4, udp) if udp["dst_port"] == HOPSUM_UDP_PORT else None
        return None


def _arp_request(frame: bytes) -> dict[str, int] | None:
    """Return the fields of an ARP request, or None if the frame is anything else."""
    if len(frame) < ETHERNET_BYTES + ARP_BYTES:
        return None
    if unpack_fields(ETHERNET_FIELDS, frame)["ethertype"] != ETHERTYPE_ARP:
        return None
    arp = unpack_fields(ARP_FIELDS, frame[ETHERNET_BYTES:])
    return arp if arp.items() >= _ARP_REQUEST.items() else None
