# SPDX-License-Identifier: Apache-2.0
"""The compiled loop of a worker on UDP sockets, the fast path: it receives and sends without Python.

`WorkerLoop.run` copies the scalars of the worker at each shard to `worker_kernel.serve` and back, and shares arrays.
The fast path serves a worker that expects only RESULTs in the order of its slots: the worker runs, no datagram waits
for retransmission, no result is early or requested from peers, and no result was decided by a change of generation. The
Python worker serves all other cases; both have the same state after every history.

HOPSUM_COMPILED=0 turns the loop off.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import sys
import threading
from collections.abc import Sequence
from functools import cache
from math import inf
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hopsum.codec.backends import NotCompiledError, compiled_is_wanted, only_cached
from hopsum.codec.interface import address_of
from hopsum.compile_ahead import compile_ahead, compiles_in_child
from hopsum.protocol.retransmit_queue import segments_of
from hopsum.protocol.worker import Worker
from hopsum.protocol.worker_state import AllReduce, Membership
from hopsum.transport import worker_layout as at
from hopsum.transport.link import BATCH_DATAGRAMS, DATAGRAM_BYTES_MAX
from hopsum.transport.offload import SOL_UDP, UDP_SEGMENT
from hopsum.transport.sharded_allreduce import ShardedAllReduce, ShardedAllReduces
from hopsum.transport.udp_link import UdpLink
from hopsum.transport.worker_layout import LoopState, ReduceState, ShardPolls, ShardState, VectorState
from hopsum_base.kernel_structs import IoVector
from hopsum_base.records import offset_of, record_address, records
from hopsum_wire import WIRE_VERSION, Kind, down_bytes
from hopsum_wire._layout import HOPSUM_DTYPE

# Duplicates come in batches, as retransmissions do. A copy into the memory takes as long as ten datagrams in Python.
_REST_DATAGRAMS: Final = 8
"""The number of datagrams that Python processes, beginning with one that is not for the fast path."""
_log: Final = logging.getLogger(__name__)


class ShardMemory:
    """The memory of `worker_kernel` for one worker on one link.

    Args:
        state: this shard's record, which this object fills.
    """

    def __init__(self, link: UdpLink, slots: int, state: ShardState) -> None:
        self.link, self.state = link, state
        self._all_reduces = records(ReduceState, at.REDUCES_MAX)
        self.reduces: Final = list(self._all_reduces)
        self._patterns = np.zeros((at.REDUCES_MAX, 2 * at.HEADER_WORDS), np.uint64)
        batch = DATAGRAM_BYTES_MAX // at.HOPSUM_BYTES
        self._fresh, self.pending = np.zeros(max(slots, batch), np.int64), np.zeros(2 * slots, np.int64)
        self._vectors = records(IoVector, at.SEGMENTS_MAX)
        self._open_position: NDArray[np.int64] | None = None
        """The worker's array when `copy_in` last wrote addresses. Each generation has another array."""
        state.fd, state.waker, state.slots, state.gro = link.fileno(), link.waker.fd, slots, bool(link.offload.gro)
        state.buffer, state.patterns = address_of(link.buffer), address_of(self._patterns)
        state.fresh, state.pending = address_of(self._fresh), address_of(self.pending)
        state.reduces, state.vectors = record_address(self._all_reduces), record_address(self._vectors)
        self._fill_headers()

    def _fill_headers(self) -> None:
        """Set the addresses of the message headers: the link's buffer, and the vectors of a send."""
        state, base = self.state, record_address(self.state)
        state.receive_address = base + offset_of(ShardState, "receive")
        state.send_address = base + offset_of(ShardState, "send")
        state.clock_address = base + offset_of(ShardState, "clock")
        state.receive_vector.address, state.receive_vector.bytes = state.buffer, DATAGRAM_BYTES_MAX
        state.receive.vectors, state.receive.vector_count = base + offset_of(ShardState, "receive_vector"), 1
        state.receive.control = base + offset_of(ShardState, "receive_control")
        state.send.vectors, state.send.control = state.vectors, base + offset_of(ShardState, "send_control")
        state.send_control.bytes = 18  # a cmsghdr of 16 bytes and a uint16
        state.send_control.level, state.send_control.kind = SOL_UDP, UDP_SEGMENT

    def copy_in(self, worker: Worker) -> None:
        """Copy a worker's state into the memory, except its all-reduces."""
        state, queue, own, stream = self.state, worker.queue, worker.state, worker.stream
        rtt, window = queue.rtt, queue.congestion
        state.base, state.stream_end, state.reduce_count = stream.base, stream.end, len(worker.state.active)
        state.open_end, state.in_flight = own.open_end, queue.in_flight
        state.window, state.window_results = window.size, window.results
        state.halved_at, state.srtt_s = window.halved_at, rtt.srtt_s
        state.rttvar_s, state.rto_s, state.measured_at = rtt.rttvar_s, rtt.rto_s, queue.measured_at
        state.gso = bool(self.link.offload.segment)
        if self._open_position is not own.open_position:
            self._open_position = own.open_position
            state.open_position, arrays = address_of(own.open_position), queue.arrays
            state.open, state.sent = address_of(arrays.open), address_of(arrays.sent)
            state.first_sent_at, state.timeout_at = address_of(arrays.first_sent_at), address_of(arrays.timeout_at)
            state.due_at = address_of(arrays.due_at)
            state.rto_min_s, state.rto_max_s = rtt.least_s, rtt.most_s
            state.retransmit_max_s = worker.timing.retransmit_max_s
            state.flush_after_s = worker.timing.flush_after_s or inf
            state.everybody = (1 << worker.membership.workers) - 1

    def copy_in_reduce(self, row: int, reduce: AllReduce, own: Membership, may_open: bool, vector: int) -> None:
        """Fill the row of one all-reduce in progress.

        Args:
            may_open: the value of `StreamState.may_open` for it.
            vector: the row of its vector.
        """
        state = self.reduces[row]
        if not reduce.addresses:
            reduce.addresses = (address_of(reduce.datagrams), *reduce.places.addresses)
        state.datagrams, state.results, state.contributors, state.held = reduce.addresses
        state.update_bytes, state.result_bytes = reduce.datagrams.shape[1], reduce.results.shape[1]
        state.first, state.end, state.missing, state.ready = reduce.first, reduce.end, reduce.missing, reduce.ready
        state.may_open, state.vector = may_open, vector
        self._patterns[row] = _result_pattern(own.generation, own.rank, reduce.op)

    def copy_out(self, worker: Worker) -> None:
        """Copy the changes of a call back into the worker, and add its counts. Deliver complete all-reduces."""
        state, queue, statistics = self.state, worker.queue, worker.statistics
        rtt, window = queue.rtt, queue.congestion
        worker.state.open_end, queue.in_flight = state.open_end, state.in_flight
        window.size, window.results = state.window, state.window_results
        window.halved_at, rtt.srtt_s = state.halved_at, state.srtt_s
        rtt.rttvar_s, rtt.rto_s, queue.measured_at = state.rttvar_s, state.rto_s, state.measured_at
        statistics.results += state.results
        statistics.updates += state.updates
        if state.datagrams_received:
            worker.watch.absences.on_datagram()
        is_complete = False
        for reduce, row in zip(worker.state.active, self.reduces, strict=False):
            reduce.missing, reduce.ready = row.missing, row.ready
            is_complete = is_complete or not reduce.missing
        if is_complete:
            worker.state.deliver(state.now)

    def receive_rest(self, worker: Worker, now: float, most: int | None = None) -> None:
        """Pass datagrams that the compiled loop left in the buffer to the worker: `most` of them, or all."""
        state = self.state
        size, start, stop = max(state.segment, 1), state.rest, state.received
        end = stop if most is None else min(start + most * size, stop)
        state.rest = end
        for first in range(start, end, size):
            worker.receive_datagram(self.link.buffer[first : min(first + size, stop)].data, now)

    def unsent(self, worker: Worker) -> list[NDArray[np.uint8]]:
        """Return the datagrams that the compiled loop has chosen and could not send, without those with a result."""
        pending = self.pending[self.state.pending_first : self.state.pending_end]
        pending = pending[worker.queue.arrays.open[pending % self.state.slots] == pending]
        return list(segments_of(pending, np.zeros(len(pending), np.bool_), worker.state.active)) if pending.size else []

    def add_counts(self) -> None:
        """Add the compiled loop's datagrams, bytes and socket errors of the last call to the link's statistics.

        Logs the start and end of an outage, as the link does.
        """
        state, counts, outage = self.state, self.link.statistics, self.link.outage
        counts.receives += state.receives
        counts.datagrams_received += state.datagrams_received
        counts.bytes_received += state.bytes_received
        counts.sends += state.sends
        counts.datagrams_sent += state.datagrams_sent
        counts.bytes_sent += state.bytes_sent
        if state.sends:
            outage.note_sent()
        if state.ended == at.STOP_RECEIVE:
            self.link.note_failure(OSError(state.errno, os.strerror(state.errno)))
        elif state.ended == at.STOP_SEND and state.errno == errno.ECONNREFUSED:  # the answer to an earlier datagram
            counts.unreachable += 1


