# SPDX-License-Identifier: Apache-2.0
"""All switches of the cluster, and what concerns several of them: jobs over trees.

Each reconciler does its own part of a job, when the database says that it is next (`JobRecord.next_switches`), and
notes it there. No reconciler waits for another one. `reconcile_job` calls those of a job, again as long as that
changes the job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hopsum_controlplane.cluster.cluster_config import ClusterConfig, SwitchConfig
from hopsum_controlplane.cluster.job_state_cache import JobStateCache
from hopsum_controlplane.cluster.membership_builder import Parts, leaves_of, parts_of
from hopsum_controlplane.cluster.placement import SwitchCapacity, allocator_from_records
from hopsum_controlplane.cluster.records import JobRecord, JobState, MemberPhase
from hopsum_controlplane.cluster.switch_inventory import DeviceSource
from hopsum_controlplane.cluster.switch_reconciler import SwitchReconciler
from hopsum_controlplane.devices.device import Device, PipelineConfig
from hopsum_controlplane.devices.drivers import load_pipeline, open_device
from hopsum_controlplane.devices.reconnecting import ReconnectingDevice
from hopsum_controlplane.errors import ClusterConfigError, ControlPlaneError, UndecidedError
from hopsum_controlplane.job_spec import JobSpec
from hopsum_controlplane.resource_allocator import Allocation
from hopsum_controlplane.trees import result_tables


class SwitchReconcilers(Mapping[str, SwitchReconciler]):
    """The reconcilers by the names of their switches, in the order of the configuration. Thread-safe.

    `pipeline` is the program of all switches, or programs by switch. The other `options` are SwitchReconciler's.
    Raises ClusterConfigError when configuration, devices and the database do not fit together.
    """

    def __init__(
        self,
        config: ClusterConfig,
        devices: Mapping[str, DeviceSource],
        cache: JobStateCache,
        *,
        pipeline: PipelineConfig | Mapping[str, PipelineConfig] | None = None,
        **options: Any,
    ) -> None:
        self.config, self._cache = config, cache
        self._check(devices)
        self._reconcilers = {
            switch.name: SwitchReconciler(
                switch,
                devices[switch.name],
                cache,
                reconcile_interval_s=config.reconcile_interval_s,
                ready=self._ready,
                parts=self._parts,
                links=config.links,
                pipeline=pipeline.get(switch.name) if isinstance(pipeline, Mapping) else pipeline,
                **options,
            )
            for switch in config.switches
        }

    def __getitem__(self, name: str) -> SwitchReconciler:
        return self._reconcilers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._reconcilers)

    def __len__(self) -> int:
        return len(self._reconcilers)

    def capacities(self, spec: JobSpec) -> list[SwitchCapacity]:
        """Return every switch with a new allocator of its free slots, and the reasons why it cannot have the job.

        Call it under the cache's lock.
        """
        # A spine need not have the operations that look up nothing but codes.
        bare = replace(spec, tables=result_tables(spec))
        found = []
        for reconciler in self._reconcilers.values():
            config = reconciler.config
            allocator = allocator_from_records(config, self._cache.records(config.name), reconciler.inventory.foreign)
            found.append(SwitchCapacity(config, allocator, reconciler.refusal(spec), reconciler.refusal(bare)))
        return found

    def reconcilers_of(self, record: JobRecord) -> list[SwitchReconciler]:
        """Return the reconcilers of a job: of its switch; of its shards in order; or of spine, then leaves."""
        return [self._reconcilers[name] for name in record.switches]

    def reconcile_job(self, job: str, *, wait: bool = False) -> None:
        """Reconcile all switches of a job, again as long as that changes its record. It may take seconds.

        `wait` is as for SwitchReconciler.reconcile. Nothing is done for a job that does not exist. A failure raises
        nothing, and is in `condition`.
        """
        before = self._cache.find(job)
        while before is not None:
            for reconciler in self.reconcilers_of(before):
                reconciler.reconcile(wait=wait)
            after = self._cache.find(job)
            if not before.branches or after is None or after == before or not after.next_switches:
                return
            before = after

    def reconcile_ending(self, record: JobRecord) -> None:
        """Reconcile the switches of an ending job now, in spite of pauses after failures: leaves first (rule T7).

        It may take seconds. A failure raises nothing, and is in `condition`.
        """
        # Leaves before the spine (rule T7): `places` begins with the spine.
        for name in record.places[::-1]:
            self._reconcilers[name].reconcile(urgent=record.name)

    def condition(self, record: JobRecord) -> str:
        """Return why the switches do not do what a job wants, an empty string when they do."""
        conditions = {
            reconciler.config.name: reconciler.job_condition(record.name) for reconciler in self.reconcilers_of(record)
        }
        if record.ready:
            conditions[record.switch] = conditions[record.switch] or self._reconcilers[record.switch].pause_reason(
                record.name
            )
        if not record.branches:
            return conditions.get(record.switch, "")
        return "; ".join(f"{name}: {condition}" for name, condition in conditions.items() if condition)

    def trouble(self, record: JobRecord, reason: str = "") -> str:
        """Return the problems of a job's switches themselves, in words, empty where there are none.

        With a `reason`, see `condition_reason`, return only those that have it.
        """
        ill = [each for each in self.reconcilers_of(record) if each.condition and reason in ("", each.condition_reason)]
        return "; ".join(f"{reconciler.config.name}: {reconciler.condition}" for reconciler in ill)

    def require_decided(self, job: str) -> None:
        """Raise UndecidedError for a job whose entries may be among those on a switch that the database does not have.

        It is not in the database, or one of these generations has its place.
        """
        record = self._cache.find(job)
        if record is None and self._cache.was_deleted(job):
            return
        for reconciler in self._reconcilers.values() if record is None else self.reconcilers_of(record):
            name = reconciler.config.name
            for kept in reconciler.inventory.foreign:
                if record is None or kept.overlaps(Allocation(*record.place(name))):
                    raise UndecidedError(
                        f"job {job!r:.80}: the database does not have {kept}, which switch {name!r} serves",
                        hint="sums continue; the operator decides with `hopsum controller --remove-existing`",
                    )

    def read_counters(self, record: JobRecord) -> dict[str, Mapping[str, int]]:
        """Read the counters of a running job's packets, by switch and event. Empty for a job that does not run.

        The counters of a switch that is busy or does not answer are empty.
        """
        if record.state is not JobState.RUNNING:
            return {}
        return {name: self._reconcilers[name].read_counters(job) for name, job in record.parts.items()}

    def _check(self, devices: Mapping[str, DeviceSource]) -> None:
        """Raise ClusterConfigError unless configuration, devices and the database fit together."""
        for switch in self.config.switches:
            if switch.name not in devices:
                raise ClusterConfigError(f"no device for switch {switch.name!r}", hint="open one for each switch")
            allocator_from_records(switch, self._cache.records(switch.name))
        configured = [switch.name for switch in self.config.switches]
        for record in self._cache.records():
            for name in record.places:
                if name not in configured:
                    raise ClusterConfigError(
                        f"job {record.name!r} is in the database on switch {name!r}, which is not configured",
                        hint="configure that switch again until its jobs are deleted",
                    )
            leaves_of(record, self.config)

    def _ready(self, record: JobRecord) -> bool:
        """Return whether all switches of the next generation can take it now. Leaves without workers are not asked."""
        # A generation is begun only when all its switches can take it: else it would be over at once, and used up.
        leaves = {member.leaf for member in record.members if member.phase is MemberPhase.WAITING and member.leaf}
        switches = record.switches if record.is_sharded else (record.switch, *leaves)
        return all(self._reconcilers[name].can_try(record.name) for name in switches)

    def _parts(self, record: JobRecord, generation: int) -> Parts:
        return parts_of(
            record,
            generation,
            self.config,
            {reconciler.config.name: reconciler.inventory.limits for reconciler in self.reconcilers_of(record)},
        )


def load_pipelines(config: ClusterConfig, pipeline: PipelineConfig) -> dict[str, PipelineConfig]:
    """Read the programs of all switches, and return by name `pipeline`, or the file that the configuration names.

    Raises ControlPlaneError when a program cannot be read, or does not serve one of the switch's ports.
    """
    return {
        switch.name: pipeline if switch.program is None else _load(config, switch, switch.program)
        for switch in config.switches
    }


def _load(config: ClusterConfig, switch: SwitchConfig, program: Path) -> PipelineConfig:
    ends = [port for link in config.links for name, port in link.ends if name == switch.name]
    try:
        ports = [*(rule.port for rule in switch.ports), *ends]
        return load_pipeline(
            program,
            ports,
            loop_ports=switch.loop_ports,
            speeds_gbps=switch.speeds_gbps,
            switch=switch.name,
        )
    except ControlPlaneError as error:
        raise ControlPlaneError(f"switch {switch.name!r}: {error.what}", hint=error.hint) from error


def device_factories(
    config: ClusterConfig, pipeline: PipelineConfig | Mapping[str, PipelineConfig], *, owner: int = 0, **timeouts: float
) -> dict[str, Callable[[], Device]]:
    """Return by switch name a function that opens a ReconnectingDevice for it. Nothing is opened yet.

    The device reconnects as long as the switch runs `pipeline`: one for all switches, or by name. `owner` and
    `timeouts` are those of `open_device`. Give the result to a ClusterController, and `pipeline` as well.
    """
    return {
        switch.name: _device_factory(
            switch, pipeline[switch.name] if isinstance(pipeline, Mapping) else pipeline, owner, timeouts
        )
        for switch in config.switches
    }


def _device_factory(
    switch: SwitchConfig, pipeline: PipelineConfig, owner: int, timeouts: dict[str, float]
) -> Callable[[], Device]:
    def connect() -> Device:
        election_id = (switch.election_id, 0)
        return open_device(
            switch.driver,
            switch.address,
            switch.device_id,
            election_id=election_id,
            owner=owner,
            tls=switch.tls,
            **timeouts,
        )

    return lambda: ReconnectingDevice(connect, pipeline.cookie)
