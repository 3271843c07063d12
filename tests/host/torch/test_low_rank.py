# SPDX-License-Identifier: Apache-2.0
"""Matrices as factors of low rank: equal bytes on all ranks, books that balance, and steps that had no effect.

Books balance: the sum of the ranks' gradients = ranks * the means that were applied + the sum of the residuals.
"""

from __future__ import annotations

import os
import pickle
import random
import re
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
import torch.distributed.checkpoint as dcp
from torch import nn

from hopsum.agent import MismatchError
from hopsum.codec.interface import NonFiniteError
from hopsum.config import ConfigError
from hopsum.connection import connect
from hopsum.errors import AllReduceError, WorkersReplacedError
from hopsum.torch import DiLoCo, HopsumState, hopsum_hook, load_checkpoint
from hopsum.torch.low_rank_factors import Factors, MatrixShape, largest_rank, shape_of

from ..agent.cluster import EAGER, Cluster
from .low_rank_world import WHOLE, Books, ScriptedNetwork, World, require_same
from .test_hook import Bucket
from .test_residuals import InstantGroup

torch.set_num_threads(1)
MATRICES = {"0.weight": (80, 64), "1.weight": (24, 90), "2.weight": (20, 300)}
ROUNDING = 2e-5
"""Of float32 sums of some 64 products of this size, over the steps of a test."""
WAIT_S = 60.0


def scripted(stack: ExitStack, network: ScriptedNetwork, **options: Any) -> World:
    communicators: Any = network.communicators
    return World(stack, len(communicators), communicators=communicators, **options)


def saved(world: World) -> list[dict[str, dict[str, torch.Tensor]]]:
    """Return residuals and factors of each rank."""
    states = [(each, each.state_dict()) for each in world.states]
    return [{"residuals": told["residuals"][state.owner], "factors": told["factors"]} for state, told in states]


def require_as_before(world: World, before: list[dict[str, dict[str, torch.Tensor]]]) -> None:
    for was, now in zip(before, saved(world), strict=True):
        require_same(was["residuals"], now["residuals"])
        require_same(was["factors"], now["factors"])


# ---- books -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workers", "rank", "codec"),
    [
        (1, 2, WHOLE), (2, 1, WHOLE), (3, 3, WHOLE), (5, 2, WHOLE), (3, 2, "fixed"), (3, 2, "uhc"),
        (2, 2, "thc:rounding=stochastic"), (2, 2, "thc:bits=4,result_bits=8,error_feedback=true"),
    ],
)  # fmt: skip
def test_books_balance_where_sums_are_whole(stack: ExitStack, workers: int, rank: int, codec: str) -> None:
    world = World(stack, workers, codec=codec, low_rank=rank)
    books = Books(world)
    for step in range(4):
        books.step(world.draw(step))
    assert books.out() < ROUNDING
    assert float(world.residual("0.weight").abs().max()) > 0.1, "there is no residual: the test proves nothing"
    for factors in world.factors()[1:]:
        require_same(world.factors()[0], factors)


@pytest.mark.parametrize("codec", ["thc", "thc:bits=3", "thc:bits=2,error_feedback=true"])
def test_requantised_sums_have_equal_bytes_on_all_ranks(stack: ExitStack, codec: str) -> None:
    """`World.step` compares them. What the results' rounding changes is in no residual: books are out by that."""
    world = World(stack, 4, codec=codec)
    books = Books(world)
    for step in range(6):
        books.step(world.draw(step))
    require_same(world.factors()[0], world.factors()[3])
    largest = max(float(each["0.weight"].abs().max()) for each in world.draw(0))
    assert ROUNDING < books.out() < 30 * largest


def test_a_gradient_of_the_rank_is_delivered_whole(stack: ExitStack) -> None:
    """The basis of the second step is that of the gradient, up to rounding."""
    world = World(stack, 2, codec="fixed", low_rank=3)
    # Columns of equal weight: of a direction that hardly counts, float32 keeps few digits.
    left, right = (torch.linalg.qr(torch.randn(rows, 3)).Q for rows in (80, 64))
    left, right = 80 * left, right.T
    gradients = [{**each, "0.weight": left @ right * (1 + rank)} for rank, each in enumerate(world.draw(0))]
    for _ in range(2):
        mean = world.step(gradients)["0.weight"]
    torch.testing.assert_close(mean, left @ right * 1.5, rtol=1e-4, atol=1e-4)


