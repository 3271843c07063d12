# SPDX-License-Identifier: Apache-2.0
"""A worker's connection that dies in silence: another one is opened, and its place is kept."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest

from hopsum.rpc.channel import MISSED_MAX, Channel, ControllerAddress, ControllerUnreachableError
from hopsum.rpc.lease import Lease
from hopsum.rpc.member_client import MemberClient
from hopsum_wire.control import control_pb2 as pb
from hopsum_wire.control.services import MEMBERSHIP_SERVICE

from ...support.processes import await_that
from ...system.drills.silent_proxy import SilentProxy
from .desk import NAME, TOKEN, desk_service

pytestmark = pytest.mark.system
WAIT_S = 30.0
SHORT_S = 0.5


def test_after_two_missed_answers_there_is_another_connection() -> None:
    with (
        desk_service() as (_, service),
        closing(SilentProxy("127.0.0.1", service.address)) as way,
        Channel(ControllerAddress.of(way.address)) as channel,
    ):
        member = MemberClient(channel, NAME, TOKEN)
        member.join(("127.0.0.1", 5000), WAIT_S, rank=0)
        request = pb.AttendRequest(job=NAME, rank=0)
        replies = channel.stream(MEMBERSHIP_SERVICE, "Attend", request, secret=member.registration.secret)
        next(replies)
        way.kill_connections()
        for _ in range(MISSED_MAX):
            with pytest.raises(ControllerUnreachableError):
                member.heartbeat(0, {}, SHORT_S)
        assert member.heartbeat(0, {}, WAIT_S).reason == ""
        assert way.accepted == 2
        with pytest.raises(ControllerUnreachableError):  # who waited on the dead one hears that it is over
            next(replies)


def assert_true(value: bool) -> None:
    assert value


def test_an_answer_between_two_that_are_missed_keeps_the_connection() -> None:
    with desk_service() as (desk, service), Channel(ControllerAddress.of(service.address)) as channel:
        member = MemberClient(channel, NAME, TOKEN)
        member.join(("127.0.0.1", 5000), WAIT_S, rank=0)
        before, go_on = channel._channel, threading.Event()
        desk.before = lambda _: assert_true(go_on.wait(WAIT_S))
        for _ in range(2 * MISSED_MAX):
            go_on.clear()
            with pytest.raises(ControllerUnreachableError):
                member.heartbeat(0, {}, SHORT_S)
            go_on.set()
            member.heartbeat(0, {}, WAIT_S)
        assert channel._channel is before
        assert desk.left == []


def test_a_controller_that_is_slow_keeps_the_stream_until_another_one_is_heard() -> None:
    with desk_service(workers=1) as (desk, service), Channel(ControllerAddress.of(service.address)) as channel:
        member = MemberClient(channel, NAME, TOKEN)
        member.join(("127.0.0.1", 5000), WAIT_S, rank=0)
        go_on, before = threading.Event(), channel._channel
        lease = Lease(member)
        try:
            await_that(lambda: channel._streams)
            (first,) = channel._streams
            desk.before = lambda name: assert_true(name != "heartbeat" or go_on.wait(WAIT_S))
            await_that(lambda: channel._channel is not before)
            assert first.is_given_up
            assert list(channel._streams) == [first]
            go_on.set()
            await_that(lambda: channel._streams and first not in channel._streams)
            (second,) = channel._streams
            assert not second.is_given_up
            assert desk.gone == []
        finally:
            go_on.set()
            lease.stop()
        assert desk.gone == []
        assert desk.left == [0]


def test_a_dead_connection_is_noticed_without_a_call() -> None:
    """By keepalive: the worker's stream ends, on which nothing was to come."""
    with (
        desk_service() as (_, service),
        closing(SilentProxy("127.0.0.1", service.address)) as way,
        Channel(ControllerAddress.of(way.address)) as channel,
    ):
        member = MemberClient(channel, NAME, TOKEN)
        member.join(("127.0.0.1", 5000), WAIT_S, rank=0)
        request = pb.AttendRequest(job=NAME, rank=0)
        replies = channel.stream(MEMBERSHIP_SERVICE, "Attend", request, secret=member.registration.secret)
        next(replies)
        way.kill_connections()
        with pytest.raises(ControllerUnreachableError):
            next(replies)
