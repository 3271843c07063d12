# SPDX-License-Identifier: Apache-2.0
"""The admission of packets to the slots of a switch.

The checks run in the order of the tables. The first check that fails names the drop reason.

    PACKET_CHECKS   of the packet alone
    (UNKNOWN_GENERATION, UNKNOWN_WORKER: no such job, no such rank in it)
    JOB_CHECKS      of the packet against its job and sender
    (OP_MISMATCH: the copy holds this very round with another op. An older round is STALE whatever its op)

In a tree PARTIAL comes from leaves, RESULT and STALE from the parent: kinds that do not exist (BAD_KIND) where the job
has no such leaf, or no parent.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopsum_oracle.switch_config import TREE_OPS, JobConfig, LeafConfig, WorkerConfig
from hopsum_wire import HOPSUM_BYTES, WIRE_VERSION, Drop, Flag, Header, Kind, Op
from hopsum_wire._layout import LANES_BYTES
from hopsum_wire.payload import SHAPES, lanes


class Source(NamedTuple):
    """The origin of a packet: switch port, IPv4 source address, UDP source port."""

    port: int
    ip: int
    udp_port: int


@dataclass(frozen=True, slots=True)
class Packet:
    """A hopsum packet as the switch sees it."""

    source: Source
    header: Header
    payload: NDArray[np.uint8]
    """The bytes that the header announces, uint8[n]."""
    lengths_fit: bool
    """Flag: the lengths in the lower layers and in the header are consistent."""
    relative: WorkerConfig | None = None
    """The leaf or parent that sends such packets here, if the kind is one of a tree's."""


@dataclass(frozen=True, slots=True)
class AdmittedPacket:
    """A packet that may touch its job's slots, with the results of the tables."""

    packet: Packet
    job: JobConfig
    worker: WorkerConfig
    """The sender: a worker, an observer, a leaf or the parent."""


def read_header(data: bytes | memoryview) -> Header | None:
    """Return the header of a datagram, or None if it is TRUNCATED.

    A payload is expected only if version, kind, op and length announce one that the program knows: so
    truncation means that the bytes end early, and nothing else.
    """
    if len(data) < HOPSUM_BYTES:
        return None
    header = Header.unpack(data)
    announced = (
        header.version == WIRE_VERSION
        and header.op in (SHAPES if header.kind == Kind.UPDATE else TREE_OPS)
        and header.length == payload_bytes(header.kind, header.op) > 0
    )
    return None if announced and len(data) < HOPSUM_BYTES + header.length else header


def payload_bytes(kind: int, op: int) -> int:
    """Return the payload bytes of a packet of a kind with an op, 0 for kinds without payload.

    Raises KeyError for an unknown op of an UPDATE or RESULT.
    """
    if kind == Kind.PARTIAL:
        return LANES_BYTES
    if kind == Kind.UPDATE:
        return SHAPES[op].up_bytes
    return SHAPES[op].down_bytes if kind == Kind.RESULT else 0


_ADDED: Final = (Kind.UPDATE, Kind.PARTIAL)
_OF_ANYBODY: Final = (Kind.UPDATE, Kind.PROBE)

PACKET_CHECKS: Final[tuple[tuple[Drop, Callable[[Packet], bool]], ...]] = (
    (Drop.BAD_VERSION, lambda packet: packet.header.version != WIRE_VERSION),
    (Drop.BAD_KIND, lambda packet: packet.header.kind not in _OF_ANYBODY and packet.relative is None),
    (Drop.BAD_FLAGS, lambda packet: bool(packet.header.flags & ~(Flag.FLUSH if _is_added(packet) else 0))),
    (Drop.BAD_OP, lambda packet: packet.header.op not in _ops_of(packet)),
    (Drop.BAD_LENGTH, lambda packet: not packet.lengths_fit or packet.header.length != _payload_bytes(packet)),
)

JOB_CHECKS: Final[tuple[tuple[Drop, Callable[[AdmittedPacket], bool]], ...]] = (
    (Drop.WRONG_PORT, lambda a: a.packet.source.port != a.worker.port),
    (
        Drop.WRONG_SOURCE,
        lambda a: a.packet.source[1:] != (a.worker.ip, a.worker.udp_port),
    ),
    (Drop.BAD_SLOT, lambda a: a.packet.header.slot >= a.job.slots),
    (Drop.BAD_ROUND, lambda a: a.packet.header.round == 0),
    (Drop.OBSERVER, lambda a: _is_update(a.packet) and a.worker in a.job.observers),
    (Drop.BAD_VALUE, lambda a: _is_added(a.packet) and a.packet.header.op == Op.MAX32 and _has_top_bit(a.packet)),
    (Drop.BAD_CONTRIBUTORS, lambda a: isinstance(a.worker, LeafConfig) and not _are_below(a.packet, a.worker)),
    (Drop.NO_TABLE, lambda a: _is_update(a.packet) and _lacks_table(a)),
)


def _ops_of(packet: Packet) -> Collection[int]:
    """Return the ops that a packet of this kind may have, from where it comes."""
    if packet.header.kind == Kind.PROBE:
        return (0,)
    return SHAPES if packet.relative is None else TREE_OPS


def _is_update(packet: Packet) -> bool:
    return packet.header.kind == Kind.UPDATE


def _is_added(packet: Packet) -> bool:
    """Say whether it is a kind that is added."""
    return packet.header.kind in _ADDED


def _payload_bytes(packet: Packet) -> int:
    return payload_bytes(packet.header.kind, packet.header.op)


def _are_below(packet: Packet, leaf: LeafConfig) -> bool:
    inside = packet.header.contributors
    return inside != 0 and not inside & ~leaf.members


def _lacks_table(admitted: AdmittedPacket) -> bool:
    op = admitted.packet.header.op
    return SHAPES[op].has_codes and admitted.job.table_of(op) is None


def _has_top_bit(packet: Packet) -> bool:
    return bool((lanes(packet.header.op, packet.payload) >> 31).any())


def admit(packet: Packet, jobs: Mapping[int, JobConfig]) -> AdmittedPacket | Drop:
    """Return the packet with its job and sender, or the reason of its drop. `jobs` is keyed by generation."""
    job = jobs.get(packet.header.generation)
    packet = replace(packet, relative=None if job is None else _relative(packet.header, job))
    for reason, fails in PACKET_CHECKS:
        if fails(packet):
            return reason
    if job is None:
        return Drop.UNKNOWN_GENERATION
    worker = packet.relative or job.worker(packet.header.worker)
    if worker is None:
        return Drop.UNKNOWN_WORKER
    admitted = AdmittedPacket(packet, job, worker)
    return next((reason for reason, fails in JOB_CHECKS if fails(admitted)), admitted)


def _relative(header: Header, job: JobConfig) -> WorkerConfig | None:
    if header.kind == Kind.PARTIAL:
        return job.leaf(header.worker)
    return job.parent if header.kind in (Kind.RESULT, Kind.STALE) else None
