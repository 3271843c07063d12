# SPDX-License-Identifier: Apache-2.0
"""Ports for processes that need a port number before they start and cannot inherit a socket."""

from __future__ import annotations

import socket
from collections import deque
from contextlib import suppress
from typing import Final

from hopsum_base.own_random import OWN_RANDOM
from hopsum_topologies.errors import TopologyError

candidates = range(12_000, 24_000)
"""The ports to choose from. They are below the ephemeral ports of Linux and macOS, which another socket could take."""
_ATTEMPTS: Final = 1000
_returned: Final[deque[int]] = deque(maxlen=500)
"""The last ports that were returned. Their callers may not have bound to them yet."""


def free_port(kind: socket.SocketKind = socket.SOCK_STREAM, host: str = "127.0.0.1") -> int:
    """Return a port that no socket of this thread's network namespace is bound to now.

    It is none of the last 500 that this process was given. Another process can be given the same port, unless it has
    other `candidates`.

    Raises:
        TopologyError: all that were tried are taken, or the host is not one of this namespace.
    """
    # SystemRandom: forked processes with a copied generator would all choose the same ports.
    for port in OWN_RANDOM.sample(candidates, _ATTEMPTS):
        if port in _returned:
            continue
        with socket.socket(socket.AF_INET, kind) as probe, suppress(OSError):
            probe.bind((host, port))
            _returned.append(port)
            return port
    raise TopologyError(
        f"none of {_ATTEMPTS} ports of {host} between {candidates.start} and {candidates.stop} can be bound to"
    )
