# SPDX-License-Identifier: Apache-2.0
"""One worker's transports to the shards of a job, driven by one thread as if they were one transport.

Chunk c of an all-reduce belongs to shard c mod k. Each shard is a `Transport` with its own link, worker, slots, window
and round-trip estimate; nothing of the slot protocol passes between shards.

    all-reduce   input                                     next    also
    IN PROGRESS  a shard has its chunks                    same    they are copied to their places
    IN PROGRESS  the last shard has its chunks             over    AllReduceDone
    IN PROGRESS  a shard fails, its generation goes on     same    WorkersReplacedError: it is void on all ranks
    IN PROGRESS  the last shard ends after such a failure  over    AllReduceFailed
    IN PROGRESS  a shard fails otherwise                   over    AllReduceFailed at once: the generation is over here
"""

from __future__ import annotations

import select
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hopsum.errors import AllReduceError, WorkersReplacedError
from hopsum.protocol.worker import AllReduceDone, AllReduceFailed, WorkerStatistics
from hopsum.transport.link import LinkStatistics, PollableLink
from hopsum.transport.side_connections import SideStatistics
from hopsum.transport.transport import Transport, TransportStatistics
from hopsum_wire import down_bytes

LOOK_AGAIN_S: Final = 0.001
"""The longest wait where a link has no descriptors to wait on."""
Counts = TypeVar("Counts", LinkStatistics, WorkerStatistics, SideStatistics)


@dataclass(slots=True)
class _Spread:
    """An all-reduce that is spread over the shards."""

    handle: int
    results: NDArray[np.uint8]
    contributors: NDArray[np.uint64]
    left: int
    """Shards that have not ended it."""
    error: AllReduceError | None = None


class ShardedTransport:
    """The transports of one worker, in the order of the job's shards. For one thread at a time but for `wake`.

    Args:
        shards: at least one, each of the same rank; closed with this one.
    """

    def __init__(self, shards: Sequence[Transport]) -> None:
        self.shards: Final = tuple(shards)
        count = len(self.shards)
        self._handles = 0
        self._spread: dict[tuple[int, int], _Spread] = {}
        """By shard and handle there."""
        self._busy = [True] * count
        """The shards whose next step has something to do, whatever arrives."""
        self._timers: list[float | None] = [None] * count
        self._poll = select.poll()
        self._shard_of: dict[int, int] = {}
        """By descriptor."""
        for number, shard in enumerate(self.shards):
            for descriptor in shard.link.filenos() if isinstance(shard.link, PollableLink) else ():
                self._poll.register(descriptor, select.POLLIN)
                self._shard_of[descriptor] = number
        self._all_pollable = set(self._shard_of.values()) == set(range(count))

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

    def submit(self, op: int, payloads: NDArray[np.uint8], counts: ArrayLike | None = None) -> int:
        """Append an all-reduce to the streams and return its handle, as `Transport.submit`.

        A shard without a chunk of the all-reduce takes nothing of it.
        """
        chunks, shards = len(payloads), len(self.shards)
        used = min(chunks, shards) or 1  # the first shard words the refusal of none
        self._handles += 1
        spread = _Spread(
            self._handles, np.empty((chunks, down_bytes(op)), np.uint8), np.empty(chunks, np.uint64), used
        )
        each = None if counts is None else np.broadcast_to(np.asarray(counts), (chunks,))
        for number in range(used):
            own = None if each is None else each[number::shards]
            handle = self.shards[number].submit(op, payloads[number::shards], own)
            self._spread[number, handle] = spread
            self._busy[number] = True
        return spread.handle

    def step(self, wait_s: float) -> list[AllReduceDone | AllReduceFailed]:
        """Send what is to be sent, wait for datagrams, a timer or `wake`, for `wait_s` at most; return events.

        Raises HopsumError as `Transport.step`.
        """
        ended: list[AllReduceDone | AllReduceFailed] = []
        for number in self._ready(wait_s):
            shard = self.shards[number]
            received = shard.link.statistics.datagrams_received
            for event in shard.step(0.0):
                if (over := self._take(number, event)) is not None:
                    ended.append(over)
            # What arrived opened slots: the next step sends their chunks.
            self._busy[number] = shard.link.statistics.datagrams_received != received
            self._timers[number] = shard.timer
        return ended

    def wake(self) -> None:
        """Let the `step` in progress go on at once, or else the next one. Any thread may call it until `close`."""
        for shard in self.shards:
            shard.wake()

    def close(self, *, linger: bool = True) -> None:
        """Close all shards as `Transport.close`, at the same time: each serves its peers meanwhile."""
        closers = [
            threading.Thread(target=shard.close, kwargs={"linger": linger}, name=f"hopsum-close-{number}")
            for number, shard in enumerate(self.shards)
        ]
        for closer in closers:
            closer.start()
        for closer in closers:
            closer.join()

    # ---- shards -----------------------------------------------------------------------------------------

    def _ready(self, wait_s: float) -> list[int]:
        """Wait until a shard has something to do, and return those that have; all after `wait_s` seconds."""
        due_s = min((timer for timer in self._timers if timer is not None), default=None)
        if due_s is not None:
            wait_s = min(wait_s, due_s - time.monotonic())
        if not self._all_pollable:
            wait_s = min(wait_s, LOOK_AGAIN_S)
        busy = any(self._busy)
        arrived = {self._shard_of[each] for each, _ in self._poll.poll(0 if busy else max(wait_s, 0.0) * 1000)}
        if not arrived and not busy:
            return list(range(len(self.shards)))
        now = time.monotonic()
        return [
            number
            for number, timer in enumerate(self._timers)
            if self._busy[number] or number in arrived or (timer is not None and timer <= now)
        ]

    def _take(self, number: int, event: AllReduceDone | AllReduceFailed) -> AllReduceDone | AllReduceFailed | None:
        """Note the end of an all-reduce at one shard; return the event of its end at all of them."""
        spread = self._spread.pop((number, event.handle), None)
        if spread is None:  # it has failed at another shard
            return None
        spread.left -= 1
        if isinstance(event, AllReduceDone):
            spread.results[number :: len(self.shards)] = event.results
            spread.contributors[number :: len(self.shards)] = event.contributors
        else:
            spread.error = event.error
            if not isinstance(event.error, WorkersReplacedError):
                self._spread = {where: each for where, each in self._spread.items() if each is not spread}
                return AllReduceFailed(spread.handle, event.error)
        if spread.left:
            return None
        if spread.error is not None:
            return AllReduceFailed(spread.handle, spread.error)
        spread.results.flags.writeable = spread.contributors.flags.writeable = False
        return AllReduceDone(spread.handle, spread.results, spread.contributors)


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
