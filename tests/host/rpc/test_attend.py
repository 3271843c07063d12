# SPDX-License-Identifier: Apache-2.0
"""The stream on which a worker hears of its generation at once; its end tells the controller that the worker may be
gone.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from hopsum.rpc.channel import Channel, ControllerAddress, ControllerError, ControllerUnreachableError, Replies
from hopsum.rpc.member_client import MemberClient
from hopsum_controlplane.cluster import JobRequest
from hopsum_controlplane.service.grpc_service import Service
from hopsum_ptf.fake_device import FakeDevice
from hopsum_wire.control import control_pb2 as pb
from hopsum_wire.control.services import MEMBERSHIP_SERVICE
from hopsum_wire.generations import Sealed

from ...controlplane.cluster.world import LEASE_S, Cluster, switch_config
from .desk import NAME, TOKEN, desk_service

WAIT_S = 30.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    switch = switch_config(networks={1: "127.0.0.0/8"})
    found = Cluster(tmp_path, (switch,), {switch.name: FakeDevice()})
    found.start()
    yield found
    found.stop()


@pytest.fixture
def channel(cluster: Cluster) -> Iterator[Channel]:
    with Service(cluster.controller, "127.0.0.1:0") as service, Channel(ControllerAddress.of(service.address)) as found:
        yield found


class Crew:
    """Two members of a job, and what the stream of the first one says."""

    def __init__(self, cluster: Cluster, channel: Channel) -> None:
        self.token = cluster.controller.create_job(JobRequest("train", 2, 16)).token
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
        request = pb.AttendRequest(
            job="train", rank=rank, generation=self.generation if generation is None else generation
        )
        return self.channel.stream(MEMBERSHIP_SERVICE, "Attend", request, secret=self.members[rank].registration.secret)


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


def test_one_stream_goes_on_from_generation_to_generation(channel: Channel, crew: Crew) -> None:
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


def test_a_stream_renews_no_lease(cluster: Cluster, crew: Crew) -> None:
    replies = crew.attend(1)
    next(replies)
    cluster.clock.sleep(LEASE_S - 1)
    crew.members[0].heartbeat(crew.generation, {})
    cluster.clock.sleep(2)
    cluster.controller.expire()
    assert "rank 1" in next(replies).reason


def test_strangers_attend_nothing(channel: Channel, crew: Crew) -> None:
    for secret in ("", "zz", "00" * 32, crew.token, crew.members[1].registration.secret):
        request = pb.AttendRequest(job="train", rank=0, generation=crew.generation)
        with pytest.raises(ControllerError) as raised:
            next(channel.stream(MEMBERSHIP_SERVICE, "Attend", request, secret=secret))
        assert raised.value.code == "UNAUTHENTICATED"


def test_a_connection_that_breaks_off_shortens_the_lease(cluster: Cluster, crew: Crew, channel: Channel) -> None:
    with Channel(channel.address) as own:
        request = pb.AttendRequest(job="train", rank=1, generation=crew.generation)
        next(own.stream(MEMBERSHIP_SERVICE, "Attend", request, secret=crew.members[1].registration.secret))
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
        members = [MemberClient(channels[0], NAME, TOKEN) for _ in range(2)]
        for rank, member in enumerate(members):
            member.join(("127.0.0.1", 5000 + rank), WAIT_S, rank=rank)

        def attend(channel: Channel, rank: int) -> Replies:
            secret = members[rank].registration.secret
            replies = channel.stream(MEMBERSHIP_SERVICE, "Attend", pb.AttendRequest(job=NAME, rank=rank), secret=secret)
            next(replies)
            return replies

        attend(channels[1], 0)
        second = attend(channels[2], 0)
        channels[1].close()  # its stream ends, and the other one is there
        leaver = attend(channels[0], 1)
        members[1].leave()
        assert list(leaver) == []
        second.cancel()
        desk.wait(lambda: 0 in desk.gone)
        assert desk.gone == [0]


def test_a_controller_that_ends_says_so_and_thinks_nobody_gone() -> None:
    with desk_service() as (desk, service), Channel(ControllerAddress.of(service.address)) as channel:
        member = MemberClient(channel, NAME, TOKEN)
        member.join(("127.0.0.1", 5000), WAIT_S, rank=0)
        request = pb.AttendRequest(job=NAME, rank=0)
        replies = channel.stream(MEMBERSHIP_SERVICE, "Attend", request, secret=member.registration.secret)
        next(replies)
        service.close()
        with pytest.raises(ControllerUnreachableError):
            next(replies)
        assert desk.gone == []
