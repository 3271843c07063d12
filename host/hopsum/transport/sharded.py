# SPDX-License-Identifier: Apache-2.0
"""One worker's transports to the shards of a job, as if they were one transport. Each has a thread.

Chunk c of an all-reduce belongs to shard c mod k. Each shard is a `Transport` with its own link, worker, slots, window
and round-trip estimate; nothing of the slot protocol passes between shards.

    all-reduce   input                                     next    also
    IN PROGRESS  a shard has its chunks, or some of them   same    they are copied to their places; AllReducePart, if
                                                                  all shards have theirs of the next chunks
    IN PROGRESS  the last shard has its chunks             over    AllReduceDone
    IN PROGRESS  a shard fails, its generation goes on     same    WorkersReplacedError: it is void on all ranks
    IN PROGRESS  the last shard ends after such a failure  over    AllReduceFailed
    IN PROGRESS  a shard fails otherwise                   over    AllReduceFailed at once: the generation is over here
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hopsum.codec.interface import ChunkStream
from hopsum.errors import AllReduceError, WorkersReplacedError
from hopsum.protocol.result_acceptor import AllReduceEvent
from hopsum.protocol.worker import AllReduceDone, AllReduceFailed, WorkerStatistics
from hopsum.protocol.worker_state import AllReducePart
from hopsum.transport.link import LinkStatistics
from hopsum.transport.side_connections import SideStatistics
from hopsum.transport.transport import Transport, TransportStatistics
from hopsum_wire import down_bytes

STEP_S: Final = 1.0
"""The longest wait of a shard's thread."""
Counts = TypeVar("Counts", LinkStatistics, WorkerStatistics, SideStatistics)


@dataclass(slots=True)
class _Spread:
    """An all-reduce that is spread over the shards."""

    handle: int
    results: NDArray[np.uint8]
    contributors: NDArray[np.uint64]
    left: int
    """Shards that have not ended it."""
    part_chunks: int
    held: list[int]
    """By shard, its chunks that are copied to their places: the first of them."""
    ready: int
    """Chunks whose payloads are here."""
    told: int = 0
    """Chunks that were in an AllReducePart."""
    error: AllReduceError | None = None

    def take(self, number: int, first: int, results: NDArray[np.uint8], contributors: NDArray[np.uint64]) -> None:
        """Copy results of a shard, from its chunk `first` on, to their places."""
        shards, self.held[number] = len(self.held), first + len(results)
        places = slice(number + first * shards, None, shards)
        self.results[places][: len(results)] = results
        self.contributors[places][: len(results)] = contributors

    def next_part(self) -> AllReducePart | None:
        """Return the chunks that all shards have and that were not told, as `AllReduce.next_part`."""
        shards = len(self.held)
        held = min(chunks * shards + number for number, chunks in enumerate(self.held))
        first, chunks = self.told, held - self.told
        self.told += chunks - chunks % self.part_chunks
        if self.told == first:
            return None
        return AllReducePart(self.handle, first, self.results[first : self.told], self.contributors[first : self.told])


