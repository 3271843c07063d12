# SPDX-License-Identifier: Apache-2.0
"""Capture files to hopsum headers, and headers to generations, slots and rounds."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from scapy.error import Scapy_Exception
from scapy.utils import RawPcapNgReader, RawPcapReader

from hopsum_cli.packet.packet_exchange import PacketError
from hopsum_wire import HOPSUM_BYTES, Header, Kind
from hopsum_wire._layout import (
    ETHERNET_BYTES,
    ETHERTYPE_ARP,
    ETHERTYPE_IPV4,
    IPV4_FIELDS,
    PROTO_ICMP,
    PROTO_UDP,
    UDP_BYTES,
    UDP_FIELDS,
    Flag,
)
from hopsum_wire.errors import WireError
from hopsum_wire.fields import unpack_fields
from hopsum_wire.header import split_datagram

_LINKS: Final = {0: "loopback", 1: "Ethernet", 101: "IP", 113: "Linux cooked", 228: "IPv4", 276: "Linux cooked 2"}
"""Link types of https://www.tcpdump.org/linktypes.html that are understood."""
_VLAN_TYPES: Final = (0x8100, 0x88A8)
_VLAN_BYTES: Final = 4
_COOKED: Final = {113: (14, 16), 276: (0, 20)}
"""The place of the protocol in a cooked link type, and the length of its header."""


class ForeignFrameError(Exception):
    """A frame that is no hopsum packet. The message says what it is, for counting."""


class CapturedPacket(NamedTuple):
    """A hopsum packet of a capture. `time_s` counts from 1970."""

    time_s: float
    header: Header


@dataclass
class Capture:
    """Contents of a capture file."""

    path: Path
    frames: int = 0
    packets: list[CapturedPacket] = field(default_factory=list)
    foreign: Counter[str] = field(default_factory=Counter)
    """Frames that are no hopsum packets, by what they are."""
    malformed: Counter[str] = field(default_factory=Counter)
    """Datagrams of the service's UDP port that are no hopsum packets, by reason."""
    udp_ports: Counter[int] = field(default_factory=Counter)
    """Destination ports of UDP datagrams that are not of the service's port."""
    notes: list[str] = field(default_factory=list)
    """Defects of the file itself."""


def read_capture(path: Path, udp_port: int) -> Capture:
    """Return the hopsum packets of a pcap or pcapng file (or one of these in gzip), in the order of the file.

    A file that ends inside a frame is read up to there, and says so in `notes`.

    Args:
        udp_port: the service's, of the source or the destination.

    Raises PacketError: the file cannot be read, or is no capture.
    """
    capture = Capture(path)
    try:
        with _warnings_into(capture.notes), path.open("rb") as file, RawPcapReader(file) as reader:
            for frame, link_type, time_s, missing_bytes in _frames(reader, capture):
                capture.frames += 1
                _take(capture, frame, link_type, time_s, missing_bytes, udp_port)
    except OSError as error:
        raise PacketError(f"{path}: {error.strerror or error}") from error
    except (Scapy_Exception, EOFError) as error:
        raise PacketError(
            f"{path}: it is no capture that can be read ({error or 'it is empty'}); pcap and pcapng files are, as"
            " tcpdump -w, Wireshark and `hopsum switch --pcap` write them"
        ) from error
    return capture


def _frames(reader: Any, capture: Capture) -> Iterator[tuple[bytes, int, float, int]]:
    """Yield (bytes, link type, time, bytes that the capture left out) of every whole record."""
    # scapy drops a record that the file ends in without a word: the place of the last whole one tells.
    end = reader.f.tell()
    for data, info in reader:
        if isinstance(reader, RawPcapNgReader):
            # pcapng has times as one number of 64 bits in two halves, in units of its own.
            time_s = ((info.tshigh or 0) << 32 | (info.tslow or 0)) / info.tsresol
            yield data, info.linktype, time_s, info.wirelen - len(data)
            continue
        if len(data) < info.caplen:
            # In place of scapy's warning, which has no number.
            capture.notes[:] = [f"the file ends inside frame {capture.frames + 1}, which is left out"]
            return
        end = reader.f.tell()
        yield data, reader.linktype, info.sec + info.usec * (1e-9 if reader.nano else 1e-6), info.wirelen - len(data)
    if not isinstance(reader, RawPcapNgReader) and reader.f.tell() != end:
        capture.notes.append(f"the file ends inside the record of frame {capture.frames + 1}")


