# SPDX-License-Identifier: Apache-2.0
"""Places of a benchmark's switches, and the links through which workers reach them.

fabric   one switch in the middle, with a link of its own for every worker, as a top-of-rack switch has
server   one switch on a host like the workers', behind one link of the same rate
hosts    a switch on every worker's host, each a shard of the job; nothing has more than its host's one link
"""

from __future__ import annotations

import os
import shutil
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from hopsum.codec import Codec, job_tables
from hopsum_controlplane import JobSpec, SwitchController, SwitchEndpoint, job_membership
from hopsum_controlplane.artifacts import compiled_program
from hopsum_controlplane.devices.device import PipelineConfig
from hopsum_controlplane.devices.native import NativeDevice
from hopsum_controlplane.membership_file import write_file
from hopsum_controlplane.resource_allocator import GenerationAllocator
from hopsum_evaluation.bench.allreduce_worker import Bound
from hopsum_switch.management import ManagementClient
from hopsum_topologies import NativeSwitch, Star
from hopsum_topologies.netns import Namespace
from hopsum_topologies.seat import Seat
from hopsum_topologies.switch_testbed import NATIVE_PORT
from hopsum_topologies.worker_pool import WorkerPool
from hopsum_wire import HOPSUM_UDP_PORT, MAX_SLOTS

PLACEMENTS: Final = ("fabric", "server", "hosts")
_MAC: Final = f"02:00:00:00:01:{NATIVE_PORT:02x}"


def links_unavailable() -> str | None:
    """Return why shaped links cannot be made on this machine, or None."""
    if os.geteuid() != 0:
        return "network namespaces, veth pairs and token buckets need root: run it with sudo"
    missing = [name for name in ("ip", "tc") if shutil.which(name) is None]
    return f"{' and '.join(missing)} not found: install iproute2" if missing else None


@dataclass(frozen=True, slots=True)
class PlacedSwitch:
    """A switch process in a namespace.

    service: address that workers send to.
    """

    controller: SwitchController
    service: tuple[str, int]
    pid: int


def hosts_of(placement: str, workers: int) -> int:
    """Count the hosts of a placement, each with a link: the workers, and in placement server the switch's."""
    return workers + (placement == "server")


def switches_of(placement: str, workers: int) -> int:
    """Count the switches of a placement."""
    return workers if placement == "hosts" else 1


def start_switches(
    stack: ExitStack, placement: str, star: Star, workers: int, shards: int | None = None
) -> list[PlacedSwitch]:
    """Start the switches of a placement, one for each shard. The stack ends them. Raises TopologyError.

    shards: number of hosts with a switch, in placement hosts. None: all.
    """
    homes: list[tuple[Namespace, str]] = {
        "fabric": [(star.middle, star.middle_ip)],
        "server": [(star.hosts[-1], star.host_ip(workers))],
        "hosts": [(star.hosts[rank], star.host_ip(rank)) for rank in range(shards or workers)],
    }[placement]
    return [_start(stack, home, ip, number) for number, (home, ip) in enumerate(homes)]


def seats_of(star: Star, switches: list[PlacedSwitch], workers: int) -> list[Seat]:
    """Make the workers' seats, one in each host, towards the first switch."""
    return [
        Seat(rank, NATIVE_PORT, _MAC, star.host_ip(rank), switches[0].service, star.hosts[rank].name)
        for rank in range(workers)
    ]


def window_of(wanted: int, jobs: int) -> int:
    """Return the slots of each of so many jobs at a switch: `wanted`, or an equal share if that is less."""
    return min(wanted, MAX_SLOTS // max(jobs, 1))


@dataclass(slots=True)
class ShardedJobs:
    """Makes jobs as a controller makes them, with side channels. They are spread over all switches, a shard on each.

    The stack removes them.
    """

    stack: ExitStack
    switches: list[PlacedSwitch]
    seats: list[Seat]
    generations: GenerationAllocator

    def create(self, pool: WorkerPool, codec: Codec, slots: int, path: Path) -> None:
        """Make a job for the sockets that the workers of a pool have opened, and send them its membership's path."""
        bound: list[Bound] = [places for (places,) in pool.gather("bound")]
        tables: dict[str, Any] = job_tables(codec)
        # All shards of a job have one generation: a worker tells from it which job a RESULT is of.
        generation = self.generations.allot(time.time())
        memberships = []
        for shard, switch in enumerate(self.switches):
            sockets = {seat.rank: own[shard] for seat, own in zip(self.seats, bound, strict=True)}
            endpoints = tuple(seat.endpoint(sockets[seat.rank][0]) for seat in self.seats)
            sides = {rank: (address[0], port) for rank, (address, port) in sockets.items()}
            spec = JobSpec(path.stem, endpoints, slots, **tables)
            job = switch.controller.create_job(spec, generation=generation)
            self.stack.callback(switch.controller.delete_job, job)
            memberships.append(job_membership(job, {seat.rank: switch.service for seat in self.seats}, sides))
        first, *further = memberships
        write_file(replace(first, further_shards=tuple(further)), path)
        pool.send(str(path))


def _start(stack: ExitStack, home: Namespace, ip: str, number: int) -> PlacedSwitch:
    program = compiled_program()
    endpoint = SwitchEndpoint(f"02:00:00:00:00:{0xFE - number:02x}", f"192.0.2.{number + 1}")
    switch = stack.enter_context(NativeSwitch(*program, namespace=home, grpc="unix"))
    device = stack.enter_context(NativeDevice(switch.address, switch.device_id))
    device.set_pipeline_config(PipelineConfig.load(*program))
    management = stack.enter_context(ManagementClient(switch.address))
    bound = management.bind_udp(NATIVE_PORT, f"{ip}:0", f"{endpoint.ip}:{HOPSUM_UDP_PORT}")
    return PlacedSwitch(SwitchController(device, endpoint), (ip, int(bound.rpartition(":")[2])), switch.process.pid)
