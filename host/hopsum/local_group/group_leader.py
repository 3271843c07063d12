# SPDX-License-Identifier: Apache-2.0
"""The leader of a host's ranks: adds their vectors, and is the host's worker in the job.

state     event                                       then
OPEN      a task, and a call of every member for it   summed, and handed to the job's communicator; OPEN
OPEN      the job has a mean                          the mean goes to the members, then to the task's future; OPEN
OPEN      an error that all ranks of the job have     to the members, then to the future; OPEN
OPEN      another error of the job                    OVER
OPEN      a call that is not the task's               OVER, by MismatchError
OPEN      a member has ended, and a task needs it     OVER, by RankLeftError
OPEN      no call for a task within the deadline      OVER, by AllReduceTimeoutError
OVER      nothing follows                             members and the job have the reason
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Final

import numpy as np

from hopsum.agent import AllReduceResult, Communicator, CommunicatorStatistics, MismatchError
from hopsum.agent.task import Task
from hopsum.codec import CollectiveError, NonFiniteError
from hopsum.codec.interface import Bitmaps, Floats, nonfinite_error
from hopsum.errors import (
    AllReduceTimeoutError,
    HopsumError,
    RankLeftError,
    WorkersReplacedError,
    name_ranks,
    why_unfinished,
)
from hopsum.local_group.host_ranks import LocalGroup, LocalRank, as_hopsum
from hopsum.local_group.member_messages import Connection, SharedVector, error_from_json, error_to_json
from hopsum.protocol.state_transfer import STATE_BYTES_MAX
from hopsum.serial.serial_communicator import call_in_words, require_agreement

# Tasks and ends of groups share one queue, since their order matters.
_END_GROUP: Final = object()
"""Stands in the queue of tasks for the end of a group."""


class _Member:
    """One member, as the leader knows it."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.calls: deque[dict[str, Any]] = deque()
        """The calls that no task has used."""
        self.segments: dict[int, SharedVector] = {}
        self.is_gone = False
        self.why = ""
        """The reason that it gave for its end."""


