# SPDX-License-Identifier: Apache-2.0
"""Calls that never send their message, and the stream on which a worker hears of its generation."""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import grpc
import pytest

from hopsum.rpc.channel import Channel, ControllerAddress, ControllerError, ControllerUnreachableError, Replies
from hopsum.rpc.jobs_client import JobsClient
from hopsum.rpc.member_client import MemberClient
from hopsum_base.quiet_grpc import STREAMS_MAX
from hopsum_base.token_files import AdminToken
from hopsum_controlplane import JobSpec
from hopsum_controlplane.service import connections, handlers, member_service
from hopsum_controlplane.service.access import Safeguards, bearer_token
from hopsum_controlplane.service.grpc_service import Service
from hopsum_controlplane.service.handlers import CallLimiter, CallRefusedError, address_of
from hopsum_wire.control import control_pb2 as pb
from hopsum_wire.control.services import BEARER, JOB_SERVICE, MEMBERSHIP_SERVICE, methods
from hopsum_wire.generations import Sealed

from ...controlplane.cluster.world import LEASE_S, Cluster
from ...support.rapid_reset import reset_calls
from .desk import ADMIN, NAME, TOKEN, Desk, attend, desk_service, join

WAIT_S = 30.0
CALLS = 40


class Mute:
    """Calls whose headers are sent, and whose message is not, until `end`."""

    def __init__(self, channel: Any, path: str, token: str, count: int = CALLS) -> None:
        self._end = threading.Event()
        send = channel.stream_unary(path)
        metadata = (("authorization", BEARER + token),) if token else ()
        self._calls = [send.future(self._nothing(), metadata=metadata) for _ in range(count)]
        self._over = threading.Semaphore(0)
        for call in self._calls:
            call.add_done_callback(lambda _: self._over.release())

    def _nothing(self) -> Iterator[bytes]:
        self._end.wait()
        yield from ()

    def codes(self, count: int = CALLS) -> Counter[str]:
        """Wait until so many calls have been refused; return their codes."""
        for _ in range(count):
            assert self._over.acquire(timeout=WAIT_S)
        return Counter(call.code().name for call in self._calls if call.done())

    def close(self) -> None:
        for call in self._calls:
            call.cancel()
        self._end.set()


@contextmanager
def mute(service: Service, path: str, token: str = "", count: int = CALLS) -> Iterator[Mute]:
    with grpc.insecure_channel(service.address, (("grpc.enable_http_proxy", 0),)) as channel:
        found = Mute(channel, path, token, count)
        try:
            yield found
        finally:
            found.close()


@pytest.fixture
def served() -> Iterator[tuple[Desk, Service]]:
    guarded = Safeguards(admin_tokens=[AdminToken(ADMIN)])
    with desk_service(safeguards=guarded) as found:
        yield found


ALL = [
    (service, name, method.path)
    for service in (MEMBERSHIP_SERVICE, JOB_SERVICE)
    for name, method in methods(service).items()
]


@pytest.mark.parametrize(("service_name", "name", "path"), ALL)
def test_without_a_token_no_message_is_waited_for(
    served: tuple[Desk, Service], service_name: str, name: str, path: str
) -> None:
    with mute(served[1], path) as crowd:
        assert crowd.codes() == {"UNAUTHENTICATED": CALLS}
    if service_name != MEMBERSHIP_SERVICE:
        with mute(served[1], path, "not-the-administrator-s") as crowd:
            assert crowd.codes() == {"UNAUTHENTICATED": CALLS}


def test_calls_that_are_reset_at_once_cost_nobody_a_call(
    served: tuple[Desk, Service], monkeypatch: pytest.MonkeyPatch
) -> None:
    """HTTP/2 rapid reset without a token, while the service is busy."""
    _, service = served
    proceed, handled = threading.Event(), Counter[str]()
    with Channel(ControllerAddress.of(service.address)) as us, ThreadPoolExecutor(1) as pool:
        member = join(us)

        def counted(metadata: Any) -> str:
            token = bearer_token(metadata)
            handled[token] += 1
            return token

        monkeypatch.setattr(handlers, "bearer_token", counted)
        service._events.loop.call_soon_threadsafe(proceed.wait, WAIT_S)
        try:
            # gRPC keeps no more for a server that is busy: beyond that it cancels calls, of any client.
            reset_calls(service.address, methods(JOB_SERVICE)["ListJobs"].path, 4000)
            beat = pool.submit(member.heartbeat, 0, {}, WAIT_S)
        finally:
            proceed.set()
        assert beat.result().reason == ""
        assert JobsClient(us, ADMIN).jobs() == []
    assert handled[""] <= 2 * STREAMS_MAX


