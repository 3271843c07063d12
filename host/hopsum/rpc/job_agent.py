# SPDX-License-Identifier: Apache-2.0
"""An agent of a controller's job: under a lease, from generation to generation. It leaves when closed."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from hopsum.agent import Agent
from hopsum.agent.stats_recorder import heartbeat_counts
from hopsum.communicator.allreduce_results import why_unfinished
from hopsum.errors import AllReduceTimeoutError
from hopsum.rpc.change import GenerationChange
from hopsum.rpc.lease import Lease
from hopsum.rpc.member_client import MemberClient
from hopsum_wire.membership import JobMembership
from hopsum_wire.watch.heartbeat import POSITION


class JobAgent(Agent):
    """An agent that leaves its job when it is closed, and follows it into other generations.

    Args:
        member: that joined with this rank.
        lease: of its rank, stopped with the agent.
        held: what else goes when the agent has gone.
        check: raises MembershipError for a membership that is not this worker's.
        wait_s: for the other ranks, in every change.
        replacement_wait_s: for others in the places of ranks that are gone.
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
        **rest: Any,
    ) -> None:
        self._lease, self._held, self._wait_s = lease, held, wait_s
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
        super().__init__(membership, rank, **rest)
        # Last: the lease's thread may end this generation at once, and needs the whole agent for it.
        self._change.enter()

    def close(self) -> None:
        """End the agent, then leave the job. Harmless when it is closed.

        While it serves its peers it goes with them into another generation: they may need what it holds. Where its
        program has not finished the generation is over for them too, and nobody waits for anybody.
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
        """Keep nothing for workers that were evicted while this generation goes on. Any thread."""
        for shard in self._shards:
            shard.on_ranks_lost(generation, ranks)

    @property
    def switch_patience_s(self) -> float:
        """Seconds that this worker would still wait for its switch if nothing comes from there. Any thread.

        Of several shards, the seconds for the switch that is nearest to its limit.
        """
        workers = [shard.worker for shard in self._shards]
        limits_s = [worker.timing.unreachable_s for worker in workers]
        own_s = [
            math.inf if limit_s is None else limit_s - worker.absence.lasted_s
            for worker, limit_s in zip(workers, limits_s, strict=True)
        ]
        return max(0.0, min(*own_s, self._wait_s - self._told_unreachable_s))

    @property
    def _told_unreachable_s(self) -> float:
        """For how long nothing has come from the switch, and the controller has not reached it either."""
        why, told_s = self._lease.switch_unreachable
        return min(told_s, self._engine.network.stalled_s) if why else 0.0

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

    def _counts(self) -> Mapping[str, float]:
        """Return the counts of a heartbeat."""
        streams = [shard.worker.stream for shard in self._shards]
        return {**heartbeat_counts(self.statistics), POSITION: max(each.end - each.base for each in streams)}
