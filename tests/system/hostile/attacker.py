# SPDX-License-Identifier: Apache-2.0
"""An attacker with the token of one job, as a process: `python attacker.py ATTACK JSON` prints its counts at SIGTERM.

The attacker has the job's token, its members' secrets, and addresses of the workers' network. `JSON` is the `Site`.
Calls go out by gRPC, datagrams by sockets, without the library's manners.
"""

from __future__ import annotations

import asyncio
import json
import random
import secrets
import signal
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import grpc

from hopsum.errors import HopsumError
from hopsum.rpc.channel import Channel, ControllerAddress
from hopsum.rpc.member_client import MemberClient
from hopsum_wire import WIRE_VERSION, Kind, Op
from hopsum_wire.control import control_pb2 as pb
from hopsum_wire.control.services import BEARER, JOB_SERVICE, MEMBERSHIP_SERVICE, methods
from hopsum_wire.header import Header
from hopsum_wire.membership import JobMembership

WAIT_S: Final = 300.0
LANES: Final = 1024
_OPTIONS: Final = (("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1))
counts: Counter[str] = Counter()
over = threading.Event()


@dataclass(frozen=True)
class Site:
    """The attacker's knowledge: the addresses of controller and page, its own job, and the name of another job.

    An attack does not end before it has counted what is in `until`, however slow the machine is.
    """

    controller: str
    page: str
    job: str
    token: str
    workers: int
    victim: str
    until: Sequence[str] = ()


class Crew:
    """The workers of the attacker's job, which sit in this process and hold its places."""

    def __init__(self, site: Site) -> None:
        self.name, self.token = site.job, site.token
        self.channel = Channel(ControllerAddress.of(site.controller))
        self.sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(site.workers)]
        self.members: list[MemberClient] = []
        for each in self.sockets:
            each.bind(("127.0.0.1", 0))
            member = MemberClient(self.channel, self.name, self.token)
            member.join(each.getsockname(), WAIT_S)
            self.members.append(member)

    def membership(self) -> JobMembership:
        return self.members[0].membership(WAIT_S)

    @property
    def secret(self) -> str:
        return self.members[0].registration.secret


# ---- calls --------------------------------------------------------------------------------------------


async def call(channel: Any, service: str, name: str, request: Any, secret: str) -> None:
    """Make a call, and count what became of it."""
    method = methods(service)[name]
    data = request if isinstance(request, bytes) else request.SerializeToString()
    try:
        await channel.unary_unary(method.path)(data, timeout=60, metadata=(("authorization", BEARER + secret),))
        counts["answered"] += 1
    except grpc.aio.AioRpcError as error:
        counts[error.code().name.lower()] += 1


async def flood(
    site: Site, makers: Sequence[Callable[[Any], Awaitable[None]]], at_once: int, channels: int = 8
) -> None:
    """Make calls over some connections, so many at once, until the end."""
    opened = [grpc.aio.insecure_channel(site.controller, _OPTIONS) for _ in range(channels)]

    async def one(number: int) -> None:
        while not over.is_set():
            await makers[number % len(makers)](opened[number % channels])

    await asyncio.gather(*(one(number) for number in range(at_once)))


def flood_locate(site: Site) -> None:
    """Ask for the job's place again and again, in 400 calls at once, with the job's token."""
    crew = Crew(site)
    request = pb.LocateRequest(job=crew.name)
    asyncio.run(flood(site, [lambda to: call(to, MEMBERSHIP_SERVICE, "Locate", request, crew.token)], 400))


def flood_lists(site: Site) -> None:
    """Ask for the job with its counters, and for audited refusals, in 200 calls at once, with the job's token."""
    asyncio.run(
        flood(
            site,
            [
                lambda to: call(to, JOB_SERVICE, "GetJob", pb.GetJobRequest(name=site.job), site.token),
                lambda to: call(to, JOB_SERVICE, "DeleteJob", pb.DeleteJobRequest(name=site.victim), site.token),
            ],
            200,
        )
    )


def flood_heartbeats(site: Site) -> None:
    """Renew the leases of a job of 32 workers, in 512 calls at once, each with a member's secret."""
    crew = Crew(site)
    members = [(each.registration.rank, each.registration.secret) for each in crew.members]
    makers = [
        lambda to, rank=rank, secret=secret: call(
            to, MEMBERSHIP_SERVICE, "Heartbeat", pb.HeartbeatRequest(job=crew.name, rank=rank), secret
        )
        for rank, secret in members
    ]
    asyncio.run(flood(site, makers, 512))


def strangers(site: Site) -> None:
    """Call with tokens that nobody has, and with none, in 200 calls at once."""
    request = pb.LocateRequest(job=site.victim)
    makers = [
        lambda to: call(to, MEMBERSHIP_SERVICE, "Locate", request, secrets.token_urlsafe(32)),
        lambda to: call(to, JOB_SERVICE, "ListJobs", pb.ListJobsRequest(), ""),
    ]
    asyncio.run(flood(site, makers, 200))


def giants(site: Site) -> None:
    """Send messages of a byte less than the limit, of a megabyte, and long metadata, in 64 calls at once."""
    crew = Crew(site)
    endpoint = pb.Endpoint(ip="127.0.0.1", udp_port=9)
    request = pb.JoinRequest(job=crew.name, endpoint=endpoint, incarnation=secrets.token_bytes(16))
    request.wire_version = WIRE_VERSION
    request.report.held.extend(pb.Report.Run(first=2 * number, end=2 * number + 1) for number in range(14_000))
    makers = [
        lambda to: call(to, MEMBERSHIP_SERVICE, "Join", request, crew.token),
        lambda to: call(to, MEMBERSHIP_SERVICE, "Join", bytes(1 << 20), crew.token),
        lambda to: call(to, MEMBERSHIP_SERVICE, "Locate", pb.LocateRequest(job="x" * 100_000), crew.token),
        lambda to: call(to, JOB_SERVICE, "ListJobs", pb.ListJobsRequest(), "x" * 20_000),
        lambda to: call(to, JOB_SERVICE, "CreateJob", pb.CreateJobRequest(table=range(40_000)), site.token),
    ]
    asyncio.run(flood(site, makers, 64))


def odd_values(site: Site) -> None:
    """Ask for ranks, slots, jobs and reports that cannot be, with the job's token and a member's secret."""
    crew, rng = Crew(site), random.Random(1)
    edges = (0, 1, 63, 64, 255, 2047, 2048, 65535, (1 << 31) - 1, (1 << 32) - 1)

    async def join(to: Any) -> None:
        endpoint = pb.Endpoint(ip=rng.choice(("127.0.0.1", "255.255.255.255", "")), udp_port=rng.choice(edges))
        request = pb.JoinRequest(
            job=crew.name, rank=rng.choice(edges), endpoint=endpoint, wire_version=rng.choice((1, 9))
        )
        request.incarnation = secrets.token_bytes(rng.choice((0, 16, 4000)))
        request.report.generation, request.report.delivered_to = rng.choice(edges), rng.choice(edges)
        await call(to, MEMBERSHIP_SERVICE, "Join", request, crew.token)

    async def create(to: Any) -> None:
        shape: dict[str, Any] = {name: rng.choice(edges) for name in ("workers", "slots", "shards", "quorum")}
        await call(to, JOB_SERVICE, "CreateJob", pb.CreateJobRequest(name=f"odd{rng.random()}", **shape), site.token)

    async def beat(to: Any) -> None:
        request = pb.HeartbeatRequest(job=site.victim, rank=rng.choice(edges), generation=rng.choice(edges))
        await call(to, MEMBERSHIP_SERVICE, "Heartbeat", request, crew.secret)

    asyncio.run(flood(site, [join, create, beat], 48))


# ---- places -------------------------------------------------------------------------------------------


def churn_generations(site: Site) -> None:
    """Join and leave again and again, so that generations begin."""
    channel = Channel(ControllerAddress.of(site.controller))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as source:
        source.bind(("127.0.0.1", 0))
        while not over.is_set():
            with suppress(HopsumError):
                member = MemberClient(channel, site.job, site.token)
                member.join(source.getsockname(), 5.0)
                member.membership(5.0)
                member.leave()
                counts["generations"] += 1


def silent_calls(site: Site) -> None:
    """Hold 200 calls open, without a token, whose message never comes. Calls that end are made again."""

    def opened(send: Any) -> Any:
        ended = threading.Event()

        def never() -> Iterator[bytes]:
            ended.wait()
            yield from ()

        call = send.future(never())
        call.add_done_callback(lambda _: ended.set())
        return call

    with grpc.insecure_channel(site.controller, _OPTIONS) as channel:
        send: Any = channel.stream_unary(methods(MEMBERSHIP_SERVICE)["Heartbeat"].path)
        calls: list[Any] = []
        while not over.wait(0.5):
            calls = [call for call in calls if not call.done()]
            counts["opened"] += 200 - len(calls)
            calls += [opened(send) for _ in range(200 - len(calls))]
        for call in calls:
            call.cancel()


def connections(site: Site) -> None:
    """Hold 4,000 idle connections to the service. Every tenth sends a part of a request."""
    hold(site.controller, 4000, lambda number: b"" if number % 10 else b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"")


def slow_readers(site: Site) -> None:
    """Hold 1,500 connections to the controller's page, each of which sends a header a byte at a time."""
    hold(site.page, 1500, lambda number: b"GET / HTTP/1.1\r\nX-Slow: ", b"a")


def hold(address: str, count: int, first: Callable[[int], bytes], more: bytes) -> None:
    """Hold connections open, each with its first bytes, and more bytes ten times a second. Closed ones come again."""
    host, _, port = address.rpartition(":")
    opened: list[socket.socket] = []

    def alive(each: socket.socket) -> bool:
        try:
            each.send(more)
            return bool(each.recv(4096))
        except BlockingIOError:
            return True
        except OSError:
            each.close()
            return False

    while not over.is_set():
        left = [each for each in opened if alive(each)]
        counts["closed by the controller"] += len(opened) - len(left)
        opened = left
        counts["most at once"] = max(counts["most at once"], len(opened))
        while len(opened) < count and not over.is_set():
            try:
                made = socket.create_connection((host, int(port)), timeout=1)
                made.send(first(counts["opened"]))
            except OSError:
                counts["refused"] += 1
                break
            made.setblocking(False)
            opened.append(made)
            counts["opened"] += 1
        time.sleep(0.1)


# ---- datagrams ----------------------------------------------------------------------------------------


def forged(site: Site) -> None:
    """Send others' generations, all ranks, all slots, and sizes that do not fit; some 2,000 datagrams a second."""
    crew, rng = Crew(site), random.Random(2)
    membership = crew.membership()
    own = membership.generation

    def beyond_the_range() -> None:
        """Send what would be right but for its slot, which belongs to another job or to nobody."""
        place = {"worker": 0, "slot": rng.randrange(16, 2048), "generation": own, "round": 1}
        header = Header(kind=Kind.UPDATE, op=Op.ADD32, length=LANES, count=LANES // 4, **place)
        crew.sockets[0].sendto(header.pack() + bytes(LANES), membership.worker(0).send_to.address)

    def one() -> None:
        if rng.random() < 0.1:
            beyond_the_range()
        generation = rng.choice((own - 1, own - 2, own + 1, 0, (1 << 32) - 1, rng.getrandbits(32)))
        foreign = rng.random() < 0.7
        header = Header(
            kind=rng.choice((Kind.UPDATE, Kind.PROBE, Kind.PARTIAL, 9)),
            op=rng.choice((Op.ADD32, Op.ADD8, Op.OR, 15)),
            worker=rng.randrange(256),
            slot=rng.choice((rng.randrange(2048), 16, 2048, 65535)),
            generation=generation if foreign else own,
            round=rng.choice((0, 1, 2, (1 << 32) - 1)),
            length=rng.choice((LANES, 0, 65535)),
        )
        data = header.pack() + bytes(rng.choice((LANES, 0, 8000)))
        crew.sockets[rng.randrange(2)].sendto(data, membership.worker(0).send_to.address)
        counts["datagrams"] += 1

    paced(one, 2000)


def flood_datagrams(site: Site) -> None:
    """Send a contribution that is right again and again, as fast as one core can."""
    crew = Crew(site)
    membership = crew.membership()
    own = {"worker": 0, "slot": 0, "generation": membership.generation, "round": 1}
    header = Header(kind=Kind.UPDATE, op=Op.ADD32, length=LANES, count=LANES // 4, **own)
    data = header.pack() + bytes(LANES)
    to = membership.worker(0).send_to.address
    while not over.is_set():
        for _ in range(256):
            crew.sockets[0].sendto(data, to)
        counts["datagrams"] += 256


def paced(send: Callable[[], None], a_second: int) -> None:
    """Send so many a second."""
    began_s, sent = time.monotonic(), 0
    while not over.is_set():
        while sent < (time.monotonic() - began_s) * a_second:
            send()
            sent += 1
        time.sleep(0.005)


ATTACKS: Final = {
    each.__name__.replace("_", "-"): each
    for each in (
        flood_locate,
        flood_lists,
        flood_heartbeats,
        strangers,
        giants,
        odd_values,
        churn_generations,
        silent_calls,
        connections,
        slow_readers,
        forged,
        flood_datagrams,
    )
}
WORKERS: Final = {"flood-heartbeats": 32, "churn-generations": 1}
"""Workers of the attacker's job; 2 for the other attacks."""


def end_when_told(told: threading.Event, until: Sequence[str]) -> None:
    """End the attack when it is told to and has counted what it has to, or that does not come."""
    told.wait()
    give_up_s = time.monotonic() + WAIT_S
    while not all(counts[what] for what in until) and time.monotonic() < give_up_s:
        time.sleep(0.05)
    over.set()


def main() -> None:
    """Attack until SIGTERM."""
    told = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: told.set())
    name, site = sys.argv[1], Site(**json.loads(sys.argv[2]))
    threading.Thread(target=end_when_told, args=(told, site.until), daemon=True).start()
    print("attacking", flush=True)
    try:
        ATTACKS[name](site)
    finally:
        print(json.dumps(counts), flush=True)


if __name__ == "__main__":
    main()