class WorkerLoop:
    """The compiled loop of one worker over all its shards.

    Args:
        kernel: the module `worker_kernel`.
        ends: by shard, its link and its number of slots.
    """

    def __init__(self, kernel: Any, ends: Sequence[tuple[UdpLink, int]]) -> None:
        self._kernel = kernel
        self.interrupt: BaseException | None = None
        """The error that a signal handler raised while the kernel waited. The memory is consistent nevertheless."""
        self.loop = LoopState()
        self._all_shards, self._all_vectors = records(ShardState, len(ends)), records(VectorState, at.REDUCES_MAX)
        self._all_polls = records(ShardPolls, len(ends))
        self._polls, self.vectors = list(self._all_polls), list(self._all_vectors)
        self._rows = np.zeros((at.REDUCES_MAX, len(ends)), np.int64)
        self.shards = [ShardMemory(*end, state) for end, state in zip(ends, self._all_shards, strict=True)]
        self.emptied = [False] * len(ends)
        """By shard, whether the last call has drained the socket."""
        loop = self.loop
        loop.layout, loop.shard_count, loop.shards = at.FINGERPRINT, len(ends), record_address(self._all_shards)
        loop.vectors, loop.rows = record_address(self._all_vectors), address_of(self._rows)
        loop.polls = record_address(self._all_polls)
        loop.wait_address = record_address(loop) + offset_of(LoopState, "wait")
        loop.window_all = sum(slots for _, slots in ends)
        loop.batch_chunks = min(at.BATCH_CHUNKS * len(ends), at.BATCH_CHUNKS_MAX)

    def can_run_compiled(self, workers: Sequence[Worker], all_sharded: ShardedAllReduces) -> bool:
        """Return whether the loop can serve the workers now, one of each shard: False without work in progress."""
        in_progress = 0
        for number, worker in enumerate(workers):
            if not worker.can_run_compiled:
                return False
            for reduce in worker.state.active:
                in_progress += 1
                # The all-reduce has failed at another shard.
                if (number, reduce.handle) not in all_sharded.at_shards:
                    return False
        return in_progress > 0 and len(all_sharded.by_handle) <= at.REDUCES_MAX

    def copy_in(self, workers: Sequence[Worker], all_sharded: ShardedAllReduces, limit_at: float) -> int:
        """Copy the workers' state into the memory. Return the address for a call of the kernel.

        Args:
            limit_at: the time at which the call ends, on the clock of `time.monotonic`.
        """
        in_progress = all_sharded.by_handle.values()
        self.loop.vector_count, self._rows[:] = len(in_progress), at.NO_ROW
        for row, sharded in enumerate(in_progress):
            sharded.row = row
            vector = self.vectors[row]
            vector.is_ranges, vector.may_open = False, True
        for number, (memory, worker) in enumerate(zip(self.shards, workers, strict=True)):
            memory.copy_in(worker)
            memory.state.limit_at = limit_at
            may_open = worker.state.may_open()
            for place, reduce in enumerate(worker.state.active):
                row = all_sharded.at_shards[number, reduce.handle].row
                memory.copy_in_reduce(place, reduce, worker.membership, may_open[place], row)
                self._rows[row, number] = place
                if not may_open[place]:
                    self.vectors[row].may_open = False
        for sharded in in_progress:
            self._copy_in_vector(self.vectors[sharded.row], sharded)
        return record_address(self.loop)

    def _copy_in_vector(self, vector: VectorState, sharded: ShardedAllReduce) -> None:
        """Fill the record of a vector, but for `may_open` and `is_ranges`."""
        coder, chunks = sharded.coder, sharded.chunks
        vector.missing, vector.chunks, vector.encoded = sharded.missing, chunks, chunks
        vector.codec = vector.encode = vector.decode = vector.begin = 0
        if coder is None:
            return
        stream, vector.encoded = coder.stream, coder.encoded
        if stream is None or stream.run is None or stream.encoder is None:
            return
        if not stream.begun:
            ranges = sharded.ranges
            if stream.scale_kernel is None:
                return
            for each in ranges:
                # The coder begins by itself, before the next call, if the sums are delivered.
                if not each.missing:
                    return
            vector.begin, vector.lanes_before = stream.scale_kernel.address, sharded.lanes_before
            vector.ranges_first, vector.ranges_end = ranges[0].row, ranges[-1].row + 1
            for row in range(vector.ranges_first, vector.ranges_end):
                self.vectors[row].is_ranges = True
            vector.first_sums, vector.rest_sums = [each.places.addresses[0] for each in (ranges[0], ranges[-1])]
            vector.ranges_sent = ranges[0].reduces[0].addresses[0] + at.HOPSUM_BYTES
        vector.codec, vector.encode = record_address(stream.run), stream.encoder.address
        # A coder that did not read an earlier part reads all sums at the end.
        if stream.decoder is not None and stream.taken == sharded.taken:
            vector.decode = stream.decoder.address
        vector.payloads, vector.taken = address_of(stream.payloads), sharded.taken
        vector.results, vector.contributors, vector.held = sharded.places.addresses

    def copy_out(self, workers: Sequence[Worker], all_sharded: ShardedAllReduces) -> None:
        """Copy the changes of a call back into workers and coders. Deliver complete all-reduces."""
        for memory, worker in zip(self.shards, workers, strict=True):
            # A short vector is in progress at some of the shards only.
            if worker.state.active:
                memory.copy_out(worker)
        for vector, sharded in zip(self.vectors, all_sharded.by_handle.values(), strict=False):
            if vector.codec and sharded.coder is not None and (stream := sharded.coder.stream) is not None:
                stream.encoded, stream.begun = vector.encoded, not vector.begin
                if vector.taken != sharded.taken:
                    stream.taken = sharded.taken = vector.taken

    def run(
        self, workers: Sequence[Worker], all_sharded: ShardedAllReduces, limit_at: float
    ) -> list[list[NDArray[np.uint8]]]:
        """Call the compiled kernel until `limit_at`, a wake-up, a socket error, or an all-reduce with all its results.

        A worker in Python processes a datagram that is not for the fast path, and a few after it. Then the kernel
        continues if it can.

        Args:
            all_sharded: all all-reduces in progress.

        Returns:
            By shard, the datagrams that the caller sends next, uint8[n, bytes] each. They already count as sent.

        Raises:
            RuntimeError: the kernel in numba's cache has another layout of the memory.
        """
        unsent: list[list[NDArray[np.uint8]]] = [[] for _ in workers]
        # Bounded, so that a flood of other datagrams does not delay timers or a thread that waits for the lock.
        for _ in range(BATCH_DATAGRAMS):
            self._serve(self.copy_in(workers, all_sharded, limit_at))
            has_rest = False
            for number, memory in enumerate(self.shards):
                if memory.state.pending_first < memory.state.pending_end:
                    unsent[number] += memory.unsent(workers[number])
            self.copy_out(workers, all_sharded)
            for memory, worker in zip(self.shards, workers, strict=True):
                if memory.state.ended == at.STOP_REST:
                    memory.receive_rest(worker, memory.state.now, _REST_DATAGRAMS)
                    has_rest = True
            if not has_rest and self.loop.stop != at.STOP_DONE:
                break
            # The caller first sends datagrams and processes events.
            is_due = self.interrupt is not None or any(unsent) or any([worker.state.events for worker in workers])
            if is_due or not self.can_run_compiled(workers, all_sharded):
                break
            # The kernel's datagrams have new timers.
            limit_at = min([limit_at, *(due for worker in workers if (due := worker.get_timer()) is not None)])
        return unsent

    def receive_rest(self, workers: Sequence[Worker], now: float) -> None:
        """Pass the unprocessed datagrams in the compiled loop's receive buffers to the workers.

        The caller holds the lock. `now` is the current time, not that of the loop's last batch.
        """
        for memory, worker in zip(self.shards, workers, strict=True):
            # With the current time, because the worker may have sent since the kernel's last batch.
            memory.receive_rest(worker, now)

    def _serve(self, address: int) -> None:
        """Call the kernel, and count its datagrams."""
        try:
            self._kernel.serve(address)
        except BaseException as error:  # of a signal handler, which runs as soon as the machine code has returned
            self.interrupt = error
        stop = self.loop.stop
        if stop == at.STOP_STALE:
            raise RuntimeError(
                "numba's cache has machine code of another version of hopsum: remove the __pycache__ folder next to "
                f"{self._kernel.__file__}"
            )
        for number, (memory, polls) in enumerate(zip(self.shards, self._polls, strict=True)):
            if memory.state.receives or memory.state.sends or memory.state.ended:
                memory.add_counts()
            came = stop == at.STOP_WOKEN and polls.socket.revents & select.POLLIN
            # Datagrams may have come at the same time as what ended the wait.
            self.emptied[number] = stop == at.STOP_TIME or (stop == at.STOP_WOKEN and not came)
            if stop == at.STOP_WOKEN and polls.waker.revents:
                memory.link.waker.clear()


