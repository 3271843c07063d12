# SPDX-License-Identifier: Apache-2.0
"""The values of a worker: its membership, its timing, one all-reduce in progress, and its events."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopsum_wire import HOPSUM_BYTES, MAX_WORKERS, Drop, down_bytes
from hopsum_wire.datagrams import Allocate, new_bytes


@dataclass(frozen=True, slots=True)
class Membership:
    """The part of a job's membership that one worker's protocol uses, in one generation.

    Raises:
        ValueError: generation, rank or workers are out of range, or `rack` lacks the rank or has one outside the job.
    """

    generation: int
    rank: int
    workers: int
    """Ranks of the job, 0..workers-1, for which its tables are made."""
    slots: int
    """The slots that the job uses: its window S."""
    switch: str = "the switch"
    """The switch's name in messages: its address."""
    rack: tuple[int, ...] | None = None
    """The ranks whose UPDATEs this worker's switch collects, its own among them, or None for all."""
    absent: frozenset[int] = frozenset()
    """The ranks that have no worker in this generation."""

    @property
    def local_ranks(self) -> tuple[int, ...]:
        """Return the ranks at this worker's switch, which collects their UPDATEs."""
        return tuple(range(self.workers)) if self.rack is None else self.rack

    @property
    def remote_ranks(self) -> tuple[int, ...]:
        """Return the ranks at the other leaf switches of the tree, without absent ones. Empty without a tree."""
        return tuple(sorted(set(range(self.workers)) - set(self.local_ranks) - self.absent))

    def __post_init__(self) -> None:
        if not 1 <= self.generation < 1 << 32:
            raise ValueError(f"generation {self.generation} is not in 1..2^32-1")
        if not 0 <= self.rank < self.workers <= MAX_WORKERS:
            raise ValueError(f"rank {self.rank} of {self.workers} workers: at most {MAX_WORKERS}, ranks from 0")
        if self.rank not in self.local_ranks or not set(self.local_ranks) <= set(range(self.workers)):
            raise ValueError(f"rack {self.rack} of rank {self.rank} of {self.workers} workers")


@dataclass(frozen=True, slots=True)
class Timing:
    """The timing of a worker's retransmissions and of its deadline, all in seconds.

    Raises:
        ValueError: a time is not positive, or the backoff would shorten the wait.
    """

    retransmit_s: float = 0.05
    """Wait before a retransmission until a round trip was measured, then `RttEstimator.rto_s`."""
    backoff: float = 2.0
    """Factor of the wait after every retransmission of the same chunk."""
    retransmit_max_s: float = 1.0
    deadline_s: float = 30.0
    """Deadline of an all-reduce after its submission."""
    retransmit_min_s: float | None = None
    """Least wait once round trips are measured. None: `retransmit_s`."""
    flush_after_s: float | None = None
    """Wait of a chunk before it is sent with FLUSH, so that its sum closes at min_quorum. None: never."""
    unreachable_s: float | None = None
    """Seconds for which all datagrams may come back as 'port unreachable'. None: up to the deadline."""
    lease_s: float | None = None
    """Seconds after which the job's controller evicts a silent rank, for messages. None: no controller."""

    def __post_init__(self) -> None:
        given = (
            self.retransmit_s, self.retransmit_max_s, self.deadline_s, self.retransmit_min_s, self.flush_after_s,
            self.unreachable_s, self.lease_s,
        )  # fmt: skip
        times = [time for time in given if time is not None]
        if min(times) <= 0 or self.backoff < 1:
            raise ValueError(f"times must be positive and the backoff at least 1: {self}")

    def wait_s(self, sent: int, first_s: float) -> float:
        """Return the wait after the `sent`-th transmission, from 1, at most `retransmit_max_s`.

        Args:
            first_s: the wait after the first one.
        """
        exponent = min(sent - 1, 64)  # far beyond any maximum, and no float overflows
        return float(min(first_s * self.backoff**exponent, self.retransmit_max_s))


@dataclass(frozen=True, slots=True)
class AllReduceDone:
    """Event: every chunk of an all-reduce has its result."""

    handle: int
    results: NDArray[np.uint8]
    """uint8[chunks, down_bytes(op)], read-only: peers are served from them. `hopsum_wire.payload.lanes` reads them."""
    contributors: NDArray[np.uint64]
    """[chunks], read-only: bitmap of the workers in each sum. Divide by their number, not by the job's.
    If this worker is not among them, its whole contribution returns to the error feedback (W5)."""


@dataclass(frozen=True, slots=True)
class AllReduceFailed:
    """Event: an all-reduce will have no result. Unless the error is WorkersReplacedError, the generation has ended."""

    handle: int
    error: BaseException
    """An AllReduceError, or the error of the codec that makes the payloads."""


AllReduceEvent = AllReduceDone | AllReduceFailed


class PositionResult(NamedTuple):
    """The result of one position, from the switch or a peer."""

    op: int
    contributors: int
    values: bytes | memoryview


@dataclass(slots=True)
class WorkerStatistics:
    """Counts of a worker's datagrams, sent and received."""

    updates: int = 0
    """First transmissions."""
    retransmits: int = 0
    flushes: int = 0
    """UPDATEs with FLUSH, among `updates` and `retransmits`."""
    probes: int = 0
    results: int = 0
    """RESULTs accepted."""
    duplicates: int = 0
    """RESULTs of chunks that were held already."""
    stale_ignored: int = 0
    """STALEs of rounds for which the worker does not wait: answers to late duplicates (W4)."""
    fetches: int = 0
    """FETCHes sent to peers."""
    repaired: int = 0
    """Results accepted from peers, among `results`."""
    served: int = 0
    """FOUNDs sent to peers."""
    given_up: int = 0
    """Bitmap of the workers for which results are no longer kept."""
    peers_ignored: Counter[str] = field(default_factory=Counter)
    """Ignored messages of peers, by reason."""
    ignored: Counter[Drop] = field(default_factory=Counter)
    """Malformed and foreign datagrams, by reason."""


