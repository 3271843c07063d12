# SPDX-License-Identifier: Apache-2.0
"""Ports over network interfaces: raw AF_PACKET sockets, every frame of an Ethernet interface both ways. Needs root.

The kernel hands over frames as they travel inside the machine, which is not always as they look on a wire::

  VLAN tag taken out        put back in front of the frame's type
  checksum left to finish   finished here: a local sender (the other end of a veth, say) with transmit checksum
  (partial checksum)        offload stores the pseudo header's sum only and expects a device to do the rest
  segmentation left to do   dropped, counted as `segmentation_offload`, and logged once: one "frame" holds the data
                            of many packets, which the program cannot parse. Switch the offload off at the sender
                            (`ethtool -K IF tso off gso off tx-udp-segmentation off`) and merging at the receiver
                            (`ethtool -K IF gro off`)

Linux describes this as a struct virtio_net_hdr before every frame (PACKET_VNET_HDR) and as
auxiliary data (PACKET_AUXDATA). Frames that this machine sends on the interface are not received, the switch's own
among them. The interface keeps its addresses, and the kernel still answers on them: give it none.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import socket
import struct
from typing import Any

from hopsum_switch.ports.port import RECEIVE_BATCH, Port, PortCounters, PortError

_log = logging.getLogger("hopsum_switch.ports")

# The longest packet of the Internet protocols, with Ethernet header and VLAN tag.
MAX_FRAME_BYTES = 65536 + 18
_RECEIVE_BUFFER_BYTES = 4 << 20

# linux/if_ether.h, linux/if_packet.h, linux/if_arp.h, linux/if.h, linux/sockios.h, linux/socket.h
_ETH_P_ALL = 0x0003
_SOL_PACKET = 263
_PACKET_ADD_MEMBERSHIP, _PACKET_STATISTICS, _PACKET_AUXDATA = 1, 6, 8
_PACKET_VNET_HDR, _PACKET_IGNORE_OUTGOING = 15, 23
_PACKET_MR_PROMISC = 1
_TP_STATUS_VLAN_VALID, _TP_STATUS_VLAN_TPID_VALID = 0x10, 0x40
_AUXDATA = struct.Struct("=IIIHHHH")  # status, length, captured, mac, net, VLAN tag, VLAN type
_STATISTICS = struct.Struct("=II")
_MEMBERSHIP = struct.Struct("=iHH8s")
_SO_RCVBUFFORCE = 33
_ARPHRD_ETHER = 1
_IFF_UP = 1
_SIOCGIFFLAGS, _SIOCGIFHWADDR = 0x8913, 0x8927
_NAME_BYTES = 15

# linux/virtio_net.h
_VNET = struct.Struct("=BBHHHH")  # flags, segmentation, header bytes, segment bytes, checksum start and offset
_VNET_NEEDS_CSUM = 1
_NOTHING_LEFT_TO_DO = bytes(_VNET.size)

_VLAN_TYPE = 0x8100
_ADDRESSES_BYTES = 12

_SEND_REASONS = {
    errno.EAGAIN: "queue_full",
    errno.ENOBUFS: "queue_full",
    errno.EMSGSIZE: "longer_than_mtu",
    errno.EINVAL: "too_short",
    errno.ENETDOWN: "interface_down",
    errno.ENXIO: "interface_gone",
    errno.ENODEV: "interface_gone",
}


class InterfacePort(Port):
    """A port over one network interface of the namespace in which it was opened."""

    def __init__(self, interface: str) -> None:
        """Open the port.

        Raises PortError: there is no such interface, it is down or not Ethernet, or root is needed.
        """
        self.counters = PortCounters()
        self._interface = interface
        self._buffer = bytearray(_VNET.size + MAX_FRAME_BYTES)
        self._warned = False
        self._sock = _open(interface)

    def fileno(self) -> int | None:
        """Return the socket's descriptor."""
        return self._sock.fileno()

    def receive(self) -> list[bytes]:
        frames: list[bytes] = []
        for _ in range(RECEIVE_BATCH):
            try:
                received = self._sock.recvmsg_into([self._buffer], socket.CMSG_SPACE(_AUXDATA.size))
            except OSError as error:
                if error.errno == errno.EINVAL:  # a kind of segmentation that virtio_net_hdr has no number for
                    # The length of such a frame is unknown.
                    self._refuse_segments(0)
                    continue
                break  # nothing waits, or the interface has gone down: it may come back
            frame = self._frame(*received)
            if frame is not None:
                self.counters.count_received(frame)
                frames.append(frame)
        return frames

    def send(self, frame: bytes) -> None:
        try:
            self._sock.sendmsg([_NOTHING_LEFT_TO_DO, frame])
        except OSError as error:
            self.counters.dropped[_SEND_REASONS.get(error.errno or 0, "send_error")] += 1
        else:
            self.counters.count_sent(frame)

    def close(self) -> None:
        """Close the socket. The interface leaves promiscuous mode with it."""
        self._sock.close()

    def describe(self) -> dict[str, Any]:
        """Return kind and interface. Count the frames that Linux dropped for a full buffer since the last call."""
        if self._sock.fileno() >= 0:
            _, lost = _STATISTICS.unpack(self._sock.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, _STATISTICS.size))
            if lost:
                self.counters.dropped["receive_buffer_full"] += lost
        return {"kind": "interface", "interface": self._interface}

    def _frame(
        self, size: int, auxiliary: list[tuple[int, int, bytes]], flags: int, address: tuple[Any, ...]
    ) -> bytes | None:
        if address[2] == socket.PACKET_OUTGOING:  # where the kernel is too old for PACKET_IGNORE_OUTGOING
            return None
        todo, segmentation, _, segment_bytes, start, offset = _VNET.unpack_from(self._buffer)
        if segmentation:
            self._refuse_segments(size - _VNET.size, segment_bytes)
            return None
        if flags & socket.MSG_TRUNC:
            self.counters.dropped["too_long"] += 1
            return None
        # A copy: the buffer receives the next frame.
        frame = self._buffer[_VNET.size : size]
        if todo & _VNET_NEEDS_CSUM:
            finish_checksum(frame, start, offset)
        for level, kind, data in auxiliary:
            if (level, kind) == (_SOL_PACKET, _PACKET_AUXDATA):
                _put_tag_back(frame, data)
        return bytes(frame)

    def _refuse_segments(self, frame_bytes: int, segment_bytes: int = 0) -> None:
        self.counters.dropped["segmentation_offload"] += 1
        if not self._warned:
            self._warned = True
            _log.warning(
                "interface %s: dropping frames that are yet to be cut into packets (this one has %d bytes, for packets"
                " of %d): switch segmentation offloads off at the sender (ethtool -K IF tso off gso off"
                " tx-udp-segmentation off) and GRO off here (ethtool -K %s gro off)",
                self._interface,
                frame_bytes,
                segment_bytes,
                self._interface,
            )