def worker_loop(ends: Sequence[tuple[object, int]]) -> WorkerLoop | None:
    """Return a compiled loop for a worker whose shards have these links and slots, or None.

    None: a link that is not UDP, or no machine code on this host, or not yet. In the last case a child process compiles
    it (`is_being_compiled`).
    """
    sockets = [(link, slots) for link, slots in ends if isinstance(link, UdpLink)]
    kernel = _kernel_at_once() if len(sockets) == len(ends) else None
    return None if kernel is None else WorkerLoop(kernel, sockets)


_ahead: Final = threading.Lock()
"""Held from the moment at which a child process was asked to compile the kernel until it has; for good if it fails."""


def is_being_compiled() -> bool:
    """Return whether a child process compiles the loop. `worker_loop` returns None meanwhile: call it again afterwards.

    If the child fails, this stays true, so that no other child is started.
    """
    return _ahead.locked()


def _kernel_at_once() -> Any | None:
    """Return the module `worker_kernel` with its machine code if it is there now.

    None where there is none, or not yet: then another process compiles it (`is_being_compiled`).
    """
    if not compiles_in_child():
        return compiled_kernel()
    try:
        with only_cached():
            return compiled_kernel()
    except NotCompiledError:
        if _ahead.acquire(blocking=False):

            def take_over() -> None:
                try:
                    compiled_kernel()
                finally:
                    _ahead.release()

            compile_ahead(f"{__name__}:compiled_kernel", {}, take_over, "the worker's loop")
        return None


