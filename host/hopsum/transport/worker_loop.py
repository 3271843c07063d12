# SPDX-License-Identifier: Apache-2.0
"""The compiled loop of a worker on a UDP socket: what is plain is received, taken and answered without Python.

`WorkerLoop.run` lends the worker's arrays and numbers to `worker_kernel.serve`, and gives them back. A worker is plain
while nothing but RESULTs in the order of its slots is to be expected: it runs, no datagram waits to be sent again, no
result came early or is asked of peers, and no result was decided by a change of generation. All else is left to the
Python worker, whose state is equal after any history.

HOPSUM_COMPILED=0 turns the loop off.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import sys
from functools import cache
from math import inf
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hopsum.codec.backends import compiled_is_wanted
from hopsum.codec.interface import ChunkStream, address_of
from hopsum.protocol.retransmit_queue import Transmissions
from hopsum.protocol.segments import segments_of
from hopsum.protocol.worker import Worker
from hopsum.protocol.worker_state import AllReduce, Membership
from hopsum.transport import worker_layout as at
from hopsum.transport.link import BATCH_DATAGRAMS, DATAGRAM_BYTES_MAX
from hopsum.transport.offload import SOL_UDP, UDP_SEGMENT
from hopsum.transport.udp_link import UdpLink
from hopsum_wire import WIRE_VERSION, Kind, down_bytes
from hopsum_wire._layout import HOPSUM_DTYPE

_CMSG_BYTES: Final = 24
_log: Final = logging.getLogger(__name__)


class WorkerLoop:
    """The memory of `worker_kernel` for one worker on one link.

    Args:
        kernel: the module `worker_kernel`.
        slots: of the job.
    """

    def __init__(self, kernel: Any, link: UdpLink, slots: int) -> None:
        self._kernel, self._link = kernel, link
        self.interrupt: BaseException | None = None
        """The error that a signal handler raised while the kernel waited. Its state is as after any return."""
        self.streams: dict[int, ChunkStream] = {}
        """By handle of an all-reduce in progress, its codes, where the kernel may encode and decode them."""
        self._rows: dict[int, tuple[NDArray[np.uint8], tuple[int, ...], tuple[int, int, int, int]]] = {}
        """By handle of an all-reduce in progress, its datagrams, and the parts of its row that stay."""
        self.words = np.zeros(at.WORDS, np.int64)
        self.clocks = np.zeros(at.CLOCKS)
        self.reduces = np.zeros((at.REDUCES_MAX, at.REDUCE_WORDS), np.int64)
        self.patterns = np.zeros((at.REDUCES_MAX, 2 * at.HEADER_WORDS), np.uint64)
        self.everybody = np.zeros(1, np.uint64)
        train = DATAGRAM_BYTES_MAX // at.HOPSUM_BYTES
        self.fresh, self.pending = np.zeros(max(slots, train), np.int64), np.zeros(2 * slots, np.int64)
        self._vectors = np.zeros(2 * at.SEGMENTS_MAX, np.int64)
        self._socket = self._message_headers()
        self._lent: tuple[NDArray[Any], ...] = ()
        """The arrays whose addresses `lend` returned last: to ask numpy for them again takes longer than a look."""
        self._addresses = np.zeros(0, np.int64)
        words = self.words
        words[at.FD], words[at.WAKER] = link.fileno(), link.waker
        words[at.SLOTS], words[at.JOINED] = slots, link.offload.gro
        words[at.BUFFER_AT] = address_of(link.buffer)
        words[at.SOCKET_AT], words[at.LAYOUT] = address_of(self._socket), at.FINGERPRINT

    def _message_headers(self) -> NDArray[np.int64]:
        """Return the kernel's message headers, which point to the link's buffer and to the vectors of a send."""
        socket = np.zeros(at.SOCKET_WORDS, np.int64)
        base = address_of(socket)
        socket[at.RX + 2], socket[at.RX + 3] = base + 8 * at.RX_VECTOR, 1
        socket[at.RX_VECTOR], socket[at.RX_VECTOR + 1] = address_of(self._link.buffer), DATAGRAM_BYTES_MAX
        socket[at.RX + 4], socket[at.RX + 5] = base + 8 * at.RX_CONTROL, _CMSG_BYTES
        socket[at.TX + 2], socket[at.TX + 4] = address_of(self._vectors), base + 8 * at.TX_CONTROL
        # struct cmsghdr on 64-bit Linux: length, then level and type in one word, then the segment size.
        socket[at.TX_CONTROL] = 18  # a cmsghdr of 16 bytes and a uint16
        socket[at.TX_CONTROL + 1] = SOL_UDP | UDP_SEGMENT << 32
        return socket

    # ---- lending ------------------------------------------------------------------------------------------

    def is_plain(self, worker: Worker) -> bool:
        """Say whether the loop can have the worker now."""
        return worker.is_plain and 0 < len(worker.in_progress) <= at.REDUCES_MAX

    def awaits(self, worker: Worker) -> bool:
        """Say whether an all-reduce in progress lacks payloads that the kernel would have made."""
        return any(each.handle in self.streams and each.ready < len(each.held) for each in worker.in_progress)

    def lend(self, worker: Worker, limit_at: float) -> NDArray[np.int64]:
        """Fill the memory from a plain worker; return the addresses that a call of the kernel takes.

        Args:
            limit_at: the time at which the call ends, on the clock of `time.monotonic`.
        """
        words, clocks, queue, stream = self.words, self.clocks, worker.queue, worker.stream
        # Counts and results of the last call; the numbers before STOP are set below or stay.
        words[at.STOP : at.REST] = words[at.NEW :] = 0
        # What Python opened since the last call is in no list: the kernel looks at all slots once.
        words[at.NARROW] = 1
        words[at.CUTS] = self._link.offload.segment
        words[at.BASE], words[at.STREAM_END], words[at.OPEN_END] = stream.base, stream.end, worker.open_end
        words[at.REDUCES] = len(worker.in_progress)
        opens = worker.may_open() if self.streams else [False] * len(worker.in_progress)
        for row, reduce in enumerate(worker.in_progress):
            self.reduces[row] = self._row(reduce, opens=opens[row])
            self.patterns[row] = result_pattern(worker.membership, reduce.op)
        self.everybody[0] = (1 << worker.membership.workers) - 1
        timing, rtt, window = worker.timing, queue.rtt, queue.congestion
        words[at.ON_THE_WAY], words[at.WINDOW], words[at.WINDOW_RESULTS] = queue.on_the_way, window.size, window.results
        words[at.MEASURES] = rtt.srtt_s is not None
        clocks[at.LIMIT_AT], clocks[at.RTO_MIN], clocks[at.RTO_MAX] = limit_at, rtt.least_s, rtt.most_s
        clocks[at.RETRANSMIT_MAX] = timing.retransmit_max_s
        clocks[at.FLUSH_AFTER] = inf if timing.flush_after_s is None else timing.flush_after_s
        clocks[at.MEASURED_AT], clocks[at.RTO], clocks[at.RTTVAR] = queue.measured_at, rtt.rto_s, rtt.rttvar_s
        clocks[at.SRTT] = rtt.srtt_s or 0.0
        clocks[at.HALVED_AT] = inf if window.halved_at is None else window.halved_at
        own = (*queue.arrays, worker.open_position)
        memory = (words, clocks, self.reduces, self.patterns, self.everybody, *own, self.fresh, self.pending)
        arrays = (*memory, self._link.buffer, self._socket, self._vectors)
        if not self._lent or any(new is not old for new, old in zip(arrays, self._lent, strict=True)):
            self._lent, self._addresses = arrays, np.array([address_of(array) for array in arrays], np.int64)
        return self._addresses

    def _row(self, reduce: AllReduce, *, opens: bool) -> tuple[int, ...]:
        """Return an all-reduce as the kernel has it."""
        # A change of generation stamps other datagrams. All other arrays stay.
        known = self._rows.get(reduce.handle)
        stream = self.streams.get(reduce.handle)
        if known is None or known[0] is not reduce.datagrams:
            arrays: list[NDArray[Any]] = [reduce.datagrams, reduce.results, reduce.contributors, reduce.held]
            places = (*map(address_of, arrays), reduce.datagrams.shape[1], reduce.results.shape[1])
            codes = (0, 0, 0, 0)
            if stream is not None and stream.memory is not None and stream.encoder is not None:
                decode_at = 0 if stream.decoder is None else stream.decoder.address
                codes = (address_of(stream.memory), stream.encoder.address, decode_at, address_of(stream.payloads))
            known = self._rows[reduce.handle] = (reduce.datagrams, places, codes)
        row = (reduce.first, reduce.end, reduce.missing, *known[1])
        if stream is None or stream.memory is None:
            return (*row, reduce.tell_at, reduce.ready, opens, 0, 0, 0, 0, 0)
        memory_at, encode_at, decode_at, payloads_at = known[2]
        # Parts that the reduction has not taken yet come first, in Python.
        if stream.taken != reduce.told:
            decode_at = 0
        return (*row, 0, reduce.ready, opens, memory_at, encode_at, decode_at, payloads_at, stream.taken)

    def give_back(self, worker: Worker) -> None:
        """Take over into the worker what a call has changed. Complete all-reduces are delivered."""
        words, clocks, queue = self.words, self.clocks, worker.queue
        rtt, window, statistics = queue.rtt, queue.congestion, worker.statistics
        queue.on_the_way, queue.measured_at = int(words[at.ON_THE_WAY]), float(clocks[at.MEASURED_AT])
        window.size, window.results = int(words[at.WINDOW]), int(words[at.WINDOW_RESULTS])
        window.halved_at = None if clocks[at.HALVED_AT] == inf else float(clocks[at.HALVED_AT])
        if words[at.MEASURES]:
            rtt.srtt_s, rtt.rttvar_s = float(clocks[at.SRTT]), float(clocks[at.RTTVAR])
            rtt.rto_s = float(clocks[at.RTO])
            statistics.srtt_s = rtt.srtt_s
        statistics.window = window.size
        statistics.results += int(words[at.RESULTS])
        statistics.updates += int(words[at.UPDATES])
        rows = self.reduces[: len(worker.in_progress)].tolist()
        for row, reduce in enumerate(worker.in_progress):
            reduce.missing = rows[row][at.MISSING]
            stream = self.streams.get(reduce.handle)
            if stream is not None:
                reduce.ready = stream.encoded = rows[row][at.READY]
                if rows[row][at.DECODE_AT] and rows[row][at.TAKEN] != stream.taken:
                    stream.taken = rows[row][at.TAKEN]
                    reduce.note_told(stream.taken)
        worker.deliver(float(clocks[at.NOW]), int(words[at.OPEN_END]))
        self.forget(worker)

    def forget(self, worker: Worker) -> None:
        """Drop the rows and streams of all-reduces that are no longer in progress."""
        if max(len(self._rows), len(self.streams)) > len(worker.in_progress):
            handles = {reduce.handle for reduce in worker.in_progress}
            for memory in (self._rows, self.streams):
                for handle in memory.keys() - handles:
                    del memory[handle]

    # ---- calls ---------------------------------------------------------------------------------------------

    def run(self, worker: Worker, limit_at: float) -> list[NDArray[np.uint8]]:
        """Let the kernel serve a plain worker until `limit_at`, or until there is something that is not plain.

        The worker itself takes a datagram that is not plain. The kernel continues where the worker is plain again.

        Returns:
            What is to be sent next, uint8[n, bytes] each: it was counted as sent.

        Raises:
            RuntimeError: the kernel in numba's cache has another layout of the memory.
        """
        unsent: list[NDArray[np.uint8]] = []
        # A flood of datagrams that are not plain must not keep the caller from its timers, nor a thread from the lock.
        for _ in range(BATCH_DATAGRAMS):
            self._serve(worker, limit_at)
            unsent = self._unsent(worker)
            self.give_back(worker)
            if self.words[at.DATAGRAMS_RECEIVED]:
                worker.absence.end()  # A1: a datagram came, so the switch is there
            if self.words[at.STOP] == at.STOP_REST:
                self.take_rest(worker, 1)
            elif self.words[at.STOP] != at.STOP_DONE:
                break
            # Else the caller has something to do first.
            if unsent or worker.has_events or self.interrupt is not None or not self.is_plain(worker):
                break
        return unsent

    def _serve(self, worker: Worker, limit_at: float) -> None:
        addresses = self.lend(worker, limit_at)
        try:
            self._kernel.serve(addresses)
        except BaseException as error:  # of a signal handler, which runs as soon as the machine code has returned
            self.interrupt = error
        if self.words[at.STOP] == at.STOP_STALE:
            raise RuntimeError(
                "numba's cache has machine code of another version of hopsum: remove the __pycache__ folder beside "
                f"{self._kernel.__file__}"
            )
        self._count()

    def take_rest(self, worker: Worker, most: int | None) -> None:
        """Give the worker datagrams that the kernel left in the buffer: `most` of them, or all."""
        words, now = self.words, float(self.clocks[at.NOW])
        size, stop = max(int(words[at.SEGMENT]), 1), int(words[at.RECEIVED])
        start = int(words[at.REST])
        end = stop if most is None else min(start + most * size, stop)
        words[at.REST] = end
        for first in range(start, end, size):
            worker.receive_datagram(self._link.buffer[first : min(first + size, stop)].data, now)

    @property
    def has_rest(self) -> bool:
        """Say whether the buffer has datagrams that nobody has taken. Another receive would overwrite them."""
        return bool(self.words[at.REST] < self.words[at.RECEIVED])

    @property
    def has_emptied(self) -> bool:
        """Say whether the last call ended with nothing left to read in the socket."""
        if self.words[at.STOP] == at.STOP_WOKEN:  # while it waited, and datagrams may have come at the same time
            return not self._socket[at.POLL] >> 48 & select.POLLIN
        return bool(self.words[at.STOP] == at.STOP_TIME)

    def _unsent(self, worker: Worker) -> list[NDArray[np.uint8]]:
        """Return the datagrams of the positions that the kernel chose and could not send."""
        words = self.words
        pending = self.pending[words[at.PENDING] : words[at.PENDING_END]]
        pending = pending[worker.queue.arrays.open[pending % words[at.SLOTS]] == pending]
        if not pending.size:
            return []
        return list(segments_of(Transmissions(pending, np.zeros(len(pending), np.bool_)), worker.in_progress))

    def _count(self) -> None:
        """Count in the link's statistics what the kernel did at the socket, and what it met there."""
        words, counts = self.words, self._link.statistics
        counts.receives += int(words[at.RECEIVES])
        counts.datagrams_received += int(words[at.DATAGRAMS_RECEIVED])
        counts.bytes_received += int(words[at.BYTES_RECEIVED])
        counts.sends += int(words[at.SENDS])
        counts.datagrams_sent += int(words[at.DATAGRAMS_SENT])
        counts.bytes_sent += int(words[at.BYTES_SENT])
        number = int(words[at.ERRNO])
        if words[at.SENDS]:
            self._link.note_sent()
        if words[at.STOP] == at.STOP_RECEIVE:
            self._link.note_failure(OSError(number, os.strerror(number)))
        elif words[at.STOP] == at.STOP_SEND and number == errno.ECONNREFUSED:  # the answer to an earlier datagram
            counts.unreachable += 1
        if words[at.STOP] == at.STOP_WOKEN:
            self._link.clear_waker()


def worker_loop(link: object, slots: int) -> WorkerLoop | None:
    """Return a loop for a worker on a link; None where there is none: another link, or no machine code here."""
    kernel = compiled_kernel() if isinstance(link, UdpLink) else None
    return WorkerLoop(kernel, link, slots) if isinstance(link, UdpLink) and kernel is not None else None


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


def result_pattern(own: Membership, op: int) -> NDArray[np.uint64]:
    """Return the words of a RESULT's header for this worker, and behind them which bits of these words count."""
    return _pattern(own.generation, own.rank, op)


@cache
def _pattern(generation: int, rank: int, op: int) -> NDArray[np.uint64]:
    both = np.zeros(2, HOPSUM_DTYPE)
    values = {"version": WIRE_VERSION, "kind": Kind.RESULT, "op": op, "worker": rank, "generation": generation}
    for name, value in {**values, "length": down_bytes(op)}.items():
        both[name] = value, np.iinfo(HOPSUM_DTYPE[name]).max
    return both.view(np.uint64)
