# SPDX-License-Identifier: Apache-2.0
"""The memory through which Python and the compiled loop of a worker meet: records with named fields.

One `LoopState` has the addresses of a `ShardState` for each shard and of a `VectorState` for each vector in progress.
A `ShardState` has those of the worker's own arrays and of a `ReduceState` for each all-reduce in progress there.
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

from hopsum.protocol.congestion import DEVIATIONS, GAIN, VARIANCE_GAIN
from hopsum.protocol.retransmit_queue import NO_POSITION
from hopsum.transport.offload import GSO_BYTES_MAX, SEGMENTS_MAX
from hopsum_base.kernel_structs import ControlMessage, IoVector, MessageHeader, PollFd, Timespec
from hopsum_base.records import Address, Bool, Float64, Int64, Record, UInt64, record
from hopsum_base.records import record_dtype as _dtype
from hopsum_wire import HOPSUM_BYTES

__all__ = ["DEVIATIONS", "GAIN", "GSO_BYTES_MAX", "HOPSUM_BYTES", "NO_POSITION", "SEGMENTS_MAX", "VARIANCE_GAIN"]

REDUCES_MAX: Final = 8
"""The most vectors in progress, and so all-reduces of a shard."""
NO_ROW: Final = -1
"""The shard has nothing in progress of the vector."""
HEADER_WORDS: Final = HOPSUM_BYTES // 8
BATCH_CHUNKS: Final = 32
"""Of one shard: some 0.1 ms of codec work between two looks at the sockets."""
BATCH_CHUNKS_MAX: Final = 128

STOP_TIME: Final = 1
"""The time limit has passed."""
STOP_WOKEN: Final = 2
"""An eventfd or a signal ended the wait."""
STOP_DONE: Final = 3
"""An all-reduce has all its results, or its codes cannot begin here."""
STOP_REST: Final = 4
"""A datagram is not plain."""
STOP_RECEIVE: Final = 5
"""Receiving failed."""
STOP_SEND: Final = 6
"""Sending failed."""
STOP_STALE: Final = 7
"""The machine code was made for another layout; it did nothing."""


@record
class ShardPolls(Record):
    """The poll entries of one shard: its socket and its eventfd."""

    __slots__ = ()
    socket: PollFd
    waker: PollFd


@record
class LoopState(Record):
    """The record of one call of the compiled loop, for all shards. Python sets all fields but `stop` before a call."""

    __slots__ = ()
    layout: Int64
    """FINGERPRINT"""
    shard_count: Int64
    shards: Address
    """Of `ShardState`, one for each shard."""
    vector_count: Int64
    vectors: Address
    """Of `VectorState`, in the order of the stream."""
    rows: Address
    """Of int64[REDUCES_MAX, shards]: for each vector its row among a shard's all-reduces, or NO_ROW."""
    polls: Address
    """Of `ShardPolls`, one for each shard."""
    wait: Timespec
    """Of ppoll."""
    wait_address: Address
    window_all: Int64
    """Slots of all shards."""
    batch_chunks: Int64
    """The chunks that are encoded, or decoded, between two looks at the sockets."""
    stop: Int64
    """Set by a call: one of the STOP_* above."""


