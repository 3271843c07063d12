# SPDX-License-Identifier: Apache-2.0
"""The health of a job in one word and one sentence, beside its state: the same on the page, in metrics and commands.

healthy   its generation runs with all its workers
idle      no worker has joined, or all have left: nothing is wrong, and nothing happens
waiting   workers wait for others to join, or for entries that are being written or removed
degraded  something is wrong: a worker is gone or silent, or a switch has a problem; sums may go on
stalled   fewer workers are left in the generation than complete a sum, or a switch lacks what the job needs
failed    its last generation ended because workers were lost, and none is there
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hopsum_controlplane.cluster.records import JobRecord, JobState, Member, MemberPhase

LITTLE_LEFT = 1 / 3
"""Share of a lease: a member with less has missed a heartbeat."""


class Health(enum.Enum):
    """The health of a job."""

    HEALTHY = "healthy"
    IDLE = "idle"
    WAITING = "waiting"
    DEGRADED = "degraded"
    STALLED = "stalled"
    FAILED = "failed"


@dataclass(frozen=True)
class JobHealth:
    """A job's health, and the reason in words, empty for a healthy one."""

    health: Health
    reason: str = ""


def health_of(record: JobRecord, condition: str, left_s: Mapping[int, float | None], lease_s: float) -> JobHealth:
    """Return the health of a job.

    Args:
        condition: the reason why the job's switches are not in the state that the job needs; empty if they are.
        left_s: seconds until each member is evicted, by rank.
        lease_s: seconds that a member may be silent.
    """
    if record.state is JobState.RUNNING:
        return _running(record, condition, left_s, lease_s)
    if record.state is JobState.FORMING:
        return _forming(record, condition)
    if condition:
        return JobHealth(Health.STALLED, condition)
    doing = {
        JobState.INSTALLING: "its entries are being written",
        JobState.CHANGING: f"its entries are being removed: {record.reason}",
        JobState.ENDING: "it is being deleted",
    }
    return JobHealth(Health.WAITING, doing[record.state])


def _running(record: JobRecord, condition: str, left_s: Mapping[int, float | None], lease_s: float) -> JobHealth:
    workers = [
        member for member in record.members if member.is_worker and member.joined_generation == record.generation
    ]
    inside = [member for member in workers if member.phase is MemberPhase.IN]
    found = [_gone(member, lease_s) for member in workers if member.phase in (MemberPhase.LEFT, MemberPhase.LOST)]
    if found and len(inside) < record.quorum:
        left = f"{_ranks(inside)} {'is' if len(inside) == 1 else 'are'} left, {record.quorum} complete a sum"
        return JobHealth(Health.STALLED, "; ".join((*found, left, *([condition] if condition else []))))
    for member in inside:
        remaining_s = left_s.get(member.rank)
        if remaining_s is not None and remaining_s < lease_s * LITTLE_LEFT:
            found.append(f"rank {member.rank} has missed heartbeats: it is evicted in {remaining_s:.1f} s")
    if condition:
        found.append(condition)
    return JobHealth(Health.DEGRADED, "; ".join(found)) if found else JobHealth(Health.HEALTHY)


def _forming(record: JobRecord, condition: str) -> JobHealth:
    workers = [member for member in record.members if member.is_worker]
    present = [member for member in workers if member.phase is not MemberPhase.LOST]
    ended = f"its last generation ended: {record.reason}" if record.reason else ""
    if condition:
        return JobHealth(Health.STALLED if present else Health.DEGRADED, condition)
    if present:
        lack = f"waits for {ranks_in_words(record.missing_ranks)} of {record.request.workers} to join"
        return JobHealth(Health.WAITING, "; ".join(filter(None, (lack, ended))))
    if len(workers) > len(present):
        return JobHealth(Health.FAILED, ended or "its workers were evicted before they were all there")
    return JobHealth(Health.IDLE, ended or "no worker has joined")


def _gone(member: Member, lease_s: float) -> str:
    if member.phase is MemberPhase.LEFT:
        return f"rank {member.rank} has left"
    return f"rank {member.rank} was evicted: {why_lost(member, lease_s)}"


def why_lost(member: Member, lease_s: float) -> str:
    """Return why a member was evicted."""
    return member.why or f"it was silent for {lease_s:g} s"


def _ranks(members: Iterable[Member]) -> str:
    return ranks_in_words([member.rank for member in members])


def ranks_in_words(ranks: Sequence[int]) -> str:
    """Return ranks as "rank 2", "ranks 1, 3" or "no rank"."""
    if not ranks:
        return "no rank"
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
