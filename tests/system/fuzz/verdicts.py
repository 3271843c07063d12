# SPDX-License-Identifier: Apache-2.0
"""The fate of frames before any slot is read, written a third time: for whole arrays, and with no code of the
oracle's or the program's.

    a drop reason   the frame is dropped for it, and nothing else happens
    FORWARD, FLOOD  it leaves as it came
    ANSWER          ARP or echo request for the switch: an answer leaves, no slot is touched
    SLOT            admitted: only such a frame may change a copy (or be dropped as OP_MISMATCH)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hopsum_oracle.aggregator import JobConfig
from hopsum_wire import HOPSUM_UDP_PORT, WIRE_VERSION, Drop, Kind, Op
from hopsum_wire._layout import (
    ARP_FIELDS,
    ETHERNET_FIELDS,
    ETHERTYPE_ARP,
    ETHERTYPE_IPV4,
    HOPSUM_FIELDS,
    ICMP_FIELDS,
    IPV4_FIELDS,
    PROTO_ICMP,
    PROTO_UDP,
    UDP_FIELDS,
    Field,
)

from ..contract.bed import BROADCAST, STATION, SWITCH
from .corpus import Frames
from .fields import read
from .mutations import IPV4_AT, UDP_AT

FORWARD: Final = 100
FLOOD: Final = 101
ANSWER: Final = 102
SLOT: Final = 103
HOPSUM_AT: Final = 42
PAYLOAD_AT: Final = 74
UP_BYTES: Final = np.array((0, 512, 256, 1024, 1024, 1024, 1024, 1024, 0, 512, 384, 256))
"""By op. 8 is none."""
DOWN_BYTES: Final = np.array((0, *7 * (1024,), 0, 512, 0, 0))
"""By op, from a parent: trees do not have the last two."""
LANES: Final = 1024
OPS: Final = 11

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]


class View:
    """Header fields of frames, as if they were there."""

    def __init__(self, frames: Frames) -> None:
        self.frames = frames
        self._all = np.arange(len(frames.lengths))

    def __call__(self, fields: tuple[Field, ...], start: int, name: str) -> Ints:
        """Return a field as int64; `contributors` has a method of its own."""
        field = next(field for field in fields if field.name == name)
        return read(self.frames.rows, self._all, start, field).astype(np.int64)

    def hopsum(self, name: str) -> Ints:
        """Return a field of the hopsum header."""
        return self(HOPSUM_FIELDS, HOPSUM_AT, name)

    def contributors(self) -> NDArray[np.uint64]:
        """Return the contributors of the hopsum header."""
        field = next(field for field in HOPSUM_FIELDS if field.name == "contributors")
        return read(self.frames.rows, self._all, HOPSUM_AT, field)

    def right_checksum(self) -> Bools:
        """Say where the IPv4 header sums to ones."""
        total = self.frames.rows[:, IPV4_AT:UDP_AT].copy().view(">u2").astype(np.int64).sum(axis=1)
        return np.asarray((total % 0xFFFF == 0) & (total > 0))


def verdicts(frames: Frames, jobs: tuple[JobConfig, ...]) -> Ints:
    """Return a drop reason or one of the four words for each frame: int64[n]."""
    view = View(frames)
    arp, ping, service = _for_the_switch(view)
    result = _plain(view)
    result[arp] = ANSWER
    result[ping] = np.where(view.right_checksum(), ANSWER, int(Drop.BAD_CHECKSUM))[ping]
    result[service] = _admission(view, jobs)[service]
    return result


def _for_the_switch(view: View) -> tuple[Bools, Bools, Bools]:
    lengths = view.frames.lengths
    ethertype = view(ETHERNET_FIELDS, 0, "ethertype")
    arp = (ethertype == ETHERTYPE_ARP) & (lengths >= HOPSUM_AT)
    wanted = {"hardware": 1, "protocol": 0x0800, "hardware_bytes": 6, "protocol_bytes": 4, "operation": 1}
    for name, value in {**wanted, "target_ip": SWITCH.ip}.items():
        arp &= view(ARP_FIELDS, IPV4_AT, name) == value
    ipv4 = (ethertype == ETHERTYPE_IPV4) & (lengths >= UDP_AT)
    for name, value in {"version": 4, "ihl": 5, "fragment_offset": 0, "dst": SWITCH.ip}.items():
        ipv4 &= view(IPV4_FIELDS, IPV4_AT, name) == value
    ipv4 &= view(IPV4_FIELDS, IPV4_AT, "flags") & 1 == 0
    protocol = view(IPV4_FIELDS, IPV4_AT, "protocol")
    ping = ipv4 & (protocol == PROTO_ICMP) & (lengths >= UDP_AT + 4) & (view(ICMP_FIELDS, UDP_AT, "type") == 8)
    to_service = view(UDP_FIELDS, UDP_AT, "dst_port") == HOPSUM_UDP_PORT
    return arp, ping, ipv4 & (protocol == PROTO_UDP) & (lengths >= HOPSUM_AT) & to_service


def _plain(view: View) -> Ints:
    destination = np.where(view.frames.lengths >= 14, view(ETHERNET_FIELDS, 0, "dst"), 0)
    known = (destination == STATION, destination == BROADCAST)
    return np.select(known, (FORWARD, FLOOD), int(Drop.NO_ROUTE))


def _admission(view: View, jobs: tuple[JobConfig, ...]) -> Ints:
    """Return the verdict on datagrams to the service; the first condition that holds decides."""
    lengths, hopsum = view.frames.lengths, view.hopsum
    kind, named, length, flags = hopsum("kind"), hopsum("op"), hopsum("length"), hopsum("flags")
    update, probe = kind == Kind.UPDATE, kind == Kind.PROBE
    partial, result = kind == Kind.PARTIAL, kind == Kind.RESULT
    members, relative = _relatives(view, jobs)
    known_op = np.isin(named, list(Op)) & ~((partial | result | (kind == Kind.STALE)) & (named > Op.LOOKUP_ADD_LOOKUP4))
    op = np.where(known_op, named, 0)
    size = np.select((partial, result, update), (LANES, DOWN_BYTES[op], UP_BYTES[op]), 0)
    announced = (hopsum("version") == WIRE_VERSION) & (update | partial | result) & known_op & (length == size)
    total, udp = view(IPV4_FIELDS, IPV4_AT, "total_length"), view(UDP_FIELDS, UDP_AT, "length")
    fits = (total == udp + 20) & (udp == length + 40) & (length == size)
    cases: list[tuple[Bools, Drop]] = [
        ((lengths < PAYLOAD_AT) | (announced & (lengths < PAYLOAD_AT + length)), Drop.TRUNCATED),
        (~view.right_checksum(), Drop.BAD_CHECKSUM),
        (hopsum("version") != WIRE_VERSION, Drop.BAD_VERSION),
        (~(update | probe | relative), Drop.BAD_KIND),
        ((flags > 1) | (~(update | partial) & (flags != 0)), Drop.BAD_FLAGS),
        (~np.where(probe, named == 0, known_op), Drop.BAD_OP),
        (~fits, Drop.BAD_LENGTH),
        *_membership(view, members, update, partial, op),
    ]
    return np.select([condition for condition, _ in cases], [int(reason) for _, reason in cases], SLOT)


@dataclass
class Members:
    """Look up the sender of each frame in the jobs."""

    known: Bools
    """Its generation is one."""
    member: Bools
    observes: Bools
    not_below: Bools
    """Its sum is of nobody, or names somebody who is not below it."""
    port: Ints
    address: Ints
    udp_port: Ints
    slots: Ints
    tables: Bools
    """By op."""


def _relatives(view: View, jobs: tuple[JobConfig, ...]) -> tuple[Members, Bools]:
    """Return what the jobs say, and where a frame is of a kind that its job's tree has."""
    kind, generation, rank = view.hopsum("kind"), view.hopsum("generation"), view.hopsum("worker")
    inside = view.contributors()
    count = len(kind)
    flags, numbers = np.zeros((4, count), np.bool_), np.zeros((4, count), np.int64)
    found = Members(*flags, *numbers, np.zeros((OPS + 1, count), np.bool_))
    relative = np.zeros(count, np.bool_)
    for job in jobs:
        of_job = generation == job.generation
        found.known |= of_job
        found.slots[of_job] = job.slots
        found.tables[Op.LOOKUP_ADD8] |= of_job & (job.table is not None)
        found.tables[Op.LOOKUP_ADD16] |= of_job & (job.table16 is not None)
        found.tables[Op.LOOKUP_ADD_LOOKUP4] |= of_job & (job.table4 is not None)
        found.tables[Op.LOOKUP_ADD_LOOKUP3] |= of_job & (job.table3 is not None)
        found.tables[Op.LOOKUP_ADD_LOOKUP2] |= of_job & (job.table2 is not None)
        plain = of_job & ((kind == Kind.UPDATE) | (kind == Kind.PROBE))
        senders = [(worker, plain & (rank == worker.rank)) for worker in (*job.workers, *job.observers)]
        of_tree = [(leaf, of_job & (kind == Kind.PARTIAL) & (rank == leaf.rank)) for leaf in job.leaves]
        for leaf, at in of_tree:
            found.not_below |= at & ((inside == 0) | ((inside & np.uint64(~leaf.members & (1 << 64) - 1)) != 0))
        if job.parent is not None:
            of_tree.append((job.parent, of_job & ((kind == Kind.RESULT) | (kind == Kind.STALE))))
        for _, at in of_tree:
            relative |= at
        for worker, at in (*senders, *of_tree):
            found.member |= at
            found.observes |= at & (worker in job.observers)
            found.port[at], found.address[at], found.udp_port[at] = worker.port, worker.ip, worker.udp_port
    return found, relative


