# SPDX-License-Identifier: Apache-2.0
"""`connect`: from a URL to a communicator.

file:///PATH/membership.json                          a switch, by the membership file that the controller wrote
hopsum://HOST:PORT/JOB?token_file=PATH&ca=PATH        a switch, by a job of the controller
raw://INTERFACE/JOB?membership=PATH                   a switch, with link="scapy" on one interface
memory://NAME?workers=N                               threads of this process
collective://gloo, collective://nccl                  torch.distributed; needs no switch
hosts://?slots=N&min_workers=N                        embedded switches on the ranks' hosts; under torchrun
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, Unpack
from urllib.parse import SplitResult

from hopsum.agent import Communicator, Span
from hopsum.codec import CODECS, CodecError, require_switch
from hopsum.config import DEFAULT_CODEC, Config, ConfigError, ConnectOptions, resolve, shared_settings
from hopsum.connection.membership_url import MEMBERSHIPS, open_membership
from hopsum.connection.open_agent import Hooks, codec_of, has_settings, record_settings, settings_of
from hopsum.connection.url import UrlError, split_url
from hopsum.errors import HopsumError
from hopsum.meeting import Arrival, Meeting, WaitLimit

__all__ = ["Hooks", "connect", "open_config", "open_resolved", "settings_of"]
TELL_S: Final = 15.0
"""Seconds for which a rank that failed early waits for the others, to report its error to them."""

Opener = Callable[[Config, SplitResult, Hooks], Communicator]


def connect(
    url: str | None = None,
    *,
    group: Any = None,
    on_packet: Callable[[Any, bool], None] | None = None,
    trace: Callable[[Span], None] | None = None,
    **settings: Unpack[ConnectOptions],
) -> Communicator:
    """Join a job as one worker and return the communicator. Close it, or use it in a `with` statement.

    With hopsum://, collective:// and hosts:// the call waits for the other ranks. hosts:// also starts a switch on each
    host, and a controller in a child of rank 0.

    Args:
        url: file://, raw://, hopsum://, memory://, collective:// or hosts://. Default: the setting `url`.
        group: a torch process group; by default all ranks. With hosts:// its ranks make a separate job, as HSDP needs
            for each shard index; all of them make this call. With collective:// nothing else may use the group, and
            its timeout replaces `deadline_s`.
        on_packet: with link="scapy", called with every scapy packet and with whether this worker sent it, in the thread
            of the network.
        trace: with a switch, called with every span of time that an all-reduce spends in one stage, in the agent's
            thread.
        settings: see `hopsum.config.Config`. They precede the environment and the defaults.

    Raises:
        ConfigError: an unknown or unfit setting. UrlError for the URL.
        MembershipError: no membership file, a malformed file or one of another job or switch, no such rank, or the
            other ranks of a controller's job do not join in time.
        ControllerError: hopsum:// and the controller refuses, or gives no answer (hopsum.rpc.channel).
        MeetingError: the other ranks do not arrive in time, or have other settings (hopsum.meeting).
        CodecError: the codec's options do not fit it or the job.
        ScapyMissingError: link="scapy" and scapy is not installed (hopsum.transport.scapy_link).
        OSError: no socket at this rank's address, or the pcap file cannot be written.
    """
    return open_resolved(lambda: resolve({"url": url, **settings}), Hooks(group, on_packet, trace))


def open_resolved(find: Callable[[], Config], hooks: Hooks = Hooks()) -> Communicator:  # noqa: B008
    """Join a job as one worker, with the settings that `find` returns, and return the communicator. See `connect`.

    The other ranks that already wait get a ConfigError of this rank as their own error.
    """
    try:
        config = find()
        _require_sum(config, split_url(config).scheme)
    except ConfigError as error:
        _tell_ranks(error, hooks.group)
        raise
    return open_config(config, hooks)


def _require_sum(config: Config, scheme: str) -> None:
    """Raise ConfigError if no switch can add the codec of the settings, and the URL needs a switch."""
    # Before the wait for ranks and the start of a switch. The codec of a controller's job is checked with the job.
    if config.codec and scheme not in ("memory", "collective"):
        try:
            require_switch(CODECS[config.codec])
        except CodecError as error:
            raise ConfigError(f"URL {config.url!r}: {error}") from None


def open_config(config: Config, hooks: Hooks = Hooks()) -> Communicator:  # noqa: B008  # it cannot be changed
    """Join a job as one worker, with resolved settings, and return the communicator. See `connect`."""
    parts = split_url(config)
    if parts.scheme != "hopsum":  # whose job may record a codec
        config = replace(config, codec=config.codec or DEFAULT_CODEC)
    grouped = bool(config.local_group) and parts.scheme != "memory"
    together = grouped or parts.scheme in ("hosts", "collective")
    what = "local_group" if config.local_group else f"{parts.scheme}://{parts.netloc}"
    # All ranks open this together: if one fails, or opens another URL, the others get an error. They meet before they
    # make the codec, which takes up to a minute.
    if together and hooks.meeting is None and (meeting := _meeting(what, _patience(config, parts, hooks), hooks.group)):
        with meeting.opening(_arrival(config, parts)):
            if hooks.group is None and config.rank not in (None, meeting.rank):
                raise ConfigError(
                    f"{what}: rank={config.rank}, but torch.distributed says {meeting.rank}; leave rank out"
                )
            return _open(config, parts, hooks._replace(meeting=meeting))
    return _open(config, parts, hooks)


def _arrival(config: Config, parts: SplitResult) -> Arrival:
    """Return the first message of this rank to the others: the URL that it opens, its settings, and its host."""
    from hopsum.hosts.host_address import host_id

    query = "&".join(sorted(parts.query.split("&"))) if parts.scheme == "hosts" else ""
    opens = {
        "URL": f"{parts.scheme}://{parts.netloc}{'?' if query else ''}{query}",
        # Files and addresses of a job differ between ranks, and so does the name of a group.
        "local_group": {"": "off", "auto": "auto"}.get(config.local_group, "by name"),
    }
    return Arrival({**opens, **shared_settings(config)}, host_id(), config.local_group)


def _patience(config: Config, parts: SplitResult, hooks: Hooks) -> WaitLimit | None:
    """Return the limit of the wait for other ranks, and its setting; None: the process group's timeout."""
    if parts.scheme == "collective" and hooks.group is not None:
        return None
    # As long as an all-reduce waits for a rank that computes: a rank may still prepare its data.
    if parts.scheme == "hosts":
        return WaitLimit(config.deadline_s, "deadline_s")
    return WaitLimit(config.membership_wait_s)