class LocalGroupLeader(LocalRank):
    """The communicator of the rank that is its host's worker in the job. The constructor starts a thread.

    Args:
        job: the communicator of this host in the job; closed with this one.
        group: the ranks of each host of the job.
        connections: to the members of this host, by rank; closed with this object.
        deadline_s: the longest wait for the members' vectors, from this rank's submission on.
    """

    def __init__(
        self, job: Communicator, group: LocalGroup, connections: Mapping[int, Connection], *, deadline_s: float
    ) -> None:
        who = f"rank {group.rank}, which leads the ranks of its host,"
        super().__init__(who, job.codec, group, connections.values(), deadline_s)
        self._job = job
        self._members = {rank: _Member(each) for rank, each in connections.items()}
        # The job returns the mean over hosts of the hosts' sums. Hosts / ranks makes it the mean over ranks.
        self._factor = np.float32(len(group.hosts) / group.ranks)
        self._in_group = False
        # Last: the thread uses all fields above.
        self._thread.start()

    # ---- what a program calls -------------------------------------------------------------------------

    @property
    def statistics(self) -> CommunicatorStatistics:
        """Return a copy of the counts of this host in the job, with the number of its ranks."""
        return replace(self._job.statistics, local_ranks=len(self._group.local))

    def note_step(self, step_s: float, wait_s: float) -> None:
        """Count a training step in the job's communicator, whose heartbeats report the step."""
        self._job.note_step(step_s, wait_s)

    @property
    def is_newcomer(self) -> bool:
        """Return whether this host took another host's place in a running job."""
        return self._job.is_newcomer

    def fetch_state(self, wait_s: float = 60.0, *, bytes_max: int = STATE_BYTES_MAX) -> bytes:
        """Fetch the state from another worker of the job, and pass the state, or the error, to this host's members.

        See `Communicator.fetch_state`. The members call it too.
        """
        members = [member.connection for member in self._members.values()]
        for connection in members:
            connection.send({"says": "fetching"})
        try:
            state = self._job.fetch_state(wait_s, bytes_max=bytes_max)
        except HopsumError as error:
            for connection in members:
                connection.send({"says": "state", "error": error_to_json(error)})
            raise
        # In memory and passed by descriptor: a state of gigabytes neither fits a packet nor belongs on a disk.
        descriptor = os.memfd_create("hopsum-state", os.MFD_CLOEXEC)
        try:
            with os.fdopen(os.dup(descriptor), "wb") as file:
                file.write(state)
            for connection in members:
                connection.send({"says": "state"}, descriptor)
        finally:
            os.close(descriptor)
        return state

    def resume(self, state: Callable[[], bytes] | None = None) -> None:
        """Continue the job with the newcomers, as `Communicator.resume`, without waiting for the host's other ranks.

        Newcomers get this rank's state: the `resume` of the host's other ranks never calls its `state`.
        """
        super().resume(state)
        self._job.resume(state)

    def _abandon(self, why: str) -> None:
        self._job._abandon(why)

    # ---- the queue ------------------------------------------------------------------------------------

    def _queue_task(self, task: Task) -> None:
        # The deadline for the members runs from here. The job has deadlines of its own for the rest.
        task.started_s = time.monotonic()
        super()._queue_task(task)

    def _queue_end_of_group(self) -> None:
        self._tasks.append(_END_GROUP)
        self._waker.wake()

    # ---- the thread -----------------------------------------------------------------------------------

    def _patience_ms(self) -> float | None:
        """Return the milliseconds for which the first task may still wait for members, None without such a task."""
        first = self._tasks[0] if self._tasks else None
        if not isinstance(first, Task):
            return None
        return 1000 * max(0.0, first.started_s + self._deadline_s - time.monotonic())

    def _on_readable(self, connection: Connection) -> bool:
        member = next(each for each in self._members.values() if each.connection is connection)
        received = connection.receive()
        if received is None:
            member.is_gone = True
            return False
        call, descriptor = received
        if call["says"] == "abandon":
            member.why = call["why"]
            return True
        if descriptor is not None:
            member.segments[call["segment"]] = SharedVector(call["segment"], descriptor)
        member.calls.append(call)
        return True

    def _begin_all(self) -> None:
        """Begin the tasks that have a call of every member, in order."""
        while self._tasks and self._failure is None:
            if self._tasks[0] is _END_GROUP:
                self._tasks.popleft()
                self._end_group()
                continue
            task = self._tasks[0]
            # In order only: a task begins when all members have handed over their vector for it.
            missing = tuple(rank for rank, member in self._members.items() if not member.calls)
            if missing:
                self._require_patience(task, missing)
                return
            calls = {rank: member.calls.popleft() for rank, member in self._members.items()}
            told = {rank: call["call"] for rank, call in calls.items()}
            require_agreement({self.rank: call_in_words(task), **told})
            vectors = [
                self._members[rank].segments[call["segment"]].vector(task.x.size) for rank, call in calls.items()
            ]
            self._tasks.popleft()
            self._begin(task, vectors)

    def _require_patience(self, task: Task, missing: tuple[int, ...]) -> None:
        """Raise unless the members that have not handed over their vectors can still do so."""
        for rank in missing:
            if self._members[rank].is_gone:
                why = self._members[rank].why or "it has ended or closed: see what it says"
                raise RankLeftError(
                    f"rank {self.rank} waits for the vector of rank {rank} of its host, which has left ({why}). A rank "
                    "that leaves takes its host out of the job. Connect all ranks again",
                    (rank,),
                )
        if time.monotonic() >= task.started_s + self._deadline_s:
            raise AllReduceTimeoutError(
                f"rank {self.rank} has waited {self._deadline_s:g} s for the vectors of {name_ranks(missing)} of "
                "its host: they do not run this all-reduce. Connect all ranks again",
                missing,
            )

    def _begin(self, task: Task, vectors: list[Floats]) -> None:
        """Submit the sum of this host to the job. The sum, later the mean, is in the first member's segment."""
        # The first member's segment holds the sum, so that neither a buffer is allocated nor the program's x changed.
        total, out = (vectors[0], vectors[0]) if vectors else (task.x, task.out)
        with np.errstate(over="ignore", invalid="ignore"):
            for each in (task.x, *vectors[1:]) if vectors else ():
                np.add(total, each, out=total)
        # The members' groups are the leader's: one program runs on all ranks.
        if task.more and not self._in_group:
            self._job.group_start()
            self._in_group = True
        try:
            submitted = self._job.submit(
                total,
                feedback=task.feedback,
                step=task.given_step,
                tensors=task.tensors,
                on_nonfinite=task.on_nonfinite,
                out=out,
            )
        except BaseException:
            self._tasks.appendleft(task)  # to have the error that ends this group
            raise
        for member in self._members.values():
            # From here on a member waits without a deadline of its own: the job has one.
            member.connection.send({"says": "begun", "number": task.number})
        submitted.add_done_callback(lambda done: self._finish(task, vectors, done))

    def _end_group(self) -> None:
        if self._in_group:
            self._in_group = False
            self._job.group_end()

    def _finish(self, task: Task, vectors: list[Floats], done: Future[AllReduceResult]) -> None:
        """Give a mean, or an error, to the members and to the program; in the thread of the job's communicator."""
        try:
            result = done.result()
            with np.errstate(over="ignore", invalid="ignore"):
                result = self._distribute(task, vectors, result)
        except BaseException as error:
            self._fail_task(task, as_hopsum(error))
        else:
            task.future.set_result(result)

    def _distribute(self, task: Task, vectors: list[Floats], result: AllReduceResult) -> AllReduceResult:
        """Return the result of this rank, and send the members their messages, after which the segments are theirs."""
        # Written into the segments before the message: the socket orders the two processes' accesses.
        mean = result.mean
        if not result.skipped:
            np.multiply(mean, self._factor, out=mean)
            for each in vectors[1:]:
                np.copyto(each, mean)
        if not result.skipped and vectors:
            mean = np.empty_like(task.x) if task.out is None else task.out
            np.copyto(mean, result.mean)
        chunks = result.contributors.size
        # Almost always all chunks have the same contributors: one number then, no memory.
        uniform = not chunks or bool((result.contributors == result.contributors[0]).all())
        told = {
            "says": "done",
            "number": task.number,
            "skipped": result.skipped,
            "seconds": result.seconds,
            "chunks": chunks,
            "contributors": int(result.contributors[0]) if chunks else 0,
        }
        for member in self._members.values():
            self._tell(member, told, None if uniform else result.contributors)
        return replace(result, mean=mean)

    def _tell(self, member: _Member, told: dict[str, Any], contributors: Bitmaps | None) -> None:
        """Tell a member that a mean is here. Contributors that differ from chunk to chunk go in memory of their own."""
        if contributors is None:
            member.connection.send(told)
            return
        descriptor = os.memfd_create("hopsum-contributors", os.MFD_CLOEXEC)
        try:
            os.write(descriptor, contributors.astype(np.uint64).tobytes())
            member.connection.send(told, descriptor)
        finally:
            os.close(descriptor)

    # ---- errors ---------------------------------------------------------------------------------------

    def _fail_task(self, task: Task, error: HopsumError) -> None:
        """Give an error of the job to all ranks of the host. End the group unless all workers of the job have it."""
        told = {**error_to_json(error), "text": self._group.in_words(error)}
        has_ended = isinstance(error, MismatchError) or not isinstance(error, CollectiveError | WorkersReplacedError)
        for member in self._members.values():
            member.connection.send({"says": "failed", "number": task.number, "error": told, "over": has_ended})
        failed: HopsumError = error_from_json(told)
        if isinstance(error, NonFiniteError):
            failed = nonfinite_error(task.x, task.tensors, self.rank)
        failed.__cause__ = error
        if has_ended:
            self._end(failed)
            self._waker.wake()
        task.future.set_exception(failed)

    def _leave(self) -> None:
        """Part from the job and from the members, and end all tasks that were not begun."""
        failure = self._failure
        if failure is not None:
            self._job._abandon(why_unfinished(failure))
        self._job.close()
        for member in self._members.values():
            member.connection.send({"says": "over", "error": error_to_json(failure or self._closed_error())})
            member.connection.close()
        self._waker.close()
        self._end_tasks(task for task in self._tasks if task is not _END_GROUP)
        self._tasks.clear()
