# SPDX-License-Identifier: Apache-2.0
"""Many datagrams of one size per system call: UDP_SEGMENT to send, UDP_GRO to receive, plain calls where neither works.

With UDP_SEGMENT the kernel cuts one buffer into datagrams; with UDP_GRO it hands over a run of equal datagrams of one
sender in one buffer, and says where to cut. What travels is the same datagrams either way. Towards a switch that takes
whole frames from a veth (bmv2) ask for `PLAIN`: all segments of a send would reach it as one frame of 22 kB.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopsum.transport.offload import (
    ANCILLARY_BYTES,
    GSO_BYTES_MAX,
    PLAIN,
    REFUSES_SEGMENTS,
    SEGMENTS_MAX,
    SOL_UDP,
    UDP_GRO,
    UDP_SEGMENT,
    Offload,
    datagram_bytes,
    probe_offload,
    segments_per_send,
    set_option,
    udp_socket,
)
from hopsum.transport.outage import Outage

__all__ = [
    "GSO_BYTES_MAX",
    "PLAIN",
    "SEGMENTS_MAX",
    "SOL_UDP",
    "UDP_GRO",
    "UDP_SEGMENT",
    "BatchLink",
    "LinkStatistics",
    "Offload",
    "SegmentRun",
    "arrays_of",
    "datagrams_of",
    "probe_offload",
    "rows_of",
]

RECEIVE_BUFFER_BYTES: Final = 4 << 20
"""Asked of the kernel for SO_RCVBUF, which may give less. A window of results must fit."""
DATAGRAM_BYTES_MAX: Final = 65535


class SegmentRun(NamedTuple):
    """Datagrams one behind the other in a buffer, of `datagram_bytes` each; the last may be shorter."""

    start: int
    stop: int
    datagram_bytes: int


@dataclass(slots=True)
class LinkStatistics:
    """Datagrams and their bytes (UDP payload) at the socket, and how often the kernel was called."""

    datagrams_sent: int = 0
    bytes_sent: int = 0
    datagrams_received: int = 0
    bytes_received: int = 0
    unreachable: int = 0
    """Times that the network said that nobody listens there."""
    sends: int = 0
    receives: int = 0
    refused_segment_sends: int = 0
    """Sends with UDP_SEGMENT that the kernel refused: plain ones from then on."""
    failures: Counter[str] = field(default_factory=Counter)
    """System calls that failed for a while, by the errno's name; what they would have sent is lost. ECONNREFUSED is
    counted as `unreachable` instead."""


class BatchLink:
    """An ordinary UDP socket, connected, that moves datagrams by the batch. Not thread-safe.

    Args:
        local: (IPv4 address, port) to send from. Port 0: any.
        switch: (IPv4 address, port) of the service.
        offload: None asks the kernel (`probe_offload`).
        strict: raise where the kernel refuses UDP_SEGMENT on the way to this switch, instead of doing without.

    Raises:
        OSError: the local address is not this host's, or the port is taken.
    """

    def __init__(
        self,
        local: tuple[str, int],
        switch: tuple[str, int],
        offload: Offload | None = None,
        *,
        strict: bool = False,
    ) -> None:
        self.statistics = LinkStatistics()
        self._strict = strict
        wanted = probe_offload() if offload is None else offload
        self._segment_bytes = 0
        self._socket = udp_socket()
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
            self._socket.bind(local)
            self._socket.connect(switch)
            gro = wanted.gro and set_option(self._socket, UDP_GRO, 1)
        except OSError:
            self._socket.close()
            raise
        own = self.local
        self._outage = Outage(f"{own[0]}:{own[1]} to {switch[0]}:{switch[1]}", self.statistics.failures)
        self.offload = Offload(wanted.segment, gro)

    @property
    def local(self) -> tuple[str, int]:
        """The address that datagrams are sent from."""
        host, port = self._socket.getsockname()
        return host, port

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        return self._socket.fileno()

    def send(self, datagrams: NDArray[np.uint8]) -> None:
        """Send rows of uint8[n, bytes], C-contiguous, one datagram each in this order, or lose some of them."""
        count, size = datagrams.shape
        first = 0
        while first < count:
            stop = first + (
                segments_per_send(size) if self.offload.segment else 1
            )  # a refusal ends the use of UDP_SEGMENT
            self._send_segments(datagrams[first:stop])
            first = stop

    def receive(self, buffer: NDArray[np.uint8], most: int | None = None) -> list[SegmentRun]:
        """Take what has arrived, without waiting, while `buffer` has room for the largest datagram.

        Args:
            buffer: uint8[bytes], contiguous; at least 65535 bytes. Runs lie in it one behind the other.
            most: no more once there are so many datagrams.
        """
        runs: list[SegmentRun] = []
        view, at, last, datagrams = buffer.data, 0, len(buffer) - DATAGRAM_BYTES_MAX, 0
        while at <= last and (most is None or datagrams < most):
            try:
                size, each = self._receive_into(view[at:])
            except BlockingIOError:
                break
            except ConnectionRefusedError:  # the ICMP answer to an earlier datagram
                self.statistics.unreachable += 1
                continue
            except OSError as error:  # another ICMP answer, or an interface that went
                self._outage.note(error, 0)
                break
            self.statistics.receives += 1
            datagrams += -(-size // each) if size else 1
            if runs and runs[-1].datagram_bytes == each and not (at - runs[-1].start) % each:
                runs[-1] = SegmentRun(runs[-1].start, at + size, each)
            elif size:
                runs.append(SegmentRun(at, at + size, each))
            at += size
        self.statistics.datagrams_received += datagrams
        self.statistics.bytes_received += at
        return runs

    def close(self) -> None:
        """Give the socket back."""
        self._socket.close()

    def _receive_into(self, room: memoryview) -> tuple[int, int]:
        """Take one datagram or run; return its bytes, and those of each datagram in it."""
        if not self.offload.gro:
            size = self._socket.recv_into(room, 0, socket.MSG_DONTWAIT)
            return size, size
        size, ancillary, _, _ = self._socket.recvmsg_into([room], ANCILLARY_BYTES, socket.MSG_DONTWAIT)
        return size, datagram_bytes(ancillary, size)

    def _send_segments(self, segments: NDArray[np.uint8]) -> None:
        """Send datagrams that fit one call."""
        count, size = segments.shape
        try:
            # A size that was set stays: one longer datagram alone would be cut by it too.
            if self.offload.segment and size != self._segment_bytes and (count > 1 or self._segment_bytes):
                self._socket.setsockopt(SOL_UDP, UDP_SEGMENT, size)
                self._segment_bytes = size
            self._socket.send(segments.data)
        except ConnectionRefusedError:  # the ICMP answer to an earlier one; these were not sent
            self.statistics.unreachable += 1
            return
        except OSError as error:
            if count == 1 or self._strict or error.errno not in REFUSES_SEGMENTS:
                self._outage.note(error, count)
            else:
                self._send_singly(segments)
            return
        self._outage.note_sent()
        self.statistics.sends += 1
        self.statistics.datagrams_sent += count
        self.statistics.bytes_sent += count * size

    def _send_singly(self, segments: NDArray[np.uint8]) -> None:
        self.offload = self.offload._replace(segment=False)
        self.statistics.refused_segment_sends += 1
        if self._segment_bytes:
            self._socket.setsockopt(SOL_UDP, UDP_SEGMENT, 0)
            self._segment_bytes = 0
        for number in range(len(segments)):
            self._send_segments(segments[number : number + 1])


def rows_of(buffer: NDArray[np.uint8], runs: Sequence[SegmentRun], datagram_bytes: int) -> NDArray[np.uint8]:
    """Return the datagrams of one size as uint8[n, datagram_bytes]; others are left out.

    A view of the buffer where all that arrived has this size, else a copy.
    """
    if all(run.datagram_bytes == datagram_bytes and not (run.stop - run.start) % datagram_bytes for run in runs):
        stop = runs[-1].stop if runs else 0
        return buffer[:stop].reshape(-1, datagram_bytes)
    parts = []
    for start, stop, each in runs:
        if each == datagram_bytes:
            parts.append(buffer[start : stop - (stop - start) % each])
        elif (stop - start) % each == datagram_bytes:
            parts.append(buffer[stop - datagram_bytes : stop])
    return np.concatenate(parts).reshape(-1, datagram_bytes) if parts else buffer[:0].reshape(-1, datagram_bytes)


def arrays_of(buffer: NDArray[np.uint8], runs: Sequence[SegmentRun]) -> list[NDArray[np.uint8]]:
    """Return all datagrams in the order of arrival, as views: each uint8[n, bytes], one a row."""
    arrays = []
    for start, stop, each in runs:
        cut = stop - (stop - start) % each
        arrays += [buffer[start:cut].reshape(-1, each)] if cut > start else []
        arrays += [buffer[cut:stop].reshape(1, -1)] if stop > cut else []
    return arrays


def datagrams_of(buffer: NDArray[np.uint8], runs: Sequence[SegmentRun]) -> list[bytes]:
    """Return copies of all datagrams, in the order of arrival."""
    return [
        buffer[at : min(at + run.datagram_bytes, run.stop)].tobytes()
        for run in runs
        for at in range(run.start, run.stop, run.datagram_bytes)
    ]
