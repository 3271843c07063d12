# SPDX-License-Identifier: Apache-2.0
"""From one generation to the next: seal, join again with a report, wait for the others, go on.

    state    input                              next     also
    IN       the generation is over (Lease)          SEALED   the agent seals; the controller is told what it holds
    IN       the place is lost (Lease)          OUT      GenerationEndedError
    SEALED   joined again                       WAITING
    WAITING  membership of another generation        IN       the agent enters it, heartbeats name it
    WAITING  ranks gone for `replacement_wait_s` OUT     MembershipError: nobody took their places
    SEALED   refused                            OUT      GenerationEndedError, with the controller's reason
    both     `wait_s` over                      OUT      MembershipError: who is missing, or no controller
    any      stop                               STOPPED  nothing is said any more

A retry sends the same report. A generation that is over before all have heard of it is left in the same way. Each
change has a thread of its own, since joining and waiting take their time and heartbeats go on meanwhile.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

from hopsum.errors import GenerationEndedError, HopsumError
from hopsum.rpc.channel import ControllerError, ControllerUnreachableError
from hopsum.rpc.lease import Lease, Statistics
from hopsum.rpc.member_client import MemberClient
from hopsum_wire.generations import Sealed
from hopsum_wire.membership import JobMembership, MembershipError

_log: Final = logging.getLogger(__name__)


class Changing(Protocol):
    """An agent as `GenerationChange` sees it."""

    membership: JobMembership

    def seal(self) -> tuple[Sealed, int]:
        """Let nothing more happen in its generation. Return what it holds, and all-reduces begun."""

    def enter(self, membership: JobMembership) -> None:
        """Continue in another generation."""

    def on_ranks_lost(self, generation: int, ranks: Sequence[int]) -> None:
        """Keep nothing for these workers, as long as this generation lasts."""

    @property
    def switch_patience_s(self) -> float:
        """Seconds for which the agent will still wait for its silent switch before the agent fails."""

    def end(self, error: HopsumError) -> None:
        """Fail with this error."""


class GenerationChange:
    """Takes an agent from generation to generation. Thread-safe.

    Args:
        rank: for messages.
        check: raises MembershipError for a membership that is not this worker's.
        wait_s: for the controller, and for the other ranks.
        replacement_wait_s: for others in the places of ranks that are gone. Where the switch is gone too, no longer
            than the agent would have waited for the switch: the ranks that are gone have failed for the same reason.
    """

    def __init__(
        self,
        rank: int,
        agent: Changing,
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
        """Let heartbeats name the agent's generation, and hear when it is over."""
        generation = self._agent.membership.generation
        self._lease.enter(
            generation, self._statistics, self._begin, self._lose, partial(self._agent.on_ranks_lost, generation)
        )

    def stop(self) -> None:
        """Change nothing more. A change in progress goes on until what it waits for ends. `join` waits for that end."""
        with self._lock:
            self._stopping.set()

    def join(self) -> None:
        """Wait for the change in progress, if there is one, after `stop`."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _lose(self, reason: str) -> None:
        self._agent.end(GenerationEndedError(f"rank {self._rank} has no place in the job any more: {reason}"))

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
            made = GenerationEndedError(f"rank {self._rank} has no place in the job any more: {error}")
        else:
            made = MembershipError(text) if isinstance(error, MembershipError) else GenerationEndedError(text)
        made.__cause__ = error
        return made
