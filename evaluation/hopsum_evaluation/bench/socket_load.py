# SPDX-License-Identifier: Apache-2.0
"""A switch process under load through sockets: all workers of a job in one thread, for measurements.

Each worker keeps the protocol's window by itself: it sends a slot's next round when it holds the RESULT of the round
before, and every RESULT is compared in its numbers, header and lanes. An UPDATE without a RESULT in time is sent again
and counted. When the time is up, all workers stop at the same round of each slot, so that no sum stays half complete.
"""

from __future__ import annotations

import resource
import select
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hopsum.transport.link import DATAGRAM_BYTES_MAX, RECEIVE_BUFFER_BYTES
from hopsum.transport.offload import GSO_BYTES_MAX, SEGMENTS_MAX, SOL_UDP, UDP_GRO, UDP_SEGMENT, Offload, probe_offload
from hopsum.transport.udp_link import SegmentRun, UdpLink
from hopsum_evaluation.bench.made_datagrams import Checker, Pool, headers_of, make_pool, row_of
from hopsum_evaluation.bench.timing import cpu_time, two_cores
from hopsum_topologies.local_cluster import LocalCluster
from hopsum_topologies.seat import open_batch_link
from hopsum_topologies.worker_pool import WorkerPool
from hopsum_wire import HOPSUM_BYTES, Kind, Op, down_bytes, up_bytes
from hopsum_wire.payload import TABLE_NAMES

RESEND_S = 0.25
"""Time after which an UPDATE without a RESULT is sent again."""
GIVE_UP_S = 10.0
"""Time without any RESULT after which the load gives up."""
_RECEIVE_BYTES = 1 << 18


class LoadError(Exception):
    """The switch stopped answering."""


@dataclass(slots=True)
class LoadCounts:
    """Counts of a run. An UPDATE counts once, however often it was sent."""

    updates: int = 0
    """UPDATEs that brought their RESULT."""
    elapsed_s: float = 0.0
    user_s: float = 0.0
    """Processor time of this thread in its own code."""
    system_s: float = 0.0
    retransmits: int = 0
    sends: int = 0
    receives: int = 0
    """System calls that received."""

    @property
    def updates_per_s(self) -> float:
        """UPDATEs per second of the whole run."""
        return self.updates / self.elapsed_s

    def add(self, other: LoadCounts) -> None:
        """Add the counts and times of another run to these."""
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Load:
    """All workers of one job, in the calling thread. The caller closes the links.

    links: by rank. pool: the job's datagrams. resend_s: time after which an UPDATE without a RESULT is sent again.
    """

    def __init__(self, links: Sequence[UdpLink], pool: Pool, *, resend_s: float = RESEND_S) -> None:
        self._workers = [_Worker(link, pool, rank) for rank, link in enumerate(links)]
        self._all: NDArray[np.int64] = np.arange(pool.slots)
        self._next: NDArray[np.int64] = np.ones(pool.slots, np.int64)
        self._resend_s = resend_s
        self._poll = select.poll()
        for link in links:
            self._poll.register(link.fileno(), select.POLLIN)

    def run(self, seconds: float) -> LoadCounts:
        """Keep all slots busy for so many seconds. Return the counts of this call when every UPDATE has its RESULT.

        May be repeated. Raises LoadError when the switch stays silent, WrongResultError (see `Checker`) when it answers
        wrongly.
        """
        before = self._counts()
        usage = resource.getrusage(resource.RUSAGE_THREAD)
        started = time.perf_counter()
        updates = self._drive(started, started + seconds)
        elapsed_s = time.perf_counter() - started
        used = resource.getrusage(resource.RUSAGE_THREAD)
        counts = [now - then for now, then in zip(self._counts(), before, strict=True)]
        return LoadCounts(updates, elapsed_s, used.ru_utime - usage.ru_utime, used.ru_stime - usage.ru_stime, *counts)

    def _drive(self, now: float, deadline: float) -> int:
        updates, heard_at, resend_at = 0, now, now + self._resend_s
        limit: NDArray[np.int64] | None = None
        for worker in self._workers:
            worker.send(self._all, self._next, now)
        while limit is None or any(worker.outstanding.any() for worker in self._workers):
            got = sum(worker.turn(now, limit) for worker in self._workers)
            if not got:
                self._poll.poll(self._resend_s * 1000)
            now = time.perf_counter()
            updates += got
            heard_at = now if got else heard_at
            # The time is up. Some worker may have opened the next round of a slot already: all go up to the furthest.
            if limit is None and now >= deadline:
                limit = np.max([worker.sent for worker in self._workers], axis=0)
                self._next = limit + 1
            if now >= resend_at:
                resend_at = now + self._resend_s / 2
                self._resend(now, heard_at)
        return updates

    def _resend(self, now: float, heard_at: float) -> None:
        if now - heard_at > GIVE_UP_S:
            missing = sum(int(np.count_nonzero(worker.outstanding)) for worker in self._workers)
            raise LoadError(f"no RESULT in {GIVE_UP_S:.0f} s; {missing} are awaited")
        for worker in self._workers:
            worker.resend(now, now - self._resend_s)

    def _counts(self) -> list[int]:
        of = self._workers
        return [
            sum(worker.retransmits for worker in of),
            sum(worker.link.statistics.sends for worker in of),
            sum(worker.link.statistics.receives for worker in of),
        ]


