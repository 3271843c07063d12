# SPDX-License-Identifier: Apache-2.0
"""One worker's transport: all-reduces over the shards of its job, blocking or several at a time, in one thread.

One loop, `step`, sends the workers' datagrams, in batches if the links can, waits for datagrams or for a timer, and
passes received datagrams to the workers. On UDP sockets a compiled loop does this for all shards as long as it receives
in-order RESULTs only (worker_loop.py). Datagrams that `step` sends while a shard is sealed count as sent before the
seal.

Chunk c of an all-reduce belongs to shard c mod k. Each shard has its own link, worker, slots, window and round-trip
estimate; shards share no state of the slot protocol.

    generation   input                          next     also
    RUNS         seal, in any thread            SEALED   its workers send and accept nothing more
    SEALED       resume, in any thread          RUNS     another generation

All shards change their generation together: a thread that holds `lock` finds all of them in one generation, or
`is_sealed`. Another thread serves peers, also in SEALED.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from types import TracebackType
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hopsum.codec.interface import Reduction
from hopsum.protocol.worker import AllReduceDone, AllReduceFailed, WorkerStatistics
from hopsum.protocol.worker_state import AllReduceEvent, places_for
from hopsum.transport.link import LinkStatistics
from hopsum.transport.links_receiver import LinksReceiver
from hopsum.transport.shard import Shard, ShardContinuation, TransportStatistics
from hopsum.transport.sharded_allreduce import CodecWork, ShardedAllReduce, ShardedAllReduces, next_work
from hopsum.transport.worker_loop import WorkerLoop, is_being_compiled, worker_loop
from hopsum_base.spare_arrays import spare_array
from hopsum_wire import Drop, WireError
from hopsum_wire.generations import Sealed

# A blocking all-reduce must notice the end of the side channel within this time.
_STEP_S: Final = 1.0
Counts = TypeVar("Counts", LinkStatistics, WorkerStatistics)


class Transport:
    """The connections of one worker to all its shards.

    For one thread at a time, except `wake`, `seal`, `resume`, and the thread-safe methods of `Shard`.

    Args:
        shards: in the order of the job's shards, at least one, each of the same rank; closed with the transport.

    Raises:
        ValueError: the shards do not share one lock.
    """

    def __init__(self, shards: Sequence[Shard]) -> None:
        self.shards: Final = tuple(shards)
        self._workers = [shard.worker for shard in self.shards]
        self.lock: Final = self.shards[0].lock
        """Protects the workers. Reentrant."""
        if any(shard.lock is not self.lock for shard in self.shards):
            raise ValueError("the shards of a transport have one lock")
        self._loop = self._make_loop()
        self._loop_comes = self._loop is None and is_being_compiled()
        self._window = sum(worker.membership.slots for worker in self._workers)
        self.interrupt: BaseException | None = None
        """The error that a signal handler raised while `step` waited. The state is consistent nevertheless."""
        self._handles = 0
        self._all_sharded = ShardedAllReduces()
        self._receiver = LinksReceiver([shard.link for shard in self.shards])
        self._nothing: Final[list[Sequence[bytes | memoryview]]] = [()] * len(self.shards)
        """By shard, no datagrams."""
        self.is_sealed = False
        self._stepping = threading.Lock()
        """Held during a step, and during a change of generation."""

    def _make_loop(self) -> WorkerLoop | None:
        return worker_loop([(shard.link, shard.worker.membership.slots) for shard in self.shards])

    @property
    def statistics(self) -> TransportStatistics:
        """Return the counts of all shards together. The counts of the links and workers are a copy."""
        found = [shard.statistics for shard in self.shards]
        worker = _total(WorkerStatistics(), [each.worker for each in found])
        worker.given_up = 0
        for each in found:
            worker.given_up |= each.worker.given_up
        return TransportStatistics(
            _total(LinkStatistics(), [each.link for each in found]),
            worker,
            found[0].side,
        )

    @property
    def has_loop(self) -> bool:
        """Say whether there is a compiled loop, which also encodes and decodes for codecs with compiled kernels."""
        return self._loop is not None

    def allreduce(self, op: int, payloads: NDArray[np.uint8], counts: ArrayLike | None = None) -> AllReduceDone:
        """Sum chunks over all workers. Blocks until every result has arrived or the deadline passes.

        All ranks make the same calls in the same order.

        Args:
            op: the switch's operation.
            payloads: uint8[chunks, up_bytes(op)].
            counts: [chunks] or a scalar, elements in use.

        Raises:
            AllReduceTimeoutError: no result by the deadline. The message counts sent and received packets.
            ResultLostError: the switch no longer has a result that this rank lacks, and there are no peers.
            FellBehindError: neither the switch nor any peer has the result.
            GenerationEndedError: an earlier all-reduce failed, or the generation's rounds are used up, or it is sealed.
                After these four errors continue in a new generation with a new transport.
            WireError: unknown op or payloads of another shape; nothing was sent.
            HopsumError: the side channel has ended. The cause is attached.
        """
        handle = self.submit(op, payloads, counts)
        while True:
            for event in self.step(_STEP_S):
                if event.handle != handle:
                    continue
                if isinstance(event, AllReduceDone):
                    return event
                raise event.error
            if (interrupt := self.interrupt) is not None:
                self.interrupt = None
                raise interrupt

    def submit(
        self,
        op: int,
        payloads: NDArray[np.uint8],
        counts: ArrayLike | None = None,
        *,
        coder: Reduction | None = None,
        ranges: Sequence[int] = (),
        lanes_before: int = 0,
    ) -> int:
        """Append an all-reduce to the streams and return its handle. `step` sends it and returns its event.

        Several may be in progress. Arguments and errors as for `allreduce`; after an error nothing was sent.

        Args:
            coder: the reduction of these payloads, of which it has made the first `encoded`. `step` calls it to make
                the others while the first are in flight, and to read sums before the last one has arrived. The thread
                that calls `step` may abort it meanwhile.
            ranges: handles of the preceding phases whose sums the coder needs first; none of them is complete. The
                compiled loop may begin before the coder has the sums.
            lanes_before: number of lanes before the ranges in their sums, which must return as they were sent.
        """
        chunks, shards = len(payloads), len(self.shards)
        if not chunks:
            raise WireError(Drop.BAD_LENGTH, "an all-reduce has at least one chunk")
        places, used = places_for(op, chunks, spare_array), min(chunks, shards)
        ready = chunks if coder is None else coder.encoded
        each = np.asarray(0 if counts is None else counts)
        self._handles += 1
        before = tuple([self._all_sharded.by_handle[handle] for handle in ranges])
        sharded = ShardedAllReduce(self._handles, places, coder, {}, used, ranges=before, lanes_before=lanes_before)
        handles, now = list[int](), time.monotonic()
        with self.lock:
            for number in range(used):
                worker = self.shards[number].worker
                handle = worker.submit(
                    op,
                    payloads[number::shards],
                    now=now,
                    counts=each[number::shards] if each.ndim else each,
                    ready=len(range(number, ready, shards)),
                    places=places.of_shard(number, shards),
                )
                if (reduce := worker.in_progress(handle)) is not None:
                    sharded.reduces[number] = reduce
                handles.append(handle)
        # Last: if a shard refuses, the caller has no handle, and earlier shards' events are ignored.
        self._all_sharded.add(sharded, handles)
        return sharded.handle

    def fill(self, handle: int, payloads: NDArray[np.uint8]) -> None:
        """Set all payloads of an all-reduce without payloads, in place of its coder. Ignore one that has ended."""
        sharded = self._all_sharded.by_handle.get(handle)
        if sharded is None:
            return
        with self.lock:
            self._fill(sharded, 0, payloads)
        sharded.coder = None

    def _fill(self, sharded: ShardedAllReduce, first: int, payloads: NDArray[np.uint8]) -> None:
        """Set the payloads of chunks from `first` on at their shards. The lock is held."""
        shards = len(self.shards)
        for number, reduce in sharded.reduces.items():
            self.shards[number].worker.fill(reduce.handle, payloads[(number - first) % shards :: shards])

    def step(self, wait_s: float) -> list[AllReduceEvent]:
        """Send due datagrams, wait for datagrams, a timer or `wake`, for `wait_s` at most, and return events.

        Does nothing while the generation is sealed. The error of a signal handler ends the wait and is stored in
        `interrupt`.

        Raises:
            HopsumError: a side channel has ended. The cause is attached.
        """
        with self._stepping:
            return [] if self.is_sealed else self._step(wait_s)

    def _step(self, wait_s: float) -> list[AllReduceEvent]:
        if self._loop_comes and not is_being_compiled():
            self._loop, self._loop_comes = self._make_loop(), False
        workers = self._workers
        # Before anything is received: the loop may have begun codes with sums of ranges that the coder has not read.
        # All shards share one side channel.
        self.shards[0].require_open()
        for sharded in self._all_sharded.by_handle.values():
            sharded.forget_discarded()
        with self.lock:
            begun = time.monotonic()
            loop = self._loop if self._can_run_compiled() else None
            if loop is None and self._loop is not None:
                # The next receive overwrites what the loop has left in its buffers.
                self._loop.receive_rest(workers, begun)
            # After it: what a worker asks its peers because of these datagrams does not wait for the network.
            for shard in self.shards:
                shard.begin_step()
            work = next_work(self._all_sharded.by_handle.values(), self._window, by_machine=loop is not None)
            # A vector may have ended in `submit`, by early results or because it is void.
            is_due = work is not None or any([worker.state.events for worker in workers])
            until = begun if is_due else begun + wait_s
            if loop is not None:
                batches = loop.run(workers, self._all_sharded, min([until, *self._timers()]))
                self.interrupt, loop.interrupt = loop.interrupt, None
                self._hand_over(self._nothing, loop.emptied)
            else:
                # Selected under the lock, sent without it: a system call must not block the side channel's thread.
                # Datagrams that are being sent when `seal` runs count as sent before the seal.
                batches = [worker.segments_to_send(begun) for worker in workers]
                timers = self._timers()
                # No wait if nothing is in progress.
                until = min([until, *timers]) if timers else begun
                loop_is_next = self._can_run_compiled()
        for shard, rows in zip(self.shards, batches, strict=True):
            if rows:
                shard.send(rows)
        if loop is None:
            # If only retransmissions prevented the compiled loop, it receives the next datagrams: Python takes a
            # hundred times as long for each. Else read now: sending may have taken milliseconds, and timers are
            # absolute.
            arrived = self._nothing if loop_is_next else self._receive(until - time.monotonic())
            with self.lock:
                self._hand_over(arrived, [not (loop_is_next or some) for some in arrived])
        failed = None if work is None else self._do(work)
        found: list[AllReduceEvent] = [] if failed is None else [failed]
        for number, worker in enumerate(workers):
            while worker.state.events:
                event = worker.state.events.popleft()
                if (over := self._all_sharded.end_part(number, event)) is not None:
                    found.append(over)
            self.shards[number].end_step()
        return found

    def seal(self) -> Sealed:
        """Seal this generation: send and accept nothing more. Return the results held, also of further shards.

        Ends the current step first. `step` does nothing until `resume`. Any thread. Raises TypeError for a worker
        without peers, which cannot continue in another generation.
        """
        # First, so that no other step and no submission begins.
        self.is_sealed = True
        self.wake()
        with self._stepping, self.lock:
            first, *further = [shard.seal() for shard in self.shards]
            return replace(first, further_shards=tuple(further))

    def resume(self, generation: int, continuations: Sequence[ShardContinuation]) -> None:
        """Continue in another generation, after `seal`, with a continuation for each shard. Any thread.

        Raises as `Shard.resume`.
        """
        with self._stepping:
            for shard, given in zip(self.shards, continuations, strict=True):
                shard.resume(generation, given)
            # Last: a submission must find all shards in the new generation.
            self.is_sealed = False

    def resume_at(self, start_generation: int, starts: Sequence[int]) -> None:
        """Let later submissions begin at the newcomers' start, at each shard, as `Shard.resume_at`."""
        for shard, start in zip(self.shards, starts, strict=True):
            shard.resume_at(start_generation, start)

    def wake(self) -> None:
        """End the wait of the current `step` at once, or else of the next one. Any thread, also after `close`."""
        self.shards[0].wake()

    def close(self, *, linger: bool = True) -> None:
        """Close all shards as `Shard.close`, in parallel, because each may linger to serve its peers."""
        closers = [
            threading.Thread(target=shard.close, kwargs={"linger": linger}, name=f"hopsum-close-{number}")
            for number, shard in enumerate(self.shards[1:], 1)
        ]
        for closer in closers:
            closer.start()
        self.shards[0].close(linger=linger)
        for closer in closers:
            closer.join()

    def __enter__(self) -> Transport:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- parts of a step ---------------------------------------------------------------------------------

    def _can_run_compiled(self) -> bool:
        """Say whether the compiled loop can run now. The lock is held."""
        # The loop would hold the lock while it waits for the network, so a waiting thread goes first.
        loop = self._loop
        return loop is not None and not self.lock.waiting and loop.can_run_compiled(self._workers, self._all_sharded)

    def _timers(self) -> list[float]:
        """Return the times of the next timers of the workers that have one. The lock is held."""
        return [timer for worker in self._workers if (timer := worker.get_timer()) is not None]

    def _hand_over(self, arrived: Sequence[Sequence[bytes | memoryview]], emptied: Sequence[bool]) -> None:
        """Pass the received datagrams and the time to the shards. The lock is held. `emptied`: sockets without more."""
        now = time.monotonic()
        for shard, some, is_empty in zip(self.shards, arrived, emptied, strict=True):
            shard.hand_over(some, now, emptied=is_empty)

    def _receive(self, timeout_s: float) -> list[Sequence[bytes | memoryview]]:
        """Wait for datagrams. Return them by shard."""
        try:
            return self._receiver.receive(timeout_s)
        except Exception:
            raise
        except BaseException as error:
            self.interrupt = error
            return self._nothing

    def _do(self, work: CodecWork) -> AllReduceFailed | None:
        """Make the next payloads of a vector, or read its next sums. Return a failure of the coder."""
        sharded = work.sharded
        assert sharded.coder is not None
        try:
            if work.what == "read":
                sharded.read(work.end)
                return None
            first = sharded.coder.encoded
            payloads = sharded.coder.encode_part()
        except BaseException as error:  # also a signal handler's: only the caller of `submit` can end the all-reduce
            self._all_sharded.end(sharded)
            return AllReduceFailed(sharded.handle, error)
        with self.lock:
            self._fill(sharded, first, payloads)
        return None


def _total(total: Counts, counts: Iterable[Counts]) -> Counts:
    """Add counts, field by field, to `total`."""
    for each in counts:
        for field in fields(each):
            here: Any = getattr(total, field.name)
            there: Any = getattr(each, field.name)
            if isinstance(there, Counter):
                here.update(there)
            else:
                setattr(total, field.name, here + there)
    return total
