# SPDX-License-Identifier: Apache-2.0
"""Entries of control Admit: which packets belong to the service, to a job, to a worker."""

from __future__ import annotations

from hopsum_controlplane.addresses import ipv4_to_int
from hopsum_controlplane.entries import TableEntry
from hopsum_controlplane.jobs import Job, SwitchEndpoint

SWITCH_ADDRESS = "switch_address"
JOBS = "jobs"
WORKERS = "workers"


def switch_address(switch: SwitchEndpoint) -> TableEntry:
    """Build the entry that makes packets to the switch's address the service's."""
    return TableEntry(SWITCH_ADDRESS, {"address": ipv4_to_int(switch.ip)}, "local")


def jobs(job: Job) -> list[TableEntry]:
    """Build the entry that admits the epoch: the job is live while it stands."""
    params = {
        "job_index": job.job_index,
        "slot_base": job.slot_base,
        "slots": job.slots,
        "quorum": job.quorum,
        "group": job.group,
    }
    return [TableEntry(JOBS, {"epoch": job.epoch}, "job", params)]


def workers(job: Job) -> list[TableEntry]:
    """Build one entry per worker, binding the rank to its port and source address."""
    return [
        TableEntry(
            WORKERS,
            {"epoch": job.epoch, "worker": worker.rank},
            "admit",
            {
                "worker_bit": 1 << worker.rank,
                "port": worker.port,
                "address": ipv4_to_int(worker.ip),
                "udp_port": worker.udp_port,
            },
        )
        for worker in job.spec.workers
    ]
