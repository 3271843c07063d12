# SPDX-License-Identifier: Apache-2.0
"""Jobs on several switches, their members, and the database that outlives the controller.

    cluster_controller  its parts, and operators' requests        member_requests   the requests of workers
    liveness            living members, and evictions             answers      the messages and values that they get
    cluster_config      the TOML file                             requests     requests, checked
    lifecycle           the states of a job, pure                 records      a job in the database
    decision            how its stream continues, pure            state_store, job_state_cache   on disk, in memory
    older_databases     jobs of older databases, read
    placement           the switches of a job, pure               membership_builder   the parts of a generation
    job_status          the status of a job, pure                 job_history  the events that led to it
    leases, settings_agreement, tokens   of members               job_mover    jobs that go to another switch
    switch_reconciler   brings one switch to the state of the database; switch_reconcilers all of them
    switch_inventory    what is on one switch: its program, jobs, entries of others
    part_writer         writes and removes the parts of jobs on one switch
    pacing              when the next try is due
    forwarding          layer-2 forwarding on a switch

Importing this package imports protobuf and no grpc.
"""

from __future__ import annotations

from hopsum_controlplane.cluster.answers import Pending
from hopsum_controlplane.cluster.cluster_config import ClusterConfig, PortRule, SwitchConfig, load_config
from hopsum_controlplane.cluster.cluster_controller import ClusterController
from hopsum_controlplane.cluster.records import JobState, MemberPhase
from hopsum_controlplane.cluster.requests import JoinRequest
from hopsum_controlplane.cluster.state_store import StateStore
from hopsum_controlplane.cluster.switch_reconcilers import device_factories, load_pipelines

__all__ = [
    "ClusterConfig",
    "ClusterController",
    "JobState",
    "JoinRequest",
    "MemberPhase",
    "Pending",
    "PortRule",
    "StateStore",
    "SwitchConfig",
    "device_factories",
    "load_config",
    "load_pipelines",
]
