# SPDX-License-Identifier: Apache-2.0
"""Jobs of benchmarks at the switches of a local cluster, whose workers are a pool of processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hopsum.codec import Codec, job_tables
from hopsum_evaluation.bench.allreduce_worker import Bound
from hopsum_topologies.local_cluster import LocalCluster
from hopsum_topologies.local_job import LocalJob
from hopsum_topologies.worker_pool import WorkerPool
from hopsum_wire import MAX_SLOTS


def window_of(wanted: int, jobs: int) -> int:
    """Return the slots of each of so many jobs at a switch: `wanted`, or an equal share if that is less."""
    return min(wanted, MAX_SLOTS // max(jobs, 1))


def make_job(cluster: LocalCluster, pool: WorkerPool, codec: Codec, slots: int, path: Path) -> LocalJob:
    """Make a job for the sockets that a pool's workers have opened, and send them its membership's path.

    Waits for the workers' messages "bound". Writes the membership to `path`, whose stem is the name of the job. The job
    has side channels, as a controller's jobs have. The caller closes it after its workers.

    Raises WorkerDiedError: a worker has failed, or all are silent.
    """
    bound: list[Bound] = [places for (places,) in pool.gather("bound")]
    tables: dict[str, Any] = job_tables(codec)
    # By rank, the address of the side channel: that of the first socket, at another port.
    sides = {rank: (own[0][0][0], own[0][1]) for rank, own in enumerate(bound)}
    sockets = [[address for address, _ in own] for own in bound]
    job = cluster.create_job(path.stem, sockets, tables, slots=slots, sides=sides)
    pool.send(str(job.write(path)))
    return job