def test_the_first_steps_are_whole(stack: ExitStack) -> None:
    """Matrices travel as all other parameters, and their residuals change company after that."""
    world = World(stack, 2, low_rank_start=3)
    books, ways = Books(world), []
    for step in range(6):
        books.step(world.draw(step))
        ways.append(world.states[0].compression_stats()["low_rank"])
    assert ways == [0, 0, 2, 2, 2, 2]  # it tells of the next step
    assert books.out() < ROUNDING
    assert world.states[0].allreduces == 3 * 3 + 3 * (3 * 2 + 2), "three buckets, of which two have vectors"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_gradients_of_other_types(stack: ExitStack, dtype: torch.dtype) -> None:
    """The mean is rounded to the type once per step, which no residual knows of."""
    world = World(stack, 2)
    books = Books(world)
    for step in range(3):
        assert books.step(world.draw(step, dtype=dtype))["0.weight"].dtype == dtype
    rounding = {torch.bfloat16: 0.5, torch.float16: 0.02, torch.float64: ROUNDING}
    assert books.out() < rounding[dtype]


def test_ranks_encode_where_they_like(stack: ExitStack) -> None:
    """One rank does the maths of a device, the other that of the host: means and factors have the same bytes."""
    world = World(stack, 2, own=[{"codec_on": "device"}, {"codec_on": "host"}])
    books = Books(world)
    for step in range(4):
        books.step(world.draw(step))
    assert books.out() < ROUNDING
    require_same(*world.factors())


def test_agents_and_the_oracle(stack: ExitStack) -> None:
    """Over UDP, with results of 4 bits, at a switch that loses nothing: buckets and factors are two groups."""
    cluster = Cluster(stack, 2)
    agents: Any = [cluster.agent(rank, "thc", EAGER) for rank in range(2)]
    world = World(stack, 2, communicators=agents)
    for step in range(4):
        world.step(world.draw(step))
    require_same(*world.factors())
    statistics = world.states[0].compression_stats()
    gradients = sum(each.numel() for each in world.modules[0].parameters())
    assert statistics["fp32_bytes"] == 4 * 4 * gradients
    assert statistics["ratio_up"] > 3, "vectors of one chunk each"


# ---- losses ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [True, False], ids=["P", "Q"])
def test_a_rank_that_a_sum_lacks_keeps_its_part(stack: ExitStack, first: bool) -> None:
    """Rank 1 is in no chunk of P, or of Q: the mean is that of two ranks."""
    vectors = {0, 1, 2} if first else {3, 4, 5}
    network = ScriptedNetwork(3, absent=lambda vector, _: {1} if vector in vectors else set())
    world = scripted(stack, network, buckets=[[each] for each in MATRICES])
    gradients = world.draw(0)
    means = world.step(gradients)
    contributors = 3 if first else 2
    for name in MATRICES:
        owed = sum(each[name].double() for each in gradients) - contributors * means[name].double()
        torch.testing.assert_close(world.residual(name), owed.flatten(), rtol=0, atol=ROUNDING)


def test_a_rank_that_some_chunks_lack(stack: ExitStack) -> None:
    """Each chunk of Q has other contributors: of each column of Q, so many parts of the ranks are delivered."""
    # One matrix: its Q is 4 * 300 elements, two chunks.
    network = ScriptedNetwork(3, absent=lambda vector, chunk: {chunk} if vector == 1 else set())
    world = scripted(stack, network, buckets=[["2.weight"]], low_rank=4)
    gradients = world.draw(0)
    world.step(gradients)
    sender = world.states[0]._sender
    assert sender is not None
    portion: Any = sender.low_rank._sums.entries[0].portion  # type: ignore[union-attr]
    counts = np.array([int(each).bit_count() for each in network.contributors[1]])
    assert counts.tolist() == [2, 2]
    delivered = np.repeat(counts, 1024)[: 4 * 300].reshape(4, 300) * world.factors()[0]["2.weight"].numpy()
    owed = sum(each["2.weight"].double() for each in gradients) - torch.from_numpy(portion._left[0].T @ delivered)
    torch.testing.assert_close(world.residual("2.weight"), owed.flatten(), rtol=0, atol=ROUNDING)
    for rank, chunk in ((0, 1), (1, 0)):
        assert not network.contributors[1][rank] >> np.uint64(rank) & np.uint64(1)
        assert network.contributors[1][chunk] >> np.uint64(rank) & np.uint64(1)


