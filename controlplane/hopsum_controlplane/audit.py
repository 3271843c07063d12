# SPDX-License-Identifier: Apache-2.0
"""Comparison of the entries on a switch with the entries that it should have.

The audit covers the tables of generations, the address of the service, and the multicast groups of jobs. Layer-2
forwarding and the drop simulator belong to the caller that set them.

    installed, of no job                               foreign     removed
    installed, of a job whose end is not confirmed     leftover    its removal continues
    installed with another action, decides no sums     changed     restored, the job continues
    installed with another action, decides sums        changed     the job is lost (rule S5)
    wanted, not installed                              missing     the job is lost: never inserted again (rule E1)

A lost job ends on this switch: its remaining entries are removed, and its workers need a new generation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Final, NamedTuple

from hopsum_controlplane.devices.device import Device
from hopsum_controlplane.entries import Entity, Insert, Modify, MulticastGroup, TableEntry
from hopsum_controlplane.entry_plan import JOB_TABLES, decides_sums
from hopsum_controlplane.errors import ControlPlaneError
from hopsum_controlplane.job_spec import Job, SwitchEndpoint
from hopsum_controlplane.resource_allocator import Allocation, SlotRange
from hopsum_controlplane.tables import admit
from hopsum_controlplane.tables.address import SWITCH_ADDRESS
from hopsum_controlplane.tables.lookup import is_half_word
from hopsum_wire import MAX_JOBS

Key = tuple[object, ...]


class Changed(NamedTuple):
    """An entry whose action or parameters were changed by another program."""

    wanted: Entity
    found: Entity

    def __str__(self) -> str:
        """Return both as text."""
        return f"{self.found} instead of {self.wanted}"


@dataclass(frozen=True)
class JobFinding:
    """A running job of `entries` entries, some of which are missing or changed on the switch.

    One missing entry makes it `lost`. A changed entry does so only if it decides sums.
    """

    job: Job
    entries: int
    missing: tuple[Entity, ...] = ()
    changed: tuple[Changed, ...] = ()

    @property
    def lost(self) -> bool:
        """Return whether the job's generation must end: an entry is missing, or a changed one decides sums."""
        return bool(self.missing) or any(decides_sums(change.wanted) for change in self.changed)

    def __str__(self) -> str:
        """Describe the fault in one line, with numbers."""
        parts = []
        if self.missing:
            parts.append(f"{len(self.missing)} of {self.entries} entries missing, among them {self.missing[0]}")
        if self.changed:
            parts.append(f"{len(self.changed)} of {self.entries} entries changed, among them {self.changed[0]}")
        return f"job {self.job.spec.name!r}, generation {self.job.generation}: {'; '.join(parts)}"


@dataclass(frozen=True)
class Audit:
    """The result of one comparison of a switch with its jobs.

    Attributes:
        where: address of the switch.
        checked: number of entries on the switch.
        foreign: entries of no job of this controller.
        leftover: entries of jobs whose end the switch has not confirmed.
        findings: running jobs with missing or changed entries.
        address: the update that the service's address needs, None if it is right.
    """

    where: str
    checked: int
    foreign: tuple[Entity, ...] = ()
    leftover: tuple[Entity, ...] = ()
    findings: tuple[JobFinding, ...] = ()
    address: Insert | Modify | None = None

    @property
    def clean(self) -> bool:
        """Return whether the switch has exactly the wanted entries."""
        return not (self.foreign or self.leftover or self.findings or self.address)

    @property
    def lost(self) -> tuple[Job, ...]:
        """Return the jobs whose generations must end. `SwitchController.repair` ends them."""
        return tuple(finding.job for finding in self.findings if finding.lost)

    def in_words(self) -> list[str]:
        """Return the differences in words: a line for each foreign or leftover entry, finding, and wrong address."""
        return [
            *(f"foreign: {entity}" for entity in self.foreign),
            *(f"leftover: {entity}" for entity in self.leftover),
            *(f"{'lost' if finding.lost else 'changed'}: {finding}" for finding in self.findings),
            *([f"address of the service: {self.address} is needed"] if self.address else []),
        ]


