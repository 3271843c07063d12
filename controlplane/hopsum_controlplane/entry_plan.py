# SPDX-License-Identifier: Apache-2.0
"""The entries of a job on its switch, in the steps in which they are written."""

from __future__ import annotations

from dataclasses import dataclass

from hopsum_controlplane.entries import Entity, TableEntry
from hopsum_controlplane.job_spec import Job
from hopsum_controlplane.program import V1MODEL, Program
from hopsum_controlplane.tables import admit, lookup, reply, requantize, tree

JOB_TABLES = V1MODEL.job_tables
"""The tables of software switches whose entries belong to generations."""

_SUMMING_TABLES = {admit.JOBS, admit.WORKERS, lookup.LOOKUP, requantize.REQUANTIZE, tree.LEAVES, tree.PARENTS}


@dataclass(frozen=True)
class Plan:
    """The entries of one job on one switch, in three steps.

    tables: half-words of a Tofino program, installed first and removed last. A packet that was admitted looks up in
        later passes through the chip; where the tables are gone, its result finds no `rewrite` either, and is dropped.
    support: installed before `admission` and removed after it.
    admission: the entry that admits packets of the generation.
    """

    support: tuple[Entity, ...]
    admission: tuple[Entity, ...]
    tables: tuple[Entity, ...] = ()

    @property
    def steps(self) -> tuple[tuple[Entity, ...], ...]:
        """Return the steps in the order of writing, without an empty `tables`.

        A step is written when the switch has confirmed the step before.
        """
        return *((self.tables,) if self.tables else ()), self.support, self.admission

    @property
    def entities(self) -> tuple[Entity, ...]:
        """Return all entities of the plan, in the order in which the switch must get them."""
        return tuple(entity for step in self.steps for entity in step)


def plan(job: Job, program: Program = V1MODEL) -> Plan:
    """Build all entries of `job` on a switch that runs `program`. Nothing is written."""
    # Within a step the switch may apply updates in any order, so nothing in a step may depend on the rest of it.
    support: list[Entity] = [*lookup.lookup(job, program), *reply.rewrite(job), *admit.workers(job), *reply.group(job)]
    support += [*requantize.requantize(job), *tree.leaves(job), *tree.parent(job)]
    # `jobs` alone admits packets: it is the last entry in and the first entry out (rules S1 and S5). So the program
    # never finishes a sum whose thresholds it lacks.
    return Plan(tuple(support), tuple(admit.jobs(job)), tuple(lookup.half_words(job, program)))


def decides_sums(entity: Entity) -> bool:
    """Return whether sums depend on the entry: the worker that it admits, its bit, its slots, or its tables.

    The others only say where results go. With one of those wrong for a while no slot holds anything that it should
    not. With one of these it may, and rule S5 wants them constant in a generation.
    """
    return isinstance(entity, TableEntry) and (entity.table in _SUMMING_TABLES or lookup.is_half_word(entity))
