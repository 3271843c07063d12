# SPDX-License-Identifier: Apache-2.0
"""States of a job's ranks load under another order and another number of ranks, and the mean owes what it owed."""

from __future__ import annotations

import copy
import itertools
import logging
import pickle
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
from torch import nn
from torch.distributed import checkpoint

import hopsum
from hopsum.agent import Communicator
from hopsum.torch import DiLoCo, HopsumState, ReplicaState, load_checkpoint
from hopsum.torch.residuals import norm_of, redistribute

from .embedded import torchrun

WORKER = Path(__file__).with_name("checkpoint_worker.py")
NUMBERS = itertools.count()
SIZES = {"0.weight": 6, "0.bias": 2, "1.weight": 4}


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2, bias=False))


def saved_state(rank: int, workers: int, residuals: dict[str, torch.Tensor], suffix: str = "") -> dict[str, Any]:
    owner = f"{rank}{suffix}"
    counts = {"version": 3, "workers": workers, "steps": 7, "allreduces": 14, "scale": 1.0}
    return {**counts, "norms": {owner: norm_of(residuals)}, "residuals": {owner: residuals}}


def owed(residuals: list[dict[str, torch.Tensor]], workers: int) -> dict[str, list[Fraction]]:
    """Return the sum of residuals by the number of workers, exactly."""
    return {
        name: [
            sum((Fraction(each[name][at].item()) for each in residuals if name in each), Fraction()) / workers
            for at in range(size)
        ]
        for name, size in SIZES.items()
    }


