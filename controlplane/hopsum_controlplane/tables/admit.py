# SPDX-License-Identifier: Apache-2.0
"""Entries of control Admit: which packets belong to a job, and to a worker."""

from __future__ import annotations

from hopsum_controlplane.addresses import ipv4_to_int
from hopsum_controlplane.entries import TableEntry
from hopsum_controlplane.job_spec import Job, WorkerEndpoint

JOBS = "jobs"
WORKERS = "workers"


def jobs(job: Job) -> list[TableEntry]:
    """Build the one entry that admits the generation. The switch serves the job while this entry is installed."""
    params = {
        "job_index": job.job_index,
        "slot_base": job.slot_base,
        "slots": job.slots,
        "quorum": job.quorum,
        "min_quorum": job.spec.min_quorum,
        "group": job.group,
    }
    if job.spec.parent is None:
        return [TableEntry(JOBS, {"generation": job.generation}, "job", params)]
    params["parent_port"] = job.spec.parent.port
    return [TableEntry(JOBS, {"generation": job.generation}, "leaf_job", params)]


def workers(job: Job) -> list[TableEntry]:
    """Build one entry per worker, binding the rank to its port and source address, with its bit of the contributors."""
    return [member(job, worker, 1 << worker.rank) for worker in job.spec.workers]


def member(job: Job, member: WorkerEndpoint, worker_bit: int) -> TableEntry:
    """Build the entry of one member. With `worker_bit` 0 it may PROBE, and its packets never add to a sum."""
    params = {
        "worker_bit": worker_bit,
        "port": member.port,
        "address": ipv4_to_int(member.ip),
        "udp_port": member.udp_port,
    }
    return TableEntry(WORKERS, {"generation": job.generation, "worker": member.rank}, "admit", params)
