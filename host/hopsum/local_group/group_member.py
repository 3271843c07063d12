# SPDX-License-Identifier: Apache-2.0
"""A member of a host's ranks: passes its vectors to the leader, and takes the means.

A member's error feedback is usually zero: the undelivered part of a sum stays at the leader. A residual from a
checkpoint of another grouping, or from an all-reduce that never began, is added to the next vector.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from hopsum.agent import AllReduceResult, SocketTraffic
from hopsum.agent.task import Task
from hopsum.codec import Codec, CollectiveError, NonFiniteError
from hopsum.codec.interface import Floats, nonfinite_error
from hopsum.errors import AllReduceTimeoutError, HopsumError, RankLeftError
from hopsum.local_group.host_ranks import LocalGroup, LocalRank
from hopsum.local_group.member_messages import Connection, SegmentPool, SharedVector, error_from_json
from hopsum.protocol.state_transfer import STATE_BYTES_MAX
from hopsum.serial.serial_communicator import call_in_words


@dataclass(slots=True)
class _Call:
    """A task whose vector was passed to the leader."""

    task: Task
    segment: SharedVector
    compensated: Floats | None
    """The vector that was handed over, where the error feedback had something in it."""
    told_s: float
    begun: bool = False
    """The sum of the host is on its way."""

    def deliver(self) -> None:
        """Note in the error feedback that the leader has the vector."""
        if self.compensated is not None and self.task.feedback is not None:
            self.task.feedback.commit(self.compensated)

    def withdraw(self) -> None:
        """Let the error feedback be as it was before."""
        if self.compensated is not None and self.task.feedback is not None:
            self.task.feedback.rollback()


class LocalGroupMember(LocalRank):
    """The communicator of a rank that passes its vectors to its host's leader. The constructor starts a thread.

    Args:
        codec: the job's codec. This rank reads its properties and encodes nothing.
        group: the ranks of each host of the job.
        connection: to the leader; closed with this object.
        deadline_s: the longest wait for the leader to begin an all-reduce.
        is_newcomer: whether this host took the place of another host in a running job.
    """

    def __init__(
        self, codec: Codec, group: LocalGroup, connection: Connection, *, deadline_s: float, is_newcomer: bool
    ) -> None:
        who = f"rank {group.rank}, whose host's leader is rank {group.leader},"
        super().__init__(who, codec, group, [connection], deadline_s)
        self._connection, self._is_newcomer = connection, is_newcomer
        self._pool = SegmentPool()
        self._calls: dict[int, _Call] = {}
        """Tasks that were passed to the leader and have no answer, by number, in order."""
        self._counted.local_ranks = len(group.local)
        self._state: bytes | None = None
        self._why_no_state: HopsumError | None = None
        self._is_fetching, self._is_fetched = threading.Event(), threading.Event()
        """Set while the leader fetches the state and once it has it, and once it has it or has given up."""
        self._thread.start()

    # ---- what a program calls -------------------------------------------------------------------------

    @property
    def is_newcomer(self) -> bool:
        """Return whether this host took another host's place in a running job."""
        return self._is_newcomer

    def fetch_state(self, wait_s: float = 60.0, *, bytes_max: int = STATE_BYTES_MAX) -> bytes:
        """Wait for the state that the leader fetches, and return it. The leader's program calls `fetch_state` too.

        Args:
            wait_s: most seconds until the leader begins to fetch. The transfer has no limit here.

        Raises:
            HopsumError: as `Communicator.fetch_state`, or the leader's error, once: the next call waits for the
                leader's next one.
        """
        if not self.is_newcomer:
            return super().fetch_state(wait_s, bytes_max=bytes_max)
        # The leader's own wait ends by silence, whatever the whole transfer takes.
        if self._why_no_state is None and self._is_fetching.wait(wait_s):
            self._is_fetched.wait()
        if self._state is None:
            with self._lock:
                self._require_open()
            # Said once: the next call waits for the leader's next one.
            why, self._why_no_state = self._why_no_state, None
            if why is not None:
                raise why
            raise HopsumError(f"{self._who} has no state from it after {wait_s:g} s: all ranks call fetch_state")
        if len(self._state) > bytes_max:
            raise HopsumError(f"a state of {len(self._state)} bytes, and bytes_max is {bytes_max}")
        return self._state

    def _abandon(self, why: str) -> None:
        self._connection.send({"says": "abandon", "why": why})

    def _queue_end_of_group(self) -> None:
        """Do nothing: the leader's program ends the group."""

    # ---- the thread -----------------------------------------------------------------------------------

    def _begin_all(self) -> None:
        self._require_patience()
        while self._tasks and self._failure is None:
            self._call(self._tasks[0])
            self._tasks.popleft()

    def _patience_ms(self) -> float | None:
        """Return the milliseconds in which the leader must begin the first call, None without such a call."""
        waits = [call.told_s for call in self._calls.values() if not call.begun]
        return 1000 * max(0.0, waits[0] + self._deadline_s - time.monotonic()) if waits else None

    def _require_patience(self) -> None:
        if self._patience_ms() == 0:
            leader = self._group.leader
            raise AllReduceTimeoutError(
                f"{self._who} has waited {self._deadline_s:g} s for it to begin this all-reduce: rank {leader}, or "
                "another rank of this host, does not run it. Connect all ranks again",
                (leader,),
            )

    def _call(self, task: Task) -> None:
        """Put a vector into a segment, and tell the leader."""
        # The member adds its residual before the leader sums. The leader's codec compresses the sum once, so the member
        # itself has no compression error.
        compensated = self._compensate(task)
        segment, descriptor = self._pool.allocate(task.x.size)
        try:
            np.copyto(segment.vector(task.x.size), task.x if compensated is None else compensated)
            # Registered before it is sent: the answer may come at once, in this thread's next look.
            self._calls[task.number] = _Call(task, segment, compensated, time.monotonic())
            told = {"says": "call", "number": task.number, "call": call_in_words(task), "segment": segment.number}
            self._connection.send(told, descriptor)  # if nobody is there, the end of the connection says so
        finally:
            if descriptor is not None:
                os.close(descriptor)

    @staticmethod
    def _compensate(task: Task) -> Floats | None:
        if task.feedback is None:
            return None
        task.feedback.rollback()
        return task.feedback.compensate(task.x) if task.feedback.residual.any() else None

    def _on_readable(self, connection: Connection) -> bool:
        received = connection.receive()
        if received is None:
            leader = self._group.leader
            self._end(
                RankLeftError(
                    f"rank {leader}, which takes part in the job for this host, has ended: see what it says. No rank "
                    "of this host can continue. Connect all ranks again",
                    (leader,),
                )
            )
            return False
        message, descriptor = received
        attached = None if descriptor is None else _read_all(descriptor)
        if message["says"] == "fetching":
            self._why_no_state = None
            self._is_fetched.clear()
            self._is_fetching.set()
        elif message["says"] == "state":
            self._state = attached
            if attached is None:
                self._why_no_state = error_from_json(message["error"])
                self._is_fetching.clear()
            self._is_fetched.set()
        elif message["says"] == "over":
            self._end(error_from_json(message["error"]))
        elif message["says"] == "begun":
            self._calls[message["number"]].begun = True
        elif message["says"] == "failed":
            failed = error_from_json(message["error"])
            if message["over"]:
                self._end(failed)
            self._fail(self._calls.pop(message["number"]), failed)
        else:
            self._finish(self._calls.pop(message["number"]), message, attached)
        return True

    def _finish(self, call: _Call, message: dict[str, Any], contributors: bytes | None) -> None:
        """Take the mean that is in the segment of a call."""
        task, skipped = call.task, bool(message["skipped"])
        if skipped:
            call.withdraw()
            mean = np.full(task.x.size, np.nan, np.float32)
        else:
            call.deliver()
            # Copied out: the segment serves the next vector.
            mean = np.empty_like(task.x) if task.out is None else task.out
            np.copyto(mean, call.segment.vector(task.x.size))
        self._pool.release(call.segment)
        if contributors is None:
            workers = np.full(message["chunks"], message["contributors"], np.uint64)
        else:
            workers = np.frombuffer(contributors, np.uint64)
        self._counted.count(task.x.size, message["seconds"], skipped=skipped)
        task.future.set_result(AllReduceResult(mean, workers, skipped, SocketTraffic(), message["seconds"]))

    def _fail(self, call: _Call, error: HopsumError) -> None:
        """End a call with an error that all ranks of the host have. Restore the feedback after a CollectiveError.

        After other errors the leader's error feedback has the vector.
        """
        self._pool.release(call.segment)
        if isinstance(error, CollectiveError):
            call.withdraw()
            self._counted.count(call.task.x.size, 0.0, skipped=True)
        else:
            call.deliver()
        # The leader knows that some rank had NaN or infinity. Which tensor of this rank it was is found out here.
        if isinstance(error, NonFiniteError):
            error = nonfinite_error(call.task.x, call.task.tensors, self.rank)
        call.task.future.set_exception(error)

    def _leave(self) -> None:
        """Close the connection. Unanswered tasks end; after a failure their vectors return to the error feedback."""
        self._connection.close()
        self._is_fetching.set()
        self._is_fetched.set()
        self._waker.close()
        left = [call.task for call in self._calls.values()] + list(self._tasks)
        self._calls.clear()
        self._tasks.clear()
        self._end_tasks(left)


def _read_all(descriptor: int) -> bytes:
    """Read shared memory that came with a message, and close its descriptor."""
    with os.fdopen(descriptor, "rb") as file:
        file.seek(0)
        return file.read()
