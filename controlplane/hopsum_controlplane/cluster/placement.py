# SPDX-License-Identifier: Apache-2.0
"""The switches of a job, and the places of its members: pure functions of the configuration and of taken places.

A job gets one switch where one reaches the workers of all networks. Else, or where it is asked for, it goes over a
tree: a spine, and all leaves below it. It goes over several switches side by side, its shards, where that is asked
for. It has room on all of these or on none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from ipaddress import IPv4Address, IPv4Network, collapse_addresses
from typing import NamedTuple

from hopsum_controlplane.audit import ForeignGeneration
from hopsum_controlplane.cluster.cluster_config import ClusterConfig, LinkConfig, SwitchConfig
from hopsum_controlplane.cluster.membership_builder import leaves_of
from hopsum_controlplane.cluster.records import BranchAssignment, JobRecord, ShardSeat
from hopsum_controlplane.cluster.requests import JoinRequest, ShardEndpoint, check_tree
from hopsum_controlplane.errors import ControlPlaneError, InvalidRequestError, ResourceExhaustedError
from hopsum_controlplane.job_spec import JobSpec, WorkerEndpoint
from hopsum_controlplane.resource_allocator import Allocation, FreeCapacity, ResourceAllocator
from hopsum_wire import MAX_JOBS


class SwitchCapacity(NamedTuple):
    """A switch that may get a part of a job: its allocator, and the reasons why it cannot have that part, if any.

    `obstacle` is the reason against the job's workers there, `spine_obstacle` the one against its part on a spine.
    """

    config: SwitchConfig
    allocator: ResourceAllocator
    obstacle: str = ""
    spine_obstacle: str = ""

    @property
    def free_capacity(self) -> FreeCapacity:
        """Return the free part of the switch."""
        return self.allocator.free_capacity

    def as_spine(self) -> SwitchCapacity:
        """Return the switch, with the same allocator, for a spine's part: `spine_obstacle` is its obstacle then."""
        return self._replace(obstacle=self.spine_obstacle)

    def why_not(self, spec: JobSpec) -> str:
        """Return why a part of the job cannot go there, an empty string when it can."""
        free = self.free_capacity
        if self.obstacle:
            return self.obstacle
        if free.jobs == 0:
            return f"all {MAX_JOBS} jobs are taken"
        if free.largest_range < spec.slots:
            of = f"{free.largest_range} of {self.config.slots} slots"
            return f"the largest free range has {of}, {free.slots} are free in all"
        return ""


_Candidates = tuple[SwitchCapacity, ...]
"""The switches that a job needs together: one switch, its shards, or a spine and then its leaves."""


class Placement(NamedTuple):
    """The place of a job: its switch or spine, with its place there, and leaves below the spine or further shards."""

    switch: str
    allocation: Allocation
    branches: tuple[BranchAssignment, ...] = ()


def allocator_from_records(
    config: SwitchConfig, records: Iterable[JobRecord], foreign: Iterable[ForeignGeneration] = ()
) -> ResourceAllocator:
    """Make the allocator of a switch with the places of its records, and of foreign generations, taken.

    `records` all have slots on the switch. The place of a foreign generation that a record has too is the record's.
    Raises ControlPlaneError when the records do not fit the slots of the switch.
    """
    allocator = ResourceAllocator(config.slots)
    for record in records:
        index, region = record.place(config.name)
        try:
            allocator.allocate(region.size, index, region)
        except ControlPlaneError as error:
            raise ControlPlaneError(
                f"job {record.name!r} is in the database with a place that switch {config.name!r} does not have: "
                f"{error.what}",
                hint="configure as many slots as before, or delete the job first",
            ) from error
    for kept in foreign:
        # A restored database may give a record the place of a foreign generation.
        with suppress(ControlPlaneError):
            allocator.allocate(kept.allocation.region.size, *kept.allocation)
    return allocator


