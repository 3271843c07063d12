# SPDX-License-Identifier: Apache-2.0
"""Frames that cases send: well-formed UPDATEs of a job's workers, plain frames, and alterations of both."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields

import numpy as np
from numpy.typing import ArrayLike

from hopsum_controlplane.addresses import ipv4_to_int, mac_to_int
from hopsum_controlplane.job_spec import Job, LeafEndpoint, ParentEndpoint, WorkerEndpoint
from hopsum_ptf.case_places import BROADCAST_MAC
from hopsum_wire import Header, Kind, Op, pack_codes, up_bytes
from hopsum_wire._layout import (
    ARP_FIELDS,
    ETHERNET_BYTES,
    ETHERNET_FIELDS,
    ETHERTYPE_ARP,
    ETHERTYPE_IPV4,
    HOPSUM_FIELDS,
    ICMP_FIELDS,
    IPV4_BYTES,
    IPV4_FIELDS,
    PROTO_ICMP,
    UDP_BYTES,
    UDP_FIELDS,
    Field,
)
from hopsum_wire.fields import pack_fields, unpack_fields
from hopsum_wire.frames import FramePath, build_frame, ipv4_checksum
from hopsum_wire.payload import shape_of

IPV4_AT = ETHERNET_BYTES
UDP_AT = IPV4_AT + IPV4_BYTES
HOPSUM_AT = UDP_AT + UDP_BYTES
PAYLOAD_AT = HOPSUM_AT + 32
ICMP_ECHO_REQUEST = 8

_HEADERS: dict[str, tuple[int, tuple[Field, ...]]] = {
    "ethernet": (0, ETHERNET_FIELDS),
    "arp": (IPV4_AT, ARP_FIELDS),
    "ipv4": (IPV4_AT, IPV4_FIELDS),
    "icmp": (UDP_AT, ICMP_FIELDS),
    "udp": (UDP_AT, UDP_FIELDS),
    "hopsum": (HOPSUM_AT, HOPSUM_FIELDS),
}
_HOPSUM_NAMES = {field.name for field in fields(Header)}


def payload(op: int, values: ArrayLike) -> bytes:
    """Return the payload of an op: its codes or its lanes (OR: bytes). A scalar stands for all of them."""
    shape = shape_of(op)
    lane = np.dtype(shape.lane_dtype)
    if not shape.has_codes:
        return np.broadcast_to(np.asarray(values, lane), shape.up_bytes // lane.itemsize).tobytes()
    # A copy: a broadcast scalar is one byte that all codes share.
    codes = np.broadcast_to(np.asarray(values, np.uint8), shape.elements).copy()
    return pack_codes(codes, shape.lane_bits, bits=shape.code_bits).tobytes()


def codes(values: ArrayLike) -> bytes:
    """Return the payload of 1024 codes for LOOKUP_ADD8. A scalar stands for all of them."""
    return payload(Op.LOOKUP_ADD8, values)


def lanes32(values: ArrayLike) -> bytes:
    """Return the payload of 256 lanes of 32 bits. A scalar stands for all of them."""
    return payload(Op.ADD32, values)


def path_of(job: Job, worker: WorkerEndpoint) -> FramePath:
    """Return the addresses on a worker's frames to the switch, with the switch's service as destination."""
    return FramePath(
        src_mac=mac_to_int(worker.mac),
        dst_mac=mac_to_int(job.switch.mac),
        src_ip=ipv4_to_int(worker.ip),
        dst_ip=ipv4_to_int(job.switch.ip),
        src_port=worker.udp_port,
    )


def update(
    job: Job, sender: int | WorkerEndpoint, payload: bytes, *, op: int = Op.ADD32, slot: int = 0, round: int = 1,
    count: int | None = None, flags: int = 0,
) -> bytes:  # fmt: skip
    """Return the frame of an UPDATE of a sender: a worker of the job by its rank, or an observer.

    `count` None: the elements of the op. The length in the header is that of the op, whatever `payload` has.
    """
    if isinstance(sender, int):
        sender = next(worker for worker in job.spec.workers if worker.rank == sender)
    header = Header(
        kind=Kind.UPDATE,
        flags=flags,
        op=op,
        worker=sender.rank,
        slot=slot,
        generation=job.generation,
        round=round,
        count=shape_of(op).elements if count is None else count,
        length=up_bytes(op),
    )
    return build_frame(path_of(job, sender), header, payload)


def from_relative(
    job: Job, sender: LeafEndpoint | ParentEndpoint, kind: Kind, payload: bytes = b"", *, by: Iterable[int] = (),
    op: int = Op.ADD32, slot: int = 0, round: int = 1, count: int = 256, flags: int = 0, held: int = 0,
) -> bytes:  # fmt: skip
    """Return the frame of a leaf's PARTIAL, or of the parent's RESULT or STALE. `by` has the ranks in the sum."""
    header = Header(
        kind=kind,
        flags=flags,
        op=op,
        worker=sender.number,
        slot=slot,
        generation=job.generation,
        round=round,
        held=held,
        contributors=sum(1 << rank for rank in by),
        count=count,
        length=len(payload),
    )
    path = FramePath(
        src_mac=mac_to_int(sender.mac),
        dst_mac=mac_to_int(job.switch.mac),
        src_ip=ipv4_to_int(sender.ip),
        dst_ip=ipv4_to_int(job.switch.ip),
        src_port=job.udp_port,
    )
    return build_frame(path, header, payload)


def probe(job: Job, asker: WorkerEndpoint, *, slot: int = 0, round: int = 1, count: int = 0) -> bytes:
    """Return the frame of a PROBE of a worker or an observer."""
    header = Header(kind=Kind.PROBE, worker=asker.rank, slot=slot, generation=job.generation, round=round, count=count)
    return build_frame(path_of(job, asker), header)


def arp_request(sender_mac: int, sender_ip: int, target_ip: int, *, dst_mac: int = BROADCAST_MAC) -> bytes:
    """Return the ARP request "who has target_ip, tell sender_ip", without padding."""
    fields = {
        "hardware": 1,
        "protocol": ETHERTYPE_IPV4,
        "hardware_bytes": 6,
        "protocol_bytes": 4,
        "operation": 1,
        "sender_mac": sender_mac,
        "sender_ip": sender_ip,
        "target_ip": target_ip,
    }
    return plain(dst_mac, sender_mac, pack_fields(ARP_FIELDS, fields), ETHERTYPE_ARP)


def ping(src_mac: int, src_ip: int, dst_ip: int, data: bytes, *, dst_mac: int) -> bytes:
    """Return an ICMP echo request with right checksums. `data` starts with identifier and sequence number."""
    blank = pack_fields(ICMP_FIELDS, {"type": ICMP_ECHO_REQUEST}) + data
    body = altered_at(blank, 0, ICMP_FIELDS, checksum=ipv4_checksum(blank + bytes(len(blank) % 2)))
    ipv4 = {"version": 4, "ihl": 5, "total_length": IPV4_BYTES + len(body), "ttl": 9, "protocol": PROTO_ICMP}
    packed = pack_fields(IPV4_FIELDS, {**ipv4, "identification": 77, "src": src_ip, "dst": dst_ip})
    frame = plain(dst_mac, src_mac, packed + body, ETHERTYPE_IPV4)
    return altered(frame, "ipv4", ttl=9)


def plain(dst_mac: int, src_mac: int, body: bytes, ethertype: int = 0x88B5) -> bytes:
    """Return an Ethernet frame around `body`, by default of an ethertype for local experiments."""
    return pack_fields(ETHERNET_FIELDS, {"dst": dst_mac, "src": src_mac, "ethertype": ethertype}) + body


def altered(frame: bytes, header: str, **values: int) -> bytes:
    """Return the frame with fields of one header replaced: "ethernet", "arp", "ipv4", "icmp", "udp" or "hopsum".

    The IPv4 checksum follows changes of IPv4 fields unless it is given itself.
    """
    at, layout = _HEADERS[header]
    if header == "ipv4" and "checksum" not in values:
        # The checksum is computed over the header with the checksum 0.
        blank = altered_at(frame, at, layout, **values, checksum=0)
        values["checksum"] = ipv4_checksum(blank[at : at + IPV4_BYTES])
    return altered_at(frame, at, layout, **values)


def altered_at(frame: bytes, at: int, layout: tuple[Field, ...], **values: int) -> bytes:
    """Return the bytes with fields of the header at `at` replaced, and nothing else. Raises KeyError."""
    found = unpack_fields(layout, frame[at:])
    unknown = values.keys() - found.keys()
    if unknown:
        raise KeyError(f"the header has no field {unknown}")
    packed = pack_fields(layout, {**found, **values})
    return frame[:at] + packed + frame[at + len(packed) :]


def resized(frame: bytes, payload: bytes) -> bytes:
    """Return the frame with another payload, all three lengths following it."""
    body = frame[:PAYLOAD_AT] + payload
    # From the inside out: the IPv4 length follows from the whole frame.
    body = altered(body, "hopsum", length=len(payload))
    body = altered(body, "udp", length=UDP_BYTES + 32 + len(payload))
    return altered(body, "ipv4", total_length=len(body) - ETHERNET_BYTES)


def hopsum_header(frame: bytes) -> Header:
    """Return the hopsum header of a frame."""
    return Header.unpack(frame[HOPSUM_AT:])


def payload_of(frame: bytes) -> bytes:
    """Return the payload after the hopsum header, of the length in the header."""
    return frame[PAYLOAD_AT : PAYLOAD_AT + hopsum_header(frame).length]


def describe(frame: bytes) -> str:
    """Return a frame in one line, for messages."""
    if len(frame) < PAYLOAD_AT:
        return f"{len(frame)} bytes {frame[:64].hex()}"
    header = hopsum_header(frame)
    shown = ", ".join(f"{name}={getattr(header, name)}" for name in sorted(_HOPSUM_NAMES))
    return f"{len(frame)} bytes to {frame[:6].hex(':')}: {shown}; payload {frame[PAYLOAD_AT:][:16].hex()}..."
