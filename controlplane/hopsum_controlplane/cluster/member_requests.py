# SPDX-License-Identifier: Apache-2.0
"""The requests of workers: join, leave, heartbeat and membership, answered from the database."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Final

from hopsum_controlplane.cluster import answers, lifecycle, placement
from hopsum_controlplane.cluster.answers import Pending, state_number
from hopsum_controlplane.cluster.cluster_config import ClusterConfig
from hopsum_controlplane.cluster.job_history import JobHistories
from hopsum_controlplane.cluster.job_state_cache import JobStateCache
from hopsum_controlplane.cluster.lifecycle import has_joined_with, why_rounds_used_up
from hopsum_controlplane.cluster.liveness import Liveness, log_loss
from hopsum_controlplane.cluster.membership_builder import membership_of
from hopsum_controlplane.cluster.records import LEASED, JobRecord, JobState, Member, MemberPhase
from hopsum_controlplane.cluster.requests import JoinRequest, check_statistics, printable
from hopsum_controlplane.cluster.settings_agreement import Disputes
from hopsum_controlplane.cluster.switch_reconcilers import SwitchReconcilers
from hopsum_controlplane.cluster.tokens import digest, matches, member_secret
from hopsum_controlplane.errors import ControlPlaneError, UnauthenticatedError
from hopsum_wire.control import control_pb2 as pb
from hopsum_wire.membership import JobMembership
from hopsum_wire.watch.heartbeat import POSITION

_BEATS_PER_LEASE: Final = 3


class MemberRequests:
    """Answers the workers of a cluster's jobs. Thread-safe.

    All calls that name a job raise UndecidedError where the database may lack it, see `require_decided`, and count as
    the first sign of life of its workers after a start of the controller, see `Liveness.begin_leases`.

    config: of the cluster. cache: the database. reconcilers: of its switches. liveness: the leases, which calls renew.
    histories: record refused joins. monotonic: monotonic seconds.
    """

    def __init__(
        self,
        config: ClusterConfig,
        cache: JobStateCache,
        reconcilers: SwitchReconcilers,
        liveness: Liveness,
        histories: JobHistories,
        monotonic: Callable[[], float],
    ) -> None:
        self._config, self._cache, self._reconcilers = config, cache, reconcilers
        self._liveness, self._histories, self._monotonic = liveness, histories, monotonic
        self._disputes = Disputes(cache)
        """Used under the cache's lock."""

    def knows(self, token: str) -> bool:
        """Return whether this is a job's token, or a member's secret in hexadecimal. Takes no lock."""
        return self._owner_of(token) is not None

    def _owner_of(self, token: str) -> tuple[str, int | None] | None:
        """Return the job of a token, or job and rank of a member's secret in hexadecimal, None for any other text."""
        found = self._cache.owner_of(digest(token))
        with suppress(ValueError):
            found = found or self._cache.owner_of(digest(bytes.fromhex(token)))
        return found

    def locate(self, job: str, token: str) -> pb.LocateResponse:
        """Return the addresses to which members of a job send, its number of workers, and its codec.

        Raises UnknownJobError, and UnauthenticatedError for a token that is not the job's.
        """
        return answers.locate_response(self._with_token(job, token), self._config)

    def join(self, request: JoinRequest) -> pb.JoinResponse:
        """Admit a member to a job, for its next generation. A repeated call of an incarnation returns the same answer.

        Another incarnation takes over the rank of the previous one, and ends its generation. A member of the job's last
        generation joins again with its report. Raises InvalidRequestError, UnknownJobError, UnauthenticatedError,
        ResourceExhaustedError or StoreError. Then nothing has changed, except that different settings before the first
        generation evict all waiting members (`settings_agreement`).
        """
        try:
            return self._join(request)
        except ControlPlaneError as error:
            with self._cache.changed:
                record = self._cache.find(request.job)
                # Only joins with the right token count: an unauthenticated client must not fill a job's history.
                if record is not None and matches(request.token, record.token_digest):
                    self._histories.record_rejection(record.name, str(error))
            raise

    def _join(self, request: JoinRequest) -> pb.JoinResponse:
        request.check()
        with self._cache.changed:
            record = self._with_token(request.job, request.token, request.incarnation)
            rank = lifecycle.choose_rank(record, request.rank, request.incarnation)
            at, leaf, further = placement.place_member(record, request, rank, self._config)
            # The secret is a function of token and incarnation, so a repeated JOIN has the same answer, and the
            # database has no secret.
            secret = member_secret(request.token, record.name, rank, request.incarnation)
            member = Member(at, request.side_port, request.incarnation, digest(secret), request.version, leaf=leaf)
            settings = tuple(sorted(request.settings.items()))
            member = replace(member, report=request.report, settings=settings, further=further)
            # Before the record changes: a worker with other settings must not end a generation by joining.
            self._disputes.require_agreement(record, member, self._monotonic(), self._liveness.lease_s(record))
            before = record.member(rank)
            self._cache.apply(record.name, lambda now: lifecycle.join(now, member))
            if before is not None and before.incarnation != request.incarnation:
                # Else the shortened lease of the previous member would evict the new one.
                self._liveness.leases.forget(record.name, rank)
            self._liveness.renew(record, rank)
            if (before is None or before.incarnation != request.incarnation) and request.is_elsewhere:
                self._histories.record_caller(record.name, rank, request.caller, request.ip)
        # Outside the lock: writing a switch may take seconds, and heartbeats need the lock.
        self._reconcilers.reconcile_job(record.name)
        lease_s = self._liveness.lease_s(record)
        heartbeat_s = min(self._config.heartbeat_s, lease_s / _BEATS_PER_LEASE)
        return pb.JoinResponse(rank=rank, secret=secret, lease_s=lease_s, heartbeat_s=heartbeat_s)

    def await_membership(
        self, job: str, rank: int, secret: bytes, *, known_generation: int = 0, timeout_s: float = 0.0
    ) -> JobMembership | Pending:
        """Wait, up to `timeout_s` seconds, until a generation other than the known one runs with this member.

        Returns its membership, or the ranks for which the job waits. Renews the member's lease at the beginning, and
        records in the database that the member knows the generation. Raises UnknownJobError, StoreError, and
        UnauthenticatedError if the secret is not that of a present member, or the member was evicted.
        """
        deadline_s = time.monotonic() + timeout_s
        with self._cache.changed:
            record, member = self._with_secret(job, rank, secret)
            self._liveness.renew(record, rank)
            while True:
                if member.phase is MemberPhase.LOST:
                    raise UnauthenticatedError(
                        self._liveness.eviction_message(record, member), hint="close, and connect again"
                    )
                is_in = member.phase is MemberPhase.IN and record.state is JobState.RUNNING
                if is_in and record.generation != known_generation:
                    # Recorded before the answer: after a crash in between the worker may know the generation (E4).
                    self._cache.apply(job, lambda now: lifecycle.mark_notified(now, rank))
                    return membership_of(record, rank, self._config)
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:
                    return Pending(
                        missing_ranks=record.missing_ranks,
                        state=state_number(record.state),
                        condition=self._reconcilers.condition(record),
                        # No process has to replace a rank without which the job continues.
                        gone_ranks=() if record.spared_ranks else record.gone_ranks,
                        reason=record.reason,
                    )
                # `wait` releases the lock, and returns after a change by another thread.
                self._cache.changed.wait(left_s)
                record, member = self._with_secret(job, rank, secret)

    def heartbeat(
        self, job: str, rank: int, secret: bytes, *, generation: int = 0, statistics: Mapping[str, float] | None = None
    ) -> pb.HeartbeatResponse:
        """Renew a member's lease, and return whether the member's `generation` (0: none) continues.

        The generation ends if the statistics say that its rounds are used up. An evicted member gets no lease, and the
        reason. Raises UnknownJobError, UnauthenticatedError if the member was replaced, InvalidRequestError for invalid
        statistics, and StoreError.
        """
        check_statistics(statistics or {})
        with self._cache.changed:
            record, member = self._with_secret(job, rank, secret)
            if member.phase is not MemberPhase.LOST:
                self._liveness.renew(record, rank, statistics)
                position = (statistics or {}).get(POSITION, 0.0)
                # Rule N4: rounds do not wrap, so the generation ends in time; positions continue in the next one.
                if generation == record.generation and (why := why_rounds_used_up(record, member, position)):
                    self._cache.apply(job, lambda now: lifecycle.end_generation(now, why))
            return self.member_status(job, rank, secret, generation=generation)

    def record_heartbeat(self, token: str) -> None:
        """Renew the lease of the member with this secret, in hexadecimal, for a heartbeat call that was cancelled.

        Any other secret renews nothing.
        """
        with self._cache.changed:
            job, rank = self._owner_of(token) or ("", None)
            record = self._cache.find(job)
            member = None if record is None or rank is None else record.member(rank)
            if record is not None and member is not None and member.phase in LEASED:
                self._liveness.begin_leases(record)
                self._liveness.renew(record, member.rank)

    def member_status(self, job: str, rank: int, secret: bytes, *, generation: int = 0) -> pb.HeartbeatResponse:
        """Return the answer of a heartbeat, without renewing the lease.

        Its generation is the running one if the member is in it or has left it, else 0. `generation` is the last one
        that the member knows. The answer has a reason if that one has ended, or the member was evicted. Raises
        UnknownJobError and UnauthenticatedError.
        """
        record, member = self._with_secret(job, rank, secret)
        if member.phase is MemberPhase.LOST:
            return pb.HeartbeatResponse(
                state=state_number(record.state), reason=self._liveness.eviction_message(record, member)
            )
        served = record.state is JobState.RUNNING and member.phase in (MemberPhase.IN, MemberPhase.LEFT)
        now = record.generation if served else 0
        # Who was lost before this generation began is not in it, and its workers know that.
        inside = [m for m in record.members if served and m.joined_generation == now]
        lost = tuple(m.rank for m in inside if m.phase is MemberPhase.LOST)
        # Only a member whose generation has ended needs the reason.
        reason = record.reason if generation not in (0, now) else ""
        return pb.HeartbeatResponse(
            state=state_number(record.state),
            generation=now,
            reason=reason,
            lost_ranks=lost,
            switch_unreachable=self._reconcilers.trouble(record, "unreachable") if now else "",
        )

    def leave(self, job: str, rank: int, secret: bytes, *, unfinished: str | None = None) -> None:
        """Record that a member has left. Its switch serves the generation until all workers have left.

        `unfinished` is the reason why its program ended before the work was done, None if it was done. With a reason
        the generation ends at once, unless a quorum of the others is left. A repeated call does nothing. This waits for
        no switch, because one may have ended with its rank: call `reconcile_job` after it. Raises UnknownJobError,
        UnauthenticatedError or StoreError.
        """
        why = None if unfinished is None else printable(unfinished) or "it did not say why"
        with self._cache.changed:
            before, _ = self._with_secret(job, rank, secret)
            after = self._cache.apply(job, lambda now: lifecycle.leave(now, rank, why))
        if why is not None:
            log_loss(before, after, f"rank {rank} left unfinished: {why}")

    def reconcile_job(self, job: str) -> None:
        """Reconcile a job's switches, after `leave`. It may wait for a switch for seconds. A failure raises nothing."""
        self._reconcilers.reconcile_job(job)

    def shorten_lease(self, job: str, rank: int, secret: bytes) -> None:
        """Shorten the lease of a member whose connection ended without LEAVE, see `Liveness.on_connection_ended`.

        Raises UnknownJobError, and UnauthenticatedError if the member was replaced.
        """
        with self._cache.changed:
            self._liveness.on_connection_ended(*self._with_secret(job, rank, secret))

    def forget_deleted_jobs(self) -> None:
        """Forget the disputes about settings of jobs that are deleted."""
        with self._cache.changed:
            self._disputes.keep_only({record.name for record in self._cache.records()})

    def _with_token(self, job: str, token: str, incarnation: bytes = b"") -> JobRecord:
        self._reconcilers.require_decided(job)
        record = self._cache.get(job)
        digests = (record.token_digest, record.earlier_token_digest)
        if not any(matches(token, each) for each in digests) and not has_joined_with(record, token, incarnation):
            raise UnauthenticatedError(
                f"wrong token for job {job!r}", hint="use the one that was told when the job was made, or rotated"
            )
        self._liveness.begin_leases(record)
        return record

    def _with_secret(self, job: str, rank: int, secret: bytes) -> tuple[JobRecord, Member]:
        self._reconcilers.require_decided(job)
        record = self._cache.get(job)
        member = record.member(rank)
        if member is None or not matches(secret, member.secret_digest):
            raise UnauthenticatedError(
                f"rank {rank} of job {job!r} is nobody's, or another worker's, but not this one's",
                hint="join again; if it was replaced, two workers may have been started with one rank",
            )
        self._liveness.begin_leases(record)
        return record, member
