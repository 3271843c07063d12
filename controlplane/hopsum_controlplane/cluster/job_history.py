# SPDX-License-Identifier: Apache-2.0
"""The recent history of jobs: the events that led to each job's status, as Kubernetes has events, and counts.

Created, Restored        the job was made; the controller was started, and found it in its database
MemberJoined             a worker has joined, for the next generation
MemberLeft, MemberLost   it has left; it was evicted
GoesOnWithout            the next generation does not wait for these ranks
GenerationBegun          a generation was taken, and its entries are being written
EntriesInstalled         all entries are on the switches: the generation runs
GenerationEnded          the generation has ended, and its entries are being removed
EntriesRemoved           nothing of the generation is on a switch
JoinRefused              a join with the job's token was refused
CallsFrom                a member's call came from another address than it registered
SwitchLost, SwitchBack   a switch of the job got into trouble; all are well again
Deleting                 the job was deleted, and goes when its entries are removed

Everything is only in memory: after a start of the controller a job's first event says so, and its log has the rest.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from hopsum_controlplane.cluster.job_state_cache import JobStateCache
from hopsum_controlplane.cluster.job_status import ranks_in_words, why_lost
from hopsum_controlplane.cluster.records import JobRecord, JobState, Member, MemberPhase

KEPT_EVENTS = 50
"""Number of a job's events that are remembered, the last ones."""
_log = logging.getLogger(__name__)
NORMAL, WARNING = "Normal", "Warning"
"""Types of events. A warning was not meant to happen."""


@dataclass(frozen=True)
class JobEvent:
    """An event of a job: `count` times in a row, the last time at `at_s` of the controller's clock, in seconds."""

    type: str
    reason: str
    message: str
    count: int = 1
    at_s: float = 0.0


@dataclass
class JobHistory:
    """The history of one job since the controller was started. Times are seconds of the controller's clock.

    record: as it was seen last.
    begun, begun_at_s: number of generations that began, and when the last one did.
    ended_at_s: when the last generation ended.
    joins_refused, last_refusal, refused_at_s: joins with the job's token that were refused, and the last reason.
    """

    record: JobRecord | None = None
    events: deque[JobEvent] = field(default_factory=lambda: deque(maxlen=KEPT_EVENTS))
    begun: int = 0
    begun_at_s: float | None = None
    ended_at_s: float | None = None
    joins_refused: int = 0
    last_refusal: str = ""
    refused_at_s: float | None = None
    trouble: str = ""
    """The problem of the job's switches, as it was seen last, empty for none."""

    def append_event(self, type: str, reason: str, message: str, now_s: float) -> None:
        """Append an event. One with the reason and message of the last event replaces it, with a count of one more."""
        count = 1
        if self.events and (self.events[-1].reason, self.events[-1].message) == (reason, message):
            # A worker that is refused every second must not push the job's other events out.
            count = self.events.pop().count + 1
        self.events.append(JobEvent(type, reason, message, count, now_s))


class JobHistories:
    """The histories of all jobs of a cache, by name. A deleted job has none. Thread-safe, by the cache's lock.

    cache: calls `observe` after each step of a job, under its lock, so that no step is missed.
    trouble: gives the problem of a job's switches in words, empty for none. It takes no lock of a switch.
    lease_s: gives the seconds that a member of a job may be silent.
    monotonic: seconds that never go back.
    """

    def __init__(
        self,
        cache: JobStateCache,
        trouble: Callable[[JobRecord], str],
        lease_s: Callable[[JobRecord], float],
        monotonic: Callable[[], float],
    ) -> None:
        self._cache, self._trouble, self._lease_s, self._monotonic = cache, trouble, lease_s, monotonic
        self._histories: dict[str, JobHistory] = {}
        for record in cache.records():
            found = self._histories[record.name] = JobHistory(record)
            told = f"the controller was started; the job is {record.state.value}"
            found.append_event(NORMAL, "Restored", told, monotonic())
        # The cache calls `observe` under its lock after each step, so that no step is missed.
        cache.watch(self.observe)

    def history_of(self, job: str) -> JobHistory:
        """Observe a job, and return its history, a new empty one for a job that does not exist.

        It is the live object, which later events change: read it under the cache's lock.
        """
        self.observe(job)
        return self._histories.get(job, JobHistory())

    def observe(self, job: str) -> None:
        """Append the events of all changes of a job and of its switches since the last call.

        The history of a job that does not exist any more is dropped.
        """
        with self._cache.changed:
            record = self._cache.find(job)
            if record is None:
                self._histories.pop(job, None)
                return
            found, now_s = self._histories.setdefault(job, JobHistory()), self._monotonic()
            before = found.record
            for event in events_of_step(before, record, self._lease_s(record)):
                found.append_event(event.type, event.reason, event.message, now_s)
            if record.generation and (before is None or before.generation != record.generation):
                found.begun, found.begun_at_s = found.begun + 1, now_s
            if record.state is JobState.CHANGING and before is not None and before.state is not JobState.CHANGING:
                found.ended_at_s = now_s
            found.record = record
            before_trouble, found.trouble = found.trouble, self._trouble(record)
            if found.trouble and not before_trouble:
                found.append_event(WARNING, "SwitchLost", found.trouble, now_s)
            elif before_trouble and not found.trouble:
                found.append_event(NORMAL, "SwitchBack", "the job's switches are ready again", now_s)

    def observe_switch(self, switch: str) -> None:
        """Call `observe` for each job that has slots on a switch."""
        for record in self._cache.records(switch):
            self.observe(record.name)

    def record_caller(self, job: str, rank: int, caller: str, registered: str) -> None:
        """Append an event, and log, that a member registered another address than its call came from.

        `caller` and `registered` are these two addresses. There may be two networks, or an address translation.
        """
        told = (
            f"rank {rank} calls from {caller} and has registered {registered}: where addresses are translated on the "
            "way (NAT), its switch drops what it sends (wrong_source)"
        )
        with self._cache.changed:
            self._histories.setdefault(job, JobHistory()).append_event(NORMAL, "CallsFrom", told, self._monotonic())
        _log.info("job %s: %s", job, told)

    def record_rejection(self, job: str, why: str) -> None:
        """Count a join that was refused although the token was right, and append an event with the reason `why`."""
        with self._cache.changed:
            found, now_s = self._histories.setdefault(job, JobHistory()), self._monotonic()
            found.joins_refused += 1
            found.last_refusal, found.refused_at_s = why, now_s
            found.append_event(WARNING, "JoinRefused", why, now_s)


