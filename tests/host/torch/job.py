# SPDX-License-Identifier: Apache-2.0
"""A job for worker processes: the oracle behind a UDP socket here, a membership file for them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from hopsum.codec import job_tables, make_codec
from hopsum_controlplane import Job, JobSpec, SwitchEndpoint, WorkerEndpoint, write_membership
from hopsum_controlplane.resource_allocator import SlotRange
from hopsum_oracle.aggregator import Aggregator
from hopsum_topologies.free_port import free_port

from ...support.printed import parse_printed
from ...support.server import LOCALHOST, UdpSwitch, job_for

GENERATION, SLOTS = 5, 32
RANKS_S = 1200.0
"""For all ranks to end: ten times what they need, since machines are shared."""


def thc_tables(workers: int) -> dict[str, tuple[int, ...]]:
    """Return the tables of a job for codec `thc`, with results of 4 bits or with whole sums."""
    tables: dict[str, tuple[int, ...]] = {}
    for codec in ("thc", "thc:result_bits=8"):
        tables |= job_tables(make_codec(codec, workers=workers, backend="numpy"))
    return tables


@contextmanager
def serve_job(path: Path, workers: int) -> Iterator[UdpSwitch]:
    """Write the membership of a job on free ports of loopback, and sum for it."""
    locals_ = [(LOCALHOST, free_port(socket.SOCK_DGRAM)) for _ in range(workers)]
    tables, aggregator = thc_tables(workers), Aggregator()
    aggregator.add_job(job_for(locals_, generation=GENERATION, slots=SLOTS, **tables))
    endpoints = tuple(WorkerEndpoint(rank, 1, "02:00:00:00:01:01", *local) for rank, local in enumerate(locals_))
    spec = JobSpec("ddp", endpoints, SLOTS, tables)
    job = Job(spec, SwitchEndpoint("02:00:00:00:00:aa", "10.0.0.254"), GENERATION, 0, SlotRange(0, SLOTS), 1, SLOTS)
    with UdpSwitch(aggregator) as switch:
        write_membership(job, path, dict.fromkeys(range(workers), switch.address))
        yield switch


def run_ranks(script: Path, folder: Path, argument: str) -> list[dict[str, Any]]:
    """Run `script ARGUMENT RANK 2 MEMBERSHIP STORE` as both ranks of a job; return what they print as JSON."""
    path = folder / "job.json"
    with serve_job(path, 2):
        return run_processes(script, [[argument, str(rank), "2", str(path)] for rank in range(2)], folder)


def run_processes(script: Path, ranks: Sequence[Sequence[str]], folder: Path) -> list[dict[str, Any]]:
    """Run `script ARGUMENTS FOLDER/store` with the arguments of each rank; return what the ranks print as JSON."""
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    with ExitStack() as stack:
        processes = []
        for rank, arguments in enumerate(ranks):
            process = subprocess.Popen(
                [sys.executable, str(script), *arguments, str(folder / "store")],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**environment, "RANK": str(rank)},
            )
            stack.callback(_end, process)
            processes.append(process)
        outputs = [process.communicate(timeout=RANKS_S) for process in processes]
    for process, (_, errors) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, errors
    return [parse_printed(printed) for printed, _ in outputs]


def _end(process: subprocess.Popen[str]) -> None:
    """Kill a rank that is still there, and let nothing of it remain open."""
    with process:
        process.kill()
