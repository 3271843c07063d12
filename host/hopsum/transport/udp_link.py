# SPDX-License-Identifier: Apache-2.0
"""An ordinary UDP socket as a link: many datagrams of one size per system call, plain calls where that does not work.

A link to a switch that takes whole frames from a veth (bmv2) needs `PLAIN`: all segments of a send (offload.py) would
reach the switch as one frame of 22 kB.
"""

from __future__ import annotations

import logging
import select
import socket
from mmap import mmap
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopsum.transport.link import (
    BATCH_DATAGRAMS,
    DATAGRAM_BYTES_MAX,
    RECEIVE_BUFFER_BYTES,
    RECEIVE_BYTES,
    LinkStatistics,
    Waker,
)
from hopsum.transport.offload import (
    ANCILLARY_BYTES,
    IP_MTU,
    REFUSES_SEGMENTS,
    SOL_UDP,
    UDP_GRO,
    UDP_SEGMENT,
    Gso,
    Offload,
    datagram_bytes,
    offload_for,
    segments_per_send,
    set_option,
    udp_socket,
)
from hopsum.transport.outage import Outage
from hopsum.transport.segment_trial import SegmentTrial
from hopsum_wire._layout import IPV4_BYTES, UDP_BYTES

_log: Final = logging.getLogger(__name__)


class SegmentRun(NamedTuple):
    """Adjacent datagrams in bytes start .. stop - 1 of a buffer, of `datagram_bytes` each. The last may be shorter."""

    start: int
    stop: int
    datagram_bytes: int


