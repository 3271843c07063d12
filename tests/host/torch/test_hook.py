# SPDX-License-Identifier: Apache-2.0
"""The hook on buckets made by hand: ranks are states in one process, their agents on loopback."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
from torch import nn

from hopsum.agent import AllReduceResult
from hopsum.errors import AllReduceTimeoutError, GenerationEndedError
from hopsum.torch import HopsumState, hopsum_hook

from ..agent.cluster import EAGER, HASTY, Cluster
from .test_residuals import InstantGroup

torch.set_num_threads(1)


class Bucket:
    """What the hook uses of a GradBucket."""

    def __init__(
        self, module: nn.Module, names: Sequence[str], gradient: torch.Tensor, index: int = 0, last: bool = True
    ) -> None:
        self._index, self._last = index, last
        parameters = dict(module.named_parameters())
        self._parameters = [parameters[name] for name in names]
        self._buffer = gradient

    def buffer(self) -> torch.Tensor:
        return self._buffer

    def parameters(self) -> list[torch.Tensor]:
        return self._parameters

    def index(self) -> int:
        return self._index

    def is_last(self) -> bool:
        return self._last


class Ranks:
    """Some ranks with a module, an agent and a state each."""

    def __init__(self, stack: ExitStack, workers: int, codec: str = "thc", **options: Any) -> None:
        self.cluster = Cluster(stack, workers)
        self.modules = [nn.Sequential(nn.Linear(40, 30), nn.Linear(30, 10)) for _ in range(workers)]
        self.agents = [self.cluster.agent(rank, codec, EAGER) for rank in range(workers)]
        self.states = [HopsumState(*each, **options) for each in zip(self.agents, self.modules, strict=True)]

    def reduce(self, names: Sequence[str], gradients: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run the hook on every rank and return what the futures hold: the same everywhere."""
        buckets = [Bucket(module, names, each) for module, each in zip(self.modules, gradients, strict=True)]
        futures = [hopsum_hook(state, bucket) for state, bucket in zip(self.states, buckets, strict=True)]  # type: ignore[arg-type]
        values = [future.wait() for future in futures]
        for value, bucket in zip(values, buckets, strict=True):
            assert value.data_ptr() == bucket.buffer().data_ptr()
            assert torch.equal(value, values[0])
        return values


LAST, FIRST = ("1.weight", "1.bias"), ("0.weight", "0.bias")


