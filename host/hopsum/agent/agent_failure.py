# SPDX-License-Identifier: Apache-2.0
"""The error that ends an agent, and the error of all-reduces after it."""

from __future__ import annotations

from collections.abc import Callable

from hopsum.errors import GenerationEndedError, HopsumError
from hopsum_wire.membership import MembershipError


class AgentFailure:
    """The first error that ended an agent before `close`. Only the driving thread notes one.

    Args:
        rank: of the agent.
        on_failure: called once, with the error.
    """

    def __init__(self, rank: int, on_failure: Callable[[BaseException], None]) -> None:
        self._rank, self._on_failure = rank, on_failure
        self.error: BaseException | None = None
        """None: the agent has not failed."""

    def note(self, error: BaseException) -> None:
        """Store an error, unless an earlier one has ended the agent."""
        if self.error is None:
            self.error = error
            self._on_failure(error)

    def closing_error(self, generation: int) -> HopsumError:
        """Return the error of an all-reduce that ends, or is submitted, after the failure in a generation."""
        if isinstance(self.error, GenerationEndedError | MembershipError):
            over: HopsumError = type(self.error)(str(self.error))
        else:
            over = GenerationEndedError(
                f"rank {self._rank} is no longer in generation {generation}, since an all-reduce failed: {self.error}. "
                "Make a new agent with a membership of a new generation"
            )
        over.__cause__ = self.error
        return over
