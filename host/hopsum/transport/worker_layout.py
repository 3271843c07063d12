# SPDX-License-Identifier: Apache-2.0
"""The memory through which Python and the compiled loop of a worker meet: places of words in its arrays."""

from __future__ import annotations

from typing import Final
from zlib import crc32

from hopsum.protocol.retransmit_queue import NO_POSITION
from hopsum.transport.offload import GSO_BYTES_MAX, SEGMENTS_MAX
from hopsum_wire import HOPSUM_BYTES

__all__ = ["GSO_BYTES_MAX", "HOPSUM_BYTES", "NO_POSITION", "SEGMENTS_MAX"]

# `words`, int64[WORDS]: set before a call
FD: Final = 0  # of the socket
WAKER: Final = 1  # eventfd that ends a wait
JOINED: Final = 2  # 1: the kernel says how datagrams were joined (UDP_GRO)
CUTS: Final = 3  # 1: the kernel cuts what is sent together (UDP_SEGMENT)
SLOTS: Final = 4
BASE: Final = 5  # position of slot 0 in round 1
STREAM_END: Final = 6  # the first position that no all-reduce has
OPEN_END: Final = 7  # positions before it may be opened
REDUCES: Final = 8  # rows of `reduces`, in the order of the stream
BUFFER_AT: Final = 9  # address of `buffer`
SOCKET_AT: Final = 10  # address of `socket`
LAYOUT: Final = 11  # FINGERPRINT
MEASURES: Final = 12  # 1: a round trip was measured before (srtt is known)
# ... taken over from the worker and given back
ON_THE_WAY: Final = 13
WINDOW: Final = 14
WINDOW_RESULTS: Final = 15
# ... and found after it
STOP: Final = 16  # one of the STOP_* below
ERRNO: Final = 17  # of the call that failed
REST: Final = 18  # offset in `buffer` of the first datagram that is left to the caller
RECEIVED: Final = 19  # bytes in `buffer`
SEGMENT: Final = 20  # bytes of each datagram in it
NEW: Final = 21  # positions in `fresh`: opened, and not chosen to be sent yet
PENDING: Final = 22  # first and end of `pending`: chosen, and not given to the kernel yet
PENDING_END: Final = 23
BLOCKED: Final = 24  # 1: the kernel had no room for more
NARROW: Final = 25  # 1: the window may have left positions waiting that are not in `fresh`
RESULTS: Final = 26  # counts of this call, from here on
UPDATES: Final = 27
RECEIVES: Final = 28
DATAGRAMS_RECEIVED: Final = 29
BYTES_RECEIVED: Final = 30
SENDS: Final = 31
DATAGRAMS_SENT: Final = 32
BYTES_SENT: Final = 33
WORDS: Final = 34

STOP_TIME: Final = 1  # it is the time of the limit
STOP_WOKEN: Final = 2  # by the eventfd, or by a signal
STOP_DONE: Final = 3  # an all-reduce, or a part of one, has all its results
STOP_REST: Final = 4  # a datagram is not plain
STOP_RECEIVE: Final = 5  # receiving failed
STOP_SEND: Final = 6  # sending failed
STOP_STALE: Final = 7  # the machine code was made for another layout; it did nothing

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

# `reduces`, int64[REDUCES_MAX, REDUCE_WORDS]: all-reduces in progress
FIRST: Final = 0
END: Final = 1
MISSING: Final = 2
UPDATES_AT: Final = 3  # addresses of datagrams, results, contributors and held
RESULTS_AT: Final = 4
CONTRIBUTORS_AT: Final = 5
HELD_AT: Final = 6
UPDATE_BYTES: Final = 7  # of a datagram
RESULT_BYTES: Final = 8
TELL_AT: Final = 9  # the number of missing results at which a part may be complete; 0: at the end
READY: Final = 10  # chunks whose payloads are in the datagrams
OPENS: Final = 11  # 1: chunks may be opened as soon as they are ready (R2)
# ... with the stream of a codec's chunks (hopsum.codec.interface.ChunkStream), else 0
STREAM_AT: Final = 12  # its memory. The first word of it is 1 once `decode` has found an impossible sum
ENCODE_AT: Final = 13  # machine code
DECODE_AT: Final = 14  # machine code, 0: sums are not decoded here
PAYLOADS_AT: Final = 15
TAKEN: Final = 16  # chunks whose sums are decoded
REDUCE_WORDS: Final = 17
REDUCES_MAX: Final = 8
TRAIN_CHUNKS: Final = 32  # encoded, or decoded, between two looks at the socket: some 0.1 ms

HEADER_WORDS: Final = HOPSUM_BYTES // 8

# `socket`, int64[SOCKET_WORDS]: a msghdr (7 words) for each direction, with what it points to
RX: Final = 0
RX_VECTOR: Final = 7  # 2 words
RX_CONTROL: Final = 9  # 3 words, a cmsghdr and an int
TX: Final = 12
TX_CONTROL: Final = 19  # 3 words, a cmsghdr and a uint16
POLL: Final = 22  # 2 pollfd
TIME: Final = 24  # 2 words, a timespec
SOCKET_WORDS: Final = 26

FINGERPRINT: Final = crc32(repr(sorted((name, value) for name, value in globals().items() if name.isupper())).encode())
"""The layout as a number: numba keeps machine code by the date of the kernel's file, and does not see this file."""
