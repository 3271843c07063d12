# SPDX-License-Identifier: Apache-2.0
"""One worker's calls: find the switch, join, wait, renew the lease, leave. Only `heartbeat` is thread-safe.

    state      input                                next       also
    OUTSIDE    join answered                        SEATED     rank and secret are known
    OUTSIDE    join without an answer               OUTSIDE    again with the same incarnation: same answer
    SEATED     membership                           SEATED     the generation that heartbeats name
    SEATED     generation over, joined again        SEATED     the same rank and secret; the report says what it holds
    SEATED     told that its own rank is missing    SEATED     joined again as before: it missed a generation
    SEATED     leave                                OUTSIDE
    any        refused                              same       ControllerError

Every call of a member may be repeated: a lost answer does no harm.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeVar

from hopsum.errors import name_ranks
from hopsum.notice import AFTER_S, WaitNotice
from hopsum.rpc.channel import CALL_S, Channel, ControllerError, ControllerUnreachableError, Replies
from hopsum_base.own_random import OWN_RANDOM
from hopsum_wire import WIRE_VERSION
from hopsum_wire.control import control_pb2 as pb
from hopsum_wire.control.services import MEMBERSHIP_SERVICE
from hopsum_wire.generations import Sealed
from hopsum_wire.membership import JobMembership, MembershipError, parse_membership

INCARNATION_BYTES: Final = 16
# A call that nobody answers is repeated: every call of a member is idempotent (see the module).
_AGAIN_S: Final = (0.1, 2.0)
"""Pause after the first call without an answer, and the longest."""
_BUSY: Final = "RESOURCE_EXHAUSTED"
_NO_PLACE: Final = ("UNAUTHENTICATED", "NOT_FOUND")
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Registration:
    """A rank in a job, with its lease, the interval of its heartbeats, and its secret. Times are in seconds."""

    rank: int
    lease_s: float
    heartbeat_s: float
    secret: str = field(repr=False)


class ShardSource(NamedTuple):
    """The source of a worker's datagrams to one shard of its job, and the port where its peers reach it there."""

    endpoint: tuple[str, int]
    """(IPv4 address, UDP port)"""
    mac: str | None = None
    """The address of the interface, where the switch is reached by Ethernet."""
    side_port: int | None = None
    """TCP port, at the same address."""


