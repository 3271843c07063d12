# SPDX-License-Identifier: Apache-2.0
"""The status of a job: one word and one reason, the same in commands, page and metrics.

healthy   its generation runs with all its workers, or with as many of MIN:MAX as there are
idle      no worker has joined, or all have left: nothing is wrong, and nothing happens
waiting   workers wait for others to join, or for entries that are being written or removed
degraded  something is wrong: a worker is gone or silent, or a switch has a problem; sums may continue
stalled   fewer workers are left in the generation than complete a sum, or a switch lacks what the job needs
failed    its last generation ended because workers were lost, and none is there

A status is a pure function of the job's record, its leases and the troubles of its switches. `job_history` has the
events that led to it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hopsum_controlplane.cluster.records import JobRecord, JobState, Member, MemberPhase

LITTLE_LEFT = 1 / 3
"""Share of a lease. Members send three heartbeats in a lease, so a member with less left has missed one."""


class Health(enum.Enum):
    """The word of a job's status. The module's docstring has its meaning."""

    HEALTHY = "healthy"
    IDLE = "idle"
    WAITING = "waiting"
    DEGRADED = "degraded"
    STALLED = "stalled"
    FAILED = "failed"


@dataclass(frozen=True)
class JobStatus:
    """A job's status: its word, and the reason in a sentence, empty for a healthy job with all its workers."""

    health: Health
    reason: str = ""


def status_of(record: JobRecord, trouble: str, left_s: Mapping[int, float | None], lease_s: float) -> JobStatus:
    """Decide the status of a job.

    Args:
        trouble: what keeps the job's switches from doing what the job wants; empty for nothing.
        left_s: seconds until each member is evicted, by rank, None for a member without a lease.
        lease_s: seconds that a member may be silent.
    """
    if record.state is JobState.RUNNING:
        return _running(record, trouble, left_s, lease_s)
    if record.state is JobState.FORMING:
        return _forming(record, trouble)
    if trouble:
        return JobStatus(Health.STALLED, trouble)
    doing = {
        JobState.INSTALLING: "its entries are being written",
        JobState.CHANGING: f"its entries are being removed: {record.reason}",
        JobState.ENDING: "it is being deleted",
    }
    return JobStatus(Health.WAITING, doing[record.state])


def why_lost(member: Member, lease_s: float) -> str:
    """Return the reason of a member's eviction in words: its own, or that it was silent for `lease_s` seconds."""
    return member.why or f"it was silent for {lease_s:g} s"


def ranks_in_words(ranks: Sequence[int]) -> str:
    """Return ranks as text: "rank 2", "ranks 1, 3" or "no rank"."""
    if not ranks:
        return "no rank"
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _running(record: JobRecord, trouble: str, left_s: Mapping[int, float | None], lease_s: float) -> JobStatus:
    workers = [member for member in record.members if member.joined_generation == record.generation]
    inside = [member for member in workers if member.phase is MemberPhase.IN]
    found = [_gone(member, lease_s) for member in workers if member.phase in (MemberPhase.LEFT, MemberPhase.LOST)]
    if found and len(inside) < record.quorum:
        left = f"{_ranks(inside)} {'is' if len(inside) == 1 else 'are'} left, {record.quorum} complete a sum"
        return JobStatus(Health.STALLED, "; ".join((*found, left, *([trouble] if trouble else []))))
    for member in inside:
        remaining_s = left_s.get(member.rank)
        if remaining_s is not None and remaining_s < lease_s * LITTLE_LEFT:
            # A member without time left is still there where the controller has heard no member since its start.
            end = f"it is evicted in {remaining_s:.1f} s" if remaining_s else "its controller may be another one"
            found.append(f"rank {member.rank} has missed heartbeats: {end}")
    if trouble:
        found.append(trouble)
    health = Health.DEGRADED if found else Health.HEALTHY
    # No fault: fewer than MAX workers were asked for. An alarm would be wrong.
    if record.absent:
        found.append(f"its generation began without {ranks_in_words(record.absent)}")
    return JobStatus(health, "; ".join(found))


def _forming(record: JobRecord, trouble: str) -> JobStatus:
    workers = list(record.members)
    present = [member for member in workers if member.phase is not MemberPhase.LOST]
    ended = f"its last generation ended: {record.reason}" if record.reason else ""
    if trouble:
        return JobStatus(Health.STALLED if present else Health.DEGRADED, trouble)
    if present:
        lack = f"waits for {ranks_in_words(record.missing_ranks)} of {record.spec.ranks} to join"
        return JobStatus(Health.WAITING, "; ".join(filter(None, (lack, ended))))
    if workers:
        return JobStatus(Health.FAILED, ended or "its workers were evicted before they were all there")
    return JobStatus(Health.IDLE, ended or "no worker has joined")


def _gone(member: Member, lease_s: float) -> str:
    if member.phase is MemberPhase.LEFT:
        return f"rank {member.rank} has left"
    return f"rank {member.rank} was evicted: {why_lost(member, lease_s)}"


def _ranks(members: Iterable[Member]) -> str:
    return ranks_in_words([member.rank for member in members])
