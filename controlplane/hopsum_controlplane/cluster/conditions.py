# SPDX-License-Identifier: Apache-2.0
"""The conditions of a job, as Kubernetes has them: a few typed statements, each true or false, with reason and message.

MembersJoined     every worker of the job has its place in the generation, or waits for the next one
SwitchReady       the controller reaches the job's switches, and each of them does what it is asked
EntriesInstalled  all entries of a generation are on the switches, and its workers may send
Ready             a sum can be completed: entries are installed, and no fewer workers are there than complete a sum

A reason is one word for programs, a message a sentence for people. The job's record and its switches decide them all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from hopsum_controlplane.cluster.health import Health, health_of, ranks_in_words
from hopsum_controlplane.cluster.records import JobRecord, JobState, MemberPhase

_PRESENT = (MemberPhase.WAITING, MemberPhase.IN)
_ENTRIES = {
    JobState.FORMING: ("Forming", "nothing is on a switch until all workers have joined"),
    JobState.INSTALLING: ("Installing", "the entries are being written"),
    JobState.RUNNING: ("Installed", ""),
    JobState.CHANGING: ("Removing", "the entries are being removed"),
    JobState.ENDING: ("Deleting", "the job is being deleted"),
}


class SwitchConditions(NamedTuple):
    """The state of a job's switches: the reason and words of what is wrong with one, empty if nothing is.

    `job` are the words of all that keeps the switches from doing what the job wants, `switch` and what concerns this
    job alone.
    """

    reason: str
    switch: str
    job: str


@dataclass(frozen=True)
class JobCondition:
    """One statement on a job. `since_s` is the time of its last change, in seconds of the controller's clock."""

    type: str
    status: bool
    reason: str
    message: str
    since_s: float = 0.0


def conditions_of(record: JobRecord, switches: SwitchConditions, lease_s: float) -> tuple[JobCondition, ...]:
    """Return all conditions of a job, in the order in which a job reaches them. `since_s` is left at 0."""
    return (
        _members_joined(record),
        _switch_ready(switches),
        _entries_installed(record, switches),
        _ready(record, switches, lease_s),
    )


def _members_joined(record: JobRecord) -> JobCondition:
    present = {member.rank for member in record.members if member.phase in _PRESENT}
    missing = [rank for rank in record.request.worker_ranks if rank not in present]
    if not missing:
        return JobCondition("MembersJoined", True, "AllJoined", f"{record.request.workers} workers")
    there = f"{record.request.workers - len(missing)} of {record.request.workers} workers"
    are = "is" if len(missing) == 1 else "are"
    return JobCondition("MembersJoined", False, "Missing", f"{there}: {ranks_in_words(missing)} {are} not there")


def _switch_ready(switches: SwitchConditions) -> JobCondition:
    reason = "".join(word.capitalize() for word in switches.reason.split("_"))
    return JobCondition("SwitchReady", not switches.switch, reason or "Reachable", switches.switch)


def _entries_installed(record: JobRecord, switches: SwitchConditions) -> JobCondition:
    reason, message = _ENTRIES[record.state]
    if record.state is JobState.RUNNING:
        return JobCondition("EntriesInstalled", True, reason, f"generation {record.generation}")
    if switches.job:
        delay = "SwitchNotReady" if switches.switch else "Delayed"
        return JobCondition("EntriesInstalled", False, delay, switches.job)
    return JobCondition("EntriesInstalled", False, reason, message)


def _ready(record: JobRecord, switches: SwitchConditions, lease_s: float) -> JobCondition:
    found = health_of(record, switches.job, {}, lease_s)
    able = record.state is JobState.RUNNING and found.health is not Health.STALLED
    return JobCondition("Ready", able, found.health.value.capitalize(), found.reason)
