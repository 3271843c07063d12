# SPDX-License-Identifier: Apache-2.0
"""The memory through which Python and the compiled loop of a worker meet: places of words in its arrays."""

from __future__ import annotations

from typing import Final
from zlib import crc32

from hopsum.protocol.retransmit_queue import NO_POSITION
from hopsum.transport.offload import GSO_BYTES_MAX, SEGMENTS_MAX
from hopsum_wire import HOPSUM_BYTES

__all__ = ["GSO_BYTES_MAX", "HOPSUM_BYTES", "NO_POSITION", "SEGMENTS_MAX"]

# `job`, int64[JOB_WORDS], one for all shards: set before a call
SHARDS: Final = 0
STREAMS: Final = 1  # rows of `streams`, in the order of the stream
POLLS_AT: Final = 2  # address of int64[2 * shards], a pollfd each: of socket and waker of each shard
TIME_AT: Final = 3  # address of a timespec
LAYOUT: Final = 4  # FINGERPRINT
WINDOW_ALL: Final = 5  # slots of all shards
TRAIN: Final = 6  # chunks that are encoded, or decoded, between two looks at the sockets
# ... and found after it
STOP: Final = 7  # one of the STOP_* below
JOB_WORDS: Final = 8

STOP_TIME: Final = 1  # it is the time of the limit
STOP_WOKEN: Final = 2  # by an eventfd, or by a signal
STOP_DONE: Final = 3  # an all-reduce has all its results, or its codes cannot begin here
STOP_REST: Final = 4  # a datagram is not plain
STOP_RECEIVE: Final = 5  # receiving failed
STOP_SEND: Final = 6  # sending failed
STOP_STALE: Final = 7  # the machine code was made for another layout; it did nothing

# `words`, int64[WORDS], of each shard: set before a call
FD: Final = 0  # of the socket
WAKER: Final = 1  # eventfd that ends a wait
JOINED: Final = 2  # 1: the kernel says how datagrams were joined (UDP_GRO)
CUTS: Final = 3  # 1: the kernel cuts what is sent together (UDP_SEGMENT)
SLOTS: Final = 4
BUFFER_AT: Final = 5  # address of `buffer`
SOCKET_AT: Final = 6  # address of `socket`
BASE: Final = 7  # position of slot 0 in round 1
STREAM_END: Final = 8  # the first position that no all-reduce has
REDUCES: Final = 9  # rows of `reduces`, in the order of the stream
# ... taken over from the worker and given back
OPEN_END: Final = 10  # positions before it may be opened
MEASURES: Final = 11  # 1: a round trip was measured (srtt is known)
ON_THE_WAY: Final = 12
WINDOW: Final = 13
WINDOW_RESULTS: Final = 14
# ... and found after it
ENDED: Final = 15  # STOP_REST, STOP_RECEIVE or STOP_SEND, if this shard ended the call
ERRNO: Final = 16  # of the call that failed
REST: Final = 17  # offset in `buffer` of the first datagram that is left to the caller
RECEIVED: Final = 18  # bytes in `buffer`
SEGMENT: Final = 19  # bytes of each datagram in it
NEW: Final = 20  # positions in `fresh`: opened, and not chosen to be sent yet
PENDING: Final = 21  # first and end of `pending`: chosen, and not given to the kernel yet
PENDING_END: Final = 22
BLOCKED: Final = 23  # 1: the kernel had no room for more
NARROW: Final = 24  # 1: the window may have left positions waiting that are not in `fresh`
CAME: Final = 25  # 1: the buffer has datagrams that were not looked at, or there is something to choose
EMPTY: Final = 26  # 1: the socket had nothing more to read, and no wait has said since that it has
RESULTS: Final = 27  # counts of this call, from here on
UPDATES: Final = 28
RECEIVES: Final = 29
DATAGRAMS_RECEIVED: Final = 30
BYTES_RECEIVED: Final = 31
SENDS: Final = 32
DATAGRAMS_SENT: Final = 33
BYTES_SENT: Final = 34
WORDS: Final = 35