@record
class ShardState(Record):
    """One shard's worker and socket, as the compiled loop sees them. Comments say when each field is set."""

    __slots__ = ()
    # Set once.
    fd: Int64
    """Of the socket."""
    waker: Int64
    """The eventfd that ends a wait."""
    gro: Bool
    """The operating system says how datagrams were joined (UDP_GRO)."""
    slots: Int64
    buffer: Address
    """Of the receive buffer."""
    reduces: Address
    """Of `ReduceState[REDUCES_MAX]`, the all-reduces in progress in the order of the stream."""
    patterns: Address
    """Of uint64[REDUCES_MAX, 2 * HEADER_WORDS]: for each of them its RESULTs' header, and which bits of it count."""
    fresh: Address
    """Of int64[at least slots, and the datagrams of a receive]: positions opened, and not chosen to be sent yet."""
    pending: Address
    """Of int64[2 * slots]: positions chosen, and not sent yet."""
    vectors: Address
    """Of `IoVector[SEGMENTS_MAX]`, for the datagrams of a send."""
    receive: MessageHeader
    receive_address: Address
    receive_vector: IoVector
    receive_control: ControlMessage
    send: MessageHeader
    send_address: Address
    send_control: ControlMessage
    clock: Timespec
    clock_address: Address
    # Set with each generation.
    open: Address
    """Of the arrays of the worker's RetransmitQueue, [slots] each."""
    sent: Address
    first_sent_at: Address
    timeout_at: Address
    due_at: Address
    open_position: Address
    """Of the array of that name of the worker's StreamState."""
    everybody: UInt64
    """The bitmap of all workers."""
    rto_min_s: Float64
    rto_max_s: Float64
    retransmit_max_s: Float64
    flush_after_s: Float64
    """Infinite: never."""
    # Set before each call.
    limit_at: Float64
    """The time at which the call ends. The compiled loop lowers it to the timers that it sets."""
    gso: Bool
    """The operating system cuts one send into datagrams (UDP_SEGMENT)."""
    base: Int64
    """The position of slot 0 in round 1."""
    stream_end: Int64
    """The first position that no all-reduce has."""
    reduce_count: Int64
    # Set before each call, and taken over into the worker after it.
    open_end: Int64
    """Positions before it may be opened."""
    in_flight: Int64
    window: Int64
    window_results: Int64
    halved_at: Float64
    """Infinite: the window is OPEN."""
    measured_at: Float64
    srtt_s: Float64
    """Infinite: no round trip was measured."""
    rttvar_s: Float64
    rto_s: Float64
    window_held: Bool
    """The window may have left positions waiting that are not in `fresh`."""
    # From one call to the next.
    rest: Int64
    """The offset in the buffer of the first datagram that nobody has taken."""
    received: Int64
    """Bytes in the buffer."""
    segment: Int64
    """Bytes of each datagram in it."""
    # Found after a call.
    now: Float64
    """The time of the last batch."""
    ended: Int64
    """STOP_REST, STOP_RECEIVE or STOP_SEND, if this shard ended the call."""
    errno: Int64
    """Of the system call that failed."""
    fresh_count: Int64
    pending_first: Int64
    pending_end: Int64
    is_blocked: Bool
    """The socket had no room for more."""
    has_work: Bool
    """The buffer has datagrams that were not looked at, or there is something to choose."""
    is_empty: Bool
    """The socket had nothing more to read, and no wait has said since that it has."""
    results: Int64
    """From here on: counts of this call."""
    updates: Int64
    receives: Int64
    datagrams_received: Int64
    bytes_received: Int64
    sends: Int64
    datagrams_sent: Int64
    bytes_sent: Int64


@record
class ReduceState(Record):
    """One all-reduce in progress at a shard: the fields of `AllReduce`, and the addresses of its arrays."""

    __slots__ = ()
    first: Int64
    end: Int64
    missing: Int64
    datagrams: Address
    results: Address
    contributors: Address
    held: Address
    update_bytes: Int64
    """Of a datagram."""
    result_bytes: Int64
    ready: Int64
    """Chunks whose payloads are in the datagrams."""
    may_open: Bool
    """Chunks may be opened as soon as they are ready (R2)."""
    vector: Int64
    """The row of its vector."""


@record
class VectorState(Record):
    """One vector in progress, whose chunks are spread over the shards."""

    __slots__ = ()
    missing: Int64
    """Chunks without a result."""
    chunks: Int64
    encoded: Int64
    """Chunks whose payloads are in the datagrams."""
    may_open: Bool
    """All shards may open chunks as soon as they are ready (R2)."""
    # With the machine code of a codec (hopsum.codec.interface.ChunkStream), else 0.
    codec: Address
    """Of its `ChunkRun`."""
    encode: Address
    decode: Address
    """0: sums are not decoded here."""
    payloads: Address
    taken: Int64
    """Chunks whose sums are decoded."""
    results: Address
    """Of results, contributors and held of all chunks."""
    contributors: Address
    held: Address
    # A vector of codes that begins once the ranges before it are summed, else 0.
    begin: Address
    """0: begun."""
    ranges_first: Int64
    """First and end of the rows of the vectors that have its ranges."""
    ranges_end: Int64
    ranges_sent: Address
    """Of the ranges' first payload, as sent."""
    first_sums: Address
    """Of the sums in the first of those rows, and in the last."""
    rest_sums: Address
    lanes_before: Int64
    """Lanes before the ranges."""
    is_ranges: Bool
    """Another vector needs these ranges here: the call does not end when they are summed."""


_CONSTANTS = sorted((name, value) for name, value in globals().items() if name.isupper() and name[0] != "_")
_RECORDS = [_dtype(each).descr for each in (LoopState, ShardState, ReduceState, VectorState, ShardPolls, IoVector)]
FINGERPRINT: Final = crc32(repr((_CONSTANTS, _RECORDS)).encode())
"""The layout as a number: numba knows machine code by the kernel's file, and does not see this one."""
