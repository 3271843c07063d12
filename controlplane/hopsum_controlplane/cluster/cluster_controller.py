# SPDX-License-Identifier: Apache-2.0
"""The requests to a cluster: they change the database, and are answered from it.

The switches follow the database, at once or at the next `tick`.
"""

from __future__ import annotations

import logging
import math
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from hopsum_controlplane.cluster import answers, lifecycle, placement
from hopsum_controlplane.cluster.answers import Pending, state_number
from hopsum_controlplane.cluster.cluster_config import ClusterConfig
from hopsum_controlplane.cluster.job_history import JobHistories
from hopsum_controlplane.cluster.job_mover import JobMover
from hopsum_controlplane.cluster.job_state_cache import JobStateCache
from hopsum_controlplane.cluster.job_status import LITTLE_LEFT, ranks_in_words, status_of
from hopsum_controlplane.cluster.leases import Leases
from hopsum_controlplane.cluster.lifecycle import has_joined_with, rounds_used_up
from hopsum_controlplane.cluster.membership_builder import membership_of, switches_of
from hopsum_controlplane.cluster.records import LEASED, JobRecord, JobState, Member, MemberPhase
from hopsum_controlplane.cluster.requests import JobRequest, JoinRequest, check_statistics, printable
from hopsum_controlplane.cluster.settings_agreement import Disputes
from hopsum_controlplane.cluster.state_store import StateStore
from hopsum_controlplane.cluster.switch_inventory import DeviceSource, MayRemove
from hopsum_controlplane.cluster.switch_reconciler import SwitchReconciler
from hopsum_controlplane.cluster.switch_reconcilers import SwitchReconcilers
from hopsum_controlplane.cluster.tokens import (
    RandomSource,
    check_token,
    digest,
    matches,
    member_secret,
    new_token,
)
from hopsum_controlplane.devices.device import PipelineConfig
from hopsum_controlplane.errors import (
    ControlPlaneError,
    InvalidRequestError,
    StoreError,
    SwitchUnavailableError,
    UnauthenticatedError,
)
from hopsum_wire.control import control_pb2 as pb
from hopsum_wire.membership import JobMembership
from hopsum_wire.watch.heartbeat import POSITION
from hopsum_wire.watch.snapshots import switch_path

_log = logging.getLogger(__name__)

_BEATS_PER_LEASE = 3
GRACE_S = 2.0
"""Seconds that a member has to be heard again after its connection ended without LEAVE."""