@contextmanager
def _warnings_into(notes: list[str]) -> Iterator[None]:
    """Keep what scapy says of a damaged file, in place of printing it."""

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            """Keep a record as a note."""
            notes.append(f"the file is damaged: {record.getMessage()}")

    logger, keep = logging.getLogger("scapy.runtime"), Keep(logging.WARNING)
    # scapy has one logger for all: its handlers are put back when the file is read.
    before, propagate = logger.handlers[:], logger.propagate
    logger.handlers[:], logger.propagate = [keep], False
    try:
        yield
    finally:
        logger.handlers[:], logger.propagate = before, propagate


def _take(capture: Capture, frame: bytes, link_type: int, time_s: float, missing_bytes: int, udp_port: int) -> None:
    try:
        ports, datagram, missing = datagram_of(frame, link_type, missing_bytes)
    except ForeignFrameError as error:
        capture.foreign[str(error)] += 1
        return
    # The port is the destination's of an UPDATE and the source's of a RESULT.
    if udp_port not in ports:
        capture.foreign["UDP of other ports"] += 1
        capture.udp_ports[ports[1]] += 1
        return
    if missing and len(datagram) >= HOPSUM_BYTES:  # the capture's, not the packet's, fault
        datagram += bytes(missing)
    try:
        capture.packets.append(CapturedPacket(time_s, split_datagram(datagram)[0]))
    except WireError as error:
        capture.malformed[error.reason.name] += 1


def datagram_of(frame: bytes, link_type: int, missing_bytes: int = 0) -> tuple[tuple[int, int], bytes, int]:
    """Return ports (source, destination) and payload of a UDP frame, and how many bytes of the payload are missing.

    Args:
        missing_bytes: bytes at the end of the frame that the capture left out.

    Raises ForeignFrameError.
    """
    ethertype, packet = _above_link(frame, link_type)
    if ethertype != ETHERTYPE_IPV4:
        raise ForeignFrameError("ARP" if ethertype == ETHERTYPE_ARP else f"Ethernet type 0x{ethertype:04x}")
    try:
        ip = unpack_fields(IPV4_FIELDS, packet)
        if ip["version"] != 4 or ip["ihl"] < 5:
            raise ForeignFrameError("not IPv4")
        if ip["protocol"] != PROTO_UDP:
            raise ForeignFrameError("ICMP" if ip["protocol"] == PROTO_ICMP else f"IP protocol {ip['protocol']}")
        # hopsum never fragments (DF), and a fragment's payload begins anywhere.
        if ip["fragment_offset"] or ip["flags"] & 1:
            raise ForeignFrameError("IP fragment")
        udp = unpack_fields(UDP_FIELDS, packet[ip["ihl"] * 4 :])
    except WireError:
        raise ForeignFrameError("cut off before its UDP header ends") from None
    start = ip["ihl"] * 4 + UDP_BYTES
    # Ethernet pads short frames: UDP's length says where the payload ends.
    end = start - UDP_BYTES + max(udp["length"], UDP_BYTES)
    datagram = packet[start:end]
    return (udp["src_port"], udp["dst_port"]), datagram, min(missing_bytes, end - start - len(datagram))


def _above_link(frame: bytes, link_type: int) -> tuple[int, bytes]:
    """Return the Ethernet type and what follows the link's header. Raises ForeignFrameError."""
    if link_type not in _LINKS:
        raise ForeignFrameError(f"link type {link_type}")
    if link_type in (101, 228):
        return ETHERTYPE_IPV4, frame
    # BSD loopback: four bytes of the address family, in the byte order of its machine.
    if link_type == 0:
        return ETHERTYPE_IPV4, frame[4:]
    at, header_bytes = _COOKED.get(link_type, (ETHERNET_BYTES - 2, ETHERNET_BYTES))
    ethertype = int.from_bytes(frame[at : at + 2], "big")
    # A tag stands before the frame's type, and there may be two (802.1ad).
    while ethertype in _VLAN_TYPES:
        at, header_bytes = header_bytes + 2, header_bytes + _VLAN_BYTES
        ethertype = int.from_bytes(frame[at : at + 2], "big")
    if len(frame) < header_bytes:
        raise ForeignFrameError("cut off before its link header ends")
    return ethertype, frame[header_bytes:]


def in_order_of_time(captures: Sequence[Capture]) -> list[CapturedPacket]:
    """Return the packets of several captures of one switch as one list."""
    return sorted((packet for capture in captures for packet in capture.packets), key=lambda packet: packet.time_s)


# Packets of a switch as generations, slots and rounds: who contributed, what came twice, what is missing.