class Places(NamedTuple):
    """Memory for the results of an all-reduce. The arrays may be strided views: every k-th chunk of a vector."""

    results: NDArray[np.uint8]
    """uint8[chunks, down_bytes(op)]"""
    contributors: NDArray[np.uint64]
    """[chunks]"""
    held: NDArray[np.bool_]
    """bool[chunks]: whether the result has arrived."""
    addresses: tuple[int, int, int]
    """The addresses of the three arrays."""

    def of_shard(self, number: int, shards: int) -> Places:
        """Return views of every `shards`-th chunk from `number` on: the places of one shard."""
        if shards == 1:
            return self
        own, (results_at, contributors_at, held_at) = slice(number, None, shards), self.addresses
        addresses = (results_at + number * self.results.shape[1], contributors_at + 8 * number, held_at + number)
        return Places(self.results[own], self.contributors[own], self.held[own], addresses)


def places_for(op: int, chunks: int, allocate: Allocate = new_bytes) -> Places:
    """Return new memory for the results of an operation, with nothing held. Raises WireError for an unknown one."""
    size = down_bytes(op)
    # One array, because numpy's look-up of an address is slow.
    room = allocate((chunks * (size + 9),))
    results, rest = room[: chunks * size].reshape(chunks, size), room[chunks * size :]
    rest[:] = 0
    at: int = room.__array_interface__["data"][0]
    addresses = (at, at + chunks * size, at + chunks * (size + 8))
    return Places(results, rest[: 8 * chunks].view(np.uint64), rest[8 * chunks :].view(np.bool_), addresses)


@dataclass(slots=True, eq=False)
class AllReduce:
    """One all-reduce in the stream: positions first .. first + chunks - 1."""

    handle: int
    op: int
    first: int
    datagrams: NDArray[np.uint8]
    """uint8[chunks, bytes], read-only: the datagrams, the same in every transmission (W2)."""
    submitted_at: float
    deadline_at: float
    ready: int
    """The number of first chunks with payloads. Later chunks are filled later, and not sent before."""
    places: Places
    """The arrays of the results."""
    discarded: bool = False
    """Whether a change of generation has discarded results, which an early reader must read again."""
    addresses: tuple[int, ...] = ()
    """The addresses of `datagrams` and of the arrays of `places`, set by the compiled loop."""
    results: NDArray[np.uint8] = field(init=False)
    contributors: NDArray[np.uint64] = field(init=False)
    held: NDArray[np.bool_] = field(init=False)
    missing: int = field(init=False)
    end: int = field(init=False)
    """The first position after the all-reduce."""

    def __post_init__(self) -> None:
        self.results, self.contributors, self.held, _ = self.places
        self.missing = len(self.datagrams)
        self.end = self.first + self.missing
        self.datagrams.flags.writeable = False

    def hold(self, position: int, result: PositionResult) -> None:
        """Store the result of a position that is not held yet."""
        index = position - self.first
        self.missing -= 1
        self.results[index] = np.frombuffer(result.values, np.uint8)
        self.contributors[index] = result.contributors
        self.held[index] = True

    def find(self, position: int) -> PositionResult | None:
        """Return a copy of the result of a position, None if it is not held."""
        index = position - self.first
        if not self.held[index]:
            return None
        return PositionResult(self.op, int(self.contributors[index]), self.results[index].tobytes())

    def discard(self, chosen: NDArray[np.bool_]) -> None:
        """Forget the held results of chosen chunks, [chunks]."""
        chosen = chosen & self.held
        self.held[chosen] = False
        self.missing += int(np.count_nonzero(chosen))
        self.discarded = self.discarded or bool(chosen.any())

    def fill(self, payloads: NDArray[np.uint8]) -> None:
        """Set the payloads of the next chunks, uint8[n, up_bytes(op)]; copied."""
        self.datagrams.flags.writeable = True
        self.datagrams[self.ready : self.ready + len(payloads), HOPSUM_BYTES:] = payloads
        self.datagrams.flags.writeable = False
        self.ready += len(payloads)

    def done(self) -> AllReduceDone:
        """Make the results read-only, and return the event of a complete all-reduce."""
        self.results.flags.writeable = self.contributors.flags.writeable = False
        return AllReduceDone(self.handle, self.results, self.contributors)


@dataclass(slots=True)
class IgnoredPackets:
    """Counts of received packets that were ignored, by kind. Error messages quote them."""

    seen: Counter[str] = field(default_factory=Counter)
    kinds_max: int = 32
    """Most kinds that are counted separately: an attacker who varies packets must not fill the memory."""

    def note(self, what: str) -> None:
        """Count one packet of a kind, as "other" if `kinds_max` other kinds have been counted."""
        known = what in self.seen or len(self.seen) < self.kinds_max
        self.seen[what if known else "other"] += 1

    def __str__(self) -> str:
        if not self.seen:
            return "nothing came back"
        listed = [f"{count} x {what}" for what, count in self.seen.most_common(4)]
        rest = sum(self.seen.values()) - sum(count for _, count in self.seen.most_common(4))
        return "came back: " + ", ".join(listed + ([f"{rest} more"] if rest else []))
