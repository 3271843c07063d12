# SPDX-License-Identifier: Apache-2.0
"""Shards of FSDP2 that travel as factors: books, a failure, NaN, and checkpoints by shard. test_fsdp.py has torch."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch

from hopsum.errors import AllReduceError
from hopsum.torch import ReplicaState

from .low_rank_world import WHOLE, ScriptedNetwork, require_same

torch.set_num_threads(1)
SHAPES = {"a": {"a.weight": torch.Size([40, 30]), "a.bias": torch.Size([40])}, "": {"weight": torch.Size([30, 4, 9])}}
MATRICES = {"a.weight", "weight"}
ROUNDING = 2e-5


class Replicas:
    """The hooks of two replicas of one shard."""

    def __init__(self, *, shard: int = 1, **options: Any) -> None:
        self.network = ScriptedNetwork(2, WHOLE)
        self.states = [
            ReplicaState(
                comm, SHAPES, torch.device("cpu"), shard=shard, shards=2,
                **{"on_nonfinite": "raise", "low_rank": 2, "low_rank_start": 0, **options},
            )
            for comm in self.network.communicators  # type: ignore[misc]
        ]  # fmt: skip

    def average(self, where: str, number: int, dtype: torch.dtype = torch.float32, *, nan: bool = False) -> Any:
        """Return gradients of a module on both replicas, and the mean or what was raised on each."""
        size = sum(each.numel() for each in SHAPES[where].values())
        noise = [torch.Generator().manual_seed(2 * number + rank) for rank in range(2)]
        own = [torch.randn(size, generator=each).to(dtype) for each in noise]
        if nan:
            own[1][5] = torch.nan
        means = [each.clone() for each in own]
        with ThreadPoolExecutor(2) as pool:
            futures = [pool.submit(state._average, mean, where) for state, mean in zip(self.states, means, strict=True)]
            return own, means, [each.exception() for each in futures]

    def left(self) -> list[dict[str, torch.Tensor]]:
        return [state.state_dict()["residuals"][state.owner] for state in self.states]

    def factors(self) -> list[dict[str, torch.Tensor]]:
        return [state.state_dict()["factors"].get(str(state.shard), {}) for state in self.states]


@pytest.mark.parametrize(("dtype", "rounding"), [(torch.float32, ROUNDING), (torch.bfloat16, 0.2)])
@pytest.mark.parametrize("start", [0, 2])
def test_books_balance(dtype: torch.dtype, rounding: float, start: int) -> None:
    replicas, owed = Replicas(low_rank_start=start), {where: torch.zeros(1, dtype=torch.float64) for where in SHAPES}
    for number in range(5):
        for where in SHAPES:
            own, means, errors = replicas.average(where, number, dtype)
            assert errors == [None, None]
            assert torch.equal(*means)
            owed[where] = owed[where] + sum(each.double() for each in own) - 2 * means[0].double()
        assert replicas.states[0].factors_matrices == (number + 1 >= start)
    for where, shapes in SHAPES.items():
        left = sum(torch.cat([each[name] for name in shapes]).double() for each in replicas.left())
        torch.testing.assert_close(left, owed[where], rtol=0, atol=rounding)
    assert set(replicas.factors()[0]) == MATRICES
    require_same(*replicas.factors())
    # A module of matrices alone has two sums, one with a vector three; whole it has one.
    assert replicas.states[0].allreduces == 2 * start + 5 * (5 - start)


def test_what_fails_or_is_dropped_has_no_effect() -> None:
    replicas = Replicas(on_nonfinite="skip")
    for where in SHAPES:
        replicas.average(where, 0)
    left, factors = replicas.left(), replicas.factors()
    _, means, errors = replicas.average("", 1, nan=True)
    assert errors == [None, None]
    assert all(bool(each.isnan().all()) for each in means)
    # The mean of Q of the module of one matrix. P of NaN had no Q.
    replicas.network.errors[replicas.network.communicators[0]._submitted + 1] = AllReduceError("lost")
    *_, errors = replicas.average("", 2)
    assert [str(each) for each in errors] == ["lost", "lost"]
    for before, after in zip([*left, *factors], [*replicas.left(), *replicas.factors()], strict=True):
        require_same(before, after)


def test_a_checkpoint_is_by_shard() -> None:
    """States of all ranks are loaded: a shard takes its own factors, and the counts continue."""
    pair = [Replicas(shard=shard) for shard in range(2)]
    for number in range(2):
        for shard, replicas in enumerate(pair):
            for where in SHAPES:
                replicas.average(where, 2 * number + shard)
    told = [state.state_dict() for replicas in pair for state in replicas.states]
    for shard, replicas in enumerate(pair):
        fresh = Replicas(shard=shard)
        for state in fresh.states:
            state.load_state_dict(told)
        require_same(fresh.factors()[0], replicas.factors()[0])
        assert fresh.states[0].allreduces == replicas.states[0].allreduces
        assert torch.equal(fresh.average("a", 9)[1][0], replicas.average("a", 9)[1][0])
    old: Any = [{k: v for k, v in each.items() if k not in ("factors", "allreduces", "averages")} for each in told]
    fresh.states[0].load_state_dict(old)
    assert fresh.factors()[0] == {}


def test_shards_that_do_not_pay_are_refused() -> None:
    with pytest.raises(ValueError, match=r"low_rank=60 pays for no parameter: .*take low_rank=8 or less"):
        Replicas(low_rank=60)
