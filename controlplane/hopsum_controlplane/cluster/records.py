# SPDX-License-Identifier: Apache-2.0
"""A job in the database and its members, as values. `lifecycle` has what their states and phases mean."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from hopsum_controlplane.cluster.decision import Report
from hopsum_controlplane.job_spec import Job, JobSpec, WorkerEndpoint
from hopsum_controlplane.resource_allocator import SlotRange
from hopsum_wire.generations import Resume

FINISHED = "all its workers have left"
"""Reason of the end of a generation whose workers have done their work."""


class JobState(enum.Enum):
    """The state of a job. `lifecycle` has the transitions. The values are in the database."""

    FORMING = "forming"
    INSTALLING = "installing"
    RUNNING = "running"
    CHANGING = "changing"
    ENDING = "ending"


class MemberPhase(enum.Enum):
    """The phase of a member. `lifecycle` has the transitions. The values are in the database."""

    WAITING = "waiting"
    IN = "in"
    OVER = "over"
    LEFT = "left"
    LOST = "lost"


LEASED = (MemberPhase.WAITING, MemberPhase.IN, MemberPhase.OVER)
"""The phases in which a member has a lease, which silence ends."""


class ShardSeat(NamedTuple):
    """The place of a member at one shard of its job, and its TCP port for peers there, None for none."""

    endpoint: WorkerEndpoint
    side_port: int | None


@dataclass(frozen=True)
class Member:
    """A member of a job: a worker, as it joined.

    endpoint, side_port: its place at shard 0, and its TCP port for peers there.
    incarnation: 16 bytes that its process drew once. secret_digest: of the secret that the controller gave it.
    version: of its hopsum.
    joined_generation: the last generation that it was let into, 0 for none.
    notified_generation: the last generation that it may know of, because the controller has answered with it or was
        about to; 0 for none.
    report: the results that it holds of that generation, None before it reports.
    why: the reason why it was evicted, empty for silence.
    leaf: the switch of a tree that it sends to, empty elsewhere.
    settings: names and values that all workers of the job need to have in common, by name.
    further: its places at the job's shards 1 .. k - 1.
    """

    endpoint: WorkerEndpoint
    side_port: int | None
    incarnation: bytes = field(repr=False)
    secret_digest: bytes = field(repr=False)
    version: str = ""
    phase: MemberPhase = MemberPhase.WAITING
    joined_generation: int = 0
    notified_generation: int = 0
    report: Report | None = field(default=None, repr=False)
    why: str = ""
    leaf: str = ""
    settings: tuple[tuple[str, str], ...] = ()
    further: tuple[ShardSeat, ...] = ()

    @property
    def seats(self) -> tuple[ShardSeat, ...]:
        """Return the member's seats, by shard."""
        return (ShardSeat(self.endpoint, self.side_port), *self.further)

    @property
    def endpoints(self) -> tuple[WorkerEndpoint, ...]:
        """Return the member's endpoints, by shard."""
        return tuple(seat.endpoint for seat in self.seats)

    def with_seat(self, shard: int, seat: ShardSeat) -> Member:
        """Return a copy of the member with another place at a shard that it has, from 0."""
        if shard == 0:
            return replace(self, endpoint=seat.endpoint, side_port=seat.side_port)
        further = (*self.further[: shard - 1], seat, *self.further[shard:])
        return replace(self, further=further)

    @property
    def rank(self) -> int:
        """Return the member's rank."""
        return self.endpoint.rank


@dataclass(frozen=True)
class BranchAssignment:
    """A further switch of a job, and the job's place there: a leaf of a tree, or one of shards 1 .. k - 1.

    `job` is this switch's part of the record's generation: its entries are on the switch, or may be. None in FORMING,
    and at a leaf without workers.
    """

    switch: str
    job_index: int
    region: SlotRange
    job: Job | None = None


