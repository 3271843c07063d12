# SPDX-License-Identifier: Apache-2.0
"""On which switches a job goes, and where a member stands: pure functions of the configuration and what is taken.

A job goes on one switch where one reaches the workers of all networks; else, or where it is asked for, over a tree: a
spine, and all leaves below it. It has room on all of these or on none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, collapse_addresses
from typing import NamedTuple

from hopsum_controlplane.cluster.config import SwitchConfig
from hopsum_controlplane.cluster.errors import InvalidRequestError, ResourceExhaustedError
from hopsum_controlplane.cluster.links import LinkConfig
from hopsum_controlplane.cluster.records import Branch, JobRecord
from hopsum_controlplane.cluster.requests import JobRequest, JoinRequest
from hopsum_controlplane.errors import ControlPlaneError
from hopsum_controlplane.jobs import WorkerEndpoint
from hopsum_controlplane.resource_allocator import Allocation, FreeCapacity, ResourceAllocator
from hopsum_wire import MAX_JOBS


class Candidate(NamedTuple):
    """A switch that a job may go to: what is left there, and why it cannot be used if it cannot.

    `obstacle` is to a job's workers there, `spine_obstacle` to its part on a spine.
    """

    config: SwitchConfig
    allocator: ResourceAllocator
    obstacle: str = ""
    spine_obstacle: str = ""

    @property
    def room(self) -> FreeCapacity:
        """Return what is left."""
        return self.allocator.room


class Place(NamedTuple):
    """Where a job goes: its switch, or spine, with its place there; and the leaves below the spine."""

    switch: str
    allocation: Allocation
    branches: tuple[Branch, ...] = ()


class _Site(NamedTuple):
    """A switch that would take a part of a job, as a spine or not."""

    candidate: Candidate
    is_spine: bool

    def why_not(self, request: JobRequest) -> str:
        """Return why it cannot, an empty string when it can."""
        config, room = self.candidate.config, self.candidate.room
        obstacle = self.candidate.spine_obstacle if self.is_spine else self.candidate.obstacle
        if obstacle:
            return obstacle
        if room.jobs == 0:
            return f"all {MAX_JOBS} jobs are taken"
        if room.largest_range < request.slots:
            of = f"{room.largest_range} of {config.slots} slots"
            return f"the largest free range has {of}, {room.slots} are free in all"
        return ""


_Sites = tuple[_Site, ...]
"""What a job needs together: one switch; or a spine, then its leaves."""


def taken(config: SwitchConfig, records: Iterable[JobRecord]) -> ResourceAllocator:
    """Return what the records of a switch leave of it. Raises ControlPlaneError when they do not fit its slots."""
    allocator = ResourceAllocator(config.slots)
    for record in records:
        index, region = record.place(config.name)
        try:
            allocator.reserve(region.size, Allocation(index, region))
        except ControlPlaneError as error:
            raise ControlPlaneError(
                f"job {record.name!r} is in the database with a place that switch {config.name!r} does not have: "
                f"{error.what}",
                hint="configure as many slots as before, or delete the job first",
            ) from error
    return allocator


def place(request: JobRequest, candidates: Sequence[Candidate], links: Sequence[LinkConfig] = ()) -> Place:
    """Return where a job goes; its places are reserved by the candidates' allocators.

    It is the switch that the request names, or of those that reach every network of the cluster the one with most free
    slots, the first of equals; where there is none, or a tree is asked for, the same with spines, each with the leaves
    below it: of a tree the switch with the fewest free slots counts. Raises ResourceExhaustedError or
    InvalidRequestError saying for every switch why not, and what would fit.
    """
    choices = _choices(request, candidates, links)
    fitting = [sites for sites in choices if not any(site.why_not(request) for site in sites)]
    if not fitting:
        raise _no_room(request, choices)
    best = max(fitting, key=lambda sites: min(site.candidate.room.slots for site in sites))  # the first of equals
    top, *below = [(site.candidate.config.name, site.candidate.allocator.reserve(request.slots)) for site in best]
    return Place(*top, tuple(Branch(name, *allocation) for name, allocation in below))


def endpoint(request: JoinRequest, rank: int, switch: SwitchConfig, but: int | None = None) -> WorkerEndpoint:
    """Return where a member stands: its switch port by its address, which is not port `but`.

    Raises InvalidRequestError when no port of the switch has its network, or its MAC address is needed and missing.
    """
    rule = switch.rule_of(IPv4Address(request.ip), but)
    if rule is None:
        raise InvalidRequestError(
            f"{request.ip} is of no network of switch {switch.name!r}, which has "
            + ", ".join(str(rule) for rule in switch.ports),
            hint="join from an address of these, or add a rule to the switch's ports",
        )
    mac = request.mac or _made_up_mac(switch, rule.port)
    return WorkerEndpoint(rank, rule.port, mac, request.ip, request.udp_port)


def leaf_of(request: JoinRequest, leaves: Sequence[tuple[SwitchConfig, LinkConfig]]) -> tuple[SwitchConfig, LinkConfig]:
    """Return the leaf that a member stands at. Raises InvalidRequestError when its address is of no network of one."""
    ip = IPv4Address(request.ip)
    rules = {leaf.name: leaf.rule_of(ip, link.leaf_port) for leaf, link in leaves}
    found = {name: rule.network.prefixlen for name, rule in rules.items() if rule is not None}
    if not found:
        known = "; ".join(f"{leaf.name} {', '.join(map(str, networks_of(leaf, link)))}" for leaf, link in leaves)
        hint = "join from an address of these, or add a rule to a leaf's ports"
        raise InvalidRequestError(
            f"{request.ip} is of no network of the leaves of job {request.job!r}: {known}", hint=hint
        )
    name = max(found, key=lambda name: found[name])
    return next((leaf, link) for leaf, link in leaves if leaf.name == name)


def networks_of(leaf: SwitchConfig, link: LinkConfig) -> list[IPv4Network]:
    """Return the networks of the workers at a leaf."""
    return [rule.network for rule in leaf.ports if rule.port != link.leaf_port]


def _choices(request: JobRequest, candidates: Sequence[Candidate], links: Sequence[LinkConfig]) -> list[_Sites]:
    """Return where the request may go. Raises InvalidRequestError."""
    named = [each for each in candidates if each.config.name == request.switch]
    spines = list(dict.fromkeys(link.spine for link in links))
    if request.switch is not None:
        if not request.tree and named[0].config.ports:
            return [(_Site(named[0], False),)]
        if request.switch not in spines:
            hint = f"name a spine: {', '.join(spines)}" if spines else "configure links of leaves and a spine"
            raise InvalidRequestError(f"switch {request.switch!r} has no leaves below it for a tree", hint=hint)
        spines = [request.switch]
    lacking: list[str] = []
    if not request.tree and request.switch is None:
        flat, lacking = _reaching([(_Site(each, False),) for each in candidates], candidates, links)
        if flat or not spines:
            return _some(flat, lacking)
    request.check_tree()
    trees = [_tree(spine, candidates, links) for spine in spines]
    if request.switch is not None:
        return trees
    if not trees:
        raise InvalidRequestError(
            "no switch has leaves below it for a tree", hint="configure links of leaves and a spine"
        )
    reaching, also_lacking = _reaching(trees, candidates, links)
    return _some(reaching, [*lacking, *also_lacking])


def _tree(spine: str, candidates: Sequence[Candidate], links: Sequence[LinkConfig]) -> _Sites:
    by_name = {each.config.name: each for each in candidates}
    leaves = [_Site(by_name[link.leaf], False) for link in links if link.spine == spine]
    return (_Site(by_name[spine], True), *leaves)


def _reaching(
    choices: Iterable[_Sites], candidates: Sequence[Candidate], links: Sequence[LinkConfig]
) -> tuple[list[_Sites], list[str]]:
    """Return those that reach all networks, and what the others lack; what is behind a link is at another switch."""
    ends = {end for link in links for end in link.ends}
    networks = {
        rule.network
        for candidate in candidates
        for rule in candidate.config.ports
        if (candidate.config.name, rule.port) not in ends
    }
    reaching, lacking = [], []
    for sites in choices:
        unreached = _unreached(_networks(sites, links), networks)
        if unreached is None:
            reaching.append(sites)
        else:
            name, below = sites[0].candidate.config.name, len(sites) > 1
            lacking.append(f"{f'the leaves below {name} lack' if below else f'{name} lacks'} {unreached}")
    return reaching, lacking


def _networks(sites: _Sites, links: Sequence[LinkConfig]) -> list[IPv4Network]:
    """Return the networks whose workers a choice has: those of one switch, or of a spine's leaves."""
    if len(sites) == 1:
        return [rule.network for rule in sites[0].candidate.config.ports]
    by_leaf = {link.leaf: link for link in links}
    leaves = [site.candidate.config for site in sites[1:]]
    return [network for leaf in leaves for network in networks_of(leaf, by_leaf[leaf.name])]


