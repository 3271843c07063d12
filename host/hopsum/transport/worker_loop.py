# SPDX-License-Identifier: Apache-2.0
"""The compiled loop of a worker on UDP sockets: what is plain is received, taken and answered without Python.

`WorkerLoop.run` lends the arrays and numbers of the worker at each shard to `worker_kernel.serve`, and takes them back.
A worker is plain while nothing but RESULTs in the order of its slots is to be expected: it runs, no datagram waits to
be sent again, no result came early or is asked of peers, and no result was decided by a change of generation. All else
is left to the Python worker, whose state is equal after any history.

HOPSUM_COMPILED=0 turns the loop off.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import sys
from collections.abc import Sequence
from functools import cache
from math import inf
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hopsum.codec.backends import compiled_is_wanted
from hopsum.codec.interface import address_of
from hopsum.protocol.retransmit_queue import segments_of
from hopsum.protocol.worker import Worker
from hopsum.protocol.worker_state import AllReduce, Membership
from hopsum.transport import worker_layout as at
from hopsum.transport.link import BATCH_DATAGRAMS, DATAGRAM_BYTES_MAX
from hopsum.transport.offload import SOL_UDP, UDP_SEGMENT
from hopsum.transport.spread import Spread, Spreads
from hopsum.transport.udp_link import UdpLink
from hopsum_wire import WIRE_VERSION, Kind, down_bytes
from hopsum_wire._layout import HOPSUM_DTYPE

_CMSG_BYTES: Final = 24
# Copies come in trains, as what was sent again. To lend the memory again takes as long as some ten datagrams in Python.
_REST_DATAGRAMS: Final = 8
"""The datagrams that Python takes from the first one on that is not plain."""
_NO_CODES: Final = (0,) * (at.QUIET - at.CODES_AT)
_log: Final = logging.getLogger(__name__)


class ShardMemory:
    """The memory of `worker_kernel` for one worker on one link.

    Args:
        job: the arrays that all shards share.
        words, clocks: this shard's rows of the arrays that have a row for each shard.
    """

    def __init__(
        self,
        link: UdpLink,
        slots: int,
        job: tuple[NDArray[Any], ...],
        words: NDArray[np.int64],
        clocks: NDArray[np.float64],
    ) -> None:
        self.link, self.words, self.clocks = link, words, clocks
        self._job = job
        self.reduces = np.zeros((at.REDUCES_MAX, at.REDUCE_WORDS), np.int64)
        self.patterns = np.zeros((at.REDUCES_MAX, 2 * at.HEADER_WORDS), np.uint64)
        self.everybody = np.zeros(1, np.uint64)
        train = DATAGRAM_BYTES_MAX // at.HOPSUM_BYTES
        self.fresh, self.pending = np.zeros(max(slots, train), np.int64), np.zeros(2 * slots, np.int64)
        self._vectors = np.zeros(2 * at.SEGMENTS_MAX, np.int64)
        self._socket = self._message_headers()
        self._open_position: NDArray[np.int64] | None = None
        """The worker's array of that name when `lend` last wrote addresses. Another generation has another one."""
        words[at.FD], words[at.WAKER] = link.fileno(), link.waker.fd
        words[at.SLOTS], words[at.JOINED] = slots, link.offload.gro
        words[at.BUFFER_AT], words[at.SOCKET_AT] = address_of(link.buffer), address_of(self._socket)

    def _message_headers(self) -> NDArray[np.int64]:
        """Return the kernel's message headers, which point to the link's buffer and to the vectors of a send."""
        socket = np.zeros(at.SOCKET_WORDS, np.int64)
        base = address_of(socket)
        socket[at.RX + 2], socket[at.RX + 3] = base + 8 * at.RX_VECTOR, 1
        socket[at.RX_VECTOR], socket[at.RX_VECTOR + 1] = address_of(self.link.buffer), DATAGRAM_BYTES_MAX
        socket[at.RX + 4], socket[at.RX + 5] = base + 8 * at.RX_CONTROL, _CMSG_BYTES
        socket[at.TX + 2], socket[at.TX + 4] = address_of(self._vectors), base + 8 * at.TX_CONTROL
        # struct cmsghdr on 64-bit Linux: length, then level and type in one word, then the segment size.
        socket[at.TX_CONTROL] = 18  # a cmsghdr of 16 bytes and a uint16
        socket[at.TX_CONTROL + 1] = SOL_UDP | UDP_SEGMENT << 32
        return socket

    def lend(self, worker: Worker, addresses: NDArray[np.int64]) -> None:
        """Fill the memory from a plain worker, but for its all-reduces. `addresses`: int64[ADDRESSES], to be filled."""
        queue, state, stream = worker.queue, worker.state, worker.stream
        rtt, window, halved_at = queue.rtt, queue.congestion, queue.congestion.halved_at
        # numpy takes longer for one number than for all of these at once.
        self.words[at.BASE : at.ENDED] = (
            stream.base, stream.end, len(worker.in_progress), state.open_end, rtt.srtt_s is not None,
            queue.on_the_way, window.size, window.results,
        )  # fmt: skip
        halved_at = inf if halved_at is None else halved_at
        self.clocks[at.MEASURED_AT : at.NOW] = queue.measured_at, rtt.srtt_s or 0.0, rtt.rttvar_s, rtt.rto_s, halved_at
        self.words[at.CUTS] = self.link.offload.segment
        if self._open_position is not state.open_position:
            self._open_position, flush_after_s = state.open_position, worker.timing.flush_after_s
            fixed = (rtt.least_s, rtt.most_s, worker.timing.retransmit_max_s, flush_after_s or inf)
            self.clocks[at.RTO_MIN : at.MEASURED_AT] = fixed
            self.everybody[0] = (1 << worker.membership.workers) - 1
            own = (self.words, self.clocks, self.reduces, self.patterns, self.everybody, *queue.arrays)
            memory = (state.open_position, self.fresh, self.pending, self.link.buffer, self._socket, self._vectors)
            addresses[:] = [address_of(array) for array in (*self._job, *own, *memory)]

    def lend_reduce(self, number: int, reduce: AllReduce, own: Membership, opens: bool, row: int) -> None:
        """Fill the row of one all-reduce in progress.

        Args:
            opens: `StreamState.may_open` says so of it.
            row: of its vector in `streams`.
        """
        if not reduce.lent:
            sizes = (reduce.datagrams.shape[1], reduce.results.shape[1])
            reduce.lent = (address_of(reduce.datagrams), *reduce.places.addresses, *sizes)
        where = (reduce.first, reduce.end, reduce.missing, *reduce.lent)
        self.reduces[number] = (*where, reduce.ready, opens, row)
        self.patterns[number] = _result_pattern(own.generation, own.rank, reduce.op)

    def give_back(self, worker: Worker, words: Sequence[int], clocks: Sequence[float]) -> None:
        """Take over into the worker what a call has changed. Complete all-reduces are delivered.

        `words`, `clocks`: the same as the arrays of these names.
        """
        queue, statistics = worker.queue, worker.statistics
        rtt, window = queue.rtt, queue.congestion
        worker.state.open_end, measures, queue.on_the_way, window.size, window.results = words[at.OPEN_END : at.ENDED]
        queue.measured_at, srtt_s, rtt.rttvar_s, rtt.rto_s, halved_at = clocks[at.MEASURED_AT : at.NOW]
        rtt.srtt_s = srtt_s if measures else None
        window.halved_at = None if halved_at == inf else halved_at
        statistics.results += words[at.RESULTS]
        statistics.updates += words[at.UPDATES]
        if words[at.DATAGRAMS_RECEIVED] and worker.absence.answers:
            worker.absence.end()  # A1: a datagram came, so the switch is there
        is_complete = False
        for row, reduce in zip(self.reduces[: len(worker.in_progress)].tolist(), worker.in_progress, strict=True):
            reduce.missing, reduce.ready = row[at.MISSING], row[at.READY]
            is_complete = is_complete or not reduce.missing
        if is_complete:
            worker.state.deliver(clocks[at.NOW])

    def take_rest(self, worker: Worker, now: float, most: int | None = None) -> None:
        """Give the worker datagrams that the kernel left in the buffer: `most` of them, or all."""
        words = self.words
        size, stop = max(int(words[at.SEGMENT]), 1), int(words[at.RECEIVED])
        start = int(words[at.REST])
        end = stop if most is None else min(start + most * size, stop)
        words[at.REST] = end
        for first in range(start, end, size):
            worker.receive_datagram(self.link.buffer[first : min(first + size, stop)].data, now)

    @property
    def has_rest(self) -> bool:
        """Say whether the buffer has datagrams that nobody has taken. Another receive would overwrite them."""
        return bool(self.words[at.REST] < self.words[at.RECEIVED])

    def unsent(self, worker: Worker) -> list[NDArray[np.uint8]]:
        """Return the datagrams of the positions that the kernel chose and could not send."""
        words = self.words
        pending = self.pending[words[at.PENDING] : words[at.PENDING_END]]
        pending = pending[worker.queue.arrays.open[pending % words[at.SLOTS]] == pending]
        return list(segments_of(pending, np.zeros(len(pending), np.bool_), worker.in_progress)) if pending.size else []

    def count(self, words: Sequence[int]) -> None:
        """Count in the link's statistics what `worker_kernel` did at the socket, and the errors that it met there.

        `words`: the same as the array of this name.
        """
        counts, outage = self.link.statistics, self.link.outage
        counts.receives += words[at.RECEIVES]
        counts.datagrams_received += words[at.DATAGRAMS_RECEIVED]
        counts.bytes_received += words[at.BYTES_RECEIVED]
        counts.sends += words[at.SENDS]
        counts.datagrams_sent += words[at.DATAGRAMS_SENT]
        counts.bytes_sent += words[at.BYTES_SENT]
        if words[at.SENDS] and outage.since is not None:
            outage.note_sent()
        number = words[at.ERRNO]
        if words[at.ENDED] == at.STOP_RECEIVE:
            self.link.note_failure(OSError(number, os.strerror(number)))
        elif words[at.ENDED] == at.STOP_SEND and number == errno.ECONNREFUSED:  # the answer to an earlier datagram
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
        """The error that a signal handler raised while the kernel waited. Its state is as after any return."""
        self.job = np.zeros(at.JOB_WORDS, np.int64)
        self.streams = np.zeros((at.REDUCES_MAX, at.STREAM_WORDS), np.int64)
        self._rows = np.zeros((at.REDUCES_MAX, len(ends)), np.int64)
        self._words, self._clocks = np.zeros((len(ends), at.WORDS), np.int64), np.zeros((len(ends), at.CLOCKS))
        shared = (self.job, self.streams, self._rows)
        each = zip(ends, self._words, self._clocks, strict=True)
        self.shards = [ShardMemory(link, slots, shared, words, clocks) for (link, slots), words, clocks in each]
        self._polls, self._time = np.zeros(2 * len(ends), np.int64), np.zeros(2, np.int64)
        self._addresses = np.zeros((len(ends), at.ADDRESSES), np.int64)
        self.emptied = [False] * len(ends)
        """By shard: the last call ended with nothing left to read in the socket."""
        job = self.job
        job[at.SHARDS], job[at.POLLS_AT], job[at.TIME_AT] = len(ends), address_of(self._polls), address_of(self._time)
        job[at.LAYOUT], job[at.WINDOW_ALL] = at.FINGERPRINT, sum(slots for _, slots in ends)
        job[at.TRAIN] = min(at.TRAIN_CHUNKS * len(ends), at.TRAIN_CHUNKS_MAX)

    def is_plain(self, workers: Sequence[Worker], spreads: Spreads) -> bool:
        """Say whether the loop can have the workers now, one of each shard."""
        in_progress = 0
        for number, worker in enumerate(workers):
            if not worker.is_plain:
                return False
            for reduce in worker.in_progress:
                in_progress += 1
                # The rest of an all-reduce that has failed at another shard is nobody's.
                if (number, reduce.handle) not in spreads.at_shards:
                    return False
        return in_progress > 0 and len(spreads.by_handle) <= at.REDUCES_MAX

    def lend(self, workers: Sequence[Worker], spreads: Spreads, limit_at: float) -> NDArray[np.int64]:
        """Fill the memory from plain workers. Return the addresses that a call of the kernel takes.

        Args:
            limit_at: the time at which the call ends, on the clock of `time.monotonic`.
        """
        vectors = spreads.by_handle.values()
        begins = [1] * len(vectors)
        self.job[at.STREAMS], self.streams[:, at.QUIET], self._rows[:] = len(vectors), 0, at.NO_ROW
        # Counts and results of the last call. What Python opened since then is in no list: the kernel looks at all
        # slots once (NARROW).
        self._words[:, at.ENDED : at.REST] = self._words[:, at.NEW :] = 0
        self._words[:, at.NARROW] = 1
        self._clocks[:, at.LIMIT_AT] = limit_at
        for row, spread in enumerate(vectors):
            spread.row = row
        for number, (memory, worker) in enumerate(zip(self.shards, workers, strict=True)):
            memory.lend(worker, self._addresses[number])
            opens = worker.state.may_open()
            for place, reduce in enumerate(worker.in_progress):
                row = spreads.at_shards[number, reduce.handle].row
                memory.lend_reduce(place, reduce, worker.membership, opens[place], row)
                self._rows[row, number] = place
                begins[row] = begins[row] and opens[place]
        for spread in vectors:
            self.streams[spread.row, : at.QUIET] = self._stream(spread, begins[spread.row])
        return self._addresses.reshape(-1)

    def _stream(self, spread: Spread, begins: int) -> tuple[int, ...]:
        """Return a vector as the kernel has it."""
        coder, chunks = spread.coder, len(spread.places.held)
        if coder is None:
            return (spread.missing, chunks, chunks, begins, *_NO_CODES)
        row, stream = (spread.missing, chunks, coder.encoded, begins), coder.stream
        if stream is None or stream.memory is None or stream.encoder is None:
            return (*row, *_NO_CODES)
        begin: tuple[int, ...] = (0,) * (at.QUIET - at.BEGIN_AT)
        if not stream.begun:
            ranges = spread.ranges
            if stream.beginner is None:
                return (*row, *_NO_CODES)
            for each in ranges:
                # Sums that are delivered are the coder's: it begins before the next call.
                if not each.missing:
                    return (*row, *_NO_CODES)
            ranges_end = ranges[-1].row + 1
            self.streams[ranges[0].row : ranges_end, at.QUIET] = 1
            sums = [each.places.addresses[0] for each in (ranges[0], ranges[-1])]
            sent = ranges[0].reduces[0]
            assert sent is not None
            sent_at = sent.lent[0] + at.HOPSUM_BYTES
            begin = (stream.beginner.address, ranges[0].row, ranges_end, sent_at, *sums, spread.lanes_before)
        decode_at = 0
        # What the coder did not read, though it was asked to, it reads in the end.
        if stream.decoder is not None and stream.taken == spread.taken:
            decode_at = stream.decoder.address
        codes = (address_of(stream.memory), stream.encoder.address, decode_at, address_of(stream.payloads))
        return (*row, *codes, spread.taken, *spread.places.addresses, *begin)

    def give_back(self, workers: Sequence[Worker], spreads: Spreads) -> None:
        """Take over into workers and coders what a call has changed. Complete all-reduces are delivered."""
        numbers = zip(self.shards, workers, self._words.tolist(), self._clocks.tolist(), strict=True)
        for memory, worker, words, clocks in numbers:
            # Without one nothing can have changed. A short vector is in progress at one shard of many.
            if worker.in_progress:
                memory.give_back(worker, words, clocks)
        for row, spread in zip(self.streams.tolist(), spreads.by_handle.values(), strict=False):
            if row[at.CODES_AT] and spread.coder is not None and (stream := spread.coder.stream) is not None:
                stream.encoded, stream.begun = row[at.MADE], not row[at.BEGIN_AT]
                if row[at.TAKEN] != spread.taken:
                    stream.taken = spread.taken = row[at.TAKEN]

    def run(self, workers: Sequence[Worker], spreads: Spreads, limit_at: float) -> list[list[NDArray[np.uint8]]]:
        """Call the compiled kernel until `limit_at`, a wake-up, a socket error, or an all-reduce with all its results.

        A worker in Python takes a datagram that is not plain, and a few after it. The kernel continues where all
        workers are plain again.

        Args:
            spreads: all all-reduces in progress.

        Returns:
            By shard, the datagrams that the caller sends next, uint8[n, bytes] each. They are counted as sent already.

        Raises:
            RuntimeError: the kernel in numba's cache has another layout of the memory.
        """
        unsent: list[list[NDArray[np.uint8]]] = [[] for _ in workers]
        # A flood of datagrams that are not plain must not keep the caller from its timers, nor a thread from the lock.
        for _ in range(BATCH_DATAGRAMS):
            rows, has_rest = self._serve(self.lend(workers, spreads, limit_at)), False
            for number, words in enumerate(rows):
                if words[at.PENDING] < words[at.PENDING_END]:
                    unsent[number] += self.shards[number].unsent(workers[number])
            self.give_back(workers, spreads)
            for memory, worker, words in zip(self.shards, workers, rows, strict=True):
                if words[at.ENDED] == at.STOP_REST:
                    memory.take_rest(worker, float(memory.clocks[at.NOW]), _REST_DATAGRAMS)
                    has_rest = True
            if not has_rest and self.job[at.STOP] != at.STOP_DONE:
                break
            # Else the caller has something to do first.
            for number, worker in enumerate(workers):
                if unsent[number] or worker.events or self.interrupt is not None:
                    return unsent
            if not self.is_plain(workers, spreads):
                break
            # What the kernel has sent meanwhile has timers of its own.
            limit_at = min([limit_at, *(due for worker in workers if (due := worker.get_timer()) is not None)])
        return unsent

    def take_rest(self, workers: Sequence[Worker], now: float) -> None:
        """Give the workers all datagrams that the kernel left in the buffers."""
        for memory, worker in zip(self.shards, workers, strict=True):
            # Now: the worker may have sent something since the kernel's last train, and measures round trips.
            memory.take_rest(worker, now)

    @property
    def has_rest(self) -> bool:
        """Say whether a buffer has datagrams that nobody has taken."""
        return any(memory.has_rest for memory in self.shards)

    def _serve(self, addresses: NDArray[np.int64]) -> list[list[int]]:
        """Call the kernel. Return the words of each shard afterwards."""
        try:
            self._kernel.serve(addresses)
        except BaseException as error:  # of a signal handler, which runs as soon as the machine code has returned
            self.interrupt = error
        stop = int(self.job[at.STOP])
        if stop == at.STOP_STALE:
            raise RuntimeError(
                "numba's cache has machine code of another version of hopsum: remove the __pycache__ folder beside "
                f"{self._kernel.__file__}"
            )
        polls, rows = self._polls.tolist(), list[list[int]](self._words.tolist())
        for number, (memory, words) in enumerate(zip(self.shards, rows, strict=True)):
            if words[at.RECEIVES] or words[at.SENDS] or words[at.ENDED]:
                memory.count(words)
            came = stop == at.STOP_WOKEN and polls[2 * number] >> 48 & select.POLLIN
            # Datagrams may have come at the same time as what ended the wait.
            self.emptied[number] = stop == at.STOP_TIME or (stop == at.STOP_WOKEN and not came)
            if stop == at.STOP_WOKEN and polls[2 * number + 1] >> 48:
                memory.link.waker.clear()
        return rows


def worker_loop(ends: Sequence[tuple[object, int]]) -> WorkerLoop | None:
    """Return a loop for a worker whose shards have these links and slots.

    None where there is none: another link than UDP, or no machine code here.
    """
    sockets = [(link, slots) for link, slots in ends if isinstance(link, UdpLink)]
    kernel = compiled_kernel() if len(sockets) == len(ends) else None
    return None if kernel is None else WorkerLoop(kernel, sockets)


def compiled_kernel() -> Any | None:
    """Return the module `worker_kernel` with its machine code, from numba's cache if it is there.

    None where there is no machine code: HOPSUM_COMPILED=0, a big-endian machine, or a numba that fails.
    """
    if not compiled_is_wanted() or sys.byteorder != "little":
        return None
    try:
        # numba takes seconds to import: only a worker on a UDP link pays for it
        import hopsum.transport.worker_kernel as kernel

        kernel.serve.compile()
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
