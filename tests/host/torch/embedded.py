# SPDX-License-Identifier: Apache-2.0
"""Jobs at an embedded switch of this test, and scripts that torchrun starts as their ranks."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hopsum_topologies.free_port import free_port
from hopsum_topologies.local_cluster import LocalCluster

from ...support.printed import parse_printed
from .job import RANKS_S, thc_tables

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


@contextmanager
def embedded_jobs(folder: Path, workers: int, jobs: int = 1, **quorums: int) -> Iterator[int]:
    """Run the switch with jobs of so many workers each; memberships are FOLDER/job0.json, ...

    `quorums` are those of JobSpec; with them the workers have side channels. Jobs have the tables of `thc`, with whole
    sums or without. Returns the process id of the switch.
    """
    tables = thc_tables(workers)
    with LocalCluster(workers) as cluster:
        for number in range(jobs):
            places = [[("127.0.0.1", free_port(socket.SOCK_DGRAM))] for _ in range(workers)]
            job = cluster.create_job(f"job{number}", places, tables, sides=bool(quorums), **quorums)
            job.write(folder / f"job{number}.json")
        yield cluster.switch.pid


def torchrun(
    script: Path, *arguments: str, ranks: int, environment: Mapping[str, str] | None = None
) -> tuple[list[dict[str, Any]], str]:
    """Run a script with torchrun; return what it prints as JSON, one object for each rank, and its stderr."""
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1",
        "--nproc-per-node", str(ranks), str(script), *arguments,
    ]  # fmt: skip
    variables = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", **(environment or {})}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=RANKS_S, env=variables)
    assert done.returncode == 0, done.stderr
    figures: list[dict[str, Any]] = parse_printed(done.stdout)
    assert len(figures) == ranks
    return figures, done.stderr
