# SPDX-License-Identifier: Apache-2.0
"""An agent of a controller's job: under a lease, it goes with the job from epoch to epoch; it leaves when closed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from hopsum.agent import Agent
from hopsum.membership import JobMembership
from hopsum.rpc.change import EpochChange
from hopsum.rpc.lease import Lease
from hopsum.rpc.member import Member


class JobAgent(Agent):
    """An agent that leaves its job when it is closed, and follows it into other epochs.

    Args:
        member: that joined with this rank.
        lease: of its rank; stopped with the agent.
        held: what else goes when the agent has gone.
        check: raises MembershipError for a membership that is not this worker's.
        wait_s: for the other ranks, in every change.
    """

    def __init__(
        self,
        membership: JobMembership,
        rank: int,
        *,
        member: Member,
        lease: Lease,
        held: ExitStack,
        check: Callable[[JobMembership], None],
        wait_s: float,
        **rest: Any,
    ) -> None:
        self._lease, self._held = lease, held
        self._change = EpochChange(rank, self, member, lease, statistics=self._counts, check=check, wait_s=wait_s)
        super().__init__(membership, rank, **rest)
        self._change.enter()

    def close(self) -> None:
        """End the agent, then leave the job. Harmless when it is closed."""
        self._change.stop()
        super().close()
        self._lease.stop()
        self._held.close()  # with the channel, on which a change may be waiting
        self._change.join()

    def _note_silence(self) -> None:
        self._lease.hurry()

    def _counts(self) -> Mapping[str, float]:
        """Return what heartbeats carry."""
        counted = self.statistics
        traffic, stream = counted.traffic, self._transport.worker.stream
        return {
            "allreduces": counted.allreduces,
            "skipped": counted.skipped,
            "elements": counted.elements,
            "seconds": counted.seconds,
            "datagrams_sent": traffic.datagrams_sent,
            "datagrams_received": traffic.datagrams_received,
            "retransmits": traffic.retransmits,
            "bytes_sent": traffic.bytes_sent,
            "bytes_received": traffic.bytes_received,
            "position": stream.end - stream.base,
        }
