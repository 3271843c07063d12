# SPDX-License-Identifier: Apache-2.0
"""The answer to a switch that is lost for good: the process group averages, from the same step on all ranks.

A rank may have all means of a step while another one lost the switch in the middle of it. So the ranks vote at the end
of every step, one byte each: nobody applies a mean before all ranks have theirs. If one rank lost the switch, all ranks
put their residuals back to what they were before the step, and the process group averages gradients and residuals.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final, Literal, get_args

import torch
import torch.distributed as dist

from hopsum.codec.interface import CollectiveError, OnNonfinite, nonfinite_error
from hopsum.errors import AllReduceError, GenerationEndedError, RankLeftError, WorkersReplacedError
from hopsum.torch.residuals import Residuals
from hopsum.torch.step import PortionSum

OnSwitchLost = Literal["raise", "fall_back"]
"""The ways in which a training goes on whose switch is lost for good."""
ON_SWITCH_LOST: Final = get_args(OnSwitchLost)
_log: Final = logging.getLogger(__name__)
_MEANS, _LOST, _FAILED = range(3)
"""Votes, of which the largest counts: means or an error of all ranks, the switch is lost here, any other error."""


def is_loss(error: BaseException) -> bool:
    """Return whether an error says that the switch, or a result of it, is lost on this rank."""
    others = (RankLeftError, WorkersReplacedError, CollectiveError)
    return isinstance(error, AllReduceError | GenerationEndedError) and not isinstance(error, others)


class FallBack:
    """The votes of one rank, and whether the process group averages instead of the switch.

    Args:
        group: of all ranks, which make this object at the same point.
        residuals: of the state.
        on_nonfinite: as the state's.
    """

    def __init__(self, group: dist.ProcessGroup, residuals: Residuals, on_nonfinite: OnNonfinite) -> None:
        ranks = dist.get_process_group_ranks(group)
        # A group of its own: votes come from another thread, while the program may use the other group.
        self._group = dist.new_group(ranks, backend="gloo", use_local_synchronization=True)
        self._residuals, self._on_nonfinite = residuals, on_nonfinite
        self._workers, self._rank = len(ranks), dist.get_rank(group)
        self._cause: BaseException | None = None
        self.active = False
        """The process group averages, and the switch is asked no more."""

    def vote(self, failures: list[BaseException], then: Callable[[bool | BaseException], None]) -> None:
        """Tell the other ranks how the step ended here. Then call `then`, in a thread of its own.

        It is called with whether the process group has to average this step, or with why the ranks could not vote.
        """
        alike = (CollectiveError, WorkersReplacedError)
        own = [each for each in failures if not isinstance(each, alike)]
        lost = [each for each in own if is_loss(each)]
        self._cause = lost[0] if lost else None
        vote = _MEANS if not own else _LOST if len(lost) == len(own) else _FAILED

        def count() -> None:
            ballot = torch.tensor([vote], dtype=torch.uint8)
            try:
                dist.all_reduce(ballot, dist.ReduceOp.MAX, group=self._group)
            except Exception as error:
                then(self._no_vote(error, own))
            else:
                then(self._verdict(int(ballot), own))

        threading.Thread(target=count, name="hopsum-vote", daemon=True).start()

    def _verdict(self, highest: int, own: list[BaseException]) -> bool | BaseException:
        if highest != _FAILED:
            return highest == _LOST
        text = f"rank {self._rank} has all means of this step, which failed on another rank: see what that rank says"
        return own[0] if own else AllReduceError(text)

    def _no_vote(self, error: Exception, own: list[BaseException]) -> BaseException:
        why = f" after {own[0]}" if own else ""
        return AllReduceError(f"the ranks could not vote on this step: {error}{why}. A rank has died or left")

    def redo(self, sums: list[PortionSum]) -> bool:
        """Average by the process group what the switch was to average. Return whether all means are finite.

        Raises:
            RuntimeError: from torch.
            NonFiniteError: on all ranks, some rank's gradients have NaN or infinity, and `on_nonfinite` is "raise".
        """
        why = "Another rank lost the switch" if self._cause is None else str(self._cause)
        _log.warning("rank %d: torch's process group averages gradients from here on. %s", self._rank, why)
        self.active = True
        for each in sums:
            if each.compressed:
                each.give_back()
                each.carry(self._residuals)
                each.x.div_(self._workers)
                dist.all_reduce(each.x, group=self._group)
        broken = [each.portion for each in sums if not bool(each.x.isfinite().all())]
        if broken and self._on_nonfinite == "raise":
            gradients = broken[0].gather().to("cpu", torch.float32).numpy()
            named = list(zip(broken[0].names, broken[0].sizes, strict=True))
            raise nonfinite_error(gradients, named, self._rank)
        return not broken