@dataclass(frozen=True)
class JobRecord:
    """A job in the database.

    spec: the job as its user asked for it, without workers.
    token_digest: of the token that members join with. earlier_token_digest: of the token before that one, while both
        are valid; else empty.
    switch, job_index, region: its place. Over a tree it is the spine's, over several shards that of shard 0.
    state, reason: its state, and why the last generation ended, empty before the first end.
    job: the generation whose entries are, or may be, on `switch`; None in FORMING. Over a tree it is the spine's part.
    members: in the order of ranks. retired: incarnations that left or were replaced, the last ones.
    resume: the continuation of the stream in `job`, None where it begins there. newcomers: that of the last generation
        that ran and had newcomers, None where there was none since the stream began.
    branches: the leaves of a tree, or the shards 1 .. k - 1 in order; empty on one switch.
    confirmed: switches that have done what the state wants: they hold all entries in INSTALLING, and none any more in
        CHANGING and ENDING; empty on one switch.
    departed: switches that the job has moved away from, where entries of an older generation are, or may be.
    absent: ranks that the generation began without, and those that the next one does not wait for.
    """

    spec: JobSpec
    token_digest: bytes = field(repr=False)
    switch: str
    job_index: int
    region: SlotRange
    state: JobState = JobState.FORMING
    job: Job | None = None
    reason: str = ""
    members: tuple[Member, ...] = ()
    retired: tuple[bytes, ...] = field(default=(), repr=False)
    resume: Resume | None = field(default=None, repr=False)
    newcomers: Resume | None = field(default=None, repr=False)
    branches: tuple[BranchAssignment, ...] = ()
    confirmed: tuple[str, ...] = ()
    departed: tuple[BranchAssignment, ...] = ()
    earlier_token_digest: bytes = field(default=b"", repr=False)
    absent: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """Return the job's name."""
        return self.spec.name

    @property
    def generation(self) -> int:
        """Return the generation whose entries may be on a switch, or 0 for none."""
        return 0 if self.job is None else self.job.generation

    @property
    def is_sharded(self) -> bool:
        """Return whether the job's switches are shards, side by side, and not a tree."""
        return self.spec.shards > 1

    @property
    def switches(self) -> tuple[str, ...]:
        """Return the names of the job's switches: one, or a spine and then its leaves, or the shards in order."""
        return (self.switch, *(branch.switch for branch in self.branches))

    @property
    def places(self) -> tuple[str, ...]:
        """Return `switches`, and the switches that the job has left and where its slots are not free yet."""
        return (*self.switches, *(left.switch for left in self.departed))

    def leftover(self, switch: str) -> Job | None:
        """Return the job whose entries are, or may be, on a switch that the job has left; None for another switch."""
        return next((left.job for left in self.departed if left.switch == switch), None)

    @property
    def parts(self) -> dict[str, Job]:
        """Return by switch the job whose entries are there, or may be, without those that are confirmed gone."""
        everywhere = ((self.switch, self.job), *((branch.switch, branch.job) for branch in self.branches))
        gone = self.confirmed if self.state in (JobState.CHANGING, JobState.ENDING) else ()
        return {switch: job for switch, job in everywhere if job is not None and switch not in gone}

    @property
    def window(self) -> int:
        """Return the most packets that a worker of the generation may have in flight, 0 without a generation."""
        return min((job.window for job in (self.job, *(branch.job for branch in self.branches)) if job), default=0)

    @property
    def next_switches(self) -> tuple[str, ...]:
        """Return the switches at which the state wants something done now, in the order of rule T7. Empty for nothing.

        A generation is written to the spine first, and then to the leaves. It is removed from the leaves first. For
        shards the order does not matter. It is the same, with shard 0 in the spine's place.
        """
        if self.ready:
            return (self.switch,)
        if self.state not in (JobState.INSTALLING, JobState.CHANGING, JobState.ENDING):
            return ()
        if self.state is JobState.INSTALLING and self.switch not in self.confirmed:
            return (self.switch,)
        # A job that was deleted while only departed switches are left to clear has no generation.
        if self.job is None:
            return ()
        leaves = [branch.switch for branch in self.branches if branch.job and branch.switch not in self.confirmed]
        return tuple(leaves) or ((self.switch,) if self.switch not in self.confirmed else ())

    def place(self, switch: str) -> tuple[int, SlotRange]:
        """Return job index and slots on one of `places`. Raises ValueError for another switch."""
        if switch == self.switch:
            return self.job_index, self.region
        (found,) = (each for each in (*self.branches, *self.departed) if each.switch == switch)
        return found.job_index, found.region

    @property
    def missing_ranks(self) -> tuple[int, ...]:
        """Return the ranks that the next generation waits for: neither waiting nor `absent`. Empty in INSTALLING.

        While a generation runs these are its members too.
        """
        if self.state is JobState.INSTALLING:
            return ()
        awaited = {member.rank for member in self.members if member.phase is MemberPhase.WAITING} | {*self.absent}
        return tuple(rank for rank in range(self.spec.ranks) if rank not in awaited)

    @property
    def gone_ranks(self) -> tuple[int, ...]:
        """Return those of `missing_ranks` without a member: never joined, left, or evicted."""
        there = {member.rank for member in self.members if member.phase in LEASED}
        return tuple(rank for rank in self.missing_ranks if rank not in there)

    @property
    def spared_ranks(self) -> tuple[int, ...]:
        """Return `gone_ranks` where the next generation can begin without them (M3), else an empty tuple."""
        there = [member for member in self.members if member.phase in LEASED]
        # In CHANGING too: a worker that asks then must not hear that somebody has to take a place.
        enough = self.state in (JobState.CHANGING, JobState.FORMING) and len(there) >= self.spec.least_workers
        return self.gone_ranks if enough and self.spec.min_workers is not None else ()

    @property
    def finished(self) -> bool:
        """Return whether the last generation ended because all its workers have left, none of them lost."""
        return self.reason == FINISHED

    @property
    def ready(self) -> bool:
        """Return whether the job's next generation can begin: in FORMING, with all workers that it waits for."""
        waiting = [member for member in self.members if member.phase is MemberPhase.WAITING]
        # M3: of those that are not waited for some may have come, and others gone.
        return self.state is JobState.FORMING and not self.missing_ranks and len(waiting) >= self.spec.least_workers

    @property
    def quorum(self) -> int:
        """Return the number of workers that complete a sum: that of the specification, or all of the generation.

        Without a generation these are as many as the job has ranks.
        """
        if self.spec.quorum is not None:
            return self.spec.quorum
        # M1: all workers of the generation.
        return self.spec.ranks if self.job is None else self.job.spec.total

    @property
    def live_workers(self) -> int:
        """Return the number of workers of the generation that are not lost, also of those that have left."""
        phases = [m.phase for m in self.members if m.joined_generation == self.generation]
        return phases.count(MemberPhase.IN) + phases.count(MemberPhase.LEFT)

    def member(self, rank: int) -> Member | None:
        """Return the member of a rank, None without one."""
        return next((member for member in self.members if member.rank == rank), None)

    def next_spec(self, shard: int = 0) -> JobSpec:
        """Return the job's specification with the endpoints at a shard, from 0, of the members that wait."""
        waiting = (member for member in self.members if member.phase is MemberPhase.WAITING)
        return replace(self.spec, workers=tuple(member.endpoints[shard] for member in waiting))
