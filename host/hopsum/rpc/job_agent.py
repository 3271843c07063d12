# SPDX-License-Identifier: Apache-2.0
"""An agent of a controller's job, under a lease. From one generation to the next: seal, join again, wait, continue.

    state    input                              next     also
    IN       the generation ended (Lease)       SEALED   the agent seals; the controller is told what it holds
    IN       the place is lost (Lease)          OUT      GenerationEndedError
    SEALED   joined again                       WAITING
    WAITING  membership of another generation   IN       the agent enters it, heartbeats name it
    WAITING  ranks gone for `replacement_wait_s` OUT      MembershipError: nobody took their places
    SEALED   refused                            OUT      GenerationEndedError, with the controller's reason
    both     `wait_s` over                      OUT      MembershipError: who is missing, or no controller
    any      stop                               STOPPED  nothing is sent any more

A retry sends the same report. A generation that has ended before all workers know it is left in the same way. Each
change has a separate thread, since joining and waiting take time and heartbeats continue meanwhile.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any, Final

from hopsum.agent import TIMING, Agent
from hopsum.agent.allreduce_results import heartbeat_counts
from hopsum.errors import AllReduceTimeoutError, GenerationEndedError, HopsumError, name_ranks, why_unfinished
from hopsum.protocol.worker import Timing
from hopsum.rpc.channel import START_AGAIN, ControllerError, ControllerUnreachableError
from hopsum.rpc.lease import Lease, Statistics
from hopsum.rpc.member_client import MemberClient
from hopsum_wire.membership import JobMembership, MembershipError
from hopsum_wire.watch.heartbeat import POSITION

# The network looks for a stall once a second at least, or as often as it sends again.
_PAUSE_MAX_S: Final = 2.0
_log: Final = logging.getLogger(__name__)


class JobAgent(Agent):
    """An agent that follows its job into other generations, and leaves the job when it is closed.

    Args:
        member: that joined with this rank.
        lease: of its rank, stopped with the agent.
        held: closed when the agent has left the job.
        check: raises MembershipError for a membership that is not this worker's.
        wait_s: the longest wait for the other ranks in every change of generation, and for a switch that neither this
            worker nor the controller reaches.
        replacement_wait_s: the longest wait for replacements of ranks that are gone.
        silence_s: seconds for which a switch may be silent although the controller reaches it. None: until the
            deadline. With a value, a worker also ends after a lease in which neither its switches nor the controller
            answer.
        timing: as of `Agent`, and so is `rest`.
    """

    def __init__(
        self,
        membership: JobMembership,
        rank: int,
        *,
        member: MemberClient,
        lease: Lease,
        held: ExitStack,
        check: Callable[[JobMembership], None],
        wait_s: float,
        replacement_wait_s: float,
        silence_s: float | None = None,
        timing: Timing | None = None,
        **rest: Any,
    ) -> None:
        self._lease, self._held, self._wait_s, self._silence_s = lease, held, wait_s, silence_s
        self._stalled_at_s = 0.0
        """The time of the last stall of the network."""
        self._stalled_s = self._unexplained_s = 0.0
        """Seconds of the stall that lasts, and those of them in which the controller reached both ends."""
        self._change = GenerationChange(
            rank,
            self,
            member,
            lease,
            statistics=self._counts,
            check=check,
            wait_s=wait_s,
            replacement_wait_s=replacement_wait_s,
        )
        # The lines on whom it waits for name the lease, which may end the wait before its deadline.
        timing = replace(timing or TIMING, lease_s=lease.lease_s)
        super().__init__(membership, rank, timing=timing, **rest)
        # Last: the lease's thread may end this generation at once, and needs the whole agent for it.
        self._change.enter()

    def close(self) -> None:
        """End the agent, then leave the job and close `held`. Blocks. May be called again.

        While the agent still serves its peers, it follows them into another generation, because they may need its
        results. If its program has not finished, the generation ends for the peers too. Does nothing in a forked
        process.
        """
        super().close()
        # A forked process has the agent's memory, and not its threads: the parent leaves the job.
        if os.getpid() != self._process:
            return
        # No new change from here on. Then LEAVE, so that the others hear of it before the channel goes.
        self._change.stop()
        self._lease.stop()
        self._held.close()  # with the channel, on which a change may be waiting
        self._change.join()

    def _stop(self) -> None:
        if self._unfinished:
            # A change in progress is refused from here on, since this worker has left: no failure of its own.
            self._change.stop()
            self._lease.abandon(self._unfinished)
        super()._stop()

    def _fail(self, error: BaseException) -> None:
        super()._fail(error)
        self._lease.abandon(why_unfinished(error))

    def on_ranks_lost(self, generation: int, ranks: Sequence[int]) -> None:
        """Drop the results that are kept for ranks that were evicted from this running generation. Any thread."""
        for shard in self._shards:
            shard.on_ranks_lost(generation, ranks)

    @property
    def switch_patience_s(self) -> float:
        """Return the seconds that this worker still waits for a silent switch, at least 0. Any thread.

        With several shards, the seconds for the switch that is nearest to its limit.
        """
        workers = [shard.worker for shard in self._shards]
        limits_s = [worker.timing.unreachable_s for worker in workers]
        own_s = [
            math.inf if limit_s is None else limit_s - worker.watch.absences.refused.lasted_s
            for worker, limit_s in zip(workers, limits_s, strict=True)
        ]
        return max(0.0, min(*own_s, self._wait_s - self._told_unreachable_s))

    @property
    def _told_unreachable_s(self) -> float:
        """The seconds since the switch's last datagram in which the controller has not reached the switch either."""
        why, told_s = self._lease.switch_unreachable
        return min(told_s, self._engine.progress.stalled_s) if why else 0.0

    def _note_silence(self) -> None:
        self._lease.heartbeat_now()
        if self._told_unreachable_s >= self._wait_s:
            why, _ = self._lease.switch_unreachable
            self.end(
                AllReduceTimeoutError(
                    f"rank {self.rank}: nothing came from the switch for {self._wait_s:.3g} s, and the controller does "
                    f"not reach it either ({why}). Start the switch again, and connect again; or wait longer "
                    "(membership_wait_s)"
                )
            )

        # The controller has not heard this worker for a lease, and has evicted it by now.
        elif (why := self._lease.lost_by_tls) and self._engine.progress.stalled_s >= self._lease.lease_s:
            self.end(
                AllReduceTimeoutError(
                    f"rank {self.rank}: nothing came from the switch for {self._lease.lease_s:.3g} s, and no heartbeat "
                    f"reached the controller (TLS: {why}). Renew the certificate or authority, and connect again"
                )
            )
        elif self._silence_s is not None and (why := self._why_cut_off(self._silence_s)):
            self.end(AllReduceTimeoutError(f"rank {self.rank}: {why}"))

    def _why_cut_off(self, silence_s: float) -> str:
        """Return the reason why nothing will come from a switch any more, empty while it may."""
        progress, lease, now = self._engine.progress, self._lease, time.monotonic()
        # A process that was stopped in between did not wait for anybody, so a long pause counts as a short one.
        passed_s, self._stalled_at_s = min(now - self._stalled_at_s, _PAUSE_MAX_S), now
        self._stalled_s = min(self._stalled_s + passed_s, progress.stalled_s)
        # A link that is down cuts the controller off too. That is for the lease to judge, which lasts longer.
        explained = lease.silent_s or lease.switch_unreachable[0]
        self._unexplained_s = 0.0 if explained else min(self._unexplained_s + passed_s, progress.stalled_s)
        place = self.membership.shards[progress.stalled_shard].worker(self.rank)
        own, switch = place.endpoint.ip, place.send_to
        there = [each.rank for each in self.membership.workers if each.endpoint.ip == switch.ip]
        whose = f"switch {switch} on the host of {name_ranks(there)}" if there else f"switch {switch}"
        if self._unexplained_s >= silence_s:
            return (
                f"datagrams between {own} and {switch.ip} are lost: nothing came from {whose} for {silence_s:.3g} s "
                "(unreachable_s), and the controller reaches both. Let UDP pass between the hosts, or take "
                "collective://gloo, which needs none"
            )
        if min(self._stalled_s, lease.silent_s) >= lease.lease_s:
            return (
                f"{own} is cut off: nothing came from {whose}, and nothing from the controller, for the lease of "
                f"{lease.lease_s:.3g} s (lease_s). See to the network of the host, and {START_AGAIN}"
            )
        return ""

    def _counts(self) -> Mapping[str, float]:
        """Return the counts of a heartbeat."""
        streams = [shard.worker.stream for shard in self._shards]
        return {**heartbeat_counts(self.statistics), POSITION: max(each.end - each.base for each in streams)}