def test_tokens_that_nobody_has_are_few_at_a_time(served: tuple[Desk, Service]) -> None:
    _, service = served
    few = handlers.STRANGERS_OF_ADDRESS_MAX
    path = methods(MEMBERSHIP_SERVICE)["Heartbeat"].path
    with mute(service, path, "ab" * 32) as crowd, Channel(ControllerAddress.of(service.address)) as us:
        assert crowd.codes(CALLS - few)["RESOURCE_EXHAUSTED"] == CALLS - few
        assert join(us).heartbeat(0, {}).reason == ""
        assert JobsClient(us, ADMIN).jobs() == []


def test_a_message_has_to_come_in_time(served: tuple[Desk, Service], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "MESSAGE_S", 0.2)
    for token in ("ab" * 32, TOKEN):
        with mute(served[1], methods(MEMBERSHIP_SERVICE)["Join"].path, token, 8) as crowd:
            assert crowd.codes(8) == {"DEADLINE_EXCEEDED": 8}
    with mute(served[1], methods(JOB_SERVICE)["ListJobs"].path, ADMIN, 8) as crowd:
        assert crowd.codes(8) == {"DEADLINE_EXCEEDED": 8}


def test_who_holds_one_token_cannot_take_the_calls_of_another(served: tuple[Desk, Service]) -> None:
    _, service = served
    with ExitStack() as stack:
        channel = stack.enter_context(Channel(ControllerAddress.of(service.address)))
        members = [join(channel, rank) for rank in range(2)]
        most = member_service._CALLS_OF_MEMBER
        secret = members[0].registration.secret
        crowd = stack.enter_context(mute(service, methods(MEMBERSHIP_SERVICE)["Heartbeat"].path, secret))
        assert crowd.codes(CALLS - most)["RESOURCE_EXHAUSTED"] == CALLS - most
        with pytest.raises(ControllerError, match=f"{most} calls with this token are in progress") as raised:
            members[0].heartbeat(0, {})
        assert raised.value.code == "RESOURCE_EXHAUSTED"
        members[1].heartbeat(0, {})


def test_heartbeats_have_threads_of_their_own() -> None:
    """All other threads are taken by joins that wait for something; the places that there are can be kept."""
    proceed = threading.Event()
    with desk_service(workers=4, threads=2) as (desk, service), ExitStack() as stack:
        channel = stack.enter_context(Channel(ControllerAddress.of(service.address)))
        members = [MemberClient(channel, NAME, TOKEN) for _ in range(4)]
        members[0].join(("127.0.0.1", 5000), WAIT_S, rank=0)
        inside = threading.Semaphore(0)

        def stay(name: str) -> None:
            if name == "join":
                inside.release()
                proceed.wait(WAIT_S)

        desk.before = stay
        joins = [
            threading.Thread(target=member.join, args=(("127.0.0.1", 5001 + number), WAIT_S), daemon=True)
            for number, member in enumerate(members[1:])
        ]
        for join in joins:
            join.start()
        for _ in range(2):
            assert inside.acquire(timeout=WAIT_S)
        for _ in range(3):
            members[0].heartbeat(0, {})
        proceed.set()
        for join in joins:
            join.join(WAIT_S)
            assert not join.is_alive()


def test_a_gate_forgets_who_has_gone() -> None:
    found = CallLimiter()
    with (
        found.known_call("a", 1),
        pytest.raises(CallRefusedError, match="1 calls with this token"),
        found.known_call("a", 1),
    ):
        pass
    with found.known_call("a", 1), found.known_call("b", 1), found.unknown_call("ipv4:10.0.0.1:3"):
        pass
    assert not found._of_token
    assert not found._strangers