@dataclass(slots=True)
class _Worker:
    """One worker: the round of each slot that it waits for (0: none), and the round that it sent last."""

    link: UdpLink
    pool: Pool
    rank: int
    retransmits: int = 0
    outstanding: NDArray[np.int64] = field(init=False)
    sent: NDArray[np.int64] = field(init=False)
    _sent_at: NDArray[np.float64] = field(init=False)
    _out: NDArray[np.uint8] = field(init=False)
    _in: NDArray[np.uint8] = field(init=False)
    _checker: Checker = field(init=False)

    def __post_init__(self) -> None:
        self.outstanding = np.zeros(self.pool.slots, np.int64)
        self.sent = np.zeros(self.pool.slots, np.int64)
        self._sent_at = np.zeros(self.pool.slots)
        self._out = np.empty((self.pool.slots, self.pool.update_bytes), np.uint8)
        self._in = np.empty(_RECEIVE_BYTES, np.uint8)
        self._checker = Checker(self.pool, self.rank)

    def turn(self, now: float, limit: NDArray[np.int64] | None) -> int:
        """Receive RESULTs, and send the next round of their slots, up to round `limit`. Return how many were new."""
        runs = self.link.receive_batch(self._in)
        if not runs:
            return 0
        slots, rounds = self._checker.check(rows_of(self._in, runs, self.pool.result_bytes))
        fresh = self.outstanding[slots] == rounds
        # Only an UPDATE that was sent twice is answered twice: without repetitions there are no duplicates to look for.
        if self.retransmits or not fresh.all():
            slots, first = np.unique(slots[fresh], return_index=True)
            rounds = rounds[fresh][first]
        self.outstanding[slots] = 0
        got = len(slots)
        if limit is not None:
            more = rounds < limit[slots]
            slots, rounds = slots[more], rounds[more]
        if len(slots):
            self.send(slots, rounds + 1, now)
        return got

    def send(self, slots: NDArray[np.int64], rounds: NDArray[np.int64], now: float) -> None:
        """Send the UPDATEs of slots, with their rounds stamped into the headers."""
        out = self._out[: len(slots)]
        np.take(self.pool.updates[self.rank], row_of(slots, rounds, self.pool.slots), axis=0, out=out, mode="clip")
        headers_of(out)["round"] = rounds
        self.outstanding[slots] = self.sent[slots] = rounds
        self._sent_at[slots] = now
        self.link.send_rows(out)

    def resend(self, now: float, before: float) -> None:
        """Send again the UPDATEs that were sent before then and have no RESULT."""
        slots = np.flatnonzero((self.outstanding > 0) & (self._sent_at < before))
        if len(slots):
            self.retransmits += len(slots)
            self.send(slots, self.outstanding[slots], now)


def rows_of(buffer: NDArray[np.uint8], runs: Sequence[SegmentRun], datagram_bytes: int) -> NDArray[np.uint8]:
    """Cut a receive buffer into the datagrams of one size, uint8[n, datagram_bytes]. Others are left out.

    A view of the buffer where all that arrived has this size, else a copy.
    """
    if all(run.datagram_bytes == datagram_bytes and not (run.stop - run.start) % datagram_bytes for run in runs):
        stop = runs[-1].stop if runs else 0
        return buffer[:stop].reshape(-1, datagram_bytes)
    parts = []
    for start, stop, each in runs:
        if each == datagram_bytes:
            parts.append(buffer[start : stop - (stop - start) % each])
        elif (stop - start) % each == datagram_bytes:
            parts.append(buffer[stop - datagram_bytes : stop])
    return np.concatenate(parts).reshape(-1, datagram_bytes) if parts else buffer[:0].reshape(-1, datagram_bytes)