@dataclass(frozen=True)
class RepairResult:
    """The outcome of `SwitchController.repair`.

    removed: foreign entries. restored: changed entries, and the entry of the service's address. The entries of `ended`
        jobs were removed too, and are neither in `removed` nor in `restored`.
    lost: jobs with a missing entry, or a changed one that decides sums.
    ended: the lost jobs, and the jobs that were being deleted.
    """

    removed: tuple[Entity, ...] = ()
    restored: tuple[Entity, ...] = ()
    lost: tuple[Job, ...] = ()
    ended: tuple[Job, ...] = ()


@dataclass(frozen=True)
class DesiredJob:
    """A job of the database: its entries, and whether it is being deleted."""

    job: Job
    entities: Sequence[Entity]
    ending: bool


def read_installed(device: Device, *, thorough: bool = False) -> dict[Key, Entity]:
    """Read from the switch the entries that an audit compares, and return them by `key()`.

    These are the multicast groups of jobs, the tables of generations, and the address of the service. `thorough` adds
    the tables of half-words (Tofino), which have most of the entries and take seconds.

    Raises ControlPlaneError if the switch does not answer.
    """
    # Groups above MAX_JOBS belong to layer-2 forwarding.
    found: list[Entity] = [group for group in device.read_groups() if 1 <= group.id <= MAX_JOBS]
    half_words = [half.table for half in device.program.half_words] if thorough else []
    for table in (*device.program.job_tables, *half_words, SWITCH_ADDRESS):
        found += device.read_table(table)
    return {entity.key(): entity for entity in found}


def compare(where: str, actual: Mapping[Key, Entity], jobs: Iterable[DesiredJob], address: Entity) -> Audit:
    """Compare the entries on a switch with those of `jobs` and with the entry of the service's address.

    `where` is the switch's address, and `actual` has the entries that `read_installed` returned. An entry that neither
    a job nor the address has is foreign. The audit has its findings in the order of `jobs`. Nothing is written.
    """
    # Every job claims its entries; unclaimed entries are foreign.
    unclaimed = dict(actual)
    leftover: list[Entity] = []
    findings: list[JobFinding] = []
    for wanted in jobs:
        found = {entity.key(): unclaimed.pop(entity.key(), None) for entity in wanted.entities}
        # A job that is being deleted has no missing entries: its remaining ones are removed.
        if wanted.ending:
            leftover += [entity for entity in found.values() if entity is not None]
            continue
        missing = tuple(entity for entity in wanted.entities if found[entity.key()] is None)
        changed = tuple(
            Changed(entity, other)
            for entity in wanted.entities
            if (other := found[entity.key()]) is not None and other != entity
        )
        if missing or changed:
            findings.append(JobFinding(wanted.job, len(wanted.entities), missing, changed))
    announced = unclaimed.pop(address.key(), None)
    need = Insert(address) if announced is None else Modify(address) if announced != address else None
    return Audit(where, len(actual), tuple(unclaimed.values()), tuple(leftover), tuple(findings), need)


def is_of_a_job(entity: Entity) -> bool:
    """Return whether an entry is of a kind that jobs have: any group, or an entry of a generation or of half-words.

    The job may be another controller's.
    """
    if isinstance(entity, TableEntry):
        return entity.table in JOB_TABLES or is_half_word(entity)
    return isinstance(entity, MulticastGroup)


def generations_in(entities: Iterable[Entity], *tables: str) -> list[int]:
    """Return the generations that entries of these tables name, each once, in ascending order."""
    found = {
        entity.match["generation"] for entity in entities if isinstance(entity, TableEntry) and entity.table in tables
    }
    return sorted(found)


_PLACE: Final = ("job_index", "slot_base", "slots", "group")
"""Parameters of an entry that admits a generation."""


