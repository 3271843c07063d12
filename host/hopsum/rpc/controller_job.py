# SPDX-License-Identifier: Apache-2.0
"""hopsum:// URLs: an agent whose job, membership and end come from the controller.

    locate the switch -> bind a socket towards it -> join -> wait for the others -> agent under a lease (job_agent)

The switch of a worker is its leaf if the job is over a tree. A job over several shards has a switch for each, and the
worker a socket towards each of them.

After an error in one of these steps, sockets are closed and the job is left.
"""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import stat
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from ipaddress import IPv4Address, IPv4Network
from typing import Any, Final, cast

from hopsum.agent import Agent
from hopsum.codec import Codec, CodecName
from hopsum.config import DEFAULT_CODEC, Config, ConfigError, shared_settings
from hopsum.errors import why_unfinished
from hopsum.rpc.channel import Channel, ControllerAddress
from hopsum.rpc.job_agent import JobAgent
from hopsum.rpc.lease import Lease
from hopsum.rpc.member_client import MemberClient, ShardSource
from hopsum.transport.offload import Gso
from hopsum.transport.udp_link import UdpLink
from hopsum_base import __version__
from hopsum_base.interfaces import mac_of
from hopsum_wire.control import control_pb2 as pb
from hopsum_wire.membership import JobMembership, MembershipError

_log: Final = logging.getLogger(__name__)


def open_job(
    config: Config,
    address: ControllerAddress,
    job: str,
    token: str,
    *,
    make_codec: Callable[[Config, int], Codec],
    make_agent: Callable[..., Any],
    kept: ExitStack | None = None,
) -> Agent:
    """Join a job of the controller at `address`, wait for the other ranks, and return the agent, with a lease.

    After an error, sockets are closed and the job is left.

    Args:
        config: codec and options come from the job if it records a codec.
        job: its name.
        token: of the job.
        make_codec: makes the codec for settings and a number of workers, before the rank is taken.
        make_agent: makes the agent for a membership, a rank, a codec, and further arguments of `make`, its class.
        kept: closed when the agent has left the job, and after an error.

    Raises:
        ControllerError: the controller refused, or cannot be reached.
        MembershipError: the other ranks have not joined within `membership_wait_s`.
        ConfigError, CodecError, OSError: as `connect`.
    """
    wait_s = config.membership_wait_s
    with ExitStack() as stack:
        if kept is not None:
            stack.callback(kept.close)
        channel = stack.enter_context(Channel(address))
        member = MemberClient(channel, job, token, version=__version__)
        # Addresses first: the socket has to be bound towards the switch before the controller learns its address.
        located = member.locate(wait_s)
        config = settings_with_codec(located, config, job)
        send_to = (switch_address(located, config.ip), *(_address(each) for each in located.further))
        codec = make_codec(config, located.workers)  # what does not fit the job takes no rank
        links = _links(config, send_to, stack)
        # Bound now, since the controller tells the port to the peers with the membership.
        side = stack.enter_context(listen_tcp(links[0].local[0]))
        port = side.getsockname()[1]
        first, *further = [ShardSource(link.local, mac_of(link.local[0]), port) for link in links]
        registration = member.join(
            first.endpoint, wait_s, rank=config.rank, mac=first.mac, side_port=first.side_port,
            settings=shared_settings(config), further=further,
        )  # fmt: skip
        lease = Lease(member)
        # From here on the rank is taken: whatever fails gives it back by `_stop`.
        stack.push(partial(_stop, lease))
        membership = member.membership(wait_s)
        redirect_links(membership, registration.rank, links)
        # The agent owns all of it from here on, and closes it when it leaves the job.
        held = stack.pop_all()
        try:
            made: Agent = make_agent(
                membership,
                registration.rank,
                codec=codec,
                make=JobAgent,
                link=links,
                side=side,
                member=member,
                lease=lease,
                held=held,
                check=partial(redirect_links, rank=registration.rank, links=links),
                wait_s=wait_s,
                replacement_wait_s=config.replacement_wait_s,
                silence_s=None if address.host_rank is None else config.unreachable_s,
            )
        except BaseException as error:
            held.__exit__(type(error), error, error.__traceback__)
            raise
        return made


def _stop(lease: Lease, kind: Any, error: BaseException | None, trace: Any) -> None:
    """Leave the job. The reason of an error goes to the other workers of the generation at once."""
    if why := why_unfinished(error):
        lease.abandon(why)
    lease.stop()


def settings_with_codec(located: pb.LocateResponse, config: Config, job: str) -> Config:
    """Return the settings with a codec and its options: the job's if it records a codec, else their own or the default.

    Raises ConfigError if the settings have another codec than the job records, or other options.
    """
    if not located.codec:
        return replace(config, codec=config.codec or DEFAULT_CODEC)
    recorded = json.loads(located.codec_options or "{}")
    name = config.codec or located.codec
    options = config.codec_options or (recorded if name == located.codec else {})
    own = replace(config, codec=name, codec_options=options)
    if (own.codec, own.codec_options) != (located.codec, recorded):
        raise ConfigError(
            f"job {job!r} was made for codec {located.codec} with options {recorded}, and this worker's settings say "
            f"codec {own.codec} with options {own.codec_options}: leave codec and codec_options out of the settings, "
            f"or make the job again with `hopsum job create --codec {CodecName(own.codec, own.codec_options)}`"
        )
    return own