@pytest.mark.parametrize("value", [torch.inf, torch.nan])
def test_infinity_that_the_others_do_not_hear_of(stack: ExitStack, value: float) -> None:
    """A rank's ranges come too late, so its infinite element makes nobody skip: it is dropped, as in other sums."""
    network = ScriptedNetwork(2, late=lambda vector: {1}, absent=lambda vector, _: {1})
    world = scripted(stack, network)
    gradients = world.draw(0)
    gradients[1]["0.weight"][3, 4] = value
    means = world.step(gradients)
    gradients[1]["0.weight"][3, 4] = 0
    for name in MATRICES:
        owed = sum(each[name].double() for each in gradients) - means[name].double()
        torch.testing.assert_close(world.residual(name), owed.flatten(), rtol=0, atol=ROUNDING)


# ---- steps without an effect -------------------------------------------------------------------------------


@pytest.mark.parametrize("on_nonfinite", ["skip", "raise"])
def test_a_step_with_nan_had_no_effect(stack: ExitStack, on_nonfinite: str) -> None:
    """Only one bucket has NaN. The others' sums were committed by then."""
    world = World(stack, 2, on_nonfinite=on_nonfinite)
    books = Books(world)
    for step in range(2):
        books.step(world.draw(step))
    before, bad = saved(world), world.draw(2)
    bad[1]["1.weight"][0, 0] = torch.nan
    futures = [world.begin(rank, each) for rank, each in enumerate(bad)]
    if on_nonfinite == "skip":
        for each in futures:
            assert all(bool(mean.isnan().all()) for mean in world.end(each).values())
    else:
        for rank, each in enumerate(futures):
            with pytest.raises(RuntimeError, match="NonFiniteError"):
                each[1].wait()
            [future.done() or _fails(future) for future in each]
            assert isinstance(world.states[rank].failure, NonFiniteError)
        assert "1.weight" in str(world.states[1].failure)
    require_as_before(world, before)
    books.step(world.draw(3))
    assert books.out() < ROUNDING


def _fails(future: Any) -> bool:
    try:
        future.wait()
    except RuntimeError:
        return True
    return False


@pytest.mark.parametrize("vector", [2, 5, 7], ids=["P", "the first Q", "the last Q"])
@pytest.mark.parametrize("error", [WorkersReplacedError("rank 1 was replaced", (1,)), AllReduceError("lost")])
def test_a_sum_that_fails_leaves_the_matrices_as_they_were(stack: ExitStack, vector: int, error: Exception) -> None:
    network = ScriptedNetwork(2)
    # Without vectors that travel whole: these keep what a generation that ended has not delivered.
    world = scripted(stack, network, buckets=[[each] for each in MATRICES])
    books = Books(world)
    books.step(world.draw(0))
    before = saved(world)
    network.errors[6 + (vector if vector < 3 else vector - 2)] = error
    futures = [world.begin(rank, each) for rank, each in enumerate(world.draw(1))]
    for state, each in zip(world.states, futures, strict=True):
        assert any([_fails(future) for future in each])
        assert type(state.failure) is type(error)
    require_as_before(world, before)
    network.errors.clear()
    books.step(world.draw(2))
    assert books.out() < ROUNDING


def test_a_communicator_that_takes_no_more(stack: ExitStack) -> None:
    """P was summed, and Q cannot be submitted: the step fails, nothing waits."""
    network = ScriptedNetwork(1)
    network.lazy = {0}
    world = scripted(stack, network, buckets=[["0.weight"]])
    before = saved(world)
    (future,) = world.begin(0, world.draw(0)[0])
    network.communicators[0].broken = AllReduceError("the generation is over")
    network.release(0)
    assert _fails(future)
    assert "the generation is over" in str(world.states[0].failure)
    residuals = world.states[0].state_dict()["residuals"]["0"]
    assert not residuals["0.weight"].any()
    assert world.factors()[0] == before[0]["factors"] == {}