@dataclass(frozen=True)
class ForeignGeneration:
    """A generation that a switch serves and the database does not have.

    generation, allocation: its number, and its job index and slots. entities: all its entries.
    workers: admitted IPv4 addresses, in order.
    """

    generation: int
    allocation: Allocation
    entities: tuple[Entity, ...]
    workers: tuple[str, ...]

    def __str__(self) -> str:
        """Return generation, slots and workers as text."""
        base, size = self.allocation.region
        at = f"slots {base}-{base + size - 1}, job index {self.allocation.job_index}"
        return f"generation {self.generation}: {at}, workers at {', '.join(self.workers) or 'no address'}"

    def overlaps(self, allocation: Allocation) -> bool:
        """Return whether this generation shares a slot or the job index with an allocation."""
        base, size = self.allocation.region
        other_base, other_size = allocation.region
        slots = base < other_base + other_size and other_base < base + size
        return slots or self.allocation.job_index == allocation.job_index


def foreign_generations(foreign: Iterable[Entity], actual: Mapping[Key, Entity]) -> list[ForeignGeneration]:
    """Return the generations that foreign entries admit, with their entries, in ascending order.

    Foreign entries of a generation that no entry admits are left out. `actual` has all entries, because a foreign
    generation may use the multicast group number of a wanted job.
    """
    entries = [entity for entity in foreign if isinstance(entity, TableEntry)]
    found = []
    for entry in entries:
        if entry.table == admit.JOBS and set(_PLACE) <= set(entry.params):
            # Entries of any table with the generation in their match belong to it.
            own = [each for each in entries if each.match.get("generation") == entry.match["generation"]]
            # A group's number does not identify its generation: the admitting entry names the group.
            group = [
                each
                for each in actual.values()
                if isinstance(each, MulticastGroup) and each.id == entry.params["group"]
            ]
            region = SlotRange(entry.params["slot_base"], entry.params["slots"])
            found.append(
                ForeignGeneration(
                    entry.match["generation"],
                    Allocation(entry.params["job_index"], region),
                    (*own, *group),
                    tuple(str(IPv4Address(each.params["address"])) for each in own if each.table == admit.WORKERS),
                )
            )
    return sorted(found, key=lambda each: each.generation)


@dataclass(frozen=True)
class Adoption:
    """The result of adopting one job of the database.

    A job that is not `lost` continues under its generation, and so do its counters; its `changed` entries were
    restored. A lost job has ended because of `reason` (rule E1), and no entry of it is left on the switch.
    """

    job: Job
    lost: bool
    reason: str = ""
    missing: tuple[Entity, ...] = ()
    changed: tuple[Changed, ...] = ()


def address_change(job: Job, switch: SwitchEndpoint) -> str:
    """Return in words how the service's address differs from the one that a job was made for, "" if it does not."""
    if job.switch == switch:
        return ""
    return (
        f"it was made for the service at {job.switch.ip} ({job.switch.mac}), which is at {switch.ip} ({switch.mac}) now"
    )


def adoptions(jobs: Sequence[Job], audit: Audit, switch: SwitchEndpoint) -> dict[int, Adoption]:
    """Return the result of adopting each of `jobs`, by generation, from an audit of the switch before its repair.

    A job is lost if the audit says so, or if it was made for another address than `switch`.
    """
    findings = {finding.job.generation: finding for finding in audit.findings}
    result = {}
    for job in jobs:
        finding, reason = findings.get(job.generation), address_change(job, switch)
        if finding is None:
            result[job.generation] = Adoption(job, bool(reason), reason)
        else:
            result[job.generation] = Adoption(job, finding.lost, str(finding), finding.missing, finding.changed)
    return result


def check_no_duplicates(jobs: Sequence[Job]) -> None:
    """Raise ControlPlaneError if two of the jobs have the same name or generation."""
    # A copied row of a database would give two jobs the same slots: checked before any write to the switch.
    for what in ("generation", "name"):
        values = [job.generation if what == "generation" else job.spec.name for job in jobs]
        twice = next((value for value in values if values.count(value) > 1), None)
        if twice is not None:
            raise ControlPlaneError(
                f"two of the {len(jobs)} jobs to adopt have the {what} {twice!r}", hint="give each job once"
            )
