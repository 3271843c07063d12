# SPDX-License-Identifier: Apache-2.0
"""A communicator at a switch. The engine runs its all-reduces.

An all-reduce consists of the codec's phases: usually the ranges of the blocks (MAX32), then the codes. All ranks submit
vectors of the same lengths in the same order, so the stream of chunks is the same on all ranks, independent of their
timing (phase_order.py).

    state    input                      next     also
    OPEN     seal                       SEALED   the generation has ended; all-reduces wait, also new ones
    SEALED   enter, no rank replaced    OPEN     all-reduces continue in the new generation
    SEALED   enter, workers replaced    HALTED   incomplete all-reduces, and new ones, get WorkersReplacedError
    HALTED   resume                     OPEN     all-reduces submitted from now on include the newcomers
    HALTED   seal                       SEALED   and HALTED again afterwards
    any      end                        FAILED   all futures get the error, usually GenerationEndedError
    other states and inputs: hopsum/agent/communicator.py

Only a job of a controller continues in another generation (hopsum.rpc). Without a controller the end of a generation
ends its agents.

Any other failure ends the generation for this agent, also a failure of this rank's codec: the other ranks continue the
stream without it. The failed all-reduces return their vectors to their error feedback.
"""

from __future__ import annotations

import atexit
import os
import socket
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final

from hopsum.agent.agent_generations import Generations
from hopsum.agent.allreduce_engine import CLOSE, AllReduceEngine, Ended
from hopsum.agent.allreduce_results import AllReduceResult, CommunicatorStatistics, SocketTraffic, Span
from hopsum.agent.communicator import Communicator
from hopsum.agent.phase_order import END_GROUP
from hopsum.agent.shards import continuations_of, open_transport
from hopsum.agent.task import Task
from hopsum.codec import WITH_CODES, Codec, CodecError, ReductionContext, job_tables, make_codec, parse_codec
from hopsum.errors import HopsumError, unhandled_error, why_unfinished
from hopsum.protocol.repair import RepairPolicy
from hopsum.protocol.state_transfer import STATE_BYTES_MAX
from hopsum.protocol.worker import Timing
from hopsum.transport.link import DatagramLink
from hopsum.transport.offload import Gso
from hopsum.transport.state_exchange import StateMovedError
from hopsum_base.spare_arrays import keep_spare_arrays
from hopsum_wire.generations import Sealed
from hopsum_wire.membership import JobMembership, read_membership

TIMING: Final = Timing(retransmit_s=0.1, retransmit_min_s=0.05, deadline_s=300.0, unreachable_s=10.0)
"""The default timing of an agent: workers of a training job may be minutes apart."""
# Two: one all-reduce is repaired while the next is in flight.
UNPROVED_LEAST: Final = 2
"""The number of all-reduces that are kept for peers at any size. The protocol counts phases, of which the first has two
parts."""
MEMBERSHIP_WAIT_S: Final = 60.0


