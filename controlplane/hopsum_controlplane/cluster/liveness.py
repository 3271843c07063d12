# SPDX-License-Identifier: Apache-2.0
"""Members that are alive: what renews, extends and shortens their leases, and what becomes of members without one.

Here is all that ends a generation, or a member's place, because time has passed. `leases` only counts the time.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from hopsum_controlplane.cluster import lifecycle
from hopsum_controlplane.cluster.job_state_cache import JobStateCache
from hopsum_controlplane.cluster.job_status import LITTLE_LEFT, ranks_in_words
from hopsum_controlplane.cluster.leases import Leases
from hopsum_controlplane.cluster.records import LEASED, JobRecord, JobState, Member
from hopsum_controlplane.errors import StoreError

GRACE_S = 2.0
"""Seconds that a member has to be heard again after its connection ended without LEAVE."""
_log = logging.getLogger(__name__)


class Liveness:
    """Knows which members of a cache's jobs are alive, and evicts those that are not. Thread-safe, by the cache's lock.

    cache: the database. lease_s: seconds that a member may be silent, where its job does not say.
    monotonic: seconds that never go back.
    """

    def __init__(self, cache: JobStateCache, lease_s: float, monotonic: Callable[[], float]) -> None:
        self._cache, self._default_lease_s, self._monotonic = cache, lease_s, monotonic
        self.leases = Leases()
        """The leases of all members. Use them under the cache's lock."""
        self._unheard = {record.name for record in cache.records()}
        """Jobs from whose workers this controller has heard nothing since its start: it evicts none of them."""
        self._excused_s = -math.inf
        self._successors: dict[str, tuple[int, float]] = {}
        """The generation, by job, at whose start a worker waits that has left the one before, and since when."""
        self._gone_since_s: dict[str, dict[int, float]] = {}
        """The time since which a rank is waited for though enough others are there, by job and rank."""
        self.silences_s: Callable[[], Mapping[tuple[str, int], float]] = dict
        """Returns for how many seconds nothing has come over the connection of a member, by job and rank. Set by the
        service; a member that is left out is heard by its heartbeats alone."""
        for record in cache.records():
            for member in record.members:
                self.renew(record, member.rank)

    def lease_s(self, record: JobRecord) -> float:
        """Return the seconds that a member of a job may be silent."""
        return self._default_lease_s if record.spec.lease_s is None else record.spec.lease_s

    def renew(self, record: JobRecord, rank: int, statistics: Mapping[str, float] | None = None) -> None:
        """Begin a member's lease anew, now. `statistics` of a heartbeat replace the last ones; None is no heartbeat."""
        with self._cache.changed:
            now_s = self._monotonic()
            self.leases.renew(record.name, rank, now_s + self.lease_s(record), statistics, now_s=now_s)

    def begin_leases(self, record: JobRecord) -> None:
        """Begin the leases of all members of a job, at the first call of any of them since the controller was started.

        Before that call no member of the job is evicted. Later calls do nothing.
        """
        with self._cache.changed:
            if record.name in self._unheard:
                self._unheard.remove(record.name)
                for member in record.members:
                    self.renew(record, member.rank)

    def on_connection_ended(self, record: JobRecord, member: Member) -> None:
        """Shorten the lease of a member whose connection ended without LEAVE to GRACE_S.

        Soon after an absence of the controller it does nothing: that may have ended all connections.
        """
        with self._cache.changed:
            now_s = self._monotonic()
            # After the controller was stopped, ended connections say nothing of the workers.
            if member.phase in LEASED and now_s >= self._excused_s + self.lease_s(record):
                self.leases.shorten(record.name, member.rank, now_s + GRACE_S)

    def extend_for_absence(self, away_s: float) -> None:
        """Extend all leases by `away_s` seconds in which this process did not run, and log a warning.

        No lease becomes longer than a new one. For the length of a lease after this call, a connection that ends
        shortens no lease.
        """
        _log.warning("the controller was stopped for %.1f s: leases are extended by that", away_s)
        with self._cache.changed:
            self._excused_s = now_s = self._monotonic()
            for record in self._cache.records():
                self.leases.extend_for_absence(record, away_s, now_s + self.lease_s(record))

    def eviction_message(self, record: JobRecord, member: Member) -> str:
        """Return the error text of a member that was evicted, with its own reason, or its silence for the lease."""
        why = member.why or self._unheard_for(record)
        return f"rank {member.rank} of job {record.name!r} was evicted: {why}"

    def evict_silent(self) -> None:
        """Evict members whose leases have run out. End waits for other ranks that have lasted long enough.

        A member is not evicted while bytes come over its connection, nor in a job of which this controller has heard
        no worker since its start. After a wait the generation ends, where a restarted rank waited for the others, or
        a job of MIN to MAX workers continues without the missing ranks. Evictions and ends are logged.

        It changes records in the database. A change that cannot be written is tried again by the next call. Raises no
        StoreError.
        """
        now_s = self._monotonic()
        with self._cache.changed:
            records = self._cache.records()
            names = {record.name for record in records}
            self.leases.keep_only(names)
            self._unheard &= names
            self._extend_by_connections([record for record in records if record.name not in self._unheard], now_s)
            for record in records:
                # Workers that all call another controller are alive: a backup that was started as a test, or a
                # machine that no worker reaches, must not end their sums.
                for rank in self.leases.expired_ranks(record, now_s) if record.name not in self._unheard else ():
                    self._lose(record, rank)
                self._check_successors(record, now_s)
                if record.name not in self._unheard:
                    self._check_gone(record.name, now_s)

    def _extend_by_connections(self, records: Sequence[JobRecord], now_s: float) -> None:
        """Extend the leases of members whose heartbeats stay away, and over whose connections bytes come.

        Their programs hold Python's interpreter lock, and gRPC sends pings without it.
        """
        late = [
            (record, rank)
            for record in records
            for rank in self.leases.expired_ranks(record, now_s + LITTLE_LEFT * self.lease_s(record))
        ]
        # Asked only where it is needed: all descriptors of the process are looked at.
        silences_s = self.silences_s() if late else {}
        for record, rank in late:
            if (silent_s := silences_s.get((record.name, rank))) is not None:
                self.leases.extend(record.name, rank, now_s + self.lease_s(record) - silent_s)

    def _unheard_for(self, record: JobRecord) -> str:
        """Say that nothing was heard of a member for its lease, and what makes a lease longer."""
        setting = "lease_s: longer by HOPSUM_LEASE_S on rank 0 with hosts://, else by hopsum job create --lease"
        return f"nothing was heard of it for {self.lease_s(record):g} s ({setting})"

    def _lose(self, record: JobRecord, rank: int) -> None:
        why, told = f"the lease of rank {rank} ran out: {self._unheard_for(record)}", ""
        if self.leases.is_shortened(record.name, rank):
            told = f"its connection ended, and nothing was heard of it for {GRACE_S:g} s"
            why = f"the connection of rank {rank} ended, and nothing was heard of it for {GRACE_S:g} s"
        # Where the database cannot be written, which the cache logs, the lease stays overdue.
        with suppress(StoreError):
            self._cache.apply(record.name, lambda now: lifecycle.lose(now, rank, why, told))
            self.leases.forget(record.name, rank)
            log_loss(record, self._cache.find(record.name), why)

    def _check_successors(self, record: JobRecord, now_s: float) -> None:
        """End a generation that a rank left and waits to begin anew, when the others had a lease to leave it too."""
        ranks = lifecycle.restarted_ranks(record)
        if not ranks:
            self._successors.pop(record.name, None)
            return
        generation, since_s = self._successors.setdefault(record.name, (record.generation, now_s))
        if generation != record.generation:
            self._successors[record.name] = (record.generation, now_s)
        elif now_s - since_s >= self.lease_s(record):
            lease_s = self.lease_s(record)
            why = f"rank {ranks[0]} had left and was started again, and the others did not leave within {lease_s:g} s"
            # The next `evict_silent` tries again what cannot be written now.
            with suppress(StoreError):
                self._cache.apply(record.name, lambda now: lifecycle.end_generation(now, why), missing_ok=True)

    def _check_gone(self, job: str, now_s: float) -> None:
        """Let a job of MIN:MAX workers continue without those that have been waited for long enough."""
        record, before = self._cache.find(job), self._gone_since_s.get(job, {})
        spared = () if record is None else record.spared_ranks
        if record is None or not spared:
            self._gone_since_s.pop(job, None)
            return
        since_s = self._gone_since_s[job] = {rank: before.get(rank, now_s) for rank in spared}
        wait_s = record.spec.replace_s
        wait_s = self.lease_s(record) if wait_s is None else wait_s
        if over := [rank for rank in spared if now_s - since_s[rank] >= wait_s]:
            # The next `evict_silent` tries again what cannot be written now.
            with suppress(StoreError):
                self._cache.apply(job, lambda now: lifecycle.go_without(now, over), missing_ok=True)
                _log.warning("job %s continues without %s", job, ranks_in_words(over), extra={"job": job})


def log_loss(before: JobRecord, after: JobRecord | None, why: str) -> None:
    """Log the loss of a member if its generation continues. The cache logs a loss that ended a generation.

    `after` is None for a job that is gone.
    """
    if after is not None and after.state is before.state is JobState.RUNNING:
        job = after.name
        _log.warning("%s; %s continues, generation %d", why, job, after.generation, extra={"job": job})
