# SPDX-License-Identifier: Apache-2.0
"""The link of a transport to its switch: the interface, and the ordinary UDP socket that implements it."""

from __future__ import annotations

import os
import select
from collections.abc import Sequence
from contextlib import suppress
from mmap import mmap
from typing import Final, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from hopsum.transport.batches import (
    DATAGRAM_BYTES_MAX,
    RECEIVE_BUFFER_BYTES,
    BatchLink,
    LinkStatistics,
    arrays_of,
)
from hopsum.transport.offload import Gso, Offload, offload_for

__all__ = [
    "DATAGRAM_BYTES_MAX",
    "RECEIVE_BUFFER_BYTES",
    "DatagramLink",
    "LinkStatistics",
    "RowLink",
    "UdpLink",
    "WakingLink",
]

RECEIVE_BYTES: Final = 1 << 20
"""Of what is taken in one go: room for a window of results."""
BATCH_DATAGRAMS: Final = 1024
"""Taken in one call at most, and one GSO buffer more, so that a flood cannot keep a caller from its timers."""


class DatagramLink(Protocol):
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
class RowLink(DatagramLink, Protocol):
    """A link that does better with many datagrams at once: uint8[n, bytes], contiguous, one datagram a row."""

    def send_rows(self, rows: NDArray[np.uint8]) -> None:
        """Send datagrams in this order, or lose some of them."""

    def receive_rows(self, timeout_s: float) -> list[NDArray[np.uint8]]:
        """Return what `receive` does, with runs of equal size as rows; views as well."""


@runtime_checkable
class WakingLink(DatagramLink, Protocol):
    """A link whose `receive` another thread can end."""

    def wake(self) -> None:
        """Let the `receive` in progress return at once, or else the next one. Any thread may call it."""


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
        self._batches = BatchLink(local, switch, offload_for(gso), strict=gso == "on")
        self.statistics = self._batches.statistics
        # The kernel copies several times slower to an address a few bytes behind a page's start, on AMD Zen 3.
        self._buffer = np.frombuffer(mmap(-1, RECEIVE_BYTES), np.uint8)
        try:
            self._waker = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        except OSError:
            self._batches.close()
            raise
        self._poll = select.poll()
        self._poll.register(self._batches.fileno(), select.POLLIN)
        self._poll.register(self._waker, select.POLLIN)

    @property
    def offload(self) -> Offload:
        """The kernel's offloads in use."""
        return self._batches.offload

    @property
    def local(self) -> tuple[str, int]:
        """The address that datagrams are sent from."""
        return self._batches.local

    def send(self, datagram: bytes | memoryview) -> None:
        """Send one datagram, or lose it."""
        self.send_rows(np.frombuffer(datagram, np.uint8)[None])

    def send_rows(self, rows: NDArray[np.uint8]) -> None:
        """Send datagrams, uint8[n, bytes] and contiguous, in this order, or lose some of them."""
        self._batches.send(rows)

    def receive(self, timeout_s: float) -> list[memoryview]:
        """Return what has arrived; wait for the first up to `timeout_s`, then take what is there.

        The views are valid until the next call.
        """
        return [memoryview(row) for rows in self.receive_rows(timeout_s) for row in rows]

    def receive_rows(self, timeout_s: float) -> list[NDArray[np.uint8]]:
        """Return what `receive` does, runs of equal size as uint8[n, bytes]; views as well."""
        ready = dict(self._poll.poll(max(timeout_s, 0.0) * 1000))
        if self._waker in ready:
            with suppress(BlockingIOError):
                os.eventfd_read(self._waker)
        if self._batches.fileno() not in ready:
            return []
        return arrays_of(self._buffer, self._batches.receive(self._buffer, BATCH_DATAGRAMS))

    def wake(self) -> None:
        """Let the `receive` in progress return at once, or else the next one. Any thread may call it until `close`."""
        os.eventfd_write(self._waker, 1)

    def close(self) -> None:
        """Give the socket back. Harmless when it is closed."""
        self._batches.close()
        if self._waker >= 0:
            os.close(self._waker)
            self._waker = -1