# `clocks`, float64[CLOCKS], seconds: set before a call
LIMIT_AT: Final = 0  # the call ends
RTO_MIN: Final = 1
RTO_MAX: Final = 2
RETRANSMIT_MAX: Final = 3
FLUSH_AFTER: Final = 4  # infinite: never
# ... taken over and given back
MEASURED_AT: Final = 5
SRTT: Final = 6
RTTVAR: Final = 7
RTO: Final = 8
HALVED_AT: Final = 9  # infinite: the window is OPEN
NOW: Final = 10  # of the train in work
CLOCKS: Final = 11

# `reduces`, int64[REDUCES_MAX, REDUCE_WORDS], of each shard: all-reduces in progress there
FIRST: Final = 0
END: Final = 1
MISSING: Final = 2
UPDATES_AT: Final = 3  # addresses of datagrams, results, contributors and held
RESULTS_AT: Final = 4
CONTRIBUTORS_AT: Final = 5
HELD_AT: Final = 6
UPDATE_BYTES: Final = 7  # of a datagram
RESULT_BYTES: Final = 8
READY: Final = 9  # chunks whose payloads are in the datagrams
OPENS: Final = 10  # 1: chunks may be opened as soon as they are ready (R2)
STREAM: Final = 11  # row of `streams`
REDUCE_WORDS: Final = 12
REDUCES_MAX: Final = 8

# `streams`, int64[REDUCES_MAX, STREAM_WORDS], one for all shards: the vectors in progress
LEFT: Final = 0  # chunks without a result
CHUNKS: Final = 1
MADE: Final = 2  # chunks whose payloads are in the datagrams
BEGINS: Final = 3  # 1: all shards may open chunks as soon as they are ready (R2)
# ... with the machine code of a codec (hopsum.codec.interface.ChunkStream), else 0
CODES_AT: Final = 4  # its memory. The first word of it is 1 once `decode` has found an impossible sum
ENCODE_AT: Final = 5
DECODE_AT: Final = 6  # 0: sums are not decoded here
PAYLOADS_AT: Final = 7
TAKEN: Final = 8  # chunks whose sums are decoded
SUMS_AT: Final = 9  # addresses of results, contributors and held of all chunks
WHOSE_AT: Final = 10
HERE_AT: Final = 11
# ... and of a vector of codes that begins once the ranges before it are summed, else 0
BEGIN_AT: Final = 12  # 0: begun
RANGES: Final = 13  # first and end of the rows that have its ranges
RANGES_END: Final = 14
SENT_AT: Final = 15  # addresses of the ranges' first payload, as sent, and of the sums in each of those rows
FIRST_AT: Final = 16
REST_AT: Final = 17
BEFORE: Final = 18  # lanes before the ranges
QUIET: Final = 19  # 1: has such ranges. The call does not end when they are summed
STREAM_WORDS: Final = 20
NO_ROW: Final = -1  # in `rows`: the shard has nothing in progress of the vector
TRAIN_CHUNKS: Final = 32  # of one shard: some 0.1 ms
TRAIN_CHUNKS_MAX: Final = 128

HEADER_WORDS: Final = HOPSUM_BYTES // 8

# `socket`, int64[SOCKET_WORDS]: a msghdr (7 words) for each direction, with what it points to
RX: Final = 0
RX_VECTOR: Final = 7  # 2 words
RX_CONTROL: Final = 9  # 3 words, a cmsghdr and an int
TX: Final = 12
TX_CONTROL: Final = 19  # 3 words, a cmsghdr and a uint16
TIME: Final = 22  # 2 words, a timespec
SOCKET_WORDS: Final = 24

ADDRESSES: Final = 19  # of the arrays of each shard, in the order of worker_kernel.WorkerMemory

FINGERPRINT: Final = crc32(repr(sorted((name, value) for name, value in globals().items() if name.isupper())).encode())
"""The layout as a number: numba knows machine code by the kernel's file, and does not see this one."""
