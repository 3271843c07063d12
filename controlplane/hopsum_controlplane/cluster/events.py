# SPDX-License-Identifier: Apache-2.0
"""The events of a job, as Kubernetes has them: what happened, of two types, with a reason in one word and a message.

Created, Restored        the job was made; the controller was started, and found it in its database
MemberJoined             a worker or observer has joined, for the next generation
MemberLeft, MemberLost   it has left; it was evicted
GenerationBegun          a generation was taken, and its entries are being written
EntriesInstalled         all entries are on the switches: the generation runs
GenerationEnded          the generation is over, and its entries are being removed
EntriesRemoved           nothing of the generation is on a switch
JoinRefused              a join with the job's token was refused
SwitchLost, SwitchBack   the condition SwitchReady has become false, and true again
Deleting                 the job was deleted, and goes when its entries are removed
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass

from hopsum_controlplane.cluster.health import ranks_in_words, why_lost
from hopsum_controlplane.cluster.records import JobRecord, JobState, Member, MemberPhase


class EventType(enum.Enum):
    """The type of an event: a warning is something that was not meant to happen."""

    NORMAL = "Normal"
    WARNING = "Warning"


@dataclass(frozen=True)
class JobEvent:
    """An event of a job, which happened `count` times in a row. `at_s` is the controller's time of the last one."""

    type: EventType
    reason: str
    message: str
    count: int = 1
    at_s: float = 0.0

    @classmethod
    def normal(cls, reason: str, message: str) -> JobEvent:
        """Return an event that was meant to happen."""
        return cls(EventType.NORMAL, reason, message)

    @classmethod
    def warning(cls, reason: str, message: str) -> JobEvent:
        """Return an event that was not."""
        return cls(EventType.WARNING, reason, message)


def events_of_step(before: JobRecord | None, after: JobRecord, lease_s: float) -> Iterator[JobEvent]:
    """Return what happened in a step of a job's record, from None where the job is new. `lease_s` is a member's."""
    if before is None:
        where = "switches" if after.branches else "switch"
        yield JobEvent.normal("Created", f"{after.request.workers} workers, {where} {', '.join(after.switches)}")
        return
    for rank in sorted({member.rank for member in (*before.members, *after.members)}):
        yield from _of_member(before.member(rank), after.member(rank), lease_s)
    yield from _of_generation(before, after)


def _of_member(before: Member | None, after: Member | None, lease_s: float) -> Iterator[JobEvent]:
    if after is None:
        if before is not None and before.phase not in (MemberPhase.LEFT, MemberPhase.LOST):
            yield JobEvent.normal("MemberLeft", f"rank {before.rank} has left")
        return
    phase = before.phase if before is not None and before.incarnation == after.incarnation else None
    if phase is after.phase:
        return
    if after.phase is MemberPhase.WAITING and phase is not MemberPhase.IN:
        again = "" if before is None else " again" if phase else ", in the place of another worker"
        yield JobEvent.normal(
            "MemberJoined", f"rank {after.rank} has joined{again}, at {after.endpoint.ip}:{after.endpoint.udp_port}"
        )
    elif after.phase is MemberPhase.LEFT:
        yield JobEvent.normal("MemberLeft", f"rank {after.rank} has left")
    elif after.phase is MemberPhase.LOST:
        yield JobEvent.warning("MemberLost", f"rank {after.rank} was evicted: {why_lost(after, lease_s)}")


def _of_generation(before: JobRecord, after: JobRecord) -> Iterator[JobEvent]:
    if after.generation and after.generation != before.generation:
        workers = [m.rank for m in after.members if m.is_worker and m.phase is MemberPhase.IN]
        yield JobEvent.normal("GenerationBegun", f"generation {after.generation} with {ranks_in_words(workers)}")
    if before.state is after.state:
        return
    if after.state is JobState.RUNNING:
        yield JobEvent.normal("EntriesInstalled", f"generation {after.generation} runs")
    elif after.state is JobState.CHANGING:
        make = JobEvent.normal if after.finished else JobEvent.warning
        yield make("GenerationEnded", f"generation {before.generation} is over: {after.reason}")
    elif after.state is JobState.FORMING:
        yield JobEvent.normal("EntriesRemoved", f"nothing of generation {before.generation} is on a switch")
    elif after.state is JobState.ENDING:
        yield JobEvent.normal("Deleting", after.reason)
