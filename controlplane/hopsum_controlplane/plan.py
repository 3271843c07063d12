# SPDX-License-Identifier: Apache-2.0
"""What a job wants on its switch, in the two steps in which it is written."""

from __future__ import annotations

from dataclasses import dataclass

from hopsum_controlplane.entries import Entity, TableEntry
from hopsum_controlplane.jobs import Job
from hopsum_controlplane.program import V1MODEL, Program
from hopsum_controlplane.tables import admit, lookup, reply, tree

JOB_TABLES = V1MODEL.job_tables
"""The tables of software switches whose entries belong to epochs."""

_SUMMING_TABLES = {admit.JOBS, admit.WORKERS, lookup.LOOKUP, tree.LEAVES, tree.PARENTS}


@dataclass(frozen=True)
class Plan:
    """The entries of one job: `support` stands before `admission` comes, and until it has gone."""

    support: tuple[Entity, ...]
    admission: tuple[Entity, ...]

    @property
    def entities(self) -> tuple[Entity, ...]:
        """Return all of them in the order of writing."""
        return *self.support, *self.admission


def plan(job: Job, program: Program = V1MODEL) -> Plan:
    """Return what `job` wants of a switch that runs `program`. Pure."""
    support: list[Entity] = [*lookup.lookup(job, program), *reply.rewrite(job), *admit.workers(job), *reply.group(job)]
    support += [*tree.leaves(job), *tree.parent(job)]
    return Plan(tuple(support), tuple(admit.jobs(job)))


def decides_sums(entity: Entity) -> bool:
    """Return whether what is summed depends on the entry: who is admitted, as whom, where to, by which table.

    The others only say where results go. With one of those wrong for a while no slot holds anything that it should
    not; with one of these it may, and rule S5 wants them constant in an epoch.
    """
    return isinstance(entity, TableEntry) and (entity.table in _SUMMING_TABLES or lookup.is_half_word(entity))
