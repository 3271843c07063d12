# SPDX-License-Identifier: Apache-2.0
"""The service of workers.

A call that waits for news of its job is a coroutine and holds no thread. Heartbeats have threads of their own, so
neither joins nor what they wait for keeps a heartbeat from being heard.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, Final

from hopsum_base.quiet_grpc import grpc
from hopsum_controlplane.cluster.decision import MAX_RUNS, Report
from hopsum_controlplane.cluster.member_requests import MemberRequests
from hopsum_controlplane.cluster.requests import JoinRequest, ShardEndpoint
from hopsum_controlplane.errors import ControlPlaneError, ResourceExhaustedError, UnauthenticatedError
from hopsum_controlplane.service.connections import read_silences_s
from hopsum_controlplane.service.event_loop import JobNotifier
from hopsum_controlplane.service.handlers import (
    Answer,
    BlockingPool,
    Call,
    CallLimiter,
    CallRefusedError,
    address_of,
    optional_field,
)
from hopsum_wire.control import control_pb2 as pb
from hopsum_wire.generations import MAX_SHARDS
from hopsum_wire.membership import JobMembership, format_membership

WAIT_S: Final = 10.0
"""The longest wait of a call for a membership."""
_MARGIN_S: Final = 0.5
"""The time before a call's deadline, for the answer to get there."""
_OF_JOB: Final = ("Locate", "Join")
"""Calls with a job's token. The others have a member's secret."""
_CALLS_OF_JOB: Final = 128
_CALLS_OF_MEMBER: Final = 16
_log: Final = logging.getLogger(__name__)


@dataclass
class _Presence:
    """The Attend streams of one member: the peer of each that is open, and whether the member has left."""

    peers: list[str] = field(default_factory=list)
    left: bool = False


class MemberCalls:
    """Answers the calls of MembershipService, which are those of workers, on one event loop.

    Args:
        requests: answers them. limiter: counts the calls in progress. notifier: notified of each step of a job.
        beats: threads for heartbeats alone. rest: threads for all other calls.
    """

    def __init__(
        self,
        requests: MemberRequests,
        limiter: CallLimiter,
        notifier: JobNotifier,
        *,
        beats: BlockingPool,
        rest: BlockingPool,
    ) -> None:
        self._requests = requests
        self._limiter = limiter
        self._notifier = notifier
        self._beats, self._rest = beats, rest
        self._present: dict[tuple[str, int, bytes], _Presence] = {}
        self._closing = False

    def answers_by_method(self) -> Mapping[str, Answer]:
        """Return the function that answers each method of MembershipService, by the method's name."""
        return {
            "Locate": self._rest.answer(self._locate),
            "Join": self._rest.answer(self._join),
            "AwaitMembership": self._await_membership,
            "Heartbeat": self._beats.answer(self._heartbeat),
            "Attend": self._attend,
            "Leave": self._leave,
        }

    @contextmanager
    def admit(self, name: str, call: Call) -> Iterator[None]:
        """Count a call of method `name` while the block runs, see CallLimiter. An unknown token is admitted too.

        A heartbeat call that fails in the block renews the member's lease all the same. Raises CallRefusedError, and
        UnauthenticatedError for a call without a token.
        """
        if not call.token:
            raise UnauthenticatedError(
                "this call has no token", hint="give the job's token, or the secret that Join gave"
            )
        known = self._requests.knows(call.token)
        if known:
            passing = self._limiter.known_call(call.token, _CALLS_OF_JOB if name in _OF_JOB else _CALLS_OF_MEMBER)
        else:
            passing = self._limiter.unknown_call(call.peer)
        try:
            with passing:
                yield
        except BaseException:
            # A worker that gave its heartbeat up, as it does with a controller that is slow, was alive when it called.
            if known and name == "Heartbeat":
                self._beats.submit(self._requests.record_heartbeat, call.token)
            raise

    def silences_s(self) -> dict[tuple[str, int], float]:
        """Return the seconds since bytes last came from each member with an open Attend stream, by job and rank.

        Members with connections that the system does not show are left out. For any thread.
        """
        of_peer, found = read_silences_s(), {}
        # A copy: the event loop's thread opens and ends streams meanwhile.
        for (job, rank, _), presence in list(self._present.items()):
            if known := [of_peer[peer] for peer in presence.peers if peer in of_peer]:
                found[job, rank] = min(known)
        return found

    def close(self) -> None:
        """End all calls that wait for news. A later one is answered without a wait. For any thread."""
        self._closing = True
        self._notifier.notify_all()

    def _locate(self, request: Any, call: Call) -> Any:
        return self._requests.locate(request.job, call.token)

    def _join(self, request: Any, call: Call) -> Any:
        try:
            return self._requests.join(join_request(request, call.token, _caller(call.peer)))
        except ResourceExhaustedError as error:
            # The status of this class asks to try again later. A full job has no rank until a worker leaves.
            raise ControlPlaneError(error.what, where=error.where, hint=error.hint) from error

    async def _await_membership(self, request: Any, call: Call) -> AsyncGenerator[bytes, None]:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + _wait_s(request.timeout_s, call.left_s)
        secret = _secret(call.token)

        def look() -> bytes | None:
            # With timeout 0 the cluster only looks: this coroutine waits, and holds no thread.
            found = self._requests.await_membership(
                request.job, request.rank, secret, known_generation=request.known_generation, timeout_s=0.0
            )
            if isinstance(found, JobMembership):
                reply = pb.AwaitMembershipResponse(membership=format_membership(found))
            elif loop.time() < until_s and not self._closing:
                return None
            else:
                reply = pb.AwaitMembershipResponse(pending=found)
            return bytes(reply.SerializeToString())

        # Listen before the first look: a step between look and wait would be missed otherwise.
        with self._notifier.subscription(request.job) as event:
            while (reply := await self._rest.run(look)) is None:
                await _set_within(event, until_s - loop.time())
        yield reply

    def _heartbeat(self, request: Any, call: Call) -> Any:
        statistics = dict(request.statistics)
        secret = _secret(call.token)
        return self._requests.heartbeat(
            request.job, request.rank, secret, generation=request.generation, statistics=statistics
        )

    async def _attend(self, request: Any, call: Call) -> AsyncGenerator[bytes, None]:
        job, rank, secret, generation = request.job, request.rank, _secret(call.token), request.generation
        told: pb.HeartbeatResponse | None = None

        def look() -> pb.HeartbeatResponse:
            return self._requests.member_status(job, rank, secret, generation=generation)

        with self._present_in(job, rank, secret, call.peer) as presence, self._notifier.subscription(job) as event:
            while not presence.left:
                # Clear before the look: news that comes during the look sets the event again.
                event.clear()
                if self._closing:
                    raise CallRefusedError(grpc.StatusCode.UNAVAILABLE, "the controller is ending")
                try:
                    beat = await self._beats.run(look)
                except ControlPlaneError:
                    # LEAVE came while this look was made: no error for the stream that it ends.
                    if presence.left:
                        return
                    raise
                if beat != told:
                    yield bytes(beat.SerializeToString())
                    told = beat
                    if beat.generation:
                        generation = beat.generation
                        # The reason is told once for each generation that ended.
                        told.reason = ""
                await event.wait()

    async def _leave(self, request: Any, call: Call) -> AsyncGenerator[bytes, None]:
        job, rank, secret = request.job, request.rank, _secret(call.token)
        leave = partial(self._requests.leave, unfinished=request.reason if request.unfinished else None)
        presence = self._present.get((job, rank, secret), _Presence())
        # Set before the step: the stream that LEAVE ends must not count as a lost connection.
        presence.left = True
        try:
            await self._rest.run(leave, job, rank, secret)
        except BaseException:
            presence.left = False
            raise
        self._notifier.notify(job)
        # Not before the answer: a switch that ends with its rank, as those of hosts:// do, lets it wait for seconds.
        self._rest.submit(self._requests.reconcile_job, job)
        yield bytes(pb.LeaveResponse().SerializeToString())

    @contextmanager
    def _present_in(self, job: str, rank: int, secret: bytes, peer: str) -> Iterator[_Presence]:
        """Count a stream of a member for the block. When its last one breaks off, the controller is told."""
        key = (job, rank, secret)
        presence = self._present.setdefault(key, _Presence())
        presence.peers.append(peer)
        refused = False
        try:
            yield presence
        except (ControlPlaneError, CallRefusedError):
            refused = True
            raise
        finally:
            presence.peers.remove(peer)
            if not presence.peers:
                del self._present[key]
                # Only the last stream of a member that broke off by itself shortens its lease.
                if not (refused or presence.left or self._closing):
                    self._rest.submit(self._disconnected, *key)

    def _disconnected(self, job: str, rank: int, secret: bytes) -> None:
        # The member was evicted or replaced meanwhile.
        with suppress(ControlPlaneError):
            self._requests.shorten_lease(job, rank, secret)