@dataclass
class Round:
    """One round of a slot, from its packets. Counters are by worker: the sender, or the receiver of an answer."""

    slot: int
    round: int
    first_s: float
    last_s: float = 0.0
    op: int = 0
    updates: Counter[int] = field(default_factory=Counter)
    partials: Counter[int] = field(default_factory=Counter)
    """The partial sums by the number of the leaf."""
    results: Counter[int] = field(default_factory=Counter)
    contributors: set[int] = field(default_factory=set)
    """Workers in the sum of a RESULT."""
    stale: Counter[int] = field(default_factory=Counter)
    held: set[int] = field(default_factory=set)
    """Newer rounds that STALE answers name."""
    probes: Counter[int] = field(default_factory=Counter)
    states: Counter[int] = field(default_factory=Counter)
    flushes: int = 0

    @property
    def complete(self) -> bool:
        """True if the capture has a RESULT."""
        return bool(self.results)

    @property
    def sent_again(self) -> int:
        """UPDATEs and PARTIALs beyond the first one of each sender."""
        return sum(count - 1 for senders in (self.updates, self.partials) for count in senders.values())

    @property
    def answered_again(self) -> int:
        """RESULTs beyond the first one to each receiver."""
        return sum(count - 1 for count in self.results.values())

    def silent(self, workers: set[int]) -> set[int]:
        """Return the workers without an UPDATE in the capture, unless they are in the sum."""
        return workers - set(self.updates) - self.contributors

    def left_out(self) -> set[int]:
        """Return the workers that sent an UPDATE and are not in the sum of a complete round."""
        return set(self.updates) - self.contributors if self.complete else set()

    def without_result(self) -> set[int]:
        """Return the workers that sent an UPDATE to a complete round and got no RESULT."""
        return set(self.updates) - set(self.results) if self.complete else set()

    def is_plain(self, workers: set[int]) -> bool:
        """Return True if every worker sent once, is in the sum, and got the result once."""
        return (
            set(self.updates) == set(self.results) == self.contributors == workers
            and not (self.sent_again or self.answered_again or self.stale or self.probes or self.states)
            and not (self.flushes or self.partials)
        )


@dataclass
class Generation:
    """One generation of a job."""

    number: int
    workers: set[int] = field(default_factory=set)
    """Ranks that sent an UPDATE or stand in the contributors of a RESULT."""
    packets: Counter[str] = field(default_factory=Counter)
    """The packets by the name of the kind."""
    rounds: dict[tuple[int, int], Round] = field(default_factory=dict)
    """The rounds by slot and round, in order of first appearance."""

    def add(self, packet: CapturedPacket) -> None:
        """Take one packet of this generation."""
        header = packet.header
        key = (header.slot, header.round)
        found = self.rounds.setdefault(key, Round(*key, first_s=packet.time_s))
        found.last_s = packet.time_s
        self.packets[Kind(header.kind).name] += 1
        # Workers are those that contributed: a PROBE may come from an observer.
        _TAKE[Kind(header.kind)](found, header)
        if header.kind == Kind.UPDATE:
            self.workers.add(header.worker)
        elif header.kind == Kind.RESULT:
            self.workers |= found.contributors


def generations_of(packets: Iterable[CapturedPacket]) -> list[Generation]:
    """Return the generations of packets that are in order of time, in order of first appearance."""
    found: dict[int, Generation] = {}
    for packet in packets:
        number = packet.header.generation
        found.setdefault(number, Generation(number)).add(packet)
    return list(found.values())


def bits_of(bitmap: int) -> set[int]:
    """Return the ranks of a contributors bitmap."""
    return {rank for rank in range(bitmap.bit_length()) if bitmap >> rank & 1}


def _update(found: Round, header: Header) -> None:
    found.op = header.op
    found.updates[header.worker] += 1
    found.flushes += bool(header.flags & Flag.FLUSH)


def _partial(found: Round, header: Header) -> None:
    found.op = header.op
    found.partials[header.worker] += 1
    found.flushes += bool(header.flags & Flag.FLUSH)


def _result(found: Round, header: Header) -> None:
    found.op = header.op
    found.results[header.worker] += 1
    found.contributors |= bits_of(header.contributors)


def _stale(found: Round, header: Header) -> None:
    found.stale[header.worker] += 1
    found.held.add(header.held)


def _probe(found: Round, header: Header) -> None:
    found.probes[header.worker] += 1


def _state(found: Round, header: Header) -> None:
    found.states[header.worker] += 1


_TAKE: dict[Kind, Callable[[Round, Header], None]] = {
    Kind.UPDATE: _update,
    Kind.RESULT: _result,
    Kind.STALE: _stale,
    Kind.PROBE: _probe,
    Kind.STATE: _state,
    Kind.PARTIAL: _partial,
}