class GenerationChange:
    """Takes an agent from generation to generation, each in a new thread, or ends the agent. Thread-safe.

    Args:
        rank: for messages.
        statistics: returns the counts for each heartbeat.
        check: raises MembershipError for a membership that is not this worker's.
        wait_s: the longest wait for the controller, and for the other ranks.
        replacement_wait_s: the longest wait for replacements of ranks that are gone. If the switch is gone too, no
            longer than the agent waits for the switch: the ranks have failed for the same reason.
    """

    def __init__(
        self,
        rank: int,
        agent: JobAgent,
        member: MemberClient,
        lease: Lease,
        *,
        statistics: Statistics,
        check: Callable[[JobMembership], None],
        wait_s: float,
        replacement_wait_s: float,
    ) -> None:
        self._rank, self._agent, self._member, self._lease = rank, agent, member, lease
        self._statistics, self._check, self._wait_s = statistics, check, wait_s
        self._replacement_wait_s = replacement_wait_s
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def enter(self) -> None:
        """Let heartbeats name the agent's present generation. When the lease reports its end, a change begins."""
        generation = self._agent.membership.generation
        self._lease.enter(
            generation, self._statistics, self._begin, self._lose, partial(self._agent.on_ranks_lost, generation)
        )

    def stop(self) -> None:
        """Begin no further change. Returns at once. A change in progress continues, but no longer ends the agent."""
        with self._lock:
            self._stopping.set()

    def join(self) -> None:
        """Wait for the change in progress, if there is one, after `stop`. Returns at once in the change's thread."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _lose(self, reason: str) -> None:
        self._agent.end(GenerationEndedError(f"{reason}; rank {self._rank} has no place in the job any more"))

    def _begin(self, reason: str) -> None:
        with self._lock:
            # Under the lock with `stop`: no change begins after the agent was told to end.
            if not self._stopping.is_set():
                name = f"hopsum-change-{self._rank}"
                self._thread = threading.Thread(target=self._run, args=(reason,), name=name, daemon=True)
                self._thread.start()

    def _run(self, reason: str) -> None:
        try:
            self._change(reason)
        except BaseException as error:
            if self._stopping.is_set():
                return
            _log.warning("rank %d: %s; it does not continue: %s", self._rank, reason, error)
            self._agent.end(self._ending(reason, error))

    def _change(self, reason: str) -> None:
        over = self._agent.membership
        if over.side_channels is None:
            raise GenerationEndedError(
                "its workers have no side channels, so no worker can continue in another one: connect again"
            )
        _log.warning("rank %d: %s", self._rank, reason)
        # Ranks that vanish together with the switch have lost the same machine or network, and do not come back sooner.
        replacement_wait_s = min(self._replacement_wait_s, self._agent.switch_patience_s)
        # Seal first: the report says what this worker holds, and nothing may be added after that.
        sealed, begun = self._agent.seal()
        self._member.join_again(sealed, begun, self._wait_s)
        membership = self._member.membership(
            self._wait_s, known_generation=over.generation, replacement_wait_s=replacement_wait_s
        )
        # A membership with other addresses than this worker's must not be entered.
        self._check(membership)
        # The agent enters before heartbeats name the generation: an answer may end it again at once.
        self._agent.enter(membership)
        _log.warning("rank %d continues in generation %d", self._rank, membership.generation)
        self.enter()

    def _ending(self, reason: str, error: BaseException) -> HopsumError:
        """Make the error with which the agent ends."""
        text = f"rank {self._rank}: {reason}; {error}"
        if isinstance(error, ControllerUnreachableError):
            made: HopsumError = MembershipError(f"{text}. Nothing was heard of a next generation in {self._wait_s:g} s")
        elif isinstance(error, ControllerError):  # which says itself what happened, and what to do
            made = GenerationEndedError(f"{error}; rank {self._rank} has no place in the job any more")
        else:
            made = MembershipError(text) if isinstance(error, MembershipError) else GenerationEndedError(text)
        made.__cause__ = error
        return made
