# SPDX-License-Identifier: Apache-2.0
"""`connect`: from a URL to what sums.

file:///PATH/membership.json                          a switch, by the file that the controller wrote
udp://HOST:PORT/JOB?membership=PATH                   the same, and the file must be that switch's and that job's
hopsum://HOST:PORT/JOB?token_file=PATH&ca=PATH        a job of the controller there, which says where the switch is
raw://INTERFACE/JOB?membership=PATH                   the same as udp://, by whole frames over one interface
memory://NAME?workers=N&quorum=Q&loss=P&seed=S        threads of this process; all but workers may be left out
collective://gloo, collective://nccl                  torch.distributed; needs no switch
hosts://?slots=N                                      the ranks' own hosts, each with an embedded switch; under torchrun
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from importlib import import_module
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import SplitResult, unquote
from weakref import WeakKeyDictionary

from hopsum.agent import Agent
from hopsum.agreement import facts_of, shared_settings
from hopsum.codec import Codec, make_codec
from hopsum.communicator import Communicator, Span
from hopsum.config import DEFAULT_CODEC, Config, ConfigError, nearest, resolve
from hopsum.memory import InProcessGroupOptions, MemoryCommunicator
from hopsum.notice import telling
from hopsum.protocol.worker import Timing
from hopsum.transport.link import DatagramLink
from hopsum.transport.raw import RawLink
from hopsum.transport.scapy_link import PacketView, ScapyLink
from hopsum.url import UrlError, on_or_off, query_of, require_range, split_url
from hopsum_wire import MAX_WORKERS
from hopsum_wire.membership import JobMembership, MembershipError, RankEndpoint, read_membership


class Hooks(NamedTuple):
    """The arguments of `connect` that no text can name."""

    group: Any = None
    on_packet: Callable[[Any, bool], None] | None = None
    trace: Callable[[Span], None] | None = None
    meeting: Any = None
    """The leaders of hosts that have met already (local_group), for hosts://."""


_settings: Final[WeakKeyDictionary[Any, Config]] = WeakKeyDictionary()


def connect(
    url: str | None = None,
    *,
    config_file: str | Path | None = None,
    group: Any = None,
    on_packet: Callable[[Any, bool], None] | None = None,
    trace: Callable[[Span], None] | None = None,
    **settings: Any,
) -> Communicator:
    """Take part as one worker. Close what is returned, or use it in a `with` statement.

    Args:
        url: see the module, the setting `url` by default.
        config_file: TOML file with further settings, HOPSUM_CONFIG by default.
        group: for collective:// only, a torch process group that nothing else uses, with its own timeout in place of
            `deadline_s`. By default one of all ranks is made, so all ranks call this at the same point.
        on_packet: with link="scapy", called with every scapy packet and with whether this worker sent it, in the thread
            of the network.
        trace: at a switch, called with every span of time that an all-reduce spends in one stage, in the agent's
            thread. `hopsum.agent.timeline.draw` makes lines of text of them.
        settings: see `hopsum.config.Config`. They come before the file, the environment and defaults.

    Raises:
        ConfigError: an unknown or unfit setting. UrlError for the URL.
        MembershipError: no membership file, a malformed one, of another job or switch, or no such rank, or the other
            ranks of a controller's job do not come.
        ControllerError: hopsum:// and the controller refuses, or gives no answer (hopsum.rpc.errors).
        JoinError: memory:// or collective:// and the other ranks have other settings.
        CodecError: the codec's options do not fit it or the job.
        ScapyMissingError: link="scapy" and scapy is not installed (hopsum.transport.scapy_link).
        OSError: no socket at this rank's address, or the pcap file cannot be written.
    """
    return open_config(resolve({"url": url, **settings}, file=config_file), Hooks(group, on_packet, trace))