def test_a_backward_pass_that_is_given_up(stack: ExitStack) -> None:
    """Its last bucket never comes. Its P is summed, and has no Q."""
    network = ScriptedNetwork(2)
    world = scripted(stack, network)
    books = Books(world)
    books.step(world.draw(0))
    for rank, each in enumerate(world.draw(1)):
        world.begin(rank, each, only=[0, 1])
    for step in range(2, 4):
        books.step(world.draw(step))
    assert books.out(MATRICES) < ROUNDING
    require_same(*world.factors())
    assert network.communicators[0].log == network.communicators[1].log


# ---- order -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_ranks_submit_one_sequence_whatever_their_timing(stack: ExitStack, seed: int) -> None:
    """Results reach the ranks at random times: before the last bucket is there, or all at the end."""
    rng, network = random.Random(seed), ScriptedNetwork(3)
    network.lazy = {0, 1, 2}
    world = scripted(stack, network, low_rank=1)
    for step in range(3):
        gradients = world.draw(step)
        futures: list[list[Any]] = [[] for _ in gradients]
        turns = [rank for rank in range(3) for _ in world.buckets]
        rng.shuffle(turns)
        for rank in turns:
            futures[rank] += world.begin(rank, gradients[rank], only=[len(futures[rank])])
            for _ in range(rng.randint(0, 3)):
                network.release(rng.randrange(3), 1)
        deadline = time.monotonic() + WAIT_S
        while not all(each.done() for rank in futures for each in rank):
            assert time.monotonic() < deadline
            network.release(rng.randrange(3), 1)
        means = [world.end(each) for each in futures]
        require_same(means[0], means[1])
        require_same(means[0], means[2])
    logs = [each.log for each in network.communicators]
    # One step: P of each bucket and its vectors in one group, then Q of each bucket in another.
    assert logs[0][:11] == ["start", 20, 20, 24, 80, 80, "end", "start", 300, 90, 64][:11]
    assert logs[0] == logs[1] == logs[2]


def test_without_a_group_of_factors_where_none_is_to_be_sent(stack: ExitStack) -> None:
    """All P are skipped, so there is no Q, on all ranks alike."""
    network = ScriptedNetwork(2)
    world = scripted(stack, network, buckets=[["0.weight"]], on_nonfinite="skip")
    bad = world.draw(0)
    bad[0]["0.weight"][:] = torch.nan
    world.step(bad)
    assert [each.log for each in network.communicators] == [["start", 160, "end"]] * 2
    assert world.states[0].allreduces == 2, "a Q that is not sent has a number"


# ---- parameters --------------------------------------------------------------------------------------------


def test_an_unused_parameter_keeps_its_residual(stack: ExitStack) -> None:
    """DDP ignores the mean of a parameter that no rank used: what it would deliver stays owed."""
    network = ScriptedNetwork(1)
    world = scripted(stack, network)
    state = world.states[0]
    group: Any = InstantGroup()
    state._sender = replace(state._sender, group=group, drops_unused=True)  # type: ignore[type-var]
    world.step(world.draw(0))
    before, gradients = saved(world)[0]["residuals"], world.draw(1)
    gradients[0]["1.weight"].zero_()
    means = world.step(gradients)
    after = saved(world)[0]["residuals"]
    assert not means["1.weight"].any()
    assert torch.equal(before["1.weight"], after["1.weight"])
    assert not torch.equal(before["0.weight"], after["0.weight"])


def test_a_parameter_without_a_gradient_comes_back(stack: ExitStack) -> None:
    """A factor of zeros has no direction: random ones take its place, the same on all ranks."""
    world = World(stack, 2, codec="fixed")
    for _ in range(3):
        world.step([{**each, "0.weight": torch.zeros(80, 64)} for each in world.draw(0)])
    left, right = torch.randn(80, 2), torch.randn(2, 64)
    for _ in range(3):
        mean = world.step([{**each, "0.weight": left @ right} for each in world.draw(0)])["0.weight"]
    torch.testing.assert_close(mean, left @ right, rtol=1e-2, atol=1e-2)


