# SPDX-License-Identifier: Apache-2.0
"""Frames that cases send: well-formed UPDATEs of a job's workers, plain frames, and alterations of both."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
from numpy.typing import ArrayLike

from hopsum.wire import Header, Kind, Op, pack_codes, up_bytes
from hopsum.wire._layout import (
    ETHERNET_BYTES,
    ETHERNET_FIELDS,
    HOPSUM_FIELDS,
    IPV4_BYTES,
    IPV4_FIELDS,
    UDP_BYTES,
    UDP_FIELDS,
    Field,
)
from hopsum.wire.fields import pack_fields, unpack_fields
from hopsum.wire.frames import FramePath, build_frame, ipv4_checksum
from hopsum_controlplane.addresses import ipv4_to_int, mac_to_int
from hopsum_controlplane.jobs import Job, WorkerEndpoint

IPV4_AT = ETHERNET_BYTES
UDP_AT = IPV4_AT + IPV4_BYTES
HOPSUM_AT = UDP_AT + UDP_BYTES
PAYLOAD_AT = HOPSUM_AT + 32

_HEADERS: dict[str, tuple[int, tuple[Field, ...]]] = {
    "ethernet": (0, ETHERNET_FIELDS),
    "ipv4": (IPV4_AT, IPV4_FIELDS),
    "udp": (UDP_AT, UDP_FIELDS),
    "hopsum": (HOPSUM_AT, HOPSUM_FIELDS),
}
_HOPSUM_NAMES = {field.name for field in fields(Header)}
ELEMENTS = {Op.LOOKUP_ADD8: 1024, Op.ADD32: 256, Op.MAX32: 256}


def codes(values: ArrayLike) -> bytes:
    """Return the payload of 1024 codes; a scalar stands for all of them."""
    return pack_codes(np.broadcast_to(np.asarray(values, np.uint8), 1024).copy()).tobytes()


def lanes32(values: ArrayLike) -> bytes:
    """Return the payload of 256 lanes of 32 bits; a scalar stands for all of them."""
    return np.broadcast_to(np.asarray(values, ">u4"), 256).tobytes()


def path_of(job: Job, worker: WorkerEndpoint) -> FramePath:
    """Return the addresses on a worker's frames."""
    return FramePath(
        src_mac=mac_to_int(worker.mac),
        dst_mac=mac_to_int(job.switch.mac),
        src_ip=ipv4_to_int(worker.ip),
        dst_ip=ipv4_to_int(job.switch.ip),
        src_port=worker.udp_port,
    )


def update(
    job: Job, rank: int, payload: bytes, *, op: int = Op.ADD32, slot: int = 0, round: int = 1, count: int | None = None
) -> bytes:
    """Return the UPDATE that worker `rank` sends."""
    header = Header(
        kind=Kind.UPDATE,
        op=op,
        worker=rank,
        slot=slot,
        epoch=job.epoch,
        round=round,
        count=ELEMENTS[Op(op)] if count is None else count,
        length=up_bytes(op),
    )
    worker = next(worker for worker in job.spec.workers if worker.rank == rank)
    return build_frame(path_of(job, worker), header, payload)


def plain(dst_mac: int, src_mac: int, body: bytes, ethertype: int = 0x88B5) -> bytes:
    """Return a frame that is not IPv4 (an ethertype for local experiments)."""
    return pack_fields(ETHERNET_FIELDS, {"dst": dst_mac, "src": src_mac, "ethertype": ethertype}) + body


def altered(frame: bytes, header: str, **values: int) -> bytes:
    """Return the frame with fields of one header replaced: "ethernet", "ipv4", "udp" or "hopsum".

    The IPv4 checksum follows changes of IPv4 fields unless it is given itself.
    """
    at, layout = _HEADERS[header]
    found = unpack_fields(layout, frame[at:])
    unknown = values.keys() - found.keys()
    if unknown:
        raise KeyError(f"{header} has no field {unknown}")
    found.update(values)
    if header == "ipv4" and "checksum" not in values:
        found["checksum"] = ipv4_checksum(pack_fields(layout, {**found, "checksum": 0}))
    packed = pack_fields(layout, found)
    return frame[:at] + packed + frame[at + len(packed) :]


def resized(frame: bytes, payload: bytes) -> bytes:
    """Return the frame with another payload, all three lengths following it."""
    body = frame[:PAYLOAD_AT] + payload
    body = altered(body, "hopsum", length=len(payload))
    body = altered(body, "udp", length=UDP_BYTES + 32 + len(payload))
    return altered(body, "ipv4", total_length=len(body) - ETHERNET_BYTES)


def hopsum_header(frame: bytes) -> Header:
    """Return the hopsum header of a frame."""
    return Header.unpack(frame[HOPSUM_AT:])


def payload_of(frame: bytes) -> bytes:
    """Return what follows the hopsum header, as long as the header says."""
    return frame[PAYLOAD_AT : PAYLOAD_AT + hopsum_header(frame).length]


def describe(frame: bytes) -> str:
    """Return a frame in one line, for messages."""
    if len(frame) < PAYLOAD_AT:
        return f"{len(frame)} bytes {frame[:64].hex()}"
    header = hopsum_header(frame)
    shown = ", ".join(f"{name}={getattr(header, name)}" for name in sorted(_HOPSUM_NAMES))
    return f"{len(frame)} bytes to {frame[:6].hex(':')}: {shown}; payload {frame[PAYLOAD_AT:][:16].hex()}..."
