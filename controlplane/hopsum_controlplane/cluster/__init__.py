# SPDX-License-Identifier: Apache-2.0
"""Several switches, their jobs, the members of these, and the books on disk that outlive the controller.

    manager    what is asked for and answered       config     the TOML file
    lifecycle  the states of a job, pure            store      the books on disk
    decision   how its stream goes on, pure         ledger     the books in memory
    line       one switch, and what is due there    records    what the books hold of a job

Importing this package imports neither grpc nor protobuf.
"""

from __future__ import annotations

from hopsum_controlplane.cluster.config import ClusterConfig, PortRule, SwitchConfig, load_config
from hopsum_controlplane.cluster.errors import (
    ClusterConfigError,
    InvalidRequestError,
    JobExistsError,
    ResourceExhaustedError,
    StoreError,
    SwitchUnavailableError,
    UnauthenticatedError,
    UnknownJobError,
)
from hopsum_controlplane.cluster.manager import Manager
from hopsum_controlplane.cluster.opening import openers, pipelines
from hopsum_controlplane.cluster.records import Phase, State
from hopsum_controlplane.cluster.requests import JobRequest, JoinRequest
from hopsum_controlplane.cluster.store import Store
from hopsum_controlplane.cluster.views import (
    Beat,
    CreatedJob,
    JobView,
    Joined,
    Located,
    MemberView,
    Pending,
    SwitchView,
)

__all__ = [
    "Beat",
    "ClusterConfig",
    "ClusterConfigError",
    "CreatedJob",
    "InvalidRequestError",
    "JobExistsError",
    "JobRequest",
    "JobView",
    "JoinRequest",
    "Joined",
    "Located",
    "Manager",
    "MemberView",
    "Pending",
    "Phase",
    "PortRule",
    "ResourceExhaustedError",
    "State",
    "Store",
    "StoreError",
    "SwitchConfig",
    "SwitchUnavailableError",
    "SwitchView",
    "UnauthenticatedError",
    "UnknownJobError",
    "load_config",
    "openers",
    "pipelines",
]
