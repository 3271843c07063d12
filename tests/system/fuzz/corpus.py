# SPDX-License-Identifier: Apache-2.0
"""Valid frames by the thousand: those of workers, observers and other switches of five jobs, of hosts, and of others.

A corpus holds frames of every member, op and kind; `draw` copies rows of it and writes into each what is of the moment:
generation, slot, round and the fields that are carried through. Rounds advance with the number of frames drawn, and
most members agree on the op of a round, so that sums come about.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import IntEnum, auto

import numpy as np
from numpy.typing import NDArray

from hopsum_oracle.aggregator import JobConfig, WorkerConfig
from hopsum_wire import HOPSUM_UDP_PORT, Flag, Header, Kind, Op, down_bytes, up_bytes
from hopsum_wire._layout import (
    ARP_BYTES,
    ARP_FIELDS,
    ETHERNET_BYTES,
    ETHERNET_FIELDS,
    ETHERTYPE_ARP,
    ETHERTYPE_IPV4,
    HOPSUM_DTYPE,
    ICMP_FIELDS,
    IPV4_BYTES,
    IPV4_FIELDS,
    LANES_BYTES,
    PROTO_ICMP,
)
from hopsum_wire.fields import pack_fields
from hopsum_wire.frames import FRAME_OVERHEAD_BYTES, FramePath, build_frame, ipv4_checksum

from ..contract.bed import BROADCAST, STATION, SWITCH, leaf, parent, worker

ROW_BYTES = 1312
"""Room for the longest frame and a tail."""
HOPSUM_AT = 42
HOST_MAC, HOST_IP = 0x0200000000BB, 0x0A000063
MEMBERS = ((0, 1, 2, 3, 64), (0, 1), (0, 31, 32, 63, 0xFFFF, 65), (4, 5), (6,))
"""Ranks that the jobs of `bed.make_jobs` may have, observers last."""
LEAF_JOB, SPINE_JOB = 3, 4
"""Jobs with relatives; the spine's may have a parent, too."""
LEAVES = (leaf(0, 0b0011), leaf(63, 1 << 63 | 0b1100))
"""Of the spine's job."""
VARIANTS = 3

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]


class Layers(IntEnum):
    """The headers of a frame above Ethernet."""

    HOPSUM = 0
    ARP = auto()
    PING = auto()
    PLAIN = auto()


@dataclass
class Frames:
    """Frames as rows; what lies behind a frame's length in its row is noise."""

    rows: Bytes
    """uint8[n, ROW_BYTES]."""
    lengths: Ints
    ports: Ints
    layers: Ints
    """As drawn; mutations do not change it."""


