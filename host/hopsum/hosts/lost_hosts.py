# SPDX-License-Identifier: Apache-2.0
"""`hosts://?min_workers=N`: the job continues without a lost host, and its shard moves to a switch of another host.

Rank 0, which has the controller, watches the hosts. Each host has spare switches, so that any N hosts have one for
every shard. When the controller gives up a rank, the switches on its host are lost too, so their shards move. A lost
rank that is started again finds the name of the past meeting, and its values.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from hopsum.meeting import Meeting
from hopsum.rpc.channel import Channel, ControllerAddress, ControllerError
from hopsum.rpc.jobs_client import JobsClient
from hopsum_wire.control import control_pb2 as pb

_LOOK_S: Final = 0.25
"""Seconds between two looks at the job, as often as the controller looks at its leases."""
_REPLACE_S: Final = 5.0
MAX_SWITCHES: Final = 254
"""Switches of one job: each has an address of its own in TEST-NET-1."""
_log: Final = logging.getLogger(__name__)


def spare_switches(hosts: int, least_hosts: int) -> int:
    """Return the number of spare switches of each host, so that any `least_hosts` hosts have a switch for each shard.

    A host's own switch is not counted.
    """
    return -(-hosts // least_hosts) - 1


def replace_s(lease_s: float) -> float:
    """Return the seconds for which a generation waits for ranks that have not joined: a quarter lease, at most 5 s."""
    # The first generation of a job begins after this time without ranks that have not joined yet, so it is longer than
    # the ranks' way from their meeting into the job. A rank is known to be lost 2 s after its process, and the job is
    # to continue within a lease.
    return min(_REPLACE_S, lease_s / 4)


def watch_hosts(meeting: Meeting, target: str, secret: str, job: str, owners: dict[str, int]) -> Callable[[], None]:
    """Start a thread that moves the shards of lost hosts to spare switches. Return the function that stops the thread.

    The thread also admits restarted ranks to the meeting, and sets `meeting.absent`. It logs each move. Errors of the
    controller are logged, and tried again.

    Args:
        target: the controller's address, HOST:PORT.
        secret: the token of its administrator.
        job: the name of the hosts' job. An administrator may make others there.
        owners: by name of each switch, the rank on its host.
    """
    over = threading.Event()
    gone, told = set[int](), set[str]()

    def look(jobs: JobsClient) -> None:
        # The list has no counters: to read those of a switch that is lost takes seconds.
        found = next((each for each in jobs.jobs() if each.name == job), None)
        if found is None:
            raise RuntimeError(f"job {job} is deleted")
        evicted = (each.rank for each in found.members if each.phase == pb.MEMBER_PHASE_LOST)
        meeting.absent = frozenset((*found.absent_ranks, *evicted))
        # For good: a rank that comes again starts no switch.
        gone.update(meeting.absent)
        used = set(found.switches)
        for name in found.switches:
            if owners[name] in gone:
                # Host 0, whose link carries the controller's calls too, comes last.
                fit = (each for each in reversed(owners) if owners[each] not in gone and each not in used)
                to = jobs.move(found.name, name, next(fit, None)).to_switch
                used.add(to)
                _log.warning("rank %d is lost: its shard moves from %s to %s", owners[name], name, to)
        if gone:
            meeting.admit(gone)

    def mind() -> None:
        with Channel(ControllerAddress.of(target, tls=False)) as channel:
            while not over.wait(_LOOK_S):
                try:
                    look(JobsClient(channel, secret))
                # Tried again: the controller may be busy, and the store goes with its process.
                except (ControllerError, RuntimeError, OSError) as error:
                    if str(error) not in told:
                        _log.warning("rank 0 cannot mind the hosts of its job: %s", error)
                    told.add(str(error))

    thread = threading.Thread(target=mind, name="hopsum-hosts", daemon=True)
    thread.start()

    def stop() -> None:
        over.set()
        thread.join()

    return stop
