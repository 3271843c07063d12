# SPDX-License-Identifier: Apache-2.0
"""All switches of the cluster, and what concerns several of them: jobs over trees.

Each reconciler does its own part of a job, when the database says that it is next (`JobRecord.next_switches`), and
notes it there; nobody waits for another reconciler. `follow` goes round those of a job for as long as that gets it on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hopsum_controlplane.cluster.conditions import SwitchConditions
from hopsum_controlplane.cluster.config import ClusterConfig
from hopsum_controlplane.cluster.errors import ClusterConfigError
from hopsum_controlplane.cluster.job_state_cache import JobStateCache
from hopsum_controlplane.cluster.membership_builder import Parts, leaves_of, parts_of
from hopsum_controlplane.cluster.placement import allocator_from_records
from hopsum_controlplane.cluster.records import JobRecord, JobState, MemberPhase
from hopsum_controlplane.cluster.switch_reconciler import DeviceSource, SwitchReconciler
from hopsum_controlplane.devices.base import PipelineConfig


class SwitchReconcilers(Mapping[str, SwitchReconciler]):
    """The reconcilers by the names of their switches. Thread-safe.

    `pipeline` is the program of all switches, or programs by switch; the other `options` are SwitchReconciler's.
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
        self._config = config
        self._cache = cache
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
        """Return the reconciler of a switch."""
        return self._reconcilers[name]

    def __iter__(self) -> Iterator[str]:
        """Return the names, in the order of the configuration."""
        return iter(self._reconcilers)

    def __len__(self) -> int:
        """Return how many they are."""
        return len(self._reconcilers)

    def of(self, record: JobRecord) -> list[SwitchReconciler]:
        """Return the reconcilers of a job: of its one switch; or of a spine, then its leaves."""
        return [self._reconcilers[name] for name in record.switches]

    def follow(self, job: str, *, wait: bool = False) -> None:
        """Do what is due for a job on all its switches; `wait` as for SwitchReconciler.reconcile."""
        before = self._cache.find(job)
        while before is not None:
            for reconciler in self.of(before):
                reconciler.reconcile(wait=wait)
            after = self._cache.find(job)
            if not before.branches or after is None or after == before or not after.next_switches:
                return
            before = after

    def end(self, record: JobRecord) -> None:
        """Remove a job from its switches now, though something there failed a moment ago: leaves first (rule T7)."""
        for reconciler in self.of(record)[::-1]:
            reconciler.reconcile(urgent=record.name)

    def condition(self, record: JobRecord) -> str:
        """Return why the switches do not do what a job wants, an empty string when they do."""
        conditions = {reconciler.config.name: reconciler.job_condition(record.name) for reconciler in self.of(record)}
        if record.ready:
            conditions[record.switch] = conditions[record.switch] or self._reconcilers[record.switch].pause(record.name)
        if not record.branches:
            return conditions[record.switch]
        return "; ".join(f"{name}: {condition}" for name, condition in conditions.items() if condition)

    def conditions(self, record: JobRecord) -> SwitchConditions:
        """Return what is wrong with the switches of a job, and what keeps them from doing what it wants."""
        troubled = [reconciler for reconciler in self.of(record) if reconciler.condition]
        reason = troubled[0].condition_reason if troubled else ""
        words = "; ".join(f"{reconciler.config.name}: {reconciler.condition}" for reconciler in troubled)
        return SwitchConditions(reason, words, self.condition(record))

    def unreachable(self, record: JobRecord) -> str:
        """Return which switches of a job cannot be reached, and why; an empty string when all can."""
        reconcilers = [reconciler for reconciler in self.of(record) if reconciler.condition_reason == "unreachable"]
        return "; ".join(f"{reconciler.config.name}: {reconciler.condition}" for reconciler in reconcilers)

    def counters(self, record: JobRecord) -> dict[str, Mapping[str, int]]:
        """Read what the switches did with the packets of a job that runs, by switch; nothing where one cannot say."""
        if record.state is not JobState.RUNNING:
            return {}
        return {name: self._reconcilers[name].counters(job) for name, job in record.parts.items()}

    def _check(self, devices: Mapping[str, DeviceSource]) -> None:
        """Raise ClusterConfigError unless configuration, devices and the database fit together."""
        for switch in self._config.switches:
            if switch.name not in devices:
                raise ClusterConfigError(f"no device for switch {switch.name!r}", hint="open one for each switch")
            allocator_from_records(switch, self._cache.records(switch.name))
        configured = [switch.name for switch in self._config.switches]
        for record in self._cache.records():
            for name in record.switches:
                if name not in configured:
                    raise ClusterConfigError(
                        f"job {record.name!r} is in the database on switch {name!r}, which is not configured",
                        hint="configure that switch again until its jobs are deleted",
                    )
            leaves_of(record, self._config)

    def _ready(self, record: JobRecord) -> bool:
        """Return whether all switches of the next generation can take it now: leaves at which nobody waits are not
        asked.
        """
        leaves = {member.leaf for member in record.members if member.phase is MemberPhase.WAITING and member.leaf}
        return all(self._reconcilers[name].can_try(record.name) for name in {record.switch, *leaves})

    def _parts(self, record: JobRecord, generation: int) -> Parts:
        return parts_of(
            record,
            generation,
            self._config,
            {reconciler.config.name: reconciler.limits for reconciler in self.of(record)},
        )
