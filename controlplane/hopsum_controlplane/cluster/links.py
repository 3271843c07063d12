# SPDX-License-Identifier: Apache-2.0
"""The links between the switches of a cluster: trees of depth two, a spine and the leaves below it.

    workers --- leaf1 --9-----1-- spine --2-----9-- leaf2 --- workers

A worker of a tree stands at the leaf whose ports have its address, its port towards the spine left out: the longest
prefix, where several have it.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Network

from hopsum_controlplane.cluster.errors import ClusterConfigError
from hopsum_controlplane.jobs import MAX_PORT


@dataclass(frozen=True)
class LinkConfig:
    """A link between two switches: the leaf's port towards the spine, and the spine's towards the leaf."""

    leaf: str
    leaf_port: int
    spine: str
    spine_port: int

    def __str__(self) -> str:
        """Return `LEAF port N to SPINE port M`."""
        return f"{self.leaf} port {self.leaf_port} to {self.spine} port {self.spine_port}"

    @property
    def ends(self) -> tuple[tuple[str, int], tuple[str, int]]:
        """Return switch and port of both ends, the leaf's first."""
        return (self.leaf, self.leaf_port), (self.spine, self.spine_port)


def check_links(links: Iterable[LinkConfig], switches: Collection[str]) -> None:
    """Raise ClusterConfigError naming the first link that does not fit the switches, or the links before it."""
    taken: dict[tuple[str, int], LinkConfig] = {}
    above: dict[str, LinkConfig] = {}
    below: dict[str, LinkConfig] = {}
    for link in links:
        _check_link(link, switches)
        for end in link.ends:
            if end in taken:
                raise _wrong(f"link {link}: {end[0]} port {end[1]} has the link {taken[end]}", "a port has one link")
            taken[end] = link
        if link.leaf in above:
            hint = f"a leaf has one link, to one spine; it has {above[link.leaf]}"
            raise _wrong(f"link {link}: leaf {link.leaf!r} has two spines, or two links to one", hint)
        above[link.leaf] = below[link.spine] = link
    for name in above:
        if name in below:
            what = f"switch {name!r} is a leaf ({above[name]}) and a spine ({below[name]})"
            raise _wrong(what, "a tree has two levels, leaves and a spine: no switch is both")


def check_racks(links: Iterable[LinkConfig], networks: Mapping[str, Mapping[IPv4Network, int]]) -> None:
    """Raise ClusterConfigError when two leaves of a spine have one network. `networks` gives ports by switch."""
    found: dict[tuple[str, IPv4Network], str] = {}
    for link in links:
        for network, port in networks[link.leaf].items():
            if port == link.leaf_port:
                continue
            other = found.setdefault((link.spine, network), link.leaf)
            if other != link.leaf:
                what = f"network {network} is behind {other} and behind {link.leaf}, both below {link.spine}"
                raise _wrong(what, "a worker stands at one leaf: give each network once")


def _check_link(link: LinkConfig, switches: Collection[str]) -> None:
    for name, port in link.ends:
        if name not in switches:
            near = difflib.get_close_matches(name, switches, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(switches)}"
            raise _wrong(f"link {link}: no switch {name!r}", hint)
        if not 0 <= port <= MAX_PORT:
            raise _wrong(f"link {link}: port {port} of {name}", f"ports are 0 .. {MAX_PORT}")
    if link.leaf == link.spine:
        raise _wrong(f"link {link}: a switch linked to itself", "a link is between a leaf and a spine")


def _wrong(what: str, hint: str) -> ClusterConfigError:
    return ClusterConfigError(what, hint=hint)
