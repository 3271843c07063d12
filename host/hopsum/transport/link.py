# SPDX-License-Identifier: Apache-2.0
"""The link of a transport to its switch: the interface. Its kinds stand in udp_link.py, raw.py and scapy_link.py."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

RECEIVE_BYTES: Final = 1 << 20
"""The room of one `receive`: a window of results."""
BATCH_DATAGRAMS: Final = 1024
"""The most that one `receive` takes, and one GSO buffer more, so that a flood cannot keep a caller from its timers."""
RECEIVE_BUFFER_BYTES: Final = 4 << 20
"""Asked of the kernel for SO_RCVBUF, which may give less. A window of results must fit."""
DATAGRAM_BYTES_MAX: Final = 65535


@dataclass(slots=True)
class LinkStatistics:
    """Datagrams and their bytes (UDP payload) at the socket, and how often the kernel was called."""

    datagrams_sent: int = 0
    bytes_sent: int = 0
    datagrams_received: int = 0
    bytes_received: int = 0
    unreachable: int = 0
    """Times that the network said that no process listens there."""
    sends: int = 0
    receives: int = 0
    refused_segment_sends: int = 0
    """Sends with UDP_SEGMENT that the kernel refused: plain ones from then on."""
    failures: Counter[str] = field(default_factory=Counter)
    """System calls that failed for a while, by the errno's name. What they would have sent is lost. ECONNREFUSED is
    counted as `unreachable` instead."""


class DatagramLink(Protocol):
    """Sends to and receives from one switch."""

    statistics: LinkStatistics

    def send(self, datagram: bytes | memoryview) -> None:
        """Send one datagram, or lose it."""

    def receive(self, timeout_s: float) -> Sequence[bytes | memoryview]:
        """Return what has arrived; wait for the first up to `timeout_s`, then take what is there.

        Views are valid until the next call.
        """

    def wake(self) -> None:
        """Let the `receive` in progress return at once, or else the next one. Any thread may call it."""

    def close(self) -> None:
        """Give the socket back."""


@runtime_checkable
class RowLink(DatagramLink, Protocol):
    """A link that does better with many datagrams at once: uint8[n, bytes], contiguous, one datagram a row."""

    def send_rows(self, rows: NDArray[np.uint8]) -> None:
        """Send datagrams in this order, or lose some of them."""

    def receive_rows(self, timeout_s: float) -> list[NDArray[np.uint8]]:
        """Return what `receive` does, with runs of equal size as rows; views as well."""