class MemberClient:
    """The calls of one worker of `job` to the controller. A restarted worker is another member.

    Args:
        token: of the job.
        version: of hopsum, for the controller's lists.
    """

    def __init__(self, channel: Channel, job: str, token: str, *, version: str = "") -> None:
        self.job = job
        self._channel = channel
        self._token = token
        self._version = version
        # The controller tells by this number whether a join comes from the same process as before.
        self._incarnation = secrets.token_bytes(INCARNATION_BYTES)
        self._registration: Registration | None = None
        self._request: Any = None
        """The request of the last join."""

    @property
    def registration(self) -> Registration:
        """Return the rank and lease from the last join. Raises MembershipError before a join and after `leave`."""
        if self._registration is None:
            raise MembershipError(f"this worker is not in job {self.job!r}: join first")
        return self._registration

    def locate(self, wait_s: float) -> pb.LocateResponse:
        """Return the job's switch, number of workers, and recorded codec, from the controller. No rank is taken.

        Tries for `wait_s` seconds to reach the controller, and logs long waits. Raises ControllerError.
        """
        request = pb.LocateRequest(job=self.job)
        found: pb.LocateResponse = _until(
            wait_s, lambda left_s: self._call("Locate", request, timeout_s=left_s), self._notice()
        )
        return found

    def join(
        self,
        endpoint: tuple[str, int],
        wait_s: float,
        *,
        rank: int | None = None,
        mac: str | None = None,
        side_port: int | None = None,
        settings: Mapping[str, str] | None = None,
        further: Iterable[ShardSource] = (),
    ) -> Registration:
        """Join the job and return the registration. From now on the lease needs heartbeats.

        Does not wait for the other ranks. A repeated call has the same rank.

        Args:
            endpoint: (IPv4 address, UDP port) that this worker's datagrams come from.
            wait_s: the seconds in which the call tries to reach the controller.
            rank: None: the controller chooses it.
            mac: of the interface, for a switch that is reached by Ethernet.
            side_port: TCP port, at the same address, for its peers.
            settings: texts that the controller compares with those of the other workers, by name.
            further: the worker at the job's shards 1 .. k - 1.

        Raises:
            ControllerError: the controller refused the worker, or could not be reached.
        """
        self._request = pb.JoinRequest(
            job=self.job,
            rank=rank,
            endpoint=pb.Endpoint(ip=endpoint[0], udp_port=endpoint[1]),
            mac=mac,
            side_port=side_port,
            incarnation=self._incarnation,
            wire_version=WIRE_VERSION,
            version=self._version,
            settings=settings,
            further=[
                pb.JoinRequest.Shard(
                    endpoint=pb.Endpoint(ip=each.endpoint[0], udp_port=each.endpoint[1]),
                    mac=each.mac,
                    side_port=each.side_port,
                )
                for each in further
            ],
        )
        return self._join(wait_s)

    def join_again(self, sealed: Sealed, allreduces_begun: int, wait_s: float) -> Registration:
        """Join again for the next generation, with the same rank, and report the results held of the ended generation.

        Does not wait for the generation: `membership` does.

        Args:
            sealed: the report of `Agent.seal`, the same in every try.
            allreduces_begun: the number of the job's all-reduces that this worker has begun.
            wait_s: the seconds in which the call tries to reach the controller.

        Raises:
            MembershipError: this worker has no rank.
            ControllerError: the controller refused the worker, or could not be reached.
        """
        # The same request as at first, so that a controller which lost its memory of this worker takes it as new.
        self._request.rank = self.registration.rank
        report = _report(sealed)
        report.allreduces_begun = allreduces_begun
        self._request.report.CopyFrom(report)
        return self._join(wait_s)

    def _join(self, wait_s: float) -> Registration:
        reply = _until(wait_s, lambda left_s: self._call("Join", self._request, timeout_s=left_s), self._notice())
        self._registration = Registration(reply.rank, reply.lease_s, reply.heartbeat_s, reply.secret.hex())
        return self._registration

    def membership(
        self, wait_s: float, *, known_generation: int = 0, replacement_wait_s: float | None = None
    ) -> JobMembership:
        """Block until all ranks are there, and return the job's membership in another generation than the known one.

        If the controller misses this worker, the call joins again as before. Long waits are logged with their cause.

        Args:
            wait_s: the longest wait for ranks that have not joined, counted while no rank is gone.
            known_generation: the last generation of this worker, 0 for none.
            replacement_wait_s: the longest wait for replacements of ranks that are gone, counted from the call. It
                counts only with a known generation. None: `wait_s`.

        Raises:
            MembershipError: not within that time. The message names the missing ranks.
            ControllerError: this worker is no longer in the job, or the controller cannot be reached.
        """
        began = nobody_gone_since = time.monotonic()
        limit, notice, most_s = began + wait_s, self._notice(), 0.0  # the first answer says at once who is gone
        awaited: list[int] = []
        while True:
            reply = self._poll(known_generation, limit - time.monotonic(), most_s, notice)
            # From the second call on the controller may hold its answer back until something changes (long poll).
            most_s = AFTER_S
            if reply.WhichOneof("outcome") == "membership":
                return parse_membership(reply.membership, where=f"membership of job {self.job!r}")
            pending, now = reply.pending, time.monotonic()
            # Heartbeats would not say it: a generation that began and ended in between is unknown to them.
            if self.registration.rank in pending.missing_ranks:  # a generation began and ended before it was told here
                self._join(max(0.0, limit - now))
            gone = list(pending.gone_ranks) if known_generation and replacement_wait_s is not None else []
            if gone:
                # Two clocks: who waits for replacements waits since the call, who waits for late ranks since all were
                # there.
                nobody_gone_since, limit = now, began + (replacement_wait_s or 0.0)
                # Ranks that have waited for a replacement as long as this one give up at this time too.
                awaited = [rank for rank in awaited if rank in gone] or gone
                self._tell_gone(notice, pending, gone, limit - now)
            else:
                limit = nobody_gone_since + wait_s
                notice.log(_awaited(pending), limit - now, "membership_wait_s")
            if now >= limit:
                raise self._given_up(pending, gone and awaited, replacement_wait_s if gone else wait_s)
            time.sleep(max(0.0, min(pending.again_s, limit - now)))

    def _tell_gone(self, notice: WaitNotice, pending: Any, gone: list[int], left_s: float) -> None:
        if left_s > 0:
            what = f"another worker in the place of {name_ranks(gone)} ({pending.reason or 'gone'})"
            notice.log(what, left_s, "replacement_wait_s; 0 ends at once", at_once=True)

    def _given_up(self, pending: Any, gone: list[int], wait_s: float | None) -> MembershipError:
        if gone and not wait_s:
            return MembershipError("no other worker is waited for (replacement_wait_s is 0): start all ranks again")
        if gone:
            return MembershipError(
                f"no worker has taken the place of {name_ranks(gone)} in job {self.job!r} within {wait_s:g} s. Start "
                "all workers that have ended again, or wait longer (replacement_wait_s)"
            )
        return MembershipError(
            f"job {self.job!r} is not complete within {wait_s:g} s: {_lack(pending)}. Start "
            "all workers of the job, or wait longer (membership_wait_s)"
        )

    def heartbeat(self, generation: int, statistics: Mapping[str, float], timeout_s: float = CALL_S) -> Any:
        """Renew the lease with one call that is not repeated, and report the statistics. Return the HeartbeatResponse.

        Raises:
            MembershipError: this worker has no rank.
            ControllerUnreachableError: no answer within `timeout_s`.
            ControllerError: the controller refused.
        """
        registration = self.registration
        request = pb.HeartbeatRequest(
            job=self.job, rank=registration.rank, generation=generation, statistics=statistics
        )
        return self._call("Heartbeat", request, secret=registration.secret, timeout_s=timeout_s)

    def attend(self, generation: int) -> Replies:
        """Open the stream of changes of this worker's place, and return its replies, a HeartbeatResponse each.

        While the stream is open, gRPC's pings prolong the lease in place of heartbeats. If the stream breaks off, the
        controller shortens the lease. The replies raise ControllerError. Raises MembershipError without a rank.
        """
        registration = self.registration
        request = pb.AttendRequest(job=self.job, rank=registration.rank, generation=generation)
        return self._channel.stream(MEMBERSHIP_SERVICE, "Attend", request, secret=registration.secret)

    def leave(self, wait_s: float = CALL_S, *, unfinished: str = "") -> None:
        """Leave the job, trying for `wait_s` seconds. Does nothing without a rank.

        No error if the controller has already taken the rank.

        Args:
            unfinished: the reason if the program ends before its work is done, else empty. The controller passes the
                reason to the other workers at once.

        Raises:
            ControllerError: the controller refused, or did not answer. The rank stays taken until its lease ends.
        """
        registration = self._registration
        if registration is None:
            return
        request = pb.LeaveRequest(job=self.job, rank=registration.rank, unfinished=bool(unfinished), reason=unfinished)
        try:
            _until(wait_s, lambda left_s: self._call("Leave", request, secret=registration.secret, timeout_s=left_s))
        except ControllerError as error:
            # The controller has given the place away already: that is what LEAVE wants.
            if error.code not in _NO_PLACE:
                raise
        self._registration = None

    def _poll(self, known_generation: int, wait_s: float, most_s: float, notice: WaitNotice) -> Any:
        """Ask for a membership, trying for `wait_s` seconds. The controller waits with its answer for `most_s`."""
        registration = self.registration

        def ask(left_s: float) -> Any:
            timeout_s = min(left_s, most_s)
            request = pb.AwaitMembershipRequest(
                job=self.job, rank=registration.rank, known_generation=known_generation, timeout_s=timeout_s
            )
            return self._call("AwaitMembership", request, secret=registration.secret, timeout_s=timeout_s + CALL_S)

        return _until(wait_s, ask, notice)

    def _notice(self) -> WaitNotice:
        who = "this worker" if self._registration is None else f"rank {self._registration.rank}"
        return WaitNotice(f"{who} of job {self.job!r}")

    def _call(self, name: str, request: Any, *, secret: str | None = None, timeout_s: float) -> Any:
        secret = self._token if secret is None else secret
        return self._channel.call(MEMBERSHIP_SERVICE, name, request, secret=secret, timeout_s=timeout_s)


