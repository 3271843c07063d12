# SPDX-License-Identifier: Apache-2.0
"""The parts of jobs on one switch: begun, written, removed, and noted in the database.

Every step can be interrupted: the database says which entries may be on the switch. Nothing here decides when a step is
due, or talks to a switch but by its SwitchController.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hopsum_controlplane.cluster import lifecycle
from hopsum_controlplane.cluster.cluster_config import LinkConfig, SwitchConfig
from hopsum_controlplane.cluster.forwarding import L2Forwarding
from hopsum_controlplane.cluster.job_state_cache import JobStateCache
from hopsum_controlplane.cluster.membership_builder import Parts
from hopsum_controlplane.cluster.records import JobRecord, JobState
from hopsum_controlplane.devices.device import Device
from hopsum_controlplane.errors import ControlPlaneError
from hopsum_controlplane.job_spec import Job
from hopsum_controlplane.switch_controller import SwitchController


class PartWriter:
    """Writes and removes the parts of jobs on one switch. Not thread-safe.

    Args:
        config: of the switch.
        cache: the database.
        parts: gives the jobs of a generation, one for each switch of a job.
        links: of the cluster, for layer-2 forwarding.
        clock: unix seconds, for generations.
        on_begun: called with the name of a job whose generation begins, before its first entry is written.
    """

    def __init__(
        self,
        config: SwitchConfig,
        cache: JobStateCache,
        *,
        parts: Callable[[JobRecord, int], Parts],
        links: Sequence[LinkConfig],
        clock: Callable[[], float],
        on_begun: Callable[[str], None],
    ) -> None:
        self._config, self._cache = config, cache
        self._parts, self._links, self._clock = parts, links, clock
        self._on_begun = on_begun
        self._forwarding: L2Forwarding | None = None

    def set_forwarding_device(self, device: Device) -> None:
        """Use a device for layer-2 forwarding from now on, if the configuration asks for it. Writes nothing."""
        self._forwarding = L2Forwarding(self._config, device, self._links) if self._config.l2_forwarding else None

    def write_forwarding(self, *, anew: bool = False) -> None:
        """Write the layer-2 forwarding of all members that have joined by now, if the configuration asks for it.

        Args:
            anew: other clients may have changed the entries: read them first.

        Raises ControlPlaneError if the switch fails.
        """
        if self._forwarding is not None:
            if anew:
                self._forwarding.invalidate()
            self._forwarding.sync(self._cache.records(self._config.name))

    def begin_generation(self, controller: SwitchController, record: JobRecord) -> None:
        """Begin the next generation of a job in the database, and write this switch's part to the switch.

        Workers that lack results which no worker has are evicted first. If the job is then not ready, no generation
        begins. Raises ControlPlaneError as `write_part`.
        """
        self.write_forwarding()

        # The generation is on disk before the first entry is written: after a crash the database says what may be on
        # the switch.
        def begin(now: JobRecord) -> JobRecord:
            now = lifecycle.evict_laggards(now)
            if not now.ready:
                return now
            return lifecycle.start_generation(now, *self._parts(now, self._cache.allot_generation(self._clock())))

        begun = self._cache.apply(record.name, begin, missing_ok=True)
        # A worker may have left, or the job been deleted, since `record` was read.
        if begun is not None and begun.state is JobState.INSTALLING:
            self._on_begun(record.name)
            self.write_part(controller, begun)

    def write_part(self, controller: SwitchController, record: JobRecord) -> None:
        """Write this switch's part of a generation, unless it is installed already, and record it in the database.

        Raises ControlPlaneError if the part cannot be written. Then the generation has ended in the database.
        """
        job, name = record.parts[self._config.name], self._config.name
        # A crash between the write and the next step leaves the entries complete: they are adopted, and only the step
        # is missing.
        actual = {made.generation: made for made in controller.jobs if made not in controller.ending}
        made = actual.get(job.generation)
        if made is None:
            self.write_forwarding()
            try:
                made = controller.create_job(
                    job.spec, job_index=job.job_index, region=job.region, generation=job.generation
                )
            except ControlPlaneError as error:
                # Rule E1: entries of a generation are written once. After a failure the next try has another
                # generation.
                self.end_generation(job, f"switch {name} did not take it: {error}")
                if not has_generation(controller, job):
                    self._gone(job)
                raise
        confirmed = made
        self._if_current(
            job, lambda now: lifecycle.on_installed(now, confirmed, name) if now.state is JobState.INSTALLING else now
        )

    def remove_part(self, controller: SwitchController, record: JobRecord) -> None:
        """Remove this switch's part of a generation that has ended, and record that in the database.

        Raises ControlPlaneError if the switch fails. Then the database is unchanged.
        """
        job = record.parts[self._config.name]
        # Only when the switch has confirmed the removal does the database free the slots (rule S1).
        if has_generation(controller, job):
            controller.delete_job(job)
        self._gone(job)

    def remove_departed(self, controller: SwitchController, job: Job) -> None:
        """Remove the entries of a job that has moved to another switch, and record that in the database.

        Raises ControlPlaneError if the switch fails. Then the database is unchanged.
        """
        if has_generation(controller, job):
            controller.delete_job(job)
        self._cache.apply(
            job.spec.name, lambda record: lifecycle.on_cleared(record, self._config.name), missing_ok=True
        )

    def _gone(self, job: Job) -> None:
        """Note that nothing of a generation is left here, if it is time for that: a spine notes it after its leaves."""
        name = self._config.name
        self._if_current(
            job, lambda now: lifecycle.on_removed(now, name) if name in now.next_switches and not now.ready else now
        )

    def end_generation(self, job: Job, reason: str) -> None:
        """End a generation in the database, if it is the job's present one. Nothing is written to the switch."""
        self._if_current(job, lambda record: lifecycle.end_generation(record, reason))

    def _if_current(self, job: Job, step: Callable[[JobRecord], JobRecord | None]) -> None:
        """Take a step of a job if it still has this generation."""
        self._cache.apply(
            job.spec.name,
            # The record may have changed since: a step for an older generation must not touch a newer one.
            lambda record: step(record) if record.generation == job.generation else record,
            missing_ok=True,
        )


def has_generation(controller: SwitchController, job: Job) -> bool:
    """Return whether the controller knows of entries of the job's generation, which are on the switch or may be."""
    return any(job.generation == known.generation for known in controller.jobs)