def place_job(spec: JobSpec, switches: Sequence[SwitchCapacity], links: Sequence[LinkConfig] = ()) -> Placement:
    """Choose the switches of a new job, and take its slots from the switches' allocators.

    It is the switch that `spec` names, or of those that reach every network of the cluster the one with most free
    slots, the first of equals. Where there is none, or a tree is asked for, the same holds for spines, each with the
    leaves below it: of a tree the switch with the fewest free slots counts. With shards it is the named switches, or
    of those that reach every network the ones with most free slots, in the order of the configuration. Raises
    ResourceExhaustedError or InvalidRequestError saying for every switch why not, and what would fit.
    """
    choices = [_shards(spec, switches, links)] if spec.shards > 1 else _choices(spec, switches, links)
    fitting = [candidates for candidates in choices if not any(candidate.why_not(spec) for candidate in candidates)]
    if not fitting:
        raise _no_room(spec, choices)
    # max() takes the first of equals.
    # A tree is as free as its fullest switch.
    best = max(fitting, key=lambda choice: min(each.free_capacity.slots for each in choice))
    top, *below = [(each.config.name, each.allocator.allocate(spec.slots)) for each in best]
    return Placement(*top, tuple(BranchAssignment(name, *allocation) for name, allocation in below))


def _shards(spec: JobSpec, switches: Sequence[SwitchCapacity], links: Sequence[LinkConfig]) -> _Candidates:
    """Return the switches of a job over several shards. Raises InvalidRequestError and ResourceExhaustedError."""
    by_name = {each.config.name: each for each in switches}
    if spec.shard_switches:
        chosen = [by_name[name] for name in spec.shard_switches]
        bare = [each.config.name for each in chosen if not each.config.ports]
        if bare:
            hint = "a shard is one switch, not the tree below a spine: name switches that have ports"
            raise InvalidRequestError(f"no worker is connected to switch {bare[0]!r}", hint=hint)
        return tuple(chosen)
    flat, lacking = _reaching([(each,) for each in by_name.values()], switches, links)
    reaching = [candidate for (candidate,) in flat]
    if len(reaching) < spec.shards:
        what = f"job {spec.name!r}: {spec.shards} shards, and {len(reaching)} of {len(switches)} switches reach "
        raise InvalidRequestError(
            f"{what}the workers of all networks{''.join(f'; {each}' for each in lacking)}",
            hint="ask for fewer shards, or name the switches that the job's workers are at",
        )
    fitting = [each for each in reaching if not each.why_not(spec)]
    if len(fitting) < spec.shards:
        return tuple(reaching)
    most = sorted(fitting, key=lambda each: -each.free_capacity.slots)[: spec.shards]
    return tuple(each for each in reaching if each in most)


def replacement(
    record: JobRecord, to: str | None, switches: Sequence[SwitchCapacity], links: Sequence[LinkConfig] = ()
) -> SwitchCapacity:
    """Return the switch for a part of a job that moves: `to`, one of `switches`, or the one with most free slots.

    Nothing is allocated. Without `to` the switch reaches all networks of workers, and the job has no slots there.
    Raises InvalidRequestError and ResourceExhaustedError, saying for every switch why not.
    """
    by_name = {each.config.name: each for each in switches}
    if to is not None:
        if to in record.places:
            what = f"job {record.name!r} has slots on switch {to!r} already"
            raise InvalidRequestError(what, hint="name another switch: a shard has a switch of its own")
        if not by_name[to].config.ports:
            raise InvalidRequestError(f"no worker is connected to switch {to!r}", hint="name a switch that has ports")
        others = [by_name[to]]
    else:
        flat, _ = _reaching([(each,) for each in switches], switches, links)
        others = [each for (each,) in flat if each.config.name not in record.places]
    fitting = [each for each in others if not each.why_not(record.spec)]
    if not fitting:
        if not others:
            what = f"job {record.name!r} is on {', '.join(record.places)}, and there is no other switch for it"
            raise ResourceExhaustedError(what, hint="start another switch, or name one (--to-switch)")
        raise _no_room(record.spec, [(each,) for each in others])
    return max(fitting, key=lambda each: each.free_capacity.slots)


