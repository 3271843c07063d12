# SPDX-License-Identifier: Apache-2.0
"""One job over a tree of switches: a spine, and a leaf for each rack of workers.

tree_parts       one specification -> the jobs of the spine and of each leaf: pure
create_tree      the same generation on all switches without a cluster, in the order of rule T7; delete_tree ends it

A cluster makes the same parts, one switch after the other as its database says (`cluster.membership_builder`). A leaf's
number at the spine is the lowest rank of its rack. Codes are looked up at the leaves, and finished sums at the spine.
Each table is proved for all workers of the tree, since all values meet in a lane at the spine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from hopsum_controlplane.errors import ControlPlaneError
from hopsum_controlplane.job_spec import (
    Job,
    JobSpec,
    LeafEndpoint,
    ParentEndpoint,
    SwitchEndpoint,
    WorkerEndpoint,
)
from hopsum_controlplane.lanes import RESULT_CODE_BITS
from hopsum_controlplane.membership_file import Address, SideChannels, job_membership
from hopsum_controlplane.switch_controller import SwitchController
from hopsum_wire.generations import Resume
from hopsum_wire.membership import JobMembership
from hopsum_wire.payload import TABLE_NAMES


@dataclass(frozen=True)
class LeafGroup:
    """The workers of one leaf, the leaf's port towards the spine, and the spine's port towards the leaf."""

    workers: tuple[WorkerEndpoint, ...]
    uplink: int
    downlink: int


def tree_parts(
    spec: JobSpec, racks: Sequence[LeafGroup], spine: SwitchEndpoint, leaves: Sequence[SwitchEndpoint]
) -> tuple[JobSpec, tuple[JobSpec, ...]]:
    """Return the specifications of the spine and of each leaf, in the order of `racks`.

    `spec` has no workers. Its quorum is ignored, because all workers complete a round.

    Raises ControlPlaneError: another number of leaves than of racks, a rack without workers, ranks that are not
    0 .. n - 1.
    """
    who = f"tree job {spec.name!r}"
    if len(leaves) != len(racks):
        raise ControlPlaneError(f"{who}: {len(racks)} racks on {len(leaves)} leaves", hint="a rack is below a leaf")
    if not all(rack.workers for rack in racks):
        raise ControlPlaneError(f"{who}: a rack without workers", hint="leave it out")
    ranks = sorted(worker.rank for rack in racks for worker in rack.workers)
    if ranks != list(range(len(ranks))):
        shown = ", ".join(map(str, ranks))
        raise ControlPlaneError(f"{who}: ranks {shown}", hint=f"they are 0 .. {len(ranks) - 1}, each once")
    below = tuple(
        LeafEndpoint(_lowest(rack.workers), rack.downlink, leaf.mac, leaf.ip, tuple(one.rank for one in rack.workers))
        for rack, leaf in zip(racks, leaves, strict=True)
    )
    everywhere = replace(spec, quorum=None)
    top = replace(everywhere, tables=result_tables(spec), leaves=below)
    above = [ParentEndpoint(_lowest(rack.workers), rack.uplink, spine.mac, spine.ip, len(ranks)) for rack in racks]
    return top, tuple(
        replace(everywhere, workers=rack.workers, parent=parent) for rack, parent in zip(racks, above, strict=True)
    )


def result_tables(spec: JobSpec) -> dict[str, tuple[int, ...]]:
    """Return by name the tables of a job that its spine needs: those with which finished sums are looked up.

    Codes were looked up at the leaves, and sums come up in PARTIAL packets.
    """
    return {TABLE_NAMES[op]: table for op, table in spec.lookups.items() if op in RESULT_CODE_BITS}


@dataclass(frozen=True)
class TreeJob:
    """A job as it is installed on the switches of a tree: one generation, a Job on each switch."""

    spine: Job
    leaves: tuple[Job, ...]

    @property
    def generation(self) -> int:
        """Return the generation, which all switches have in common."""
        return self.spine.generation

    def membership(
        self,
        rack: int,
        side_channels: SideChannels = "auto",
        *,
        send_to: Mapping[int, Address] | None = None,
        resume: Resume | None = None,
    ) -> JobMembership:
        """Return the membership document for the workers of one rack. It has the workers of all racks.

        `rack` is an index of `leaves`. `send_to` by rank is for workers that do not send to the service of their leaf.
        `resume` and the errors are as for `job_membership`.
        """
        leaf = self.leaves[rack]
        workers = tuple(worker for job in self.leaves for worker in job.spec.workers)
        services = {worker.rank: (job.switch.ip, job.udp_port) for job in self.leaves for worker in job.spec.workers}
        services.update(send_to or {})
        below = {worker.rank: _lowest(job.spec.workers) for job in self.leaves for worker in job.spec.workers}
        # The narrowest switch of the tree limits the packets that a worker may have in flight.
        window = min(job.window for job in (self.spine, *self.leaves))
        # Every worker knows all ranks of the tree, and one side key: results are fetched from peers in any rack.
        everybody = replace(leaf.spec, workers=workers, quorum=len(workers), parent=None)
        made = replace(leaf, spec=everybody, window=window, side_key=self.spine.side_key)
        return job_membership(made, services, side_channels, resume=resume, leaves=below)


def create_tree(spec: JobSpec, racks: Sequence[LeafGroup], controllers: Sequence[SwitchController]) -> TreeJob:
    """Make a job over a tree without a cluster: when this returns, all switches serve it.

    Args:
        spec: the job without workers.
        racks: the workers of each leaf.
        controllers: the spine's, then those of the leaves in the order of `racks`.

    Raises ControlPlaneError when the description is wrong, with nothing written, when a switch has no room, or when one
    fails. Then the parts on other switches are deleted. A part that cannot be deleted is in its controller's `ending`.
    """
    spine, *leaves = controllers
    top, below = tree_parts(spec, racks, spine.switch, [leaf.switch for leaf in leaves])
    for controller, part in zip(controllers, (top, *below), strict=True):
        controller.check(part)
    with ExitStack() as undo:
        # Rule T7: the spine has the generation before a leaf admits any worker.
        job = spine.create_job(top)
        undo.callback(spine.delete_job, job)
        made = []
        for leaf, part in zip(leaves, below, strict=True):
            made.append(leaf.create_job(part, generation=job.generation))
            undo.callback(leaf.delete_job, made[-1])
        undo.pop_all()
    return TreeJob(job, tuple(made))


def delete_tree(tree: TreeJob, controllers: Sequence[SwitchController]) -> None:
    """Delete a job of `create_tree`. When this returns, no switch has an entry of it.

    `controllers` are as for `create_tree`. The workers must have left (rule R3). Raises ControlPlaneError when no
    switch has the job, or, after all switches were tried, when one failed. Then call again.
    """
    parts = zip(controllers, (tree.spine, *tree.leaves), strict=True)
    standing = [(controller, job) for controller, job in parts if job in controller.jobs]
    if not standing:
        raise ControlPlaneError(
            f"no tree job {tree.spine.spec.name!r} with generation {tree.generation}", hint="it was deleted"
        )
    with ExitStack() as ending:
        # The last callback comes first: rule T7 removes a generation from the leaves before the spine.
        for controller, job in standing:
            ending.callback(controller.delete_job, job)


def _lowest(workers: Iterable[WorkerEndpoint]) -> int:
    """Return the lowest rank of a rack, which is its leaf's number at the spine."""
    return min(worker.rank for worker in workers)
