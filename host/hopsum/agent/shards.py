# SPDX-License-Identifier: Apache-2.0
"""An agent's transport, from the membership of its job: a link for each shard, and a side channel for all."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

from hopsum.protocol.repair import RepairPolicy
from hopsum.protocol.worker import Membership, Timing
from hopsum.transport.link import DatagramLink
from hopsum.transport.offload import Gso
from hopsum.transport.shard import Peers, Shard, ShardContinuation
from hopsum.transport.side_channel import GenerationKey, SideChannel
from hopsum.transport.transport import Transport
from hopsum.transport.udp_link import UdpLink
from hopsum_wire.membership import JobMembership, MembershipError


def open_transport(
    membership: JobMembership,
    rank: int,
    timing: Timing,
    link: DatagramLink | Sequence[DatagramLink] | None,
    side: socket.socket | None,
    policy: RepairPolicy,
    gso: Gso,
) -> Transport:
    """Open a worker's links to all shards, and its side channel if the job has side channels. Return the transport.

    With a side channel the worker repairs lost results from peers. After an error, `link` and `side` are closed.

    Args:
        link: to its switch, or one to each shard. None: UDP sockets at this rank's addresses.
        side: a socket that listens for peers. None: the channel listens at this rank's address of the membership. A job
            without side channels closes it.
        policy: of the repair from peers.
        gso: for the sockets that this function opens.

    Raises:
        MembershipError: links of another number than the job has shards, or side channels without a key.
        OSError: no socket at an address of this rank.
    """
    shards = membership.shards
    links = link if isinstance(link, Sequence) else [link] * (len(shards) if link is None else 1)
    with ExitStack() as opened:
        # Registered first: whatever fails below, the caller's sockets are closed.
        for given_link in filter(None, links):
            opened.callback(given_link.close)
        if side is not None:
            opened.callback(side.close)
        if len(links) != len(shards):
            raise MembershipError(f"{len(links)} links for job {membership.job!r} of {len(shards)} shards")
        peers = _open_peers(membership, rank, side, policy)
        if peers is not None:
            opened.callback(peers.channel.close)
        elif side is not None:
            side.close()
        ends = list[Shard]()
        for number, shard in enumerate(shards):
            own_link = links[number]
            if own_link is None:
                seat = shard.worker(rank)
                own_link = UdpLink(seat.endpoint.address, seat.send_to.address, gso=gso)
                opened.callback(own_link.close)
            here = None if peers is None else replace(peers, shard=number, resume=shard.resume)
            lock = ends[0].lock if ends else None
            made = Shard(own_link, _own_membership(shard, rank), timing, here, lock)
            opened.callback(made.close, linger=False)
            ends.append(made)
        # All shards are open, and own their sockets from here on.
        transport = Transport(ends)
        opened.pop_all()
    return transport


def continuations_of(membership: JobMembership, rank: int, shards: int) -> list[ShardContinuation]:
    """Return the next generation of a worker's stream at each of `shards` shards.

    Raises:
        MembershipError: the membership has no continuation of the stream, no side channels, or another shard count.
    """
    if len(membership.shards) != shards:
        raise MembershipError(
            f"generation {membership.generation} of job {membership.job!r} has {len(membership.shards)} shards, and "
            f"this worker {shards}: connect again"
        )
    found, sides = [], membership.side_channels
    for shard in membership.shards:
        if shard.resume is None or sides is None:
            lacks = "side channels" if sides is None else "the continuation of the previous generation"
            raise MembershipError(
                f"generation {membership.generation} of job {membership.job!r} lacks {lacks}: connect again"
            )
        found.append(ShardContinuation(sides, shard.resume, shard.rack(rank), _side_key(membership), shard.absent))
    return found


def _own_membership(membership: JobMembership, rank: int) -> Membership:
    host, port = membership.worker(rank).send_to.address
    return Membership(
        membership.generation,
        rank,
        membership.size,
        membership.window,  # slots beyond the window stay unused: the same on all ranks
        f"switch {host}:{port}",
        membership.rack(rank),
        membership.absent,
    )


def _open_peers(membership: JobMembership, rank: int, side: socket.socket | None, policy: RepairPolicy) -> Peers | None:
    """Open the side channel at the address that a worker has at shard 0. None: the job has none."""
    sides = membership.side_channels
    if sides is None:
        return None
    try:
        channel = SideChannel(rank, GenerationKey(membership.generation, _side_key(membership)), sides[rank], side)
    except OSError as error:
        raise OSError(
            error.errno,
            f"no side channel of rank {rank} of job {membership.job!r} at TCP {sides[rank][0]}:{sides[rank][1]}: "
            f"{error.strerror}. Write the membership with other side_channels, or with none",
        ) from error
    return Peers(channel, sides, policy)


def _side_key(membership: JobMembership) -> bytes:
    """Return the key by which peers know each other. Without side channels it is None. Raises MembershipError."""
    if membership.side_key is None and membership.side_channels is not None:
        raise MembershipError(
            f"the membership of job {membership.job!r} has side channels and no side_key, so workers could not know "
            "who talks to them: an older hopsum wrote it. Use the same hopsum on both sides, and make the job again"
        )
    return membership.side_key or b""
