# SPDX-License-Identifier: Apache-2.0
"""Leases: the time that each member may be silent, and its last statistics.

No member is evicted because the controller was away. Leases are only in memory: a controller that starts hears every
member anew, and the leases of a job begin when it hears the first of its members. A controller that was stopped for a
while extends them by that (`extend_for_absence`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from hopsum_controlplane.cluster.records import LEASED, JobRecord


@dataclass
class _Lease:
    until_s: float
    shortened: bool = False
    """True from the end of the member's connection until the next renewal."""
    statistics: Mapping[str, float] = field(default_factory=dict)
    heartbeat_at_s: float | None = None


class Leases:
    """The leases of the members of all jobs, by job and rank. Times are of a clock that never goes back, in seconds.

    Not thread-safe.
    """

    def __init__(self) -> None:
        self._leases: dict[tuple[str, int], _Lease] = {}

    def renew(
        self, job: str, rank: int, until_s: float, statistics: Mapping[str, float] | None = None, *, now_s: float = 0.0
    ) -> None:
        """Let a lease end at `until_s`, also if it ended later before. Make the lease if the member has none.

        `statistics`, of a heartbeat at `now_s`, replace those of the heartbeat before. None: this is no heartbeat.
        """
        lease = self._leases.setdefault((job, rank), _Lease(until_s))
        lease.until_s, lease.shortened = until_s, False
        if statistics is not None:
            lease.statistics = dict(statistics)
            lease.heartbeat_at_s = now_s

    def extend(self, job: str, rank: int, until_s: float) -> None:
        """Let a lease end at `until_s` at the earliest, as after a sign of life that is no heartbeat.

        A member without a lease gets none.
        """
        lease = self._leases.get((job, rank))
        if lease is not None and until_s > lease.until_s:
            lease.until_s, lease.shortened = until_s, False

    def shorten(self, job: str, rank: int, until_s: float) -> None:
        """Let a lease end at `until_s` at the latest, as after the end of the member's connection.

        A member without a lease gets none.
        """
        lease = self._leases.get((job, rank))
        if lease is not None:
            # Never longer than before: a connection that ended is no sign of life.
            lease.until_s, lease.shortened = min(lease.until_s, until_s), True

    def is_shortened(self, job: str, rank: int) -> bool:
        """Return whether a lease was shortened after its last renewal."""
        lease = self._leases.get((job, rank))
        return lease is not None and lease.shortened

    def extend_for_absence(self, record: JobRecord, away_s: float, most_s: float) -> None:
        """Extend the leases of a job's members by `away_s`, to end at `most_s` at the latest. None gets shorter."""
        for member in record.members:
            lease = self._leases.get((record.name, member.rank))
            if lease is not None:
                # No lease gets shorter by an absence of the controller, and none longer than a new one.
                lease.until_s = max(lease.until_s, min(lease.until_s + away_s, most_s))

    def until_s(self, job: str, rank: int) -> float | None:
        """Return the time at which a member's lease ends, None for a member without a lease."""
        lease = self._leases.get((job, rank))
        return None if lease is None else lease.until_s

    def statistics(self, job: str, rank: int) -> Mapping[str, float]:
        """Return the statistics of a member's last heartbeat, empty where there was none."""
        lease = self._leases.get((job, rank))
        return {} if lease is None else lease.statistics

    def heartbeat_at_s(self, job: str, rank: int) -> float | None:
        """Return when a member's last heartbeat came, None where there was none."""
        lease = self._leases.get((job, rank))
        return None if lease is None else lease.heartbeat_at_s

    def forget(self, job: str, rank: int) -> None:
        """Drop a member's lease and statistics, if it has any."""
        self._leases.pop((job, rank), None)

    def keep_only(self, jobs: Collection[str]) -> None:
        """Drop the leases of the members of all jobs but these."""
        self._leases = {key: lease for key, lease in self._leases.items() if key[0] in jobs}

    def expired_ranks(self, record: JobRecord, now_s: float) -> list[int]:
        """Return the ranks of a job whose leases have run out at `now_s`. Nothing is dropped.

        Members without a lease, and those that left or were evicted, are not among them.
        """
        leased = [member.rank for member in record.members if member.phase in LEASED]
        until_s = {rank: self.until_s(record.name, rank) for rank in leased}
        return [rank for rank, end_s in until_s.items() if end_s is not None and end_s <= now_s]
