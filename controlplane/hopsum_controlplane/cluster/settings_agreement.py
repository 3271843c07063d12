# SPDX-License-Identifier: Apache-2.0
"""Settings that the workers of one job need to have in common, and what becomes of those that differ.

A worker that differs from a job that has run, or runs, is refused alone: the others continue. While a job forms for the
first time no one can tell which of two workers is right: the join is refused, all waiting workers are evicted with
the same message, and so is each other rank that joins within a lease, until one that was told joins again.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from hopsum_base.shown import describe_differences
from hopsum_controlplane.cluster import lifecycle
from hopsum_controlplane.cluster.job_state_cache import JobStateCache
from hopsum_controlplane.cluster.records import LEASED, JobRecord, JobState, Member, MemberPhase
from hopsum_controlplane.errors import InvalidRequestError

_log: Final = logging.getLogger(__name__)


def conflict(record: JobRecord, member: Member) -> str:
    """Return in words the difference of a joining worker's settings from another member's, empty if none differ.

    A worker without settings does not differ from any other worker.
    """
    for other in record.members:
        compared = other.phase in LEASED and other.rank != member.rank and other.settings
        if compared and member.settings and other.settings != member.settings:
            return describe_differences({each.rank: dict(each.settings) for each in (other, member)})
    return ""


def are_settings_known(record: JobRecord, rank: int) -> bool:
    """Return whether a job's settings are known to be right: a generation has workers, or other ranks know of one."""
    others = [each for each in record.members if each.rank != rank and each.phase in LEASED]
    return record.state in (JobState.INSTALLING, JobState.RUNNING) or any(each.notified_generation for each in others)


@dataclass
class _Dispute:
    why: str
    until_s: float
    told: set[int] = field(default_factory=set)


class Disputes:
    """Differences between workers of forming jobs, for those that join later. In memory only.

    Under the lock of `cache`, whose records it changes.
    """

    def __init__(self, cache: JobStateCache) -> None:
        self._cache = cache
        self._disputes: dict[str, _Dispute] = {}

    def require_agreement(self, record: JobRecord, member: Member, now_s: float, lease_s: float) -> None:
        """Refuse a worker with other settings than the job's. Evict all waiting ones if no settings are known as right.

        Call it before the member joins. `now_s` is of any clock of seconds. A difference is remembered for `lease_s`
        seconds. Raises InvalidRequestError for a refusal, and logs it. Raises StoreError.
        """
        name = record.name
        why = self.report_once(name, member.rank, now_s)
        hint = "start all workers of the job again, with the same settings"
        if not why and (why := conflict(record, member)):
            if are_settings_known(record, member.rank):
                hint = "the job continues without this worker: start it again, with the settings of the others"
            else:
                waiting = {each.rank for each in record.members if each.phase is MemberPhase.WAITING}
                # Nobody knows which worker is right, so all waiting ones are told both values, and start again.
                self._cache.apply(name, lambda now: lifecycle.lose_waiting(now, why))
                self.remember(name, why, {*waiting, member.rank}, now_s + lease_s)
        if why:
            _log.warning("rank %d of job %s is refused: %s", member.rank, name, why, extra={"job": name})
            raise InvalidRequestError(f"job {name!r}: {why}", hint=hint)

    def remember(self, job: str, why: str, told: Collection[int], until_s: float) -> None:
        """Remember a job's difference until `until_s`, instead of an earlier one, and the ranks that know it."""
        self._disputes[job] = _Dispute(why, until_s, set(told))

    def report_once(self, job: str, rank: int, now_s: float) -> str:
        """Return a job's remembered difference to a rank that was not told of it yet, and count it as told. Else "".

        The difference is forgotten when a rank that was told of it joins again, or its time has passed.
        """
        found = self._disputes.get(job)
        if found is None:
            return ""
        if rank in found.told or now_s > found.until_s:
            # A rank that was told joins again, or a lease has passed: the job begins anew.
            del self._disputes[job]
            return ""
        found.told.add(rank)
        return found.why

    def keep_only(self, jobs: Collection[str]) -> None:
        """Forget the differences of all jobs but these."""
        self._disputes = {job: found for job, found in self._disputes.items() if job in jobs}
