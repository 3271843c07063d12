# SPDX-License-Identifier: Apache-2.0
"""A check of the address of a worker's socket, which may leave its host: a DHCP lease ends, an interface is removed."""

from __future__ import annotations

import errno
import logging
import socket
from typing import Final

SILENT_S: Final = 5.0
"""Seconds without a datagram after which the address is checked."""
AGAIN_S: Final = 2.0
_told: Final = set[tuple[str, str]]()
"""The workers whose address is gone, with the address. One line for all sockets of a worker, one for each shard."""
_log: Final = logging.getLogger(__name__)


class OwnAddress:
    """Checks whether a socket's address is still one of this host's, while no datagram comes. For one thread.

    Args:
        ip: IPv4 address of the socket.
        who: names the worker in the log.
    """

    def __init__(self, ip: str, who: str) -> None:
        self.ip, self._who = ip, who
        self._received = -1
        self._look_at = 0.0
        self._is_gone = False
        # A socket may be in another network namespace than this thread, which then knows nothing of its address.
        self._is_known = is_own(ip)

    def is_found_gone(self, received: int, now: float) -> bool:
        """Check the address if a check is due, and return whether this check did not find it. Log each change.

        A check is due SILENT_S after the last datagram, then every AGAIN_S. False between checks.

        Args:
            received: the number of datagrams that the socket has received so far.
            now: monotonic seconds.
        """
        if received != self._received:
            self._received, self._look_at = received, now + SILENT_S
        if not self._is_known or now < self._look_at:
            return False
        self._look_at = now + AGAIN_S
        was_gone, self._is_gone = self._is_gone, not is_own(self.ip)
        if self._is_gone and not was_gone and (self._who, self.ip) not in _told:
            _told.add((self._who, self.ip))
            _log.warning(
                "%s: nothing came for %g s, and %s is no longer an address of this host: sums wait until it is again. "
                "Give it back (ip addr add %s/... dev INTERFACE), or start this rank again with the new address",
                self._who, SILENT_S, self.ip, self.ip,
            )  # fmt: skip
        elif was_gone and not self._is_gone and (self._who, self.ip) in _told:
            _told.discard((self._who, self.ip))
            _log.warning("%s: %s is an address of this host again", self._who, self.ip)
        return self._is_gone


def is_own(ip: str) -> bool:
    """Say whether an IPv4 address is one of this host's, in the calling thread's network namespace."""
    # The kernel's own test: it also knows that all of 127.0.0.0/8 is here.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((ip, 0))
        except OSError as error:
            return error.errno != errno.EADDRNOTAVAIL
    return True