def compiled_kernel() -> Any | None:
    """Return the module `worker_kernel` with its machine code: from numba's cache, or compiled now, which takes long.

    None, with a WARNING in the log if numba fails: HOPSUM_COMPILED=0, a big-endian machine, or no working numba. Raises
    NotCompiledError within `only_cached` if the cache lacks the code.
    """
    if not compiled_is_wanted() or sys.byteorder != "little":
        return None
    try:
        # numba takes seconds to import: only a worker on a UDP link pays for it
        import hopsum.transport.worker_kernel as kernel

        kernel.serve.compile()
    except NotCompiledError:
        raise
    except Exception:  # numba's errors have no base of their own; the Python worker does the same
        _log.warning("the worker's loop does not compile here: the Python worker is used", exc_info=True)
        return None
    return kernel


@cache
def _result_pattern(generation: int, rank: int, op: int) -> NDArray[np.uint64]:
    """Return the words of a RESULT's header for a worker, and behind them which bits of these words count."""
    both = np.zeros(2, HOPSUM_DTYPE)
    values = {"version": WIRE_VERSION, "kind": Kind.RESULT, "op": op, "worker": rank, "generation": generation}
    for name, value in {**values, "length": down_bytes(op)}.items():
        both[name] = value, np.iinfo(HOPSUM_DTYPE[name]).max
    return both.view(np.uint64)
