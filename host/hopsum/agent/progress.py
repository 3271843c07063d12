# SPDX-License-Identifier: Apache-2.0
"""A worker's log lines about missing results: the ranks that are waited for, and a switch that is unreachable."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Final

from hopsum.notice import AFTER_S, WaitMonitor
from hopsum.transport.shard import Shard

ABSENT_S: Final = 2.0
"""The time in which every datagram comes back as 'port unreachable' before that is logged."""
ASK_S: Final = AFTER_S - 1.0
"""The time without a result before a PROBE asks the switch for the missing ranks. Its answer comes before the line."""
ASK_EVERY_S: Final = 5.0
STALL_S: Final = 1.0
"""The time without a datagram, in spite of retransmissions, after which a shard is stalled."""
# Often enough for lines in a log, and seldom enough to cost a short all-reduce nothing.
WATCH_EVERY_S: Final = 0.05
_log: Final = logging.getLogger(__name__)


class Progress:
    """The watchdog of a transport's shards, in the thread of the transport: logs stalls, and probes the switch.

    Args:
        on_stall: called by `look`, repeatedly, while no datagram arrives for STALL_S in spite of retransmissions.
    """

    def __init__(self, shards: Sequence[Shard], on_stall: Callable[[], None]) -> None:
        self._watches = [ShardWatch(shard) for shard in shards]
        self._on_stall = on_stall
        self._look_at = 0.0

    @property
    def stalled_s(self) -> float:
        """Return the longest silence of a shard: seconds since its switch's last datagram, or since work began."""
        return max(watch.stalled_s for watch in self._watches)

    @property
    def stalled_shard(self) -> int:
        """Return the number of the shard with the longest silence."""
        return max(range(len(self._watches)), key=lambda shard: self._watches[shard].stalled_s)

    def begin(self) -> None:
        """Count silence from now: the first phase is in progress, or another generation."""
        for watch in self._watches:
            watch.begin()

    def look(self) -> None:
        """Check all shards, at most every WATCH_EVERY_S, between two steps. Log, send PROBEs, and call `on_stall`."""
        if (now := time.monotonic()) >= self._look_at:
            self._look_at = now + WATCH_EVERY_S
            # A list, not a generator: every watch has to see this moment.
            if any([watch.check() for watch in self._watches]):
                self._on_stall()


class ShardWatch:
    """The watchdog of one shard, for the thread of its transport.

    Args:
        clock: seconds that do not go back.
    """

    def __init__(self, shard: Shard, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._shard, self._clock = shard, clock
        self._counts = shard.statistics
        own = shard.worker.membership
        self._who, self._switch = f"rank {own.rank}", own.switch
        self._waiting = WaitMonitor(_log, self._who, clock=clock)
        self._results = 0
        self._ask_in_s = ASK_S
        self._absent = False
        self._begin_stall()

    @property
    def stalled_s(self) -> float:
        """Seconds since a datagram came from the switch, or since work began, as the last `check` found it."""
        return self._clock() - self._since_s

    def begin(self) -> None:
        """Count silence and waiting from now: the first phase is in progress, or another generation."""
        self._begin_stall()
        self._begin_wait()

    def check(self) -> bool:
        """Log due WARNINGs, send a PROBE if one is due, and return whether the shard is stalled.

        A shard is stalled if no datagram has come for STALL_S in spite of retransmissions. An idle shard is not.
        """
        self._say_absence()
        worker, counts = self._shard.worker, self._counts
        if worker.is_idle:
            self.begin()
            return False
        if counts.worker.results != self._results:
            self._begin_wait()
        else:
            if self._waiting.lasted_s >= self._ask_in_s:
                self._ask_in_s = self._waiting.lasted_s + ASK_EVERY_S
                self._shard.probe()
            left_s, lease_s = worker.watch.left_s(self._clock()), worker.timing.lease_s
            is_sooner = lease_s is not None and lease_s < left_s
            sooner = f"but {lease_s:.3g} s for a rank of which nothing is heard (lease_s)" if is_sooner else ""
            self._waiting.check(worker.watch.missing_text, left_s, sooner)
        if counts.link.datagrams_received != self._received:
            self._begin_stall()
        # Without a retransmission nothing was overdue: all ranks may just compute.
        return counts.worker.retransmits > self._retransmits and self.stalled_s >= STALL_S

    def _begin_stall(self) -> None:
        self._since_s = self._clock()
        self._received, self._retransmits = self._counts.link.datagrams_received, self._counts.worker.retransmits

    def _begin_wait(self) -> None:
        self._results, self._ask_in_s = self._counts.worker.results, ASK_S
        self._waiting.end()

    def _say_absence(self) -> None:
        absence = self._shard.worker.watch.absences.refused
        if self._absent and not absence.answers:
            self._absent = False
            _log.warning("%s: %s is there again", self._who, self._switch)
        elif not self._absent and absence.lasted_s >= ABSENT_S:
            self._absent = True
            limit_s = self._shard.worker.timing.unreachable_s
            until = "until its deadline" if limit_s is None else f"for {limit_s - absence.lasted_s:.0f} s more"
            _log.warning(
                "%s: %s is not there: all that was sent to it for %.1f s came back as 'port unreachable' (%d times), "
                "and nothing came from it; this rank waits %s",
                self._who, self._switch, absence.lasted_s, absence.answers, until,
            )  # fmt: skip