class Corpus:
    """Rows to draw from. All randomness is numpy's `rng`."""

    def __init__(self, rng: np.random.Generator, frames_per_round: int = 260) -> None:
        self._rng, self._frames_per_round = rng, frames_per_round
        self._frames: list[tuple[bytes, int, Layers]] = []
        source = random.Random(int(rng.integers(1 << 32)))
        self._updates = np.array(
            [
                [
                    [[self._update(source, rank, op) for _ in range(VARIANTS)] for op in Op]
                    for rank in (*ranks, *ranks[-1:] * (6 - len(ranks)))
                ]
                for ranks in MEMBERS
            ]
        )
        """[job, member, place of the op, variant] -> row."""
        self._probes = np.array(
            [[self._probe(rank) for rank in (*ranks, *ranks[-1:] * (6 - len(ranks)))] for ranks in MEMBERS]
        )
        self._owners, self._relatives = self._of_relatives(source)
        self._others = np.array([self._arp(source) for _ in range(6)] + [self._ping(source) for _ in range(8)])
        self._plain = np.array([self._plain_frame(source, number) for number in range(12)])
        rows = [frame + source.randbytes(ROW_BYTES - len(frame)) for frame, _, _ in self._frames]
        self._rows = np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), ROW_BYTES)
        self._lengths = np.array([len(frame) for frame, _, _ in self._frames])
        self._ports = np.array([port for _, port, _ in self._frames])
        self._layers = np.array([layers for _, _, layers in self._frames])
        self._drawn = 0

    def restart(self) -> None:
        """Begin with round 1 again: the jobs are new."""
        self._drawn = 0

    def rounds(self, count: int) -> Ints:
        """Return the round that workers are in, for each of the next frames."""
        return 1 + (self._drawn + np.arange(count)) // self._frames_per_round

    def draw(self, count: int, jobs: tuple[JobConfig, ...]) -> Frames:
        """Return the next valid frames, of members of these jobs and of others."""
        rng = self._rng
        now = self.rounds(count)
        self._drawn += count
        kinds = rng.choice(5, count, p=(0.7, 0.05, 0.07, 0.04, 0.14))
        sender = rng.integers(0, len(self._owners), count)
        job = np.where(kinds == 4, self._owners[sender], rng.integers(0, len(MEMBERS), count))
        slot = (rng.random(count) * np.array([each.slots for each in jobs])[job]).astype(np.int64)
        round_ = np.maximum(1, now + rng.choice((0, -1, -2, 1), count, p=(0.84, 0.07, 0.05, 0.04)))
        op = np.where(rng.random(count) < 0.93, (slot + round_) % len(Op), rng.integers(0, len(Op), count))
        member = self._members(count, job, jobs, kinds)
        variant = rng.integers(0, VARIANTS, count)
        choice = np.choose(
            kinds,
            (
                self._updates[job, member, op, variant],
                self._probes[job, member],
                self._others[rng.integers(0, len(self._others), count)],
                self._plain[rng.integers(0, len(self._plain), count)],
                self._relatives[sender, op, variant],
            ),
        )
        frames = Frames(self._rows[choice], self._lengths[choice], self._ports[choice], self._layers[choice])
        generation = np.array([each.generation for each in jobs])[job]
        self._stamp(frames, np.flatnonzero((kinds < 2) | (kinds == 4)), generation, slot, round_)
        return frames

    def _members(self, count: int, job: Ints, jobs: tuple[JobConfig, ...], kinds: Ints) -> Ints:
        """Return places in MEMBERS: workers, now and then (of PROBEs often) an observer."""
        workers = np.array([len(each.workers) for each in jobs])[job]
        observers = np.array([len(each.observers) for each in jobs])[job]
        last = np.array([len(ranks) for ranks in MEMBERS])[job] - 1
        observes = (observers > 0) & (self._rng.random(count) < np.where(kinds == 1, 0.4, 0.02))
        return np.where(observes, last, (self._rng.random(count) * workers).astype(np.int64))

    def _stamp(self, frames: Frames, at: Ints, generation: Ints, slot: Ints, round_: Ints) -> None:
        rng, count = self._rng, len(at)
        header = frames.rows[at, HOPSUM_AT:FRAME_OVERHEAD_BYTES].view(HOPSUM_DTYPE)[:, 0]
        header["generation"], header["slot"], header["round"] = generation[at], slot[at], round_[at]
        header["count"] = rng.integers(0, 1 << 16, count)
        header["held"] = rng.integers(0, 1 << 32, count) * (rng.random(count) < 0.1)
        noise = rng.integers(0, 1 << 62, count) * (rng.random(count) < 0.1)
        partial = header["kind"] == Kind.PARTIAL
        below = np.where(header["worker"] == 0, LEAVES[0].members, np.uint64(LEAVES[1].members))
        header["contributors"] = np.where(partial & (rng.random(count) < 0.95), below, noise)
        flushed = partial | (header["kind"] == Kind.UPDATE)
        header["flags"] = (rng.random(count) < 0.1) * flushed * int(Flag.FLUSH)
        frames.rows[at, HOPSUM_AT:FRAME_OVERHEAD_BYTES] = header.view(np.uint8).reshape(count, -1)

    def _add(self, frame: bytes, port: int, layers: Layers) -> int:
        self._frames.append((frame, port, layers))
        return len(self._frames) - 1

    def _update(self, rng: random.Random, rank: int, op: Op) -> int:
        size = up_bytes(op)
        payload = bytearray(rng.choice((rng.randbytes(size), bytes(rng.choices((0, 1, 0x7F, 0x80, 0xFF), k=size)))))
        if op is Op.MAX32 and rng.random() < 0.8:
            payload[::4] = bytes(byte & 0x7F for byte in payload[::4])
        header = Header(kind=Kind.UPDATE, op=op, worker=rank, length=size)
        return self._add(_datagram(worker(rank), header, bytes(payload)), worker(rank).port, Layers.HOPSUM)

    def _of_relatives(self, rng: random.Random) -> tuple[Ints, Ints]:
        """Return the jobs of what leaves and parents send, and rows[sender and kind, place of the op, variant]."""
        above, below = (Kind.RESULT, Kind.STALE), (Kind.PARTIAL, Kind.PARTIAL)
        senders: list[tuple[int, WorkerConfig, Kind]] = [(LEAF_JOB, parent(4), kind) for kind in above]
        senders += [(SPINE_JOB, parent(0), kind) for kind in above]
        senders += [(SPINE_JOB, each, kind) for each in LEAVES for kind in below]
        rows = [
            [[self._relative(rng, sender, kind, op) for _ in range(VARIANTS)] for op in Op]
            for _, sender, kind in senders
        ]
        return np.array([job for job, _, _ in senders]), np.array(rows)

    def _relative(self, rng: random.Random, sender: WorkerConfig, kind: Kind, op: Op) -> int:
        size = {Kind.STALE: 0, Kind.RESULT: down_bytes(op)}.get(kind, LANES_BYTES)
        payload = bytearray(rng.randbytes(size))
        if op is Op.MAX32 and rng.random() < 0.8:
            payload[::4] = bytes(byte & 0x7F for byte in payload[::4])
        header = Header(kind=kind, op=op, worker=sender.rank, length=size)
        return self._add(_datagram(sender, header, bytes(payload)), sender.port, Layers.HOPSUM)

    def _probe(self, rank: int) -> int:
        return self._add(
            _datagram(worker(rank), Header(kind=Kind.PROBE, worker=rank), b""), worker(rank).port, Layers.HOPSUM
        )

    def _arp(self, rng: random.Random) -> int:
        fields = {
            "hardware": 1, "protocol": ETHERTYPE_IPV4, "hardware_bytes": 6, "protocol_bytes": 4, "operation": 1,
            "sender_mac": HOST_MAC, "sender_ip": HOST_IP, "target_ip": SWITCH.ip,
        }  # fmt: skip
        ethernet = {"dst": rng.choice((BROADCAST, SWITCH.mac)), "src": HOST_MAC, "ethertype": ETHERTYPE_ARP}
        frame = pack_fields(ETHERNET_FIELDS, ethernet) + pack_fields(ARP_FIELDS, fields) + bytes(rng.choice((0, 18)))
        return self._add(frame, rng.choice((1, 10)), Layers.ARP)

    def _ping(self, rng: random.Random) -> int:
        body = pack_fields(ICMP_FIELDS, {"type": 8, "checksum": rng.getrandbits(16)}) + rng.randbytes(rng.randrange(60))
        ipv4 = {
            "version": 4, "ihl": 5, "total_length": IPV4_BYTES + len(body), "flags": rng.choice((0, 2)),
            "ttl": rng.randrange(1, 256), "protocol": PROTO_ICMP, "src": HOST_IP, "dst": SWITCH.ip,
        }  # fmt: skip
        ipv4["checksum"] = ipv4_checksum(pack_fields(IPV4_FIELDS, ipv4))
        ethernet = {"dst": SWITCH.mac, "src": HOST_MAC, "ethertype": ETHERTYPE_IPV4}
        frame = pack_fields(ETHERNET_FIELDS, ethernet) + pack_fields(IPV4_FIELDS, ipv4) + body
        return self._add(frame, rng.choice((1, 10)), Layers.PING)

    def _plain_frame(self, rng: random.Random, number: int) -> int:
        """Return a frame for somebody else: of an unknown kind, or an UPDATE, ARP or echo request elsewhere."""
        destination = rng.choice((STATION, BROADCAST)).to_bytes(6, "big")
        if number % 2:
            frame = destination + HOST_MAC.to_bytes(6, "big") + b"\x88\xb5" + rng.randbytes(rng.randrange(80))
            return self._add(frame, rng.choice((1, 3, 10)), Layers.PLAIN)
        other, port, layers = self._frames[rng.choice((0, int(self._others[0]), int(self._others[-1])))]
        low = ETHERNET_BYTES + (ARP_BYTES if layers is Layers.ARP else IPV4_BYTES) - 1
        frame = bytearray(destination + other[6:])
        frame[low] ^= 1  # of the address that it is for
        if layers is not Layers.ARP:
            header = frame[ETHERNET_BYTES : ETHERNET_BYTES + IPV4_BYTES]
            header[10:12] = bytes(2)
            frame[ETHERNET_BYTES + 10 : ETHERNET_BYTES + 12] = ipv4_checksum(bytes(header)).to_bytes(2, "big")
        return self._add(bytes(frame), port, layers)


def _datagram(sender: WorkerConfig, header: Header, payload: bytes) -> bytes:
    path = FramePath(sender.mac, SWITCH.mac, sender.ip, SWITCH.ip, sender.udp_port, HOPSUM_UDP_PORT)
    return build_frame(path, header, payload)