def _report(sealed: Sealed) -> pb.Report:
    return pb.Report(
        generation=sealed.generation,
        delivered_to=sealed.delivered_to,
        submitted_to=sealed.submitted_to,
        held=[pb.Report.Run(first=first, end=end) for first, end in sealed.held],
        further=map(_report, sealed.further_shards),
    )


def _lack(pending: Any) -> str:
    """Name in words the workers and switches that a job waits for."""
    if pending.missing_ranks:
        return f"ranks {', '.join(map(str, pending.missing_ranks))} have not joined"
    return f"its switch is not written{': ' if pending.condition else ''}{pending.condition}"


def _awaited(pending: Any) -> str:
    """Say the same as what somebody waits for."""
    if pending.missing_ranks:
        return f"{name_ranks(pending.missing_ranks)} to join"
    return f"the job's switch to be written{': ' if pending.condition else ''}{pending.condition}"


def _until(wait_s: float, call: Callable[[float], Answer], notice: WaitNotice | None = None) -> Answer:
    """Call again until there is an answer, for `wait_s` seconds at most. `call` takes the seconds of one try.

    What takes long is told by the notice.
    """
    deadline, (pause_s, longest_s) = time.monotonic() + wait_s, _AGAIN_S
    while True:
        left_s = deadline - time.monotonic()
        try:
            # gRPC takes no deadline of 0; the last try still gets a chance.
            return call(min(max(left_s, 0.001), CALL_S))
        except ControllerError as error:
            may_pass = isinstance(error, ControllerUnreachableError) or error.code == _BUSY
            if not may_pass or time.monotonic() + pause_s > deadline:
                raise
            if notice is not None:
                notice.log(f"an answer: {error}", deadline - time.monotonic(), "membership_wait_s")
        # Jitter keeps the workers of one job from calling in step.
        time.sleep(pause_s * OWN_RANDOM.uniform(0.5, 1.0))
        pause_s = min(2 * pause_s, longest_s)
