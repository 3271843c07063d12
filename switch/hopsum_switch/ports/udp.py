# SPDX-License-Identifier: Apache-2.0
"""Ports over UDP sockets: the kernel's IP stack is the wire, the headers are made up and taken off here.

In: a datagram from peer P becomes Ethernet/IPv4/UDP from P's real address and UDP port to the bound
address (or to the address given as `as=`), with right lengths and IPv4 checksum, UDP checksum 0 ("none": the
kernel has verified it) and fixed MACs per port. Out: an IPv4/UDP frame is checked as its receiver would,
stripped, and sent from the port's socket to the IP address and UDP port it names. Any other frame is dropped
and counted:

  not_ipv4, not_udp, fragment    what a UDP socket cannot send
  truncated                      the frame ends before its headers or lengths say
  bad_checksum                   IPv4 header, or a UDP checksum that is not 0
  bad_destination                address or UDP port that no single host can have
  queue_full, send_error         the kernel took no more, or refused

Where the kernel can (Linux 5.0), many datagrams pass in one call: it hands over those of one peer joined (UDP_GRO),
and cuts those for one peer apart (UDP_SEGMENT). Elsewhere each takes a call of its own. Frames are the same.
"""

from __future__ import annotations

import errno
import ipaddress
import logging
import mmap
import os
import socket
import struct
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hopsum_switch.ports.batches import FrameBuffer, Frames
from hopsum_switch.ports.port import PortCounters, PortError, check_port_number
from hopsum_switch.ports.udp_frames import (
    END_UNICAST,
    ETHERNET_BYTES,
    ETHERTYPE_IPV4,
    FIRST_UNICAST,
    HEADERS_BYTES,
    IPV4_BYTES,
    MORE_OR_OFFSET,
    PROTO_UDP,
    UDP_BYTES,
    FrameError,
    headers,
    is_unicast,
    mac,
    strip,
)

# Many IPv4/UDP frames at once: the checks of `udp_frames.strip` as array operations, and groups of outputs.
#
# Frames of one destination leave in order. Consecutive ones with payloads of equal length, the last of them shorter
# or not, become one `Run`, which the kernel cuts into datagrams again (UDP_SEGMENT).

MAX_SEGMENTS = 64  # of one call; what every kernel with UDP_SEGMENT takes
MAX_PAYLOAD_BYTES = 65507  # of one call
Truth: TypeAlias = NDArray[np.bool_]
Integers: TypeAlias = NDArray[np.int64]

