# SPDX-License-Identifier: Apache-2.0
"""What a transport needs from the network, and the ordinary UDP socket that provides it."""

from __future__ import annotations

import select
import socket
from dataclasses import dataclass
from typing import Final, Protocol

RECEIVE_BUFFER_BYTES: Final = 4 << 20
"""Asked of the kernel for SO_RCVBUF, which may give less. A window of results must fit."""
DATAGRAM_BYTES_MAX: Final = 65535
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

    def receive(self, timeout_s: float) -> list[bytes]:
        """Return what has arrived; wait for the first up to `timeout_s`, then take what is there."""

    def close(self) -> None:
        """Give the socket back."""


class UdpLink:
    """An ordinary UDP socket, connected: datagrams from elsewhere do not come through.

    Args:
        local: (IPv4 address, port) to send from; the switch knows the worker by it. Port 0: any.
        switch: (IPv4 address, port) of the service.

    Raises:
        OSError: the local address is not this host's, or the port is taken.
    """

    def __init__(self, local: tuple[str, int], switch: tuple[str, int]) -> None:
        self.statistics = LinkStatistics()
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
            self._socket.bind(local)
            self._socket.connect(switch)
        except OSError:
            self._socket.close()
            raise

    @property
    def local(self) -> tuple[str, int]:
        """The address that datagrams are sent from."""
        host, port = self._socket.getsockname()
        return host, port

    def send(self, datagram: bytes | memoryview) -> None:
        """Send one datagram, or lose it."""
        try:
            self._socket.send(datagram)
        except ConnectionRefusedError:  # the ICMP answer to an earlier one; this one was not sent
            self.statistics.unreachable += 1
            return
        self.statistics.datagrams_sent += 1
        self.statistics.bytes_sent += len(datagram)

    def receive(self, timeout_s: float) -> list[bytes]:
        """Return what has arrived; wait for the first up to `timeout_s`, then take what is there."""
        datagrams: list[bytes] = []
        if not select.select([self._socket], [], [], max(timeout_s, 0.0))[0]:
            return datagrams
        for _ in range(BATCH_DATAGRAMS):
            try:
                datagrams.append(self._socket.recv(DATAGRAM_BYTES_MAX, socket.MSG_DONTWAIT))
            except BlockingIOError:
                break
            except ConnectionRefusedError:
                self.statistics.unreachable += 1
        self.statistics.datagrams_received += len(datagrams)
        self.statistics.bytes_received += sum(map(len, datagrams))
        return datagrams

    def close(self) -> None:
        """Give the socket back."""
        self._socket.close()