def test_the_scale_of_a_gradscaler(stack: ExitStack) -> None:
    """Residuals follow it. The factors' columns are divided by norms, whose scale is of no matter."""

    class Scaler:
        scale = 1.0

        def get_scale(self) -> float:
            return self.scale

    world = World(stack, 2)
    scalers = [Scaler() for _ in world.states]
    for state, scaler, comm, module in zip(world.states, scalers, world.comms, world.modules, strict=True):
        state.attach(comm, module, scaler=scaler)
    books = Books(world)
    for step in range(5):
        for each in scalers:
            each.scale = 1024.0 if step >= 2 else 1.0
        scale = scalers[0].scale
        gradients = world.draw(step)
        means = world.step([{name: part * scale for name, part in each.items()} for each in gradients])
        books.note(gradients, {name: each / scale for name, each in means.items()})
    for each in scalers:
        each.scale = 1.0
    gradients = world.draw(9)
    books.note(gradients, world.step(gradients))
    assert books.out() < 2 * ROUNDING


# ---- checkpoints -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_a_checkpoint_loads_under_any_number_of_ranks(stack: ExitStack, workers: int) -> None:
    world = World(stack, 3)
    for step in range(3):
        world.step(world.draw(step))
    told = pickle.loads(pickle.dumps([each.state_dict() for each in world.states]))
    other = World(stack, workers)
    for each in other.states:
        each.load_state_dict(iter(told))
    for factors in other.factors():
        require_same(world.factors()[0], factors)
    for name in MATRICES:
        # The mean owes as much as before.
        before, after = world.residual(name) / 3, other.residual(name) / workers
        torch.testing.assert_close(after, before, rtol=1e-5, atol=1e-5)
    if workers == 3:
        require_same(world.step(world.draw(5)), other.step(world.draw(5)))
        unpickled = pickle.loads(pickle.dumps(world.states[0]))
        unpickled.attach(world.comms[0], world.modules[0])
        require_same(unpickled.state_dict()["factors"], world.states[0].state_dict()["factors"])


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_distributed_checkpoint(stack: ExitStack, tmp_path: Path) -> None:
    """torch's Distributed Checkpoint joins names by dots, which names of parameters have too."""
    world, other = World(stack, 1), World(stack, 1)
    for step in range(2):
        world.step(world.draw(step))
    dcp.save({"hopsum": world.states[0]}, checkpoint_id=tmp_path, no_dist=True)  # type: ignore[attr-defined]
    load_checkpoint(other.states[0], tmp_path)
    require_as_before(other, saved(world))
    require_same(world.step(world.draw(5)), other.step(world.draw(5)))


def test_a_checkpoint_of_another_rank_of_factors(stack: ExitStack) -> None:
    """Residuals stay, and matrices begin with random columns, also without factors in an older checkpoint."""
    world = World(stack, 2, low_rank=2)
    world.step(world.draw(0))
    told: list[Any] = [each.state_dict() for each in world.states]
    fresh: Any = [{name: each for name, each in state.items() if name != "factors"} for state in told]
    others = [World(stack, 2, low_rank=3) for _ in range(2)]
    for other, states in zip(others, (told, fresh), strict=True):
        for each in other.states:
            each.load_state_dict(states)
    books = Books(others[0])
    gradients = world.draw(1)
    means = [other.step(gradients) for other in others]
    books.note(gradients, means[0])
    require_same(*means)
    assert books.out() < ROUNDING


def test_ranks_with_other_bases_hear_of_it(stack: ExitStack) -> None:
    """One of them has continued from another checkpoint: their means would differ, and nobody would see it."""
    world = World(stack, 2)
    world.step(world.draw(0))
    others: Any = {name: each for name, each in world.states[1].state_dict().items() if name != "factors"}
    world.states[1].load_state_dict(others)
    futures = [world.begin(rank, each) for rank, each in enumerate(world.draw(1))]
    for state, each in zip(world.states, futures, strict=True):
        assert any([_fails(future) for future in each])
        assert isinstance(state.failure, MismatchError)
        # Both digests, whose they are, and what to do.
        told = r"rank 0 has .*low-rank factors of digest (\w+); rank 1 has .*low-rank factors of digest (\w+)\. .*"
        found = re.search(told + r"first factors of 2\.weight\. .*load the checkpoint of one step", str(state.failure))
        assert found, state.failure
        assert found[1] != found[2]


# ---- values that no sum has --------------------------------------------------------------------------------


def failures(world: World, gradients: Any) -> list[str]:
    """Return the errors of a step on each rank."""
    for each in [world.begin(rank, each) for rank, each in enumerate(gradients)]:
        assert any([_fails(future) for future in each])
    for state in world.states:
        assert isinstance(state.failure, NonFiniteError)
    return [str(state.failure) for state in world.states]


