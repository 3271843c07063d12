# SPDX-License-Identifier: Apache-2.0
"""All workers of a job in one thread: sockets that keep every slot of a switch busy, for measurements.

Each worker keeps the protocol's window by itself: it sends a slot's next round when it holds the RESULT of the one
before, and every RESULT is held against its numbers, header and lanes. What gets no RESULT in time is sent again and
counted. When the time is up, all workers stop at the same round of each slot, so that nothing is left half summed.
"""

from __future__ import annotations

import resource
import select
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hopsum.transport.udp_link import SegmentRun, UdpLink
from hopsum_evaluation.bench.traffic import RESULT_BYTES, UPDATE_BYTES, Checker, Pool, headers_of, row_of

RESEND_S = 0.25
"""The time after which what has no answer is sent again."""
GIVE_UP_S = 10.0
"""The time without one RESULT before the load gives up."""
_RECEIVE_BYTES = 1 << 18


class LoadError(Exception):
    """The switch stopped answering."""


@dataclass(slots=True)
class LoadCounts:
    """What a run did. Datagrams count once, however often they were sent."""

    updates: int = 0
    """Each brought its RESULT."""
    elapsed_s: float = 0.0
    user_s: float = 0.0
    """The processor time of this thread."""
    system_s: float = 0.0
    retransmits: int = 0
    sends: int = 0
    receives: int = 0
    """System calls."""

    @property
    def updates_per_s(self) -> float:
        """The rate."""
        return self.updates / self.elapsed_s

    def add(self, other: LoadCounts) -> None:
        """Sum two runs up."""
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Load:
    """The workers of one job. The links stay the caller's."""

    def __init__(self, links: Sequence[UdpLink], pool: Pool, *, resend_s: float = RESEND_S) -> None:
        self._workers = [_Worker(link, pool, rank) for rank, link in enumerate(links)]
        self._all: NDArray[np.int64] = np.arange(pool.slots)
        self._next: NDArray[np.int64] = np.ones(pool.slots, np.int64)
        self._resend_s = resend_s
        self._poll = select.poll()
        for link in links:
            self._poll.register(link.fileno(), select.POLLIN)

    def run(self, seconds: float) -> LoadCounts:
        """Keep all slots busy for so long, see every RESULT, and return what happened.

        Raises LoadError when the switch stays silent, WrongResultError (see `Checker`) when it answers wrongly.
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
    """One worker: which round of each slot it waits for (0: none), and which it sent last."""

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
        self._out = np.empty((self.pool.slots, UPDATE_BYTES), np.uint8)
        self._in = np.empty(_RECEIVE_BYTES, np.uint8)
        self._checker = Checker(self.pool, self.rank)

    def turn(self, now: float, limit: NDArray[np.int64] | None) -> int:
        """Take in what has arrived and send what may follow, up to round `limit` of each slot. Return how many."""
        runs = self.link.take(self._in)
        if not runs:
            return 0
        slots, rounds = self._checker.check(rows_of(self._in, runs, RESULT_BYTES))
        fresh = self.outstanding[slots] == rounds
        if self.retransmits or not fresh.all():  # only what was sent twice is answered twice
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
        """Stamp and send the UPDATEs of slots, each once."""
        out = self._out[: len(slots)]
        np.take(self.pool.updates[self.rank], row_of(slots, rounds, self.pool.slots), axis=0, out=out, mode="clip")
        headers_of(out)["round"] = rounds
        self.outstanding[slots] = self.sent[slots] = rounds
        self._sent_at[slots] = now
        self.link.send_rows(out)

    def resend(self, now: float, before: float) -> None:
        """Send again what was sent before then and has no RESULT."""
        slots = np.flatnonzero((self.outstanding > 0) & (self._sent_at < before))
        if len(slots):
            self.retransmits += len(slots)
            self.send(slots, self.outstanding[slots], now)


def rows_of(buffer: NDArray[np.uint8], runs: Sequence[SegmentRun], datagram_bytes: int) -> NDArray[np.uint8]:
    """Return the datagrams of one size as uint8[n, datagram_bytes]. Others are left out.

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