def events_of_step(before: JobRecord | None, after: JobRecord, lease_s: float) -> Iterator[JobEvent]:
    """Yield the events of a step from record `before`, None for a new job, to `after`. Their time is not set.

    `lease_s` is the number of seconds that a member may be silent, for the reason of an eviction.
    """
    if before is None:
        where = "switches" if after.branches else "switch"
        yield JobEvent(NORMAL, "Created", f"{after.spec.ranks} workers, {where} {', '.join(after.switches)}")
        return
    for rank in sorted({member.rank for member in (*before.members, *after.members)}):
        yield from _of_member(before.member(rank), after.member(rank), lease_s)
    yield from _of_generation(before, after)


def _of_member(before: Member | None, after: Member | None, lease_s: float) -> Iterator[JobEvent]:
    if after is None:
        if before is not None and before.phase not in (MemberPhase.LEFT, MemberPhase.LOST):
            yield JobEvent(NORMAL, "MemberLeft", f"rank {before.rank} has left")
        return
    phase = before.phase if before is not None and before.incarnation == after.incarnation else None
    if phase is after.phase:
        return
    if after.phase is MemberPhase.WAITING and phase is not MemberPhase.IN:
        again = "" if before is None else " again" if phase else ", in the place of another worker"
        at = f"{after.endpoint.ip}:{after.endpoint.udp_port}"
        yield JobEvent(NORMAL, "MemberJoined", f"rank {after.rank} has joined{again}, at {at}")
    elif after.phase is MemberPhase.LEFT:
        yield JobEvent(NORMAL, "MemberLeft", f"rank {after.rank} has left")
    elif after.phase is MemberPhase.LOST:
        yield JobEvent(WARNING, "MemberLost", f"rank {after.rank} was evicted: {why_lost(after, lease_s)}")


def _of_generation(before: JobRecord, after: JobRecord) -> Iterator[JobEvent]:
    if without := {*after.absent} - {*before.absent}:
        told = f"{ranks_in_words(sorted(without))} waited for no longer"
        yield JobEvent(WARNING, "GoesOnWithout", told)
    if after.generation and after.generation != before.generation:
        workers = [m.rank for m in after.members if m.phase is MemberPhase.IN]
        yield JobEvent(NORMAL, "GenerationBegun", f"generation {after.generation} with {ranks_in_words(workers)}")
    if before.state is after.state:
        return
    if after.state is JobState.RUNNING:
        yield JobEvent(NORMAL, "EntriesInstalled", f"generation {after.generation} runs")
    elif after.state is JobState.CHANGING:
        type = NORMAL if after.finished else WARNING
        yield JobEvent(type, "GenerationEnded", f"generation {before.generation} has ended: {after.reason}")
    elif after.state is JobState.FORMING:
        yield JobEvent(NORMAL, "EntriesRemoved", f"nothing of generation {before.generation} is on a switch")
    elif after.state is JobState.ENDING:
        yield JobEvent(NORMAL, "Deleting", after.reason)