@pytest.mark.parametrize("device", ["host", "device"])
def test_an_error_names_the_gradient_or_the_product(stack: ExitStack, device: str) -> None:
    buckets = [["0.weight", "2.weight"]]
    world = World(stack, 2, codec="thc", buckets=buckets, own=[{"codec_on": "host"}, {"codec_on": device}])
    bad = world.draw(0)
    bad[1]["2.weight"][0, :4] = torch.nan
    first, second = failures(world, bad)
    assert re.match(r"another rank's vector is not finite.*rank 0's is", first)
    assert re.match(
        r"rank 1: 4 of 11120 elements of gradients are NaN or infinite, the first is element 5120 "
        r"\(2\.weight: 4 of 6000\): no rank has a mean; on_nonfinite='skip'",
        second,
    )
    # Each product with a column of the basis is a sum of 64 elements.
    large = world.draw(0)
    large[1]["0.weight"] = torch.sign(torch.randn(80, 64)) * 1e38
    large[1]["0.weight"][:1] = torch.sign(torch.from_numpy(basis_of(world, "0.weight", 64)[0])) * 3.3e38
    first, second = failures(world, large)
    assert re.match("another rank's vector is not finite", first)
    assert re.match(
        r"rank 1: gradients are finite, but with residuals and multiplied by a basis of 2 columns they are beyond "
        r"the range of float32: 0\.weight: gradient up to 3\.3e\+38, first factor \d+ of 160 elements: scale gradients "
        r"down; no rank has a mean",
        second,
    )
    large[1]["0.weight"] /= 10
    _, second = failures(world, large)
    assert "they are too large for the codec, 2^120 = 1.33e36: 0.weight: gradient up to 3.3e+37, first factor" in second


def basis_of(world: World, name: str, columns: int) -> np.ndarray:
    return world.states[0]._factors.start(name, 2, columns).basis


@pytest.mark.parametrize("codec", ["thc", "fixed"])
@pytest.mark.parametrize("large", [1.1e37, 1.5e37, 2e37, 5e37, 1e38])
def test_steps_follow_one_with_gradients_near_the_end_of_float32(stack: ExitStack, codec: str, large: float) -> None:
    """Whether their step is refused or leaves a residual of its size: one step at most of normal ones is refused."""
    world = World(stack, 2, codec=codec, on_nonfinite="skip", buckets=[["0.weight", "2.weight"]])
    refused = []
    for step, size in enumerate([1, large, 1, large, 1, 1, 1, 1]):
        drawn = world.draw(step)
        means = world.step([{name: each * size for name, each in rank.items()} for rank in drawn])
        refused.append(any(bool(each.isnan().any()) for each in means.values()))
    assert sum(refused[4:]) <= 1
    assert not any(refused[5:])
    assert all(bool(each.isfinite().all()) for each in world.factors()[0].values())


def test_a_residual_that_is_too_large_is_dropped_and_told(stack: ExitStack, caplog: pytest.LogCaptureFixture) -> None:
    world = World(stack, 2, on_nonfinite="skip")
    world.step(world.draw(0))
    for state in world.states:
        saved_state: Any = state.state_dict()
        saved_state["residuals"][state.owner]["0.weight"][:] = 3e38
        state.load_state_dict(saved_state)
    before = saved(world)
    assert all(bool(each.isnan().all()) for each in world.step(world.draw(1)).values())
    assert "rank 1: the residual of 0.weight is dropped: gradients that were too large" in caplog.text
    for was, now in zip(before, saved(world), strict=True):
        assert not now["residuals"].pop("0.weight").any()
        del was["residuals"]["0.weight"]
        require_same(was["residuals"], now["residuals"])
    assert all(bool(each.isfinite().all()) for each in world.step(world.draw(2)).values())


def test_gradients_may_grow(stack: ExitStack) -> None:
    """Columns are divided by their norms in the step before, within bounds."""
    world = World(stack, 2, codec="fixed", low_rank=3)
    left, right = torch.randn(80, 3), torch.randn(3, 64)
    for size in (1e-25, 1e-25, 1e16, 1e16):
        gradients = [{name: part * size for name, part in each.items()} for each in world.draw(0)]
        mean = world.step([{**each, "0.weight": left @ right * size} for each in gradients])["0.weight"]
    torch.testing.assert_close(mean / 1e16, left @ right, rtol=1e-3, atol=1e-3)


