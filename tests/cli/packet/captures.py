# SPDX-License-Identifier: Apache-2.0
"""Captures for tests: hopsum packets as frames in a file that scapy writes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from scapy.layers.l2 import Ether
from scapy.utils import wrpcap

from hopsum_wire import HOPSUM_UDP_PORT, Header, Kind, Op
from hopsum_wire.frames import FramePath, build_frame

GENERATION = 7
UP = FramePath(0x020000000101, 0x020000000001, 0x0A000001, 0x0A0000FE, 5001)
DOWN = FramePath(0x020000000001, 0x020000000101, 0x0A0000FE, 0x0A000001, HOPSUM_UDP_PORT, 5001)


def frame(kind: Kind, worker: int, slot: int = 0, round: int = 1, **fields: int) -> bytes:
    """Return a frame with a header of ADD32 and as many zeros as `length` says."""
    fields = {"generation": GENERATION, "op": Op.ADD32, **fields}
    header = Header(kind=kind, worker=worker, slot=slot, round=round, **fields)
    path = UP if kind in (Kind.UPDATE, Kind.PROBE, Kind.PARTIAL) else DOWN
    return build_frame(path, header, bytes(header.length))


def write(path: Path, frames: Iterable[bytes], first_s: float = 1000.0, **options: Any) -> Path:
    """Write frames to a pcap file, a millisecond apart."""
    packets = []
    for number, data in enumerate(frames):
        packet = Ether(data)
        packet.time = first_s + number / 1000
        packets.append(packet)
    wrpcap(str(path), packets, **options)
    return path


def whole_round(workers: int, slot: int = 0, round: int = 1) -> list[bytes]:
    """Return the frames of a round without loss."""
    ups = [frame(Kind.UPDATE, worker, slot, round) for worker in range(workers)]
    everyone = (1 << workers) - 1
    return [*ups, *(frame(Kind.RESULT, worker, slot, round, contributors=everyone) for worker in range(workers))]