class ClusterController:
    """The controller of a cluster: jobs, members and leases in a database, installed on switches. Thread-safe.

    Construction takes over every switch that answers. A job of the database that is still installed there continues.
    The generation of one that is not installed any more has ended. Raises ClusterConfigError when configuration,
    devices and database do not fit together, and StoreError.

    config: of the cluster.
    store: the database. Nothing else may use it.
    devices: by switch name an open device, or a function that opens one. Nothing else may use them.
    clock: unix seconds, for generations. monotonic: seconds that never go back, for leases.
    random: source of tokens.
    pipeline: program that all switches must run, or one for each switch by name; None for whatever runs.
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
        # Leases, `_unheard`, `_excused_s`, `_successors`, `_gone_since_s` and `_disputes` are used under the cache's
        # lock.
        self._leases = Leases()
        self._unheard = {record.name for record in self._cache.records()}
        """Jobs from whose workers this controller has heard nothing since its start: it evicts none of them."""
        self._excused_s = -math.inf
        self._successors: dict[str, tuple[int, float]] = {}
        """The generation, by job, at whose start a worker waits that has left the one before, and since when."""
        self._gone_since_s: dict[str, dict[int, float]] = {}
        """The time since which a rank is waited for though enough others are there, by job and rank."""
        self._disputes = Disputes(self._cache)
        self.silences_s: Callable[[], Mapping[tuple[str, int], float]] = dict
        """Returns for how many seconds nothing has come over the connection of a member, by job and rank. Set by the
        service; a member that is left out is heard by its heartbeats alone."""
        options: dict[str, Any] = {"clock": clock, "monotonic": monotonic, "may_remove": may_remove}
        self._reconcilers = SwitchReconcilers(config, devices, self._cache, pipeline=pipeline, **options)
        self.mover = JobMover(self._cache, self._reconcilers)
        self._histories = JobHistories(self._cache, self._reconcilers.trouble, self._lease_s, monotonic)
        for record in self._cache.records():
            for member in record.members:
                self._renew(record, member.rank)
        # Switches that answer are taken over before the first call is served; the others when they come.
        for reconciler in self._reconcilers.values():
            reconciler.reconcile()
        self._follow_trees()

    def create_job(self, request: JobRequest, token: str = "") -> pb.CreateJobResponse:
        """Create a job: reserve its slots. Its members join with `token`, which is drawn where it is empty.

        A repeated call, with the token and the request of a job that is there, has the same answer.

        Raises InvalidRequestError, JobExistsError or ResourceExhaustedError with what would fit, StoreError. Then
        nothing is made.
        """
        request.check()
        token = check_token(token) or new_token(self._random)
        with self._cache.changed:
            made = self._cache.find(request.name)
            is_ours = made is not None and made.state is not JobState.ENDING and matches(token, made.token_digest)
            if made is not None and is_ours and made.request == request:
                return answers.created_message(made, token)
            # Under one lock from the look at free places to the record on disk: two requests never get one place.
            self._cache.check_new(request.name)
            self._check_unused(token)
            for name in (*request.shard_switches, request.switch):
                if name is not None and name not in self._reconcilers:
                    raise InvalidRequestError(
                        f"no switch {name!r:.80}", hint=f"there are {', '.join(self._reconcilers)}"
                    )
            # Places are computed from the database, not from the switches: a record's slots are taken before anything
            # is on a switch.
            switches = self._reconcilers.capacities(request)
            switch, at, branches = placement.place(request, switches, self._config.links)
            record = JobRecord(request, digest(token), switch, at.job_index, at.region, branches=branches)
            # The database comes before the switch: what may be on a switch is on disk first.
            self._cache.add(record)
            self._histories.observe(record.name)
        return answers.created_message(record, token)

    def delete_job(self, name: str, *, by: str = "") -> None:
        """Delete a job, with all its members. When this call returns the job is gone, and its slots are free.

        `by` names the caller for the job's workers.

        Raises UnknownJobError, StoreError, and SwitchUnavailableError when the job's entries could not be removed yet:
        it is over for its members, its slots stay taken, and the controller keeps trying. A second call does the
        same.
        """
        before, by = self._cache.get(name), printable(by)
        reason = f"the job was deleted{' by ' if by else ''}{by}"
        self._cache.apply(name, lambda now: lifecycle.delete_job(now, reason))
        # `before` still has the job's switches, where the record may be gone already.
        self._reconcilers.end(before)
        record = self._cache.find(name)
        if record is not None and record.state is JobState.ENDING:
            on = switch_path((*switches_of(record), *record.places[len(record.switches) :]), record.request.shards)
            raise SwitchUnavailableError(
                f"job {name!r} is ending, and {record.request.slots} slots of switch {on!r} stay taken: "
                f"{self._reconcilers.condition(record)}",
                hint="the controller keeps trying; see to the switch",
            )

    def rotate_token(self, name: str, token: str = "") -> str:
        """Give a job a new token, drawn where it is empty. The earlier token is valid until `revoke_earlier_token`.

        A repeated call, with the token that the job has, changes nothing. Return the token. Raises UnknownJobError,
        InvalidRequestError and StoreError.
        """
        token = check_token(token) or new_token(self._random)
        with self._cache.changed:
            if not matches(token, self._cache.get(name).token_digest):
                self._check_unused(token)
                self._cache.apply(name, lambda now: lifecycle.rotate_token(now, digest(token)))
        return token

    def _check_unused(self, token: str) -> None:
        if self._cache.place_of(digest(token)) is not None:
            raise InvalidRequestError("this token is a job's already", hint="draw another one")

    def revoke_earlier_token(self, name: str) -> None:
        """Accept no newcomer with the earlier token of a job. A member that joined with that token stays in the job.

        Raises UnknownJobError, StoreError, and InvalidRequestError where there is none.
        """
        self._cache.apply(name, lifecycle.revoke_earlier_token)

    @property
    def database_condition(self) -> str:
        """Return why the database cannot be written, an empty string when it can. This call waits for no lock."""
        return self._cache.store_condition

    def backup(self) -> bytes:
        """Serialize the database, as it is between two steps of jobs. Raises StoreError."""
        with self._cache.changed:
            return self._store.backup()

    def jobs(self, *, counters: bool = False) -> list[pb.Job]:
        """Return all jobs in the order of their names. `counters` are read from the switches if asked for."""
        return [self._view(record, counters) for record in self._cache.records()]

    def job(self, name: str, *, counters: bool = True) -> pb.Job:
        """Return one job with its events, and with counters read from its switches now. Raises UnknownJobError."""
        return self._view(self._cache.get(name), counters, events=True)

    def switches(self, *, drops: bool = True) -> list[pb.Switch]:
        """Return all switches in the order of the configuration. `drops` are read from them if asked for."""
        return [self._switch_view(reconciler, drops) for reconciler in self._reconcilers.values()]

    def knows(self, token: str) -> bool:
        """Say whether this is some job's token, or some member's secret in hexadecimal. Waits for no lock."""
        return self._place_of(token) is not None

    def _place_of(self, token: str) -> tuple[str, int | None] | None:
        """Return the job of a token, or job and rank of a member's secret in hexadecimal, None for anything else."""
        found = self._cache.place_of(digest(token))
        with suppress(ValueError):
            found = found or self._cache.place_of(digest(bytes.fromhex(token)))
        return found

    def watch(self, watcher: Callable[[str], None]) -> Callable[[], None]:
        """Call `watcher` after each step of a job, see `JobStateCache.watch`. Returns a function that ends that."""
        return self._cache.watch(watcher)

    def locate(self, job: str, token: str) -> pb.LocateResponse:
        """Return where members of a job send to. Raises UnknownJobError, UnauthenticatedError for another's token."""
        return answers.located_message(self._with_token(job, token), self._config)

    def join(self, request: JoinRequest) -> pb.JoinResponse:
        """Let a member into a job, for its next generation. An incarnation that asks again gets the same answer.

        Another incarnation takes the rank of the one before, which ends the generation that it was in. A member
        of the job's last generation joins again with its report. Raises InvalidRequestError, UnknownJobError,
        UnauthenticatedError, ResourceExhaustedError or StoreError. Then nothing has changed, but for settings that
        differ before the first generation: they evict all waiting members, see `settings_agreement`.
        """
        try:
            return self._join(request)
        except ControlPlaneError as error:
            with self._cache.changed:
                record = self._cache.find(request.job)
                # Only joins with the right token count: a stranger must not be able to fill a job's history.
                if record is not None and matches(request.token, record.token_digest):
                    self._histories.note_rejection(record.name, str(error))
            raise

    def _join(self, request: JoinRequest) -> pb.JoinResponse:
        request.check()
        with self._cache.changed:
            record = self._with_token(request.job, request.token, request.incarnation)
            rank = lifecycle.choose_rank(record, request.rank, request.incarnation)
            at, leaf, further = placement.stand(record, request, rank, self._config)
            # The secret is a function of token and incarnation: a repeated JOIN has the same answer, and nothing
            # secret is stored.
            secret = member_secret(request.token, record.name, rank, request.incarnation)
            member = Member(at, request.side_port, request.incarnation, digest(secret), request.version, leaf=leaf)
            settings = tuple(sorted(request.settings.items()))
            member = replace(member, report=request.report, settings=settings, further=further)
            # Before the step: a worker with other settings must not end a generation by joining.
            self._disputes.require_agreement(record, member, self._monotonic(), self._lease_s(record))
            before = record.member(rank)
            self._cache.apply(record.name, lambda now: lifecycle.join(now, member))
            if before is not None and before.incarnation != request.incarnation:
                # The lease of the member before is void, or its shortened end would evict the new one.
                self._leases.forget(record.name, rank)
            self._renew(record, rank)
            if (before is None or before.incarnation != request.incarnation) and request.is_elsewhere:
                self._histories.note_caller(record.name, rank, request.caller, request.ip)
        # Outside the lock: writing a switch may take seconds, and heartbeats need the lock.
        self._reconcilers.follow(record.name)
        lease_s = self._lease_s(record)
        heartbeat_s = min(self._config.heartbeat_s, lease_s / _BEATS_PER_LEASE)
        return pb.JoinResponse(rank=rank, secret=secret, lease_s=lease_s, heartbeat_s=heartbeat_s)

    def await_membership(
        self, job: str, rank: int, secret: bytes, *, known_generation: int = 0, timeout_s: float = 0.0
    ) -> JobMembership | Pending:
        """Wait, up to `timeout_s` seconds, until a generation other than the known one runs with this member.

        Returns its membership, or the ranks that the job waits for. Raises UnknownJobError, and UnauthenticatedError
        when the secret is not, or not any more, that of a member with a lease.
        """
        deadline_s = time.monotonic() + timeout_s
        with self._cache.changed:
            record, member = self._with_secret(job, rank, secret)
            self._renew(record, rank)
            while True:
                if member.phase is MemberPhase.LOST:
                    raise UnauthenticatedError(self._given_up(record, member), hint="close, and connect again")
                is_in = member.phase is MemberPhase.IN and record.state is JobState.RUNNING
                if is_in and record.generation != known_generation:
                    # Noted before the worker hears of the generation: after a crash in between it may know (E4).
                    self._cache.apply(job, lambda now: lifecycle.mark_notified(now, rank))
                    return membership_of(record, rank, self._config)
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:
                    return Pending(
                        missing_ranks=record.missing_ranks,
                        state=state_number(record.state),
                        condition=self._reconcilers.condition(record),
                        # Nobody has to take the place of a rank that the job goes on without.
                        gone_ranks=() if record.spared_ranks else record.gone_ranks,
                        reason=record.reason,
                    )
                # `wait` gives the lock up: a step by another thread wakes this one.
                self._cache.changed.wait(left_s)
                record, member = self._with_secret(job, rank, secret)

    def heartbeat(
        self, job: str, rank: int, secret: bytes, *, generation: int = 0, statistics: Mapping[str, float] | None = None
    ) -> pb.HeartbeatResponse:
        """Renew a member's lease, and tell the member whether `generation`, which it is in (0: none), continues.

        Raises UnknownJobError, UnauthenticatedError when it has been replaced, and InvalidRequestError for odd
        statistics.
        """
        check_statistics(statistics or {})
        with self._cache.changed:
            record, member = self._with_secret(job, rank, secret)
            if member.phase is not MemberPhase.LOST:
                self._renew(record, rank, statistics)
                position = (statistics or {}).get(POSITION, 0.0)
                # Rule N4: rounds do not wrap, so the generation ends in time, and positions go on in the next one.
                if generation == record.generation and (why := rounds_used_up(record, member, position)):
                    self._cache.apply(job, lambda now: lifecycle.end_generation(now, why))
            return self.member_status(job, rank, secret, generation=generation)

    def hear(self, token: str) -> None:
        """Renew the lease of the member with this secret, in hexadecimal, for a heartbeat that was given up.

        Nothing is renewed for the secret of no present member.
        """
        with self._cache.changed:
            job, rank = self._place_of(token) or ("", None)
            record = self._cache.find(job)
            member = None if record is None or rank is None else record.member(rank)
            if record is not None and member is not None and member.phase in LEASED:
                self._begin_leases(record)
                self._renew(record, member.rank)

    def member_status(self, job: str, rank: int, secret: bytes, *, generation: int = 0) -> pb.HeartbeatResponse:
        """Return the answer that a heartbeat would have, and renew no lease.

        Raises UnknownJobError and UnauthenticatedError.
        """
        record, member = self._with_secret(job, rank, secret)
        if member.phase is MemberPhase.LOST:
            return pb.HeartbeatResponse(state=state_number(record.state), reason=self._given_up(record, member))
        served = record.state is JobState.RUNNING and member.phase in (MemberPhase.IN, MemberPhase.LEFT)
        now = record.generation if served else 0
        # Who was lost before this generation began is not in it, and its workers know that.
        inside = [m for m in record.members if served and m.joined_generation == now]
        lost = tuple(m.rank for m in inside if m.phase is MemberPhase.LOST)
        # Only a member whose generation is over needs the reason.
        reason = record.reason if generation not in (0, now) else ""
        return pb.HeartbeatResponse(
            state=state_number(record.state),
            generation=now,
            reason=reason,
            lost_ranks=lost,
            switch_unreachable=self._reconcilers.trouble(record, "unreachable") if now else "",
        )

    def leave(self, job: str, rank: int, secret: bytes, *, unfinished: str | None = None) -> None:
        """Let a member go: its switch serves the generation until all its workers have. Harmless when it has left.

        `unfinished` is why its program ended before the work was done, None if it was: then the generation is over for
        the others at once, unless a quorum of them is left. The caller has the switches follow: this waits for none,
        since one may have ended with its rank. Raises UnknownJobError, UnauthenticatedError or StoreError.
        """
        why = None if unfinished is None else printable(unfinished) or "it did not say why"
        with self._cache.changed:
            before, _ = self._with_secret(job, rank, secret)
            after = self._cache.apply(job, lambda now: lifecycle.leave(now, rank, why))
        if why is not None:
            self._note_loss(before, after, f"rank {rank} left unfinished: {why}")

    def follow(self, job: str) -> None:
        """Bring a job's switches to what the job wants after `leave`. It may wait for a switch for seconds."""
        self._reconcilers.follow(job)

    def disconnected(self, job: str, rank: int, secret: bytes) -> None:
        """Shorten the lease of a member whose connection ended without LEAVE to GRACE_S.

        Soon after an absence of the controller it does nothing: that may have ended all connections.
        Raises UnknownJobError, and UnauthenticatedError when it has been replaced.
        """
        with self._cache.changed:
            record, member = self._with_secret(job, rank, secret)
            now_s = self._monotonic()
            # After the controller stood still, ended connections say nothing of the workers.
            if member.phase in LEASED and now_s >= self._excused_s + self._lease_s(record):
                self._leases.shorten(job, rank, now_s + GRACE_S)

    def excuse(self, away_s: float) -> None:
        """Extend all leases by seconds in which this process did not run, so that no heartbeat was heard.

        No lease becomes longer than a new one.
        """
        _log.warning("the controller stood still for %.1f s: leases are extended by that", away_s)
        with self._cache.changed:
            self._excused_s = now_s = self._monotonic()
            for record in self._cache.records():
                self._leases.excuse(record, away_s, now_s + self._lease_s(record))

    def tick(self) -> None:
        """Evict silent members, retry failed work, and compare switches with the database when it is due.

        Call it every second or so. Raises no ControlPlaneError: a failure is logged, shown by the views, and retried.
        """
        self.expire()
        for name in self.switch_names:
            self.reconcile(name)
        self._follow_trees()

    def expire(self) -> None:
        """Do the first part of `tick`, which talks to no switch."""
        now_s = self._monotonic()
        with self._cache.changed:
            records = self._cache.records()
            names = {record.name for record in records}
            self._leases.keep_only(names)
            self._disputes.keep_only(names)
            self._unheard &= names
            self._hear_connections([record for record in records if record.name not in self._unheard], now_s)
            for record in records:
                # Workers that all call another controller are alive: a backup that was started as a test, or a
                # machine that no worker reaches, must not end their sums.
                for rank in self._leases.expired(record, now_s) if record.name not in self._unheard else ():
                    self._lose(record, rank)
                self._mind_successors(record, now_s)
                if record.name not in self._unheard:
                    self._mind_gone(record.name, now_s)
            self._cache.probe_store(now_s)

    def reconcile(self, switch: str) -> None:
        """Do the part of `tick` that concerns one switch, in a thread of its own: slow switches delay no other."""
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
        # Under the lock: a thread that is still at work on a job must not find the store closed.
        with self._cache.changed:
            self._store.close()

    def _hear_connections(self, records: Sequence[JobRecord], now_s: float) -> None:
        """Extend the leases of members whose heartbeats stay away, and over whose connections bytes come.

        Their programs hold Python's interpreter lock, and gRPC sends pings without it.
        """
        late = [
            (record, rank)
            for record in records
            for rank in self._leases.expired(record, now_s + LITTLE_LEFT * self._lease_s(record))
        ]
        # Asked only where it is needed: all descriptors of the process are looked at.
        silences_s = self.silences_s() if late else {}
        for record, rank in late:
            if (silent_s := silences_s.get((record.name, rank))) is not None:
                self._leases.extend(record.name, rank, now_s + self._lease_s(record) - silent_s)

    def _unheard_for(self, record: JobRecord) -> str:
        """Say that nothing was heard of a member for its lease, and what makes a lease longer."""
        setting = "lease_s: longer by HOPSUM_LEASE_S on rank 0 with hosts://, else by hopsum job create --lease"
        return f"nothing was heard of it for {self._lease_s(record):g} s ({setting})"

    def _lose(self, record: JobRecord, rank: int) -> None:
        why, told = f"the lease of rank {rank} ran out: {self._unheard_for(record)}", ""
        if self._leases.shortened(record.name, rank):
            told = f"its connection ended, and nothing was heard of it for {GRACE_S:g} s"
            why = f"the connection of rank {rank} ended, and nothing was heard of it for {GRACE_S:g} s"
        # Where the database cannot be written, which the cache logs, the lease stays overdue.
        with suppress(StoreError):
            self._cache.apply(record.name, lambda now: lifecycle.lose(now, rank, why, told))
            self._leases.forget(record.name, rank)
            self._note_loss(record, self._cache.find(record.name), why)

    def _mind_successors(self, record: JobRecord, now_s: float) -> None:
        """End a generation that a rank left and waits to begin anew, when the others had a lease to leave it too."""
        ranks = lifecycle.successors(record)
        if not ranks:
            self._successors.pop(record.name, None)
            return
        generation, since_s = self._successors.setdefault(record.name, (record.generation, now_s))
        if generation != record.generation:
            self._successors[record.name] = (record.generation, now_s)
        elif now_s - since_s >= self._lease_s(record):
            lease_s = self._lease_s(record)
            why = f"rank {ranks[0]} had left and was started again, and the others did not leave within {lease_s:g} s"
            # The next `expire` tries again what cannot be written now.
            with suppress(StoreError):
                self._cache.apply(record.name, lambda now: lifecycle.end_generation(now, why), missing_ok=True)

    def _mind_gone(self, job: str, now_s: float) -> None:
        """Let a job of MIN:MAX workers go on without those that have been waited for long enough."""
        record, before = self._cache.find(job), self._gone_since_s.get(job, {})
        spared = () if record is None else record.spared_ranks
        if record is None or not spared:
            self._gone_since_s.pop(job, None)
            return
        since_s = self._gone_since_s[job] = {rank: before.get(rank, now_s) for rank in spared}
        wait_s = record.request.replace_s
        wait_s = self._lease_s(record) if wait_s is None else wait_s
        if over := [rank for rank in spared if now_s - since_s[rank] >= wait_s]:
            # The next `expire` tries again what cannot be written now.
            with suppress(StoreError):
                self._cache.apply(job, lambda now: lifecycle.go_without(now, over), missing_ok=True)
                _log.warning("job %s goes on without %s", job, ranks_in_words(over), extra={"job": job})

    @staticmethod
    def _note_loss(before: JobRecord, after: JobRecord | None, why: str) -> None:
        """Log a loss that ended no generation. A loss that ended one is logged with the step of the database."""
        if after is not None and after.state is before.state is JobState.RUNNING:
            job = after.name
            _log.warning("%s; %s continues, generation %d", why, job, after.generation, extra={"job": job})

    def _follow_trees(self) -> None:
        for record in self._cache.records():
            if record.branches and record.next_switches:
                self._reconcilers.follow(record.name)

    def _with_token(self, job: str, token: str, incarnation: bytes = b"") -> JobRecord:
        self._reconcilers.require_decided(job)
        record = self._cache.get(job)
        digests = (record.token_digest, record.earlier_token_digest)
        if not any(matches(token, each) for each in digests) and not has_joined_with(record, token, incarnation):
            raise UnauthenticatedError(
                f"wrong token for job {job!r}", hint="use the one that was told when the job was made, or rotated"
            )
        self._begin_leases(record)
        return record

    def _begin_leases(self, record: JobRecord) -> None:
        """Begin the leases of a job's members with the first call of any of them."""
        with self._cache.changed:
            if record.name in self._unheard:
                self._unheard.remove(record.name)
                for member in record.members:
                    self._renew(record, member.rank)

    def _with_secret(self, job: str, rank: int, secret: bytes) -> tuple[JobRecord, Member]:
        self._reconcilers.require_decided(job)
        record = self._cache.get(job)
        member = record.member(rank)
        if member is None or not matches(secret, member.secret_digest):
            raise UnauthenticatedError(
                f"rank {rank} of job {job!r} is nobody's, or another worker's, but not this one's",
                hint="join again; if it was replaced, two workers may have been started with one rank",
            )
        self._begin_leases(record)
        return record, member

    def _given_up(self, record: JobRecord, member: Member) -> str:
        why = member.why or self._unheard_for(record)
        return f"rank {member.rank} of job {record.name!r} was evicted: {why}"

    def _lease_s(self, record: JobRecord) -> float:
        return self._config.lease_s if record.request.lease_s is None else record.request.lease_s

    def _renew(self, record: JobRecord, rank: int, statistics: Mapping[str, float] | None = None) -> None:
        with self._cache.changed:
            now_s = self._monotonic()
            self._leases.renew(record.name, rank, now_s + self._lease_s(record), statistics, now_s=now_s)

    def _view(self, record: JobRecord, counters: bool, *, events: bool = False) -> pb.Job:
        # The switches are asked before the lock is taken: a slow one must not hold heartbeats up.
        read = self._reconcilers.counters(record) if counters else {}
        with self._cache.changed:
            now_s = self._monotonic()
            condition, lease_s = self._reconcilers.condition(record), self._lease_s(record)
            left_s = answers.left_s_of(record, self._leases, now_s)
            return answers.job_message(
                record,
                self._histories.of(record.name),
                status_of(record, condition, left_s, lease_s),
                left_s,
                self._leases,
                now_s,
                lease_s=lease_s,
                condition=condition,
                counters=read,
                events=events,
            )

    def _switch_view(self, reconciler: SwitchReconciler, drops: bool) -> pb.Switch:
        read = reconciler.drops() if drops else {}
        records = self._cache.records(reconciler.config.name)
        allocator = placement.allocator_from_records(reconciler.config, records, reconciler.inventory.foreign)
        return answers.switch_message(reconciler, allocator.free_capacity, len(records), read)
