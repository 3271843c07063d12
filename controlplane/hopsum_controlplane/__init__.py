# SPDX-License-Identifier: Apache-2.0
"""The control plane: jobs on switches that run the aggregation program.

    controller   one call makes a job, one ends it      jobs         what a job is asked for, and given
    membership   what a worker has to know of its job   shell        p4runtime-shell's prompt
    tables       what a job puts on a switch            entries      changes to a switch as plain values
    slots, epochs, lanes   what is allotted and proved  devices      one driver file per target
    losses       the loss simulator of a switch

Importing this package imports neither grpc nor protobuf; opening a device does.
"""

from __future__ import annotations

from hopsum_controlplane.controller import Controller
from hopsum_controlplane.epochs import EpochAllocator
from hopsum_controlplane.errors import ControlPlaneError, WriteError
from hopsum_controlplane.jobs import Job, JobSpec, SwitchEndpoint, WorkerEndpoint
from hopsum_controlplane.losses import Lost
from hopsum_controlplane.membership import membership, write_membership

__all__ = [
    "ControlPlaneError",
    "Controller",
    "EpochAllocator",
    "Job",
    "JobSpec",
    "Lost",
    "SwitchEndpoint",
    "WorkerEndpoint",
    "WriteError",
    "membership",
    "write_membership",
]
