# SPDX-License-Identifier: Apache-2.0
"""The controller of one switch: makes jobs and ends them.

A job's life on the switch (rules S1, S5, E1, R3):

  create   allot job index, slots, epoch -> write lookup, rewrite, workers, group -> write jobs: live
           any failure: remove what was written, the last first, and give everything back
  delete   remove jobs: no packet is admitted any more -> remove the rest -> give index and slots back
           any failure: keep them; delete again goes on where it stopped

The `jobs` entry is the switch of life: everything else stands before it comes and until it has gone. Slots
and job index are free again only when the switch has confirmed that all entries of their epoch are gone, so
no region ever has two epochs; an epoch is never used again, whatever happened.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from hopsum.wire import JOB_EVENTS, MAX_JOBS, MAX_SLOTS, Drop, Event
from hopsum_controlplane.devices.base import Device
from hopsum_controlplane.entries import Entity, Modify
from hopsum_controlplane.epochs import EpochAllocator
from hopsum_controlplane.errors import ControlPlaneError
from hopsum_controlplane.installer import Installation
from hopsum_controlplane.jobs import Job, JobSpec, SwitchEndpoint
from hopsum_controlplane.losses import Lost, clear_losses, read_lost, set_loss
from hopsum_controlplane.slots import SlotAllocator
from hopsum_controlplane.tables import address, admit, lookup, reply

_JOB_TABLES = (admit.JOBS, admit.WORKERS, lookup.LOOKUP, reply.REWRITE)


class Controller:
    """The one controller of `device`, whose service has the address `switch`. Not thread-safe.

    Construction reads the switch and writes its address. Raises ControlPlaneError when jobs of another
    controller stand there, unless `remove_existing`: then they are ended. `clock` gives unix seconds.
    """

    def __init__(
        self,
        device: Device,
        switch: SwitchEndpoint,
        *,
        epochs: EpochAllocator | None = None,
        clock: Callable[[], float] = time.time,
        remove_existing: bool = False,
    ) -> None:
        switch.check()
        self._device = device
        self._switch = switch
        self._epochs = epochs if epochs is not None else EpochAllocator()
        self._clock = clock
        self._slots = SlotAllocator(MAX_SLOTS)
        self._jobs: dict[int, Job] = {}  # by epoch: everything that is not confirmed gone
        self._installed: dict[int, Installation] = {}
        self._counted: dict[int, list[int]] = {}  # events at the start of the job
        self._take_over(remove_existing)
        self._announce()

    @property
    def jobs(self) -> tuple[Job, ...]:
        """Return the jobs that hold slots, in the order of their epochs: live, or not yet confirmed gone."""
        return tuple(self._jobs[epoch] for epoch in sorted(self._jobs))

    def create_job(self, spec: JobSpec) -> Job:
        """Make a job: when this returns, the switch serves it.

        Raises ControlPlaneError when the specification is wrong, there is no room, or the switch fails;
        nothing of the job is left then. When even the removal fails, the message says so, its slots stay
        taken, and `delete_job` on the job found in `jobs` tries again.
        """
        spec.check()
        if any(job.spec.name == spec.name for job in self._jobs.values()):
            raise ControlPlaneError(f"a job {spec.name!r} exists", hint="delete it first, or choose another name")
        job = self._allot(spec)
        installation = Installation(self._device)
        self._jobs[job.epoch] = job
        self._installed[job.epoch] = installation
        try:
            self._counted[job.epoch] = self._read_events(job)
            installation.write([*lookup.lookup(job), *reply.rewrite(job), *admit.workers(job), *reply.group(job)])
            installation.write(admit.jobs(job))
        except BaseException as error:
            self._roll_back(job, error)
            raise
        return job

    def delete_job(self, job: Job) -> None:
        """End a job: when this returns, nothing of it stands on the switch, and its slots are free.

        The workers must have left (rule R3). Raises ControlPlaneError when the job is unknown, or the
        switch fails: the job may be dead already, its slots stay taken; call again to go on.
        """
        self._check_known(job)
        self._installed[job.epoch].remove()
        self._forget(job)

    def job_counters(self, job: Job) -> dict[str, int]:
        """Read what the switch did with the job's packets since its start, by event name in small letters.

        Raises ControlPlaneError when the job is unknown, or the switch does not answer.
        """
        self._check_known(job)
        start, now = self._counted[job.epoch], self._read_events(job)
        return {event.name.lower(): now[event] - start[event] for event in Event}

    def drop_counters(self) -> dict[str, int]:
        """Read how many packets the switch has dropped, by reason in small letters, over all jobs.

        Raises ControlPlaneError when the switch does not answer.
        """
        cells = self._device.read_counter("drops")
        return {reason.name.lower(): cells[reason].packets for reason in Drop if reason is not Drop.NONE}

    def set_loss(self, port: int, ingress_probability: float = 0.0, egress_probability: float = 0.0) -> None:
        """Let the loss simulator drop frames that come in or go out through a port, from now on; 0: none.

        Probabilities are 0 .. 1, in steps of 2^-32. Raises ControlPlaneError when port or probability are none, with
        nothing written, or the switch fails.
        """
        set_loss(self._device, port, ingress_probability, egress_probability)

    def clear_losses(self) -> None:
        """Switch the loss simulator off on all ports. Raises ControlPlaneError when the switch fails."""
        clear_losses(self._device)

    def loss_counters(self) -> dict[int, Lost]:
        """Read how many frames the loss simulator dropped, by port and direction; ports without loss are left out.

        Raises ControlPlaneError when the switch does not answer.
        """
        return read_lost(self._device)

    def _check_known(self, job: Job) -> None:
        if self._jobs.get(job.epoch) != job:
            raise ControlPlaneError(
                f"no job {job.spec.name!r} with epoch {job.epoch} here",
                hint="it was deleted, or is another controller's",
            )

    def _take_over(self, remove_existing: bool) -> None:
        """See that no other controller's job stands on the switch: its slots are not in our books."""
        found = {table: self._device.read_table(table) for table in _JOB_TABLES}
        groups = [group for group in self._device.read_groups() if 1 <= group.id <= MAX_JOBS]
        for entries in found.values():
            for entry in entries:
                self._epochs.observe(entry.match["epoch"])
        rest: list[Entity] = [*groups, *(entry for table in _JOB_TABLES[1:] for entry in found[table])]
        foreign = Installation(self._device, [rest, found[admit.JOBS]])
        if foreign.remaining and not remove_existing:
            epochs = sorted(entry.match["epoch"] for entry in found[admit.JOBS])
            raise ControlPlaneError(
                f"{foreign.remaining} entries of another controller stand here, live epochs {epochs}",
                where=self._device.where,
                hint="use that controller, or remove them, which cuts their workers off",
            )
        foreign.remove()

    def _announce(self) -> None:
        entry = address.switch_address(self._switch)
        standing = {found.key(): found for found in self._device.read_table(entry.table)}
        if entry.key() not in standing:
            Installation(self._device).write([entry])
        elif standing[entry.key()] != entry:  # the same address with another MAC
            self._device.write([Modify(entry)])

    def _allot(self, spec: JobSpec) -> Job:
        taken = {job.job_index for job in self._jobs.values()}
        job_index = next((index for index in range(MAX_JOBS) if index not in taken), None)
        if job_index is None:
            raise ControlPlaneError(f"all {MAX_JOBS} jobs of the switch are taken", hint="delete a job first")
        region = self._slots.allocate(spec.slots)
        try:
            epoch = self._epochs.allot(self._clock())
        except BaseException:
            self._slots.free(region)
            raise
        window = min(spec.slots, self._device.capabilities.max_window or spec.slots)
        return Job(spec, self._switch, epoch, job_index, region, group=job_index + 1, window=window)

    def _read_events(self, job: Job) -> list[int]:
        cells = self._device.read_counter("job_events", job.job_index * JOB_EVENTS, JOB_EVENTS)
        return [cell.packets for cell in cells]

    def _roll_back(self, job: Job, error: BaseException) -> None:
        installation = self._installed[job.epoch]
        try:
            installation.remove()
        except ControlPlaneError as again:
            raise ControlPlaneError(
                f"job {job.spec.name!r} was not made ({error}), and {installation.remaining} of its entries "
                f"may stand ({again}): slots {job.slot_base} .. {job.region.end - 1} and job index "
                f"{job.job_index} stay taken",
                where=self._device.where,
                hint="call delete_job with it (see Controller.jobs) when the switch answers again",
            ) from error
        self._forget(job)

    def _forget(self, job: Job) -> None:
        del self._jobs[job.epoch]
        del self._installed[job.epoch]
        self._counted.pop(job.epoch, None)
        self._slots.free(job.region)
