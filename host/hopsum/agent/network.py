# SPDX-License-Identifier: Apache-2.0
"""The thread that has the socket: puts exchanges into the worker's stream and says when their results are there."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Final, NamedTuple

from hopsum.agent.order import Arrived, Task
from hopsum.agent.values import Traffic
from hopsum.codec.base import Exchange
from hopsum.protocol.worker import AllReduceDone
from hopsum.transport.udp import UdpTransport

_WAIT_S: Final = 1.0
"""For a datagram at a time, at most; new exchanges end the wait."""
_POLL_S: Final = 0.005
"""The same for a link that cannot be woken."""


class Failed(NamedTuple):
    """An exchange of a task has no results. Without a task the thread itself failed: nothing more comes."""

    task: Task | None
    error: BaseException


class Network:
    """A thread around a transport, which is its own until it has ended.

    Args:
        deliver: called in the thread, with what became of each exchange.
    """

    def __init__(self, transport: UdpTransport, deliver: Callable[[Arrived | Failed], None], name: str) -> None:
        self._transport = transport
        self._deliver = deliver
        self._submitted: SimpleQueue[tuple[Task, Exchange] | None] = SimpleQueue()
        self._tasks: dict[int, Task] = {}
        self._stopping = threading.Event()
        self._wait_s = _WAIT_S if transport.can_wake else _POLL_S
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    def submit(self, task: Task, exchange: Exchange) -> None:
        """Append an exchange to the stream."""
        self._submitted.put((task, exchange))
        self._transport.wake()

    def stop(self) -> None:
        """Let the thread end, whatever is in progress, and wait for it. Harmless when it has ended."""
        self._stopping.set()
        self._submitted.put(None)
        self._transport.wake()
        self.thread.join()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._take_in()
                if self._tasks:
                    self._move()
        except BaseException as error:
            self._deliver(Failed(None, error))

    def _take_in(self) -> None:
        """Submit what is waiting; wait for it when nothing is in progress."""
        try:
            while (submitted := self._submitted.get(block=not self._tasks)) is not None:
                task, exchange = submitted
                try:
                    handle = self._transport.submit(exchange.op, exchange.payloads, exchange.counts())
                except Exception as error:
                    self._deliver(Failed(task, error))
                else:
                    self._tasks[handle] = task
        except Empty:
            return

    def _move(self) -> None:
        for event in self._transport.step(self._wait_s):
            task = self._tasks.pop(event.handle)
            if isinstance(event, AllReduceDone):
                self._deliver(Arrived(task, event, Traffic.of(self._transport.statistics)))
            else:
                self._deliver(Failed(task, event.error))
