# SPDX-License-Identifier: Apache-2.0
"""The testbed: eight switch ports, the switch's address, and the places of workers and stations.

workers of all jobs, several behind one port        stations: plain hosts, one behind each port
      \\____  port 0 .. port 7  ____/
                 switch 02:00:00:00:00:fe 10.0.0.254
"""

from __future__ import annotations

from collections.abc import Sequence

from hopsum_controlplane.job_spec import LeafEndpoint, ParentEndpoint, SwitchEndpoint, WorkerEndpoint
from hopsum_wire import MAX_WORKERS

PORTS = tuple(range(8))
SWITCH = SwitchEndpoint(mac="02:00:00:00:00:fe", ip="10.0.0.254")
BROADCAST_MAC = (1 << 48) - 1
UNKNOWN_MAC = 0x02_00_00_00_0F_FF


def station_mac(port: int) -> str:
    """Return the MAC address of the plain host at a port."""
    return f"02:00:00:00:01:{port:02x}"


def barrier_mac(port: int) -> str:
    """Return the MAC address that forwards to `port` and that nothing but barrier frames uses."""
    return f"02:00:00:00:0b:{port:02x}"


def make_workers(count: int, *, job: int = 0, ports: Sequence[int] = PORTS) -> tuple[WorkerEndpoint, ...]:
    """Return `count` workers, no address of one shared with another or with another `job`, dealt out to `ports`."""
    # An address has the number of its job in it, so that no two jobs of a case share one.
    return tuple(
        WorkerEndpoint(
            rank=rank,
            port=ports[rank % len(ports)],
            mac=f"02:00:00:01:{job:02x}:{rank:02x}",
            ip=f"10.0.{job + 1}.{rank + 1}",
            udp_port=20000 + 100 * job + rank,
        )
        for rank in range(count)
    )


def make_leaf(number: int, members: Sequence[int], *, port: int, job: int = 0) -> LeafEndpoint:
    """Return a switch below the one under test, at an address of its own."""
    return LeafEndpoint(
        number, port, f"02:00:00:03:{job:02x}:{number:02x}", f"10.1.{job + 1}.{number + 1}", tuple(members)
    )


def make_parent(number: int, *, workers: int, port: int = 7, job: int = 0) -> ParentEndpoint:
    """Return the switch above the switch under test, in a tree of `workers` workers."""
    return ParentEndpoint(number, port, f"02:00:00:04:{job:02x}:00", f"10.2.{job + 1}.1", workers)


def make_observer(*, job: int = 0, rank: int = MAX_WORKERS, port: int = 7) -> WorkerEndpoint:
    """Return an observer of the `job`-th job, at an address of its own."""
    return WorkerEndpoint(
        rank=rank,
        port=port,
        mac=f"02:00:00:02:{job:02x}:{rank % 256:02x}",
        ip=f"10.0.{job + 1}.{100 + rank % 100}",
        udp_port=30000 + 100 * job + rank % 100,
    )
