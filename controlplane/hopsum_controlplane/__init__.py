# SPDX-License-Identifier: Apache-2.0
"""The control plane: jobs on switches that run the aggregation program.

    switch_controller  one call makes a job, one ends it      jobs         what a job is asked for, and given
    audit        what stands, held against what should  adoption     jobs that a new controller found running
    membership   what a worker has to know of its job   shell        p4runtime-shell's prompt
    tables       what a job puts on a switch            plan         all of it, in the order of writing
    entries      changes to a switch as plain values    entry_transaction  written and removed with a memory of both
    resource_allocator, slots, generations, lanes   what is allocated and checked
    devices      one driver file per target             drop_simulator  losses on purpose at a switch
    trees        one job over a spine and its leaves

Importing this package imports neither grpc nor protobuf. Opening a device does.
"""

from __future__ import annotations

from hopsum_controlplane.audit import Adoption, AdoptionStatus, Audit, RepairResult
from hopsum_controlplane.errors import ControlPlaneError, WriteError
from hopsum_controlplane.job_spec import Job, JobSpec, LeafEndpoint, ParentEndpoint, SwitchEndpoint, WorkerEndpoint
from hopsum_controlplane.membership_file import job_membership, write_membership
from hopsum_controlplane.resource_allocator import Allocation, FreeCapacity, GenerationAllocator
from hopsum_controlplane.switch_controller import DropStats, SwitchController
from hopsum_controlplane.trees import LeafGroup, TreeJob, TreeSpec, create_tree, delete_tree

__all__ = [
    "Adoption",
    "AdoptionStatus",
    "Allocation",
    "Audit",
    "ControlPlaneError",
    "DropStats",
    "FreeCapacity",
    "GenerationAllocator",
    "Job",
    "JobSpec",
    "LeafEndpoint",
    "LeafGroup",
    "ParentEndpoint",
    "RepairResult",
    "SwitchController",
    "SwitchEndpoint",
    "TreeJob",
    "TreeSpec",
    "WorkerEndpoint",
    "WriteError",
    "create_tree",
    "delete_tree",
    "job_membership",
    "write_membership",
]
