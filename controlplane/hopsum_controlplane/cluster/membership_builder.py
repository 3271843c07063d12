# SPDX-License-Identifier: Apache-2.0
"""Contents of a generation, and its memberships for workers: pure functions of the database and the configuration.

A job over a tree is `hopsum_controlplane.trees`' TreeJob here. Leaves without workers are left out. A job
over several shards is the same job at each of them, for the workers as each shard's switch sees them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from hopsum_controlplane.cluster.cluster_config import ClusterConfig, LinkConfig, SwitchConfig
from hopsum_controlplane.cluster.records import JobRecord, MemberPhase
from hopsum_controlplane.errors import ClusterConfigError, UnknownJobError
from hopsum_controlplane.job_spec import ALL_OPS, Job, JobSpec
from hopsum_controlplane.membership_file import Address, SideChannels, job_membership
from hopsum_controlplane.trees import LeafGroup, TreeJob, tree_parts
from hopsum_wire import LANE_GROUP_CODES, Op
from hopsum_wire.membership import JobMembership
from hopsum_wire.watch.snapshots import switch_path


class Limits(NamedTuple):
    """The limits that a switch declares.

    max_window: packets that a worker may have in flight, None for as many as the job has slots.
    code_group: number of codes that the program takes as a group.
    ops: operations that the program has.
    """

    max_window: int | None = None
    code_group: int = LANE_GROUP_CODES
    ops: tuple[Op, ...] = ALL_OPS


class Parts(NamedTuple):
    """The jobs of a generation: that of the record's switch, and those of its leaves with workers or further shards."""

    job: Job
    below: Mapping[str, Job]


def switches_of(record: JobRecord) -> tuple[str, ...]:
    """Return the names of a job's switches: its one switch, the leaves of its tree and then the spine, or shards."""
    if record.is_sharded:
        return record.switches
    return (*(branch.switch for branch in record.branches), record.switch)


def leaves_of(record: JobRecord, config: ClusterConfig) -> list[tuple[SwitchConfig, LinkConfig]]:
    """Return the leaves of a job over a tree with their links, an empty list for another job.

    Raises ClusterConfigError when one is not below its spine any more.
    """
    if record.is_sharded:
        return []
    links = {link.leaf: link for link in config.links_below(record.switch)}
    lacking = [branch.switch for branch in record.branches if branch.switch not in links]
    if lacking:
        raise ClusterConfigError(
            f"job {record.name!r} is in the database over {switch_path(switches_of(record), 1)}, and no link of "
            f"{lacking[0]!r} to {record.switch!r} is configured",
            hint="configure it again until the job is deleted",
        )
    return [(config.switch(branch.switch), links[branch.switch]) for branch in record.branches]


def parts_of(record: JobRecord, generation: int, config: ClusterConfig, limits: Mapping[str, Limits]) -> Parts:
    """Build the jobs of a new generation of the waiting members, for each of its switches. Nothing is written.

    `limits` are by switch. Leaves without a waiting member have no part. Raises ControlPlaneError for a tree whose
    waiting members lack a rank.
    """

    def at(name: str, spec: JobSpec) -> Job:
        index, region = record.place(name)
        return Job.build(spec, config.switch(name).endpoint, generation, index, region, **limits[name]._asdict())

    if not record.branches:
        return Parts(at(record.switch, record.next_spec()), {})
    if record.is_sharded:
        further = {
            branch.switch: at(branch.switch, record.next_spec(shard)) for shard, branch in enumerate(record.branches, 1)
        }
        return Parts(at(record.switch, record.next_spec()), further)
    waiting = [(member.leaf, member.endpoint) for member in record.members if member.phase is MemberPhase.WAITING]
    racks: dict[str, LeafGroup] = {}
    for leaf, link in leaves_of(record, config):
        workers = tuple(worker for name, worker in waiting if name == leaf.name)
        if workers:
            racks[leaf.name] = LeafGroup(workers, link.leaf_port, link.spine_port)
    spine, *leaves = (config.switch(name).endpoint for name in (record.switch, *racks))
    top, below = tree_parts(record.spec, tuple(racks.values()), spine, leaves)
    return Parts(at(record.switch, top), {name: at(name, spec) for name, spec in zip(racks, below, strict=True)})


def membership_of(record: JobRecord, rank: int, config: ClusterConfig) -> JobMembership:
    """Return the membership of a job's generation for a worker that is in it.

    Raises UnknownJobError for a job without a generation.
    """
    if record.job is None:
        raise UnknownJobError(f"job {record.name!r} has no generation", hint="join again")
    if record.branches and not record.is_sharded:
        leaves = [branch.job for branch in record.branches if branch.job is not None]
        rack = next(number for number, job in enumerate(leaves) if rank in [w.rank for w in job.spec.workers])
        services, sides = _addresses(record, record.parts, 0, config)
        tree = TreeJob(record.job, tuple(leaves))
        return tree.membership(rack, sides, send_to=services, resume=record.resume)
    first, *further = [_at_shard(record, shard, config) for shard in range(len(record.switches))]
    return replace(first, further_shards=tuple(further))


def _at_shard(record: JobRecord, shard: int, config: ClusterConfig) -> JobMembership:
    """Make the membership of a generation at one shard. All shards have the window of the narrowest."""
    name, resume = record.switches[shard], record.resume
    # A vector's parts go to all shards in step: a wider window at one of them would not help.
    job = replace(record.parts[name], window=record.window)
    if resume is not None:
        resume = replace(resume, further_shards=()) if shard == 0 else resume.further_shards[shard - 1]
    return job_membership(job, *_addresses(record, {name: job}, shard, config), resume=resume)


def _addresses(
    record: JobRecord, parts: Mapping[str, Job], shard: int, config: ClusterConfig
) -> tuple[dict[int, Address], SideChannels]:
    """Look up, by rank, the service that each worker of `parts` (by switch) sends to, and its side channel."""
    services = {
        worker.rank: config.switch(switch).service for switch, job in parts.items() for worker in job.spec.workers
    }
    seats = {
        member.rank: member.seats[shard]
        for member in record.members
        if member.joined_generation == record.generation and member.rank in services
    }
    sides = {rank: (seat.endpoint.ip, seat.side_port) for rank, seat in seats.items() if seat.side_port is not None}
    # Side channels of some workers only would leave results that nobody can fetch: all have one, or none.
    return services, sides if len(sides) == len(services) else False
