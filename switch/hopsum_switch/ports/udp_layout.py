# SPDX-License-Identifier: Apache-2.0
"""The memory through which Python and the compiled loop of UDP ports meet: places of int64 words in its arrays."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

Serve = Callable[..., None]
"""The compiled `udp_kernel.serve`. Its arguments are the addresses of the arrays in `udp_kernel.Memory`."""

COMPILED_VARIABLE: Final = "HOPSUM_COMPILED"
PORTS: Final = 512
MAX_SEGMENTS: Final = 64
"""The largest number of datagrams of one call. Every kernel with UDP_SEGMENT takes so many."""
MAX_PAYLOAD_BYTES: Final = 65507
"""The largest payload of one call."""
MAX_DATAGRAM_BYTES: Final = 65535
DESTINATIONS: Final = 64
"""The number of addresses whose frames wait together. A frame for one more address makes all of them leave."""

# `loop`, int64[LOOP_WORDS]: set before a call
FD: Final = 0  # of the socket
INGRESS: Final = 1  # number of the port
JOINED: Final = 2  # 1: the kernel says how datagrams were joined
LIMIT: Final = 3  # frames after which the call ends
HELD_BYTES: Final = 4  # of outputs, after which they are sent
RUN: Final = 5  # address of the engine's function, and of its two arguments
STATE: Final = 6
CONTROL: Final = 7
TRAIN_AT: Final = 8  # address of uint8[MAX_DATAGRAM_BYTES], which begins a page
FRAMES_AT: Final = 9  # address of the frames of one train
OUT_AT: Final = 10  # address of the engine's outputs
SOCKET_AT: Final = 11  # address of `socket`
PARTS_AT: Final = 12  # address of `parts`
# ... and found after it
TRAIN: Final = 13  # frames of the last train
NEXT: Final = 14  # the first output that is neither sent nor dropped
NEXT_AT: Final = 15  # and where it begins
REST: Final = 16  # 1: outputs from NEXT on, and frames of the train that have not run, are left to the caller
RECEIVED: Final = 17
RECEIVED_BYTES: Final = 18
PROCESSED: Final = 19  # frames that the engine has run
BUSY_NS: Final = 20  # in engine and sending
GROUPS: Final = 21  # in use
# Set before a call: a descriptor. The call waits for more frames until something can be read there; -1: it does not
# wait.
WAKER: Final = 22
LOOP_WORDS: Final = 23

# `socket`, int64[SOCKET_WORDS]: a msghdr (7 words) for each direction, with what it points to
RX: Final = 0
RX_VECTOR: Final = 7  # 2 words
RX_NAME: Final = 9  # 2 words, a sockaddr_in
RX_CONTROL: Final = 11  # 3 words, a cmsghdr and an int
TX: Final = 14
TX_NAME: Final = 21
TX_CONTROL: Final = 23  # 3 words, a cmsghdr and a uint16
CLOCK: Final = 26  # 2 words, a timespec
HEAD: Final = 28  # the headers in front of a payload
HEAD_WORDS: Final = 6
POLL: Final = 34  # 2 words, a pollfd each: the socket, the waker
SOCKET_WORDS: Final = 36

# `egress`, int64[PORTS, EGRESS_WORDS]
EGRESS_FD: Final = 0  # of the socket; -1: no UDP port
MOST: Final = 1  # datagrams that one call may send
SENT: Final = 2
SENT_BYTES: Final = 3
QUEUE_FULL: Final = 4
SEND_ERROR: Final = 5
TOGETHER_ERRNO: Final = 6  # why the kernel refused datagrams together that left one by one, or 0
ALONE_ERRNO: Final = 7  # why it refused those of SEND_ERROR
EGRESS_WORDS: Final = 8

# `groups`, int64[DESTINATIONS, GROUP_WORDS]: frames that leave together
PORT: Final = 0
ADDRESS: Final = 1  # IPv4 address << 16 | UDP port
COUNT: Final = 2
SIZE: Final = 3  # payload bytes of each but the last
BYTES: Final = 4  # of the frames
GROUP_WORDS: Final = 5
# `parts`, int64[DESTINATIONS, MAX_SEGMENTS, 2]: address and bytes of each payload; `sizes`: bytes of each frame


def is_wanted() -> bool:
    """Return whether the environment leaves compiled loops on: HOPSUM_COMPILED=0 turns them off."""
    return os.environ.get(COMPILED_VARIABLE) != "0"
