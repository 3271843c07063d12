# SPDX-License-Identifier: Apache-2.0
"""What a program touches of an agent; its all-reduces are served by the engine.

An all-reduce is the exchanges that the codec asks for: mostly the ranges of its blocks (MAX32), then its chunks.
All ranks submit vectors of the same lengths in the same order, so that the stream of chunks is the same on all ranks
whatever their timing (order.py).

    state    input                      next     also
    OPEN     submit                     OPEN     queued; its future cannot be cancelled
    OPEN     AgreedError                OPEN     its future has the error, on all ranks alike
    OPEN     an all-reduce fails        FAILED   its future has the error; those queued behind it have EpochOver
    OPEN     end                        FAILED   all futures have EpochOver
    FAILED   submit                     FAILED   EpochOver
    any      close                      CLOSED   what is in progress or queued ends with AgentClosed
    CLOSED   submit                     CLOSED   AgentClosed

Any other failure ends the epoch for this agent, also one of the codec on this rank alone: the other ranks go on with
the stream, and this one has left it. What the failed all-reduces did not deliver is back in their error feedback.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hopsum.agent.engine import CLOSE, Engine
from hopsum.agent.network import Failed
from hopsum.agent.order import Task
from hopsum.agent.values import AgentClosed, AgentStatistics, AllReduceResult, Span, Traffic
from hopsum.codec import Codec, CodecError, Context, ErrorFeedback, job_tables, make_codec
from hopsum.codec.base import OnNonfinite, Tensors, require_on_nonfinite, require_vector
from hopsum.errors import EpochOver
from hopsum.membership import JobMembership, read_membership
from hopsum.protocol.repair import RepairPolicy
from hopsum.protocol.worker import Timing
from hopsum.transport.link import Link, UdpLink
from hopsum.transport.offload import Gso
from hopsum.transport.repairing import RepairingTransport
from hopsum.transport.side_channel import SideChannel
from hopsum.transport.udp import UdpTransport

TIMING: Final = Timing(retransmit_s=0.1, deadline_s=300.0)
"""Of an agent that is not told otherwise: workers of a training job may be minutes apart."""
REPAIR: Final = RepairPolicy(unproved_max=4)
"""What is kept for peers: two all-reduces of two exchanges each."""
MEMBERSHIP_WAIT_S: Final = 60.0


class Agent:
    """One worker of a job. Any thread may submit; all of them together submit the same sequence on all ranks.

    Args:
        membership: of the job, or the path of its file, which is waited for up to a minute.
        rank: which worker this is.
        codec: a name (the codec is made for this job) or a codec, the same on all ranks.
        timing: when to send again and when to give up, for each exchange.
        link: instead of a UDP socket at this rank's address; closed with the agent.
        seed: of rotations and roundings, the same on all ranks.
        gso: many datagrams per system call, see `UdpLink`; of the agent's own link.
        overlap: the codec works on one vector while the network has another; else strictly one after the other. The
            same on all ranks.
        trace: called with every span of time, in the agent's thread (`hopsum.agent.timeline` draws them).

    Raises:
        MembershipError: no membership file, a malformed one, or no such rank.
        CodecError: the codec is not for this job: other number of workers, or another lookup table.
        OSError: the socket cannot be opened at this rank's address, or not as `gso` says; or its side channel cannot.
    """

    def __init__(
        self,
        membership: JobMembership | str | Path,
        rank: int,
        *,
        codec: str | Codec = "thc",
        timing: Timing | None = None,
        link: Link | None = None,
        seed: int = 0,
        gso: Gso = "auto",
        overlap: bool = True,
        trace: Callable[[Span], None] | None = None,
    ) -> None:
        if not isinstance(membership, JobMembership):
            membership = read_membership(membership, wait_s=MEMBERSHIP_WAIT_S)
        membership.worker(rank)  # or say that there is no such rank
        self.membership = membership
        self.rank = rank
        self.codec = _codec_for(membership, codec)
        timing = timing or TIMING
        self._transport = _transport_for(membership, rank, timing, link, gso)
        self._lock = threading.Lock()
        self._closed = False
        self._failed = False
        self._ended = False
        """By somebody who knows that the epoch is over on all ranks."""
        self._number = 0
        self._followed_by_other: ErrorFeedback | None = None
        """Of the last vector, if it was submitted with `more`."""
        self._engine = Engine(
            self.codec,
            Context(seed, 0, rank),
            self._transport,
            epoch=membership.epoch,
            overlap=overlap,
            follow_s=timing.deadline_s,
            trace=trace,
            on_failure=self._fail,
        )
        self._thread = threading.Thread(target=self._serve, name=f"hopsum-agent-{rank}", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    @property
    def workers(self) -> int:
        """Return the number of workers of the job."""
        return len(self.membership.workers)

    @property
    def statistics(self) -> AgentStatistics:
        """Return the counts so far; traffic is live."""
        return replace(self._engine.statistics, traffic=Traffic.of(self._transport.statistics))

    def allreduce(
        self,
        x: NDArray[np.float32],
        *,
        feedback: ErrorFeedback | None = None,
        step: int | None = None,
        tensors: Tensors = (),
        on_nonfinite: OnNonfinite = "error",
    ) -> AllReduceResult:
        """Return the mean of x over all workers; blocks until it is here. See `submit`, also for what it raises."""
        if threading.current_thread() is self._thread:
            raise RuntimeError("allreduce in a callback of this agent's future would wait for itself: use submit")
        return self.submit(x, feedback=feedback, step=step, tensors=tensors, on_nonfinite=on_nonfinite).result()

    def submit(
        self,
        x: NDArray[np.float32],
        *,
        feedback: ErrorFeedback | None = None,
        step: int | None = None,
        tensors: Tensors = (),
        on_nonfinite: OnNonfinite = "error",
        more: bool = False,
    ) -> Future[AllReduceResult]:
        """Queue an all-reduce and return its future, whose callbacks run in the agent's thread.

        Args:
            x: contiguous float32[elements]; do not change it before the future is done.
            feedback: adds what earlier all-reduces left behind, and is settled before the future is done; of the
                same length, and touched by nobody else until then. Without one the error is lost.
            step: what randomness follows from, the same on all ranks; the agent counts if left out.
            tensors: names and elements of what x consists of, for messages.
            on_nonfinite: the same on all ranks. "error": if some rank's x has NaN or infinity, the future of every rank
                has NonFiniteError; "skip": a result that says so. Either way the agent goes on.
            more: the same on all ranks. Another one is submitted before anybody waits for this one, with another
                feedback: its ranges go first, so that it is encoded while the chunks of this one are on their way.
                Until it is submitted this one does not go on.

        Raises:
            EpochOver: an earlier all-reduce failed. Make a new agent with a membership of a new epoch.
            AgentClosed: the agent is closed.
            CodecError: x is no such vector, or the one before has `more` and the same feedback. After any of these
                nothing was submitted.
                The future may have NoAnswer, RoundLost or EpochOver from the network, CodecError, AgentClosed.
        """
        require_vector(x)
        if feedback is not None and feedback.residual.shape != x.shape:
            raise CodecError(f"vector of {x.size} elements with an error feedback of {feedback.residual.size}")
        require_on_nonfinite(on_nonfinite)
        task = Task(x, feedback, tensors, on_nonfinite, more)
        task.future.set_running_or_notify_cancel()  # a cancelled one would be missing from the stream
        with self._lock:
            if self._closed:
                raise AgentClosed(f"agent of rank {self.rank} is closed")
            if self._failed:
                raise self._engine.over()
            if feedback is not None and feedback is self._followed_by_other:
                raise CodecError(
                    "the all-reduce before was submitted with more=True and has the same error feedback, which serves "
                    "one at a time: use one feedback per vector, or more=False"
                )
            self._followed_by_other = feedback if more else None
            task.number = self._number
            task.step = task.number if step is None else step
            self._number += 1
            self._engine.inbox.put(task)
        return task.future

    def end(self, reason: str) -> None:
        """End the epoch for this agent: what is in progress fails with EpochOver, as what comes later. Any thread."""
        self._ended = True
        self._engine.inbox.put(Failed(None, EpochOver(f"rank {self.rank}: {reason}. Connect again")))

    def close(self) -> None:
        """End the agent and wait for its thread; what it has not finished fails. Harmless when it is closed."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._engine.inbox.put(CLOSE)
        if threading.current_thread() is not self._thread:
            self._thread.join()
            atexit.unregister(self.close)

    def __enter__(self) -> Agent:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _serve(self) -> None:
        try:
            self._engine.run()
        finally:
            self._transport.close(farewell=not self._ended)

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            self._failed = True


