# SPDX-License-Identifier: Apache-2.0
"""Steps in which workers were replaced, and a switch that is killed for good: no gradient is lost or counted twice."""

from __future__ import annotations

from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch

from hopsum.codec import ErrorFeedback
from hopsum.communicator import AllReduceResult
from hopsum.errors import WorkersReplacedError
from hopsum.torch import HopsumState, hopsum_hook

from .embedded import embedded_jobs, torchrun
from .test_hook import FIRST, LAST, Bucket, Ranks, gradients

pytestmark = pytest.mark.system


def run(ranks: Ranks, seed: int) -> list[torch.futures.Future[torch.Tensor]]:
    """Hand both buckets of a step to the hook."""
    sent = [gradients(310, 1, seed)[0], gradients(1230, 1, seed + 1)[0]]
    buckets = [Bucket(ranks.modules[0], LAST, sent[0], 0, last=False), Bucket(ranks.modules[0], FIRST, sent[1], 1)]
    return [hopsum_hook(ranks.states[0], bucket) for bucket in buckets]  # type: ignore[arg-type]


def residuals(state: HopsumState) -> dict[str, torch.Tensor]:
    return state.state_dict()["residuals"][state.owner]


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


WORKER = Path(__file__).with_name("switch_lost_worker.py")
LOST_IN_STEP = 4


def test_all_ranks_go_on_over_the_process_group_from_the_same_step(tmp_path: Path) -> None:
    with embedded_jobs(tmp_path, 2) as switch:
        ranks, log = torchrun(WORKER, str(tmp_path / "job0.json"), str(switch), ranks=2)
    first, second = ranks
    assert first["digest"] == second["digest"]
    assert first["ways"] == second["ways"] == [1.0] * LOST_IN_STEP + [0.0] * 3
    for rank in ranks:
        assert rank["largest"] == 0, "the process group has delivered what was left"
        assert rank["out"] < 2e-6
    assert log.count("torch's process group averages gradients from here on") == 2
