# SPDX-License-Identifier: Apache-2.0
"""Entries of the replies: to whom a RESULT is copied, and how each copy is addressed."""

from __future__ import annotations

from hopsum_controlplane.addresses import ipv4_to_int, mac_to_int
from hopsum_controlplane.entries import MulticastGroup, Replica, TableEntry, replica_order
from hopsum_controlplane.jobs import Job

REWRITE = "rewrite"


def group(job: Job) -> list[MulticastGroup]:
    """Build the job's multicast group: a copy for every worker, whose instance is its rank."""
    replicas = (Replica(worker.port, worker.rank) for worker in job.spec.workers)
    return [MulticastGroup(job.group, tuple(sorted(replicas, key=replica_order)))]


def rewrite(job: Job) -> list[TableEntry]:
    """Build one entry per worker and observer with the addresses of what goes to it."""
    return [
        TableEntry(
            REWRITE,
            {"epoch": job.epoch, "worker": worker.rank},
            "to_worker",
            {
                "src_mac": mac_to_int(job.switch.mac),
                "dst_mac": mac_to_int(worker.mac),
                "src_ip": ipv4_to_int(job.switch.ip),
                "dst_ip": ipv4_to_int(worker.ip),
                "dst_port": worker.udp_port,
            },
        )
        for worker in job.spec.members
    ]