class Agent(Communicator):
    """One worker of a job. Any thread may submit. The sequence of vectors must be the same on all ranks.

    The constructor opens sockets and starts a thread. An agent that is still open at the program's end is closed then.

    Args:
        membership: of the job, or the path of its file, for which the constructor waits up to a minute.
        rank: of this worker.
        codec: a name (the codec is made for this job) or a codec, the same on all ranks.
        timing: times of retransmissions and deadlines, for each phase; by default TIMING.
        link: replaces the UDP socket at this rank's address; closed with the agent, and if the constructor fails. For a
            job over several shards, a list with one link for each.
        side: a TCP socket that listens at this rank's side channel address; by default the agent opens it. Closed with
            the agent. Only for a membership with side channels.
        seed: of rotations and roundings, the same on all ranks.
        gso: many datagrams per system call, see `UdpLink`, for the agent's own link.
        overlap: whether the codec works on one vector while another is in flight. The same on all ranks.
        trace: called with every span of time, in the thread that runs the engine.

    Raises:
        MembershipError: no membership file, a malformed file, no such rank, another number of links than shards, or a
            membership that continues a job without this rank as a newcomer.
        CodecError: the codec is not for this job: another number of workers or lookup table, or an operation that its
            switch lacks.
        OSError: the socket or the side channel cannot be opened at this rank's address, or Linux lacks UDP_SEGMENT with
            gso="on".
    """

    def __init__(
        self,
        membership: JobMembership | str | Path,
        rank: int,
        *,
        codec: str | Codec = "thc",
        timing: Timing | None = None,
        link: DatagramLink | Sequence[DatagramLink] | None = None,
        side: socket.socket | None = None,
        seed: int = 0,
        gso: Gso = "auto",
        overlap: bool = True,
        trace: Callable[[Span], None] | None = None,
    ) -> None:
        if not isinstance(membership, JobMembership):
            membership = read_membership(membership, wait_s=MEMBERSHIP_WAIT_S)
        membership.worker(rank)  # or say that there is no such rank
        self.membership = membership
        made = _codec_for(membership, codec)
        super().__init__(f"agent of rank {rank}", rank=rank, codec=made, thread=f"hopsum-agent-{rank}")
        timing = timing or TIMING
        # One more than the phases: the signature is a separate part (signature.py).
        policy = RepairPolicy(unproved_least=UNPROVED_LEAST * (self.codec.phases + 1))
        self._transport = open_transport(membership, rank, timing, link, side, policy, gso)
        self._spares = keep_spare_arrays()
        self._shards = self._transport.shards
        self._ended = False
        """Whether `end` was called: no peer needs this worker's results any more."""
        self._unfinished = ""
        """The reason why the program ends before its work is done, empty otherwise."""
        # Weak: a caller that drops its future no longer needs the result.
        self._futures: weakref.WeakSet[Future[AllReduceResult]] = weakref.WeakSet()
        """The futures of submitted vectors, some of which may be done."""
        # fork() copies the object, not the threads: only this process may close it. An earlier exception is not the
        # reason for this agent's end.
        self._process, self._unhandled = os.getpid(), unhandled_error()
        self._generations = Generations(membership, rank)
        self._submitted = self._generations.allreduces
        self._engine = AllReduceEngine(
            self.codec,
            ReductionContext(seed, 0, rank),
            self._transport,
            generation=membership.generation,
            overlap=overlap,
            follow_s=timing.deadline_s,
            trace=trace,
            on_failure=self._fail,
            on_stall=self._note_silence,
            counted=self._counted,
            begun=self._submitted,
        )
        self._thread.start()
        # Without an orderly leave the others would take the end of the program for a crash, and wait for a lease.
        atexit.register(self._close_at_exit)

    @property
    def statistics(self) -> CommunicatorStatistics:
        found = self._transport.statistics
        return self._counted.copy(
            traffic=SocketTraffic.of(found),
            fetches=found.worker.fetches,
            repaired=found.worker.repaired,
            failed_sends=dict(found.link.failures),
            peers_refused=dict(found.side.closed),
        )

    @property
    def is_newcomer(self) -> bool:
        return self._generations.is_newcomer

    def fetch_state(self, wait_s: float = 60.0, *, bytes_max: int = STATE_BYTES_MAX) -> bytes:
        if not self.is_newcomer:
            return super().fetch_state(wait_s, bytes_max=bytes_max)
        while True:
            with self._lock:
                self._require_open()
                generation = self._generations.start_generation
            try:
                data = self._shards[0].states.fetch(generation, wait_s, bytes_max)
            except StateMovedError:  # other ranks were replaced meanwhile, and begin later
                continue
            except HopsumError:
                with self._lock:
                    self._require_open()  # the error of the end explains more
                raise
            # The fetched state includes the newcomers of this generation, so the program need not call `resume`.
            self._answer(None, only=generation)
            return data

    def resume(self, state: Callable[[], bytes] | None = None) -> None:
        if self._serves_here():
            raise RuntimeError(f"resume in a callback of a future of {self._who} would wait for itself")
        super().resume(state)
        if self._generations.replaced is not None:
            self._answer(None if state is None else state())

    def _answer(self, state: bytes | None, *, only: int | None = None) -> None:
        """Continue the stream where the newcomers of a generation begin, and offer them the state."""
        with self._lock:
            replaced = self._generations.answer(only)
            if replaced is None:
                return
            self._submitted = replaced.allreduces
            self._followed_by_other = None
            self._engine.driver.put(replaced)
        if state is not None:
            self._shards[0].states.offer(state, replaced.start_generation, replaced.newcomers)

    def end(self, error: HopsumError) -> None:
        """End the agent's generation with an error, in the engine's thread. Returns at once. Any thread.

        The oldest unfinished all-reduce fails with the error. Others without results, and later submissions, fail with
        GenerationEndedError, or with MembershipError if the error is one. The error is their cause.
        """
        self._ended = True
        self._engine.driver.put(Ended(error))

    def seal(self) -> tuple[Sealed, int]:
        """Seal the generation, which has ended. Return the results held, and the number of the job's all-reduces begun.

        No datagram is sent or accepted until `enter`. All-reduces wait meanwhile.

        Any thread. Raises TypeError in a job without side channels, which ends with its generation, and
        GenerationEndedError after a failure.
        """
        with self._lock:
            over = self._why_over()
        if over is not None:
            raise over
        return self._engine.seal()

    def enter(self, membership: JobMembership) -> None:
        """Continue in a new generation, after `seal`. Any thread.

        If workers were replaced, incomplete and new all-reduces fail with WorkersReplacedError until `resume`.

        Raises:
            MembershipError: the membership has no continuation of the stream, or no side channels. Nothing has changed.
        """
        # Checked before anything changes, so that an error leaves the agent as it was.
        continuations = continuations_of(membership, self.rank, len(self._shards))
        with self._lock:
            # Before the engine, whose WorkersReplacedError makes the program read `replaced`.
            self._generations.enter(membership, continuations[0].resume)
        self._engine.resume(membership.generation, continuations)
        self.membership = membership

    def close(self) -> None:
        """End the agent and wait for its thread. Unfinished all-reduces fail. Does nothing on a closed agent.

        An agent with peers first serves them for some seconds, until they need no more results. Does nothing in a
        forked child, which does not own the socket, the threads and the rank.
        """
        if os.getpid() != self._process:
            return
        with self._lock:
            if not self._closed and not self._unfinished:
                self._unfinished = self._why_unfinished()
        super().close()
        if not self._serves_here():
            atexit.unregister(self._close_at_exit)

    def _close_at_exit(self) -> None:
        error = unhandled_error()
        if error is not self._unhandled and os.getpid() == self._process:
            self._abandon(why_unfinished(error))
        self.close()

    def _abandon(self, why: str) -> None:
        with self._lock:
            self._unfinished = self._unfinished or why

    def _why_unfinished(self) -> str:
        """Return the reason why this worker closes before its work is done, empty if its work is done.

        The lock is held.
        """
        if self._engine.failure is not None:
            return why_unfinished(self._engine.failure)
        under_way = sum(not future.done() for future in self._futures)
        return f"it was closed with {under_way} all-reduces under way" if under_way else ""

    def _serve(self) -> None:
        try:
            self._engine.driver.run()
        finally:
            # Peers may still need results that only this worker holds, unless they have been told of its end.
            self._transport.close(linger=not self._ended and not self._unfinished)

    def _queue_task(self, task: Task) -> None:
        self._futures.add(task.future)
        self._engine.driver.put(task, ring=not task.awaited)

    def _complete(self, task: Task) -> AllReduceResult:
        """Return the result of a task. Run the engine in this thread unless another thread does."""
        self._engine.driver.help(task.future)
        return super()._complete(task)

    def _serves_here(self) -> bool:
        return self._engine.driver.is_driven_here

    def _queue_end_of_group(self) -> None:
        self._engine.driver.put(END_GROUP)

    def _stop(self) -> None:
        self._engine.driver.put(CLOSE)

    def _why_over(self) -> HopsumError | None:
        return None if self._engine.failure is None else self._engine.closing_error()

    def _note_silence(self) -> None:
        """Called in the engine's thread while no results come back."""

    def _fail(self, error: BaseException) -> None:
        """Called in the engine's thread with the error that ends the agent."""
        self._shards[0].end_fetch()


