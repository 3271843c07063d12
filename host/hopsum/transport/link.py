# SPDX-License-Identifier: Apache-2.0
"""What a transport needs from the network, and the ordinary UDP socket that provides it."""

from __future__ import annotations

import os
import select
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

from hopsum.transport.offload import (
    ANCILLARY_BYTES,
    REFUSES_SEGMENTS,
    SOL_UDP,
    UDP_GRO,
    UDP_SEGMENT,
    Gso,
    datagram_bytes,
    offload_for,
    set_option,
    train_segments,
    udp_socket,
)

RECEIVE_BUFFER_BYTES: Final = 4 << 20
"""Asked of the kernel for SO_RCVBUF, which may give less. A window of results must fit."""
DATAGRAM_BYTES_MAX: Final = 65535
RECEIVE_BYTES: Final = 1 << 20
"""Of what is taken in one go: room for a window of results."""
BATCH_DATAGRAMS: Final = 1024
"""Taken in one go at most, so that a flood cannot keep a caller from its timers."""


@dataclass(slots=True)
class LinkStatistics:
    """Datagrams and their bytes (UDP payload) at the socket."""

    datagrams_sent: int = 0
    bytes_sent: int = 0
    datagrams_received: int = 0
    bytes_received: int = 0
    unreachable: int = 0
    """Times that the network said that nobody listens there."""


class Link(Protocol):
    """Sends to and receives from one switch."""

    statistics: LinkStatistics

    def send(self, datagram: bytes | memoryview) -> None:
        """Send one datagram, or lose it."""

    def receive(self, timeout_s: float) -> Sequence[bytes | memoryview]:
        """Return what has arrived; wait for the first up to `timeout_s`, then take what is there.

        Views are valid until the next call.
        """

    def close(self) -> None:
        """Give the socket back."""


@runtime_checkable
class TrainLink(Link, Protocol):
    """A link that does better with many datagrams at once."""

    def send_many(self, datagrams: Sequence[bytes | memoryview]) -> None:
        """Send datagrams in this order, or lose some of them."""


@runtime_checkable
class WakingLink(Link, Protocol):
    """A link whose `receive` another thread can end."""

    def wake(self) -> None:
        """Let the `receive` in progress return at once, or else the next one. Any thread may call it."""


def send_all(link: Link, datagrams: Sequence[bytes | memoryview]) -> None:
    """Send datagrams in this order, by the train where the link can."""
    if isinstance(link, TrainLink):
        link.send_many(datagrams)
        return
    for datagram in datagrams:
        link.send(datagram)


class UdpLink:
    """An ordinary UDP socket, connected: datagrams from elsewhere do not come through. Not thread-safe but for `wake`.

    Args:
        local: (IPv4 address, port) to send from; the switch knows the worker by it. Port 0: any.
        switch: (IPv4 address, port) of the service.
        gso: "auto" moves many datagrams with one system call (UDP_SEGMENT, UDP_GRO) where the kernel can, and goes
            back to one each when it refuses on the way to this switch; "on" raises instead; "off" is one each.

    Raises:
        OSError: the local address is not this host's, the port is taken, or gso="on" and the kernel has it not.
        ValueError: gso is none of these.
    """

    def __init__(self, local: tuple[str, int], switch: tuple[str, int], *, gso: Gso = "auto") -> None:
        self.statistics = LinkStatistics()
        self.offload = offload_for(gso)
        self._may_go_back = gso != "on"
        self._buffer = memoryview(bytearray(RECEIVE_BYTES))
        self._socket = udp_socket()
        self._waker = -1
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
            self._socket.bind(local)
            self._socket.connect(switch)
            self.offload = self.offload._replace(gro=self.offload.gro and set_option(self._socket, UDP_GRO, 1))
            self._waker = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        except OSError:
            self._socket.close()
            raise
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._poll.register(self._waker, select.POLLIN)

    @property
    def local(self) -> tuple[str, int]:
        """The address that datagrams are sent from."""
        host, port = self._socket.getsockname()
        return host, port

    def send(self, datagram: bytes | memoryview) -> None:
        """Send one datagram, or lose it."""
        self._send([datagram])

    def send_many(self, datagrams: Sequence[bytes | memoryview]) -> None:
        """Send datagrams in this order, or lose some of them; runs of equal size go together."""
        first = 0
        while first < len(datagrams):
            size = len(datagrams[first])
            most = train_segments(size) if self.offload.segment else 1
            stop = first + 1
            while stop < len(datagrams) and stop - first < most and len(datagrams[stop]) == size:
                stop += 1
            self._send(datagrams[first:stop])
            first = stop

    def receive(self, timeout_s: float) -> list[memoryview]:
        """Return what has arrived; wait for the first up to `timeout_s`, then take what is there.

        The views are valid until the next call.
        """
        datagrams: list[memoryview] = []
        ready = dict(self._poll.poll(max(timeout_s, 0.0) * 1000))
        if self._waker in ready:
            with suppress(BlockingIOError):
                os.eventfd_read(self._waker)
        if self._socket.fileno() not in ready:
            return datagrams
        at = 0
        while at + DATAGRAM_BYTES_MAX <= RECEIVE_BYTES and len(datagrams) < BATCH_DATAGRAMS:
            try:
                size, ancillary, _, _ = self._socket.recvmsg_into(
                    [self._buffer[at:]], ANCILLARY_BYTES, socket.MSG_DONTWAIT
                )
            except BlockingIOError:
                break
            except ConnectionRefusedError:
                self.statistics.unreachable += 1
                continue
            each = datagram_bytes(ancillary, size) or 1
            datagrams += [self._buffer[cut : min(cut + each, at + size)] for cut in range(at, at + size, each)]
            at += size
        self.statistics.datagrams_received += len(datagrams)
        self.statistics.bytes_received += at
        return datagrams

    def wake(self) -> None:
        """Let the `receive` in progress return at once, or else the next one. Any thread may call it until `close`."""
        os.eventfd_write(self._waker, 1)

    def close(self) -> None:
        """Give the socket back. Harmless when it is closed."""
        self._socket.close()
        if self._waker >= 0:
            os.close(self._waker)
            self._waker = -1

    def _send(self, train: Sequence[bytes | memoryview]) -> None:
        """Send datagrams of one size that fit one call."""
        size = len(train[0])
        ancillary = [(SOL_UDP, UDP_SEGMENT, struct.pack("=H", size))] if len(train) > 1 else []
        try:
            self._socket.sendmsg(train, ancillary)
        except ConnectionRefusedError:  # the ICMP answer to an earlier one; these were not sent
            self.statistics.unreachable += 1
            return
        except OSError as error:
            if len(train) == 1 or error.errno not in REFUSES_SEGMENTS or not self._may_go_back:
                raise
            self.offload = self.offload._replace(segment=False)
            for datagram in train:
                self._send([datagram])
            return
        self.statistics.datagrams_sent += len(train)
        self.statistics.bytes_sent += len(train) * size
