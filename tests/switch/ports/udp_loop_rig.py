# SPDX-License-Identifier: Apache-2.0
"""A data plane of machine code over UDP ports, with and without their compiled loop, and traffic that says what leaves.

The program: a payload begins with a group (2 bytes; 0: none), an egress port (2 bytes) and the first 42 bytes of the
frame that is to leave. So traffic decides freely which headers, right or wrong, the ports have to send.
"""

from __future__ import annotations

import random
import socket
import struct
from collections import Counter
from contextlib import ExitStack
from typing import Any

import pytest

from hopsum_switch.native.compiler import default_cache
from hopsum_switch.native.native_engine import NativeEngine
from hopsum_switch.ports.dataplane import Dataplane
from hopsum_switch.ports.port import MemoryPort
from hopsum_switch.ports.udp import UdpAddress, UdpPort
from hopsum_switch.ports.udp_frames import HEADERS_BYTES, checksum, headers
from hopsum_switch.ports.udp_layout import COMPILED_VARIABLE
from hopsum_switch.program.ir import ProgramIR
from hopsum_switch.state.copies import PortCopy

from ..core.builder import assign, build, expression, field, hexstr, primitive

SHOWN_AS = UdpAddress("10.0.0.1", 24677)
UDP_PORTS, ONE_BY_ONE, MEMORY = (0, 1, 2), 2, 3
GROUPS = {1: [(0, 0), (1, 1), (0, 2)], 2: [(1, 0), (3, 0)], 3: [(2, 0), (9, 0)], 4: [(0, n) for n in range(70)]}
_REGISTER = {"type": "register_array", "value": "r"}


def program() -> ProgramIR:
    """Return the program; register 0 counts the frames, and the last two bytes of `image` hold the count."""
    builder = build(("old", 8 * HEADERS_BYTES), ("group", 16), ("out", 16), ("image", 8 * HEADERS_BYTES), ("seen", 16))
    builder.primitives += [
        assign(field("standard_metadata", "mcast_grp"), field("h", "group")),
        assign(field("standard_metadata", "egress_spec"), field("h", "out")),
        assign(field("h", "old"), field("h", "image")),
        primitive("register_read", field("h", "seen"), _REGISTER, hexstr(0)),
        assign(field("h", "seen"), expression("+", field("h", "seen"), hexstr(1))),
        primitive("register_write", _REGISTER, hexstr(0), field("h", "seen")),
    ]
    return builder.load()


class Plane:
    """A data plane whose loop this thread runs: what was sent has come when `serve` has returned."""

    def __init__(self, stack: ExitStack, monkeypatch: pytest.MonkeyPatch, *, compiled: bool) -> None:
        monkeypatch.setenv(COMPILED_VARIABLE, "1" if compiled else "0")
        self.dataplane = Dataplane()
        stack.callback(self.dataplane.close)
        self.engine = NativeEngine(program(), cache=default_cache())
        for group, members in GROUPS.items():
            self.engine.multicast.insert(group, [PortCopy(*member) for member in members])
        self.udp = {n: UdpPort.bind(n, _LOOPBACK, SHOWN_AS, joined=n != ONE_BY_ONE) for n in UDP_PORTS}
        self.memory = MemoryPort()
        self.dataplane.bind(0, self.udp[0])
        self.dataplane.engine = self.engine  # some ports are there before it, others come later
        for number in UDP_PORTS[1:]:
            self.dataplane.bind(number, self.udp[number])
        self.dataplane.bind(MEMORY, self.memory)

    def serve(self, number: int) -> None:
        """Carry all that waits at a port."""
        port, before = self.udp[number], -1
        while port.counters.received != before:
            before = port.counters.received
            self.dataplane._serve([(number, port)])

    def state(self) -> dict[str, Any]:
        """Return everything that is counted, kept and sent to the memory port."""
        counted = {number: port.counters.as_dict() for number, port in (*self.udp.items(), (MEMORY, self.memory))}
        dropped = Counter(self.dataplane.dropped), Counter(self.engine.dropped)
        registers = [self.engine.registers.read("r", index) for index in range(4)]
        return {
            "ports": counted,
            "dropped": dropped,
            "packets": self.dataplane.packets,
            "registers": registers,
            "memory": self.memory.pop_sent(),
        }


_LOOPBACK = UdpAddress("127.0.0.1", 0)


class Peers:
    """Sockets that send and receive; what they receive is told by port of the switch and peer."""

    def __init__(self, stack: ExitStack, count: int) -> None:
        self.sockets = []
        for _ in range(count):
            peer = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
            peer.bind(_LOOPBACK)
            peer.setblocking(False)
            self.sockets.append(peer)
        self.addresses = [(b"\x7f\0\0\1", peer.getsockname()[1]) for peer in self.sockets]

    def send(self, who: int, plane: Plane, number: int, payloads: list[bytes]) -> None:
        """Send datagrams to a port of a plane, joined where their sizes and the kernel allow."""
        address, peer = plane.udp[number].address, self.sockets[who]
        sizes = {len(payload) for payload in payloads}
        if len(payloads) > 1 and len(sizes) == 1 and sizes != {0}:
            try:
                peer.sendmsg([b"".join(payloads)], [(17, 103, struct.pack("=H", sizes.pop()))], 0, address)
                return
            except OSError:  # an old kernel, or too much for one call
                pass
        for payload in payloads:
            peer.sendto(payload, address)

    def take(self, plane: Plane) -> dict[tuple[int, int], list[bytes]]:
        """Return what has arrived, in order, by (port of the switch, peer)."""
        numbers = {tuple(port.address): number for number, port in plane.udp.items()}
        found: dict[tuple[int, int], list[bytes]] = {}
        for who, peer in enumerate(self.sockets):
            while True:
                try:
                    data, source = peer.recvfrom(65535)
                except BlockingIOError:
                    break
                found.setdefault((numbers[source], who), []).append(data)
        return found


def wish(image: bytes, *, group: int = 0, out: int = 0, rest: bytes = b"") -> bytes:
    """Return a payload that makes the program send `image` and what the frame has behind it."""
    return struct.pack("!HH", group, out) + image[:HEADERS_BYTES].ljust(HEADERS_BYTES, b"\0") + b"\0\0" + rest


_BEHIND = 2 + 2 + HEADERS_BYTES + 2
"""Bytes of the program's header behind the first image; they leave as payload."""


def image_to(peer: tuple[bytes, int], rest_bytes: int, rng: random.Random | None = None) -> bytes:
    """Return headers of a frame to a peer for a wish with so many bytes at its end; with `rng` some are wrong."""
    size = _BEHIND + rest_bytes
    cut = rng.choice([0, 0, 0, 1, size]) if rng else 0
    image = bytearray(bytes(12) + b"\x08\x00" + headers((b"\x0a\0\0\1", 24677), peer, size - cut))
    if rng is not None and rng.random() < 0.5:
        at = rng.randrange(12, HEADERS_BYTES)
        image[at] = rng.choice([0, 0xFF, 0x45, 0x46, image[at] ^ 1 << rng.randrange(8)])
        if at in range(30, 34):  # nothing leaves this machine
            image[at] = image[30] = 0xFF
        if rng.random() < 0.7:  # so that the checks after that of the header have their turn
            image[24:26] = bytes(2)
            image[24:26] = checksum(bytes(image[14:34])).to_bytes(2, "big")
    return bytes(image)