def finish_checksum(frame: bytearray, start: int, offset: int) -> None:
    """Finish, in place, an Internet checksum that covers `frame` from byte `start` to its end.

    Its field, `offset` bytes after `start`, holds the sum of the pseudo header. It gets the checksum, never 0, which
    means "none" in UDP.
    """
    field, covered = start + offset, frame[start:]
    if len(covered) % 2:
        covered.append(0)
    # 2**16 is 1 modulo 2**16 - 1, so the remainder adds all 16-bit words with end-around carry.
    checksum = 0xFFFF - int.from_bytes(covered, "big") % 0xFFFF
    frame[field : field + 2] = checksum.to_bytes(2, "big")


def _put_tag_back(frame: bytearray, auxdata: bytes) -> None:
    status, *_, tag, kind = _AUXDATA.unpack_from(auxdata)
    if status & _TP_STATUS_VLAN_VALID:
        kind = kind if status & _TP_STATUS_VLAN_TPID_VALID else _VLAN_TYPE
        frame[_ADDRESSES_BYTES:_ADDRESSES_BYTES] = struct.pack("!HH", kind, tag)


def _open(interface: str) -> socket.socket:
    try:
        if len(interface.encode()) > _NAME_BYTES:
            raise OSError("the name is too long")
        index = socket.if_nametoindex(interface)
    except OSError as error:
        known = ", ".join(sorted(name for _, name in socket.if_nameindex()))
        raise PortError(f"there is no interface {interface!r} in this network namespace; there are: {known}") from error
    try:
        # Protocol 0: nothing arrives before the socket is bound to its interface.
        sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    except PermissionError as error:
        raise PortError(f"opening interface {interface} needs root (CAP_NET_RAW): {error.strerror}") from error
    try:
        _check(interface, sock)
        _configure(sock, index)
        sock.bind((interface, _ETH_P_ALL))
    except OSError as error:
        sock.close()
        raise PortError(f"interface {interface} cannot be opened: {error.strerror}") from error
    except PortError:
        sock.close()
        raise
    return sock


def _check(interface: str, sock: socket.socket) -> None:
    request = struct.pack("16s16x", interface.encode())
    (kind,) = struct.unpack_from("=H", fcntl.ioctl(sock, _SIOCGIFHWADDR, request), 16)
    if kind != _ARPHRD_ETHER:
        raise PortError(f"interface {interface} is not Ethernet (its hardware type is {kind}): choose another")
    (flags,) = struct.unpack_from("=H", fcntl.ioctl(sock, _SIOCGIFFLAGS, request), 16)
    if not flags & _IFF_UP:
        raise PortError(f"interface {interface} is down: ip link set {interface} up")


def _configure(sock: socket.socket, index: int) -> None:
    sock.setblocking(False)
    sock.setsockopt(_SOL_PACKET, _PACKET_AUXDATA, 1)
    sock.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)
    membership = _MEMBERSHIP.pack(index, _PACKET_MR_PROMISC, 0, b"")
    sock.setsockopt(_SOL_PACKET, _PACKET_ADD_MEMBERSHIP, membership)
    with contextlib.suppress(OSError):  # since Linux 4.20; before, `_frame` sorts them out
        sock.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
    try:
        sock.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _RECEIVE_BUFFER_BYTES)
    except PermissionError:  # without CAP_NET_ADMIN the kernel's limit holds
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
