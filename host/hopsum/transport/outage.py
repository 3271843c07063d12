# SPDX-License-Identifier: Apache-2.0
"""Sends that fail for a while: what they would have sent is lost, as on the way, and sent again by the protocol.

state   input                                 next    also
FINE    a send fails as in PASSING            FAILS   counted by errno name; one line in the log
FAILS   a send fails as in PASSING            FAILS   counted
FAILS   a send works, CALM_S after the last   FINE    one line in the log
        that failed
any     a send fails otherwise                same    the error is raised: it is a defect, and does not pass
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

PASSING: Final = frozenset({
    errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EHOSTDOWN, errno.ENONET, errno.EPERM, errno.EACCES,
    errno.ENOBUFS, errno.ENOMEM, errno.EAGAIN, errno.ECONNREFUSED, errno.EADDRNOTAVAIL,
})  # fmt: skip
"""No route, no interface, no neighbour, a firewall's refusal, a full queue, an ICMP answer to an earlier datagram."""
CALM_S: Final = 1.0
_log: Final = logging.getLogger(__name__)


class Outage:
    """Failed sends of one link to one switch. Not thread-safe.

    Args:
        where: names both ends in the log.
        failures: is counted in, by the errno's name.
        clock: seconds that do not go back.
    """

    def __init__(self, where: str, failures: Counter[str], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._where, self._failures, self._clock = where, failures, clock
        self._since: float | None = None
        self._last = 0.0
        self._lost = 0

    def note(self, error: OSError, datagrams: int = 1) -> None:
        """Count what a failed system call would have moved. Raises the error itself where it does not pass."""
        if error.errno not in PASSING:
            raise error
        name, self._last = errno.errorcode[error.errno], self._clock()
        self._failures[name] += 1
        if self._since is None:
            self._since, self._lost = self._last, 0
            text = os.strerror(error.errno)
            _log.warning("%s: sending fails (%s: %s); datagrams are lost and sent again", self._where, name, text)
        self._lost += datagrams

    def note_sent(self) -> None:
        """Note a send that worked."""
        if self._since is None or self._clock() - self._last < CALM_S:
            return
        lasted_s = self._last - self._since
        _log.warning("%s: sending works again; it failed for %.1f s, %d datagrams", self._where, lasted_s, self._lost)
        self._since = None
