# SPDX-License-Identifier: Apache-2.0
"""Entries of the replies: to whom a RESULT is copied, and how each copy is addressed."""

from __future__ import annotations

from hopsum_controlplane.addresses import ipv4_to_int, mac_to_int
from hopsum_controlplane.entries import MulticastGroup, Replica, TableEntry, replica_order
from hopsum_controlplane.job_spec import Job, LeafEndpoint, WorkerEndpoint

REWRITE = "rewrite"


def group(job: Job) -> list[MulticastGroup]:
    """Build the job's multicast group: a copy for every worker and leaf, whose instance is its rank or number."""
    replicas = [Replica(worker.port, worker.rank) for worker in job.spec.workers]
    # A leaf gets one copy, and multiplies it for its own workers.
    replicas += [Replica(leaf.port, leaf.number) for leaf in job.spec.leaves]
    return [MulticastGroup(job.group, tuple(sorted(replicas, key=replica_order)))]


def rewrite(job: Job) -> list[TableEntry]:
    """Build one entry per worker and leaf with the addresses of packets to it."""
    workers = [to_member(job, worker.rank, worker, worker.udp_port) for worker in job.spec.workers]
    return workers + [to_member(job, leaf.number, leaf, job.udp_port) for leaf in job.spec.leaves]


def to_member(job: Job, number: int, receiver: WorkerEndpoint | LeafEndpoint, udp_port: int) -> TableEntry:
    """Build the entry with the addresses of packets to one worker or leaf. `number` is its rank or leaf number."""
    params = {
        "src_mac": mac_to_int(job.switch.mac),
        "dst_mac": mac_to_int(receiver.mac),
        "src_ip": ipv4_to_int(job.switch.ip),
        "dst_ip": ipv4_to_int(receiver.ip),
        "dst_port": udp_port,
    }
    return TableEntry(REWRITE, {"generation": job.generation, "worker": number}, "to_worker", params)
