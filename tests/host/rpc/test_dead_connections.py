# SPDX-License-Identifier: Apache-2.0
"""A worker's connection that dies in silence: another one is opened, and its place is kept."""

from __future__ import annotations

import threading

import pytest

from hopsum.rpc.channel import MISSED_MAX, Channel, ControllerAddress
from hopsum.rpc.errors import ControllerUnreachableError
from hopsum.rpc.member import MemberClient
from hopsum_wire.control import control_pb2 as pb
from hopsum_wire.control.services import MEMBERSHIP_SERVICE

from ...support.black_holes import BlackHoles
from .desk import NAME, TOKEN, desk_service

WAIT_S = 30.0
SHORT_S = 0.5


def test_after_two_missed_answers_there_is_another_connection() -> None:
    with (
        desk_service() as (_, service),
        BlackHoles(service.address) as way,
        Channel(ControllerAddress.of(way.address)) as channel,
    ):
        member = MemberClient(channel, NAME, TOKEN)
        member.join(("127.0.0.1", 5000), WAIT_S, rank=0)
        request = pb.AttendRequest(job=NAME, rank=0)
        replies = channel.stream(MEMBERSHIP_SERVICE, "Attend", request, secret=member.registration.secret)
        next(replies)
        way.swallow()
        for _ in range(MISSED_MAX):
            with pytest.raises(ControllerUnreachableError):
                member.heartbeat(0, {}, SHORT_S)
        assert member.heartbeat(0, {}, WAIT_S).reason == ""
        assert way.connections == 2
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


def test_a_dead_connection_is_noticed_without_a_call() -> None:
    """By keepalive: the worker's stream ends, on which nothing was to come."""
    with (
        desk_service() as (_, service),
        BlackHoles(service.address) as way,
        Channel(ControllerAddress.of(way.address)) as channel,
    ):
        member = MemberClient(channel, NAME, TOKEN)
        member.join(("127.0.0.1", 5000), WAIT_S, rank=0)
        request = pb.AttendRequest(job=NAME, rank=0)
        replies = channel.stream(MEMBERSHIP_SERVICE, "Attend", request, secret=member.registration.secret)
        next(replies)
        way.swallow()
        with pytest.raises(ControllerUnreachableError):
            next(replies)