_PLAIN = 0x45  # IPv4, no options
_IPV4_WORDS = slice(ETHERNET_BYTES // 2, (ETHERNET_BYTES + IPV4_BYTES) // 2)
_ADDRESS_WORDS = slice(13, 17)
_HEADERS = np.dtype(
    {
        "names": ["ethertype", "version", "total", "fragment", "protocol", "destination", "port", "udp", "checksum"],
        "formats": [">u2", "u1", ">u2", ">u2", "u1", ">u4", ">u2", ">u2", ">u2"],
        "offsets": [12, 14, 16, 20, 23, 30, 36, 38, 40],
        "itemsize": HEADERS_BYTES,
    }
)


class Run(NamedTuple):
    """Datagrams to one address. The rows of `parts` are their payloads in order, `segment_bytes` each.

    The last payload may be shorter. `frame_lengths` are the lengths of the frames around them.
    """

    address: tuple[str, int]
    parts: tuple[NDArray[np.uint8], ...]
    segment_bytes: int
    frame_lengths: Integers

    def payloads(self) -> Iterator[NDArray[np.uint8]]:
        """Yield the payloads one by one, in the memory of `parts`."""
        for part in self.parts:
            yield from part


def split_at_irregular(frames: Frames) -> Iterator[tuple[int, int]]:
    """Yield (first, end) of stretches of frames that `runs` takes, and (n, n) for a frame n that it does not.

    Those are frames that end within the headers and frames with IPv4 options. There must be at least one frame.
    """
    count = len(frames.lengths)
    # The common case in two array operations: all frames have whole headers without options.
    if frames.lengths.min() >= HEADERS_BYTES and (frames.data[frames.offsets + ETHERNET_BYTES] == _PLAIN).all():
        yield 0, count
        return
    first = 0
    for number in np.flatnonzero(_irregular(frames)).tolist():
        if first < number:
            yield first, number
        yield number, number
        first = number + 1
    if first < count:
        yield first, count


def _irregular(frames: Frames) -> Truth:
    irregular: Truth = frames.lengths < HEADERS_BYTES
    long = np.flatnonzero(~irregular)
    at = frames.offsets[long]
    ipv4 = (frames.data[at + 12] == ETHERTYPE_IPV4 >> 8) & (frames.data[at + 13] == ETHERTYPE_IPV4 & 255)
    version = frames.data[at + ETHERNET_BYTES]
    irregular[long] = ipv4 & (version > _PLAIN) & (version < 0x50)
    return irregular


def runs(frames: Frames, dropped: Counter[str]) -> Iterator[Run]:
    """Check frames as `strip` does, count those that cannot be sent in `dropped`, and yield runs of the others.

    The frames must be regular (see `split_at_irregular`). Runs come by destination, and frames to one destination keep
    their order. A run has at most MAX_SEGMENTS frames with payloads of one size; the last may be shorter. It holds
    copies.
    """
    raw = _windows(frames.data, HEADERS_BYTES)[frames.offsets]
    fields, words = raw.view(_HEADERS)[:, 0], raw.view(np.uint16)
    good = _count_faults(frames, fields, words, dropped)
    kept = slice(None) if good.all() else np.flatnonzero(good)
    destinations = fields["destination"][kept].astype(np.int64) << 16 | fields["port"][kept]
    sizes = fields["udp"][kept].astype(np.int64) - UDP_BYTES
    yield from _runs(frames.select(kept), destinations, sizes)


def _windows(data: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """Return `size` bytes from every place of a buffer on, as rows of a view."""
    return np.ndarray((max(data.size - size + 1, 0), size), np.uint8, data, 0, (1, 1))


def _count_faults(frames: Frames, fields: NDArray[np.void], words: NDArray[np.uint16], dropped: Counter[str]) -> Truth:
    """Return a mask of the correct frames. Of the others the first fault counts, in the order of `strip`."""
    total, udp = fields["total"].astype(np.int64), fields["udp"].astype(np.int64)
    destination = fields["destination"]
    misfit = (udp < UDP_BYTES) | (udp > total - IPV4_BYTES)
    cut = (total > frames.lengths - ETHERNET_BYTES) | (total < IPV4_BYTES + UDP_BYTES)
    faults = (
        ("not_ipv4", (fields["ethertype"] != ETHERTYPE_IPV4) | (fields["version"] != _PLAIN)),
        ("not_udp", fields["protocol"] != PROTO_UDP),
        ("truncated", cut),
        # Over data that holds its own checksum the sum is 0 mod 2^16 - 1, whatever the byte order (RFC 1071).
        ("bad_checksum", _sums(words[:, _IPV4_WORDS]) % 0xFFFF != 0),
        ("fragment", fields["fragment"] & MORE_OR_OFFSET != 0),
        ("truncated", misfit),
        ("bad_checksum", _wrong_udp_checksums(frames, fields, words, ~(cut | misfit))),
        ("bad_destination", (destination < FIRST_UNICAST) | (destination >= END_UNICAST) | (fields["port"] == 0)),
    )
    good: Truth = ~np.logical_or.reduce([fault for _, fault in faults])
    if not good.all():
        left = ~good
        for reason, fault in faults:
            met = fault & left
            if met.any():
                dropped[reason] += int(np.count_nonzero(met))
                left &= ~met
    return good


def _wrong_udp_checksums(frames: Frames, fields: NDArray[np.void], words: NDArray[np.uint16], whole: Truth) -> Truth:
    """Return which of the `whole` frames have a UDP checksum, and a wrong one."""
    wrong: Truth = np.zeros(len(whole), np.bool_)
    checked = whole & (fields["checksum"] != 0)
    if not checked.any():
        return wrong
    sizes = fields["udp"]
    for size in np.unique(sizes[checked]).tolist():
        which = np.flatnonzero(checked & (sizes == size))
        even = np.zeros((len(which), size + size % 2), np.uint8)
        even[:, :size] = _windows(frames.data, size)[frames.offsets[which] + ETHERNET_BYTES + IPV4_BYTES]
        sums = even.view(np.uint16).sum(axis=1, dtype=np.uint32) + _sums(words[which, _ADDRESS_WORDS])
        # The words are in network order, so protocol and length of the pseudo header are added in that order too.
        sums += np.uint32(socket.htons(PROTO_UDP) + socket.htons(size))
        wrong[which] = sums % 0xFFFF != 0
    return wrong


def _sums(words: NDArray[np.uint16]) -> NDArray[np.uint32]:
    """Return the sum of every row. Rows are short."""
    columns = np.ascontiguousarray(words.T)  # adding columns is twice as fast as adding within rows
    total: NDArray[np.uint32] = np.add.reduce(columns, axis=0, dtype=np.uint32)
    return total


def _runs(frames: Frames, destinations: Integers, sizes: Integers) -> Iterator[Run]:
    if not len(sizes):
        return
    if (destinations != destinations[0]).any():
        # A stable sort keeps the order of the frames of each destination, which is all that UDP promises here.
        order = np.argsort(destinations, kind="stable")
        frames, destinations, sizes = frames.select(order), destinations[order], sizes[order]
    changes = (destinations[1:] != destinations[:-1]) | (sizes[1:] != sizes[:-1])
    bounds = [0, *(np.flatnonzero(changes) + 1).tolist(), len(sizes)]
    taken = 0  # frames that have left already, as the short end of the run before
    for start, end in pairwise(bounds):
        first = max(start, taken)
        if first < end:
            following = int(sizes[end]) if end < len(sizes) and destinations[end] == destinations[start] else 0
            for run in _cut(frames, first, end, int(destinations[start]), int(sizes[start]), following):
                taken = first = first + len(run.frame_lengths)
                yield run


def _cut(frames: Frames, first: int, end: int, destination: int, size: int, following: int) -> Iterator[Run]:
    """Yield the runs of frames of one size, the last with the frame of `following` bytes after them where it fits."""
    windows, starts = _windows(frames.data, size), frames.offsets + HEADERS_BYTES
    address = (socket.inet_ntoa((destination >> 16).to_bytes(4, "big")), destination & 0xFFFF)
    # One call takes as many datagrams as the kernel cuts, and as many bytes as one UDP datagram has.
    step = min(MAX_SEGMENTS, MAX_PAYLOAD_BYTES // size) if size else 1
    for at in range(first, end, step):
        stop = min(at + step, end)
        # One run at a time: 64 KB, in the cache when the kernel copies them, and no pages fresh from the kernel.
        parts: tuple[NDArray[np.uint8], ...] = (windows[starts[at:stop]],)
        if stop - at < step and 0 < following < size:  # one more would fit, so a shorter one does
            parts += (_windows(frames.data, following)[starts[end : end + 1]],)
            stop += 1
        yield Run(address, parts, size, frames.lengths[at:stop])


_log = logging.getLogger("hopsum_switch.ports")
SOL_UDP, UDP_SEGMENT, _UDP_GRO = 17, 103, 104  # of linux/udp.h; the socket module lacks them
_MAX_DATAGRAM_BYTES = 65535
_RECEIVE_BUFFER_BYTES = 16 << 20
_SEND_BUFFER_BYTES = 16 << 20
"""The send buffer of a socket. Frames that wait in the queue of a slow link count against this buffer. A frame beyond
it is dropped and counted as queue_full."""
_SO_SNDBUFFORCE = 32
_CONTROL_BYTES = socket.CMSG_SPACE(struct.calcsize("i"))
_NOT_IN_SEGMENTS = {errno.EMSGSIZE, errno.EIO, errno.EINVAL}  # too long for the path, or no checksum offload on it
_KEPT_HEADERS = 4096


class UdpAddress(NamedTuple):
    """An IPv4 address in dotted form and a UDP port."""

    ip: str
    port: int

    def __str__(self) -> str:
        return f"{self.ip}:{self.port}"


class UdpPort:
    """A port over one UDP socket. Any number of peers may send to it."""

    def __init__(
        self, sock: socket.socket, number: int, shown_as: UdpAddress | None = None, *, joined: bool = True
    ) -> None:
        """Take over `sock`, bound to one local address, as switch port `number`.

        shown_as: the switch's address in frames. None: the bound address.
        joined: let Linux join and cut datagrams, where it can.
        """
        self.counters = PortCounters()
        self._number = number
        self._said: set[tuple[int, bool]] = set()
        """Failures that the log has: errno, and whether datagrams were lost."""
        sock.setblocking(False)
        self._sock = sock
        self.address = UdpAddress(*sock.getsockname())
        self.shown_as = shown_as or self.address
        # A UDP socket shows no MAC addresses. Programs that need some get fixed ones, by port and side.
        self._ethernet = mac(number, peer=False) + mac(number, peer=True) + struct.pack("!H", ETHERTYPE_IPV4)
        self.joins = joined and _takes(sock, _UDP_GRO, 1)
        self.cuts = joined and _takes(sock, UDP_SEGMENT, 0)
        # Without UDP_GRO no control message is asked for, which makes the call cheaper.
        self._control_bytes = _CONTROL_BYTES if self.joins else 0
        self._datagram = page_aligned(_MAX_DATAGRAM_BYTES).data
        self._into = [self._datagram]
        self._headers = lru_cache(_KEPT_HEADERS)(self._make_headers)
        self.headers_of_nobody = self._make_headers(("0.0.0.0", 0), 0)
        """Headers in front of a datagram: its source, its lengths and the IPv4 checksum are to be set."""

    @classmethod
    def bind(
        cls, number: int, address: UdpAddress, shown_as: UdpAddress | None = None, *, joined: bool = True
    ) -> UdpPort:
        """Open switch port `number` on a local address (UDP port 0: any free one). The rest is as in `UdpPort()`.

        Raises PortError: the port number does not exist, or the address is none of a frame or cannot be bound.
        """
        check_port_number(number)
        _check_bound(number, address, shown_as)
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
            _enlarge_send_buffer(sock)
            sock.bind(address)
        except OSError as error:
            sock.close()
            raise PortError(f"switch port {number}: cannot bind UDP {address}: {error.strerror}") from error
        return cls(sock, number, shown_as, joined=joined)

    @property
    def descriptor(self) -> int:
        """The socket's descriptor, or -1 after `close`."""
        return self._sock.fileno()

    def fileno(self) -> int | None:
        """Return the socket's descriptor."""
        return self.descriptor

    def receive(self) -> list[bytes]:
        """Return waiting datagrams as frames: about BATCH_FRAMES at most, since the last ones may come joined."""
        frames = FrameBuffer()
        self.receive_batch(frames)
        batch = frames.batch()
        return [batch.frame(number) for number in range(frames.count)]

    def receive_batch(self, frames: FrameBuffer) -> None:
        """Append waiting datagrams as frames without blocking, until `frames.full` or none waits, and count them."""
        while not frames.full:
            try:
                size, control, _, peer = self._sock.recvmsg_into(self._into, self._control_bytes)
            except OSError:  # nothing waits
                break
            if not control:  # nothing but UDP_GRO's message was asked for
                frames.add(self._headers(peer, size), self._datagram[:size])
                self.counters.received += 1
                self.counters.received_bytes += HEADERS_BYTES + size
                continue
            # UDP_GRO: the kernel joined datagrams of this size. The last one may be shorter.
            segment = _integer(control[0][2])
            whole = size - size % segment
            self._append(frames, peer, np.frombuffer(self._datagram[:whole], np.uint8).reshape(-1, segment))
            if whole < size:
                self._append(frames, peer, np.frombuffer(self._datagram[whole:size], np.uint8)[None])

    def send(self, frame: bytes) -> None:
        """Send the UDP payload of one frame to the address in its headers. A frame that cannot leave is dropped."""
        try:
            payload, peer = strip(frame)
        except FrameError as error:
            self.counters.dropped[error.reason] += 1
            return
        self._send_one(payload, peer, len(frame))

    def send_batch(self, frames: Frames) -> None:
        """Send many frames as `send` sends one, in order for every address."""
        for first, end in split_at_irregular(frames):
            if first == end:
                self.send(frames.frame(first))
                continue
            for run in runs(frames.select(slice(first, end)), self.counters.dropped):
                self._send_run(run)

    def close(self) -> None:
        """Close the socket. Further calls do nothing."""
        self._sock.close()

    def describe(self) -> dict[str, Any]:
        """Return kind, bound address, the address that frames carry, and the sizes of the socket's receive buffer.

        `joined` and `cut` say whether many datagrams are received and sent in one call. The receive buffer may be
        smaller than requested, since net.core.rmem_max limits it.
        """
        granted = 0 if self._sock.fileno() < 0 else self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2
        return {
            "kind": "udp",
            "address": str(self.address),
            "as": str(self.shown_as),
            "joined": self.joins,
            "cut": self.cuts,
            "receive_buffer_bytes": granted,
            "receive_buffer_asked_bytes": _RECEIVE_BUFFER_BYTES,
        }

    def log_failure_once(self, number: int, *, lost: bool) -> None:
        """Log once per case that Linux refuses datagrams with errno `number`: all (`lost`), or only joined ones."""
        if (number, lost) not in self._said:
            self._said.add((number, lost))
            what = "datagrams, which are lost" if lost else "datagrams sent together, which leave one by one"
            _log.warning("switch port %d at %s: the kernel refuses %s: %s", self._number, self.address, what,
                         os.strerror(number))  # fmt: skip

    def _count_lost(self, error: OSError, count: int) -> None:
        full = isinstance(error, BlockingIOError) or error.errno == errno.ENOBUFS
        self.counters.dropped["queue_full" if full else "send_error"] += count
        if not full:
            self.log_failure_once(error.errno or 0, lost=True)

    def _append(self, frames: FrameBuffer, peer: tuple[str, int], payloads: NDArray[np.uint8]) -> None:
        """Append payloads of equal length, [count, bytes], as frames from `peer`."""
        count, size = payloads.shape
        rows = frames.append_rows(count, HEADERS_BYTES + size)
        rows[:, :HEADERS_BYTES] = np.frombuffer(self._headers(peer, size), np.uint8)
        rows[:, HEADERS_BYTES:] = payloads
        self.counters.received += count
        self.counters.received_bytes += rows.size

    def _make_headers(self, peer: tuple[str, int], payload_bytes: int) -> bytes:
        source, destination = ((socket.inet_aton(ip), port) for ip, port in (peer, self.shown_as))
        return self._ethernet + headers(source, destination, payload_bytes)

    def _send_run(self, run: Run) -> None:
        count = len(run.frame_lengths)
        if count == 1 or not self.cuts:
            self._send_singly(run)
            return
        # UDP_SEGMENT: the kernel, or the network card, cuts one buffer into datagrams of this size.
        control = [(SOL_UDP, UDP_SEGMENT, struct.pack("=H", run.segment_bytes))]
        try:
            self._sock.sendmsg([part.data for part in run.parts], control, 0, run.address)
        except OSError as error:
            if error.errno in _NOT_IN_SEGMENTS:
                self.log_failure_once(error.errno, lost=False)
                self._send_singly(run)
            else:
                self._count_lost(error, count)
        else:
            self.counters.sent += count
            self.counters.sent_bytes += int(run.frame_lengths.sum())

    def _send_singly(self, run: Run) -> None:
        for payload, frame_bytes in zip(run.payloads(), run.frame_lengths.tolist(), strict=True):
            self._send_one(payload.data, run.address, frame_bytes)

    def _send_one(self, payload: bytes | memoryview, peer: tuple[str, int], frame_bytes: int) -> None:
        try:
            self._sock.sendto(payload, peer)
        except OSError as error:
            self._count_lost(error, 1)
        else:
            self.counters.sent += 1
            self.counters.sent_bytes += frame_bytes


def page_aligned(size: int) -> NDArray[np.uint8]:
    """Return `size` zero bytes, uint8, that begin at a memory page.

    numpy's own arrays do not. Some processors copy at half speed into memory that begins 4 to 24 bytes after a page.
    """
    room = np.zeros(size + mmap.PAGESIZE, np.uint8)
    start = -room.ctypes.data % mmap.PAGESIZE
    return room[start : start + size]


def _enlarge_send_buffer(sock: socket.socket) -> None:
    try:
        sock.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, _SEND_BUFFER_BYTES)
    except OSError:  # without CAP_NET_ADMIN net.core.wmem_max holds
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)


def _takes(sock: socket.socket, option: int, value: int) -> bool:
    try:
        sock.setsockopt(SOL_UDP, option, value)
    except OSError:
        return False
    return True


def _integer(data: bytes) -> int:
    (value,) = struct.unpack("=i", data)
    return int(value)


def parse_udp_address(text: str) -> UdpAddress:
    """Read HOST:PORT. Raises PortError unless HOST is a dotted IPv4 address and PORT is 0..65535."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 0xFFFF:
        raise PortError(f"{text!r} is not HOST:PORT with a UDP port 0..65535, as in 127.0.0.1:24677")
    try:
        return UdpAddress(str(ipaddress.IPv4Address(host)), int(port))
    except ValueError as error:
        raise PortError(
            f"{text!r}: {host!r} is not a dotted IPv4 address (names and IPv6 are not supported)"
        ) from error


def _check_bound(number: int, address: UdpAddress, shown_as: UdpAddress | None) -> None:
    bound = ipaddress.IPv4Address(address.ip)
    if bound.is_unspecified:
        if shown_as is None:
            raise PortError(
                f"switch port {number}: {address} means every local address, and a frame needs one:"
                f" bind one address, or add as=IP:UDPPORT"
            )
    elif not is_unicast(int(bound)):
        raise PortError(f"switch port {number}: {address} is not the address of one host: bind a local address")
    if shown_as is not None and (shown_as.port == 0 or not is_unicast(int(ipaddress.IPv4Address(shown_as.ip)))):
        raise PortError(
            f"switch port {number}: as={shown_as} is no address of a frame:"
            f" give one host's IPv4 address and a UDP port 1..65535"
        )