def _meeting(what: str, patience: WaitLimit | None, group: Any = None, failure: str = "") -> Meeting | None:
    """Return the `Meeting` of all ranks, or those of a group, None where torch or its process group is missing.

    Args:
        failure: the reason if this rank meets the others only to report its failure.

    Raises ConfigError if there are no ranks that could meet.
    """
    # The caller's error names the missing package.
    try:
        from hopsum.meeting.rank_store import meet_ranks
    except ModuleNotFoundError:
        return None
    return meet_ranks(what, patience, group, failure)


def _tell_ranks(error: ConfigError, group: Any) -> None:
    """Report the error of this rank's settings to the other ranks, if this process is one of several."""
    is_rank = "torch" in sys.modules or "WORLD_SIZE" in os.environ
    # Without a process group or torchrun's variables no rank waits. An error of the report must not hide this error.
    with suppress(HopsumError, RuntimeError, OSError):
        if is_rank and (meeting := _meeting("hosts://", WaitLimit(TELL_S), group, str(error))) is not None:
            meeting.fail(error)


def _open(config: Config, parts: SplitResult, hooks: Hooks) -> Communicator:
    # Other URLs would silently ignore a process group.
    if hooks.group is not None and (parts.scheme not in ("collective", "hosts") or config.local_group):
        raise UrlError(f"URL {config.url!r}: only hosts:// and collective:// take a process group, without local_group")
    if config.local_group:
        return _open_local_group(config, hooks)
    if parts.scheme in ("memory", "collective") and (hooks.trace is not None or not config.overlap):
        raise ConfigError(f"trace and overlap with URL {config.url!r}: only workers at a switch have them")
    _require_packets(config, parts, hooks)
    opened = _opener(config, parts.scheme)(config, parts, hooks)
    # hopsum:// has already recorded the settings, with the codec of the job.
    if not has_settings(opened):
        record_settings(opened, config)
    return opened


def _opener(config: Config, scheme: str) -> Opener:
    """Return the function that opens URLs of a scheme. Raises UrlError where the environment lacks a package for it.

    Imports are here since they cost a worker seconds and megabytes: torch for collective:// and hosts://, gRPC for
    hopsum:// and hosts://.
    """
    needs = ""
    try:
        if scheme == "hopsum":
            needs = "gRPC: pip install grpcio protobuf"
            from hopsum.connection.controller_url import open_controller_job

            return open_controller_job
        if scheme == "hosts":
            needs = "torch and gRPC: pip install 'hopsum[hosts]'"
            from hopsum.connection.hosts_url import open_over_hosts

            return open_over_hosts
        if scheme == "collective":
            needs = "torch: pip install 'hopsum[torch]'"
            from hopsum.connection.collective_url import open_collective

            return open_collective
    except ModuleNotFoundError as error:
        raise UrlError(f"URL {config.url!r} needs {needs} ({error})") from error
    if scheme == "memory":
        from hopsum.connection.memory_url import open_memory

        return open_memory
    return open_membership


def _open_local_group(config: Config, hooks: Hooks) -> Communicator:
    """Join with the other ranks of this host, as the leader of the group or as a member."""
    if (scheme := split_url(config).scheme) in ("memory", "collective"):
        raise ConfigError(f"local_group={config.local_group!r} with {scheme}://: every rank takes part there by itself")
    if hooks.meeting is None:
        raise ConfigError("local_group needs torch: pip install 'hopsum[hosts]'")
    from hopsum.local_group import open_local_group

    def open_job(settings: Config, meeting: Any) -> tuple[Communicator, Config]:
        # The leaders have already met: hosts:// must not start another meeting.
        job = open_config(settings, hooks._replace(meeting=meeting))
        return job, settings_of(job)

    opened = open_local_group(config, hooks.meeting, open_job=open_job, make_codec=codec_of)
    record_settings(opened, config)
    return opened


def _require_packets(config: Config, parts: SplitResult, hooks: Hooks) -> None:
    """Raise ConfigError for settings of packets if the URL or the link cannot show packets."""
    if config.link == "scapy" and parts.scheme not in MEMBERSHIPS:
        able = ", ".join(f"{scheme}://" for scheme in MEMBERSHIPS)
        raise ConfigError(f'link="scapy" with URL {config.url!r}: only {able} have it')
    if config.link != "scapy" and (config.pcap or config.show or hooks.on_packet is not None):
        raise ConfigError('pcap, show and on_packet: only link="scapy" has packets to show')