def _transport_for(membership: JobMembership, rank: int, timing: Timing, link: Link | None, gso: Gso) -> UdpTransport:
    """Open the worker's transport: one that repairs from peers where the job says how to reach them all."""
    seat, sides = membership.worker(rank), membership.side_channels
    local, switch = seat.endpoint.address, seat.send_to.address
    link = link or UdpLink(local, switch, gso=gso)
    slots = membership.window  # slots beyond the window stay unused: the same on all ranks
    workers = len(membership.workers)
    if sides is None:
        return UdpTransport(
            local, switch, epoch=membership.epoch, rank=rank, workers=workers, slots=slots, timing=timing, link=link
        )
    try:
        channel = SideChannel(rank, membership.epoch, sides[rank])
    except BaseException:
        link.close()
        raise
    return RepairingTransport(
        local,
        switch,
        channel,
        sides,
        epoch=membership.epoch,
        rank=rank,
        workers=workers,
        slots=slots,
        timing=timing,
        link=link,
        policy=REPAIR,
    )


def _codec_for(membership: JobMembership, codec: str | Codec) -> Codec:
    """Make or check the codec of a job. Raises CodecError."""
    workers = len(membership.workers)
    made = make_codec(codec, workers=workers) if isinstance(codec, str) else codec
    if made.workers != workers:
        raise CodecError(f"codec {made.name} for {made.workers} workers in a job of {workers}")
    for name, table in job_tables(made).items():
        found = getattr(membership, name)
        if found != table:
            raise CodecError(
                f"codec {made.name} sums with table {table}, but the switch looks up {found} ({name} of job "
                f"{membership.job!r}): make the job with the codec's tables (hopsum.codec.job_tables(codec))"
            )
    return made
