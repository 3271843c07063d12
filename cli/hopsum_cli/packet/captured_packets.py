# SPDX-License-Identifier: Apache-2.0
"""Capture files to hopsum packets."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from scapy.error import Scapy_Exception
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import CookedLinux  # noqa: F401 (registers the link type)
from scapy.packet import NoPayload, Packet, Padding, Raw
from scapy.utils import PcapReader

from hopsum_cli.packet.packet_exchange import PacketError
from hopsum_wire import HOPSUM_BYTES, Header
from hopsum_wire.errors import WireError
from hopsum_wire.header import split_datagram

_UDP_HEADER_BYTES = 8


class CapturedPacket(NamedTuple):
    """A hopsum packet of a capture. `time_s` counts from 1970, addresses are `IP:PORT`."""

    time_s: float
    source: str
    destination: str
    header: Header


@dataclass
class Capture:
    """Contents of a capture file."""

    path: Path
    frames: int = 0
    packets: list[CapturedPacket] = field(default_factory=list)
    foreign: Counter[str] = field(default_factory=Counter)
    """Frames that are no hopsum packets, by their highest layer."""
    malformed: Counter[str] = field(default_factory=Counter)
    """Datagrams of the service's UDP port that are no hopsum packets, by reason."""


def read_capture(path: Path, udp_port: int) -> Capture:
    """Read the hopsum packets of a pcap or pcapng file (or one of these in gzip), in the order of the file.

    Args:
        udp_port: the service's, of the source or the destination.

    Raises PacketError: the file cannot be read, or is no capture.
    """
    capture = Capture(path)
    try:
        with path.open("rb") as file, PcapReader(file) as reader:
            for frame in reader:
                capture.frames += 1
                _take(capture, frame, udp_port)
    except OSError as error:
        raise PacketError(f"{path}: {error.strerror or error}") from error
    except (Scapy_Exception, EOFError) as error:
        raise PacketError(
            f"{path}: it is no capture that can be read ({error or 'it is empty'}); pcap and pcapng files are, as"
            " tcpdump -w, Wireshark and `hopsum switch --pcap` write them"
        ) from error
    return capture


def _take(capture: Capture, frame: Packet, udp_port: int) -> None:
    # An ICMP error quotes a datagram: scapy calls that layer UDPerror, so UDP is the frame's own here.
    if UDP not in frame or IP not in frame:
        capture.foreign[_highest_layer(frame)] += 1
        return
    ip, udp = frame[IP], frame[UDP]
    # The port is the destination's of an UPDATE and the source's of a RESULT.
    if udp_port not in (udp.sport, udp.dport):
        capture.foreign[f"UDP to port {udp.dport}"] += 1
        return
    # Ethernet pads short frames: UDP's length says where the payload ends.
    datagram = udp.original[_UDP_HEADER_BYTES : udp.len]
    # A capture with a snapshot length has cut the payload, which is no fault of the packet.
    if len(datagram) >= HOPSUM_BYTES and (frame.wirelen or 0) > len(frame.original):
        datagram += bytes(udp.len - _UDP_HEADER_BYTES - len(datagram))
    try:
        header = split_datagram(datagram)[0]
    except WireError as error:
        capture.malformed[error.reason.name] += 1
        return
    source, destination = f"{ip.src}:{udp.sport}", f"{ip.dst}:{udp.dport}"
    capture.packets.append(CapturedPacket(float(frame.time), source, destination, header))


def _highest_layer(frame: Packet) -> str:
    layer = frame.lastlayer()
    while isinstance(layer, (Raw, Padding, NoPayload)) and layer.underlayer is not None:
        layer = layer.underlayer
    return str(layer.name)
