# SPDX-License-Identifier: Apache-2.0
"""An agent's transport, from the membership of its job: a link and a side channel for each shard."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TypeVar

from hopsum.agent.network import ShardContinuation
from hopsum.protocol.repair import RepairPolicy
from hopsum.protocol.worker import Membership, Timing
from hopsum.transport.link import DatagramLink
from hopsum.transport.offload import Gso
from hopsum.transport.shard import Peers, Shard
from hopsum.transport.side_channel import GenerationKey, SideChannel
from hopsum.transport.transport import Transport
from hopsum.transport.udp_link import UdpLink
from hopsum_wire.membership import JobMembership, MembershipError

Kind = TypeVar("Kind")


def open_transport(
    membership: JobMembership,
    rank: int,
    timing: Timing,
    link: DatagramLink | Sequence[DatagramLink] | None,
    side: socket.socket | Sequence[socket.socket] | None,
    policy: RepairPolicy,
    gso: Gso,
) -> Transport:
    """Open a worker's transport: one that repairs from peers where the job says how to reach them all.

    Args:
        link: to its switch, or one to each shard, UDP sockets at this rank's addresses if None. Closed where it fails.
        side: that listens for its peers, one for each shard, None for the addresses of the membership.

    Raises:
        MembershipError: links or sides of another number than the job has shards, or side channels without a key.
        OSError: no socket at an address of this rank.
    """
    shards = membership.shards
    links, sides = _listed(link, len(shards)), _listed(side, len(shards))
    with ExitStack() as opened:
        # Registered first: whatever fails below, the caller's sockets are closed.
        for given_link in filter(None, links):
            opened.callback(given_link.close)
        for given_side in filter(None, sides):
            opened.callback(given_side.close)
        for name, given in (("links", len(links)), ("side channels", len(sides))):
            if given != len(shards):
                raise MembershipError(f"{given} {name} for job {membership.job!r} of {len(shards)} shards")
        ends = []
        for number, shard in enumerate(shards):
            own_link = links[number]
            if own_link is None:
                seat = shard.worker(rank)
                own_link = UdpLink(seat.endpoint.address, seat.send_to.address, gso=gso)
                opened.callback(own_link.close)
            made = _open_shard(shard, rank, timing, own_link, sides[number], policy)
            opened.callback(made.close, linger=False)
            ends.append(made)
        # All shards are open, and own their sockets from here on.
        transport = Transport(ends)
        opened.pop_all()
    return transport


def continuations_of(membership: JobMembership, rank: int, shards: int) -> list[ShardContinuation]:
    """Return the next generation of a worker's stream at each of `shards` shards.

    Raises:
        MembershipError: it does not say how the job goes on, has no side channels, or has other shards.
    """
    if len(membership.shards) != shards:
        raise MembershipError(
            f"generation {membership.generation} of job {membership.job!r} has {len(membership.shards)} shards, and "
            f"this worker {shards}: connect again"
        )
    found = []
    for shard in membership.shards:
        sides = shard.side_channels
        if shard.resume is None or sides is None:
            lacks = "side channels" if sides is None else "how it goes on from the generation before"
            raise MembershipError(
                f"generation {membership.generation} of job {membership.job!r} lacks {lacks}: connect again"
            )
        found.append(ShardContinuation(sides, shard.resume, shard.rack(rank), _side_key(shard), shard.absent))
    return found


def _open_shard(
    membership: JobMembership,
    rank: int,
    timing: Timing,
    link: DatagramLink,
    side: socket.socket | None,
    policy: RepairPolicy,
) -> Shard:
    host, port = membership.worker(rank).send_to.address
    own = Membership(
        membership.generation,
        rank,
        membership.size,
        membership.window,  # slots beyond the window stay unused: the same on all ranks
        f"switch {host}:{port}",
        membership.rack(rank),
        membership.absent,
    )
    sides = membership.side_channels
    if sides is None:
        if side is not None:
            side.close()
        return Shard(link, own, timing)
    try:
        channel = SideChannel(rank, GenerationKey(membership.generation, _side_key(membership)), sides[rank], side)
    except OSError as error:
        raise OSError(
            error.errno,
            f"no side channel of rank {rank} of job {membership.job!r} at TCP {sides[rank][0]}:{sides[rank][1]}: "
            f"{error.strerror}. Write the membership with other side_channels, or with none",
        ) from error
    return Shard(link, own, timing, Peers(channel, sides, policy, resume=membership.resume))


def _side_key(membership: JobMembership) -> bytes:
    """Return the key by which peers know each other. Without side channels it is None. Raises MembershipError."""
    if membership.side_key is None and membership.side_channels is not None:
        raise MembershipError(
            f"the membership of job {membership.job!r} has side channels and no side_key, so workers could not know "
            "who talks to them: an older hopsum wrote it. Use the same hopsum on both sides, and make the job again"
        )
    return membership.side_key or b""


def _listed(given: Kind | Sequence[Kind] | None, shards: int) -> Sequence[Kind | None]:
    if given is None:
        return [None] * shards
    return given if isinstance(given, Sequence) else [given]
