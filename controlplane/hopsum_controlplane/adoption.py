# SPDX-License-Identifier: Apache-2.0
"""The fate of the jobs that a controller was started with."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from hopsum_controlplane.audit import Audit, Changed
from hopsum_controlplane.entries import Entity
from hopsum_controlplane.errors import ControlPlaneError
from hopsum_controlplane.jobs import Job, SwitchEndpoint


class AdoptionStatus(enum.Enum):
    """What became of an adopted job."""

    RUNNING = "running"
    LOST = "lost"


@dataclass(frozen=True)
class Adoption:
    """One job of the database as it was found.

    RUNNING: complete, it goes on, and so do its counters. `changed` entries were restored. LOST, because of `reason`:
    by rule E1 its generation is over, what was left of it is gone from the switch, its slots are free.
    """

    job: Job
    status: AdoptionStatus
    reason: str = ""
    missing: tuple[Entity, ...] = ()
    changed: tuple[Changed, ...] = ()


def moved(job: Job, switch: SwitchEndpoint) -> str:
    """Return why a job cannot be adopted at this address of the service, an empty string when it can."""
    if job.switch == switch:
        return ""
    return (
        f"it was made for the service at {job.switch.ip} ({job.switch.mac}), which is at {switch.ip} ({switch.mac}) now"
    )


def adoptions(jobs: Sequence[Job], audit: Audit, switch: SwitchEndpoint) -> dict[int, Adoption]:
    """Return by generation what `audit` found of `jobs`."""
    findings = {finding.job.generation: finding for finding in audit.findings}
    result = {}
    for job in jobs:
        finding, reason = findings.get(job.generation), moved(job, switch)
        if finding is None:
            result[job.generation] = Adoption(job, AdoptionStatus.LOST if reason else AdoptionStatus.RUNNING, reason)
        else:
            status = AdoptionStatus.LOST if finding.lost else AdoptionStatus.RUNNING
            result[job.generation] = Adoption(job, status, str(finding), finding.missing, finding.changed)
    return result


def check_no_duplicates(jobs: Sequence[Job]) -> None:
    """Raise ControlPlaneError when two of the jobs cannot stand on one switch, as far as names and generations tell."""
    for what in ("generation", "name"):
        values = [job.generation if what == "generation" else job.spec.name for job in jobs]
        twice = next((value for value in values if values.count(value) > 1), None)
        if twice is not None:
            raise ControlPlaneError(
                f"two of the {len(jobs)} jobs to adopt have the {what} {twice!r}", hint="give each job once"
            )
