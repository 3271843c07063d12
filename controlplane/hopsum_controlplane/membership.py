# SPDX-License-Identifier: Apache-2.0
"""What a worker has to know of its job, as a JSON file::

  {"job": name, "epoch": int, "slots": int, "window": int, "quorum": int, "table": [16 ints] or null,
   "table16": [16 ints] or null, "wire_version": int, "switch": {"ip": str, "udp_port": int},
   "workers": [{"rank": int, "ip": str, "udp_port": int, "send_to": {"ip": str, "udp_port": int},
                "leaf": int where it is below a leaf of a tree,
                "side_port": int and "side_ip": str, each where there is one}, ...],
   "code_group": int, left out where it is 512,
   "ops": [names], left out where the switch sums by all operations,
   "side_key": 64 hexadecimal digits, where workers have side channels,
   "resume": null, or left out, or {"base": int, "start": int or null, "start_epoch": int, "allreduces": int or null,
              "replaced": [ranks], "decided": [{"first": int, "end": int, "ranks": [int, ...]}, ...]}}

`switch` is the source of results; `send_to` is where this worker sends to: the same, unless the switch
listens on ordinary UDP sockets. `window` is how many packets a worker should have in flight at most, at
most `slots`. `leaf` is the leaf's number: a leaf knows what came from the workers below it, and of nobody else.

`code_group` is how many 4-bit codes the switch's program takes as a group (see `hopsum_wire.payload`): 512 on software
switches, what half a pass consumes on Tofino. It concerns who packs codes, not lanes.

`ops` are the operations of the switch's program, in the order of their numbers. A worker whose codec needs another one
says so before it sends; the switch would drop its packets.

`resume` is there where the job has had an epoch before, and says how its stream goes on: see
`hopsum_controlplane.cluster.decision`.

`side_port` is the TCP port where a worker's peers reach it, at `side_ip` or else `ip`, to fetch results that the
switch no longer has. With a quorum of all workers it has every result until all of them do, so the workers of a job
have side channels by default where its quorum is smaller: all of them, each at its own address and the TCP port with
the number of its UDP port, which no other worker there has. `side_channels` says otherwise, for example where that port
is taken, or peers talk over another network. Workers whose timing has `flush_after_s` want them at any quorum: FLUSH
closes a sum at `min_quorum`.

`side_key` are 32 random bytes, made for this epoch: who knows them is a member of it on side channels. So the file is
a secret of the job's workers, and is written with mode 0600.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from hopsum_controlplane.addresses import ipv4_to_int
from hopsum_controlplane.errors import ControlPlaneError
from hopsum_controlplane.files import write_atomically
from hopsum_controlplane.jobs import ALL_OPS, MAX_UDP_PORT, Job
from hopsum_wire import LANE_GROUP_CODES, WIRE_VERSION

Address = tuple[str, int]
SideChannels = Mapping[int, Address] | bool | Literal["auto"]
"""(IPv4 address, TCP port) by rank; True: those of the UDP port; "auto": that if quorum < workers; False: none."""
_MAX_TCP_PORT = MAX_UDP_PORT


def membership(
    job: Job,
    send_to: Mapping[int, Address] | None = None,
    side_channels: SideChannels = "auto",
    *,
    resume: Mapping[str, Any] | None = None,
    leaves: Mapping[int, int] | None = None,
) -> dict[str, Any]:
    """Return the membership of a job.

    Args:
        send_to: by rank, the (IPv4, UDP port) that it sends to; the switch's service for the others.
        side_channels: (IPv4 address, TCP port) of every rank; True: that of its UDP port; False: none; "auto": as True
            if sums may be without a worker, quorum < workers.
        resume: how the stream of an epoch before goes on, as in the document.
        leaves: by rank, the number of the leaf that it is below; none of the workers that a root has itself.

    Raises:
        ControlPlaneError: side channels of some workers only, of others than the job has, or where none can be.
    """
    addresses, below, sides = send_to or {}, leaves or {}, _side_channels(job, side_channels)
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
                **({"leaf": below[worker.rank]} if worker.rank in below else {}),
                **(_side(worker.ip, sides[worker.rank]) if sides else {}),
            }
            for worker in workers
        ],
        **({} if job.code_group == LANE_GROUP_CODES else {"code_group": job.code_group}),
        **({} if job.ops == ALL_OPS else {"ops": [op.name for op in job.ops]}),
        **({"side_key": job.side_key} if sides and job.side_key else {}),
        **({} if resume is None else {"resume": dict(resume)}),
    }


def write_membership(
    job: Job,
    path: Path,
    send_to: Mapping[int, Address] | None = None,
    side_channels: SideChannels = "auto",
) -> None:
    """Write the membership of a job atomically, so that a worker that polls for the file reads all of it.

    `send_to` and `side_channels` as for `membership`, which says what is refused; nothing is written then. Raises
    ControlPlaneError also when the file cannot be written.
    """
    write_document(membership(job, send_to, side_channels), path)


def write_document(document: Mapping[str, Any], path: Path) -> None:
    """Write a membership that is made already, as `write_membership`. Raises ControlPlaneError where it cannot be."""
    try:
        write_atomically(path, json.dumps(document, indent=2) + "\n")
    except OSError as error:
        raise ControlPlaneError(f"membership cannot be written: {error}", hint="make its folder writable") from error


def _side_channels(job: Job, wanted: SideChannels) -> dict[int, Address]:
    """Return the side channels by rank, none or one of every worker. Raises ControlPlaneError."""
    workers = {worker.rank: worker for worker in job.spec.workers}
    if wanted == "auto":
        wanted = job.quorum < len(workers)
    if isinstance(wanted, bool):
        return {rank: (worker.ip, worker.udp_port) for rank, worker in workers.items()} if wanted else {}
    assert not isinstance(wanted, str), "the one word was replaced"
    if wanted.keys() != workers.keys():
        raise _wrong(
            job, f"side channels of ranks {sorted(wanted)}, workers of ranks {sorted(workers)}", "all have one, or none"
        )
    for rank, (ip, port) in wanted.items():
        ipv4_to_int(ip)
        if not 1 <= port <= _MAX_TCP_PORT:
            raise _wrong(job, f"side channel of rank {rank} at TCP port {port}", f"ports are 1 .. {_MAX_TCP_PORT}")
    (ip, port), times = Counter(wanted.values()).most_common(1)[0]
    if times > 1:
        raise _wrong(job, f"{times} side channels at {ip}:{port}", "give each worker there a TCP port of its own")
    return dict(wanted)


def _side(own_ip: str, address: Address) -> dict[str, Any]:
    ip, port = address
    return {"side_port": port, **({"side_ip": ip} if ip != own_ip else {})}


def _wrong(job: Job, what: str, hint: str) -> ControlPlaneError:
    return ControlPlaneError(f"job {job.spec.name!r}: {what}", hint=hint)


def _endpoint(address: tuple[str, int]) -> dict[str, Any]:
    return {"ip": address[0], "udp_port": address[1]}
