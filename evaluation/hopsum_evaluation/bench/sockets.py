# SPDX-License-Identifier: Apache-2.0
"""A switch process under load through sockets: how fast, and which of the two sides had no time left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace

import numpy as np

from hopsum.transport.offload import probe_offload
from hopsum.transport.udp_link import UdpLink
from hopsum_controlplane import JobSpec, SwitchController
from hopsum_evaluation.bench.echo import Echo
from hopsum_evaluation.bench.load import RESEND_S, Load, LoadCounts
from hopsum_evaluation.bench.pipeline import Adapt
from hopsum_evaluation.bench.placement import cpu_time, two_cores
from hopsum_evaluation.bench.traffic import make_pool
from hopsum_topologies.seat import open_batch_link
from hopsum_topologies.switch_testbed import SWITCH, Testbed

ECHO_GENERATION = 1


class SocketRun:
    """A load against process `pid`. With `pinned` each has a core of its own, where there are two."""

    def __init__(self, load: Load, pid: int, *, pinned: bool) -> None:
        self._load = load
        self._pid = pid
        self._pinned = pinned
        self.two_cores = False
        self.total = LoadCounts()
        """The sum of all runs since `forget`."""
        self._switch_user_s = self._switch_system_s = 0.0

    def run(self, seconds: float) -> float:
        """Keep the switch busy for so long. Return UPDATEs per second. Raises as `Load.run`."""
        with two_cores(self._pid) if self._pinned else nullcontext(False) as self.two_cores:
            before = cpu_time(self._pid)
            tally = self._load.run(seconds)
            after = cpu_time(self._pid)
        self.total.add(tally)
        self._switch_user_s += after.user_s - before.user_s
        self._switch_system_s += after.system_s - before.system_s
        return tally.updates_per_s

    def forget(self) -> None:
        """Start the totals again."""
        self.total = LoadCounts()
        self._switch_user_s = self._switch_system_s = 0.0

    def busy(self) -> dict[str, float | int | bool]:
        """Return shares of one core's time, 0..1 (more for several threads), the work of a packet, and of a call.

        Work per packet hardly changes with what else the machine does, as rates do.
        """
        total = self.total
        switch_s = self._switch_user_s + self._switch_system_s
        shares = {
            "load_user": total.user_s,
            "load_system": total.system_s,
            "switch_user": self._switch_user_s,
            "switch_system": self._switch_system_s,
        }
        return {
            **{name: round(seconds / total.elapsed_s, 3) for name, seconds in shares.items()},
            "load_ns_per_packet": round(1e9 * (total.user_s + total.system_s) / total.updates, 1),
            "switch_ns_per_packet": round(1e9 * switch_s / total.updates, 1),
            "datagrams_per_send": round(total.updates / max(total.sends, 1), 1),
            "datagrams_per_receive": round(total.updates / max(total.receives, 1), 1),
            "retransmits": total.retransmits,
            "own_cores": self.two_cores,
        }


@contextmanager
def load_on(
    testbed: Testbed,
    table: tuple[int, ...],
    slots: int,
    seed: int,
    *,
    adapt: Adapt | None = None,
    resend_s: float = RESEND_S,
) -> Iterator[Load]:
    """Make a job on a switch and yield its workers. End both after the block. Raises ControlPlaneError, OSError."""
    with ExitStack() as stack:
        links: list[UdpLink] = []
        for seat in testbed.seats:
            links.append(link := open_batch_link(seat))
            stack.callback(link.close)
        controller = SwitchController(adapt(testbed.device) if adapt else testbed.device, SWITCH)
        endpoints = tuple(seat.endpoint(link.local) for seat, link in zip(testbed.seats, links, strict=True))
        job = controller.create_job(JobSpec("load", endpoints, slots, table))
        stack.callback(controller.delete_job, job)
        yield Load(links, make_pool(job.generation, len(links), slots, table, seed), resend_s=resend_s)


@contextmanager
def echo_run(workers: int, table: tuple[int, ...], slots: int, seed: int) -> Iterator[SocketRun]:
    """Yield the same load against a process that only answers: the sockets and the load by themselves."""
    offload = probe_offload()
    pool = make_pool(ECHO_GENERATION, workers, slots, table, seed)
    with ExitStack() as stack:
        echo = stack.enter_context(Echo(workers, offload))
        links = [UdpLink(("127.0.0.1", 0), echo.address, gso=offload) for _ in range(workers)]
        for link in links:
            stack.callback(link.close)
        yield SocketRun(Load(links, replace(pool, sums=np.zeros_like(pool.sums))), echo.pid, pinned=True)
