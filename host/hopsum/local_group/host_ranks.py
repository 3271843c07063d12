# SPDX-License-Identifier: Apache-2.0
"""The ranks of a job by their hosts, and the communicator that the leader and the members of a host have in common."""

from __future__ import annotations

import select
from abc import abstractmethod
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from hopsum.agent import Communicator, CommunicatorClosedError
from hopsum.agent.task import Task
from hopsum.codec import Codec
from hopsum.errors import AllReduceError, HopsumError, name_ranks
from hopsum.local_group.member_messages import Connection, generation_ended_error
from hopsum.transport.link import Waker


@dataclass(frozen=True, slots=True)
class LocalGroup:
    """The hosts of a job, as one rank sees them."""

    hosts: tuple[tuple[int, ...], ...]
    """The ranks of each host, ascending; hosts in the order of their lowest ranks. A host's place is its worker."""
    rank: int
    """The rank that this is."""

    @property
    def ranks(self) -> int:
        """The number of ranks on all hosts."""
        return sum(map(len, self.hosts))

    @property
    def host(self) -> int:
        """Return the number of this rank's host, which is also the rank of its worker in the job."""
        return next(number for number, ranks in enumerate(self.hosts) if self.rank in ranks)

    @property
    def local(self) -> tuple[int, ...]:
        """Return the ranks of this host; the first one is the leader."""
        return self.hosts[self.host]

    @property
    def leader(self) -> int:
        """Return the lowest rank of this host, which is the host's worker in the job."""
        return self.local[0]

    def in_words(self, error: HopsumError) -> str:
        """Return the text of an error of the job, extended by the ranks on the hosts that the error names.

        An error that names no worker is extended by the ranks of this host.
        """
        named = [*getattr(error, "ranks", ()), *getattr(error, "missing_ranks", ())] or [self.host]
        told = "; ".join(
            f"worker {number} is the host of {name_ranks(self.hosts[number])}"
            for number in named
            if number < len(self.hosts)
        )
        return f"{error} (with local_group a worker of the job is a host: {told})"


class LocalRank(Communicator):
    """The communicator of one rank of a host: its queue, and the thread that reads messages of the host's other ranks.

    A subclass starts the thread at the end of its constructor.

    Args:
        group: the ranks of each host of the job.
        connections: to the leader, or to the members.
        deadline_s: the longest wait for the other ranks of the host.
    """

    on_host_only = True

    def __init__(
        self, who: str, codec: Codec, group: LocalGroup, connections: Iterable[Connection], deadline_s: float
    ) -> None:
        super().__init__(who, rank=group.rank, codec=codec, thread=f"hopsum-local-{group.rank}")
        self._group, self._deadline_s = group, deadline_s
        self._by_descriptor = {each.fileno(): each for each in connections}
        self._tasks: deque[Any] = deque()
        """Tasks that were not begun, in order; the leader's ends of groups among them."""
        self._failure: HopsumError | None = None
        self._waker = Waker()

    @property
    def workers(self) -> int:
        """The number of ranks on all hosts."""
        return self._group.ranks

    @abstractmethod
    def _patience_ms(self) -> float | None:
        """Return the milliseconds for which the thread may wait for another rank, None if it waits for none."""

    @abstractmethod
    def _on_readable(self, connection: Connection) -> bool:
        """Take a message; return whether the other rank is still there."""

    @abstractmethod
    def _begin_all(self) -> None:
        """Begin the tasks that can begin, in order. Its errors end the group."""

    @abstractmethod
    def _leave(self) -> None:
        """Part from the other ranks, and end all tasks."""

    def _queue_task(self, task: Task) -> None:
        self._tasks.append(task)
        self._waker.wake()

    def _stop(self) -> None:
        self._waker.wake()

    def _why_over(self) -> HopsumError | None:
        return None if self._failure is None else generation_ended_error(self._who, self._failure)

    def _serve(self) -> None:
        waiting = select.poll()
        for descriptor in (self._waker.fd, *self._by_descriptor):
            waiting.register(descriptor, select.POLLIN)
        # One thread reads all connections, so calls and ends come in one order.
        while not self._closed and self._failure is None:
            # Whatever fails here ends the group: without this thread all ranks of the host would wait for ever.
            try:
                for descriptor, _ in waiting.poll(self._patience_ms()):
                    if descriptor == self._waker.fd:
                        self._waker.clear()
                    elif not self._on_readable(self._by_descriptor[descriptor]):
                        waiting.unregister(descriptor)
                self._begin_all()
            except Exception as error:
                self._end(as_hopsum(error, f"{self._who} cannot hand its vector over: "))
        self._leave()

    def _end(self, error: HopsumError) -> None:
        """End the group, by this error unless there was one before."""
        with self._lock:
            self._failure = self._failure or error

    def _closed_error(self) -> CommunicatorClosedError:
        return CommunicatorClosedError(f"{self._who} was closed before this all-reduce was over")

    def _end_tasks(self, tasks: Iterable[Task]) -> None:
        """End tasks without a result. After a failure their vectors go back into the error feedback."""
        for task in tasks:
            error = self._failure or self._closed_error()
            if self._failure is not None:
                task.rollback(error)
            task.future.set_exception(error)


def as_hopsum(error: BaseException, what: str = "") -> HopsumError:
    """Return a HopsumError as it is, and any other error as the cause of an AllReduceError. `what` begins its text."""
    if isinstance(error, HopsumError):
        return error
    made = AllReduceError(f"{what}{type(error).__name__}: {error}")
    made.__cause__ = error
    return made
