# SPDX-License-Identifier: Apache-2.0
"""What a worker has to know of its job, as a JSON file::

  {"job": name, "epoch": int, "slots": int, "window": int, "quorum": int, "table": [16 ints] or null,
   "table16": [16 ints] or null, "wire_version": int, "switch": {"ip": str, "udp_port": int},
   "workers": [{"rank": int, "ip": str, "udp_port": int, "send_to": {"ip": str, "udp_port": int},
                "side_port": int, where it has one}, ...]}

`switch` is the source of results; `send_to` is where this worker sends to: the same, unless the switch
listens on ordinary UDP sockets. `window` is how many packets a worker should have in flight at most, at
most `slots`. `side_port` is the TCP port where a worker's peers reach it to fetch results that it holds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hopsum.wire import WIRE_VERSION
from hopsum_controlplane.errors import ControlPlaneError
from hopsum_controlplane.files import write_atomically
from hopsum_controlplane.jobs import Job


def membership(
    job: Job, send_to: Mapping[int, tuple[str, int]] | None = None, side_ports: Mapping[int, int] | None = None
) -> dict[str, Any]:
    """Return the membership of a job.

    Args:
        send_to: by rank, the (IPv4, UDP port) that it sends to; the switch's service for the others.
        side_ports: by rank, the TCP port of its side channel; the others have none.
    """
    addresses, sides = send_to or {}, side_ports or {}
    service = (job.switch.ip, job.udp_port)
    workers = sorted(job.spec.workers, key=lambda worker: worker.rank)
    return {
        "job": job.spec.name,
        "epoch": job.epoch,
        "slots": job.slots,
        "window": job.window,
        "quorum": job.quorum,
        "table": None if job.spec.table is None else list(job.spec.table),
        "table16": None if job.spec.table16 is None else list(job.spec.table16),
        "wire_version": WIRE_VERSION,
        "switch": _endpoint(service),
        "workers": [
            {
                "rank": worker.rank,
                **_endpoint((worker.ip, worker.udp_port)),
                "send_to": _endpoint(addresses.get(worker.rank, service)),
                **({"side_port": sides[worker.rank]} if worker.rank in sides else {}),
            }
            for worker in workers
        ],
    }


def write_membership(
    job: Job,
    path: Path,
    send_to: Mapping[int, tuple[str, int]] | None = None,
    side_ports: Mapping[int, int] | None = None,
) -> None:
    """Write the membership of a job atomically, so that a worker that polls for the file reads all of it.

    `send_to` and `side_ports` as for `membership`. Raises ControlPlaneError when the file cannot be written.
    """
    try:
        write_atomically(path, json.dumps(membership(job, send_to, side_ports), indent=2) + "\n")
    except OSError as error:
        raise ControlPlaneError(f"membership cannot be written: {error}", hint="make its folder writable") from error


def _endpoint(address: tuple[str, int]) -> dict[str, Any]:
    return {"ip": address[0], "udp_port": address[1]}
