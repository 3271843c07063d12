# SPDX-License-Identifier: Apache-2.0
"""The control plane: jobs on switches that run the aggregation program.

    cluster            several switches, jobs with members and leases, and the database that outlives the controller
    service, web       the cluster as a gRPC service, and its page and metrics over HTTP
    switch_controller  one switch: one call makes a job, one ends it; losses on purpose
    job_spec           a job's specification, and the job as it is on a switch     trees   jobs over a spine and leaves
    entry_plan, tables the entries of a job, in the steps in which they are written
    entry_transaction  entries written and removed with a memory of both           entries as plain values
    audit              the entries of a switch compared with those that should be there
    resource_allocator job indices, slots and generations                          lanes   the proof of no overflow
    membership_file    a job's membership for its workers, as a file
    devices            one driver file for each target                             bfruntime   of a Tofino switch
    switch_channel     the gRPC channel to a switch                                switch_tls  its TLS
    shell_prompt       p4runtime-shell's prompt

Importing this package imports neither grpc nor protobuf. Opening a device does.
"""

from __future__ import annotations

from hopsum_controlplane.audit import Adoption, Audit, RepairResult
from hopsum_controlplane.errors import ControlPlaneError, WriteError
from hopsum_controlplane.job_spec import Job, JobSpec, LeafEndpoint, ParentEndpoint, SwitchEndpoint, WorkerEndpoint
from hopsum_controlplane.membership_file import job_membership, write_membership
from hopsum_controlplane.resource_allocator import Allocation, FreeCapacity, GenerationAllocator
from hopsum_controlplane.switch_controller import DropStats, SwitchController
from hopsum_controlplane.trees import LeafGroup, TreeJob, create_tree, delete_tree

__all__ = [
    "Adoption",
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
    "WorkerEndpoint",
    "WriteError",
    "create_tree",
    "delete_tree",
    "job_membership",
    "write_membership",
]
