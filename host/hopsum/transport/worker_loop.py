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
import sys
from importlib import import_module
from math import inf
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hopsum.protocol.batch import result_pattern
from hopsum.protocol.retransmit_queue import Transmissions
from hopsum.protocol.segments import segments_of
from hopsum.protocol.worker import Worker
from hopsum.protocol.worker_state import AllReduce
from hopsum.transport.link import DATAGRAM_BYTES_MAX
from hopsum.transport.offload import SOL_UDP, UDP_SEGMENT
from hopsum.transport.udp_link import SegmentRun, UdpLink, arrays_of

COMPILED_VARIABLE: Final = "HOPSUM_COMPILED"
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
        self.words = np.zeros(kernel.WORDS, np.int64)
        self.clocks = np.zeros(kernel.CLOCKS)
        self.reduces = np.zeros((kernel.REDUCES_MAX, kernel.REDUCE_WORDS), np.int64)
        self.patterns = np.zeros((kernel.REDUCES_MAX, 2 * kernel.HEADER_WORDS), np.uint64)
        self.everybody = np.zeros(1, np.uint64)
        train = DATAGRAM_BYTES_MAX // kernel.HEADER_BYTES
        self.fresh, self.pending = np.zeros(max(slots, train), np.int64), np.zeros(2 * slots, np.int64)
        self._vectors = np.zeros(2 * kernel.SEGMENTS_MAX, np.int64)
        self._socket = self._message_headers()
        words = self.words
        words[kernel.FD], words[kernel.WAKER] = link.fileno(), link.waker
        words[kernel.SLOTS], words[kernel.JOINED] = slots, link.offload.gro
        words[kernel.BUFFER_AT] = _address(link.buffer)
        words[kernel.SOCKET_AT], words[kernel.VECTORS_AT] = _address(self._socket), _address(self._vectors)

    def _message_headers(self) -> NDArray[np.int64]:
        """Return the kernel's message headers, which point to the link's buffer and to the vectors of a send."""
        k = self._kernel
        socket = np.zeros(k.SOCKET_WORDS, np.int64)
        base = _address(socket)
        socket[k.RX + 2], socket[k.RX + 3] = base + 8 * k.RX_VECTOR, 1
        socket[k.RX_VECTOR], socket[k.RX_VECTOR + 1] = _address(self._link.buffer), DATAGRAM_BYTES_MAX
        socket[k.RX + 4], socket[k.RX + 5] = base + 8 * k.RX_CONTROL, _CMSG_BYTES
        socket[k.TX + 2], socket[k.TX + 4] = _address(self._vectors), base + 8 * k.TX_CONTROL
        socket[k.TX_CONTROL] = 18  # a cmsghdr of 16 bytes and a uint16
        socket[k.TX_CONTROL + 1] = SOL_UDP | UDP_SEGMENT << 32
        return socket

    # ---- lending ------------------------------------------------------------------------------------------

    def is_plain(self, worker: Worker) -> bool:
        """Say whether the loop can have the worker now."""
        return worker.is_plain and 0 < len(worker.in_progress) <= self._kernel.REDUCES_MAX

    def lend(self, worker: Worker, limit_at: float) -> NDArray[np.int64]:
        """Fill the memory from a plain worker; return the addresses that a call of the kernel takes.

        Args:
            limit_at: the time at which the call ends, on the clock of `time.monotonic`.
        """
        k, words, clocks, queue, stream = self._kernel, self.words, self.clocks, worker.queue, worker.stream
        words[k.STOP :] = 0
        words[k.CUTS] = self._link.offload.segment
        words[k.BASE], words[k.STREAM_END], words[k.OPEN_END] = stream.base, stream.end, worker.open_end
        words[k.REDUCES] = len(worker.in_progress)
        for row, reduce in enumerate(worker.in_progress):
            self.reduces[row] = _row(reduce)
            self.patterns[row] = result_pattern(worker.membership, reduce.op)
        self.everybody[0] = (1 << worker.membership.workers) - 1
        timing, rtt, window = worker.timing, queue.rtt, queue.congestion
        words[k.ON_THE_WAY], words[k.WINDOW], words[k.WINDOW_RESULTS] = queue.on_the_way, window.size, window.results
        words[k.NARROW] = window.size < self.words[k.SLOTS]
        words[k.MEASURES] = rtt.srtt_s is not None
        clocks[k.LIMIT_AT], clocks[k.RTO_MIN], clocks[k.RTO_MAX] = limit_at, rtt.least_s, rtt.most_s
        clocks[k.RETRANSMIT_MAX] = timing.retransmit_max_s
        clocks[k.FLUSH_AFTER] = inf if timing.flush_after_s is None else timing.flush_after_s
        clocks[k.MEASURED_AT], clocks[k.RTO], clocks[k.RTTVAR] = queue.measured_at, rtt.rto_s, rtt.rttvar_s
        clocks[k.SRTT] = rtt.srtt_s or 0.0
        clocks[k.HALVED_AT] = inf if window.halved_at is None else window.halved_at
        own = (*queue.arrays, worker.open_position)
        memory = (words, clocks, self.reduces, self.patterns, self.everybody, *own, self.fresh, self.pending)
        arrays = (*memory, self._link.buffer, self._socket, self._vectors)
        return np.array([_address(array) for array in arrays], np.int64)

    def give_back(self, worker: Worker) -> None:
        """Take over into the worker what a call has changed; complete all-reduces are delivered."""
        k, words, clocks, queue = self._kernel, self.words, self.clocks, worker.queue
        rtt, window, statistics = queue.rtt, queue.congestion, worker.statistics
        queue.on_the_way, queue.measured_at = int(words[k.ON_THE_WAY]), float(clocks[k.MEASURED_AT])
        window.size, window.results = int(words[k.WINDOW]), int(words[k.WINDOW_RESULTS])
        window.halved_at = None if clocks[k.HALVED_AT] == inf else float(clocks[k.HALVED_AT])
        if words[k.MEASURES]:
            rtt.srtt_s, rtt.rttvar_s = float(clocks[k.SRTT]), float(clocks[k.RTTVAR])
            rtt.rto_s = float(clocks[k.RTO])
            statistics.srtt_s = rtt.srtt_s
        statistics.window = window.size
        statistics.results += int(words[k.RESULTS])
        statistics.updates += int(words[k.UPDATES])
        missing = self.reduces[:, k.MISSING].tolist()
        for row, reduce in enumerate(list(worker.in_progress)):
            reduce.missing = missing[row]
        worker.deliver(float(clocks[k.NOW]))

    # ---- calls ---------------------------------------------------------------------------------------------

    def run(self, worker: Worker, limit_at: float) -> list[NDArray[np.uint8]]:
        """Let the kernel serve a plain worker until `limit_at`, or until there is something that is not plain.

        Returns:
            What is to be sent next, uint8[n, bytes] each: it was counted as sent.
        """
        k, words = self._kernel, self.words
        k.serve(self.lend(worker, limit_at))
        self._count()
        unsent = self._unsent(worker)
        self.give_back(worker)
        if words[k.DATAGRAMS_RECEIVED]:
            worker.absence.end()
            rest = SegmentRun(int(words[k.REST]), int(words[k.RECEIVED]), int(words[k.SEGMENT]))
            if rest.start < rest.stop:
                for rows in arrays_of(self._link.buffer, [rest]):
                    worker.receive_rows(rows, float(self.clocks[k.NOW]))
        return unsent

    def _unsent(self, worker: Worker) -> list[NDArray[np.uint8]]:
        """Return the datagrams of the positions that the kernel chose and could not send."""
        k, words = self._kernel, self.words
        pending = self.pending[words[k.PENDING] : words[k.PENDING_END]]
        pending = pending[worker.queue.arrays.open[pending % words[k.SLOTS]] == pending]
        if not pending.size:
            return []
        return list(segments_of(Transmissions(pending, np.zeros(len(pending), np.bool_)), worker.in_progress))

    def _count(self) -> None:
        """Count in the link's statistics what the kernel did at the socket, and what it met there."""
        k, words, counts = self._kernel, self.words, self._link.statistics
        counts.receives += int(words[k.RECEIVES])
        counts.datagrams_received += int(words[k.DATAGRAMS_RECEIVED])
        counts.bytes_received += int(words[k.BYTES_RECEIVED])
        counts.sends += int(words[k.SENDS])
        counts.datagrams_sent += int(words[k.DATAGRAMS_SENT])
        counts.bytes_sent += int(words[k.BYTES_SENT])
        number = int(words[k.ERRNO])
        if words[k.SENDS]:
            self._link.note_sent()
        if words[k.STOP] == k.STOP_RECEIVE:
            self._link.note_failure(OSError(number, os.strerror(number)))
        elif words[k.STOP] == k.STOP_SEND and number == errno.ECONNREFUSED:  # the answer to an earlier datagram
            counts.unreachable += 1
        if words[k.STOP] == k.STOP_WOKEN:
            self._link.clear_waker()


def worker_loop(link: object, slots: int) -> WorkerLoop | None:
    """Return a loop for a worker on a link; None where there is none: another link, or no machine code here."""
    if not isinstance(link, UdpLink) or os.environ.get(COMPILED_VARIABLE) == "0" or sys.byteorder != "little":
        return None
    try:
        kernel = import_module("hopsum.transport.worker_kernel")
    except Exception:  # numba's errors have no base of their own; the Python worker does the same
        _log.warning("the worker's loop does not compile here: the Python worker is used", exc_info=True)
        return None
    return WorkerLoop(kernel, link, slots)


def _row(reduce: AllReduce) -> tuple[int, ...]:
    """Return an all-reduce as the kernel has it."""
    addresses = (_address(array) for array in (reduce.datagrams, reduce.results, reduce.contributors, reduce.held))
    sizes = (reduce.datagrams.shape[1], reduce.results.shape[1])
    return reduce.first, reduce.end, reduce.missing, *addresses, *sizes


def _address(array: NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