async def _set_within(event: asyncio.Event, timeout_s: float) -> None:
    """Wait for an event to be set, and clear it, or until the time has passed."""
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()
    event.clear()


def _secret(token: str) -> bytes:
    """Return a member's secret. Raises UnauthenticatedError for a token that is none."""
    try:
        return bytes.fromhex(token)
    except ValueError:
        raise UnauthenticatedError("this is no member's secret", hint="join first") from None


def _wait_s(asked_s: float, left_s: float | None) -> float:
    """Return how long a call may wait: what it asks for and its deadline leaves, 0 for what is no time."""
    most_s = WAIT_S if left_s is None else min(WAIT_S, left_s - _MARGIN_S)
    # NaN and negative times are no wait: NaN fails the comparison.
    return max(0.0, min(asked_s, most_s)) if asked_s > 0 else 0.0


def _caller(peer: str) -> str:
    """Return the IPv4 address of a peer, empty for one that has none. An IPv6 socket has it in a longer form."""
    kind, _, address = address_of(peer).partition(":")
    return address.strip("[]").removeprefix("::ffff:") if kind in ("ipv4", "ipv6") else ""


def join_request(message: Any, token: str, caller: str = "") -> JoinRequest:
    """Return the JoinRequest of a JOIN message. Nothing is checked: the cluster refuses values out of range.

    `caller` is the IPv4 address of the caller, empty for none.
    """
    return JoinRequest(
        job=message.job,
        token=token,
        rank=optional_field(message, "rank"),
        ip=message.endpoint.ip,
        udp_port=message.endpoint.udp_port,
        mac=optional_field(message, "mac"),
        side_port=optional_field(message, "side_port"),
        incarnation=message.incarnation,
        wire_version=message.wire_version,
        version=message.version,
        report=_report(message.report) if message.HasField("report") else None,
        settings=dict(message.settings),
        caller=caller,
        further=tuple(
            ShardEndpoint(
                each.endpoint.ip, each.endpoint.udp_port, optional_field(each, "mac"), optional_field(each, "side_port")
            )
            for each in islice(message.further, MAX_SHARDS)
        ),
    )


def _report(message: Any) -> Report:
    held = tuple((run.first, run.end) for run in islice(message.held, MAX_RUNS + 1))
    further = tuple(_report(each) for each in islice(message.further, MAX_SHARDS))
    positions = (message.generation, message.delivered_to, message.submitted_to)
    return Report(*positions, held, message.allreduces_begun, further_shards=further)
