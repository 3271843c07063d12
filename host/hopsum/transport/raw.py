# SPDX-License-Identifier: Apache-2.0
"""A link of whole Ethernet frames over one interface (AF_PACKET), past the kernel's IPv4 and UDP. Needs root.

Frames leave through the interface's queue (no PACKET_QDISC_BYPASS), so a shaped link stays shaped. The worker's address
may be the interface's own, or one that the kernel does not know: ARP for it is then answered here, while somebody
receives. Where the kernel knows it, a socket that takes nothing holds the port: nobody else gets it, and the kernel
does not tell the switch that nobody listens.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

from hopsum.transport.link import BATCH_DATAGRAMS, RECEIVE_BUFFER_BYTES, RECEIVE_BYTES, LinkStatistics
from hopsum.transport.outage import Outage
from hopsum.transport.packet_filter import NOTHING, attach, frames_for
from hopsum.transport.raw_frames import RawFrames

T = TypeVar("T")

FRAME_BYTES_MAX: Final = 65535 + 14
ASK_S: Final = 0.3
"""The wait for an ARP reply, `ASKS` times."""
ASKS: Final = 5
# linux/if_ether.h, linux/if_packet.h, linux/if_arp.h, linux/sockios.h, linux/socket.h
_ETH_P_ALL = 0x0003
_SOL_PACKET, _PACKET_AUXDATA, _PACKET_IGNORE_OUTGOING = 263, 8, 23
_SO_RCVBUFFORCE = 33
_STATUS_CHECKSUM_OPEN, _STATUS_VLAN, _STATUS_CHECKSUM_VALID = 0x08, 0x10, 0x80
_AUXDATA_BYTES: Final = 20
_SIOCGIFMTU, _SIOCGIFHWADDR = 0x8921, 0x8927
_ARPHRD_ETHER: Final = 1


class RawLink:
    """One worker's frames to and from its switch on one interface. Not thread-safe but for `wake`.

    Args:
        interface: name, of the network namespace of the calling thread.
        local: (IPv4 address, port) to send from. The switch knows the worker by it, and sends to the interface's MAC.
        switch: (IPv4 address, port) of the service.
        via: IPv4 address of a router that the switch is behind. It is on the same link if left out.

    Raises:
        OSError: not root, no such interface, one that is no Ethernet, a taken port, or nobody who answers ARP.
    """

    def __init__(
        self, interface: str, local: tuple[str, int], switch: tuple[str, int], *, via: str | None = None
    ) -> None:
        self.statistics = LinkStatistics()
        self.local = local
        """The address that datagrams are sent from."""
        self._waker, hop = -1, via or switch[0]
        self._buffer = memoryview(bytearray(RECEIVE_BYTES))
        self._placeholder: socket.socket | None = None
        self._socket = _packet_socket(interface)
        try:
            mac, self._mtu_bytes = inspect_interface(self._socket, interface)
            self._placeholder = hold_port(local, switch)
            if self._placeholder is not None:
                self.local = self._placeholder.getsockname()
            self._frames = RawFrames(mac, self.local, switch, hop)
            attach(self._socket, frames_for(self.local, switch, hop))
            _configure(self._socket, interface)
            self._waker = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            self._poll = select.poll()
            self._poll.register(self._socket, select.POLLIN)
            find_hop(interface, hop, self._poll, self._take, self._ask, lambda: self._frames.hop_mac is not None)
            where = f"{self.local[0]}:{self.local[1]} on {interface} to {switch[0]}:{switch[1]}"
            self._outage = Outage(where, self.statistics.failures)
        except BaseException:
            self.close()
            raise
        self._poll.register(self._waker, select.POLLIN)

    def send(self, datagram: bytes | memoryview) -> None:
        """Send one datagram, or lose it."""
        try:
            self._socket.sendmsg([self._frames.lower(len(datagram)), datagram])
        except OSError as error:
            self._outage.note(error)
            return
        self._outage.note_sent()
        self.statistics.datagrams_sent += 1
        self.statistics.bytes_sent += len(datagram)

    def receive(self, timeout_s: float) -> list[memoryview]:
        """Return what has arrived; wait for the first up to `timeout_s`, then take what is there.

        The views are valid until the next call.
        """
        return take_in_time(self._poll, self._waker, self._take, self.statistics, timeout_s)

    def wake(self) -> None:
        """Let the `receive` in progress return at once, or else the next one. Any thread may call it until `close`."""
        os.eventfd_write(self._waker, 1)

    def close(self) -> None:
        """Give the sockets back. Harmless when they are closed."""
        self._socket.close()
        if self._placeholder is not None:
            self._placeholder.close()
        if self._waker >= 0:
            os.close(self._waker)
            self._waker = -1

    def _take(self) -> list[memoryview]:
        """Read the frames that wait: return their datagrams, do what the others ask for."""
        datagrams: list[memoryview] = []
        at = 0
        while at + FRAME_BYTES_MAX <= RECEIVE_BYTES and len(datagrams) < BATCH_DATAGRAMS:
            try:
                size, ancillary, flags, sender = self._socket.recvmsg_into(
                    [self._buffer[at:]], socket.CMSG_SPACE(_AUXDATA_BYTES), socket.MSG_DONTWAIT
                )
            except BlockingIOError:
                break
            except OSError as error:  # once, when the interface goes down
                self._outage.note(error, 0)
                break
            frame, status = self._buffer[at : at + size], _status(ancillary)
            if sender[2] == socket.PACKET_OUTGOING or status & _STATUS_VLAN or flags & socket.MSG_TRUNC:
                continue
            vouched = bool(status & (_STATUS_CHECKSUM_OPEN | _STATUS_CHECKSUM_VALID))
            found = []
            if sender[2] == socket.PACKET_HOST:
                found = self._frames.datagrams(frame, mtu_bytes=self._mtu_bytes, vouched=vouched)
            if found:
                datagrams += found
                at += size
            else:
                self._hear(frame)
        self.statistics.datagrams_received += len(datagrams)
        self.statistics.bytes_received += sum(map(len, datagrams))
        return datagrams

    def _hear(self, frame: memoryview) -> None:
        if self._frames.says_unreachable(frame):
            self.statistics.unreachable += 1
            return
        answer = self._frames.hear_arp(frame)
        if answer is not None and self._placeholder is None:  # else the kernel answers
            with suppress(OSError):  # it will be asked again
                self._socket.send(answer)

    def _ask(self) -> None:
        self._socket.send(self._frames.arp_request())


def take_in_time(
    poll: select.poll, waker: int, take: Callable[[], list[T]], statistics: LinkStatistics, timeout_s: float
) -> list[T]:
    """Return what `take` finds; wait for something, for `waker`, or for word that nobody listens, up to `timeout_s`.

    Args:
        poll: of the socket that `take` reads without waiting, and of `waker`, an eventfd.
    """
    until, unreachable = time.monotonic() + max(timeout_s, 0.0), statistics.unreachable
    while True:
        ready = dict(poll.poll(max(until - time.monotonic(), 0.0) * 1000))
        woken = waker in ready
        if woken:
            with suppress(BlockingIOError):
                os.eventfd_read(waker)
        found = take() if ready.keys() - {waker} else []
        told = statistics.unreachable > unreachable
        if found or woken or told or time.monotonic() >= until:
            return found


def find_hop(
    interface: str,
    hop: str,
    poll: select.poll,
    take: Callable[[], object],
    ask: Callable[[], None],
    is_found: Callable[[], bool],
) -> None:
    """Ask for the next hop's MAC until it is found. Raises OSError if nobody answers.

    Args:
        poll: of the socket that `take` reads without waiting; `take` hears ARP replies.
        ask: sends an ARP request.
    """
    for _ in range(ASKS):
        ask()
        until = time.monotonic() + ASK_S
        while not is_found() and (left_s := until - time.monotonic()) > 0:
            if poll.poll(left_s * 1000):
                take()
        if is_found():
            return
    raise OSError(
        errno.EHOSTUNREACH,
        f"no host on {interface} answers ARP for {hop}, asked {ASKS} times: the switch, or a router named by via, "
        "has to be on this link",
    )


def _packet_socket(interface: str) -> socket.socket:
    """Return a packet socket to which nothing arrives before it is bound. Raises PermissionError in words."""
    try:
        return socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    except PermissionError as error:
        raise PermissionError(error.errno, f"raw frames on {interface} need root: {error.strerror}") from None


def inspect_interface(sock: socket.socket, interface: str) -> tuple[int, int]:
    """Return MAC and MTU of an Ethernet interface. Raises OSError."""
    request = struct.pack("16s24x", interface.encode()[:15])
    try:
        answer = fcntl.ioctl(sock, _SIOCGIFHWADDR, request)
        (mtu_bytes,) = struct.unpack_from("=i", fcntl.ioctl(sock, _SIOCGIFMTU, request), 16)
    except OSError as error:
        known = ", ".join(sorted(name for _, name in socket.if_nameindex()))
        raise OSError(
            error.errno, f"no interface {interface!r} in this network namespace; there are: {known}"
        ) from None
    (kind,) = struct.unpack_from("=H", answer, 16)
    if kind != _ARPHRD_ETHER:
        raise OSError(errno.EINVAL, f"interface {interface} is not Ethernet (its hardware type is {kind}): use udp://")
    return int.from_bytes(answer[18:24], "big"), int(mtu_bytes)


def _configure(sock: socket.socket, interface: str) -> None:
    sock.setsockopt(_SOL_PACKET, _PACKET_AUXDATA, 1)
    with suppress(OSError):  # since Linux 4.20; before, `_take` sorts them out
        sock.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
    try:
        sock.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, RECEIVE_BUFFER_BYTES)
    except PermissionError:  # without CAP_NET_ADMIN the kernel's limit holds
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
    sock.bind((interface, _ETH_P_ALL))


def hold_port(local: tuple[str, int], switch: tuple[str, int]) -> socket.socket | None:
    """Return a socket that keeps the port and takes nothing; None if the address is none of this host's."""
    holder = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        attach(holder, NOTHING)
        holder.bind(local)
        with suppress(OSError):  # the kernel need not know a way there
            holder.connect(switch)
    except OSError as error:
        holder.close()
        if error.errno == errno.EADDRNOTAVAIL:
            return None
        raise
    return holder


def _status(ancillary: list[tuple[int, int, bytes]]) -> int:
    """Return what the kernel says of a frame, see linux/if_packet.h."""
    for level, kind, data in ancillary:
        if (level, kind) == (_SOL_PACKET, _PACKET_AUXDATA):
            return int(struct.unpack_from("=I", data)[0])
    return 0
