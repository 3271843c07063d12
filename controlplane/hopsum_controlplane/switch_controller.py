# SPDX-License-Identifier: Apache-2.0
"""The controller of one switch: makes jobs and ends them, adopts those that it finds, and repairs what others did.

A job's life on the switch (rules S1, S5, E1, R3):

  create   allot job index, slots, generation -> write half-words -> lookup, requantize, rewrite, workers, group
           -> jobs: live
           any failure: remove what was written, the last first, and give everything back
  adopt    all of it stands: live; a part of it is missing, or decides sums and was changed: lost, see delete
  delete   remove jobs: no packet is admitted any more -> remove the rest -> give index and slots back
           any failure: keep them; delete or repair again goes on where it stopped

The `jobs` entry is the switch of life: everything else stands before it comes and until it has gone. Slots
and job index are free again only when the switch has confirmed that all entries of their generation are gone, so
no region ever has two generations. A generation is never used again, whatever happened.
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
    adoptions,
    check_no_duplicates,
    compare,
    foreign_generations,
    generations_in,
    is_of_a_job,
    moved,
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
    """Frames that a port has lost since the program started."""

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
    """A job that holds slots: live, or `ending` until the switch has confirmed that nothing of it stands."""

    job: Job
    plan: Plan
    transaction: EntryTransaction
    ending: bool = False

    @property
    def entities(self) -> tuple[Entity, ...]:
        return self.transaction.entities if self.ending else self.plan.entities


class SwitchController:
    """The one controller of a switch: makes and ends jobs there. Not thread-safe.

    Construction reads the switch, adopts jobs, and writes the address of the service. Raises ControlPlaneError when
    foreign jobs are installed there, or when the switch fails: construct again with the same jobs then.

    device: the switch. switch: the address of its aggregation service.
    generations: allots for all switches of one controller.
    clock: unix seconds.
    remove_existing: end foreign jobs.
    keep_existing: leave unknown generations installed. Their slots stay reserved; `foreign` lists them.
    removable: keys of foreign entries that are removed all the same.
    adopt: jobs that the caller's database says run here; `adoptions` has the fate of each.
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
        """Entries that were removed and restored when it took the switch over."""
        self._foreign: dict[int, ForeignGeneration] = {}
        self._keep_existing = keep_existing
        self._adoptions = self._take_over(adopt, remove_existing, removable)

    @property
    def switch(self) -> SwitchEndpoint:
        """The MAC and IPv4 address of the aggregation service, to which workers send."""
        return self._switch

    @property
    def jobs(self) -> tuple[Job, ...]:
        """Return the jobs that hold slots, in the order of their generations: live, or not yet confirmed gone."""
        return tuple(self._installed[generation].job for generation in sorted(self._installed))

    @property
    def ending(self) -> tuple[Job, ...]:
        """Return the jobs whose removal the switch has not confirmed yet: `delete_job` or `repair` tries again."""
        return tuple(job for job in self.jobs if self._installed[job.generation].ending)

    @property
    def adoptions(self) -> Mapping[int, Adoption]:
        """Return, by generation, the fate of each job of `adopt`."""
        return MappingProxyType(self._adoptions)

    @property
    def foreign(self) -> tuple[ForeignGeneration, ...]:
        """Return the foreign generations that are kept, in their order."""
        return tuple(self._foreign[generation] for generation in sorted(self._foreign))

    @property
    def free_capacity(self) -> FreeCapacity:
        """Return the capacity that no job has."""
        return self._allocator.free_capacity

    def create_job(
        self,
        spec: JobSpec,
        *,
        job_index: int | None = None,
        region: SlotRange | None = None,
        generation: int | None = None,
    ) -> Job:
        """Make a job: when this returns, the switch serves it.

        `job_index`, `region` and `generation`, never used before, are chosen here unless given. Raises
        ControlPlaneError when the specification is wrong, there is no room, or the switch fails. Then nothing of the
        job is left. When even the removal fails, the message says so, its slots stay taken, and `delete_job` on the
        job found in `ending` tries again.
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
        # The generation is counted as used before anything is written: a creation that fails has used it up (rule
        # E1).
        installed = self._allot(spec, job_index, region, generation)
        try:
            # One batch for each step: the next one is written when the switch has confirmed the one before.
            for step in installed.plan.steps:
                installed.transaction.write(step)
        except BaseException as error:
            self._roll_back(installed, error)
            raise
        return installed.job

    def delete_job(self, job: Job) -> None:
        """End a job: when this returns, nothing of it stands on the switch, and its slots are free.

        The workers must have left (rule R3). Raises ControlPlaneError when the job is unknown, or the
        switch fails: the job is in `ending` then, unless it is untouched. Its slots stay taken. Call again to continue.
        """
        installed = self._known(job)
        before = installed.ending
        try:
            self._end(installed)
        except ControlPlaneError as error:
            # A refusal names what is left. Where all entries are left the job is untouched, and may run on.
            refused = not isinstance(error, WriteError) or error.failures
            if refused and installed.transaction.remaining == len(installed.plan.entities):
                installed.ending = before
            raise

    def audit(self) -> Audit:
        """Compare the entries on the switch with those that should be there. Changes nothing.

        Half-words are not looked at: an audit of them takes long, and is made at construction.
        Raises ControlPlaneError when the switch does not answer.
        """
        actual = read_installed(self._device)
        # The places of kept generations that the switch does not admit any more are free.
        admitted = generations_in(actual.values(), admit.JOBS)
        for kept in self.foreign:
            if kept.generation not in admitted:
                del self._foreign[kept.generation]
                # A job of the database may have had that place all along.
                with suppress(KeyError):
                    self._allocator.free(kept.allocation)
        return self._compare(actual)

    def repair(self, audit: Audit) -> RepairResult:
        """Repair the differences that an audit found between the switch and its jobs.

        Jobs that are lost are ended, their slots are free then. See `Audit.lost` beforehand. Foreign entries are
        removed, changed ones restored, unfinished removals finished. What has changed here since the audit is left
        alone. Raises ControlPlaneError when the switch fails: audit again, and go on.
        """
        # By rule E1 a job that lacks an entry is not completed again: its slots may hold sums that nobody may see.
        lost = [
            self._installed[finding.job.generation]
            for finding in audit.findings
            if finding.lost and self._runs(finding.job)
        ]
        gone = {finding.job.generation: finding.missing for finding in audit.findings}
        for installed in lost:
            # Set before the removal: an audit meanwhile counts what is left as leftover, not as missing.
            installed.ending = True
            # Entries that the audit has not found are gone already: deleting them would be refused.
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
        """Raise ControlPlaneError when a job like this can never be made here, however much room there is."""
        spec.check()
        validate_capabilities(self._device, spec)

    def job_counters(self, job: Job) -> dict[str, int]:
        """Read what the switch did with the job's packets since its start, by event name in small letters.

        Raises ControlPlaneError when the job is unknown, or the switch does not answer.
        """
        self._known(job)
        now = self._read_events(job.job_index)
        start = job.events_at_start or (0,) * len(now)
        return {event.name.lower(): now[event] - start[event] for event in Event}

    def drop_counters(self) -> dict[str, int]:
        """Read how many packets the switch has dropped, by reason in small letters, over all jobs.

        Raises ControlPlaneError when the switch does not answer.
        """
        cells = self._device.read_counter("drops")
        return {reason.name.lower(): cells[reason].packets for reason in Drop if reason is not Drop.NONE}

    def set_loss(self, port: int, ingress_probability: float = 0.0, egress_probability: float = 0.0) -> None:
        """Let the loss simulator drop frames that come in or go out through a port, from now on. 0 stands for none.

        Probabilities are 0 .. 1, in steps of 2^-32. Raises ControlPlaneError when port or probability are none, with
        nothing written, or the switch fails.
        """
        set_loss(self._device, port, ingress_probability, egress_probability)

    def clear_losses(self) -> None:
        """Switch the loss simulator off on all ports. Raises ControlPlaneError when the switch fails."""
        found = [entry for direction in Direction for entry in self._device.read_table(direction.table)]
        if found:
            self._device.write([Delete(entry) for entry in found])

    def loss_counters(self) -> dict[int, DropStats]:
        """Read how many frames the loss simulator dropped, by port and direction. Ports without loss are left out.

        Raises ControlPlaneError when the switch does not answer.
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
        """Adopt the installed jobs of the database, and see that no other job is installed."""
        # The database comes first: the places of its jobs are taken before the switch is read, so that no foreign
        # generation gets one.
        check_no_duplicates(adopt)
        for job in adopt:
            self._allocator.allocate(job.slots, job.job_index, job.region)
            wants = plan(job, self._device.program)
            transaction = EntryTransaction(self._device, wants.steps)
            self._installed[job.generation] = _InstalledJob(
                job, wants, transaction, ending=bool(moved(job, self._switch))
            )
            self._use_generation(job.generation)
        actual = read_installed(self._device, thorough=True)
        # Generations of foreign entries are used up as well, whoever wrote them (rule E1).
        for generation in generations_in(actual.values(), *JOB_TABLES):
            self._use_generation(generation)
        # Half-words are 256 entries a table: reading them takes seconds, and is done at construction only.
        audit = self._compare(actual, thorough=True)
        foreign = [entity for entity in audit.foreign if is_of_a_job(entity) and entity.key() not in removable]
        if foreign and not remove_existing:
            self._keep(foreign, actual)
            audit = self._compare(actual, thorough=True)
        self.taken_over = self.repair(audit)
        for kept in self.foreign:
            # An adopted job may have that place too.
            with suppress(ControlPlaneError):
                self._allocator.allocate(kept.allocation.region.size, *kept.allocation)
        return adoptions(adopt, audit, self._switch)

    def _keep(self, foreign: Sequence[Entity], actual: Mapping[tuple[object, ...], Entity]) -> None:
        """Keep the generations among foreign entries. Raises ForeignEntriesError unless that is all of them."""
        # Half-words do not name a generation, so foreign ones cannot be told apart.
        can_keep = self._keep_existing and not self._device.program.half_words
        kept = foreign_generations(foreign, actual) if can_keep else []
        keys = {entity.key() for each in kept for entity in each.entities}
        if any(entity.key() not in keys for entity in foreign):
            raise ForeignEntriesError(
                f"{len(foreign)} entries of another controller stand here, live generations "
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
            # Event counters belong to the job index and go on counting: the job's counts are differences from here.
            events = tuple(self._read_events(index))
        except BaseException:
            self._allocator.free(allocation)
            raise
        device, can = self._device, self._device.capabilities
        place = (self._switch, generation, index, slots, can.max_window, device.program.code_group, can.ops)
        job = replace(Job.at(spec, *place), events_at_start=events)
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
        """Note a generation that stands here, or will. A job that comes must not have had it before."""
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
                f"may stand ({again}): slots {job.slot_base} .. {job.region.end - 1} and job index "
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
    """Return the remedy for a job whose operation, one with a table, a switch does not have."""
    shape = SHAPES[op]
    if shape.down_codes:
        bits = "" if shape.code_bits == 4 else "bits=4 and "
        return f"leave {shape.table} out: take the codec with {bits}result_bits=8"
    return "use a codec without a lookup table" if shape.lane_bits == 8 else f"leave {shape.table} out"


def validate_capabilities(device: Device, spec: JobSpec) -> None:
    """Raise ControlPlaneError when a job like this can never be on the switch, however much room there is."""
    target = device.capabilities.target
    for op in spec.lookups:
        if op not in device.capabilities.ops:
            raise _wrong(device, spec, f"the program of {target} has no {op.name}", _instead(op))
    if (spec.leaves or spec.parent is not None) and not device.program.trees:
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
