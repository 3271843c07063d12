# SPDX-License-Identifier: Apache-2.0
"""Threads for kernels that release the interpreter lock: the only module of the codecs that has any.

Blocks are independent and know their number, so any split over threads gives the same bytes. Helpers sleep at a queue
between calls, and the end of a call is a lock: both are short against the 0.1 ms in which the second thread wakes up
(docs/notebook.md), which futures are not.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hopsum.codec.backends.kernels import BlockKeys, Form, Kernels, TableSteps

MIN_THREAD_BYTES: Final = 256 << 10
"""Less input than this is not worth waking a thread for."""
_PARTS_PER_THREAD: Final = 4
"""The parts for each thread. With several, a thread that is held up leaves little to wait for."""
_pools: Final[dict[int, SimpleQueue[_Call]]] = {}
_pools_lock: Final = Lock()
os.register_at_fork(after_in_child=_pools.clear)  # a pool's threads stay behind in the parent


def run_parallel(jobs: Sequence[Callable[[], None]], threads: int) -> None:
    """Run jobs on up to `threads` threads, this one among them, and return when all have ended.

    Jobs start in order, each on whichever thread is free. Pools are made on first use, one per number of threads,
    and shared by all callers. A job may call this function again.

    Raises:
        An exception that a job raised, after all that had started ended. Some jobs may not have run then.
    """
    helpers = min(threads, len(jobs)) - 1
    if helpers <= 0:
        for job in jobs:
            job()
        return
    call = _Call(jobs)
    calls = _pool(threads)
    for _ in range(helpers):
        calls.put(call)
    try:
        call.drain()
    finally:
        call.close()
    if call.error is not None:
        raise call.error


class _Call:
    """The jobs of one call, and how many helpers are at them. One that comes when it is closed goes away."""

    def __init__(self, jobs: Sequence[Callable[[], None]]) -> None:
        self._waiting = deque(jobs)
        self._lock = Lock()
        self._helpers = 0
        self._closed = False
        self._ended = Lock()
        self._ended.acquire()
        self.error: BaseException | None = None

    def drain(self) -> None:
        """Run jobs until none waits."""
        while True:
            try:
                job = self._waiting.popleft()
            except IndexError:
                return
            job()

    def help(self) -> None:
        """Run jobs too, unless the call is closed."""
        with self._lock:
            if self._closed:
                return
            self._helpers += 1
        try:
            self.drain()
        except BaseException as error:
            self.error = error
        with self._lock:
            self._helpers -= 1
            last = self._closed and not self._helpers
        if last:
            self._ended.release()

    def close(self) -> None:
        """Let no helper in, and wait for those that are."""
        with self._lock:
            self._closed = True
            busy = self._helpers > 0
        if busy:
            self._ended.acquire()


def _pool(threads: int) -> SimpleQueue[_Call]:
    """Return the queue that the helpers of calls with so many threads wait at."""
    with _pools_lock:
        if threads not in _pools:
            calls: SimpleQueue[_Call] = SimpleQueue()
            for number in range(threads - 1):
                Thread(target=_serve, args=(calls,), name=f"hopsum-codec-{threads}-{number}", daemon=True).start()
            _pools[threads] = calls
        return _pools[threads]


def _serve(calls: SimpleQueue[_Call]) -> None:
    while True:
        calls.get().help()


class ThreadedKernels:
    """A backend of one thread on several. See `Kernels`. Short arrays stay on the calling one."""

    def __init__(self, kernels: Kernels, threads: int) -> None:
        self.name = kernels.name
        self.threads = threads
        self._kernels = kernels

    def root_mean_square(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        out = np.empty(len(x), np.float32)

        def work(rows: slice) -> None:
            out[rows] = self._kernels.root_mean_square(x[rows])

        self._split(work, x)
        return out

    def peak_bits(self, x: NDArray[np.float32]) -> NDArray[np.uint32]:
        out = np.empty(len(x), np.uint32)

        def work(rows: slice) -> None:
            out[rows] = self._kernels.peak_bits(x[rows])

        self._split(work, x)
        return out

    def thc_encode(
        self,
        x: NDArray[np.float32],
        scales: NDArray[np.float32],
        shifts: NDArray[np.int32],
        steps: TableSteps,
        form: Form,
        keys: BlockKeys,
        out: NDArray[np.uint8],
    ) -> None:

        def work(rows: slice) -> None:
            own = keys.advanced(rows.start)
            self._kernels.thc_encode(x[rows], scales[rows], shifts[rows], steps, form, own, out[rows])

        self._split(work, x)

    def thc_dequantize(
        self,
        payloads: NDArray[np.uint8],
        factors: NDArray[np.float32],
        steps: TableSteps,
        form: Form,
        keys: BlockKeys,
        out: NDArray[np.float32],
        subtract: bool,
    ) -> None:

        def work(rows: slice) -> None:
            own = keys.advanced(rows.start)
            self._kernels.thc_dequantize(payloads[rows], factors[rows], steps, form, own, out[rows], subtract)

        self._split(work, out)

    def thc_decode(
        self,
        lanes: NDArray[np.uint8],
        counts: NDArray[np.int32],
        factors: NDArray[np.float32],
        granularity: int,
        form: Form,
        keys: BlockKeys,
        out: NDArray[np.float32],
    ) -> NDArray[np.int32]:
        peaks = np.empty(len(lanes), np.int32)

        def work(rows: slice) -> None:
            given = (lanes[rows], counts[rows], factors[rows], granularity, form, keys.advanced(rows.start))
            peaks[rows] = self._kernels.thc_decode(*given, out[rows])

        self._split(work, out)
        return peaks

    def fixed_encode(
        self, x: NDArray[np.float32], scales: NDArray[np.float32], limit: np.float32, out: NDArray[np.uint32]
    ) -> None:
        self._split(lambda rows: self._kernels.fixed_encode(x[rows], scales[rows], limit, out[rows]), x)

    def fixed_decode(self, lanes: NDArray[np.uint32], divisors: NDArray[np.float64], out: NDArray[np.float32]) -> None:
        self._split(lambda rows: self._kernels.fixed_decode(lanes[rows], divisors[rows], out[rows]), out)

    def _split(self, work: Callable[[slice], None], floats: NDArray[Any]) -> None:
        """Call work with consecutive runs of rows. `floats` is the array that says how much it is."""
        parts = min(self.threads * _PARTS_PER_THREAD, max(1, floats.nbytes // MIN_THREAD_BYTES))
        edges = [len(floats) * part // parts for part in range(parts + 1)]
        run_parallel([partial(work, slice(*edge)) for edge in pairwise(edges)], self.threads)
