# SPDX-License-Identifier: Apache-2.0
"""One job over a tree of switches: a spine, and a leaf for each rack of workers.

    TreeSpec.parts   one description -> the jobs of the spine and of each leaf: pure
    TreeController   the same generation on all switches, made and ended in the order of rule T7

A job's life (rules S1, T7, each switch's own part as in switch_controller.py)

  create   check every part on its switch -> one generation for all -> the spine's job -> the leaves' jobs: live
           any failure: end what was made, the last first
  delete   end the leaves' jobs, then the spine's: no switch admits the generation any more; only then a new one is made
           any failure: go on with the others, then raise; delete again ends what is left

A leaf's number at the spine is the lowest rank of its rack. Codes are looked up at the leaves: only they have tables,
and each is proved for all workers of the tree: it is at the spine that all values meet in a lane.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from hopsum_controlplane.errors import ControlPlaneError
from hopsum_controlplane.job_spec import Job, JobSpec, LeafEndpoint, ParentEndpoint, SwitchEndpoint, WorkerEndpoint
from hopsum_controlplane.membership_file import Address, SideChannels, job_membership
from hopsum_controlplane.resource_allocator import GenerationAllocator
from hopsum_controlplane.switch_controller import SwitchController
from hopsum_wire.generations import Resume
from hopsum_wire.membership import JobMembership


@dataclass(frozen=True)
class LeafGroup:
    """The workers of one leaf, the leaf's port towards the spine, and the spine's port towards the leaf."""

    workers: tuple[WorkerEndpoint, ...]
    uplink: int
    downlink: int


@dataclass(frozen=True)
class TreeSpec:
    """A job over a tree as its user asks for it: as JobSpec, but for quorums.

    `quorum` racks complete a round at the spine, each with the sum of `rack_quorum` of its workers: all if None.
    A packet with FLUSH closes its rack's part with `min_quorum` workers in it, and the round with `min_racks` racks.
    """

    name: str
    racks: tuple[LeafGroup, ...]
    slots: int
    table: tuple[int, ...] | None = None
    table16: tuple[int, ...] | None = None
    quorum: int | None = None
    rack_quorum: int | None = None
    min_quorum: int = 1
    min_racks: int = 1
    table6: tuple[int, ...] | None = None

    @property
    def workers(self) -> tuple[WorkerEndpoint, ...]:
        """Return the workers of all racks, by rank."""
        return tuple(sorted((one for rack in self.racks for one in rack.workers), key=lambda one: one.rank))

    def parts(self, spine: SwitchEndpoint, leaves: Sequence[SwitchEndpoint]) -> tuple[JobSpec, tuple[JobSpec, ...]]:
        """Return the jobs of the spine and of each leaf.

        Raises ControlPlaneError: another number of leaves than of racks, a rack without workers, ranks that are not
        0 .. n - 1.
        """
        self._check(len(leaves))
        below = tuple(
            LeafEndpoint(_number(rack), rack.downlink, leaf.mac, leaf.ip, tuple(one.rank for one in rack.workers))
            for rack, leaf in zip(self.racks, leaves, strict=True)
        )
        top = JobSpec(self.name, (), self.slots, quorum=self.quorum, min_quorum=self.min_racks, leaves=below)
        return top, tuple(self._leaf(rack, spine) for rack in self.racks)

    def _leaf(self, rack: LeafGroup, spine: SwitchEndpoint) -> JobSpec:
        above = ParentEndpoint(_number(rack), rack.uplink, spine.mac, spine.ip, len(self.workers))
        return JobSpec(
            self.name, rack.workers, self.slots, self.table, self.rack_quorum, self.min_quorum, self.table16,
            parent=above, table6=self.table6,
        )  # fmt: skip

    def _check(self, leaves: int) -> None:
        who = f"tree job {self.name!r}"
        if leaves != len(self.racks):
            raise ControlPlaneError(f"{who}: {len(self.racks)} racks on {leaves} leaves", hint="a rack is below a leaf")
        if not all(rack.workers for rack in self.racks):
            raise ControlPlaneError(f"{who}: a rack without workers", hint="leave it out")
        ranks = [worker.rank for worker in self.workers]
        if ranks != list(range(len(ranks))):
            shown = ", ".join(map(str, ranks))
            raise ControlPlaneError(f"{who}: ranks {shown}", hint=f"they are 0 .. {len(ranks) - 1}, each once")


@dataclass(frozen=True)
class TreeJob:
    """A job as it stands on the switches of a tree: one generation, a Job on each."""

    spec: TreeSpec
    spine: Job
    leaves: tuple[Job, ...]

    @property
    def generation(self) -> int:
        """Return the generation, the same on all switches."""
        return self.spine.generation

    @property
    def window(self) -> int:
        """Return how many packets a worker should have in flight at most: what the narrowest switch takes."""
        return min(job.window for job in (self.spine, *self.leaves))

    def membership(
        self,
        rack: int,
        side_channels: SideChannels = "auto",
        *,
        send_to: Mapping[int, Address] | None = None,
        resume: Resume | None = None,
    ) -> JobMembership:
        """Return the membership of the workers of one rack, which know the workers of all racks.

        `quorum` is the fewest workers that complete a round without FLUSH. `send_to` by rank is for workers that do
        not send to the service of their leaf. `resume` and what is raised are as for `job_membership`.
        """
        spec, leaf = self.spec, self.leaves[rack]
        fewest = sorted(job.quorum for job in self.leaves)[: self.spine.quorum]
        everybody = replace(leaf.spec, workers=spec.workers, quorum=sum(fewest), parent=None)
        services = {worker.rank: (job.switch.ip, job.udp_port) for job in self.leaves for worker in job.spec.workers}
        services.update(send_to or {})
        below = {worker.rank: _number(rack) for rack in spec.racks for worker in rack.workers}
        made = replace(leaf, spec=everybody, window=self.window, side_key=self.spine.side_key)
        return job_membership(made, services, side_channels, resume=resume, leaves=below)


class TreeController:
    """Makes and ends jobs over one spine and its leaves, each switch with a Controller of its own. Not thread-safe.

    `generations` allots for all of them: give the Controllers the same one. `clock` gives unix seconds.
    """

    def __init__(
        self,
        spine: SwitchController,
        leaves: Sequence[SwitchController],
        generations: GenerationAllocator,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._spine, self._leaves = spine, tuple(leaves)
        self._generations, self._clock = generations, clock

    def create_job(self, spec: TreeSpec) -> TreeJob:
        """Make a job: when this returns, all switches serve it.

        Raises ControlPlaneError when the description is wrong, with nothing written, when a switch has no room, or when
        one fails. Then what was made of it on other switches is ended, and stays in their `ending` where even that
        fails.
        """
        top, below = spec.parts(self._spine.switch, [leaf.switch for leaf in self._leaves])
        placed = list(zip((self._spine, *self._leaves), (top, *below), strict=True))
        for controller, part in placed:
            controller.check(part)
        generation = self._generations.allot(self._clock())
        made: list[tuple[SwitchController, Job]] = []
        try:
            for controller, part in placed:
                made.append((controller, controller.create_job(part, generation=generation)))
        except BaseException:
            _end_all(made[::-1])
            raise
        jobs = [job for _, job in made]
        return TreeJob(spec, jobs[0], tuple(jobs[1:]))

    def delete_job(self, tree: TreeJob) -> None:
        """End a job: when this returns, no switch has anything of it.

        The workers must have left (rule R3). Raises ControlPlaneError, after all switches were tried, when one failed:
        call again to go on.
        """
        actual = [
            (controller, job)
            for controller, job in zip((*self._leaves, self._spine), (*tree.leaves, tree.spine), strict=True)
            if job in controller.jobs
        ]
        if not actual:
            raise ControlPlaneError(
                f"no tree job {tree.spec.name!r} with generation {tree.generation}", hint="it was deleted"
            )
        failures = _end_all(actual)
        if failures:
            raise failures[0]


def _end_all(made: Sequence[tuple[SwitchController, Job]]) -> list[ControlPlaneError]:
    """End jobs in this order. Return what failed."""
    failures = []
    for controller, job in made:
        try:
            controller.delete_job(job)
        except ControlPlaneError as error:
            failures.append(error)
    return failures


def _number(rack: LeafGroup) -> int:
    return min(worker.rank for worker in rack.workers)
