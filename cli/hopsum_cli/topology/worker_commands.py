# SPDX-License-Identifier: Apache-2.0
"""The commands of a network's workers, and their output."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from hopsum_topologies.commands import Event, HostTask, TaskEnded
from hopsum_topologies.description import HOST_INTERFACE, JobPlan, Topology

RENDEZVOUS_PORT: Final = 29500
"""The port of torch.distributed, at the host of rank 0."""


def commands_for(
    topology: Topology, arguments: Sequence[str], memberships: Mapping[str, Path], codec: str
) -> list[HostTask]:
    """Return the command of every worker of every job, with its host and environment. Starts nothing.

    `memberships` are files by host, of jobs that are installed. Workers of other jobs get no variables of hopsum.
    """
    several = len(topology.jobs) > 1
    return [
        HostTask(
            f"{job.name} {rank}" if several else str(rank),
            host,
            tuple(arguments),
            _environment(topology, job, rank, memberships.get(host), codec),
        )
        for job in topology.jobs
        for rank, host in enumerate(job.workers)
    ]


def _environment(topology: Topology, job: JobPlan, rank: int, membership: Path | None, codec: str) -> dict[str, str]:
    settings = {
        "RANK": str(rank),
        "WORLD_SIZE": str(len(job.workers)),
        "LOCAL_RANK": "0",
        "MASTER_ADDR": topology.ip(job.workers[0]),
        "MASTER_PORT": str(RENDEZVOUS_PORT),
        "GLOO_SOCKET_IFNAME": HOST_INTERFACE,
    }
    if membership is not None:
        settings |= {"HOPSUM_URL": f"file://{membership}", "HOPSUM_RANK": str(rank), "HOPSUM_CODEC": codec}
    # Settings of the terminal's user must not reach workers whose job was not made.
    ours = ("HOPSUM_URL", "HOPSUM_RANK", "HOPSUM_CODEC")
    return {name: value for name, value in os.environ.items() if name not in ours} | settings


def print_events(events: Iterable[Event]) -> int:
    """Print the output of workers with the rank in front, and failures, until all have ended.

    Return the highest exit status, 0 without a worker.
    """
    worst = 0
    for event in events:
        if isinstance(event, TaskEnded):
            worst = max(worst, event.status)
            if event.status:
                print(f"hopsum topology: worker {event.label} ended with {event.status}", file=sys.stderr, flush=True)
        else:
            print(f"[{event.label}] {event.text}", file=getattr(sys, event.stream), flush=True)
    return worst