def _codec_for(membership: JobMembership, codec: str | Codec) -> Codec:
    """Make or check the codec of a job. Raises CodecError."""
    workers = membership.size
    if isinstance(codec, str):
        options: dict[str, Any] = {"code_group": membership.code_group} if parse_codec(codec).name in WITH_CODES else {}
        made = make_codec(codec, workers=workers, **options)
    else:
        made = codec
    if made.workers != workers:
        raise CodecError(f"codec {made.name} for {made.workers} workers in a job of {workers}")
    for shard in membership.shards:
        if made.op not in shard.ops:
            switch = "the switch" if not membership.further_shards else f"switch {shard.workers[0].send_to}"
            raise CodecError(
                f"codec {made.name} sums by {made.op.name}, and {switch} of job {membership.job!r} only by "
                f"{', '.join(op.name for op in sorted(shard.ops))}: take another codec, or other lanes"
            )
    for number, shard in enumerate(membership.shards):
        for name, table in job_tables(made).items():
            if (found := shard.tables.get(name)) == table:
                continue
            where = f" at shard {number}" if membership.further_shards else ""
            raise CodecError(
                f"job {membership.job!r} was not made for codec {made.name} with these options: its {name}{where} is "
                f"{found}, the codec's {table}. Make the job with "
                f"`hopsum job create NAME --codec {made.name}:OPTION=VALUE` "
                "(in Python: hopsum.codec.job_tables(codec)), or take the codec that it was made for"
            )
    if made.lookup is not None and made.code_group != membership.code_group:
        raise CodecError(
            f"codec {made.name} packs codes in groups of {made.code_group}, but the switch of job {membership.job!r} "
            f"takes groups of {membership.code_group}: give the codec's name, or make it with that code_group"
        )
    return made