def switch_address(located: pb.LocateResponse, ip: str) -> tuple[str, int]:
    """Return (IPv4 address, port) of this worker's switch: in a tree, the leaf whose networks contain its address.

    Of several fitting leaves, the one with the longest prefix.

    Args:
        ip: the address of this worker. Empty: the source address of the route to each leaf.

    Raises:
        ConfigError: no leaf has the worker's address.
        OSError: `ip` is not this machine's, in a tree.
    """
    if not located.leaves:
        return _address(located.send_to)
    found: dict[tuple[str, int], int] = {}
    tried: list[str] = []
    for leaf in located.leaves:
        send_to = _address(leaf.send_to)
        own = source_towards(send_to, ip)
        known = [IPv4Network(text) for text in leaf.networks]
        fitting = [network.prefixlen for network in known if own is not None and IPv4Address(own) in network]
        if fitting:
            found[send_to] = max(fitting)
        tried.append(f"{own or 'no address'} towards {send_to[0]}, which has {', '.join(leaf.networks)}")
    if not found:
        raise ConfigError(
            f"this worker is at none of the job's leaves: it has {'; '.join(tried)}. Set `ip` to the address that it "
            "is to have, or add its network to a leaf's ports in the controller's configuration"
        )
    return max(found, key=lambda send_to: found[send_to])


def _address(endpoint: pb.Endpoint) -> tuple[str, int]:
    return endpoint.ip, endpoint.udp_port


def _links(config: Config, send_to: Sequence[tuple[str, int]], stack: ExitStack) -> list[UdpLink]:
    """Open a socket towards each switch. The stack closes them. Raises ConfigError and OSError."""
    if config.udp_port and len(send_to) > 1:
        raise ConfigError(
            f"udp_port {config.udp_port} for a job of {len(send_to)} shards, which takes a port for each: leave it out"
        )
    links = []
    for place in send_to:
        links.append(UdpLink((config.ip or "0.0.0.0", config.udp_port), place, gso=cast(Gso, config.gso)))
        stack.callback(links[-1].close)
    return links


def redirect_links(membership: JobMembership, rank: int, links: Sequence[UdpLink]) -> None:
    """Redirect the links to the switches of a membership, of which some may have moved. Logs each that moved.

    Raises MembershipError if the membership has other shards or another address of this worker (nothing has changed),
    or if there is no route to a switch (links before it are redirected).
    """
    if len(membership.shards) != len(links):
        raise MembershipError(
            f"job {membership.job!r} has {len(membership.shards)} shards, and this worker joined {len(links)}: the job "
            "was made anew; connect again"
        )
    places = [shard.worker(rank) for shard in membership.shards]
    # All places are checked before the first link is redirected: a membership is followed as a whole or not at all.
    for link, found in zip(links, places, strict=True):
        if found.endpoint.address != link.local:
            raise MembershipError(
                f"job {membership.job!r} has rank {rank} at {found.endpoint}, but it is at {link.local[0]}:"
                f"{link.local[1]}: another worker has its rank; connect again"
            )
    for link, found in zip(links, places, strict=True):
        if found.send_to.address == link.switch:
            continue
        before = link.switch
        try:
            link.redirect(found.send_to.address)
        except OSError as error:
            raise MembershipError(
                f"job {membership.job!r} moved to {found.send_to}, and from {link.local[0]} there is "
                f"no way there: {error}"
            ) from error
        _log.warning("rank %d sends to %s from now on, no more to %s:%d", rank, found.send_to, *before)


def job_token(config: Config, token_file: str) -> str:
    """Return the job's token: the text of a file, without a file the setting `token`.

    Logs a WARNING if other users can read the file. Raises ConfigError for an unreadable file, no token, or a text that
    is no token.
    """
    where, found = "the setting token", config.token
    if token_file:
        where = f"token file {token_file}"
        try:
            with open(token_file, encoding="utf-8") as file:
                # fstat of the open file: the path could name another file by now.
                mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
                found = file.read().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{where} cannot be read: {error}") from error
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            _log.warning(
                "%s has mode %04o: others can read it, and take this job's ranks; chmod 600 %s", where, mode, token_file
            )
    elif not found:
        raise ConfigError(
            "a job is joined with its token: ?token_file=PATH in the URL, the setting token_file, or HOPSUM_TOKEN. "
            "`hopsum job create` printed it"
        )
    if not re.fullmatch(r"[\x21-\x7e]+", found):
        raise ConfigError(f"{where} holds no token: it is one line of letters, digits, - and _")
    return found


def source_towards(place: tuple[str, int], ip: str = "") -> str | None:
    """Return the IPv4 address that datagrams to `place` are sent from: `ip`, or if that is empty the route's.

    None if there is no route, also with `ip`.

    Raises OSError for an `ip` that is not this machine's. Nothing is sent.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        asker.bind((ip, 0))
        try:
            asker.connect(place)
        except OSError:
            return None
        return str(asker.getsockname()[0])


def listen_tcp(ip: str) -> socket.socket:
    """Return a new socket that listens at a free TCP port of an address.

    Raises OSError for an address that is not this machine's.
    """
    return socket.create_server((ip, 0))