def open_config(config: Config, hooks: Hooks = Hooks()) -> Communicator:  # noqa: B008  # it cannot be changed
    """Take part as one worker, with settings that are resolved. See `connect`."""
    if config.local_group:
        return _open_local_group(config, hooks)
    parts = split_url(config)
    if hooks.group is not None and parts.scheme != "collective":
        raise UrlError(f"URL {config.url!r}: only collective:// takes a process group")
    if parts.scheme not in (*_MEMBERSHIPS, "hopsum", "hosts") and (hooks.trace is not None or not config.overlap):
        raise ConfigError(f"trace and overlap with URL {config.url!r}: only workers at a switch have them")
    if parts.scheme != "hopsum":  # whose job may record a codec
        config = replace(config, codec=config.codec or DEFAULT_CODEC)
    _require_packets(config, parts, hooks)
    opener = _open_scapy if config.link == "scapy" else _OPENERS[parts.scheme]
    opened = opener(config, parts, hooks)
    _settings.setdefault(opened, config)
    return opened


def _open_local_group(config: Config, hooks: Hooks) -> Communicator:
    """Take part with the other ranks of this host, as `local_group` says: as its leader, or through it."""
    if (scheme := split_url(config).scheme) in ("memory", "collective"):
        raise ConfigError(f"local_group={config.local_group!r} with {scheme}://: every rank takes part there by itself")
    try:
        local, stores = import_module("hopsum.local_group"), import_module("hopsum.torch.store")
    except ModuleNotFoundError as error:
        raise ConfigError(f"local_group needs torch: pip install 'hopsum[hosts]' ({error})") from error
    store = stores.RankStore(config.membership_wait_s, "local_group")
    if config.rank not in (None, store.rank):
        raise ConfigError(f"local_group: rank={config.rank}, but torch says {store.rank}; leave rank out")

    def open_job(settings: Config, meeting: Any) -> tuple[Communicator, Config]:
        job = open_config(settings, hooks._replace(meeting=meeting))
        return job, settings_of(job)

    opened: Communicator = local.open_local_group(config, store, open_job=open_job, make_codec=codec_of)
    _settings[opened] = config
    return opened


def settings_of(comm: Communicator) -> Config:
    """Return the settings that `connect` was told, or the defaults for a communicator that was made otherwise."""
    return _settings.get(comm) or Config()


def codec_of(config: Config, workers: int) -> Codec:
    """Make the codec of the settings. Raises ConfigError for options that it does not have, CodecError for others."""
    slow = (
        f"codec {config.codec}: still preparing its table and kernels; compiling the kernels takes half a minute, "
        "once on a machine"
    )
    try:
        with telling(slow):
            return make_codec(
                config.codec, workers=workers, backend=config.backend, threads=config.threads, **config.codec_options
            )
    except TypeError as error:
        raise ConfigError(f"codec_options {config.codec_options} of codec {config.codec}: {error}") from error


def _codec_for(config: Config, workers: int) -> Codec:
    """Make the codec of a job of so many workers. Raises as `codec_of`, and ConfigError for a job of another size."""
    _require_world(config, workers)
    return codec_of(config, workers)


