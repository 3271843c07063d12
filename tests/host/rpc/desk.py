# SPDX-License-Identifier: Apache-2.0
"""A manager of one job that does what a test wants, with the oracle as its switch; and services in front of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from hopsum.rpc.channel import Channel, Replies
from hopsum.rpc.member_client import MemberClient
from hopsum_controlplane import Job, JobSpec, SwitchEndpoint, WorkerEndpoint, job_membership
from hopsum_controlplane.cluster.answers import Pending, state_number
from hopsum_controlplane.cluster.decision import decide
from hopsum_controlplane.cluster.records import JobState
from hopsum_controlplane.cluster.requests import JoinRequest
from hopsum_controlplane.errors import (
    InvalidRequestError,
    ResourceExhaustedError,
    UnauthenticatedError,
    UnknownJobError,
)
from hopsum_controlplane.resource_allocator import SlotRange
from hopsum_controlplane.service.grpc_service import Service
from hopsum_oracle.aggregator import Aggregator
from hopsum_wire.control import control_pb2 as pb
from hopsum_wire.control.services import MEMBERSHIP_SERVICE
from hopsum_wire.generations import Resume
from hopsum_wire.membership import JobMembership

from ...support.server import UdpSwitch, job_for

ADMIN = "the-administrator-s-token"
NAME, TOKEN, SLOTS, FIRST_GENERATION = "ddp", "the-token-of-the-job-ddp", 32, 70
TABLE = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 15, 20)


class LockedSwitch(UdpSwitch):
    """Jobs come and go while it serves."""

    def __init__(self) -> None:
        super().__init__(Aggregator())
        self.lock = threading.Lock()

    def _answer(self, data: bytes, host: str, port: int) -> None:
        with self.lock:
            super()._answer(data, host, port)


class Desk:
    """A substitute for a ClusterController. `before` is called with each method's name, and may raise or block."""

    def __init__(self, switch: LockedSwitch, workers: int = 2) -> None:
        self.workers, self.switch = workers, switch
        self.member_requests = self.liveness = self
        self.changed = threading.Condition()
        self.members: dict[int, tuple[JoinRequest, bytes]] = {}
        self.waiting: set[int] = set()
        self.newcomers: Resume | None = None
        """Of the last generation that had some."""
        self.generation, self.over = 0, ""
        self.membership: JobMembership | None = None
        self.beats: list[tuple[int, int, dict[str, float]]] = []
        self.left: list[int] = []
        self.unfinished: list[str | None] = []
        self.joins: list[JoinRequest] = []
        self.gone: list[int] = []
        self.watchers: list[Callable[[str], None]] = []
        self.unreachable = ""
        self.codec = self.codec_options = ""
        self.side_channels = True
        """Without, the membership says no ports of them."""
        self.before: Callable[[str], None] = lambda name: None

    # ---- as a manager ---------------------------------------------------------------------------------

    def knows(self, token: str) -> bool:
        return token == TOKEN or any(token == secret.hex() for _, secret in list(self.members.values()))

    def watch(self, watcher: Callable[[str], None]) -> Callable[[], None]:
        self.watchers.append(watcher)
        return lambda: self.watchers.remove(watcher) if watcher in self.watchers else None

    def locate(self, job: str, token: str) -> pb.LocateResponse:
        self.before("locate")
        self._admit(job, token)
        ip, udp_port = self.switch.address
        at = pb.Endpoint(ip=ip, udp_port=udp_port)
        codec = {"codec": self.codec, "codec_options": self.codec_options}
        return pb.LocateResponse(send_to=at, workers=self.workers, **codec)

    def join(self, request: JoinRequest) -> pb.JoinResponse:
        self.before("join")
        self._admit(request.job, request.token)
        request.check()
        with self.changed:
            self.joins.append(request)
            free = [rank for rank in range(self.workers) if rank not in self.members]
            rank = request.rank if request.rank is not None else next(iter(free), None)
            if rank is None:
                raise ResourceExhaustedError(f"all {self.workers} ranks are taken", hint="go away")
            if not rank < self.workers:
                raise InvalidRequestError(f"no rank {rank}")
            secret = b"secret of " + bytes([65 + rank]) + request.incarnation
            self.members[rank] = (request, secret)
            self.waiting.add(rank)
            if len(self.waiting) == self.workers:
                self._begin()
            self._stepped()
        return pb.JoinResponse(rank=rank, secret=secret, lease_s=60.0, heartbeat_s=0.05)

    def await_membership(
        self, job: str, rank: int, secret: bytes, *, known_generation: int, timeout_s: float
    ) -> JobMembership | Pending:
        self.before("await_membership")
        with self.changed:
            self._know(job, rank, secret)
            self.changed.wait_for(lambda: self.membership, timeout_s)
            if self.membership is None:
                missing = tuple(rank for rank in range(self.workers) if rank not in self.waiting)
                gone = tuple(rank for rank in missing if rank not in self.members)
                state = state_number(JobState.FORMING)
                return Pending(missing_ranks=missing, state=state, gone_ranks=gone, reason=self.over)
            return self.membership

    def heartbeat(
        self, job: str, rank: int, secret: bytes, *, generation: int, statistics: Mapping[str, float]
    ) -> pb.HeartbeatResponse:
        self.before("heartbeat")
        with self.changed:
            self._know(job, rank, secret)
            self.beats.append((rank, generation, dict(statistics)))
            self.changed.notify_all()
        return self.member_status(job, rank, secret, generation=generation)

    def record_heartbeat(self, token: str) -> None:
        """Renew no lease: nobody is evicted here."""

    def member_status(self, job: str, rank: int, secret: bytes, *, generation: int) -> pb.HeartbeatResponse:
        with self.changed:
            self._know(job, rank, secret)
            state, serves = (JobState.RUNNING, self.generation) if self.membership else (JobState.FORMING, 0)
            unreachable = self.unreachable if serves else ""
            return pb.HeartbeatResponse(
                state=state_number(state),
                generation=serves,
                reason=self.over if generation else "",
                switch_unreachable=unreachable,
            )

    def shorten_lease(self, job: str, rank: int, secret: bytes) -> None:
        with self.changed:
            self._know(job, rank, secret)
            self.gone.append(rank)
            self.changed.notify_all()

    def leave(self, job: str, rank: int, secret: bytes, *, unfinished: str | None = None) -> None:
        self.before("leave")
        with self.changed:
            self._know(job, rank, secret)
            del self.members[rank]
            self.waiting.discard(rank)
            self.left.append(rank)
            self.unfinished.append(unfinished)
            self._stepped()

    def reconcile_job(self, job: str) -> None:
        self.before("reconcile_job")

    def create_job(self, request: JobSpec) -> pb.CreateJobResponse:
        self.before("create_job")
        request.check()
        return pb.CreateJobResponse(
            name=request.name, token=TOKEN, switches=["leaf"], slots=request.slots, workers=request.workers
        )

    def delete_job(self, name: str, *, by: str) -> None:
        self.before("delete_job")
        raise UnknownJobError(f"no job {name!r}", hint="look")

    def jobs(self) -> list[pb.Job]:
        self.before("jobs")
        return []

    def job(self, name: str) -> pb.Job:
        raise UnknownJobError(f"no job {name!r}", hint="look")

    def switches(self) -> list[pb.Switch]:
        return []

    # ---- for tests ------------------------------------------------------------------------------------

    def end(self, reason: str, *, lost: int | None = None) -> None:
        """Take the job from the switch: its generation ends, and the lost rank has no place any more."""
        with self.changed, self.switch.lock:
            self.switch.aggregator.remove_job(self.generation)
            self.over, self.membership = reason, None
            self.waiting.clear()
            if lost is not None:
                del self.members[lost]
            self._stepped()

    def wait(self, condition: Callable[[], bool], timeout_s: float = 20) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, timeout_s), (self.beats[-3:], self.left)

    def _stepped(self) -> None:
        self.changed.notify_all()
        for watcher in self.watchers:
            watcher(NAME)

    def _begin(self) -> None:
        self.generation, self.over = max(self.generation + 1, FIRST_GENERATION), ""
        seats = [self.members[rank][0] for rank in range(self.workers)]
        endpoints = tuple(
            WorkerEndpoint(rank, 1, "02:00:00:00:01:01", seat.ip, seat.udp_port) for rank, seat in enumerate(seats)
        )
        job = Job(
            JobSpec(NAME, endpoints, SLOTS, {"table": TABLE}),
            SwitchEndpoint("02:00:00:00:00:aa", "10.0.0.254"),
            self.generation,
            0,
            SlotRange(0, SLOTS),
            1,
            SLOTS,
        )
        sides = {rank: (seat.ip, seat.side_port) for rank, seat in enumerate(seats) if seat.side_port}
        sides = sides if self.side_channels else {}
        send_to = dict.fromkeys(range(self.workers), self.switch.address)
        self.membership = job_membership(job, send_to, sides or False, resume=self._resume())
        locals_ = [(seat.ip, seat.udp_port) for seat in seats]
        with self.switch.lock:
            self.switch.aggregator.add_job(job_for(locals_, generation=self.generation, slots=SLOTS, table=TABLE))

    def _resume(self) -> Resume | None:
        """Decide as a manager does."""
        reports = {rank: seat.report for rank, (seat, _) in self.members.items() if seat.report is not None}
        new = set(self.members) - set(reports)
        resume = decide(reports, new, slots=SLOTS, generation=self.generation, before=self.newcomers)
        if resume is not None and new:
            self.newcomers = resume
        return resume

    def _admit(self, job: str, token: str) -> None:
        if token != TOKEN:
            raise UnauthenticatedError("this is not the job's token")
        if job != NAME:
            raise UnknownJobError(f"no job {job!r}")

    def _know(self, job: str, rank: int, secret: bytes) -> None:
        if job != NAME or rank not in self.members or self.members[rank][1] != secret:
            raise UnauthenticatedError(f"rank {rank} is not with this secret in job {job!r}", hint="join again")


def join(channel: Channel, rank: int = 0) -> MemberClient:
    """Join the desk's job as a rank."""
    member = MemberClient(channel, NAME, TOKEN)
    member.join(("127.0.0.1", 5000 + rank), 30.0, rank=rank)
    return member


def attend(channel: Channel, member: MemberClient, job: str = NAME, rank: int = 0, generation: int = 0) -> Replies:
    """Return what a stream tells a member of its generation."""
    request = pb.AttendRequest(job=job, rank=rank, generation=generation)
    return channel.stream(MEMBERSHIP_SERVICE, "Attend", request, secret=member.registration.secret)


@contextmanager
def desk_service(workers: int = 2, listen: str = "127.0.0.1:0", **options: Any) -> Iterator[tuple[Desk, Service]]:
    """Serve a desk, on a free port of loopback unless told."""
    with LockedSwitch() as switch:
        desk = Desk(switch, workers)
        with Service(desk, listen, **options) as service:
            yield desk, service
