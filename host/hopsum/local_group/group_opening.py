# SPDX-License-Identifier: Apache-2.0
"""The steps from ranks that share hosts to one worker for each host.

    1  the lowest rank of each host listens at a Unix socket       of no name in a file system
    2  the other ranks of the host connect                         as the same user, or they are refused
    3  the leaders take part in the job                            one worker for each host

A failure on one rank is the same error on all ranks.
"""

from __future__ import annotations

import os
import secrets
import socket
import struct
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Final

from hopsum.agent import Communicator
from hopsum.codec import Codec
from hopsum.config import Config, ConfigError
from hopsum.errors import name_ranks
from hopsum.local_group.group_leader import LocalGroupLeader
from hopsum.local_group.group_member import LocalGroupMember
from hopsum.local_group.host_ranks import LocalGroup
from hopsum.local_group.member_messages import Connection
from hopsum.meeting import Meeting, MeetingError

AUTO: Final = "auto"
"""The setting by which the ranks of one host are a group. Any other text is the name of a group of such ranks."""
_OPENING_S: Final = 120.0
"""Further seconds for a leader to join the job, besides its wait for the others: kernels may have to be compiled."""
_PEER: Final = struct.Struct("3i")
"""The process, user and group at the other end of a Unix socket, as SO_PEERCRED has them."""


def open_local_group(
    config: Config,
    meeting: Meeting,
    *,
    open_job: Callable[[Config, Meeting], tuple[Communicator, Config]],
    make_codec: Callable[[Config, int], Codec],
) -> Communicator:
    """Connect the ranks of each host, let their leaders join the job, and return this rank's communicator.

    All ranks call this at the same point. The communicator is a LocalGroupLeader on the lowest rank of each host, else
    a LocalGroupMember.

    Args:
        meeting: of all ranks, with their arrivals.
        open_job: called on leaders. Joins the job, given the leader's settings and the meeting of all leaders; returns
            its communicator, and the settings with the codec of the job.
        make_codec: called on members. Returns the codec of settings for a number of workers.

    Raises:
        ConfigError: (MeetingError) some rank cannot take part; the same text on all ranks.
    """
    wait_s, group = config.membership_wait_s, _group(meeting)
    leaders = [ranks[0] for ranks in group.hosts]
    with ExitStack() as kept:
        connections = _connect(group, meeting, wait_s, kept)
        opened: list[Communicator] = []

        def take_part() -> Any:
            job, settings = open_job(replace(config, rank=group.host, local_group=""), meeting.among(leaders))
            opened.append(kept.enter_context(job))
            if (job.rank, job.workers) != (group.host, len(group.hosts)):
                raise ConfigError(
                    f"the job has {job.workers} workers, and the {group.ranks} ranks are on {len(group.hosts)} hosts: "
                    "with local_group each host is one worker, so make the job for as many"
                )
            return [settings.codec, settings.codec_options, job.is_newcomer]

        # The leaders open the job while the members wait: their wait covers kernels that are compiled, too.
        told = meeting.exchange("job", take_part, leaders, 2 * wait_s + _OPENING_S)
        codec, options, is_newcomer = told[group.host]
        made: Communicator
        if opened:
            made = LocalGroupLeader(opened[0], group, connections, deadline_s=config.deadline_s)
        else:
            # A member never encodes, so numpy is enough: no kernel has to be compiled on its account.
            settings = replace(config, codec=codec, codec_options=options, backend="numpy")
            made = LocalGroupMember(
                make_codec(settings, len(group.hosts)), group, connections[group.leader],
                deadline_s=config.deadline_s, is_newcomer=is_newcomer,
            )  # fmt: skip
        kept.pop_all()
    return made


def _group(meeting: Meeting) -> LocalGroup:
    """Return which ranks are on which host. Raises MeetingError on all ranks where a group has several hosts."""
    hosts = meeting.ranks_by(lambda each: each.host if each.group == AUTO else each.group)
    for first, *others in hosts:
        for rank in others:
            if meeting.arrivals[rank].host != meeting.arrivals[first].host:
                raise MeetingError(
                    f"local_group: ranks {first} and {rank} have local_group={meeting.arrivals[rank].group!r}, and are "
                    "on different hosts, or in different network namespaces of one: give the ranks of each host a name "
                    "of their own"
                )
    return LocalGroup(hosts, meeting.rank)


def _connect(group: LocalGroup, meeting: Meeting, wait_s: float, kept: ExitStack) -> dict[int, Connection]:
    """Return this rank's connections by rank: of a leader to its members, of a member to its leader."""
    leaders = [ranks[0] for ranks in group.hosts]
    made: dict[int, Connection] = {}
    with ExitStack() as listening:
        door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listening.callback(door.close)
        door.settimeout(wait_s)

        def listen() -> str:
            # An abstract socket: no file to clean up, and a name that nobody can guess.
            name = f"hopsum-{secrets.token_hex(16)}"
            door.bind(f"\0{name}")
            door.listen(len(group.local))
            return name

        names = meeting.exchange("socket", listen, leaders)

        def meet() -> None:
            if group.rank != group.leader:
                door.connect(f"\0{names[group.host]}")
                door.settimeout(None)
                made[group.leader] = _kept(Connection(door), kept)
                made[group.leader].send({"says": "hello", "rank": group.rank})
                listening.pop_all()
            while group.rank == group.leader and len(made) < len(group.local) - 1:
                rank, connection = _accept(door, group)
                made[rank] = _kept(connection, kept)

        meeting.exchange("connection", meet)
    return made


def _accept(door: socket.socket, group: LocalGroup) -> tuple[int, Connection]:
    """Return the next member of this host that connects. Raises ConfigError for another user's process."""
    try:
        end, _ = door.accept()
    except TimeoutError:
        raise ConfigError(
            f"rank {group.rank} waits for connections of {name_ranks(group.local[1:])}, and none came for "
            f"{door.gettimeout():g} s"
        ) from None
    end.settimeout(None)
    connection = Connection(end)
    # The kernel's word (SO_PEERCRED): another user's process would see this user's gradients.
    _, user, _ = _PEER.unpack(end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    if user != os.geteuid():
        connection.close()
        raise ConfigError(f"a process of user {user} connected to rank {group.rank}, which is user {os.geteuid()}'s")
    received = connection.receive()
    if received is None:
        connection.close()
        raise ConfigError(f"a rank of the host of rank {group.rank} has ended while it connected")
    return int(received[0]["rank"]), connection


def _kept(connection: Connection, kept: ExitStack) -> Connection:
    kept.callback(connection.close)
    return connection
