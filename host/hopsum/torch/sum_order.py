# SPDX-License-Identifier: Apache-2.0
"""The order in which hooks hand vectors to a communicator: that of their calls, the same on all ranks.

A communicator may have several hooks, as those of two models in one backward pass. Each hands over vectors when a
bucket is there, which is the order of the program. A vector that follows from the sum of another one, as the second
factor of a matrix, is there at another time on each rank. So its hook reserves a place in the order:

    call                   where no place is open   while a place is open, or others wait
    submit, group_start,   made at once             waits for its turn
      group_end
    reserve                the place is open        waits for its turn
    close_place                                     the place is closed: what waits is done, up to the next place

In an open place its hook alone calls the communicator. A group of other hooks that is open then is ended before and
begun again after it: its last vector would wait for a follower, which is behind the place.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Final
from weakref import WeakKeyDictionary

from hopsum.agent import AllReduceResult, Communicator


class _Waiting:
    """The calls of one communicator that are not made yet."""

    def __init__(self) -> None:
        self.calls: deque[Callable[[], None]] = deque()
        self.groups = 0
        """Groups that hooks have open, one inside the other. The communicator has one of them."""
        self._lock = threading.Lock()
        self._running = self._held = False

    def put(self, call: Callable[[], None]) -> None:
        """Make a call when its turn comes: now, in this thread, unless something is before it."""
        with self._lock:
            self.calls.append(call)
        self._run()

    def hold(self) -> None:
        """Make no further call until `release`. In a call."""
        self._held = True

    def release(self) -> None:
        with self._lock:
            self._held = False
        self._run()

    def _run(self) -> None:
        # One thread at a time, without the lock: a call may end others' futures, whose callbacks may come here.
        while True:
            with self._lock:
                if self._running or self._held or not self.calls:
                    return
                self._running = True
                call = self.calls.popleft()
            try:
                call()
            finally:
                with self._lock:
                    self._running = False


_waiting: Final[WeakKeyDictionary[Communicator, _Waiting]] = WeakKeyDictionary()
_lock: Final = threading.Lock()


class SumOrder:
    """One hook's access to a communicator, in one order with all other hooks of it. Any thread.

    Args:
        communicator: of the hook. It keeps the order, also where the hook is made anew.
    """

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator
        with _lock:
            self._waiting = _waiting.setdefault(communicator, _Waiting())

    def submit(
        self,
        submit: Callable[[], Future[AllReduceResult]],
        then: Callable[[Future[AllReduceResult]], object],
        fail: Callable[[BaseException], object],
    ) -> None:
        """Submit a vector when its turn comes.

        Args:
            submit: hands it to the communicator.
            then: is called with the future once that is done.
            fail: is called with the exception that `submit` raises.
        """

        def call() -> None:
            try:
                future = submit()
            except BaseException as error:
                fail(error)
                if not isinstance(error, Exception):
                    raise
            else:
                future.add_done_callback(then)

        self._waiting.put(call)

    def group_start(self) -> None:
        """Begin a group of all-reduces when its turn comes. Groups of several hooks share one of the communicator."""
        self._waiting.put(partial(self._count_groups, 1))

    def group_end(self) -> None:
        """End this hook's group when its turn comes. The last one ends that of the communicator."""
        self._waiting.put(partial(self._count_groups, -1))

    def reserve(self, begin: Callable[[], object]) -> None:
        """Keep a place for vectors that are not there yet. `close_place` closes it.

        Args:
            begin: is called when the turn has come: the caller may use the communicator itself from then on.
        """
        self._waiting.put(partial(self._open, begin))

    def close_place(self) -> None:
        """Close the open place. Make the calls that wait, in this thread, up to the next place."""
        if self._waiting.groups:
            self._communicator.group_start()
        self._waiting.release()

    def _count_groups(self, change: int) -> None:
        before, self._waiting.groups = self._waiting.groups, self._waiting.groups + change
        if not before:
            self._communicator.group_start()
        elif not self._waiting.groups:
            self._communicator.group_end()

    def _open(self, begin: Callable[[], object]) -> None:
        self._waiting.hold()
        if self._waiting.groups:
            self._communicator.group_end()
        begin()