def seat_at_switch(seat: ShardSeat, here: SwitchConfig, there: SwitchConfig) -> ShardSeat:
    """Return a member's place at switch `there`, given its place at switch `here`: port and MAC address may change.

    Raises InvalidRequestError as `member_endpoint`.
    """
    at = seat.endpoint
    # The embedded switch gives workers behind a UDP port a made-up MAC address, which is another one at another
    # switch.
    made_up = here.driver == "native" and at.mac == _made_up_mac(here, at.port)
    moved = member_endpoint(ShardEndpoint(at.ip, at.udp_port, None if made_up else at.mac), at.rank, there)
    return ShardSeat(moved, seat.side_port)


def member_endpoint(request: ShardEndpoint, rank: int, switch: SwitchConfig, but: int | None = None) -> WorkerEndpoint:
    """Return the place of a member at the switch port whose network has its IPv4 address. Port `but` is left out.

    `but` is the port towards a spine, None for no port. At an embedded switch a missing MAC address is made up.

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


def place_member(
    record: JobRecord, request: JoinRequest, rank: int, config: ClusterConfig
) -> tuple[WorkerEndpoint, str, tuple[ShardSeat, ...]]:
    """Return a member's endpoint, the leaf of a tree that it is at (else empty), and its seats at further shards.

    Raises InvalidRequestError.
    """
    if record.branches and not record.is_sharded:
        leaf, link = leaf_of(request, leaves_of(record, config))
        return member_endpoint(request.endpoints[0], rank, leaf, link.leaf_port), leaf.name, ()
    first, *further = shard_seats(request, rank, [config.switch(name) for name in record.switches])
    return first.endpoint, "", tuple(further)


def shard_seats(request: JoinRequest, rank: int, switches: Sequence[SwitchConfig]) -> list[ShardSeat]:
    """Return the place of a member at the switch of each shard.

    Raises InvalidRequestError as `member_endpoint`, and for a member that names places at more shards, or at fewer.
    """
    if len(request.endpoints) != len(switches):
        raise InvalidRequestError(
            f"places at {len(request.endpoints)} shards for job {request.job!r}, which has {len(switches)}",
            hint="install the same hopsum on the controller and on all workers",
        )
    return [
        ShardSeat(member_endpoint(each, rank, switch), each.side_port)
        for each, switch in zip(request.endpoints, switches, strict=True)
    ]


def leaf_of(request: JoinRequest, leaves: Sequence[tuple[SwitchConfig, LinkConfig]]) -> tuple[SwitchConfig, LinkConfig]:
    """Return the leaf whose network, the longest of several, has a member's address at shard 0, with its link.

    Raises InvalidRequestError when no leaf has it.
    """
    ip = IPv4Address(request.ip)
    rules = {leaf.name: leaf.rule_of(ip, link.leaf_port) for leaf, link in leaves}
    found = {name: rule.network.prefixlen for name, rule in rules.items() if rule is not None}
    if not found:
        known = "; ".join(f"{leaf.name} {', '.join(map(str, networks_of(leaf, link)))}" for leaf, link in leaves)
        hint = "join from an address of these, or add a rule to a leaf's ports"
        raise InvalidRequestError(
            f"{request.ip} is of no network of the leaves of job {request.job!r}: {known}", hint=hint
        )
    # The longest prefix, where several leaves have the address.
    name = max(found, key=lambda name: found[name])
    return next((leaf, link) for leaf, link in leaves if leaf.name == name)


def networks_of(leaf: SwitchConfig, link: LinkConfig) -> list[IPv4Network]:
    """Return the networks of the workers at a leaf. Those at its port towards the spine are left out."""
    return [rule.network for rule in leaf.ports if rule.port != link.leaf_port]


def _choices(spec: JobSpec, switches: Sequence[SwitchCapacity], links: Sequence[LinkConfig]) -> list[_Candidates]:
    """Return where the job may go. Raises InvalidRequestError."""
    named = [each for each in switches if each.config.name == spec.switch]
    spines = list(dict.fromkeys(link.spine for link in links))
    if spec.switch is not None:
        if not spec.tree and named[0].config.ports:
            return [(named[0],)]
        if spec.switch not in spines:
            hint = f"name a spine: {', '.join(spines)}" if spines else "configure links of leaves and a spine"
            raise InvalidRequestError(f"switch {spec.switch!r} has no leaves below it for a tree", hint=hint)
        spines = [spec.switch]
    lacking: list[str] = []
    if not spec.tree and spec.switch is None:
        flat, lacking = _reaching([(each,) for each in switches], switches, links)
        if flat or not spines:
            return _some(flat, lacking)
    check_tree(spec)
    by_name = {each.config.name: each for each in switches}
    trees = [
        (by_name[spine].as_spine(), *(by_name[link.leaf] for link in links if link.spine == spine)) for spine in spines
    ]
    if spec.switch is not None:
        return trees
    if not trees:
        raise InvalidRequestError(
            "no switch has leaves below it for a tree", hint="configure links of leaves and a spine"
        )
    reaching, also_lacking = _reaching(trees, switches, links)
    return _some(reaching, [*lacking, *also_lacking])


def _reaching(
    choices: Iterable[_Candidates], switches: Sequence[SwitchCapacity], links: Sequence[LinkConfig]
) -> tuple[list[_Candidates], list[str]]:
    """Split `choices`: those that reach all networks of workers, and in words what each of the others lacks."""
    # A network at a link's end belongs to the workers of the switch behind the link.
    ends = {end for link in links for end in link.ends}
    networks = {
        rule.network
        for switch in switches
        for rule in switch.config.ports
        if (switch.config.name, rule.port) not in ends
    }
    reaching, lacking = [], []
    for candidates in choices:
        # Two /25 of a switch reach a /24 of another one.
        reached = list(collapse_addresses(_networks(candidates, links)))
        beyond = (each for each in sorted(networks) if not any(each.subnet_of(known) for known in reached))
        unreached = next(beyond, None)
        if unreached is None:
            reaching.append(candidates)
        else:
            name, below = candidates[0].config.name, len(candidates) > 1
            lacking.append(f"{f'the leaves below {name} lack' if below else f'{name} lacks'} {unreached}")
    return reaching, lacking


def _networks(candidates: _Candidates, links: Sequence[LinkConfig]) -> list[IPv4Network]:
    """Return the networks whose workers a choice has: those of one switch, or of a spine's leaves."""
    if len(candidates) == 1:
        return [rule.network for rule in candidates[0].config.ports]
    by_leaf = {link.leaf: link for link in links}
    leaves = [candidate.config for candidate in candidates[1:]]
    return [network for leaf in leaves for network in networks_of(leaf, by_leaf[leaf.name])]


