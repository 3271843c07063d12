# SPDX-License-Identifier: Apache-2.0
"""Frames for a switch: what workers, observers and hosts send, and mutations of it on every layer.

A frame is valid (sent as it should be, also a second time), a mutation of a valid one, or, one in forty, just bytes.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

from hopsum_oracle.aggregator import JobConfig, LeafConfig, WorkerConfig
from hopsum_wire import HOPSUM_UDP_PORT, Flag, Header, Kind, Op, down_bytes, up_bytes
from hopsum_wire._layout import (
    ARP_BYTES,
    ARP_FIELDS,
    ETHERNET_BYTES,
    ETHERNET_FIELDS,
    ETHERTYPE_ARP,
    ETHERTYPE_IPV4,
    HOPSUM_FIELDS,
    ICMP_BYTES,
    ICMP_FIELDS,
    IPV4_BYTES,
    IPV4_FIELDS,
    LANES_BYTES,
    PROTO_ICMP,
    UDP_FIELDS,
    Field,
)
from hopsum_wire.fields import header_bytes, pack_fields, unpack_fields
from hopsum_wire.frames import FRAME_OVERHEAD_BYTES, FramePath, build_frame, ipv4_checksum

from .bed import BROADCAST, STATION, SWITCH

UDP_AT = ETHERNET_BYTES + IPV4_BYTES
HOPSUM_AT = UDP_AT + 8
HOST_MAC, HOST_IP = 0x0200000000BB, 0x0A000063

Layer = tuple[int, tuple[Field, ...]]
ETHERNET: Layer = (0, ETHERNET_FIELDS)
ARP: Layer = (ETHERNET_BYTES, ARP_FIELDS)
IPV4: Layer = (ETHERNET_BYTES, IPV4_FIELDS)
ICMP: Layer = (UDP_AT, ICMP_FIELDS)
UDP: Layer = (UDP_AT, UDP_FIELDS)
HOPSUM: Layer = (HOPSUM_AT, HOPSUM_FIELDS)


class Sent(NamedTuple):
    """A frame into a port, and its layers."""

    port: int
    frame: bytes
    layers: tuple[Layer, ...]


class Traffic:
    """An endless stream; `kinds` counts what was sent: valid, mutation, bytes."""

    def __init__(self, rng: random.Random, jobs: tuple[JobConfig, ...]) -> None:
        self._rng = rng
        self._jobs = jobs
        self._valid: list[Sent] = []
        self._number = 0
        self.kinds: Counter[str] = Counter()

    def frames(self, count: int) -> Iterator[tuple[int, bytes]]:
        rng = self._rng
        for _ in range(count):
            kind = rng.choices(("valid", "repeated", "mutation", "bytes"), (45, 13, 40, 2))[0]
            self.kinds[kind] += 1
            if kind == "bytes":
                yield rng.choice((1, 10, 11)), rng.randbytes(rng.choice((0, 1, 13, 14, 34, 42, 60, 74, 1098)))
                continue
            sent = rng.choice(self._valid[-60:]) if kind == "repeated" and self._valid else self._make()
            if kind == "mutation":
                sent = mutated(rng, sent)
            yield sent.port, sent.frame

    def _make(self) -> Sent:
        self._number += 1
        makers: tuple[tuple[Callable[[], Sent], int], ...] = (
            (self._update, 65), (self._relative, 20), (self._probe, 8), (self._arp, 4), (self._ping, 4),
            (self._plain, 4),
        )  # fmt: skip
        (make,) = self._rng.choices([maker for maker, _ in makers], [weight for _, weight in makers])
        sent = make()
        self._valid.append(sent)
        return sent

    def _round(self) -> int:
        rng = self._rng
        rare = (1, 2, 3, 4, (1 << 31), (1 << 32) - 1)
        return rng.choice(rare) if rng.random() < 0.05 else 1 + self._number // 40 + rng.randrange(3)

    def _update(self) -> Sent:
        rng = self._rng
        job = rng.choice(self._jobs)
        slot, round_ = rng.randrange(job.slots), self._round()
        # mostly the op of the round, so that sums come about
        op = Op(1 + (slot + round_) % len(Op)) if rng.random() < 0.9 else rng.choice(list(Op))
        payload = bytearray(_payload(rng, up_bytes(op)))
        if op is Op.MAX32 and rng.random() < 0.97:
            payload[::4] = bytes(byte & 0x7F for byte in payload[::4])
        sender = rng.choice(job.observers) if job.observers and rng.random() < 0.03 else rng.choice(job.workers)
        header = Header(
            kind=Kind.UPDATE, op=op, worker=sender.rank, slot=slot, generation=job.generation, round=round_,
            flags=Flag.FLUSH if rng.random() < 0.12 else 0, count=rng.randrange(1 << 16), length=len(payload),
            held=rng.choice((0, 0, 1, rng.getrandbits(32))), contributors=rng.choice((0, 0, rng.getrandbits(64))),
        )  # fmt: skip
        return _hopsum(sender, header, bytes(payload))

    def _relative(self) -> Sent:
        """A packet of a leaf, or of the parent."""
        rng = self._rng
        job = rng.choice([job for job in self._jobs if job.leaves or job.parent])
        sender = rng.choice([*job.leaves, *([job.parent] if job.parent else [])])
        slot, round_ = rng.randrange(job.slots), self._round()
        header = Header(
            kind=rng.choice((Kind.RESULT, Kind.RESULT, Kind.STALE)), op=Op(1 + (slot + round_) % len(Op)),
            generation=job.generation,
            worker=sender.rank, slot=slot, round=round_, count=rng.randrange(1 << 16), held=rng.getrandbits(32),
            contributors=rng.getrandbits(64),
        )  # fmt: skip
        if isinstance(sender, LeafConfig):
            inside = sender.members & rng.getrandbits(64) if rng.random() < 0.95 else rng.getrandbits(64)
            flags = Flag.FLUSH if rng.random() < 0.12 else 0
            header = replace(header, kind=Kind.PARTIAL, contributors=inside, flags=flags)
        if header.kind == Kind.STALE:
            return _hopsum(sender, header, b"")
        payload = bytearray(_payload(rng, LANES_BYTES if header.kind == Kind.PARTIAL else down_bytes(header.op)))
        if header.op == Op.MAX32 and rng.random() < 0.97:
            payload[::4] = bytes(byte & 0x7F for byte in payload[::4])
        return _hopsum(sender, replace(header, length=len(payload)), bytes(payload))

    def _probe(self) -> Sent:
        rng = self._rng
        job = rng.choice(self._jobs)
        sender = rng.choice((*job.workers, *job.observers))
        header = Header(kind=Kind.PROBE, worker=sender.rank, generation=job.generation, slot=rng.randrange(job.slots))
        return _hopsum(sender, replace(header, round=self._round(), count=rng.randrange(1 << 16)), b"")

    def _arp(self) -> Sent:
        rng = self._rng
        fields = {
            "hardware": 1, "protocol": ETHERTYPE_IPV4, "hardware_bytes": 6, "protocol_bytes": 4, "operation": 1,
            "sender_mac": HOST_MAC, "sender_ip": HOST_IP, "target_ip": SWITCH.ip,
        }  # fmt: skip
        ethernet = {"dst": rng.choice((BROADCAST, SWITCH.mac)), "src": HOST_MAC, "ethertype": ETHERTYPE_ARP}
        frame = pack_fields(ETHERNET_FIELDS, ethernet) + pack_fields(ARP_FIELDS, fields)
        return Sent(rng.choice((1, 10)), frame + bytes(rng.choice((0, 18))), (ETHERNET, ARP))

    def _ping(self) -> Sent:
        rng = self._rng
        body = pack_fields(ICMP_FIELDS, {"type": 8, "checksum": rng.getrandbits(16)}) + rng.randbytes(rng.randrange(60))
        ipv4 = {
            "version": 4, "ihl": 5, "total_length": IPV4_BYTES + len(body), "identification": rng.getrandbits(16),
            "flags": rng.choice((0, 2)), "ttl": rng.randrange(1, 256), "protocol": PROTO_ICMP, "src": HOST_IP,
            "dst": SWITCH.ip,
        }  # fmt: skip
        ethernet = {"dst": SWITCH.mac, "src": HOST_MAC, "ethertype": ETHERTYPE_IPV4}
        frame = pack_fields(ETHERNET_FIELDS, ethernet) + pack_fields(IPV4_FIELDS, ipv4) + body
        return Sent(rng.choice((1, 10)), _with_checksum(frame), (ETHERNET, IPV4, ICMP))

    def _plain(self) -> Sent:
        """A frame for somebody else: any other, or one of the above on its way to another address."""
        rng = self._rng
        if rng.random() < 0.5 or not self._valid:
            ethernet = {"dst": rng.choice((STATION, BROADCAST)), "src": HOST_MAC, "ethertype": 0x88B5}
            frame = pack_fields(ETHERNET_FIELDS, ethernet) + rng.randbytes(rng.randrange(80))
            return Sent(rng.choice((1, 3, 10)), frame, (ETHERNET,))
        port, other, layers = rng.choice(self._valid)
        frame = bytearray(other)
        frame[:6] = rng.choice((STATION, BROADCAST)).to_bytes(6, "big")
        at = ETHERNET_BYTES + (ARP_BYTES if ARP in layers else IPV4_BYTES) - 1
        if IPV4 in layers or ARP in layers:
            frame[at] ^= 1
        return Sent(port, bytes(frame), layers)


def _hopsum(sender: WorkerConfig, header: Header, payload: bytes) -> Sent:
    path = FramePath(sender.mac, SWITCH.mac, sender.ip, SWITCH.ip, sender.udp_port, HOPSUM_UDP_PORT)
    return Sent(sender.port, build_frame(path, header, payload), (ETHERNET, IPV4, UDP, HOPSUM))


def _payload(rng: random.Random, size: int) -> bytes:
    """Random bytes, or bytes at the edges of lanes."""
    if rng.random() < 0.6:
        return rng.randbytes(size)
    return bytes(rng.choices((0x00, 0x01, 0x7F, 0x80, 0xFE, 0xFF), k=size))


# ---- mutations ----------------------------------------------------------------------------------------------


def mutated(rng: random.Random, sent: Sent) -> Sent:
    """Return a frame with one thing wrong, now and then two; the IPv4 checksum follows most changes."""
    for _ in range(2 if rng.random() < 0.2 else 1):
        (mutate,) = rng.choices([mutation for mutation, _ in MUTATIONS], [weight for _, weight in MUTATIONS])
        sent = mutate(rng, sent)
    if IPV4 in sent.layers and len(sent.frame) >= UDP_AT and rng.random() < 0.8:
        sent = sent._replace(frame=_with_checksum(sent.frame))
    return sent


def _flip_in_headers(rng: random.Random, sent: Sent) -> Sent:
    return _flip(rng, sent, min(len(sent.frame), FRAME_OVERHEAD_BYTES))


def _flip_anywhere(rng: random.Random, sent: Sent) -> Sent:
    return _flip(rng, sent, len(sent.frame))


def _flip(rng: random.Random, sent: Sent, limit: int) -> Sent:
    frame = bytearray(sent.frame)
    for _ in range(rng.choice((1, 1, 2, 3)) if limit else 0):
        bit = rng.randrange(8 * limit)
        frame[bit // 8] ^= 1 << bit % 8
    return sent._replace(frame=bytes(frame))


def _field(rng: random.Random, sent: Sent) -> Sent:
    """Set one field of one layer to an extreme, to a neighbour, or to anything."""
    at, fields = rng.choice(sent.layers)
    field = rng.choice(fields)
    return _set(sent, (at, fields), field.name, lambda old: _extreme(rng, old, field.bits))


def _hopsum_field(rng: random.Random, sent: Sent) -> Sent:
    """Set a field of the hopsum header to a number that may mean something."""
    if HOPSUM not in sent.layers:
        return _field(rng, sent)
    name = rng.choice([field.name for field in HOPSUM_FIELDS])
    return _set(sent, HOPSUM, name, lambda old: rng.choice((0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 63, 64, 65, 255)))


def _extreme(rng: random.Random, old: int, bits: int) -> int:
    top = (1 << bits) - 1
    return rng.choice((0, 1, top, top - 1, 1 << bits - 1, old ^ 1, old + 1, old - 1, rng.getrandbits(bits))) & top


def _set(sent: Sent, layer: Layer, name: str, change: Callable[[int], int]) -> Sent:
    at, fields = layer
    if len(sent.frame) < at + header_bytes(fields):
        return sent
    values = unpack_fields(fields, sent.frame[at:])
    values[name] = change(values[name])
    packed = pack_fields(fields, values)
    return sent._replace(frame=sent.frame[:at] + packed + sent.frame[at + len(packed) :])


def _cut(rng: random.Random, sent: Sent) -> Sent:
    """End the frame early: at the edges of its layers, or anywhere."""
    edges = [0, *(at + size for at, _ in sent.layers for size in (0, -1, 1)), UDP_AT + ICMP_BYTES, len(sent.frame) - 1]
    size = rng.choice((*edges, rng.randrange(len(sent.frame) + 1)))
    return sent._replace(frame=sent.frame[: max(0, size)])


def _trailer(rng: random.Random, sent: Sent) -> Sent:
    return sent._replace(frame=sent.frame + rng.randbytes(rng.randrange(1, 40)))


def _length(rng: random.Random, sent: Sent) -> Sent:
    """Let one or all of the lengths differ from what is there."""
    change = rng.choice((-1024, -256, -20, -8, -1, 1, 8, 20, 256, 512))
    found = [(IPV4, "total_length"), (UDP, "length"), (HOPSUM, "length")]
    lengths = [(layer, name) for layer, name in found if layer in sent.layers]
    for layer, name in lengths if rng.random() < 0.4 else rng.sample(lengths, min(1, len(lengths))):
        sent = _set(sent, layer, name, lambda old: (old + change) & 0xFFFF)
    return sent


def _resize(rng: random.Random, sent: Sent) -> Sent:
    """Give a hopsum packet a payload of another size, all lengths right."""
    if HOPSUM not in sent.layers or len(sent.frame) < FRAME_OVERHEAD_BYTES:
        return sent
    size = rng.choice((0, 1, 255, 256, 257, 511, 512, 513, 1023, 1024, 1025, 1400))
    sent = sent._replace(frame=sent.frame[:FRAME_OVERHEAD_BYTES] + rng.randbytes(size))
    for layer, name, more in ((IPV4, "total_length", 60), (UDP, "length", 40), (HOPSUM, "length", 0)):
        sent = _set(sent, layer, name, lambda old, more=more: size + more)  # type: ignore[misc]
    return sent


def _other_port(rng: random.Random, sent: Sent) -> Sent:
    return sent._replace(port=rng.choice((0, 1, 3, 10, 11, 12, 17, 510)))


MUTATIONS: tuple[tuple[Callable[[random.Random, Sent], Sent], int], ...] = (
    (_flip_in_headers, 16),
    (_flip_anywhere, 10),
    (_field, 22),
    (_hopsum_field, 18),
    (_cut, 9),
    (_trailer, 5),
    (_length, 8),
    (_resize, 6),
    (_other_port, 6),
)


def _with_checksum(frame: bytes) -> bytes:
    header = frame[ETHERNET_BYTES:UDP_AT]
    blank = header[:10] + bytes(2) + header[12:]
    return frame[:ETHERNET_BYTES] + blank[:10] + ipv4_checksum(blank).to_bytes(2, "big") + blank[12:] + frame[UDP_AT:]
