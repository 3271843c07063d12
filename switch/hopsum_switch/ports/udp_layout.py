# SPDX-License-Identifier: Apache-2.0
"""The memory through which Python and the compiled loop of UDP ports meet: records with named fields."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from hopsum_base.kernel_structs import ControlMessage, IoVector, MessageHeader, PollFd, SocketAddress, Timespec
from hopsum_base.records import Address, Bool, Int64, Record, record

Serve = Callable[[int], None]
"""The compiled `udp_kernel.serve`. Its argument is the address of a `PortsLoopState`."""

COMPILED_VARIABLE: Final = "HOPSUM_COMPILED"
PORTS: Final = 512
MAX_SEGMENTS: Final = 64
"""The largest number of datagrams of one call. Every kernel with UDP_SEGMENT takes so many."""
MAX_PAYLOAD_BYTES: Final = 65507
"""The largest payload of one call."""
MAX_DATAGRAM_BYTES: Final = 65535
DESTINATIONS: Final = 64
"""The number of addresses whose frames wait together. A frame for one more address makes all of them leave."""


@record
class PortsLoopState(Record):
    """The state of one loop. The engine's control block has the frames of a train, and the outputs."""

    __slots__ = ()
    # Set once.
    limit: Int64
    """The number of received frames after which the call ends."""
    held_bytes: Int64
    """The number of bytes of outputs after which they are sent."""
    train: Address
    """Of uint8[MAX_DATAGRAM_BYTES], which begins a page."""
    egresses: Address
    """Of `Egress[PORTS]`."""
    groups: Address
    """Of `Group[DESTINATIONS]`."""
    parts: Address
    """Of `IoVector[DESTINATIONS, MAX_SEGMENTS]`: each payload."""
    sizes: Address
    """Of int64[DESTINATIONS, MAX_SEGMENTS]: bytes of each frame."""
    receive: MessageHeader
    receive_address: Address
    receive_vector: IoVector
    receive_control: ControlMessage
    sender: SocketAddress
    send: MessageHeader
    send_address: Address
    send_control: ControlMessage
    receiver: SocketAddress
    clock: Timespec
    clock_address: Address
    socket_poll: PollFd
    waker_poll: PollFd
    """Directly after `socket_poll`: both are one array for ppoll."""
    polls_address: Address
    # Set before a call.
    fd: Int64
    """Of the socket."""
    ingress: Int64
    """The number of the port."""
    has_joined: Bool
    """Linux says how datagrams were joined (UDP_GRO)."""
    waker: Int64
    """A descriptor. The call waits for more frames until something can be read there. -1: it does not wait."""
    head: Address
    """Of uint8[HEADERS_BYTES]: the port's headers of a datagram. The loop writes sender, lengths and checksum."""
    run: Address
    """Of the engine's function, and of its two arguments."""
    state: Address
    control: Address
    # Found after a call.
    train_count: Int64
    """Frames of the last train."""
    next: Int64
    """The first output that is neither sent nor dropped."""
    next_at: Int64
    """Its offset in the outputs."""
    has_rest: Bool
    """Outputs from `next` on, and frames of the train that have not run, are left to the caller."""
    received: Int64
    received_bytes: Int64
    processed: Int64
    """Frames that the engine has run."""
    busy_ns: Int64
    """The time in the engine and in sending, in nanoseconds."""
    group_count: Int64
    """Groups in use."""


@record
class Egress(Record):
    """An egress port of the loop: its socket, its limit, and its counts since Python last read them."""

    __slots__ = ()
    fd: Int64
    """The descriptor of the socket. -1: no UDP port."""
    most: Int64
    """Datagrams that one call may send."""
    # Counts since Python took them last.
    sent: Int64
    sent_bytes: Int64
    queue_full: Int64
    send_error: Int64
    together_errno: Int64
    """The error of Linux for datagrams together, which then left one by one, or 0."""
    alone_errno: Int64
    """The error of Linux for those of `send_error`, or 0."""


@record
class Group(Record):
    """Frames that leave together, to one address from one port."""

    __slots__ = ()
    port: Int64
    address: Int64
    """IPv4 address << 16 | UDP port."""
    count: Int64
    size: Int64
    """Payload bytes of each but the last."""
    bytes: Int64
    """The number of bytes of the frames, headers included."""


def compiled_loops_enabled() -> bool:
    """Return False if the environment has HOPSUM_COMPILED=0, which turns compiled loops off, else True."""
    return os.environ.get(COMPILED_VARIABLE) != "0"
