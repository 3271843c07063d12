# SPDX-License-Identifier: Apache-2.0
"""Sums float32 vectors over all workers of a job, through its switch.

An all-reduce is the exchanges that the codec asks for: mostly the ranges of its blocks (MAX32), then its chunks.
All ranks submit vectors of the same lengths in the same order; one thread serves them strictly one after the other,
so that the stream of chunks is the same on all ranks whatever their timing.

    state    input                      next     also
    OPEN     submit                     OPEN     queued; its future cannot be cancelled
    OPEN     AgreedError                OPEN     its future has the error, on all ranks alike
    OPEN     an all-reduce fails        FAILED   its future has the error; those queued behind it have EpochOver
    FAILED   submit                     FAILED   EpochOver
    any      close                      CLOSED   what is in progress or queued ends with AgentClosed
    CLOSED   submit                     CLOSED   AgentClosed

Any other failure ends the epoch for this agent, also one of the codec on this rank alone: the other ranks go on with
the stream, and this one has left it. What the failed all-reduces did not deliver is back in their error feedback.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hopsum.codec import AgreedError, Codec, CodecError, Context, ErrorFeedback, job_tables, make_codec
from hopsum.codec.base import OnNonfinite, Tensors, require_on_nonfinite, require_vector
from hopsum.errors import EpochOver, HopsumError
from hopsum.membership import JobMembership, read_membership
from hopsum.protocol.worker import Timing
from hopsum.transport.link import Link, UdpLink, send_all
from hopsum.transport.udp import UdpTransport
from hopsum.wire._layout import ETHERNET_BYTES, IPV4_BYTES, UDP_BYTES

TIMING: Final = Timing(retransmit_s=0.1, deadline_s=300.0)
"""Of an agent that is not told otherwise: workers of a training job may be minutes apart."""
MEMBERSHIP_WAIT_S: Final = 60.0
_WAKE_S: Final = 0.1
"""How long `close` waits for the thread to look up from its socket, at most."""


class AgentClosed(HopsumError):
    """The agent was closed before this all-reduce was over."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Datagrams at this worker's socket, in both directions."""

    datagrams_sent: int = 0
    datagrams_received: int = 0
    retransmits: int = 0
    """Of those sent: repetitions."""
    bytes_sent: int = 0
    """UDP payload."""
    bytes_received: int = 0

    @property
    def interface_bytes_sent(self) -> int:
        """Return bytes sent with their Ethernet, IPv4 and UDP headers."""
        return self.bytes_sent + self.datagrams_sent * (ETHERNET_BYTES + IPV4_BYTES + UDP_BYTES)

    @property
    def interface_bytes_received(self) -> int:
        """Return bytes received with their Ethernet, IPv4 and UDP headers."""
        return self.bytes_received + self.datagrams_received * (ETHERNET_BYTES + IPV4_BYTES + UDP_BYTES)

    def __sub__(self, earlier: Traffic) -> Traffic:
        return Traffic(
            self.datagrams_sent - earlier.datagrams_sent,
            self.datagrams_received - earlier.datagrams_received,
            self.retransmits - earlier.retransmits,
            self.bytes_sent - earlier.bytes_sent,
            self.bytes_received - earlier.bytes_received,
        )


@dataclass(frozen=True, slots=True)
class AgentStatistics:
    """What an agent has done since it was made."""

    allreduces: int = 0
    """That came to an end on all ranks alike, skipped ones included."""
    skipped: int = 0
    """Of those: without a mean, since some rank's vector was not finite or the codec could not recover it."""
    elements: int = 0
    traffic: Traffic = Traffic()


@dataclass(frozen=True, slots=True)
class AllReduceResult:
    """The mean of one vector over the workers that took part; the same bytes on all ranks."""

    mean: NDArray[np.float32]
    """float32[elements], the caller's; all NaN if skipped."""
    contributors: NDArray[np.uint64]
    """[chunks of the codec's last exchange], bitmap of the workers in each chunk's sum. Empty if skipped."""
    skipped: bool
    """Some rank's vector was not finite: no rank has a mean, error feedback is as it was before."""
    traffic: Traffic
    """Of this all-reduce, as far as datagrams can be told apart: late duplicates count for the next."""
    seconds: float
    """From the start of its first exchange to its mean, on this rank."""