# ---- refusals ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"low_rank": 0}, "low_rank=0: a whole number, 1 or more"),
        ({"low_rank": -3}, "low_rank=-3: a whole number"),
        ({"low_rank": True}, "low_rank=True: a whole number"),
        ({"low_rank": 2.0}, "low_rank=2.0: a whole number"),
        ({"low_rank": "auto"}, "low_rank='auto': a whole number"),
        ({"low_rank": 2.5}, "low_rank=2.5: a whole number"),
        ({"low_rank": "8"}, "low_rank='8': a whole number"),
        ({"low_rank_start": -1}, "low_rank_start=-1: a whole number of steps, 0 or more"),
        ({"low_rank_start": 1.5}, "low_rank_start=1.5: a whole number of steps"),
        ({"low_rank_start": True}, "low_rank_start=True: a whole number of steps"),
        ({"low_rank": None, "low_rank_start": "3"}, "low_rank_start='3': a whole number of steps"),
        ({"low_rank": 10**9}, "low_rank=1000000000 pays for no parameter: .*; take low_rank=17 or less"),
        ({"low_rank": 2, "error_feedback": False}, "low_rank=2 with error_feedback=False"),
        (
            {"low_rank": 400},
            r"low_rank=400 pays for no parameter: factors of the best one, 0.weight of 80 x 64, have \(80 \+ 64\) \* "
            r"400 = 57600 elements, and 5120 / 2 is the most; take low_rank=17 or less",
        ),
    ],
)
def test_options_that_are_refused(stack: ExitStack, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        World(stack, 1, **options)


def test_models_and_codecs_that_are_refused(stack: ExitStack) -> None:
    comm = stack.enter_context(connect("memory://low-rank-refused?workers=1", rank=0, codec="thc"))
    norm, small = nn.LayerNorm(64), nn.Linear(2, 2)
    with pytest.raises(ValueError, match="no parameter that is compressed has two or more dimensions"):
        HopsumState(comm, norm, low_rank=2)
    with pytest.raises(ValueError, match=r"weight of 2 x 2, .*; leave low_rank out"):
        HopsumState(comm, small, low_rank=2)
    without = stack.enter_context(connect("memory://low-rank-bits?workers=1", rank=0, codec="thc:bits=2"))
    with pytest.raises(ValueError, match="without error feedback, which low rank needs"):
        HopsumState(without, nn.Linear(64, 64), low_rank=2)


def test_the_share_of_the_energy_that_a_step_delivers(stack: ExitStack) -> None:
    comm = stack.enter_context(connect("memory://low-rank-delivered?workers=1", rank=0, codec="thc"))
    module = nn.Linear(96, 64, bias=False)
    state = HopsumState(comm, module, low_rank=2, low_rank_start=0)
    assert state._sender is not None
    low_rank = state._sender.low_rank
    assert low_rank is not None
    before = np.zeros(96 * 64, np.float32)
    for step in range(3):
        gradient = torch.from_numpy(np.random.default_rng(step).standard_normal(96 * 64, dtype=np.float32))
        low_rank.measures_delivered = step > 0
        hopsum_hook(state, Bucket(module, ["weight"], gradient.clone())).wait()  # type: ignore[arg-type]
        after = state.state_dict()["residuals"]["0"]["weight"].numpy().ravel().copy()
        expected = 1 - float(np.sum(after**2)) / float(np.sum((gradient.numpy() + before) ** 2))
        assert low_rank.delivered == pytest.approx(expected if step else 1.0, abs=1e-4)
        before = after
    assert 0 < low_rank.delivered < 0.5


def test_the_setting_in_the_environment(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    comm = stack.enter_context(connect("memory://low-rank-setting?workers=1", rank=0, codec="thc"))
    monkeypatch.setenv("HOPSUM_LOW_RANK", "4")
    assert HopsumState(comm, nn.Linear(64, 64)).low_rank == 4
    assert HopsumState(comm, nn.Linear(64, 64), low_rank=2).low_rank == 2
    assert DiLoCo(nn.Linear(64, 64), comm, sync_every=2).low_rank == 4
    for text in ("0", "eight", "-1"):
        monkeypatch.setenv("HOPSUM_LOW_RANK", text)
        with pytest.raises(ConfigError, match=r"HOPSUM_LOW_RANK.*integer of 1 or more"):
            HopsumState(comm, nn.Linear(64, 64))


KERNELS = """
import sys, time
from hopsum.torch.low_rank_factors import Factors

factors = Factors()
factors.prepare()
assert factors.kernels.name == sys.argv[1], factors.kernels.name
start = factors.start("weight", 8, 300)
until = time.monotonic() + 1500
while factors.kernels.name == "numpy" and time.monotonic() < until:
    time.sleep(0.05)
assert factors.kernels.name == "numba"
assert Factors().start("weight", 8, 300).digest == start.digest
"""


def test_a_step_does_not_wait_for_the_compiler(tmp_path: Path) -> None:
    """With an empty cache factors begin with numpy's kernels; the next program finds what the child compiled."""
    pytest.importorskip("numba")
    environment = {name: value for name, value in os.environ.items() if name != "HOPSUM_COMPILED"}
    environment["NUMBA_CACHE_DIR"] = str(tmp_path)
    for first in ("numpy", "numba"):
        command = [sys.executable, "-c", KERNELS, first]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr


THREADS = """
import os
from contextlib import ExitStack
import torch
from hopsum.torch.low_rank_factors import HostPortion
from tests.host.torch.low_rank_world import World

torch.set_num_threads(1)
made = HostPortion.make_right_factor

def count(portion):
    before = len(os.listdir("/proc/self/task"))
    made(portion)
    # Of 16 x 512 by 512 x 128: libraries give a product of this size to several threads if they may.
    torch.mm(torch.ones(16, 512), torch.ones(512, 128))
    begun.append(len(os.listdir("/proc/self/task")) - before)

begun = []
HostPortion.make_right_factor = count
with ExitStack() as stack:
    world = World(stack, 1)
    world.step(world.draw(0))
assert begun and not any(begun), begun
"""


def test_its_thread_takes_torchs_number_of_threads() -> None:
    """A thread that has not asked for the number takes all processors: the test needs two to show it."""
    root = Path(__file__).parents[3]
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    command = [sys.executable, "-c", THREADS]
    ended = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def test_which_parameters_are_matrices() -> None:
    assert shape_of(torch.empty(8, 4, 3, 3)) == MatrixShape(8, 36)
    assert shape_of(torch.empty(8)) is None
    assert shape_of(torch.empty(0, 4)) is None
    assert shape_of(torch.empty(4, 4, dtype=torch.complex64)) is None
    # Factors of rank 16 have 16 * (64 + 64) = 2048 of 4096 elements.
    assert largest_rank(MatrixShape(64, 64)) == 16


def test_what_is_not_compressed_is_no_matrix(stack: ExitStack) -> None:
    """The options of plain parameters go before."""
    world = scripted(stack, ScriptedNetwork(1))
    state = world.states[0]
    group: Any = InstantGroup()
    state.small_tensor_bytes, state.uncompressed = 4 * 2200, ("2.*",)
    with pytest.raises(ValueError, match="average through torch's process group"):
        state.attach(world.comms[0], world.modules[0])
    assert state._sender is not None
    assert state._sender.low_rank is not None
    assert set(state._sender.low_rank.matrices.shapes) == set(MATRICES)
    sender = replace(state._sender, uncompressed=frozenset(["2.weight", "1.weight"]), group=group)
    ways = {name: sender._way(name, True, True) for name, _ in world.modules[0].named_parameters()}
    assert ways == {
        "0.weight": "low rank", "0.bias": "codec", "1.weight": "group", "2.weight": "group", "2.bias": "codec",
    }  # fmt: skip
    assert sender._way("0.weight", True, False) == "codec"
    assert sender._way("0.weight", False, True) == "group"


def test_a_norm_that_float32_has_not_is_no_infinite_divisor() -> None:
    """Elements of 1e38 are finite. The norm of 1,000 of them is not."""
    factors = Factors()
    factors.put("w", np.stack((np.full(1000, 1e38), np.ones(1000))).astype(np.float32))
    start = factors.start("w", 2, 1000)
    assert np.isfinite(start.scale).all()
    assert start.scale.min() > 0
    assert np.isfinite(start.basis).all()
