# SPDX-License-Identifier: Apache-2.0
"""The steps from ranks that know nothing of each other to a job over a switch on every host.

    1  every rank tells its address                         addresses of two hosts differ
    2  every rank tries the ways to all others              with datagrams and a connection, and times them
    3  one rank of each host starts an embedded switch      a child of that rank
    4  rank 0 starts a controller for all of these          a child of rank 0, with a token of its own
    5  rank 0 makes the job: one shard for each host        slots for the longest way; its token goes to the others
    6  every rank joins the job as any other                hopsum.rpc

A failure on one rank is the same error on all ranks, and ends the children of all.

With `min_workers` the job continues without hosts that are lost (`lost_hosts`). A rank that is started again has only
steps 1, with the values of the others from then, and 6.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Final

from hopsum.agent import Communicator, CommunicatorStatistics
from hopsum.codec import Codec, job_tables
from hopsum.config import Config, ConfigError
from hopsum.errors import unhandled_error, why_unfinished
from hopsum.hosts.children import ADDRESS_FILE, TOKEN_FILE, ChildError, Children, EmbeddedSwitch, start_switch
from hopsum.hosts.host_address import choose_address
from hopsum.hosts.lost_hosts import replace_s, spare_switches, watch_hosts
from hopsum.hosts.reach import ReachEcho, Responder, gso_arrives, require_reachable
from hopsum.meeting import Meeting, MeetingError
from hopsum.protocol.stream import slots_for
from hopsum.rpc.channel import Channel, ControllerAddress, ControllerError
from hopsum.rpc.jobs_client import JobsClient
from hopsum.transport.offload import mtu_towards
from hopsum_wire.payload import PACKET_BYTES

LINKS_BITS_PER_S: Final = 1e9
"""The link rate for which slots are chosen: faster links have shorter round trips."""
JOB: Final = "hosts"
_log: Final = logging.getLogger(__name__)
LEAVE_S: Final = 15.0
"""The longest time for which rank 0 keeps its controller at its end for ranks that have not left."""
_FAILED_S: Final = 3.0
"""The same if the program fails: the others know the reason, and one that was killed never leaves."""
_CONTROLLER_S: Final = 60.0
_SWITCH_S: Final = 60.0
"""Seconds for a switch on another host, which serves already, to answer: a machine may stand still for a while."""
_AGAIN_S: Final = 0.25
# Several in each lease, so that a rank is heard soon after its link is back.
_HEARTBEAT_S: Final = 2.0
_READY_CONTROLLER: Final = re.compile(r"^ready listen=(\S+) ", re.MULTILINE)
Open = Callable[[Config, ControllerAddress, str, str, ExitStack], Communicator]


def open_hosts(
    config: Config, meeting: Meeting, codec: Codec, *, slots: int | None, least_hosts: int | None = None, open_job: Open
) -> Communicator:
    """Set up a job over the ranks' own hosts, join it, and return the communicator. All ranks call this together.

    The first rank of each host starts switches as child processes, rank 0 a controller. All of them end with the
    communicator, or with the rank's process.

    Args:
        meeting: of all ranks, which have arrived.
        codec: of the settings, for as many workers as the meeting has.
        slots: of the job at each shard. None: as many as the longest round trip between the ranks needs.
        least_hosts: the least number of hosts with which the job continues, each with one rank. None: the job ends with
            any host.
        open_job: joins a job of a controller, given settings, address, job, token, and the stack to close afterwards.

    Raises:
        ConfigError: (MeetingError) some rank cannot take part, with the same text on all ranks. Further errors are
            those of `open_job`.
    """
    with ExitStack() as kept:
        # The job is there already where this rank was lost, and is started again.
        late = meeting.has_value("job", 0)
        places, round_trip_s, together = _reach(config, meeting, late)
        own_ip, leaders = places[meeting.rank].ip, [ranks[0] for ranks in meeting.ranks_by(lambda each: each.host)]
        if least_hosts is not None and len(leaders) < len(places):
            raise MeetingError(
                f"hosts://?min_workers={least_hosts}: {len(places)} ranks on {len(leaders)} hosts; start one rank on "
                "each host, or leave min_workers out"
            )
        if config.gso == "auto" and not together:
            config = replace(config, gso="off")
            why = "single ones do. A newer kernel may mend it"
            mtu = min(mtu_towards(own_ip, each[:2]) for each in places)
            if mtu < PACKET_BYTES:
                why = (
                    f"since packets have {PACKET_BYTES} bytes and the MTU of the way is {mtu}, so they go in IP "
                    "fragments: raise the MTU on all hosts (ip link set dev INTERFACE mtu 1500)"
                )
            text = "rank %d: datagrams that this host sends together (UDP_SEGMENT) do not arrive, %s"
            _log.warning(text, meeting.rank, why)
        children = Children()
        kept.callback(children.close)
        gso = "off" if config.gso == "off" else "auto"
        hosts, spare = len(leaders), spare_switches(len(leaders), least_hosts or len(leaders))

        def start_switches() -> list[EmbeddedSwitch]:
            numbers = range(leaders.index(meeting.rank), hosts * (1 + spare), hosts)
            return [start_switch(children, own_ip, _service_ip(number), gso=gso) for number in numbers]

        def start_job() -> tuple[str, str, float]:
            secret = secrets.token_urlsafe(32)
            owners = {_name(number): leaders[number % hosts] for number in range(len(switches))}
            hosts_of = {name: f"rank {rank} ({places[rank].ip})" for name, rank in owners.items()}
            size: dict[str, Any] = {"workers": meeting.workers, "slots": slots, "switch": _name(0)}
            if hosts > 1:
                size |= {"switch": None, "shards": [*owners][:hosts]}
            if least_hosts is not None:
                size |= {"min_workers": least_hosts, "replace_s": replace_s(config.lease_s)}
            target, token = _start_job(children, config, codec, secret, switches, hosts_of, **size)
            if least_hosts is not None:
                kept.callback(watch_hosts(meeting, target, secret, JOB, owners))
            return target, token, config.lease_s

        # All ranks take part in each exchange, also those without anything to tell: a failure anywhere reaches them
        # here. A rank that is late starts nothing: others have its host's shard.
        told = meeting.exchange("switch", start_switches, [] if late else leaders)
        # Every host's first switch has a shard, the others are to spare.
        switches = [EmbeddedSwitch(*each[turn]) for turn in range(1 + spare) for each in told]
        slots = slots or slots_for(LINKS_BITS_PER_S, round_trip_s, hosts)
        _log.info("%d slots at each of %d switches, %.3g ms there and back", slots, hosts, 1e3 * round_trip_s)
        ((target, token, lease_s),) = meeting.exchange("job", start_job, [0])
        # Rank 0 has the controller: it stays until the others have left the job, else they would see a broken lease.
        kept.callback(_leave, meeting)
        address = replace(ControllerAddress.of(target, tls=False), host_rank=0)
        if least_hosts is not None:
            # The controller gives up a host that vanishes, after its lease. Until then nobody ends for its silence.
            config = replace(config, unreachable_s=config.unreachable_s + lease_s)
        opened: list[Communicator] = []
        if meeting.rank == 0:
            kept.callback(lambda: _log.info("%s", summary(opened[0].statistics)) if opened else None)
        # Ranks of one host share its address, and need a port each.
        opened.append(open_job(replace(config, ip=own_ip, udp_port=0), address, JOB, token, kept.pop_all()))
        return opened[0]


def summary(done: CommunicatorStatistics) -> str:
    """Return one line about a job: the bytes sent, their ratio to fp32, and the share of step time spent in waits."""
    sent, plain = done.traffic.interface_bytes_sent, 4 * done.elements
    text = f"hosts://: rank 0 summed {done.elements:,} elements in {done.allreduces:,} all-reduces"
    if plain:
        text += f": {sent / 1e6:,.1f} MB sent, {sent / plain:.2f} of the {plain / 1e6:,.1f} MB of fp32"
    if done.step_seconds > 0:
        share = done.wait_seconds / done.step_seconds
        text += f"; {100 * share:.0f} % of {done.steps:,} steps' time waited for sums"
    return text


def _leave(meeting: Meeting) -> None:
    # An error that leaves the `with` of a communicator is not unhandled yet.
    failed = why_unfinished(sys.exc_info()[1] or unhandled_error())
    meeting.leave(_FAILED_S if failed else LEAVE_S, waits=meeting.rank == 0)


def _reach(config: Config, meeting: Meeting, late: bool) -> tuple[list[Responder], float, bool]:
    """Return the addresses of all ranks, which reach each other.

    The second value is the longest round trip between two of them, in seconds. The third is whether datagrams that this
    host sends together arrive. Nobody answers a rank that is late: it takes what rank 0 has found.
    """
    with ExitStack() as stack:

        def tell() -> Responder:
            return stack.enter_context(ReachEcho(choose_address(config.ip, os.environ))).place

        places = [Responder(*each) for each in meeting.exchange("address", tell)]
        _require_own_addresses(meeting, places)  # the same on all ranks
        if late:
            return places, 0.0, meeting.exchange("together", bool, [0])[0]
        own = places[meeting.rank].ip
        others = {rank: place for rank, place in enumerate(places) if rank != meeting.rank}
        trips_s = meeting.exchange("ways", lambda: require_reachable(own, others))
        # Every rank has said by now that it is reached. The echoes answer until all have tried this too.
        together = meeting.exchange("together", lambda: gso_arrives(own, others))
        return places, max(trips_s), together[meeting.rank]


def _require_own_addresses(meeting: Meeting, places: Sequence[Responder]) -> None:
    """Raise MeetingError where two hosts have one address."""
    first: dict[str, int] = {}
    for rank, place in enumerate(places):
        other = first.setdefault(place.ip, rank)
        if meeting.arrivals[other].host != meeting.arrivals[rank].host:
            raise MeetingError(
                f"hosts://: ranks {other} and {rank} are on different hosts, and both have the address {place.ip}: "
                "set GLOO_SOCKET_IFNAME to the interface between the hosts, or `ip`"
            )


def _start_job(
    children: Children, config: Config, codec: Codec, secret: str, switches: Sequence[EmbeddedSwitch],
    hosts_of: Mapping[str, str], **size: Any,
) -> tuple[str, str]:  # fmt: skip
    """Start the controller with an administrator's secret, and make the job. Return its address and the job's token.

    `hosts_of` has by name of each switch the words for its host.
    """
    file = children.folder / "controller.toml"
    token_file = children.folder / TOKEN_FILE
    # Made with its mode before the secret is written: no moment in which others can read it.
    token_file.touch(mode=0o600)
    token_file.write_text(secret, encoding="ascii")
    database = children.folder / "state.sqlite"
    file.write_text(_controller_config(switches, str(database), str(token_file), config.lease_s), encoding="utf-8")
    arguments = ["hopsum_cli.main", "controller", "--config", str(file)]
    _require_switches(switches, hosts_of)
    try:
        target = children.start("controller", arguments, _READY_CONTROLLER, _CONTROLLER_S)[1]
    except ChildError:
        # A host that was cut off meanwhile says more than the controller, which waited for it.
        _require_switches(switches, hosts_of)
        raise
    # Last, when the token is there: `hopsum top --controller hosts://` finds the job by this file.
    (children.folder / ADDRESS_FILE).write_text(target, encoding="ascii")
    tables: dict[str, Any] = dict(job_tables(codec))
    with Channel(ControllerAddress.of(target, tls=False)) as channel:
        made = _make_job(
            JobsClient(channel, secret), hosts_of,
            # With a token of ours the call can be repeated.
            {**size, **tables, "codec": config.codec, "codec_options": config.codec_options}
            | {"token": secrets.token_urlsafe(32)},
        )  # fmt: skip
    return target, made.token


def _make_job(jobs: JobsClient, hosts_of: Mapping[str, str], fields: Mapping[str, Any]) -> Any:
    """Make the job once all switches answer the controller. Raises ConfigError naming the hosts of those that do not.

    A host that hangs takes connections, so only the controller notices.
    """
    until = time.monotonic() + _SWITCH_S
    while True:
        if not (silent := _silent(jobs)):
            try:
                return jobs.create(JOB, **fields)
            except ControllerError:
                # It tried the switches anew. Whatever else it refuses is no reason to wait.
                if not (silent := _silent(jobs)):
                    raise
        if time.monotonic() >= until:
            hosts = ", ".join(dict.fromkeys(hosts_of[each] for each in silent))
            why = "; ".join(dict.fromkeys(silent.values()))
            raise ConfigError(
                f"the host of {hosts} does not answer: its switch was silent for {_SWITCH_S:g} s ({why}). See whether "
                "that host still runs, and to its network"
            )
        time.sleep(_AGAIN_S)


def _silent(jobs: JobsClient) -> dict[str, str]:
    """Return why the controller does not reach switches, by their names."""
    return {each.name: each.condition or "not reached yet" for each in jobs.switches() if not each.reachable}


def _require_switches(switches: Sequence[EmbeddedSwitch], hosts_of: Mapping[str, str]) -> None:
    """Raise ConfigError naming the hosts whose switches take no connection from here."""
    with ThreadPoolExecutor(len(switches)) as pool:
        told = list(pool.map(_no_connection, switches))
    named = zip(hosts_of.values(), switches, told, strict=True)
    if problems := [
        f"the host of {host} does not answer: its switch takes no connection at port {switch.grpc.rpartition(':')[2]} "
        f"({why})"
        for host, switch, why in named
        if why
    ]:
        raise ConfigError(f"{', '.join(problems)}: it was reached before; see to its network")


def _no_connection(switch: EmbeddedSwitch) -> str:
    """Return why a switch takes no connection, empty if it does."""
    host, _, port = switch.grpc.rpartition(":")
    until = time.monotonic() + _SWITCH_S
    while True:
        try:
            socket.create_connection((host, int(port)), max(_AGAIN_S, until - time.monotonic())).close()
        except OSError as error:
            # A host that is there and refuses has no switch any more: nothing is gained by a wait.
            if isinstance(error, ConnectionRefusedError) or time.monotonic() >= until:
                return str(error)
            time.sleep(_AGAIN_S)
        else:
            return ""


def _controller_config(switches: Sequence[EmbeddedSwitch], database: str, token_file: str, lease_s: float) -> str:
    """Return the TOML text of a controller for these switches, which listens on the host of the first one."""
    lines = [
        "[controller]",
        f"database = '{database}'",
        f"listen = '{switches[0].ip}:0'",
        "metrics_listen = ''",
        f"admin_token_file = '{token_file}'",
        f"lease_s = {float(lease_s)}",
        f"heartbeat_s = {min(_HEARTBEAT_S, lease_s / 3)}",
    ]
    for number, switch in enumerate(switches):
        lines += [
            "[[switch]]",
            f"name = '{_name(number)}'",
            "driver = 'native'",
            f"address = '{switch.grpc}'",
            f"mac = '02:00:00:00:fe:{number:02x}'",
            f"ip = '{_service_ip(number)}'",
            f"service_address = '{switch.ip}:{switch.udp_port}'",
            "ports = [{port = 1, network = '0.0.0.0/0'}]",
        ]
    return "\n".join(lines) + "\n"


def _service_ip(number: int) -> str:
    """Return the service's address inside a switch's frames, which no other host sees."""
    # TEST-NET-1 (RFC 5737): no real host has such an address.
    return f"192.0.2.{number + 1}"


def _name(number: int) -> str:
    return f"switch{number}"