def _require_world(config: Config, workers: int) -> None:
    """Refuse a job that the world of torchrun cannot fill, or of whatever has set RANK and WORLD_SIZE.

    Jobs that are smaller than the world are fine: groups of ranks may have one each. So is a world of one, in which
    every rank has been started by itself.
    """
    told = [os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE")]
    if not all(each.isdecimal() for each in told) or config.rank != int(told[0]):
        return
    world = int(told[1])
    if workers > world > 1:
        raise ConfigError(
            f"the job has {workers} workers, and this program was started as rank {told[0]} of {world} (WORLD_SIZE): "
            f"start {workers} ranks, or make a job for {world} workers"
        )


def membership_at(location: str) -> JobMembership:
    """Read the membership file that a path or a URL (file://, udp://, raw://) names, without waiting for it.

    Raises:
        ConfigError: a URL of another kind, or malformed.
        MembershipError: no file, a malformed one, or not of the switch and job that the URL names.
    """
    if "://" not in location:
        return read_membership(location)
    config = Config(url=location, membership_wait_s=0)
    parts = split_url(config)
    if parts.scheme not in _MEMBERSHIPS:
        raise UrlError(
            f"URL {location!r}: {parts.scheme}:// has no membership file; {nearest(parts.scheme, _MEMBERSHIPS)}"
        )
    return _MEMBERSHIPS[parts.scheme](config, parts)


def _open_file(config: Config, parts: SplitResult, hooks: Hooks) -> Communicator:
    return _open_agent(config, hooks, _file_membership(config, parts))


def _open_udp(config: Config, parts: SplitResult, hooks: Hooks) -> Communicator:
    return _open_agent(config, hooks, _udp_membership(config, parts))


def _open_raw(config: Config, parts: SplitResult, hooks: Hooks) -> Communicator:
    membership = _raw_membership(config, parts)
    via = query_of(config, parts, _RAW_PARAMETERS).get("via")

    def link(seat: RankEndpoint) -> DatagramLink:
        return RawLink(parts.netloc, seat.endpoint.address, seat.send_to.address, via=None if via is None else str(via))

    return _open_agent(config, hooks, membership, make_link=link)


def _require_packets(config: Config, parts: SplitResult, hooks: Hooks) -> None:
    """Refuse settings of packets where no packets can be seen."""
    if config.link == "scapy" and parts.scheme not in _MEMBERSHIPS:
        able = ", ".join(f"{scheme}://" for scheme in _MEMBERSHIPS)
        raise ConfigError(f'link="scapy" with URL {config.url!r}: only {able} have it')
    if config.link != "scapy" and (config.pcap or config.show or hooks.on_packet is not None):
        raise ConfigError('pcap, show and on_packet: only link="scapy" has packets to show')


def _open_scapy(config: Config, parts: SplitResult, hooks: Hooks) -> Communicator:
    membership = _MEMBERSHIPS[parts.scheme](config, parts)
    interface, via = None, None
    if parts.scheme == "raw":
        interface, via = parts.netloc, query_of(config, parts, _RAW_PARAMETERS).get("via")
    view = PacketView(config.pcap or None, hooks.on_packet, config.show)

    def link(seat: RankEndpoint) -> DatagramLink:
        router = None if via is None else str(via)
        return ScapyLink(seat.endpoint.address, seat.send_to.address, interface=interface, via=router, view=view)

    return _open_agent(config, hooks, membership, make_link=link)


def _raw_membership(config: Config, parts: SplitResult) -> JobMembership:
    query = query_of(config, parts, _RAW_PARAMETERS)
    if not parts.netloc:
        raise UrlError(f"URL {config.url!r}: on which interface? raw://INTERFACE/JOB?membership=PATH")
    membership = _named_membership(config, query)
    _require_job(config, parts, membership)
    return membership


def _file_membership(config: Config, parts: SplitResult) -> JobMembership:
    query_of(config, parts, {})
    if parts.netloc not in ("", "localhost") or not parts.path.strip("/"):
        raise UrlError(f"URL {config.url!r}: a path on this machine has three slashes, file:///PATH/membership.json")
    return _membership(config, unquote(parts.path))


def _udp_membership(config: Config, parts: SplitResult) -> JobMembership:
    membership = _named_membership(config, query_of(config, parts, {"membership": str}))
    _require_job(config, parts, membership)
    _require_switch(config, parts, membership)
    return membership


def _named_membership(config: Config, query: dict[str, Any]) -> JobMembership:
    if "membership" not in query:
        raise UrlError(
            f"URL {config.url!r}: who takes part stands in the file that the controller wrote for the job; "
            "add ?membership=PATH to the URL"
        )
    return _membership(config, query["membership"])


def _membership(config: Config, path: str) -> JobMembership:
    return read_membership(path, wait_s=config.membership_wait_s)


def _require_job(config: Config, parts: SplitResult, membership: JobMembership) -> None:
    """Raise MembershipError unless the job of the URL, if it has one, is the membership's."""
    job = unquote(parts.path.strip("/"))
    if job and job != membership.job:
        raise MembershipError(f"URL {config.url!r} is for job {job!r}, its membership file for {membership.job!r}")


def _require_switch(config: Config, parts: SplitResult, membership: JobMembership) -> None:
    """Raise MembershipError unless host and port of the URL, as far as it has them, are the membership's."""
    places = {membership.switch, *(worker.send_to for worker in membership.workers)}
    wrong_port = parts.port is not None and parts.port not in {place.udp_port for place in places}
    if wrong_port or (parts.hostname and _address(config, parts.hostname) not in {place.ip for place in places}):
        raise MembershipError(
            f"URL {config.url!r} names another switch than its membership file, where job {membership.job!r} is at "
            f"{' or '.join(sorted(map(str, places)))}: leave host and port out, or use the file of that switch"
        )


def _address(config: Config, host: str) -> str:
    try:
        return socket.gethostbyname(host)
    except OSError as error:
        raise UrlError(f"URL {config.url!r}: no IPv4 address of host {host!r}: {error}") from error


def controller_at(config: Config) -> tuple[Any, str, str]:
    """Return the `ControllerAddress` (hopsum.rpc.channel) of a hopsum:// URL, the job's name, and the job's token.

    Raises:
        ConfigError: a URL of another kind, or malformed, or a token that cannot be read.
        HopsumError: files for TLS that do not fit.
    """
    parts = split_url(config)
    if parts.scheme != "hopsum":
        raise UrlError(f"URL {config.url!r}: a controller's job is hopsum://HOST:PORT/JOB")
    _, address, job, token = _controller(config, parts)
    return address, job, token


def _controller(config: Config, parts: SplitResult) -> tuple[Any, Any, str, str]:
    """Return the module that opens jobs, and `controller_at`."""
    query = query_of(config, parts, {"token_file": str, "ca": str, "tls": on_or_off})
    job = unquote(parts.path.strip("/"))
    if not parts.hostname or not parts.port or not job:
        raise UrlError(f"URL {config.url!r}: a controller's job is hopsum://HOST:PORT/JOB")
    try:
        rpc = import_module("hopsum.rpc.source")
    except ModuleNotFoundError as error:
        raise UrlError(f"URL {config.url!r} needs gRPC: pip install grpcio protobuf ({error})") from error
    token = rpc.token_of(config, query.get("token_file", config.token_file))
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    address = rpc.ControllerAddress.of(
        f"{host}:{parts.port}",
        tls=query.get("tls"),
        ca_file=query.get("ca", config.ca_file),
        certificate_file=config.certificate_file,
        key_file=config.key_file,
    )
    return rpc, address, job, token


def _open_controller(config: Config, parts: SplitResult, hooks: Hooks) -> Communicator:
    rpc, address, job, token = _controller(config, parts)
    # the controller is given time to bring a switch back
    patient = replace(config, unreachable_s=max(config.unreachable_s, config.membership_wait_s))
    resolved: list[Config] = []

    def make_codec(settings: Config, workers: int) -> Codec:
        """Make the codec of the settings, which have what the job records."""
        resolved.append(settings)
        return _codec_for(settings, workers)

    factories = rpc.Factories(codec=make_codec, agent=partial(_open_agent, patient, hooks))
    opened: Communicator = rpc.open_job(config, address, job, token, factories)
    _settings[opened] = resolved[-1]
    return opened


def _open_hosts(config: Config, parts: SplitResult, hooks: Hooks) -> Communicator:
    slots = query_of(config, parts, {"slots": int}).get("slots")
    if parts.netloc or parts.path.strip("/"):
        raise UrlError(f"URL {config.url!r}: the ranks find each other; write hosts://, or hosts://?slots=N")
    try:
        hosts, stores = import_module("hopsum.hosts"), import_module("hopsum.torch.store")
        rpc = import_module("hopsum.rpc.source")
    except ModuleNotFoundError as error:
        raise UrlError(f"URL {config.url!r} needs torch and gRPC: pip install 'hopsum[hosts]' ({error})") from error
    meeting = hooks.meeting
    if meeting is None:
        store = stores.RankStore(config.membership_wait_s)
        meeting = hosts.Meeting(store, store.name, store.rank, store.workers, config.membership_wait_s)
    if config.rank not in (None, meeting.rank):
        raise ConfigError(f"hosts://: rank={config.rank}, but torch says {meeting.rank}; leave rank out")
    config = replace(config, rank=meeting.rank)
    if meeting.workers > MAX_WORKERS:
        raise ConfigError(f"hosts://: {meeting.workers} ranks; a sum has at most {MAX_WORKERS} workers")
    codec = codec_of(config, meeting.workers)  # what takes long is done before anybody waits
    patient = replace(config, unreachable_s=max(config.unreachable_s, config.membership_wait_s))
    factories = rpc.Factories(codec=lambda _, __: codec, agent=partial(_open_agent, patient, hooks))

    def open_job(config: Config, address: Any, job: str, token: str, kept: ExitStack) -> Communicator:
        opened: Communicator = rpc.open_job(config, address, job, token, factories, kept=kept)
        return opened

    made: Communicator = hosts.open_hosts(config, meeting, codec, slots=slots, open_job=open_job)
    return made


def _open_agent(
    config: Config,
    hooks: Hooks,
    membership: JobMembership,
    rank: int | None = None,
    *,
    codec: Codec | None = None,
    make: Callable[..., Agent] = Agent,
    make_link: Callable[[RankEndpoint], DatagramLink] | None = None,
    **given: Any,
) -> Agent:
    rank = _rank(config, len(membership.workers)) if rank is None else rank
    seat = membership.worker(rank)  # before a table is solved
    codec = codec or _codec_for(config, len(membership.workers))
    names = ("retransmit_s", "retransmit_min_s", "deadline_s", "flush_after_s", "unreachable_s")
    timing = Timing(**{name: getattr(config, name) for name in names})
    given |= {"timing": timing, "seed": config.seed, "overlap": config.overlap, "trace": hooks.trace}
    if make_link is not None:
        given["link"] = [make_link(shard.worker(rank)) for shard in membership.shards]
    if "link" not in given:
        given["gso"] = config.gso
    try:
        return make(membership, seat.rank, codec=codec, **given)
    except BaseException:
        for link in given["link"] if make_link is not None else ():
            link.close()
        raise


def _open_memory(config: Config, parts: SplitResult, hooks: Hooks) -> Communicator:
    query = query_of(config, parts, {"workers": int, "quorum": int, "loss": float, "seed": int})
    name, workers = parts.netloc + parts.path, query.get("workers")
    if not name or workers is None:
        raise UrlError(f"URL {config.url!r}: an in-process group has a name and workers, memory://NAME?workers=N")
    require_range(config, "workers", workers, 1, MAX_WORKERS)
    options = InProcessGroupOptions(workers, query.get("quorum", workers), query.get("loss", 0.0), query.get("seed", 0))
    if options.loss and "quorum" not in query:
        options = options._replace(quorum=1)
    require_range(config, "quorum", options.quorum, 1, workers)
    require_range(config, "loss", options.loss, 0, 1)
    require_range(config, "seed", options.seed, 0, (1 << 63) - 1)
    rank = _rank(config, workers)  # before a table is solved
    return MemoryCommunicator(
        name,
        rank,
        options=options,
        codec=codec_of(config, workers),
        facts=facts_of(shared_settings(config)),
        seed=config.seed,
        deadline_s=config.deadline_s,
    )


def _open_collective(config: Config, parts: SplitResult, hooks: Hooks) -> Communicator:
    query_of(config, parts, {})
    kinds = ("gloo", "nccl")
    if parts.netloc not in kinds or parts.path:
        raise UrlError(f"URL {config.url!r}: {' or '.join(f'collective://{kind}' for kind in kinds)}")
    try:
        module = import_module("hopsum.torch.collective")
    except ModuleNotFoundError as error:
        raise UrlError(f"URL {config.url!r} needs torch: pip install 'hopsum[torch]' ({error})") from error
    facts = facts_of(shared_settings(config))
    opened: Communicator = module.open_collective(
        parts.netloc, config, make=lambda workers: codec_of(config, workers), facts=facts, group=hooks.group
    )
    return opened


_RAW_PARAMETERS: Final[dict[str, Callable[[str], Any]]] = {"membership": str, "via": IPv4Address}
_MEMBERSHIPS: Final[dict[str, Callable[[Config, SplitResult], JobMembership]]] = {
    "file": _file_membership,
    "udp": _udp_membership,
    "raw": _raw_membership,
}
_OPENERS: Final[dict[str, Callable[[Config, SplitResult, Hooks], Communicator]]] = {
    "udp": _open_udp,
    "file": _open_file,
    "hopsum": _open_controller,
    "raw": _open_raw,
    "memory": _open_memory,
    "collective": _open_collective,
    "hosts": _open_hosts,
}


def _rank(config: Config, workers: int) -> int:
    if config.rank is not None:
        return config.rank
    if workers == 1:
        return 0
    raise ConfigError(
        f"which of the {workers} workers is this? Pass rank=, or set HOPSUM_RANK or rank in the settings file; "
        "torchrun's RANK would do as well"
    )
