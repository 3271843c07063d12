# SPDX-License-Identifier: Apache-2.0
"""Structs that compiled loops pass to 64-bit Linux: poll(2), clock_gettime(2), sendmsg(2), cmsg(3), ip(7)."""

from __future__ import annotations

from hopsum_base.records import Address, Int16, Int32, Int64, Record, record


@record
class PollFd(Record):
    """struct pollfd of poll(2): a descriptor, the events to wait for, and those that came."""

    __slots__ = ()
    fd: Int32
    events: Int16
    revents: Int16


@record
class Timespec(Record):
    """struct timespec: a time of a clock in seconds and nanoseconds."""

    __slots__ = ()
    seconds: Int64
    nanoseconds: Int64


@record
class IoVector(Record):
    """struct iovec: a run of memory to send from or to receive into."""

    __slots__ = ()
    address: Address
    bytes: Int64


@record
class MessageHeader(Record):
    """struct msghdr of sendmsg(2): the peer's address, runs of memory, and control messages."""

    __slots__ = ()
    name: Address
    name_bytes: Int64
    vectors: Address
    vector_count: Int64
    control: Address
    control_bytes: Int64
    flags: Int64


@record
class ControlMessage(Record):
    """struct cmsghdr, and the one number behind it: a uint16 (UDP_SEGMENT), or an int (UDP_GRO)."""

    __slots__ = ()
    bytes: Int64
    level: Int32
    kind: Int32
    value: Int32
    padding: Int32


@record
class SocketAddress(Record):
    """struct sockaddr_in. Port and address are in the order of the network."""

    __slots__ = ()
    family: Int16
    port: Int16
    address: Int32
    padding: Int64
