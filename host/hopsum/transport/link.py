# SPDX-License-Identifier: Apache-2.0
"""The link of a transport to its switch: the interface. The links are in udp_link.py and scapy_link.py."""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Protocol

from hopsum.protocol.failures import unsent_remedy

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


# Sends that fail: their datagrams are lost, as in the network, and sent again by the protocol. A lasting failure ends
# at a deadline, whose error names the errno.
#
# state   input                                 next    also
# FINE    a send fails                          FAILS   counted by errno name; one line in the log
# FAILS   a send fails                          FAILS   counted
# FAILS   a send works, CALM_S after the last   FINE    one line in the log
#         that failed
# any     a send fails by a DEFECT              same    the error is raised


DEFECTS: Final = frozenset((errno.EBADF, errno.ENOTSOCK, errno.EFAULT))
"""Mistakes of this program. All else that a kernel or library reports may pass."""
CALM_S: Final = 1.0
_log: Final = logging.getLogger(__name__)


class Outage:
    """The failed sends of one link to one switch: counts them, and logs the start and end of an outage.

    Not thread-safe.

    Args:
        where: names both ends in the log.
        failures: the counts by the errno's name, which `note` increases.
        clock: monotonic seconds.
    """

    def __init__(self, where: str, failures: Counter[str], *, clock: Callable[[], float] = time.monotonic) -> None:
        self.where, self._failures, self._clock = where, failures, clock
        self.since: float | None = None
        """The time of the first send that failed, None while sending works."""
        self._last = 0.0
        self._lost = 0

    def note(self, error: OSError, datagrams: int = 1) -> None:
        """Count a failed system call. The first of an outage logs a WARNING. Raises the error itself if it is a defect.

        Args:
            datagrams: the number of datagrams that are lost.
        """
        if error.errno in DEFECTS:
            raise error
        # scapy and drivers may raise an error without a number, or with one that Python has no name for.
        name, self._last = errno.errorcode.get(error.errno or 0, str(error)), self._clock()
        self._failures[name] += 1
        if self.since is None:
            self.since, self._lost = self._last, 0
            text = f"{name}: {error.strerror or 'no reason given'}{unsent_remedy(name)}"
            _log.warning("%s: sending fails (%s); datagrams are lost and sent again", self.where, text)
        self._lost += datagrams

    def note_sent(self) -> None:
        """Note a send that worked. One second or more after the last failure, log the end of the outage."""
        # A flapping interface lets single datagrams pass: the outage ends after a calm second only, else the log
        # floods.
        if self.since is None or self._clock() - self._last < CALM_S:
            return
        lasted_s = self._last - self.since
        _log.warning("%s: sending works again; it failed for %.1f s, %d datagrams", self.where, lasted_s, self._lost)
        self.since = None