def gradients(elements: int, count: int, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(elements, generator=generator) for _ in range(count)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_future_holds_the_mean_in_the_buffer_and_in_its_type(stack: ExitStack, dtype: torch.dtype) -> None:
    ranks, sent = Ranks(stack, 2, "fixed"), [each.to(dtype) for each in gradients(310, 2)]
    expected = ((sent[0].float() + sent[1].float()) / 2).to(dtype)
    (value, _) = ranks.reduce(LAST, sent)
    assert value.dtype == dtype
    torch.testing.assert_close(value, expected)


@pytest.mark.parametrize("ended_by", ["uncompressed bucket", "next backward pass"])
def test_a_promise_that_ddp_does_not_keep_is_taken_back(stack: ExitStack, ended_by: str) -> None:
    """No all-reduce follows the first bucket's: the last one is not compressed, or the backward pass is given up."""
    cluster, module = Cluster(stack, 1), nn.Sequential(nn.Linear(40, 30), nn.Linear(30, 10))
    state = HopsumState(cluster.agent(0, "fixed", HASTY), module)
    future = hopsum_hook(state, Bucket(module, LAST, torch.ones(310), 0, False))  # type: ignore[arg-type]
    if ended_by == "uncompressed bucket":
        state.start_iter = 9
        state._sender = replace(state._sender, group=InstantGroup())  # type: ignore[type-var, arg-type]
        hopsum_hook(state, Bucket(module, FIRST, torch.ones(1230), 1, True)).wait()  # type: ignore[arg-type]
        torch.testing.assert_close(future.wait(), torch.ones(310))
    else:
        again = hopsum_hook(state, Bucket(module, LAST, torch.ones(310)))  # type: ignore[arg-type]
        torch.testing.assert_close(again.wait(), torch.ones(310))
    assert state.allreduces == (1 if ended_by == "uncompressed bucket" else 2)


def test_without_error_feedback_nothing_is_kept(stack: ExitStack) -> None:
    """The same gradients are rounded anew in every step."""
    ranks = Ranks(stack, 2, error_feedback=False)
    first, second = (ranks.reduce(LAST, gradients(310, 2))[0] for _ in range(2))
    assert not torch.equal(first, second)
    assert ranks.states[0].state_dict()["residuals"]["0"] == {}


def test_a_result_is_freed_without_a_collection(stack: ExitStack) -> None:
    """With large gradients, those of some steps more would be most of a worker's memory."""

    def results() -> int:
        return sum(type(each) is AllReduceResult for each in gc.get_objects())

    ranks = Ranks(stack, 2)
    gc.collect()
    gc.disable()
    try:
        # Another test of this process may have left some.
        before = results()
        for seed in range(8):
            ranks.reduce(LAST, gradients(310, 2, seed))
        # An agent's thread may have the last one still.
        assert results() - before <= 2
    finally:
        gc.enable()


def test_statistics(stack: ExitStack) -> None:
    ranks = Ranks(stack, 2)
    assert np.isnan(ranks.states[0].compression_stats()["ratio_up"])
    ranks.reduce(FIRST, gradients(1230, 2))
    statistics = ranks.states[0].compression_stats()
    assert (statistics["allreduces"], statistics["elements"], statistics["fp32_bytes"]) == (1, 1230, 4920)
    up = statistics["packets_up"] * (42 + 32) + 1024 + 2 * 512
    if not statistics["retransmits"]:
        assert (statistics["packets_up"], statistics["bytes_up"]) == (3, up)
        assert statistics["ratio_up"] == 4920 / up


def test_a_pickled_state_continues_alike(stack: ExitStack) -> None:
    ranks = Ranks(stack, 2)
    for seed in range(3):
        ranks.reduce(LAST, gradients(310, 2, seed))
    originals = ranks.states
    ranks.states = [pickle.loads(pickle.dumps(each)) for each in originals]
    for state, agent, module in zip(ranks.states, ranks.agents, ranks.modules, strict=True):
        with pytest.raises(RuntimeError, match="call attach"):
            state.compression_stats()
        state.attach(agent, module)
    restored = ranks.reduce(LAST, gradients(310, 2, seed=3))[0].clone()
    ranks.states = originals
    assert torch.equal(ranks.reduce(LAST, gradients(310, 2, seed=3))[0], restored)
    assert not torch.equal(ranks.reduce(LAST, gradients(310, 2, seed=3))[0], restored)


def test_a_state_of_another_run_is_refused(stack: ExitStack) -> None:
    ranks = Ranks(stack, 2)
    ranks.reduce(LAST, gradients(310, 2))
    saved = ranks.states[0].state_dict()
    with pytest.raises(ValueError, match="version 9"):
        ranks.states[0].load_state_dict({**saved, "version": 9})
    other = HopsumState(ranks.agents[0], nn.Sequential(nn.Linear(40, 30), nn.Linear(30, 11)))
    with pytest.raises(ValueError, match=r"'1\.weight' with shape \[300\], but the module has 330 elements"):
        other.load_state_dict(saved)
    with pytest.raises(ValueError, match="the module has no such parameter"):
        ranks.states[0].attach(ranks.agents[0], nn.Linear(1, 1))


@pytest.mark.parametrize(
    ("gradient", "message"),
    [
        (torch.zeros(310, dtype=torch.complex64), "dense floating-point gradients, not torch.complex64"),
        (torch.zeros(310).to_sparse(), "not torch.float32 torch.sparse_coo"),
        (torch.zeros(5), "bucket of 5 elements for parameters of 310"),
    ],
)
def test_gradients_that_cannot_be_summed(stack: ExitStack, gradient: torch.Tensor, message: str) -> None:
    ranks = Ranks(stack, 1)
    future = hopsum_hook(ranks.states[0], Bucket(ranks.modules[0], LAST, gradient))  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match=f"ValueError.*{message}"):
        future.wait()
    assert isinstance(ranks.states[0].failure, ValueError)


def test_a_foreign_parameter_is_named(stack: ExitStack) -> None:
    ranks, other = Ranks(stack, 1), nn.Linear(3, 2)
    future = hopsum_hook(ranks.states[0], Bucket(other, ["weight"], torch.zeros(6)))  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match=r"shapes \[\(2, 3\)\] are not in the module"):
        future.wait()


def test_a_failed_allreduce_fails_the_future_and_the_next_ones(stack: ExitStack) -> None:
    cluster, module = Cluster(stack, 2), nn.Linear(30, 10)
    state = HopsumState(cluster.agent(0, "thc", HASTY), module)
    sent = gradients(310, 1)[0]
    for what in (
        "AllReduceTimeoutError: no result from switch",
        "GenerationEndedError: rank 0 is no longer in generation",
    ):
        future = hopsum_hook(state, Bucket(module, ["weight", "bias"], sent))  # type: ignore[arg-type]
        with pytest.raises(RuntimeError, match=what):
            future.wait()
    assert isinstance(state.failure, AllReduceTimeoutError)
    left = state.state_dict()["residuals"]["0"]
    assert torch.equal(torch.cat([left["weight"], left["bias"]]), sent)
    assert not isinstance(state.failure, GenerationEndedError)


def test_the_state_waits_for_nobody(stack: ExitStack) -> None:
    ranks = Ranks(stack, 2)
    sent = gradients(310, 2)
    buckets = [Bucket(module, LAST, each) for module, each in zip(ranks.modules, sent, strict=True)]
    first = hopsum_hook(ranks.states[0], buckets[0])  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="take the state between backward passes"):
        ranks.states[0].state_dict()
    second = hopsum_hook(ranks.states[1], buckets[1])  # type: ignore[arg-type]
    assert torch.equal(first.wait(), second.wait())
    assert ranks.states[0].state_dict()["allreduces"] == 1