def _some(reaching: list[_Candidates], lacking: Sequence[str]) -> list[_Candidates]:
    if not reaching:
        raise InvalidRequestError(
            f"no switch reaches the workers of all networks: {'; '.join(lacking)}",
            hint="name the switch that the job's workers are at",
        )
    return reaching


def _no_room(spec: JobSpec, choices: Sequence[_Candidates]) -> ResourceExhaustedError:
    named = {each.config.name: each.why_not(spec) for candidates in choices for each in candidates}
    reasons = "; ".join(f"{name}: {why}" for name, why in named.items() if why)
    # A choice with an obstacle, or without a free job index, takes a job of no size.
    most = max(
        (
            min(each.free_capacity.largest_range for each in candidates)
            for candidates in choices
            if all(each.free_capacity.jobs and not each.obstacle for each in candidates)
        ),
        default=0,
    )
    hint = f"ask for up to {most} slots, or delete a job" if most else "delete a job, or see to the switches"
    if all(any(each.obstacle for each in candidates) for candidates in choices):
        hint = "ask for a job that the switches can have, or see to the switches"
    return ResourceExhaustedError(f"no place for job {spec.name!r} with {spec.slots} slots: {reasons}", hint=hint)


def _made_up_mac(switch: SwitchConfig, port: int) -> str:
    """Return the address that a UDP port of the embedded switch gives all workers behind it."""
    if switch.driver != "native":
        raise InvalidRequestError(
            f"no MAC address, which a {switch.driver} switch needs", hint="join with that of the worker's interface"
        )
    return f"02:00:00:{port >> 8:02x}:01:{port & 0xFF:02x}"
