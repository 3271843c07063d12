# SPDX-License-Identifier: Apache-2.0
"""The link of a transport to its switch: the interface. The links are in udp_link.py and scapy_link.py."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Protocol

RECEIVE_BYTES: Final = 1 << 20
"""The room of one `receive`: a window of 1,024 results of 1 KiB."""
BATCH_DATAGRAMS: Final = 1024
"""One `receive` stops after so many datagrams (a GSO buffer may exceed them), so that a flood delays no timers."""
RECEIVE_BUFFER_BYTES: Final = 4 << 20
"""Asked of the kernel for SO_RCVBUF, which may give less. A window of results must fit."""
DATAGRAM_BYTES_MAX: Final = 65535


@dataclass(slots=True)
class LinkStatistics:
    """Counts of datagrams and their bytes (UDP payload) at the socket, and of system calls."""

    datagrams_sent: int = 0
    bytes_sent: int = 0
    datagrams_received: int = 0
    bytes_received: int = 0
    unreachable: int = 0
    """'port unreachable' answers: no process listens at the switch's address."""
    sends: int = 0
    receives: int = 0
    refused_segment_sends: int = 0
    """Sends with UDP_SEGMENT that the operating system refused. From then on datagrams are sent one by one."""
    failures: Counter[str] = field(default_factory=Counter)
    """System calls that failed, by the errno's name. Their datagrams are lost. ECONNREFUSED counts as
    `unreachable` instead."""


class DatagramLink(Protocol):
    """Sends to and receives from one switch."""

    statistics: LinkStatistics

    def send(self, datagram: bytes | memoryview) -> None:
        """Send one datagram, or lose it."""

    def receive(self, timeout_s: float) -> Sequence[bytes | memoryview]:
        """Return the datagrams that have arrived. Wait up to `timeout_s` for the first one.

        Empty after the timeout, a wake-up, or an error of the network, which is counted. Views are valid until the next
        call.
        """

    def wake(self) -> None:
        """Let the `receive` in progress return at once, or else the next one. Any thread, also after `close`."""

    def close(self) -> None:
        """Close the sockets. May be called again."""


class Waker:
    """An eventfd that ends the wait of a link's `receive`. Raises OSError: no descriptor is left."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """The descriptor, -1 once it is closed."""
        # Reentrant: a signal handler may wake the thread in which it runs.
        self._lock = threading.RLock()

    def wake(self) -> None:
        """Make the descriptor readable. Any thread. Does nothing after `close`."""
        with self._lock:
            if self.fd >= 0:
                os.eventfd_write(self.fd, 1)

    def clear(self) -> None:
        """Make the descriptor unreadable, so that the next wait waits again."""
        with suppress(BlockingIOError):
            os.eventfd_read(self.fd)

    def close(self) -> None:
        """Close the descriptor. May be called again."""
        # Another file may get the number at once: no thread may write to it then.
        with self._lock:
            fd, self.fd = self.fd, -1
            if fd >= 0:
                os.close(fd)
