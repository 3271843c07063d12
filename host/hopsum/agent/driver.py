# SPDX-License-Identifier: Apache-2.0
"""Who drives an agent's engine, and what wakes that thread. Nothing here knows of codecs, vectors or the network.

One thread at a time drives the engine: the agent's own, or a caller of `allreduce` who finds nothing under way and so
needs nobody to wake up.

    who drives      input                                     next
    nobody          `put`                                     the agent's thread, which a wake-up reaches
    nobody          `help` (allreduce)                        the caller, until its own future is done
    a caller        its future is done, something is left     the agent's thread
    the agent's     nothing is in progress                    nobody
"""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, Final, Generic, Protocol, TypeVar

Message = TypeVar("Message")


class Driven(Protocol):
    """An engine. The thread that drives calls all of it but `wake`."""

    @property
    def is_closed(self) -> bool:
        """Whether CLOSE came, or the engine broke."""

    def drive(self, until: Future[Any] | None) -> None:
        """Do what is to be done until a future is done; without a future, while anything is in progress."""

    def is_left(self) -> bool:
        """Say whether anything is in progress that can move."""

    def note_break(self, error: BaseException) -> None:
        """Note an error between two statements, after which nobody knows what is true of the all-reduces."""

    def end(self) -> None:
        """End all that is left. Nothing follows."""

    def wake(self) -> None:
        """End the wait for the network that is in progress, or else the next one. Any thread."""


class Driver(Generic[Message]):
    """Lets one thread at a time drive an engine. `put`, `help` and `is_here` are for any thread.

    The thread that drives sets `in_network` while it waits for the network, or is about to.
    """

    def __init__(self, engine: Driven) -> None:
        # The only way to whoever drives: callers and the lease put messages here. deque.append is reentrant, so
        # callbacks and signal handlers may use it.
        self.inbox: Final[deque[Message]] = deque()
        """The messages that nobody has taken. The thread that drives removes them."""
        self.in_network = False
        self.interrupt: BaseException | None = None
        """The error that a signal handler raised in a wait of the thread that drives."""
        self._engine: Final = engine
        self._lock: Final = threading.Lock()
        """Held by the thread that drives."""
        self._driven_by = 0
        """The identity of that thread, 0 for nobody."""
        self._wakeups: Final[SimpleQueue[None]] = SimpleQueue()
        """Wakes the agent's thread while nobody drives."""
        self._waits = False
        """The thread that drives waits for a message alone, or is about to."""
        self._arrivals: Final[SimpleQueue[None]] = SimpleQueue()
        """Ends that wait."""

    @property
    def is_here(self) -> bool:
        """Say whether the calling thread drives: it must not wait for what only that thread can bring."""
        # A later thread may get the identity of one that has ended.
        return self._driven_by == threading.get_ident() and self._lock.locked()

    def put(self, message: Message, *, ring: bool = True) -> None:
        """Let the engine have a message. Without `ring` nobody is woken to drive: the caller calls `help` next."""
        self.inbox.append(message)
        # Read after the message is there: the thread that drives looks into the inbox after it changes these.
        if self.in_network:
            self._engine.wake()
        elif self._waits:
            self._arrivals.put(None)
        if ring and not self._lock.locked():
            self._wakeups.put(None)

    def help(self, future: Future[Any]) -> None:
        """Drive until a future is done, unless another thread drives, which does it then.

        Raises the error of a signal handler in this thread. The agent's thread then serves the rest.
        """
        if self._lock.locked():
            return
        try:
            # `with` lets go of the lock wherever a signal handler raises. If another thread is faster, this one waits.
            with self._lock:
                interrupt = self._drive_here(future)
        finally:
            self._pass_on()
        if interrupt is not None:
            raise interrupt

    def run(self) -> None:
        """Drive at each wake-up while nobody else does, until the engine is closed; then end what is left."""
        try:
            while not self._engine.is_closed:
                self._wakeups.get()
                # One turn serves all that rang until now.
                while not self._wakeups.empty():
                    self._wakeups.get()
                with self._lock:
                    interrupt = self._drive_here(None)
                if interrupt is not None:
                    raise interrupt
                self._pass_on()
        except BaseException as error:  # no codec's and not the network's: those end an all-reduce
            self._engine.note_break(error)
            raise
        finally:
            with self._lock:
                self._driven_by = threading.get_ident()
                self._engine.end()

    def wait_for_message(self, wait_s: float | None) -> None:
        """Wait until a message is there, for `wait_s` at most. Only for the thread that drives."""
        self._waits = True
        try:
            # Looked at after `_waits` is set: a message that comes later ends the wait.
            if not self.inbox:
                self._arrivals.get(timeout=wait_s)
        except Empty:
            return
        except BaseException as error:
            self.interrupt = error
        finally:
            self._waits = False

    def _drive_here(self, until: Future[Any] | None) -> BaseException | None:
        """Drive in this thread, which has the lock. Return the error of a signal handler: no other thread raises it."""
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
        """Let the agent's thread drive if something is left, or came meanwhile without ringing."""
        if self.inbox or self._engine.is_left():
            self._wakeups.put(None)
