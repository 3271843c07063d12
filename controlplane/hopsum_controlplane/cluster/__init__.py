# SPDX-License-Identifier: Apache-2.0
"""Several switches, their jobs, the members of these, and the database that outlive the controller.

    cluster_controller  what is asked for and answered    config     the TOML file
    lifecycle           the states of a job, pure         records    what the database holds of a job
    decision            how its stream goes on, pure      state_store, job_state_cache  the database on disk, in memory
    switch_reconciler   one switch: brings what is installed there to what the database says

Importing this package imports protobuf and no grpc.
"""

from __future__ import annotations

from hopsum_controlplane.cluster.answers import HeartbeatResult, Joined, Pending
from hopsum_controlplane.cluster.cluster_config import ClusterConfig, PortRule, SwitchConfig, load_config
from hopsum_controlplane.cluster.cluster_controller import ClusterController
from hopsum_controlplane.cluster.records import JobState, MemberPhase
from hopsum_controlplane.cluster.requests import JobRequest, JoinRequest
from hopsum_controlplane.cluster.state_store import StateStore
from hopsum_controlplane.cluster.switch_reconcilers import device_factories, pipelines, registrable
from hopsum_controlplane.errors import (
    ClusterConfigError,
    InvalidRequestError,
    JobExistsError,
    ResourceExhaustedError,
    StoreError,
    StoreLockedError,
    SwitchUnavailableError,
    UnauthenticatedError,
    UndecidedError,
    UnknownJobError,
)

__all__ = [
    "ClusterConfig",
    "ClusterConfigError",
    "ClusterController",
    "HeartbeatResult",
    "InvalidRequestError",
    "JobExistsError",
    "JobRequest",
    "JobState",
    "JoinRequest",
    "Joined",
    "MemberPhase",
    "Pending",
    "PortRule",
    "ResourceExhaustedError",
    "StateStore",
    "StoreError",
    "StoreLockedError",
    "SwitchConfig",
    "SwitchUnavailableError",
    "UnauthenticatedError",
    "UndecidedError",
    "UnknownJobError",
    "device_factories",
    "load_config",
    "pipelines",
    "registrable",
]