def _some(reaching: list[_Sites], lacking: Sequence[str]) -> list[_Sites]:
    if not reaching:
        raise InvalidRequestError(
            f"no switch reaches the workers of all networks: {'; '.join(lacking)}",
            hint="name the switch that the job's workers are at",
        )
    return reaching


def _unreached(own: Iterable[IPv4Network], networks: Iterable[IPv4Network]) -> IPv4Network | None:
    reached = list(collapse_addresses(own))
    return next((each for each in sorted(networks) if not any(each.subnet_of(known) for known in reached)), None)


def _no_room(request: JobRequest, choices: Sequence[_Sites]) -> ResourceExhaustedError:
    named = {site.candidate.config.name: site.why_not(request) for sites in choices for site in sites}
    reasons = "; ".join(f"{name}: {why}" for name, why in named.items() if why)
    most = max((_most(sites) for sites in choices), default=0)
    hint = f"ask for up to {most} slots, or delete a job" if most else "delete a job, or see to the switches"
    return ResourceExhaustedError(f"no place for job {request.name!r} with {request.slots} slots: {reasons}", hint=hint)


def _most(sites: _Sites) -> int:
    """Return how many slots a job could have there."""
    obstacles = [each.candidate.spine_obstacle if each.is_spine else each.candidate.obstacle for each in sites]
    if any(obstacles) or not all(each.candidate.room.jobs for each in sites):
        return 0
    return min(each.candidate.room.largest_range for each in sites)


def _made_up_mac(switch: SwitchConfig, port: int) -> str:
    """Return the address that a UDP port of the embedded switch gives everybody behind it."""
    if switch.driver != "native":
        raise InvalidRequestError(
            f"no MAC address, which a {switch.driver} switch needs", hint="join with that of the worker's interface"
        )
    return f"02:00:00:{port >> 8:02x}:01:{port & 0xFF:02x}"