def test_strangers_of_many_addresses_are_bounded_together() -> None:
    found = CallLimiter()
    with ExitStack() as stack:
        for number in range(handlers.STRANGERS_MAX):
            stack.enter_context(found.unknown_call(f"ipv4:10.0.0.{number}:{number}"))
        with pytest.raises(CallRefusedError, match="too many calls"), found.unknown_call("ipv6:[::1]:7"):
            pass
    assert [address_of(peer) for peer in ("ipv4:10.0.0.1:4321", "ipv6:[::1]:5", "unix:", "unix:/a:b")] == [
        "ipv4:10.0.0.1", "ipv6:[::1]", "unix:", "unix:/a:b",
    ]  # fmt: skip


class Crew:
    """Two members of a job, and what the stream of the first one says."""

    def __init__(self, cluster: Cluster, channel: Channel) -> None:
        self.token = cluster.controller.create_job(JobSpec("train", ranks=2, slots=16)).token
        self.members = [MemberClient(channel, "train", self.token) for _ in range(2)]
        for rank, member in enumerate(self.members):
            member.join(("127.0.0.1", 5000 + rank), WAIT_S, rank=rank)
        self.generation = max(member.membership(WAIT_S).generation for member in self.members)
        self.channel = channel

    def again(self) -> None:
        """Let a new rank 1 in, and rank 0 join again: another generation."""
        self.members[1] = MemberClient(self.channel, "train", self.token)
        self.members[1].join(("127.0.0.1", 5001), WAIT_S, rank=1)
        self.members[0].join_again(Sealed(self.generation, 0, 0, ()), 0, WAIT_S)
        self.generation = max(
            member.membership(WAIT_S, known_generation=self.generation).generation for member in self.members
        )

    def attend(self, rank: int = 0, generation: int | None = None) -> Replies:
        told = self.generation if generation is None else generation
        return attend(self.channel, self.members[rank], "train", rank, told)


@pytest.fixture
def crew(cluster: Cluster, channel: Channel) -> Crew:
    return Crew(cluster, channel)


def test_the_present_answer_then_each_difference(cluster: Cluster, channel: Channel, crew: Crew) -> None:
    replies = crew.attend()
    assert next(replies) == pb.HeartbeatResponse(state=pb.JOB_STATE_RUNNING, generation=crew.generation)
    MemberClient(channel, "train", crew.token).join(("127.0.0.1", 5002), WAIT_S, rank=1)
    over = next(replies)
    assert (over.generation, "rank 1 was started again" in over.reason) == (0, True)
    crew.members[0].leave()
    assert not any(reply.generation for reply in replies)  # the stream ends


def test_one_stream_continues_from_generation_to_generation(channel: Channel, crew: Crew) -> None:
    replies = crew.attend(generation=0)
    assert next(replies).generation == crew.generation
    crew.again()
    told = []
    for reply in replies:
        told.append(reply.generation)
        if reply.generation:
            break
    assert told[-1] == crew.generation
    assert not any(told[:-1])


def test_who_is_replaced_or_whose_job_is_deleted_hears_why(cluster: Cluster, channel: Channel, crew: Crew) -> None:
    first, second = crew.attend(0), crew.attend(1)
    for replies in (first, second):
        next(replies)
    MemberClient(channel, "train", crew.token).join(("127.0.0.1", 5003), WAIT_S, rank=1)
    with pytest.raises(ControllerError, match="another worker's") as raised:
        list(second)
    assert raised.value.code == "UNAUTHENTICATED"
    cluster.controller.delete_job("train")
    with pytest.raises(ControllerError, match="no job 'train'") as raised:
        list(first)
    assert raised.value.code == "NOT_FOUND"


@pytest.mark.parametrize("silent", [False, True])
def test_bytes_over_the_connection_of_a_stream_keep_its_place(
    cluster: Cluster, crew: Crew, monkeypatch: pytest.MonkeyPatch, silent: bool
) -> None:
    if silent:
        found = connections.read_silences_s
        monkeypatch.setattr(member_service, "read_silences_s", lambda: dict.fromkeys(found(), LEASE_S + 1))
    replies = crew.attend(1)
    next(replies)
    cluster.clock.sleep(LEASE_S - 1)
    crew.members[0].heartbeat(crew.generation, {})
    cluster.clock.sleep(2)
    cluster.controller.expire()
    if silent:
        assert "rank 1" in next(replies).reason
    else:
        left_s = cluster.controller.job("train", counters=False).members[1].lease_left_s
        assert left_s is not None
        assert left_s > 0