class ShardedTransport:
    """The transports of one worker, in the order of the job's shards. For one thread at a time but for `wake`.

    Each shard has a thread of its own, which waits for its socket and, where the transport has a compiled loop, serves
    it without Python. What ends there is put together by who calls `step`.

    Args:
        shards: at least one, each of the same rank; closed with this one.
    """

    has_loop = serves_streams = False
    """A shard's compiled loop has every k-th chunk of a vector, and serves no `ChunkStream` of all chunks."""

    def __init__(self, shards: Sequence[Transport]) -> None:
        self.shards: Final = tuple(shards)
        self._handles = 0
        self.interrupt: BaseException | None = None
        """As of `Transport`."""
        self._spread: dict[tuple[int, int], _Spread] = {}
        """The all-reduces by shard and handle there."""
        self._changed = threading.Condition()
        """The lock of the three that follow."""
        self._ended: list[tuple[int, AllReduceEvent]] = []
        """Events of shards that nobody has taken."""
        self._failure: BaseException | None = None
        """The error that ended a shard's thread."""
        self._woken = False
        self._closing = threading.Event()
        self._wanted = [threading.Event() for _ in self.shards]
        """Wake-up event of each idle shard."""
        self._threads = [
            threading.Thread(target=self._serve, args=(number,), name=f"hopsum-shard-{number}", daemon=True)
            for number in range(len(self.shards))
        ]
        for thread in self._threads:
            thread.start()

    @property
    def statistics(self) -> TransportStatistics:
        """Return the counts of all shards together: a copy."""
        found = [shard.statistics for shard in self.shards]
        worker = _total(WorkerStatistics(), [each.worker for each in found])
        worker.given_up = 0
        for each in found:
            worker.given_up |= each.worker.given_up
        return TransportStatistics(
            _total(LinkStatistics(), [each.link for each in found]),
            worker,
            _total(SideStatistics(), [each.side for each in found]),
        )

    def submit(
        self,
        op: int,
        payloads: NDArray[np.uint8],
        counts: ArrayLike | None = None,
        *,
        ready: int | None = None,
        part_chunks: int = 0,
        stream: ChunkStream | None = None,
    ) -> int:
        """Append an all-reduce to the streams and return its handle, as `Transport.submit`.

        A shard without a chunk of the all-reduce takes nothing of it. A `stream` is not served, see `has_loop`.
        """
        chunks, shards = len(payloads), len(self.shards)
        used = min(chunks, shards) or 1  # the first shard words the refusal of none
        self._handles += 1
        ready = chunks if ready is None else ready
        rows = np.empty((chunks, down_bytes(op)), np.uint8), np.empty(chunks, np.uint64)
        spread = _Spread(self._handles, *rows, used, part_chunks, [0] * shards, ready)
        each = None if counts is None else np.broadcast_to(np.asarray(counts), (chunks,))
        for number in range(used):
            own = None if each is None else each[number::shards]
            handle = self.shards[number].submit(
                op,
                payloads[number::shards],
                own,
                ready=_own_chunks(ready, number, shards),
                part_chunks=-(-part_chunks // shards),
            )
            self._spread[number, handle] = spread
            self._wanted[number].set()
            self.shards[number].wake()
        return spread.handle

    def fill(self, handle: int, payloads: NDArray[np.uint8]) -> None:
        """Take the payloads of an all-reduce's next chunks, as `Transport.fill`."""
        shards, filled = len(self.shards), None
        for (number, own), spread in self._spread.items():
            if spread.handle != handle:
                continue
            self.shards[number].fill(own, payloads[(number - spread.ready) % shards :: shards])
            self.shards[number].wake()
            filled = spread
        if filled is not None:
            filled.ready += len(payloads)

    def step(self, wait_s: float) -> list[AllReduceEvent]:
        """Wait for the end of an all-reduce at a shard, or `wake`, for `wait_s` at most; return events.

        Raises HopsumError as `Transport.step`, of whichever shard.
        """
        with self._changed:
            try:
                self._changed.wait_for(lambda: self._ended or self._woken or self._failure is not None, wait_s)
            except BaseException as error:
                self.interrupt = error
            ended, self._ended, self._woken = self._ended, [], False
            failure = self._failure
        found = [over for number, event in ended if (over := self._take(number, event)) is not None]
        if failure is not None and not found:
            raise failure
        return found

    def wake(self) -> None:
        """Let the `step` in progress go on at once, or else the next one; let idle shards look what there is to do.

        Any thread may call it until `close`.
        """
        with self._changed:
            self._woken = True
            self._changed.notify_all()
        for wanted in self._wanted:
            wanted.set()

    def close(self, *, linger: bool = True) -> None:
        """Close all shards as `Transport.close`, at the same time: each serves its peers meanwhile."""
        self._closing.set()
        for shard, wanted, thread in zip(self.shards, self._wanted, self._threads, strict=True):
            wanted.set()
            if thread.is_alive():
                shard.wake()
            thread.join()
        # At the same time: each shard may linger for its peers, and the waits would add up.
        closers = [
            threading.Thread(target=shard.close, kwargs={"linger": linger}, name=f"hopsum-close-{number}")
            for number, shard in enumerate(self.shards)
        ]
        for closer in closers:
            closer.start()
        for closer in closers:
            closer.join()

    # ---- shards -----------------------------------------------------------------------------------------

    def _serve(self, number: int) -> None:
        shard, wanted = self.shards[number], self._wanted[number]
        try:
            while not self._closing.is_set():
                wanted.clear()
                events = shard.step(STEP_S)
                if events:
                    with self._changed:
                        self._ended += [(number, event) for event in events]
                        self._changed.notify_all()
                # An idle shard sleeps on its event: a thread that polls would take the processor from the codec.
                if shard.timer is None:  # nothing is in progress, or may be in this generation
                    wanted.wait(STEP_S)
        # A shard thread that dies would leave `step` waiting for ever: the failure is handed to the caller.
        except BaseException as error:
            with self._changed:
                self._failure = self._failure or error
                self._changed.notify_all()

    def _take_part(self, number: int, event: AllReducePart) -> AllReducePart | None:
        """Note a part of an all-reduce at one shard. Return the event of what is here from all of them."""
        spread = self._spread.get((number, event.handle))
        if spread is None:  # it has failed at another shard
            return None
        spread.take(number, event.first, event.results, event.contributors)
        if len(event.results):
            return spread.next_part()
        spread.told = 0
        return AllReducePart(spread.handle, 0, spread.results[:0], spread.contributors[:0])

    def _take(self, number: int, event: AllReduceEvent) -> AllReduceEvent | None:
        """Note the end of an all-reduce, or of a part of it, at one shard. Return the event of that at all of them."""
        if isinstance(event, AllReducePart):
            return self._take_part(number, event)
        spread = self._spread.pop((number, event.handle), None)
        if spread is None:  # it has failed at another shard
            return None
        # Each shard ends its own part. The all-reduce is over when the last of them is.
        spread.left -= 1
        if isinstance(event, AllReduceDone):
            held = spread.held[number]
            spread.take(number, held, event.results[held:], event.contributors[held:])
        else:
            spread.error = event.error
            if not isinstance(event.error, WorkersReplacedError):
                self._spread = {where: each for where, each in self._spread.items() if each is not spread}
                return AllReduceFailed(spread.handle, event.error)
        if spread.left:
            return spread.next_part() if spread.part_chunks and spread.error is None else None
        if spread.error is not None:
            return AllReduceFailed(spread.handle, spread.error)
        spread.results.flags.writeable = spread.contributors.flags.writeable = False
        return AllReduceDone(spread.handle, spread.results, spread.contributors)


def _own_chunks(chunks: int, number: int, shards: int) -> int:
    """Return the number of the first `chunks` chunks of an all-reduce that belong to a shard."""
    return max(-(-(chunks - number) // shards), 0)


def shards_of(transport: Transport | ShardedTransport) -> tuple[Transport, ...]:
    """Return the transports of a worker, by shard."""
    return transport.shards if isinstance(transport, ShardedTransport) else (transport,)


def _total(total: Counts, counts: Iterable[Counts]) -> Counts:
    """Add counts, field by field, to `total`; of times the largest stays."""
    for each in counts:
        for field in fields(each):
            here: Any = getattr(total, field.name)
            there: Any = getattr(each, field.name)
            if isinstance(there, Counter):
                here.update(there)
            elif isinstance(there, int):
                setattr(total, field.name, here + there)
            elif there is not None:
                setattr(total, field.name, there if here is None else max(here, there))
    return total
