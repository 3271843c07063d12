# SPDX-License-Identifier: Apache-2.0
"""file:// and raw://: a switch, by the membership file that its controller wrote.

raw:// is for link="scapy" only: its packets pass a layer-2 socket on the interface.
"""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import IPv4Address
from typing import Any, Final
from urllib.parse import SplitResult, unquote

from hopsum.agent import Communicator
from hopsum.config import Config
from hopsum.connection.open_agent import Hooks, open_agent
from hopsum.connection.url import UrlError, query_of, split_url
from hopsum.transport.link import DatagramLink
from hopsum.transport.scapy_link import PacketView, ScapyLink
from hopsum_base.shown import name_hint
from hopsum_wire.membership import JobMembership, MembershipError, RankEndpoint, read_membership

_RAW_PARAMETERS: Final[dict[str, Callable[[str], Any]]] = {"membership": str, "via": IPv4Address}


def open_membership(config: Config, parts: SplitResult, hooks: Hooks) -> Communicator:
    """Join the job of a membership file, over UDP or with link="scapy" over scapy, and return the agent.

    Waits for the file for `membership_wait_s`. Raises UrlError, and as `open_agent`.
    """
    membership = MEMBERSHIPS[parts.scheme](config, parts)
    if config.link != "scapy":
        if parts.scheme == "raw":
            raise UrlError(f'URL {config.url!r}: frames on an interface pass scapy: link="scapy", or a URL file://')
        return open_agent(config, hooks, membership)
    interface, via = None, None
    if parts.scheme == "raw":
        interface = parts.netloc
        router = query_of(config, parts, _RAW_PARAMETERS).get("via")
        via = None if router is None else str(router)
    view = PacketView(config.pcap or None, hooks.on_packet, config.show)

    def link(seat: RankEndpoint) -> DatagramLink:
        return ScapyLink(seat.endpoint.address, seat.send_to.address, interface=interface, via=via, view=view)

    return open_agent(config, hooks, membership, make_link=link)


def membership_at(location: str) -> JobMembership:
    """Return the membership in the file of a path or a URL (file://, raw://), without waiting for the file.

    Raises:
        ConfigError: a URL of another kind, or malformed.
        MembershipError: no file, a malformed one, or not of the switch and job that the URL names.
    """
    if "://" not in location:
        return read_membership(location)
    config = Config(url=location, membership_wait_s=0)
    parts = split_url(config)
    if parts.scheme not in MEMBERSHIPS:
        raise UrlError(
            f"URL {location!r}: {parts.scheme}:// has no membership file; {name_hint(parts.scheme, MEMBERSHIPS)}"
        )
    return MEMBERSHIPS[parts.scheme](config, parts)


def _raw_membership(config: Config, parts: SplitResult) -> JobMembership:
    query = query_of(config, parts, _RAW_PARAMETERS)
    if not parts.netloc:
        raise UrlError(f"URL {config.url!r}: on which interface? raw://INTERFACE/JOB?membership=PATH")
    if "membership" not in query:
        raise UrlError(
            f"URL {config.url!r}: the job's membership file, which the controller wrote, is missing; "
            "add ?membership=PATH to the URL"
        )
    membership = read_membership(query["membership"], wait_s=config.membership_wait_s)
    job = unquote(parts.path.strip("/"))
    if job and job != membership.job:
        raise MembershipError(f"URL {config.url!r} is for job {job!r}, its membership file for {membership.job!r}")
    return membership


def _file_membership(config: Config, parts: SplitResult) -> JobMembership:
    query_of(config, parts, {})
    if parts.netloc not in ("", "localhost") or not parts.path.strip("/"):
        raise UrlError(f"URL {config.url!r}: a path on this machine has three slashes, file:///PATH/membership.json")
    return read_membership(unquote(parts.path), wait_s=config.membership_wait_s)


MEMBERSHIPS: Final[dict[str, Callable[[Config, SplitResult], JobMembership]]] = {
    "file": _file_membership,
    "raw": _raw_membership,
}