def test_without_a_stream_the_lease_runs_out(cluster: Cluster, crew: Crew) -> None:
    """Whose connection is only another member's is heard by heartbeats."""
    replies = crew.attend(0)
    next(replies)
    cluster.clock.sleep(LEASE_S - 1)
    crew.members[0].heartbeat(crew.generation, {})
    cluster.clock.sleep(2)
    cluster.controller.expire()
    assert "lease of rank 1" in next(replies).reason


def test_the_silence_of_each_connection_of_the_process() -> None:
    """By peer, also where the peer of a socket for IPv6 has an IPv4 address."""
    with ExitStack() as stack:
        for family, address, kind in (
            (socket.AF_INET, "127.0.0.1", "ipv4:127.0.0.1"),
            (socket.AF_INET6, "::", "ipv4:127.0.0.1"),
            (socket.AF_INET6, "::1", "ipv6:[::1]"),
        ):
            dual = address == "::"
            server = stack.enter_context(socket.create_server((address, 0), family=family, dualstack_ipv6=dual))
            to = ("127.0.0.1" if dual else address, server.getsockname()[1])
            client = stack.enter_context(socket.create_connection(to))
            there = stack.enter_context(server.accept()[0])
            peer = f"{kind}:{client.getsockname()[1]}"
            before_s = connections.read_silences_s()[peer]
            threading.Event().wait(0.2)
            assert connections.read_silences_s()[peer] >= before_s + 0.1
            sent_at_s = time.monotonic()
            client.send(b"x")
            assert there.recv(1) == b"x", "the connection is as it was"
            assert connections.read_silences_s()[peer] <= time.monotonic() - sent_at_s + 0.05


def test_strangers_attend_nothing(channel: Channel, crew: Crew) -> None:
    for secret in ("", "zz", "00" * 32, crew.token, crew.members[1].registration.secret):
        request = pb.AttendRequest(job="train", rank=0, generation=crew.generation)
        with pytest.raises(ControllerError) as raised:
            next(channel.stream(MEMBERSHIP_SERVICE, "Attend", request, secret=secret))
        assert raised.value.code == "UNAUTHENTICATED"


def test_a_connection_that_breaks_off_shortens_the_lease(cluster: Cluster, crew: Crew, channel: Channel) -> None:
    with Channel(channel.address) as own:
        next(attend(own, crew.members[1], "train", 1, crew.generation))
    short = threading.Event()
    for _ in range(int(WAIT_S / 0.05)):
        left_s = cluster.controller.job("train", counters=False).members[1].lease_left_s
        if left_s is not None and left_s <= 2:
            break
        short.wait(0.05)
    else:
        pytest.fail("the lease of rank 1 stayed as it was")
    crew.members[1].heartbeat(crew.generation, {})
    assert cluster.controller.job("train", counters=False).members[1].lease_left_s == LEASE_S


def test_only_the_last_stream_of_a_member_counts_and_no_end_of_a_stream_does() -> None:
    with desk_service() as (desk, service), ExitStack() as stack:
        channels = [stack.enter_context(Channel(ControllerAddress.of(service.address))) for _ in range(3)]
        members = [join(channels[0], rank) for rank in range(2)]
        next(attend(channels[1], members[0]))
        next(second := attend(channels[2], members[0]))
        channels[1].close()  # its stream ends, and the other one is there
        next(leaver := attend(channels[0], members[1], rank=1))
        members[1].leave()
        assert list(leaver) == []
        second.cancel()
        desk.wait(lambda: 0 in desk.gone)
        assert desk.gone == [0]


def test_a_controller_that_ends_says_so_and_thinks_nobody_gone() -> None:
    with desk_service() as (desk, service), Channel(ControllerAddress.of(service.address)) as channel:
        replies = attend(channel, join(channel))
        next(replies)
        service.close()
        with pytest.raises(ControllerUnreachableError):
            next(replies)
        assert desk.gone == []
