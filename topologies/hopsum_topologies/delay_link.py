# SPDX-License-Identifier: Apache-2.0
"""A delay in user space, for kernels without netem: a process that holds each frame and passes it on, in order.

The process has a raw socket on each of two interfaces for every link. PACKET_VNET_HDR hands it the trains that segment
offload makes as one frame of up to 64 KiB, and takes them back whole, with checksums that are not yet filled in. A
frame that would make the process hold more than HELD_BYTES is dropped, as a full queue would drop it.
"""

from __future__ import annotations

import ctypes
import select
import socket
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Final

from hopsum_topologies.errors import TopologyError
from hopsum_topologies.netns import enter_namespace
from hopsum_topologies.worker_pool import WorkerDiedError, WorkerPool

HELD_BYTES: Final = 256 << 20
"""The most bytes that all directions hold together: 10 Gbit/s for 0.2 s."""
_SOCKET_BYTES: Final = 16 << 20
_FRAME_BYTES: Final = 10 + 14 + (64 << 10)
"""virtio_net_hdr, Ethernet header, the largest train."""
_TURN_FRAMES: Final = 64
"""Frames taken from one interface before the next has its turn, so that no direction starves."""
# linux/if_ether.h, linux/if_packet.h; Python's socket module lacks them.
_ETH_P_ALL, _SOL_PACKET, _PACKET_VNET_HDR = 3, 263, 15
_PACKET_IGNORE_OUTGOING = 23
_SO_RCVBUFFORCE, _SO_SNDBUFFORCE = 33, 32
_PR_SET_TIMERSLACK = 29


class DelayLink:
    """The process that delays the links between pairs of interfaces of one namespace, both directions.

    Construction returns when it delays frames. Raises TopologyError where the sockets cannot be opened.
    """

    def __init__(self, namespace: str, pairs: Sequence[tuple[str, str]], delay_s: float) -> None:
        """Start the process.

        Args:
            namespace: name of the network namespace that has the interfaces.
            pairs: the two interfaces of each link.
            delay_s: seconds that a frame is held, one way.
        """
        self._pool = WorkerPool([namespace], _run, (tuple(pairs), delay_s))
        try:
            self._pool.gather("ready")
        except WorkerDiedError as error:
            self.close()
            raise TopologyError(f"delay of {delay_s:g} s in user space: {error}") from error

    def close(self) -> None:
        """End the process. The frames that it holds are lost."""
        self._pool.close()


class _Direction:
    """The frames on their way from one interface to another."""

    def __init__(self, source: socket.socket, target: socket.socket) -> None:
        self.source, self.target = source, target
        self.held: deque[tuple[float, bytes]] = deque()


class _Delayer:
    """The loop that holds frames and passes each one on when its time has come."""

    def __init__(self, directions: Sequence[_Direction], delay_s: float, pipe: Connection) -> None:
        self._by_source = {each.source.fileno(): each for each in directions}
        self._delay_s, self._pipe = delay_s, pipe
        self._held_bytes = 0

    def run(self) -> None:
        """Pass frames on until the parent closes its pipe."""
        waiting = [self._pipe.fileno(), *self._by_source]
        while True:
            for number in select.select(waiting, (), (), self._timeout_s())[0]:
                if number in self._by_source:
                    self._take(self._by_source[number])
                else:
                    return
            self._pass_on()

    def _timeout_s(self) -> float | None:
        due = [each.held[0][0] for each in self._by_source.values() if each.held]
        return max(0.0, min(due) - time.monotonic()) if due else None

    def _take(self, direction: _Direction) -> None:
        for _ in range(_TURN_FRAMES):
            try:
                frame = direction.source.recv(_FRAME_BYTES)
            except BlockingIOError:
                return
            due = time.monotonic() + self._delay_s
            # The drop comes after recv: a frame left in the socket would only move the queue into the kernel.
            if self._held_bytes + len(frame) <= HELD_BYTES:
                self._held_bytes += len(frame)
                direction.held.append((due, frame))

    def _pass_on(self) -> None:
        now = time.monotonic()
        for direction in self._by_source.values():
            held = direction.held
            # All frames of a direction wait equally long, so the first one that came is the first one due.
            while held and held[0][0] <= now:
                frame = held.popleft()[1]
                self._held_bytes -= len(frame)
                # The queue of the interface may be full. A real link would drop the frame too.
                with suppress(OSError):
                    direction.target.send(frame)


def _run(namespace: str, plan: tuple[Sequence[tuple[str, str]], float], pipe: Connection) -> None:
    pairs, delay_s = plan
    enter_namespace(namespace)
    sockets = [(_open(left), _open(right)) for left, right in pairs]
    # The kernel wakes sleepers up to 50 us late by default, to wake several at once.
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    directions = [_Direction(*ends) for left, right in sockets for ends in ((left, right), (right, left))]
    pipe.send(("ready",))
    _Delayer(directions, delay_s, pipe).run()


def _open(interface: str) -> socket.socket:
    """Return a raw socket on an interface that gives and takes trains of segments whole. Raises OSError."""
    opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    opened.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)
    # Without this the socket would receive its own frames again.
    opened.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
    # FORCE: the usual options stop at net.core.rmem_max, some 200 KiB, which a burst of trains fills.
    opened.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _SOCKET_BYTES)
    opened.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, _SOCKET_BYTES)
    opened.setblocking(False)
    # Protocol 0 until here: a socket that receives before its options are set would give frames of another form.
    opened.bind((interface, _ETH_P_ALL))
    return opened
