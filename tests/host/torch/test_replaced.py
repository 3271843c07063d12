# SPDX-License-Identifier: Apache-2.0
"""A step in which workers were replaced: it fails, and is as if it had not been."""

from __future__ import annotations

from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch

from hopsum.codec import ErrorFeedback
from hopsum.communicator import AllReduceResult
from hopsum.errors import WorkersReplacedError
from hopsum.torch import HopsumState, hopsum_hook

from .test_hook import FIRST, LAST, Bucket, Ranks, gradients

pytestmark = pytest.mark.system


def run(ranks: Ranks, seed: int) -> list[torch.futures.Future[torch.Tensor]]:
    """Hand both buckets of a step to the hook."""
    sent = [gradients(310, 1, seed)[0], gradients(1230, 1, seed + 1)[0]]
    buckets = [Bucket(ranks.modules[0], LAST, sent[0], 0, last=False), Bucket(ranks.modules[0], FIRST, sent[1], 1)]
    return [hopsum_hook(ranks.states[0], bucket) for bucket in buckets]  # type: ignore[arg-type]


def residuals(state: HopsumState) -> dict[str, torch.Tensor]:
    return state.state_dict()["residuals"]


def end_replaced(x: np.ndarray, feedback: ErrorFeedback) -> Future[AllReduceResult]:
    """End an all-reduce as an agent does: the error feedback has the vector."""
    feedback.compensate(x)
    feedback.commit(None)
    future: Future[AllReduceResult] = Future()
    future.set_exception(WorkersReplacedError("rank 1 was replaced", (1,)))
    return future


def test_the_whole_step_is_undone_and_can_be_done_again(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(stack, 1)
    state, agent = ranks.states[0], ranks.agents[0]
    for future in run(ranks, 0):
        future.wait()
    before, submit = residuals(state), agent.submit
    assert any(each.any() for each in before.values())

    def replaced(x: np.ndarray, *, feedback: ErrorFeedback, **rest: Any) -> Future[AllReduceResult]:
        if x.size == 310:  # the sum of the first bucket was decided
            agent.group_end()
            future = submit(x, feedback=feedback, **rest)
            agent.group_start()
            return future
        return end_replaced(x, feedback)

    monkeypatch.setattr(agent, "submit", replaced)
    for future in run(ranks, 5):
        with pytest.raises(RuntimeError, match="WorkersReplacedError: rank 1 was replaced"):
            future.wait()
    assert isinstance(state.failure, WorkersReplacedError)
    assert state.failure.ranks == (1,)
    after = residuals(state)
    assert all(torch.equal(after[name], each) for name, each in before.items())
    monkeypatch.undo()
    for future in run(ranks, 5):
        future.wait()
    assert state.allreduces == 6, "numbers go on, on all ranks alike"
