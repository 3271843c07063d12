# SPDX-License-Identifier: Apache-2.0
"""Calls that never send their message, of clients with and without a token: others are answered meanwhile."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import grpc
import pytest

from hopsum.rpc.channel import Channel, ControllerAddress, ControllerError
from hopsum.rpc.jobs_client import JobsClient
from hopsum.rpc.member_client import MemberClient
from hopsum_controlplane.service import handlers, member_service
from hopsum_controlplane.service.access import Safeguards
from hopsum_controlplane.service.grpc_service import Service
from hopsum_controlplane.service.handlers import Gate, TooManyClientsError, address_of
from hopsum_controlplane.token_files import AdminToken
from hopsum_wire.control.services import BEARER, JOB_SERVICE, MEMBERSHIP_SERVICE, SWITCH_SERVICE, methods

from .desk import NAME, TOKEN, Desk, desk_service

WAIT_S = 30.0
ADMIN = "the-administrator-s-token"
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
    guarded = Safeguards(admin_tokens=[AdminToken(ADMIN)], switch_token="the-token-for-switches")
    with desk_service(safeguards=guarded) as found:
        yield found


ALL = [
    (service, name, method.path)
    for service in (MEMBERSHIP_SERVICE, JOB_SERVICE, SWITCH_SERVICE)
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


def test_tokens_that_nobody_has_are_few_at_a_time(served: tuple[Desk, Service]) -> None:
    _, service = served
    few = handlers.STRANGERS_OF_ADDRESS_MAX
    path = methods(MEMBERSHIP_SERVICE)["Heartbeat"].path
    with mute(service, path, "ab" * 32) as crowd, Channel(ControllerAddress.of(service.address)) as us:
        assert crowd.codes(CALLS - few)["RESOURCE_EXHAUSTED"] == CALLS - few
        member = MemberClient(us, NAME, TOKEN)
        member.join(("127.0.0.1", 5000), WAIT_S, rank=0)
        assert member.heartbeat(0, {}).reason == ""
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
        members = [MemberClient(channel, NAME, TOKEN) for _ in range(2)]
        for rank, member in enumerate(members):
            member.join(("127.0.0.1", 5000 + rank), WAIT_S, rank=rank)
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
    go_on = threading.Event()
    with desk_service(workers=4, threads=2) as (desk, service), ExitStack() as stack:
        channel = stack.enter_context(Channel(ControllerAddress.of(service.address)))
        members = [MemberClient(channel, NAME, TOKEN) for _ in range(4)]
        members[0].join(("127.0.0.1", 5000), WAIT_S, rank=0)
        inside = threading.Semaphore(0)

        def stay(name: str) -> None:
            if name == "join":
                inside.release()
                go_on.wait(WAIT_S)

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
        go_on.set()
        for join in joins:
            join.join(WAIT_S)
            assert not join.is_alive()


def test_a_gate_forgets_who_has_gone() -> None:
    found = Gate()
    with found.known("a", 1), pytest.raises(TooManyClientsError, match="1 calls with this token"), found.known("a", 1):
        pass
    with found.known("a", 1), found.known("b", 1), found.stranger("ipv4:10.0.0.1:3"):
        pass
    assert not found._of_token
    assert not found._strangers


def test_strangers_of_many_addresses_are_bounded_together() -> None:
    found = Gate()
    with ExitStack() as stack:
        for number in range(handlers.STRANGERS_MAX):
            stack.enter_context(found.stranger(f"ipv4:10.0.0.{number}:{number}"))
        with pytest.raises(TooManyClientsError, match="too many calls"), found.stranger("ipv6:[::1]:7"):
            pass
    assert [address_of(peer) for peer in ("ipv4:10.0.0.1:4321", "ipv6:[::1]:5", "unix:", "unix:/a:b")] == [
        "ipv4:10.0.0.1", "ipv6:[::1]", "unix:", "unix:/a:b",
    ]  # fmt: skip