@pytest.mark.parametrize("seed", range(60))
def test_the_mean_owes_what_it_owed(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    """Any numbers of workers before and after, order of states, parameters without a residual, and lost states."""
    rng = random.Random(seed)
    before, after = rng.randint(1, 7), rng.choice([0, rng.randint(1, 7)])
    after = after or before
    suffix = rng.choice(["", "/1"])
    states = []
    for rank in range(before):
        names = rng.sample(sorted(SIZES), rng.randint(0, len(SIZES)))
        # Multiples of 420 divide by every number of workers without a rounding.
        residuals = {n: torch.tensor([420.0 * rng.randint(-99, 99) for _ in range(SIZES[n])]) for n in names}
        states.append(saved_state(rank, before, residuals, suffix))
    kept = rng.sample(states, rng.randint(max(1, before - 2), before))
    there = [residuals for state in kept for residuals in state["residuals"].values()]
    # States of another shard are in the same checkpoint, and count for nothing.
    others = [saved_state(0, before, {"0.bias": torch.ones(2)}, "/2")] if suffix else []
    with caplog.at_level(logging.WARNING):
        shares = [
            redistribute(rng.sample(kept + others, len(kept + others)), f"{rank}{suffix}", after, SIZES, version=3)[1]
            for rank in range(after)
        ]
    assert owed(shares, after) == owed(there, before)
    said = {name for record in caplog.records for name in str(record.args[0]).removeprefix("ranks ").split(", ")}  # type: ignore[index]
    assert said == {name for state in states if state not in kept for name in state["norms"]}


def test_the_same_ranks_have_their_own_residuals_again() -> None:
    states = [saved_state(rank, 3, {"0.bias": torch.full((2,), float(rank))}) for rank in (2, 0, 1)]
    for rank in range(3):
        for given in (states, iter(states), states[(rank + 1) % 3]):
            assert redistribute(given, str(rank), 3, SIZES)[1]["0.bias"].tolist() == [rank, rank]


def test_what_is_lost_has_a_size(caplog: pytest.LogCaptureFixture) -> None:
    redistribute(saved_state(1, 4, {"0.bias": torch.tensor([3.0, 4.0])}), "0", 2, SIZES)
    (line,) = caplog.messages
    assert line.startswith("the residuals of ranks 0, 2, 3 of 4 workers are lost: the mean will lack about 1.25 for")


BIAS = {"0.bias": torch.ones(2)}


@pytest.mark.parametrize(
    ("states", "message"),
    [
        ([], "no state to load"),
        ([saved_state(0, 3, BIAS), saved_state(1, 3, BIAS), saved_state(0, 3, BIAS)], "two states are of rank 0 of 3"),
        ([saved_state(0, 3, BIAS), {**saved_state(1, 3, BIAS), "steps": 9}], "'steps': 7,.*'steps': 9,"),
        ([saved_state(0, 3, BIAS), saved_state(1, 4, BIAS)], "different checkpoints: .*'workers': 3,.*'workers': 4"),
        ([{**saved_state(0, 3, BIAS), "version": 4}], "state with version 4: here it is 3"),
        ([saved_state(0, 3, {"0.bias": torch.ones(5)})], r"'0.bias' with shape \[5\], but the module has 2 elements"),
        ([saved_state(0, 3, {"7.bias": torch.ones(5)})], "the module has no such parameter"),
        ([{**saved_state(0, 3, BIAS), "residuals": {}}], "rank 0 of 3 without its residuals, of norm 1.41: read a"),
    ],
)
def test_states_that_do_not_fit_are_refused_and_nothing_is_loaded(states: list[Any], message: str) -> None:
    with ExitStack() as stack:
        (comm,) = jobs(stack, 1)
        state = HopsumState(comm, make_model())
        before = copy.deepcopy(state.state_dict())
        with pytest.raises(ValueError, match=message):
            state.load_state_dict(states)
        assert str(state.state_dict()) == str(before)


def jobs(stack: ExitStack, workers: int) -> list[Communicator]:
    url = f"memory://membership{next(NUMBERS)}?workers={workers}"
    return [stack.enter_context(hopsum.connect(url, rank=rank, backend="numpy")) for rank in range(workers)]


@contextmanager
def loaded(folder: Path, workers: int, make: Any) -> Iterator[list[Any]]:
    """Yield states of so many ranks that took the checkpoint in a folder."""
    with ExitStack() as stack:
        states = [make(comm) for comm in jobs(stack, workers)]
        for state in states:
            load_checkpoint(state, folder, type(state).__name__)
        yield states


def mean_owed(states: list[Any]) -> dict[str, torch.Tensor]:
    """Return what the mean of all ranks owes, in float64."""
    saved = [each.state_dict() for each in states]
    names = {name for each in saved for residuals in each["residuals"].values() for name in residuals}
    every = [residuals for each in saved for residuals in each["residuals"].values()]
    return {name: sum(each[name].double() for each in every if name in each) / len(states) for name in names}  # type: ignore[misc]


@pytest.mark.system
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_distributed_checkpoint_of_four_ranks_on_two_and_on_six(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """States of all kinds, which four ranks under torchrun saved together with torch's own function."""
    (*_, last), _ = torchrun(WORKER, str(tmp_path), ranks=4)
    makers = {
        "HopsumState": lambda comm: HopsumState(comm, make_model()),
        "DiLoCo": lambda comm: DiLoCo(make_model(), comm, sync_every=1),
        "ReplicaState": replica_of_shard_1,
    }
    for kind, make in makers.items():
        for workers in (1, 2, 4, 6):
            # Two replicas of two shards.
            with loaded(tmp_path, workers, make) as states:
                found = mean_owed(states)
                assert found.keys() == last[kind].keys()
                for name, expected in last[kind].items():
                    assert any(expected)
                    torch.testing.assert_close(found[name], torch.tensor(expected).double(), rtol=1e-5, atol=1e-7)
            assert getattr(states[0], "steps", 3) == 3
            if kind == "DiLoCo":
                parameters = [each.outer_optimizer.state_dict()["state"][0]["momentum_buffer"] for each in states]
                assert all(torch.equal(each, parameters[0]) and each.any() for each in parameters)
    assert not [line for line in caplog.messages if "lost" in line]
    with ExitStack() as stack:
        state = HopsumState(jobs(stack, 4)[2], make_model())
        with pytest.raises(KeyError, match="'other' is not in the checkpoint"):
            load_checkpoint(state, tmp_path, "other")
        with pytest.raises(ValueError, match=r"rank 2 of 4 without its residuals, .*: read a distributed checkpoint"):
            checkpoint.load({"HopsumState": state}, checkpoint_id=tmp_path)


def replica_of_shard_1(comm: Communicator) -> ReplicaState:
    shapes = {"": {name: torch.Size([size]) for name, size in SIZES.items()}}
    return ReplicaState(comm, shapes, torch.device("cpu"), shard=1, shards=2, on_nonfinite="raise")


@pytest.mark.parametrize(("before", "after"), [(2, 2), (2, 3), (3, 2)])
def test_a_state_is_attached_to_another_rank_of_another_number(
    before: int, after: int, caplog: pytest.LogCaptureFixture
) -> None:
    with ExitStack() as stack:
        modules = [make_model() for _ in range(max(before, after))]
        states = [HopsumState(*each) for each in zip(jobs(stack, before), modules, strict=False)]
        for rank, state in enumerate(states):
            residuals = {"0.bias": torch.tensor([6.0 * rank, -18.0])}
            state.load_state_dict({**state.state_dict(), "residuals": {str(rank): residuals}})
        there = [each.state_dict()["residuals"][each.owner] for each in states[:after]]
        # Backwards: the ranks change places, and one of them was pickled meanwhile.
        states[0] = pickle.loads(pickle.dumps(states[0]))
        comms = list(reversed(jobs(stack, after)))
        for state, comm, module in zip(states, comms, modules, strict=False):
            state.attach(comm, module)
        found = [each.state_dict()["residuals"][each.owner] for each in states[:after]]
        assert owed(found, after) == owed(there, before)
        assert [state.rank for state in states[:after]] == [comm.rank for comm in comms[: len(found)]]
        assert len([line for line in caplog.messages if "the residuals of 1 of 3 workers are lost" in line]) == (
            2 if after < before else 0
        )
