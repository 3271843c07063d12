# SPDX-License-Identifier: Apache-2.0
"""gRPC, which writes nothing to stderr by itself. Every module of hopsum takes `grpc` from here.

gRPC's core would write what a peer sent, a GOAWAY's debug text for example, with its line breaks and control
characters: a stranger could forge lines of a log and give orders to a terminal.
"""

from __future__ import annotations

import os

# Read once, when grpc is imported. A user who looks for a fault sets another value.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc  # noqa: TID251 (the one place)

from hopsum_base.shown import shown

__all__ = ["details", "grpc"]


def details(error: grpc.RpcError) -> str:
    """Return the details of a failed call as one line that a terminal shows and does not obey."""
    return shown(error.details() or "no reason given")
