# SPDX-License-Identifier: Apache-2.0
"""Sends of a link that fail, and their log lines.

The datagrams of a failed send are lost, as in the network, and sent again by the protocol. A lasting failure ends
at a deadline, whose error names the errno.

    state   input                                 next    also
    FINE    a send fails                          FAILS   counted by errno name; one line in the log
    FAILS   a send fails                          FAILS   counted
    FAILS   a send works, CALM_S after the last   FINE    one line in the log
            that failed
    any     a send fails by a DEFECT              same    the error is raised
"""

from __future__ import annotations

import errno
import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from hopsum.protocol.failures import unsent_remedy

DEFECTS: Final = frozenset((errno.EBADF, errno.ENOTSOCK, errno.EFAULT))
"""Mistakes of this program. All else that a kernel or library reports may pass."""
CALM_S: Final = 1.0
_log: Final = logging.getLogger(__name__)


class Outage:
    """The failed sends of one link to one switch: counts them, and logs the start and end of an outage.

    Not thread-safe.

    Args:
        where: names both ends in the log.
        failures: the counts by the errno's name, which `note` increases.
        clock: monotonic seconds.
    """

    def __init__(self, where: str, failures: Counter[str], *, clock: Callable[[], float] = time.monotonic) -> None:
        self.where, self._failures, self._clock = where, failures, clock
        self.since: float | None = None
        """The time of the first send that failed, None while sending works."""
        self._last = 0.0
        self._lost = 0

    def note(self, error: OSError, datagrams: int = 1) -> None:
        """Count a failed system call. The first of an outage logs a WARNING. Raises the error itself if it is a defect.

        Args:
            datagrams: the number of datagrams that are lost.
        """
        if error.errno in DEFECTS:
            raise error
        # scapy and drivers may raise an error without a number, or with one that Python has no name for.
        name, self._last = errno.errorcode.get(error.errno or 0, str(error)), self._clock()
        self._failures[name] += 1
        if self.since is None:
            self.since, self._lost = self._last, 0
            text = f"{name}: {error.strerror or 'no reason given'}{unsent_remedy(name)}"
            _log.warning("%s: sending fails (%s); datagrams are lost and sent again", self.where, text)
        self._lost += datagrams

    def note_sent(self) -> None:
        """Note a send that worked. One second or more after the last failure, log the end of the outage."""
        # A flapping interface lets single datagrams pass: the outage ends after a calm second only, else the log
        # floods.
        if self.since is None or self._clock() - self._last < CALM_S:
            return
        lasted_s = self._last - self.since
        _log.warning("%s: sending works again; it failed for %.1f s, %d datagrams", self.where, lasted_s, self._lost)
        self.since = None
