# SPDX-License-Identifier: Apache-2.0
"""The membership of a job, made from what the control plane knows, and its file (format: `hopsum_wire.membership`).

With a quorum of all workers the switch has every result until all workers have it. So the workers of a job have side
channels by default where its quorum is smaller: all of them, each at its own address and the TCP port with the number
of its UDP port, which no other worker there has. `side_channels` overrides that, for example where that port is taken,
or where peers talk over another network. Workers whose timing has `flush_after_s` want side channels at any quorum:
FLUSH closes a sum at `min_quorum`.

The key of the side channels, 32 random bytes, is made for each generation. Files are written with mode 0600.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal

from hopsum_controlplane.addresses import ipv4_to_int
from hopsum_controlplane.errors import ControlPlaneError
from hopsum_controlplane.job_spec import MAX_UDP_PORT, Job
from hopsum_wire.generations import Resume
from hopsum_wire.membership import Endpoint, JobMembership, RankEndpoint, format_membership

Address = tuple[str, int]
SideChannels = Mapping[int, Address] | bool | Literal["auto"]
"""By rank, the TCP endpoint of each worker; or True, False, or "auto" as the module says."""
_MAX_TCP_PORT = MAX_UDP_PORT


def job_membership(
    job: Job,
    send_to: Mapping[int, Address] | None = None,
    side_channels: SideChannels = "auto",
    *,
    resume: Resume | None = None,
    leaves: Mapping[int, int] | None = None,
) -> JobMembership:
    """Return the membership of a job for its workers. Nothing is written.

    Args:
        send_to: by rank, the (IPv4, UDP port) that it sends to. Ranks that are left out send to the switch's service.
        side_channels: (IPv4 address, TCP port) of every rank. True: that of its UDP port. False: none. "auto": as True
            if sums may be without a worker, quorum < workers.
        resume: the continuation of the stream of the generations before, None where the stream begins.
        leaves: by rank, the number of the leaf that it is below. Workers at the root are left out.

    Raises:
        ControlPlaneError: side channels of some workers only, of others than the job has, or where none can be.
    """
    addresses, below, sides = send_to or {}, leaves or {}, _side_channels(job, side_channels)
    service = (job.switch.ip, job.udp_port)
    workers = []
    for worker in sorted(job.spec.workers, key=lambda worker: worker.rank):
        side_ip, side_port = sides.get(worker.rank, (None, None))
        workers.append(
            RankEndpoint(
                worker.rank,
                Endpoint(worker.ip, worker.udp_port),
                Endpoint(*addresses.get(worker.rank, service)),
                side_port,
                None if side_ip == worker.ip else side_ip,
                below.get(worker.rank),
            )
        )
    return JobMembership(
        job=job.spec.name,
        generation=job.generation,
        slots=job.slots,
        window=job.window,
        quorum=job.quorum,
        tables=job.spec.tables,
        switch=Endpoint(*service),
        workers=tuple(workers),
        resume=resume,
        code_group=job.code_group,
        ops=frozenset(job.ops),
        side_key=bytes.fromhex(job.side_key) if sides and job.side_key else None,
        ranks=job.spec.ranks if job.spec.ranks > len(workers) else 0,
    )


def write_membership(
    job: Job,
    path: Path,
    send_to: Mapping[int, Address] | None = None,
    side_channels: SideChannels = "auto",
) -> None:
    """Write the membership of a job to a file of mode 0600, atomically, in place of an earlier file.

    A worker that polls for the file reads all of it. `send_to` and `side_channels` are as for `job_membership`. Raises
    ControlPlaneError as `job_membership` does, and when the file cannot be written. Then the old file is untouched,
    unless only the folder could not be synced.
    """
    write_membership_file(job_membership(job, send_to, side_channels), path)


def write_membership_file(membership: JobMembership, path: Path) -> None:
    """Write a membership document to a file of mode 0600, atomically, in place of an earlier file.

    Raises ControlPlaneError when it cannot be written.
    """
    try:
        write_atomically(path, (format_membership(membership, indent=2) + "\n").encode())
    except OSError as error:
        raise ControlPlaneError(f"membership cannot be written: {error}", hint="make its folder writable") from error


def _side_channels(job: Job, wanted: SideChannels) -> dict[int, Address]:
    """Return the side channels by rank, none or one of every worker. Raises ControlPlaneError."""
    workers = {worker.rank: worker for worker in job.spec.workers}
    if wanted == "auto":
        # With a quorum below all workers a result may lack a worker, which then needs it from a peer.
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


def _wrong(job: Job, what: str, hint: str) -> ControlPlaneError:
    return ControlPlaneError(f"job {job.spec.name!r}: {what}", hint=hint)


def write_atomically(path: Path, content: bytes, check: Callable[[Path], None] = lambda written: None) -> None:
    """Write a file of mode 0600 at `path`, in place of an earlier file. A reader sees the old content or the new.

    The content is on disk before the name points to it. `check` is called before that, with the path of the content.
    Raises OSError, or the error of `check`. Then the old file is untouched, except after an OSError of the last step,
    which syncs the folder: then the new one is in place.
    """
    # In the same folder: a rename is atomic within one file system only. mkstemp makes the file with mode 0600.
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(handle, "wb") as file:
            file.write(content)
            file.flush()
            # Content before name: after a power failure the name may else point to an empty file.
            os.fsync(file.fileno())
        check(Path(temporary))
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    # Without it a power failure may bring the old name back.
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
