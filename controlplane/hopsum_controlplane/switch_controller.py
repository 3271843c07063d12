# SPDX-License-Identifier: Apache-2.0
"""The controller of one switch: creates, adopts and deletes jobs, and repairs entries that other clients changed.

A job on the switch (rules S1, S5, E1, R3):

  create   allocate job index, slots, generation -> write half-words -> lookup, requantize, rewrite, workers, group
           -> jobs: live
           after a failure: remove the written entries in reverse order, and free index and slots
  adopt    all entries are installed: live; one is missing, or one that decides sums was changed: lost, see delete
  delete   remove jobs: no packet is admitted any more -> remove the rest -> free index and slots
           after a failure: keep them; another delete or repair continues

The `jobs` entry makes a job live: it is written after all other entries and removed before them. Slots and job index
are free only after the switch has confirmed the removal of all entries of their generation, so a region never has two
generations. A generation number is never used again, also after a failure.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple

from hopsum_controlplane.audit import (
    Adoption,
    Audit,
    DesiredJob,
    ForeignGeneration,
    RepairResult,
    address_change,
    adoptions,
    check_no_duplicates,
    compare,
    foreign_generations,
    generations_in,
    is_of_a_job,
    read_installed,
)
from hopsum_controlplane.devices.device import Device
from hopsum_controlplane.entries import Delete, Entity, Insert, Modify, Update
from hopsum_controlplane.entry_plan import JOB_TABLES, Plan, plan
from hopsum_controlplane.entry_transaction import EntryTransaction
from hopsum_controlplane.errors import ControlPlaneError, ForeignEntriesError, WriteError
from hopsum_controlplane.job_spec import Job, JobSpec, SwitchEndpoint
from hopsum_controlplane.resource_allocator import (
    MAX_GENERATION,
    Allocation,
    FreeCapacity,
    GenerationAllocator,
    ResourceAllocator,
    SlotRange,
)
from hopsum_controlplane.tables import address, admit
from hopsum_controlplane.tables.lookup import without_half_words
from hopsum_controlplane.tables.loss import Direction, loss
from hopsum_wire import JOB_EVENTS, MAX_SLOTS, Drop, Event, Op, down_bytes, up_bytes
from hopsum_wire.payload import SHAPES


class DropStats(NamedTuple):
    """Frames that the loss simulator dropped at a port since the program started."""

    ingress: int
    egress: int


def set_loss(device: Device, port: int, ingress_probability: float, egress_probability: float) -> None:
    """Set the loss of a port, as SwitchController.set_loss, on a device whose jobs another process controls."""
    wanted = {
        Direction.INGRESS: loss(Direction.INGRESS, port, ingress_probability),
        Direction.EGRESS: loss(Direction.EGRESS, port, egress_probability),
    }
    updates: list[Update] = []
    for direction, entries in wanted.items():
        actual = [entry for entry in device.read_table(direction.table) if entry.match["port"] == port]
        # A port has one entry in each direction, or none.
        if not entries:
            updates += [Delete(entry) for entry in actual]
        elif actual != entries:
            updates += [Modify(entry) if actual else Insert(entry) for entry in entries]
    if updates:
        device.write(updates)


@dataclass
class _InstalledJob:
    """A job that holds slots: live, or `ending` until the switch has confirmed the removal of all its entries."""

    job: Job
    plan: Plan
    transaction: EntryTransaction
    ending: bool = False

    @property
    def entities(self) -> tuple[Entity, ...]:
        return self.transaction.entities if self.ending else self.plan.entities


class SwitchController:
    """The controller of one switch, which must have no other: creates and deletes jobs. Not thread-safe.

    Construction reads the switch, adopts jobs, repairs their entries, and writes the address of the service. It raises
    ControlPlaneError if foreign jobs are installed, or the switch fails: construct again with the same jobs then.

    device: the switch. switch: the address of its aggregation service.
    generations: the allocator that all switches of one controller share.
    clock: unix seconds.
    remove_existing: whether to remove foreign jobs.
    keep_existing: whether to keep unknown generations. Their slots stay reserved; `foreign` lists them.
    removable: keys of foreign entries that are removed in any case.
    adopt: the jobs of the caller's database on this switch; `adoptions` has the result for each.
    slots: number of the switch's slots that may be used.
    """

    def __init__(
        self,
        device: Device,
        switch: SwitchEndpoint,
        *,
        generations: GenerationAllocator | None = None,
        clock: Callable[[], float] = time.time,
        remove_existing: bool = False,
        keep_existing: bool = False,
        removable: Collection[tuple[object, ...]] = (),
        adopt: Sequence[Job] = (),
        slots: int = MAX_SLOTS,
    ) -> None:
        switch.check()
        self._device = device
        self._switch = switch
        self._generations = generations if generations is not None else GenerationAllocator()
        self._clock = clock
        self._allocator = ResourceAllocator(slots)
        # By generation: every job whose removal is not confirmed.
        self._installed: dict[int, _InstalledJob] = {}
        self._used_generations: set[int] = set()
        self.taken_over = RepairResult()
        """The entries that construction removed and restored."""
        self._foreign: dict[int, ForeignGeneration] = {}
        self._keep_existing = keep_existing
        self._adoptions = self._take_over(adopt, remove_existing, removable)

    @property
    def switch(self) -> SwitchEndpoint:
        """Return the MAC and IPv4 address of the aggregation service, to which workers send."""
        return self._switch

    @property
    def jobs(self) -> tuple[Job, ...]:
        """Return the jobs that hold slots, in the order of their generations: live ones, and those in `ending`."""
        return tuple(self._installed[generation].job for generation in sorted(self._installed))

    @property
    def ending(self) -> tuple[Job, ...]:
        """Return the jobs whose removal the switch has not confirmed yet: `delete_job` or `repair` tries again."""
        return tuple(job for job in self.jobs if self._installed[job.generation].ending)

    @property
    def adoptions(self) -> Mapping[int, Adoption]:
        """Return the result of `adopt` for each job, by generation."""
        return MappingProxyType(self._adoptions)

    @property
    def foreign(self) -> tuple[ForeignGeneration, ...]:
        """Return the kept foreign generations, in ascending order."""
        return tuple(self._foreign[generation] for generation in sorted(self._foreign))

    @property
    def free_capacity(self) -> FreeCapacity:
        """Return the free slots and job indices."""
        return self._allocator.free_capacity

    def create_job(
        self,
        spec: JobSpec,
        *,
        job_index: int | None = None,
        region: SlotRange | None = None,
        generation: int | None = None,
    ) -> Job:
        """Create a job. When this returns, the switch serves it.

        `job_index`, `region` and `generation` are chosen unless given. A given generation must be new. Raises
        ControlPlaneError if the specification is wrong, the name is taken, there is no room, or the switch fails. Then
        no entry of the job is left. If the removal fails too, the message says so, the slots stay taken, and the job is
        in `ending`: call `delete_job` with it.
        """
        self.check(spec)
        if not spec.children:
            raise _wrong(self._device, spec, "no workers", "name the places of its workers")
        room = self._device.program.lookups
        having = sum(Op.LOOKUP_ADD8 in installed.job.spec.lookups for installed in self._installed.values())
        if Op.LOOKUP_ADD8 in spec.lookups and having >= room:
            what = f"{having} jobs have lookup tables, and the program has room for {room}"
            raise _wrong(self._device, spec, what, "end one of them, or use a codec without a lookup table")
        if any(installed.job.spec.name == spec.name for installed in self._installed.values()):
            raise ControlPlaneError(f"a job {spec.name!r} exists", hint="delete it first, or choose another name")
        # The generation counts as used before the first write, because a failed creation has used it too (rule E1).
        installed = self._allot(spec, job_index, region, generation)
        try:
            # One batch for each step: the switch confirms a batch before the next one is written.
            for step in installed.plan.steps:
                installed.transaction.write(step)
        except BaseException as error:
            self._roll_back(installed, error)
            raise
        return installed.job

    def delete_job(self, job: Job) -> None:
        """Delete a job. When this returns, the switch has no entry of it, and its slots are free.

        The workers must have left (rule R3). Raises ControlPlaneError if the job is unknown, or the switch fails. After
        a failure the job is in `ending`, unless none of its entries was removed, and its slots stay taken: call again.
        """
        installed = self._known(job)
        before = installed.ending
        try:
            self._end(installed)
        except ControlPlaneError as error:
            # If the switch refused all removals, the job is unchanged, and may continue.
            refused = not isinstance(error, WriteError) or error.failures
            if refused and installed.transaction.remaining == len(installed.plan.entities):
                installed.ending = before
            raise

    def audit(self) -> Audit:
        """Compare the entries on the switch with the entries of its jobs. Changes nothing on the switch.

        Kept generations that the switch no longer admits are dropped from `foreign`, and their slots are free.
        Half-words are compared only at construction, because their audit takes long. Raises ControlPlaneError if the
        switch does not answer.
        """
        actual = read_installed(self._device)
        # Kept generations that the switch no longer admits free their index and slots.
        admitted = generations_in(actual.values(), admit.JOBS)
        for kept in self.foreign:
            if kept.generation not in admitted:
                del self._foreign[kept.generation]
                # A job of the database may have the same index and slots.
                with suppress(KeyError):
                    self._allocator.free(kept.allocation)
        return self._compare(actual)

    def repair(self, audit: Audit) -> RepairResult:
        """Repair the differences of an audit between the switch and its jobs.

        Lost jobs (`Audit.lost`) are deleted, and their slots are free. Foreign entries are removed, changed entries and
        the service's address are restored, and unfinished removals are finished. Jobs that have changed since the audit
        are not touched. Raises ControlPlaneError if the switch fails: call `audit` and `repair` again.
        """
        # By rule E1 a job that lacks an entry is not completed again: its slots may have sums of another job.
        lost = [
            self._installed[finding.job.generation]
            for finding in audit.findings
            if finding.lost and self._runs(finding.job)
        ]
        gone = {finding.job.generation: finding.missing for finding in audit.findings}
        for installed in lost:
            # Set before the removal: an audit meanwhile counts remaining entries as leftover, not as missing.
            installed.ending = True
            # The switch would refuse to delete entries that the audit has not found.
            installed.transaction.forget(gone[installed.job.generation])
        ending = [installed for installed in self._installed.values() if installed.ending]
        for installed in ending:
            self._end(installed)
        removed = self._remove_foreign(audit.foreign)
        restored = self._restore(audit)
        return RepairResult(
            removed, restored, tuple(installed.job for installed in lost), tuple(installed.job for installed in ending)
        )

    def check(self, spec: JobSpec) -> None:
        """Raise ControlPlaneError if the switch can never have such a job, independent of free slots."""
        spec.check()
        validate_capabilities(self._device, spec)

    def job_counters(self, job: Job) -> dict[str, int]:
        """Read the counters of the job's packets since its start, by event name in small letters.

        Raises ControlPlaneError if the job is unknown, or the switch does not answer.
        """
        self._known(job)
        now = self._read_events(job.job_index)
        start = job.events_at_start or (0,) * len(now)
        return {event.name.lower(): now[event] - start[event] for event in Event}

    def drop_counters(self) -> dict[str, int]:
        """Read the counters of packets that the program dropped since it started, by reason in small letters.

        Raises ControlPlaneError if the switch does not answer.
        """
        cells = self._device.read_counter("drops")
        return {reason.name.lower(): cells[reason].packets for reason in Drop if reason is not Drop.NONE}

    def set_loss(self, port: int, ingress_probability: float = 0.0, egress_probability: float = 0.0) -> None:
        """Set the loss simulator of a port: the probabilities of dropping received and sent frames.

        Probabilities are 0 .. 1, in steps of 2^-32; 0 switches the loss off. Raises ControlPlaneError for an invalid
        port or probability, before it writes, or if the switch fails.
        """
        set_loss(self._device, port, ingress_probability, egress_probability)

    def clear_losses(self) -> None:
        """Switch the loss simulator off on all ports. Raises ControlPlaneError if the switch fails."""
        found = [entry for direction in Direction for entry in self._device.read_table(direction.table)]
        if found:
            self._device.write([Delete(entry) for entry in found])

    def loss_counters(self) -> dict[int, DropStats]:
        """Read the counters of the loss simulator, by port. Ports that lost no frame are left out.

        Raises ControlPlaneError if the switch does not answer.
        """
        cells = [self._device.read_counter(direction.counter) for direction in Direction]
        lost = (DropStats(*(cell.packets for cell in pair)) for pair in zip(*cells, strict=True))
        return {port: both for port, both in enumerate(lost) if any(both)}

    def _known(self, job: Job) -> _InstalledJob:
        installed = self._installed.get(job.generation)
        if installed is None or installed.job != job:
            raise ControlPlaneError(
                f"no job {job.spec.name!r} with generation {job.generation} here",
                hint="it was deleted, or is another controller's",
            )
        return installed

    def _runs(self, job: Job) -> bool:
        return job.generation in self._installed and not self._installed[job.generation].ending

    def _take_over(
        self, adopt: Sequence[Job], remove_existing: bool, removable: Collection[tuple[object, ...]]
    ) -> dict[int, Adoption]:
        """Adopt the installed jobs of the database. Raises ForeignEntriesError for other jobs, as the options say."""
        # Jobs of the database get their index and slots before foreign generations do.
        check_no_duplicates(adopt)
        for job in adopt:
            self._allocator.allocate(job.slots, job.job_index, job.region)
            wants = plan(job, self._device.program)
            transaction = EntryTransaction(self._device, wants.steps)
            self._installed[job.generation] = _InstalledJob(
                job, wants, transaction, ending=bool(address_change(job, self._switch))
            )
            self._use_generation(job.generation)
        actual = read_installed(self._device, thorough=True)
        # Generations of foreign entries count as used too (rule E1).
        for generation in generations_in(actual.values(), *JOB_TABLES):
            self._use_generation(generation)
        # Half-words are 256 entries/table: reading them takes seconds, so only construction does.
        audit = self._compare(actual, thorough=True)
        foreign = [entity for entity in audit.foreign if is_of_a_job(entity) and entity.key() not in removable]
        if foreign and not remove_existing:
            self._keep(foreign, actual)
            audit = self._compare(actual, thorough=True)
        self.taken_over = self.repair(audit)
        for kept in self.foreign:
            # An adopted job may have the same index and slots.
            with suppress(ControlPlaneError):
                self._allocator.allocate(kept.allocation.region.size, *kept.allocation)
        return adoptions(adopt, audit, self._switch)

    def _keep(self, foreign: Sequence[Entity], actual: Mapping[tuple[object, ...], Entity]) -> None:
        """Keep foreign generations. Raises ForeignEntriesError if there are other foreign entries."""
        # Half-words do not name a generation, so foreign ones cannot be told apart.
        can_keep = self._keep_existing and not self._device.program.half_words
        kept = foreign_generations(foreign, actual) if can_keep else []
        keys = {entity.key() for each in kept for entity in each.entities}
        if any(entity.key() not in keys for entity in foreign):
            raise ForeignEntriesError(
                f"{len(foreign)} entries of another controller are installed here, live generations "
                f"{generations_in(foreign, admit.JOBS)}",
                foreign,
                where=self._device.where,
                hint="use that controller, or remove them (--remove-existing), which cuts their workers off",
            )
        self._foreign = {each.generation: each for each in kept}

    def _compare(self, actual: Mapping[tuple[object, ...], Entity], *, thorough: bool = False) -> Audit:
        ordered = [self._installed[generation] for generation in sorted(self._installed)]
        wanted = [DesiredJob(installed.job, installed.entities, installed.ending) for installed in ordered]
        if not thorough:
            wanted = [replace(each, entities=without_half_words(each.entities)) for each in wanted]
        kept = {entity.key() for foreign in self.foreign for entity in foreign.entities}
        actual = {key: entity for key, entity in actual.items() if key not in kept}
        return compare(self._device.where, actual, wanted, address.switch_address(self._switch))

    def _remove_foreign(self, foreign: Sequence[Entity]) -> tuple[Entity, ...]:
        ours = {entity.key() for installed in self._installed.values() for entity in installed.entities}
        going = [entity for entity in foreign if entity.key() not in ours]
        admitting = [entity for entity in going if generations_in([entity], admit.JOBS)]
        rest = [entity for entity in going if entity not in admitting]
        # Removed in the reverse order: the admitting entries first, so that no packet meets half a job.
        EntryTransaction(self._device, [rest, admitting]).remove()
        return *admitting, *rest

    def _restore(self, audit: Audit) -> tuple[Entity, ...]:
        updates: list[Update] = [
            Modify(change.wanted)
            for finding in audit.findings
            if not finding.lost and self._runs(finding.job)
            for change in finding.changed
        ]
        if audit.address is not None:
            # Read again: the address may have changed since the audit.
            entry = address.switch_address(self._switch)
            actual = {found.key(): found for found in self._device.read_table(entry.table)}
            if entry.key() not in actual:
                updates.append(Insert(entry))
            elif actual[entry.key()] != entry:
                updates.append(Modify(entry))
        if updates:
            self._device.write(updates)
        return tuple(update.entity for update in updates)

    def _allot(
        self, spec: JobSpec, job_index: int | None, region: SlotRange | None, generation: int | None
    ) -> _InstalledJob:
        allocation = self._allocator.allocate(spec.slots, job_index, region)
        index, slots = allocation
        try:
            generation = (
                self._generations.allot(self._clock()) if generation is None else self._check_generation(generation)
            )
            self._use_generation(generation)
            # Event counters belong to the job index and are never reset: the job's counts are differences.
            events = tuple(self._read_events(index))
        except BaseException:
            self._allocator.free(allocation)
            raise
        device, can = self._device, self._device.capabilities
        place = (self._switch, generation, index, slots, can.max_window, device.program.code_group, can.ops)
        job = replace(Job.build(spec, *place), events_at_start=events)
        installed = _InstalledJob(job, plan(job, device.program), EntryTransaction(self._device))
        self._installed[generation] = installed
        return installed

    def _check_generation(self, generation: int) -> int:
        if not 1 <= generation <= MAX_GENERATION:
            raise ControlPlaneError(f"generation {generation}", hint=f"generations are 1 .. {MAX_GENERATION}")
        if generation in self._used_generations:
            raise ControlPlaneError(
                f"generation {generation} has been on this switch before",
                where=self._device.where,
                hint="allot another",
            )
        return generation

    def _use_generation(self, generation: int) -> None:
        """Record a generation as used, so that no later job gets it."""
        self._used_generations.add(generation)
        self._generations.observe(generation)

    def _read_events(self, job_index: int) -> list[int]:
        cells = self._device.read_counter("job_events", job_index * JOB_EVENTS, JOB_EVENTS)
        return [cell.packets for cell in cells]

    def _roll_back(self, installed: _InstalledJob, error: BaseException) -> None:
        job = installed.job
        try:
            self._end(installed)
        except ControlPlaneError as again:
            raise ControlPlaneError(
                f"job {job.spec.name!r} was not made ({error}), and {installed.transaction.remaining} of its entries "
                f"may be installed ({again}): slots {job.slot_base} .. {job.region.end - 1} and job index "
                f"{job.job_index} stay taken",
                where=self._device.where,
                hint="call delete_job with it (see SwitchController.ending) when the switch answers again",
            ) from error

    def _end(self, installed: _InstalledJob) -> None:
        installed.ending = True
        installed.transaction.remove()
        del self._installed[installed.job.generation]
        self._allocator.free(Allocation(installed.job.job_index, installed.job.region))


def _instead(op: Op) -> str:
    """Return the remedy for a job with a table whose operation the switch lacks."""
    shape = SHAPES[op]
    if shape.down_codes:
        bits = "" if shape.code_bits == 4 else "bits=4 and "
        return f"leave {shape.table} out: take the codec with {bits}result_bits=8"
    return "use a codec without a lookup table" if shape.lane_bits == 8 else f"leave {shape.table} out"


def validate_capabilities(device: Device, spec: JobSpec) -> None:
    """Raise ControlPlaneError if the switch can never have such a job, independent of free slots."""
    target = device.capabilities.target
    for op in spec.lookups:
        if op not in device.capabilities.ops:
            raise _wrong(device, spec, f"the program of {target} has no {op.name}", _instead(op))
    if (spec.leaves or spec.parent is not None) and not device.program.supports_trees:
        hint = "make a job of one switch, or use another target"
        raise _wrong(device, spec, f"the program of {target} knows no trees of switches", hint)
    # LOOKUP_ADD16 sends 4-bit codes up and 16-bit sums down: its results are the longest compared with their packets.
    limit, growth = device.capabilities.max_growth_bytes, down_bytes(Op.LOOKUP_ADD16) - up_bytes(Op.LOOKUP_ADD16)
    if Op.LOOKUP_ADD16 in spec.lookups and limit is not None and growth > limit:
        what = (
            f"LOOKUP_ADD16 lets a frame grow by {growth} bytes in the switch, {target} has room for {limit} more and "
            "would write over its own memory"
        )
        raise _wrong(device, spec, what, "leave table16 out, or use another target")


def _wrong(device: Device, spec: JobSpec, what: str, hint: str) -> ControlPlaneError:
    return ControlPlaneError(f"job {spec.name!r}: {what}", where=device.where, hint=hint)
