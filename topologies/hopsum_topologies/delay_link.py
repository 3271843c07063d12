# SPDX-License-Identifier: Apache-2.0
"""A delay in user space, for kernels without netem: a process that holds each frame and passes it on, in order.

The process has a raw socket on each of two interfaces for every link. PACKET_VNET_HDR hands it the trains that segment
offload makes as one frame of up to 64 KiB, and takes them back whole, with checksums that are not yet filled in. A
frame that would make the process hold more than HELD_BYTES is dropped, as a full queue would drop it.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Final, NamedTuple

from hopsum_topologies.errors import TopologyError
from hopsum_topologies.netns import enter_namespace

HELD_BYTES: Final = 256 << 20
"""The most bytes that all directions hold together: 10 Gbit/s for 0.2 s."""
_SOCKET_BYTES: Final = 16 << 20
_FRAME_BYTES: Final = 10 + 14 + (64 << 10)
"""virtio_net_hdr, Ethernet header, the largest train."""
_TURN_FRAMES: Final = 64
"""Frames taken from one interface before the next has its turn, so that no direction starves."""
_READY_S: Final = 20.0
_END_S: Final = 5.0
# linux/if_ether.h, linux/if_packet.h; Python's socket module lacks them.
_ETH_P_ALL, _SOL_PACKET, _PACKET_VNET_HDR = 3, 263, 15
_PACKET_STATISTICS, _PACKET_IGNORE_OUTGOING = 6, 23
_SO_RCVBUFFORCE, _SO_SNDBUFFORCE = 33, 32
_PR_SET_TIMERSLACK = 29


class DelayCounts(NamedTuple):
    """The counts of a delay link, all links and directions together."""

    frames: int
    """Frames passed on. A train of segments is one."""
    dropped: int
    """Frames dropped at HELD_BYTES, at the buffer of a socket, or because the other interface took no more."""


class DelayLink:
    """The process that delays the links between pairs of interfaces of one namespace, both directions.

    The context manager ends it. Raises TopologyError where the sockets cannot be opened.
    """

    def __init__(self, namespace: str, pairs: Sequence[tuple[str, str]], delay_s: float) -> None:
        """Start the process.

        Args:
            namespace: name of the network namespace that has the interfaces.
            pairs: the two interfaces of each link.
            delay_s: seconds that a frame is held, one way.
        """
        # spawn, not fork: the parent has gRPC's threads, whose locks a forked child would inherit.
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=_run, args=(namespace, tuple(pairs), delay_s, os.getpid(), theirs), daemon=True
        )
        self._process.start()
        # With our copy of the other end open, the death of the process would not be the end of the pipe.
        theirs.close()
        said = self._receive(_READY_S)
        if said != "ready":
            self.close()
            raise TopologyError(f"delay of {delay_s:g} s in user space: {said}")

    @property
    def pid(self) -> int:
        """The process that delays."""
        assert self._process.pid is not None
        return self._process.pid

    def counts(self) -> DelayCounts:
        """Return the counts so far. Raises TopologyError where the process has ended."""
        try:
            self._pipe.send("counts")
        except OSError as error:
            raise TopologyError(f"the process that delays has ended: {error}") from error
        said = self._receive(_READY_S)
        if not isinstance(said, tuple):
            raise TopologyError(f"the process that delays has ended: {said}")
        return DelayCounts(*said)

    def close(self) -> None:
        """End the process. What it holds is lost."""
        self._pipe.close()
        self._process.join(_END_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def __enter__(self) -> DelayLink:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _receive(self, timeout_s: float) -> object:
        try:
            return self._pipe.recv() if self._pipe.poll(timeout_s) else f"no word in {timeout_s:g} s"
        except EOFError:
            return "its process ended early; its last words are above"


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
        self._held_bytes = self._frames = self._dropped = 0

    def run(self) -> None:
        """Pass frames on until the parent closes its pipe."""
        waiting = [self._pipe.fileno(), *self._by_source]
        while True:
            for number in select.select(waiting, (), (), self._timeout_s())[0]:
                if number in self._by_source:
                    self._take(self._by_source[number])
                elif not self._answer():
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
            if self._held_bytes + len(frame) > HELD_BYTES:
                self._dropped += 1
                continue
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
                try:
                    direction.target.send(frame)
                    self._frames += 1
                except OSError:
                    # The queue of the interface is full. A real link would drop the frame too.
                    self._dropped += 1

    def _answer(self) -> bool:
        """Answer the parent. Return whether it is still there."""
        try:
            self._pipe.recv()
            # PACKET_STATISTICS starts again at zero with each read.
            self._dropped += sum(_kernel_drops(each.source) for each in self._by_source.values())
            self._pipe.send((self._frames, self._dropped))
        except (EOFError, OSError):
            return False
        return True


def _run(namespace: str, pairs: Sequence[tuple[str, str]], delay_s: float, parent: int, pipe: Connection) -> None:
    # Not at the top: `python -m hopsum_topologies.child_launcher` imports the package, which imports this module.
    from hopsum_topologies.child_launcher import die_with_parent

    die_with_parent(parent)
    try:
        enter_namespace(namespace)
        sockets = [(_open(left), _open(right)) for left, right in pairs]
    except (OSError, TopologyError) as error:
        pipe.send(str(error))
        return
    # The kernel wakes sleepers up to 50 us late by default, to wake several at once.
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    directions = [_Direction(*ends) for left, right in sockets for ends in ((left, right), (right, left))]
    pipe.send("ready")
    _Delayer(directions, delay_s, pipe).run()


def _kernel_drops(opened: socket.socket) -> int:
    """Return the frames that the kernel dropped at a socket's full buffer since the last call."""
    _, drops = struct.unpack("=II", opened.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8))
    return int(drops)


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
