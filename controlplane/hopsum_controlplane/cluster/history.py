# SPDX-License-Identifier: Apache-2.0
"""The recent history of jobs: events, refused joins, and since when each condition is as it is.

    events.py      the events of one step of a job's record, pure
    conditions.py  the conditions of a job at one time, pure

Everything is only in memory: after a start of the controller a job's first event says so, and its log has the rest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from hopsum_controlplane.cluster.conditions import JobCondition, SwitchConditions, conditions_of
from hopsum_controlplane.cluster.events import EventType, JobEvent, events_of_step
from hopsum_controlplane.cluster.job_state_cache import JobStateCache
from hopsum_controlplane.cluster.records import JobRecord

KEPT_EVENTS = 50
"""Events of a job that are remembered, the last ones."""
_SWITCH_READY = "SwitchReady"


@dataclass(frozen=True)
class JoinRejections:
    """The number of refused joins of a job, with reason and time of the last one, or an empty string and None for none.

    Only joins with the job's token count: a join without the token leaves nothing here.
    """

    count: int = 0
    last: str = ""
    at_s: float | None = None


@dataclass
class _History:
    record: JobRecord | None = None
    """The record as it was seen last."""
    conditions: dict[str, JobCondition] = field(default_factory=dict)
    events: deque[JobEvent] = field(default_factory=lambda: deque(maxlen=KEPT_EVENTS))
    rejections: JoinRejections = JoinRejections()


class JobHistories:
    """The histories of all jobs of a cache, by name. A deleted job has none. Thread-safe: the cache's lock is its.

    Args:
        switches: returns the conditions of a job's switches, without a lock. lease_s:
        returns how long a member of a job may be silent.
        monotonic: seconds that never go back.
    """

    def __init__(
        self,
        cache: JobStateCache,
        switches: Callable[[JobRecord], SwitchConditions],
        lease_s: Callable[[JobRecord], float],
        monotonic: Callable[[], float],
    ) -> None:
        self._cache, self._switches, self._lease_s, self._monotonic = cache, switches, lease_s, monotonic
        self._histories: dict[str, _History] = {}
        for record in cache.records():
            found = self._histories[record.name] = _History(record)
            self._note(
                found, JobEvent.normal("Restored", f"the controller was started; the job is {record.state.value}")
            )
        cache.watch(self.observe)

    def observe(self, job: str) -> None:
        """Note what has changed of a job and of its switches since the last call."""
        with self._cache.changed:
            record = self._cache.find(job)
            if record is None:
                self._histories.pop(job, None)
                return
            found = self._histories.setdefault(job, _History())
            for event in events_of_step(found.record, record, self._lease_s(record)):
                self._note(found, event)
            found.record = record
            self._note_conditions(found, record)

    def observe_switch(self, switch: str) -> None:
        """Note what has changed of a switch for its jobs."""
        for record in self._cache.records(switch):
            self.observe(record.name)

    def note_rejection(self, job: str, why: str) -> None:
        """Count a join that was refused although the token was right."""
        with self._cache.changed:
            found = self._histories.setdefault(job, _History())
            found.rejections = JoinRejections(found.rejections.count + 1, why, self._monotonic())
            self._note(found, JobEvent.warning("JoinRefused", why))

    def rejections(self, job: str) -> JoinRejections:
        """Return the joins that a job has refused."""
        return self._of(job).rejections

    def conditions(self, job: str) -> tuple[JobCondition, ...]:
        """Return a job's conditions as they are now, none for a deleted job."""
        self.observe(job)
        return tuple(self._of(job).conditions.values())

    def events(self, job: str) -> tuple[JobEvent, ...]:
        """Return the last events of a job, the oldest first."""
        with self._cache.changed:
            return tuple(self._of(job).events)

    def _of(self, job: str) -> _History:
        return self._histories.get(job, _History())

    def _note(self, history: _History, event: JobEvent) -> None:
        """Append an event. An event that only repeats the last one is counted there."""
        count, last = 1, history.events[-1] if history.events else None
        if last is not None and (last.reason, last.message) == (event.reason, event.message):
            count = history.events.pop().count + 1
        history.events.append(replace(event, count=count, at_s=self._monotonic()))

    def _note_conditions(self, history: _History, record: JobRecord) -> None:
        now_s, before = self._monotonic(), history.conditions
        found = conditions_of(record, self._switches(record), self._lease_s(record))
        same = {each.type for each in found if each.type in before and before[each.type].status is each.status}
        history.conditions = {
            each.type: replace(each, since_s=before[each.type].since_s if each.type in same else now_s)
            for each in found
        }
        now = history.conditions[_SWITCH_READY]
        if _SWITCH_READY not in same and not now.status:
            self._note(history, JobEvent.warning("SwitchLost", now.message))
        elif _SWITCH_READY not in same and before:
            self._note(history, JobEvent(EventType.NORMAL, "SwitchBack", "the job's switches are ready again"))