UPDATE_BYTES: Final = HOPSUM_BYTES + up_bytes(Op.LOOKUP_ADD8)
RESULT_BYTES: Final = HOPSUM_BYTES + down_bytes(Op.LOOKUP_ADD8)


def _echo(workers: int, offload: Offload, pipe: Connection) -> None:
    """Answer every UPDATE with a RESULT of zeros, in a process: the datagrams of a switch without the switch.

    The rate of a load against it bounds the rate against a switch on the same cores.
    """
    most = min(SEGMENTS_MAX, GSO_BYTES_MAX // RESULT_BYTES) if offload.segment else 1
    buffer = np.empty(DATAGRAM_BYTES_MAX + 1, np.uint8)
    results = np.zeros((len(buffer) // UPDATE_BYTES, RESULT_BYTES), np.uint8)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        sock.bind(("127.0.0.1", 0))
        if offload.gro:
            sock.setsockopt(SOL_UDP, UDP_GRO, 1)
        if offload.segment:
            sock.setsockopt(SOL_UDP, UDP_SEGMENT, RESULT_BYTES)
        pipe.send(("bound", sock.getsockname()))
        while True:
            size, peer = sock.recvfrom_into(buffer.data)
            count = size // UPDATE_BYTES
            answers = results[:count]
            answers[:, :HOPSUM_BYTES] = buffer[: count * UPDATE_BYTES].reshape(count, UPDATE_BYTES)[:, :HOPSUM_BYTES]
            headers = headers_of(answers)
            headers["kind"], headers["contributors"] = Kind.RESULT, (1 << workers) - 1
            headers["length"] = RESULT_BYTES - HOPSUM_BYTES
            for first in range(0, count, most):
                sock.sendto(answers[first : first + most].data, peer)


ECHO_GENERATION = 1


class SocketRun:
    """A load against the switch process `pid`, with the processor time of both.

    pinned: keep both on cores of their own, where there are two.
    """

    def __init__(self, load: Load, pid: int, *, pinned: bool) -> None:
        self._load = load
        self._pid = pid
        self._pinned = pinned
        self.two_cores = False
        self.total = LoadCounts()
        """Sum of all runs since `reset_totals`."""
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

    def reset_totals(self) -> None:
        """Set `total` and the switch's processor time to zero."""
        self.total = LoadCounts()
        self._switch_user_s = self._switch_system_s = 0.0

    def processor_figures(self) -> dict[str, float | int | bool]:
        """Return the processor figures of all runs since `reset_totals`, by name.

        `load_*` and `switch_*` for user and system are processor seconds per elapsed second: 1 is one full core.
        `*_ns_per_packet` is processor time per UPDATE. Unlike rates, it hardly depends on the machine's other load.
        `own_cores` is of the last run.

        Raises:
            ZeroDivisionError: no UPDATE was answered since `reset_totals`.
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
    cluster: LocalCluster,
    table: tuple[int, ...],
    slots: int,
    seed: int,
    *,
    op: Op = Op.LOOKUP_ADD8,
    resend_s: float = RESEND_S,
) -> Iterator[Load]:
    """Make a job on a cluster and yield the load of its workers. The end of the block closes both.

    `table` is the lookup table of operation `op`. For `resend_s` see `Load`. Raises ControlPlaneError, OSError.
    """
    with ExitStack() as stack:
        links: list[UdpLink] = []
        for seat in cluster.seats:
            links.append(link := open_batch_link(seat))
            stack.callback(link.close)
        tables = {TABLE_NAMES[op]: table}
        job = stack.enter_context(cluster.create_job("load", [[link.local] for link in links], tables, slots=slots))
        yield Load(links, make_pool(job.generation, len(links), slots, table, seed, op), resend_s=resend_s)


@contextmanager
def echo_run(workers: int, table: tuple[int, ...], slots: int, seed: int) -> Iterator[SocketRun]:
    """Yield a load as `load_on` makes against a process that answers without a switch: the cost of sockets and load.

    The process ends with the block.
    """
    offload = probe_offload()
    pool = make_pool(ECHO_GENERATION, workers, slots, table, seed)
    with ExitStack() as stack:
        echo = stack.enter_context(WorkerPool([workers], _echo, offload))
        ((address,),) = echo.gather("bound")
        links = [UdpLink(("127.0.0.1", 0), address, gso=offload) for _ in range(workers)]
        for link in links:
            stack.callback(link.close)
        yield SocketRun(
            Load(links, replace(pool, sums=np.zeros_like(pool.sums))), echo.processes[0].pid or 0, pinned=True
        )
