# SPDX-License-Identifier: Apache-2.0
"""gRPC, which writes nothing to stderr by itself. Every module of hopsum takes `grpc` from here.

gRPC's core would write what a peer sent, a GOAWAY's debug text for example, with its line breaks and control
characters: a stranger could forge lines of a log and give orders to a terminal.
"""

from __future__ import annotations

import os
from typing import Final

# Read once, when grpc is imported. A user who looks for a fault sets another value.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc  # noqa: TID251 (the one place)

from hopsum_base.shown import escape_controls

__all__ = ["SERVER_OPTIONS", "STREAMS_MAX", "details", "grpc"]

STREAMS_MAX: Final = 64
"""The calls of one connection that a server keeps at a time. Further ones wait at hopsum's clients."""
SERVER_OPTIONS: Final = (
    # With SO_REUSEPORT a second server at an address would get half of the calls instead of an error.
    ("grpc.so_reuseport", 0),
    # A call that is opened and reset at once counts until its handler has run. Without a bound the calls of one
    # connection fill the server's queue, and gRPC cancels the calls of others (HTTP/2 rapid reset).
    ("grpc.max_concurrent_streams", STREAMS_MAX),
)


def details(error: grpc.RpcError) -> str:
    """Return the details of a failed call, or "no reason given", as one line with control characters escaped."""
    return escape_controls(error.details() or "no reason given")
