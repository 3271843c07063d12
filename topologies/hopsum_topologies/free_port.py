# SPDX-License-Identifier: Apache-2.0
"""Ports for processes that need a port number before they start and cannot inherit a socket."""

from __future__ import annotations

import random
import socket
from contextlib import suppress
from typing import Final

from hopsum_topologies.errors import TopologyError

PORTS: Final = range(12_000, 24_000)
"""The candidate ports. They are below the ephemeral ports of Linux and macOS, which another socket could take first."""
_ATTEMPTS: Final = 1000
_random: Final = random.SystemRandom()


def free_port(kind: socket.SocketKind = socket.SOCK_STREAM, host: str = "127.0.0.1") -> int:
    """Return a port that no socket of this thread's network namespace is bound to now.

    Raises:
        TopologyError: all that were tried are taken, or the host is not one of this namespace.
    """
    for port in _random.sample(PORTS, _ATTEMPTS):
        with socket.socket(socket.AF_INET, kind) as probe, suppress(OSError):
            probe.bind((host, port))
            return port
    raise TopologyError(f"{_ATTEMPTS} ports of {host} between {PORTS.start} and {PORTS.stop} cannot be bound to")