class UdpLink:
    """A `DatagramLink` over a connected UDP socket: datagrams of other senders are dropped. Only `wake` is thread-safe.

    Args:
        local: (IPv4 address, port) to send from. The switch knows the worker by it. Port 0: any.
        switch: (IPv4 address, port) of the service.
        gso: "auto": many datagrams in one system call (UDP_SEGMENT, UDP_GRO) if Linux can, and one each once Linux
            refuses them or they are lost on the path to this switch. "on": never one each; refused ones are lost.
            "off": one each. An `Offload` is used as it is at first, and falls back as "auto" does.

    Raises:
        OSError: the local address is not this host's, the port is taken, or gso="on" and Linux lacks UDP_SEGMENT.
        ValueError: gso is none of these.
    """

    def __init__(self, local: tuple[str, int], switch: tuple[str, int], *, gso: Gso | Offload = "auto") -> None:
        self.statistics = LinkStatistics()
        wanted = gso if isinstance(gso, Offload) else offload_for(gso)
        self._trial = SegmentTrial() if wanted.segment and gso != "on" else None
        """None if it is decided whether datagrams are sent together."""
        self._segment_bytes = 0
        self._socket = udp_socket()
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
            # SO_RCVBUF comes before bind: a window of results may arrive with the first datagram that is sent.
            self._socket.bind(local)
            # connect: the kernel drops datagrams of others, and reports ICMP errors as ECONNREFUSED.
            self._socket.connect(switch)
            gro = wanted.gro and set_option(self._socket, UDP_GRO, 1)
            self.waker = Waker()
            """Ends a wait for the socket."""
        except OSError:
            self._socket.close()
            raise
        self.offload = Offload(wanted.segment, gro)
        """Linux's offloads in use. `judge` and refused sends change `segment`."""
        self.switch = switch
        """The address to which datagrams go: (IPv4 address, port)."""
        self.outage = self._outage_towards(switch)
        """Failed sends. A compiled loop on this socket must call its `note_sent`."""
        # The kernel copies several times slower to an address a few bytes behind a page's start, on AMD Zen 3.
        self.buffer = np.frombuffer(mmap(-1, RECEIVE_BYTES), np.uint8)
        """The memory of `receive`."""
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._poll.register(self.waker.fd, select.POLLIN)

    @property
    def local(self) -> tuple[str, int]:
        """The address that datagrams are sent from."""
        host, port = self._socket.getsockname()
        return host, port

    def redirect(self, switch: tuple[str, int]) -> None:
        """Send to another switch from now on, from the same address. Any thread, while no other thread sends.

        Datagrams of the former switch that have arrived may still be received. Raises OSError without a route: then
        nothing has changed.
        """
        self._socket.connect(switch)
        self.switch, self.outage = switch, self._outage_towards(switch)

    def fileno(self) -> int:
        """Return the descriptor of the socket, for poll."""
        return self._socket.fileno()

    def judge(self, results: int, again: int, in_flight: int, now: float) -> None:
        """Decide by a worker's counts whether datagrams are sent together from now on, as `SegmentTrial.look`.

        Logs a WARNING when sending together has failed twice. Does nothing with gso "on" or "off", or after a refusal.
        """
        if self._trial is None:
            return
        had_ended = self._trial.has_ended
        self._trial.look(results, again, in_flight, now)
        if self._trial.together != self.offload.segment:
            self._send_together(self._trial.together)
        if self._trial.has_ended and not had_ended:
            _log.warning(
                "%s: datagrams sent together (UDP_SEGMENT) are lost, those sent one by one arrive: for %g s they "
                "are sent one by one. Where this comes again, a kernel or network card on the way is at fault: see "
                "`hopsum doctor`, and set gso='off' (HOPSUM_GSO=off) on this host and gso=off at its switch",
                self.outage.where,
                self._trial.rests_s,
            )

    def send(self, datagram: bytes | memoryview) -> None:
        self.send_rows(np.frombuffer(datagram, np.uint8)[None])

    def send_rows(self, rows: NDArray[np.uint8]) -> None:
        """Send datagrams, uint8[n, bytes] and contiguous, in this order, or lose some of them. Failures are counted.

        If Linux refuses datagrams sent together, they are sent one by one from now on, with a WARNING.
        """
        count, size = rows.shape
        first = 0
        while first < count:  # a refusal ends the use of UDP_SEGMENT
            stop = first + (segments_per_send(size) if self.offload.segment else 1)
            self._send_segments(rows[first:stop])
            first = stop

    def receive(self, timeout_s: float) -> list[memoryview]:
        ready = dict(self._poll.poll(max(timeout_s, 0.0) * 1000))
        if self.waker.fd in ready:
            self.waker.clear()
        if self._socket.fileno() not in ready:
            return []
        data = self.buffer.data
        return [
            data[first : min(first + run.datagram_bytes, run.stop)]
            for run in self.receive_batch(self.buffer, BATCH_DATAGRAMS)
            for first in range(run.start, run.stop, run.datagram_bytes)
        ]

    def receive_batch(self, buffer: NDArray[np.uint8], most: int | None = None) -> list[SegmentRun]:
        """Receive the datagrams that have arrived into a buffer, without waiting, and return their runs in order.

        Ends when the buffer has no more room for the largest datagram. Failures are counted.

        Args:
            buffer: uint8[bytes], contiguous; at least 65535 bytes.
            most: receive no more after so many datagrams; the last system call may exceed them. None: no limit.
        """
        runs: list[SegmentRun] = []
        view, at, last, datagrams = buffer.data, 0, len(buffer) - DATAGRAM_BYTES_MAX, 0
        # Room for the largest datagram has to be left: what does not fit is cut off by the kernel without a word.
        while at <= last and (most is None or datagrams < most):
            try:
                size, each = self._receive_into(view[at:])
            except BlockingIOError:
                break
            except OSError as error:
                self.note_failure(error)
                # The error was of an earlier send. Datagrams may still be waiting behind it.
                if isinstance(error, ConnectionRefusedError):
                    continue
                break
            self.statistics.receives += 1
            datagrams += -(-size // each) if size else 1
            # Runs of one size become one array: numpy then handles hundreds of RESULTs in one operation.
            if runs and runs[-1].datagram_bytes == each and not (at - runs[-1].start) % each:
                runs[-1] = SegmentRun(runs[-1].start, at + size, each)
            elif size:
                runs.append(SegmentRun(at, at + size, each))
            at += size
        self.statistics.datagrams_received += datagrams
        self.statistics.bytes_received += at
        return runs

    def wake(self) -> None:
        self.waker.wake()

    def note_failure(self, error: OSError) -> None:
        """Count a failed receive: ECONNREFUSED as `unreachable`, other errors as failures of `outage`.

        Raises the error if it is a defect of this program (DEFECTS).
        """
        if isinstance(error, ConnectionRefusedError):  # the ICMP answer to an earlier datagram
            self.statistics.unreachable += 1
        else:  # another ICMP answer, or an interface that went
            self.outage.note(error, 0)

    def close(self) -> None:
        self._socket.close()
        self.waker.close()

    def _send_together(self, together: bool) -> None:
        self.offload = self.offload._replace(segment=together)
        if self._segment_bytes and not together:
            self._socket.setsockopt(SOL_UDP, UDP_SEGMENT, 0)
            self._segment_bytes = 0

    def _outage_towards(self, switch: tuple[str, int]) -> Outage:
        own = self.local
        return Outage(f"{own[0]}:{own[1]} to {switch[0]}:{switch[1]}", self.statistics.failures)

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
            # A size that is set counts for a datagram alone too: where the MTU falls, the kernel refuses even that.
            if self._trial is not None and self.offload.segment and error.errno in REFUSES_SEGMENTS:
                self._send_singly(segments, error)
            else:
                self.outage.note(error, count)
            return
        self.outage.note_sent()
        self.statistics.sends += 1
        self.statistics.datagrams_sent += count
        self.statistics.bytes_sent += count * size

    def _send_singly(self, segments: NDArray[np.uint8], refusal: OSError) -> None:
        # The device on the way to this switch cannot cut segments, or its MTU is too small. A job does not try again.
        self._send_together(False)
        self._trial = None
        self.statistics.refused_segment_sends += 1
        needed = segments.shape[1] + IPV4_BYTES + UDP_BYTES
        mtu = self._socket.getsockopt(socket.IPPROTO_IP, IP_MTU)
        how = "one by one"
        if needed > mtu:
            how = (
                f"in IP fragments, since packets of {needed} bytes exceed the MTU {mtu}. A switch at UDP ports takes "
                "fragments, one at interfaces does not: raise the MTU there (ip link set dev INTERFACE mtu 1500)"
            )
        text = "%s: the kernel refuses datagrams sent together (%s); from now on they are sent %s"
        _log.warning(text, self.outage.where, refusal.strerror, how)
        for number in range(len(segments)):
            self._send_segments(segments[number : number + 1])
