# SPDX-License-Identifier: Apache-2.0
"""The thread that runs an agent's event loop, and its wake-ups. No codec, vector or network here.

One thread at a time runs ("drives") the engine: the agent's thread, or a caller of `allreduce` if no other thread does,
which saves a wake-up.

    driver              input                                      next
    none                `put`                                      the agent's thread, by a wake-up
    none                `help` (allreduce)                         the caller, until its own future is done
    a caller            its future is done, others are left        the agent's thread
    the agent's thread  nothing is in progress                     none
"""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, Final, Generic, Protocol, TypeVar

Message = TypeVar("Message")


class Driven(Protocol):
    """The engine of a driver. Only the driving thread calls its methods, except `wake`."""

    @property
    def is_closed(self) -> bool:
        """Whether CLOSE came, or the engine broke."""

    def drive(self, until: Future[Any] | None) -> None:
        """Run until a future is done; without a future, while anything is in progress."""

    def is_left(self) -> bool:
        """Say whether anything in progress can advance."""

    def note_break(self, error: BaseException) -> None:
        """Record an error at an unknown point, after which the state of the all-reduces is undefined."""

    def end(self) -> None:
        """End all remaining all-reduces. The last call."""

    def wake(self) -> None:
        """End the current wait for the network, or else the next one. Any thread."""


class Driver(Generic[Message]):
    """Lets one thread at a time drive an engine. `put`, `help` and `is_driven_here` are for any thread.

    The driving thread sets `in_network` while it waits for the network, or is about to.
    """

    def __init__(self, engine: Driven) -> None:
        # Callers and the lease reach the driving thread only by these messages. deque.append is reentrant, so callbacks
        # and signal handlers may use it.
        self.inbox: Final[deque[Message]] = deque()
        """The pending messages. The driving thread removes them."""
        self.in_network = False
        self.interrupt: BaseException | None = None
        """The error that a signal handler raised in a wait of the driving thread."""
        self._engine: Final = engine
        self._lock: Final = threading.Lock()
        """Held by the driving thread."""
        self._driven_by = 0
        """The identity of the driving thread, 0 for none."""
        self._wakeups: Final[SimpleQueue[None]] = SimpleQueue()
        """Wakes the agent's thread while no thread drives."""
        self._waits = False
        """Whether the driving thread waits for a message only, or is about to."""
        self._arrivals: Final[SimpleQueue[None]] = SimpleQueue()
        """Ends the wait for a message."""

    @property
    def is_driven_here(self) -> bool:
        """Say whether the calling thread drives: it must not wait for a future, which it would have to resolve."""
        # A new thread may get the identity of an ended one.
        return self._driven_by == threading.get_ident() and self._lock.locked()

    def put(self, message: Message, *, ring: bool = True) -> None:
        """Send the engine a message. Without `ring` the agent's thread is not woken: the caller calls `help` next."""
        self.inbox.append(message)
        # Read after the append: the driving thread reads the inbox after it has set these flags.
        if self.in_network:
            self._engine.wake()
        elif self._waits:
            self._arrivals.put(None)
        if ring and not self._lock.locked():
            self._wakeups.put(None)

    def help(self, future: Future[Any]) -> None:
        """Drive in this thread until a future is done. Return at once if another thread drives.

        Afterwards the agent's thread drives if anything is left. Raises the error of a signal handler in this thread.
        """
        if self._lock.locked():
            return
        try:
            # `with` releases the lock wherever a signal handler raises. If another thread is faster, this one waits.
            with self._lock:
                interrupt = self._drive_here(future)
        finally:
            self._pass_on()
        if interrupt is not None:
            raise interrupt

    def run(self) -> None:
        """Drive at each wake-up until the engine is closed; then end the remaining all-reduces."""
        try:
            while not self._engine.is_closed:
                self._wakeups.get()
                # One turn serves all wake-ups so far.
                while not self._wakeups.empty():
                    self._wakeups.get()
                with self._lock:
                    interrupt = self._drive_here(None)
                if interrupt is not None:
                    raise interrupt
                self._pass_on()
        except BaseException as error:  # errors of codec and network end an all-reduce, and do not come here
            self._engine.note_break(error)
            raise
        finally:
            with self._lock:
                self._driven_by = threading.get_ident()
                self._engine.end()

    def wait_for_message(self, wait_s: float | None) -> None:
        """Wait until the inbox has a message, for `wait_s` at most, None without a limit. Only for the driving thread.

        The error of a signal handler ends the wait and is stored in `interrupt`.
        """
        self._waits = True
        try:
            # Read after `_waits` is set: a later message ends the wait.
            if not self.inbox:
                self._arrivals.get(timeout=wait_s)
        except Empty:
            return
        except BaseException as error:
            self.interrupt = error
        finally:
            self._waits = False

    def _drive_here(self, until: Future[Any] | None) -> BaseException | None:
        """Drive in this thread, which holds the lock. Return a signal handler's error, for this thread to raise."""
        self._driven_by = threading.get_ident()
        try:
            self._engine.drive(until)
            interrupt, self.interrupt = self.interrupt, None
        except BaseException as error:
            self._engine.note_break(error)
            raise
        finally:
            self._driven_by = 0
        return interrupt

    def _pass_on(self) -> None:
        """Wake the agent's thread if all-reduces are left, or a message came without a wake-up."""
        if self.inbox or self._engine.is_left():
            self._wakeups.put(None)
