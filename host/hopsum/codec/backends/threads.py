# SPDX-License-Identifier: Apache-2.0
"""Threads for kernels that release the interpreter lock: the only module of the codecs that has any.

Blocks are independent and know their number, so any split over threads gives the same bytes. Helpers sleep at a queue
between calls, and the end of a call is a lock: both are short against the 0.1 ms in which the second thread wakes up,
which futures are not.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Final

MIN_THREAD_BYTES: Final = 256 << 10
"""Less input than this is not worth waking a thread for."""
_pools: Final[dict[int, SimpleQueue[_Call]]] = {}
_pools_lock: Final = Lock()
if hasattr(os, "register_at_fork"):  # Windows has no fork
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
    # Helpers that are busy elsewhere come late or not at all: this thread drains the jobs itself.
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
        # Held until the last helper is out. A lock is the cheapest way to sleep and be woken once.
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
            # A helper that comes late must not touch jobs whose caller has returned.
            if self._closed:
                return
            self._helpers += 1
        try:
            self.drain()
        except BaseException as error:
            self.error = error
        with self._lock:
            self._helpers -= 1
            # Hand-over: the last helper wakes the caller, which waits in `close`.
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
