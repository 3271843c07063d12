# SPDX-License-Identifier: Apache-2.0
"""The controller of a cluster: its parts, its periodic work, and the requests of operators.

Requests change the database and are answered from it: operators' requests here, workers' requests in `member_requests`.
Switches are reconciled with the database, at once or at the next `tick`.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any

from hopsum_controlplane.cluster import answers, lifecycle, placement
from hopsum_controlplane.cluster.cluster_config import ClusterConfig
from hopsum_controlplane.cluster.job_history import JobHistories
from hopsum_controlplane.cluster.job_mover import JobMover
from hopsum_controlplane.cluster.job_state_cache import JobStateCache
from hopsum_controlplane.cluster.job_status import status_of
from hopsum_controlplane.cluster.liveness import Liveness
from hopsum_controlplane.cluster.member_requests import MemberRequests
from hopsum_controlplane.cluster.membership_builder import switches_of
from hopsum_controlplane.cluster.records import JobRecord, JobState
from hopsum_controlplane.cluster.requests import check_job, printable
from hopsum_controlplane.cluster.state_store import StateStore
from hopsum_controlplane.cluster.switch_inventory import DeviceSource, MayRemove
from hopsum_controlplane.cluster.switch_reconciler import SwitchReconciler
from hopsum_controlplane.cluster.switch_reconcilers import SwitchReconcilers
from hopsum_controlplane.cluster.tokens import RandomSource, check_token, digest, matches, new_token
from hopsum_controlplane.devices.device import PipelineConfig
from hopsum_controlplane.errors import InvalidRequestError, SwitchUnavailableError
from hopsum_controlplane.job_spec import JobSpec
from hopsum_wire.control import control_pb2 as pb
from hopsum_wire.watch.snapshots import switch_path


class ClusterController:
    """The controller of a cluster: jobs, members and leases in a database, installed on switches. Thread-safe.

    Construction takes over every switch that answers, and writes to it. A job of the database that is still installed
    continues; if it is no longer installed, its generation has ended. Raises ClusterConfigError if configuration,
    devices and database do not fit together, and StoreError.

    config: of the cluster.
    store: the database. Nothing else may use it.
    devices: by switch name an open device, or a function that opens one. Nothing else may use them.
    clock: unix seconds, for generations. monotonic: monotonic seconds, for leases.
    random: source of tokens.
    pipeline: program that all switches must run, or one for each switch by name; None accepts any program.
    may_remove: see SwitchInventory. Without it foreign generations are kept.
    """

    def __init__(
        self,
        config: ClusterConfig,
        store: StateStore,
        devices: Mapping[str, DeviceSource],
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        random: RandomSource = secrets,
        pipeline: PipelineConfig | Mapping[str, PipelineConfig] | None = None,
        may_remove: MayRemove | None = None,
    ) -> None:
        config.check()
        self._config = config
        self._monotonic = monotonic
        self._random = random
        self._store = store
        self._cache = JobStateCache(store, monotonic)
        options: dict[str, Any] = {"clock": clock, "monotonic": monotonic, "may_remove": may_remove}
        self._reconcilers = SwitchReconcilers(config, devices, self._cache, pipeline=pipeline, **options)
        self.mover = JobMover(self._cache, self._reconcilers)
        """Moves jobs to other switches."""
        self.liveness = Liveness(self._cache, config.lease_s, monotonic)
        """The leases of all members."""
        self._histories = JobHistories(self._cache, self._reconcilers.trouble, self.liveness.lease_s, monotonic)
        self.member_requests = MemberRequests(
            config, self._cache, self._reconcilers, self.liveness, self._histories, monotonic
        )
        """The requests of workers."""
        # Switches that answer are taken over before the first call is served; the others when they answer.
        for reconciler in self._reconcilers.values():
            reconciler.reconcile()
        self._reconcile_trees()

    def create_job(self, spec: JobSpec, token: str = "") -> pb.CreateJobResponse:
        """Create a job in the database, which reserves its slots. Its members join with `token`; empty: a random one.

        No switch is written before its members have joined. A repeated call, with the token and the specification of an
        existing job, has the same answer.

        Raises InvalidRequestError, JobExistsError, StoreError, or ResourceExhaustedError with a size that would fit.
        Then nothing has changed.
        """
        check_job(spec)
        token = check_token(token) or new_token(self._random)
        with self._cache.changed:
            made = self._cache.find(spec.name)
            is_ours = made is not None and made.state is not JobState.ENDING and matches(token, made.token_digest)
            if made is not None and is_ours and made.spec == spec:
                return answers.create_job_response(made, token)
            # One lock from the search for free slots to the record on disk: two requests never get the same slots.
            self._cache.check_new(spec.name)
            self._check_unused(token)
            for name in (*spec.shard_switches, spec.switch):
                if name is not None and name not in self._reconcilers:
                    raise InvalidRequestError(
                        f"no switch {name!r:.80}", hint=f"there are {', '.join(self._reconcilers)}"
                    )
            # Free slots are computed from the database, because a record reserves its slots before any switch has them.
            switches = self._reconcilers.capacities(spec)
            switch, at, branches = placement.place_job(spec, switches, self._config.links)
            record = JobRecord(spec, digest(token), switch, at.job_index, at.region, branches=branches)
            # The database before the switch: every entry that may be on a switch is on disk first.
            self._cache.add(record)
            self._histories.observe(record.name)
        return answers.create_job_response(record, token)

    def delete_job(self, name: str, *, by: str = "") -> None:
        """Delete a job, with all its members. When this call returns, its slots are free.

        The call removes the job's entries from its switches, and may take seconds. `by` names the caller in the errors
        of the job's workers.

        Raises UnknownJobError, StoreError, and SwitchUnavailableError if the job's entries could not be removed yet.
        Then the job has ended for its members, its slots stay taken, and the controller retries. The call may be
        repeated.
        """
        before, by = self._cache.get(name), printable(by)
        reason = f"the job was deleted{' by ' if by else ''}{by}"
        self._cache.apply(name, lambda now: lifecycle.delete_job(now, reason))
        # `before` has the job's switches; the record may already be deleted.
        self._reconcilers.reconcile_ending(before)
        record = self._cache.find(name)
        if record is not None and record.state is JobState.ENDING:
            on = switch_path((*switches_of(record), *record.places[len(record.switches) :]), record.spec.shards)
            raise SwitchUnavailableError(
                f"job {name!r} is ending, and {record.spec.slots} slots of switch {on!r} stay taken: "
                f"{self._reconcilers.condition(record)}",
                hint="the controller keeps trying; see to the switch",
            )

    def rotate_token(self, name: str, token: str = "") -> str:
        """Set a job's token; empty: a random one. The earlier token is valid until `revoke_earlier_token`.

        A repeated call, with the job's token, changes nothing. Returns the token. Raises UnknownJobError,
        InvalidRequestError and StoreError.
        """
        token = check_token(token) or new_token(self._random)
        with self._cache.changed:
            if not matches(token, self._cache.get(name).token_digest):
                self._check_unused(token)
                self._cache.apply(name, lambda now: lifecycle.rotate_token(now, digest(token)))
        return token

    def _check_unused(self, token: str) -> None:
        if self._cache.owner_of(digest(token)) is not None:
            raise InvalidRequestError("this token is a job's already", hint="draw another one")

    def revoke_earlier_token(self, name: str) -> None:
        """Accept no further member with the earlier token of a job. Members that joined with it stay in the job.

        Raises UnknownJobError, StoreError, and InvalidRequestError if there is no earlier token.
        """
        self._cache.apply(name, lifecycle.revoke_earlier_token)

    @property
    def database_condition(self) -> str:
        """Return the reason why the database cannot be written, empty if it can. Takes no lock."""
        return self._cache.store_condition

    def backup(self) -> bytes:
        """Return the content of a database file with the present jobs. Raises StoreError."""
        with self._cache.changed:
            return self._store.backup()

    def jobs(self, *, counters: bool = False) -> list[pb.Job]:
        """Return all jobs without their events, by name in order. `counters` reads those of running jobs from switches.

        A switch that is busy or does not answer has no counters in the answer.
        """
        return [self._view(record, counters) for record in self._cache.records()]

    def job(self, name: str, *, counters: bool = True) -> pb.Job:
        """Return one job with its events. `counters` reads the counters of a running job from its switches now.

        A switch that is busy or does not answer has no counters. Raises UnknownJobError.
        """
        return self._view(self._cache.get(name), counters, events=True)

    def switches(self, *, drops: bool = True) -> list[pb.Switch]:
        """Return all switches in the order of the configuration. `drops` reads their drop counters from them now.

        A switch that is busy or does not answer has no counters in the answer.
        """
        return [self._switch_view(reconciler, drops) for reconciler in self._reconcilers.values()]

    def watch(self, watcher: Callable[[str], None]) -> Callable[[], None]:
        """Have `watcher` called after each change of a job, see `JobStateCache.watch`. Returns a function to end it."""
        return self._cache.watch(watcher)

    def tick(self) -> None:
        """Evict silent members, retry failed work, and compare switches with the database when due.

        Call it about once a second. Raises no ControlPlaneError: failures are logged, shown as conditions, and retried.
        """
        self.expire()
        for name in self.switch_names:
            self.reconcile(name)
        self._reconcile_trees()

    def expire(self) -> None:
        """Evict silent members, end waits that took too long, and probe the database: the first part of `tick`.

        It calls no switch. Evictions may end generations. Raises no ControlPlaneError.
        """
        self.liveness.evict_silent()
        self.member_requests.forget_deleted_jobs()
        self._cache.probe_store(self._monotonic())

    def reconcile(self, switch: str) -> None:
        """Bring one switch to the state of the database, if work is due: the part of `tick` for this switch.

        The call may take seconds. With a thread for each switch a slow one does not delay the others. Failures are
        logged, shown as conditions, and retried. Raises KeyError for an unknown switch.
        """
        self._reconcilers[switch].reconcile()
        self._histories.observe_switch(switch)

    @property
    def switch_names(self) -> tuple[str, ...]:
        """Return the names of all switches, in the order of the configuration."""
        return tuple(self._reconcilers)

    def close(self) -> None:
        """Close devices and store. The entries on the switches stay: the next controller adopts them."""
        for reconciler in self._reconcilers.values():
            reconciler.close()
        # Under the lock: another thread may still be changing a job.
        with self._cache.changed:
            self._store.close()

    def _reconcile_trees(self) -> None:
        for record in self._cache.records():
            if record.branches and record.next_switches:
                self._reconcilers.reconcile_job(record.name)

    def _view(self, record: JobRecord, counters: bool, *, events: bool = False) -> pb.Job:
        # Switches are read before the lock is taken: a slow switch must not block heartbeats.
        read = self._reconcilers.read_counters(record) if counters else {}
        with self._cache.changed:
            now_s = self._monotonic()
            condition, lease_s = self._reconcilers.condition(record), self.liveness.lease_s(record)
            left_s = answers.lease_left_s(record, self.liveness.leases, now_s)
            return answers.job_message(
                record,
                self._histories.history_of(record.name),
                status_of(record, condition, left_s, lease_s),
                left_s,
                self.liveness.leases,
                now_s,
                lease_s=lease_s,
                condition=condition,
                counters=read,
                events=events,
            )

    def _switch_view(self, reconciler: SwitchReconciler, drops: bool) -> pb.Switch:
        read = reconciler.read_drops() if drops else {}
        records = self._cache.records(reconciler.config.name)
        allocator = placement.allocator_from_records(reconciler.config, records, reconciler.inventory.foreign)
        return answers.switch_message(reconciler, allocator.free_capacity, len(records), read)