def _membership(view: View, found: Members, update: Bools, partial: Bools, op: Ints) -> list[tuple[Bools, Drop]]:
    other_source = view(IPV4_FIELDS, IPV4_AT, "src") != found.address
    other_source |= view(UDP_FIELDS, UDP_AT, "src_port") != found.udp_port
    looked_up = (op == Op.LOOKUP_ADD8) | (op == Op.LOOKUP_ADD16) | (op >= Op.LOOKUP_ADD_LOOKUP4)
    has_table = ~looked_up | found.tables[op, np.arange(len(op))]
    return [
        (~found.known, Drop.UNKNOWN_GENERATION),
        (~found.member, Drop.UNKNOWN_WORKER),
        (view.frames.ports != found.port, Drop.WRONG_PORT),
        (other_source, Drop.WRONG_SOURCE),
        (view.hopsum("slot") >= found.slots, Drop.BAD_SLOT),
        (view.hopsum("round") == 0, Drop.BAD_ROUND),
        (update & found.observes, Drop.OBSERVER),
        ((update | partial) & (op == Op.MAX32) & _top_bits(view), Drop.BAD_VALUE),
        (partial & found.not_below, Drop.BAD_CONTRIBUTORS),
        (update & ~has_table, Drop.NO_TABLE),
    ]


def _top_bits(view: View) -> Bools:
    """Say where a lane of 32 bits has its top bit set."""
    return np.asarray((view.frames.rows[:, PAYLOAD_AT : PAYLOAD_AT + 1024 : 4] & 0x80).any(axis=1))