class Agent:
    """One worker of a job. Any thread may submit; all of them together submit the same sequence on all ranks.

    Args:
        membership: of the job, or the path of its file, which is waited for up to a minute.
        rank: which worker this is.
        codec: a name (the codec is made for this job) or a codec, the same on all ranks.
        timing: when to send again and when to give up, for each of the two exchanges.
        link: instead of a UDP socket at this rank's address; closed with the agent.
        seed: of rotations and roundings, the same on all ranks.

    Raises:
        MembershipError: no membership file, a malformed one, or no such rank.
        CodecError: the codec is not for this job: other number of workers, or another lookup table.
        OSError: the socket cannot be opened at this rank's address.
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
    ) -> None:
        if not isinstance(membership, JobMembership):
            membership = read_membership(membership, wait_s=MEMBERSHIP_WAIT_S)
        seat = membership.worker(rank)
        self.membership = membership
        self.rank = rank
        self.codec = _codec_for(membership, codec)
        self._seed = seed
        self._closing = threading.Event()
        local, switch = seat.endpoint.address, seat.send_to.address
        self._transport = UdpTransport(
            local,
            switch,
            epoch=membership.epoch,
            rank=rank,
            workers=len(membership.workers),
            slots=membership.window,  # slots beyond the window stay unused: the same on all ranks
            timing=timing or TIMING,
            link=_ClosableLink(link or UdpLink(local, switch), self._closing),
        )
        self._lock = threading.Lock()
        self._failure: BaseException | None = None
        self._step = 0
        self._statistics = AgentStatistics()
        self._queue: SimpleQueue[_Task | None] = SimpleQueue()
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
        return replace(self._statistics, traffic=self._traffic())

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

        Raises:
            EpochOver: an earlier all-reduce failed. Make a new agent with a membership of a new epoch.
            AgentClosed: the agent is closed.
            CodecError: x is no such vector. After any of these nothing was submitted.
                The future may have NoAnswer, RoundLost or EpochOver from the network, CodecError, AgentClosed.
        """
        require_vector(x)
        if feedback is not None and feedback.residual.shape != x.shape:
            raise CodecError(f"vector of {x.size} elements with an error feedback of {feedback.residual.size}")
        require_on_nonfinite(on_nonfinite)
        task = _Task(x, feedback, tensors, on_nonfinite, Future())
        task.future.set_running_or_notify_cancel()  # a cancelled one would be missing from the stream
        with self._lock:
            if self._closing.is_set():
                raise AgentClosed(f"agent of rank {self.rank} is closed")
            if self._failure is not None:
                raise self._over()
            task.step = self._step if step is None else step
            self._step += 1
            self._queue.put(task)
        return task.future

    def close(self) -> None:
        """End the agent and wait for its thread; what it has not finished fails. Harmless when it is closed."""
        with self._lock:
            if not self._closing.is_set():
                self._closing.set()
                self._queue.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()
            atexit.unregister(self.close)

    def __enter__(self) -> Agent:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- the agent's thread ---------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            while (task := self._queue.get()) is not None:
                try:
                    result = self._reduce(task)
                except AgreedError as error:
                    task.future.set_exception(error)
                except BaseException as error:
                    self._fail(error)
                    task.future.set_exception(error)
                else:
                    task.future.set_result(result)
        finally:
            self._transport.close()

    def _reduce(self, task: _Task) -> AllReduceResult:
        start, before = time.perf_counter(), self._traffic()
        try:
            self._require_epoch()
            mean, contributors = self._exchange(task)
        except AgreedError:
            self._count(task, skipped=True)
            raise
        except BaseException:
            task.give_back()
            raise
        self._count(task, skipped=mean is None)
        return AllReduceResult(
            mean=np.full(task.x.size, np.nan, np.float32) if mean is None else mean,
            contributors=contributors,
            skipped=mean is None,
            traffic=self._traffic() - before,
            seconds=time.perf_counter() - start,
        )

    def _exchange(self, task: _Task) -> tuple[NDArray[np.float32] | None, NDArray[np.uint64]]:
        """Return mean and contributors of the last exchange; no mean and nobody where all ranks skip."""
        context = Context(self._seed, task.step, self.rank)
        reduction = self.codec.start(
            task.x, context, task.feedback, tensors=task.tensors, on_nonfinite=task.on_nonfinite
        )
        while (exchange := reduction.exchange) is not None:
            done = self._transport.allreduce(exchange.op, exchange.payloads, exchange.counts())
            reduction.take(done.results, done.contributors)
        return reduction.mean, reduction.contributors

    def _count(self, task: _Task, *, skipped: bool) -> None:
        counted = self._statistics
        self._statistics = AgentStatistics(
            counted.allreduces + 1, counted.skipped + skipped, counted.elements + task.x.size
        )

    def _require_epoch(self) -> None:
        """Raise what an all-reduce ends with that comes too late."""
        if self._failure is not None:
            raise self._over()
        if self._closing.is_set():
            raise AgentClosed(f"agent of rank {self.rank} was closed before this all-reduce")

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            if not isinstance(error, AgentClosed):
                self._failure = self._failure or error

    def _over(self) -> HopsumError:
        over = EpochOver(
            f"rank {self.rank} is no longer in epoch {self.membership.epoch}, since an all-reduce failed: "
            f"{self._failure}. Make a new agent with a membership of a new epoch"
        )
        over.__cause__ = self._failure
        return over

    def _traffic(self) -> Traffic:
        statistics = self._transport.statistics
        link = statistics.link
        return Traffic(
            link.datagrams_sent,
            link.datagrams_received,
            statistics.worker.retransmits,
            link.bytes_sent,
            link.bytes_received,
        )


@dataclass(slots=True)
class _Task:
    """One submitted vector."""

    x: NDArray[np.float32]
    feedback: ErrorFeedback | None
    tensors: Tensors
    on_nonfinite: OnNonfinite
    future: Future[AllReduceResult]
    step: int = 0

    def give_back(self) -> None:
        """Put all of the vector into the error feedback; one that is not finite is dropped, as if skipped."""
        if self.feedback is not None:
            self.feedback.withdraw()
            finite = bool(np.isfinite(self.feedback.compensate(self.x)).all())
            self.feedback.settle(None) if finite else self.feedback.withdraw()


class _ClosableLink:
    """A link that does not wait for long, and fails once the agent is closed."""

    def __init__(self, link: Link, closing: threading.Event) -> None:
        self._link = link
        self._closing = closing
        self.statistics = link.statistics

    def send(self, datagram: bytes | memoryview) -> None:
        self._link.send(datagram)

    def send_many(self, datagrams: Sequence[bytes | memoryview]) -> None:
        send_all(self._link, datagrams)

    def receive(self, timeout_s: float) -> Sequence[bytes | memoryview]:
        if self._closing.is_set():
            raise AgentClosed("the agent was closed in the middle of this all-reduce")
        return self._link.receive(min(timeout_s, _WAKE_S))

    def close(self) -> None:
        self._link.close()


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
