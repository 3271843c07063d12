# SPDX-License-Identifier: Apache-2.0
"""DiLoCo over an in-process group: against the papers' algorithms, its books, checkpoints, and failures."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
from torch import nn

from hopsum.agent import Communicator, MismatchError
from hopsum.codec import NonFiniteError
from hopsum.torch import DiLoCo

from ..api.ranks import run_ranks, sum_without_some

WORKERS, EVERY = 3, 4
torch.manual_seed(5)
_MODEL = nn.Sequential(nn.Linear(6, 40), nn.Tanh(), nn.Linear(40, 30), nn.Tanh(), nn.Linear(30, 2))
LOCAL_SGD = {"outer_optimizer": lambda parameters: torch.optim.SGD(parameters, lr=1.0)}


class Replica:
    """A model and an inner optimiser, whose steps follow from rank and number."""

    def __init__(self, comm: Communicator, **options: Any) -> None:
        self.rank = comm.rank
        self.model = make_model()
        self.inner = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.diloco = DiLoCo(self.model, comm, sync_every=EVERY, **options)

    def step(self, number: int) -> None:
        inner_step(self.model, self.inner, self.rank, number)
        self.diloco.step()

    def parameters(self) -> torch.Tensor:
        return flat(self.model)

    def shared(self) -> torch.Tensor:
        with self.diloco.global_parameters():
            return flat(self.model)


def make_model() -> nn.Module:
    """Return the same model always; ranks are threads, which share torch's generator."""
    return copy.deepcopy(_MODEL)


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([each.detach().flatten() for each in model.parameters()])


def inner_step(model: nn.Module, inner: torch.optim.Optimizer, rank: int, number: int) -> None:
    generator = torch.Generator().manual_seed(1000 * number + rank)
    x = torch.randn(8, 6, generator=generator, dtype=torch.float32)
    inner.zero_grad()
    (model(x) - x[:, :2] - 0.3 * rank).square().sum(1).mean().backward()
    inner.step()


@pytest.fixture
def other_defaults() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def run(work: Callable[[Communicator], Any], **settings: Any) -> list[Any]:
    return run_ranks(f"memory://diloco?workers={WORKERS}", work, WORKERS, **settings)


def published(steps: int, count: int, delay: int, alpha: float) -> torch.Tensor:
    """Return the global parameters by the papers' algorithms, of replicas in one process, in float64."""
    models = [make_model() for _ in range(WORKERS)]
    inners = [torch.optim.AdamW(each.parameters(), lr=0.01) for each in models]
    shared = [each.detach().double() for each in models[0].parameters()]
    momentum = [torch.zeros_like(each) for each in shared]
    cut = {1: [range(6)], 2: [range(2), range(2, 6)]}[count]
    turns = [(number + 1) * EVERY // count % EVERY for number in range(count)]
    waiting: dict[int, tuple[int, list[torch.Tensor]]] = {}
    for step in range(1, steps + 1):
        for rank, (model, inner) in enumerate(zip(models, inners, strict=True)):
            inner_step(model, inner, rank, step)
        every = [list(model.parameters()) for model in models]
        sent = [number for number in range(count) if step % EVERY == turns[number]]
        for number in sent:
            means = [sum(shared[k] - each[k].detach().double() for each in every) / WORKERS for k in cut[number]]
            waiting[step + delay] = (number, means)  # type: ignore[assignment]
        if step not in waiting:
            continue
        number, means = waiting[step]
        for k, gradient in zip(cut[number], means, strict=True):
            momentum[k] = 0.9 * momentum[k] + gradient
            shared[k] -= 0.7 * (gradient + 0.9 * momentum[k])
            for each in every:
                each[k].data = (alpha * each[k].detach().double() + (1 - alpha) * shared[k]).float()
    return torch.cat([each.flatten() for each in shared])


@pytest.mark.parametrize(("count", "delay", "alpha"), [(1, 0, 0.0), (2, 0, 0.0), (2, 1, 0.5), (1, 3, 0.5)])
def test_global_parameters_are_those_of_the_papers(count: int, delay: int, alpha: float) -> None:
    steps = 4 * EVERY + delay

    def work(comm: Communicator) -> torch.Tensor:
        replica = Replica(comm, fragments=count, fragment_sync_delay=delay, fragment_update_alpha=alpha)
        for number in range(1, steps + 1):
            replica.step(number)
        assert replica.diloco.allreduces == 4 * count
        return replica.shared()

    found = run(work, codec="fixed")
    assert all(torch.equal(each, found[0]) for each in found)
    expected = published(steps, count, delay, alpha)
    assert float((expected - flat(make_model())).abs().max()) > 0.1, "the reference does not change"
    torch.testing.assert_close(found[0].double(), expected, rtol=0, atol=2e-4)


@pytest.mark.parametrize(
    ("codec", "lacks"),
    [("thc:result_bits=8", False), ("thc:result_bits=8", True), ("uhc", False), ("uhc", True), ("two-shot", False)],
)
def test_books_of_the_error_feedback_balance(codec: str, lacks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pseudo-gradients that were applied, and what is left, are those of the ranks; `delivered` says who was missing.

    A sum of few contributors is divided by their number, so the books are kept sum by sum.
    """
    rounds = 6
    if lacks:
        monkeypatch.setattr("hopsum.codec.simulate.simulate_switch", sum_without_some)

    def work(comm: Communicator) -> tuple[list[Any], list[Any], dict[str, float]]:
        replica = Replica(comm, **LOCAL_SGD)
        sums, lefts = [], [torch.zeros_like(replica.parameters())]
        submit = comm.submit

        def watched(x: Any, **rest: Any) -> Any:
            own = x.copy()
            future = submit(x, **rest)
            result = future.result()
            sums.append((own, result.mean.copy(), result.contributors.copy()))
            return future

        comm.submit = watched  # type: ignore[method-assign]
        for number in range(1, rounds * EVERY + 1):
            replica.step(number)
            if number % EVERY == 0:
                left = replica.diloco.state_dict()["residuals"][replica.diloco.owner]
                lefts.append(torch.cat([left[name] for name, _ in replica.model.named_parameters()]))
        return sums, lefts, replica.diloco.compression_stats()

    found = run(work, codec=codec)
    largest = 0.0
    for number in range(rounds):
        _, mean, contributors = found[0][0][number]
        assert all(np.array_equal(sums[number][1], mean) for sums, _, _ in found)
        counts = np.repeat([each.bit_count() for each in contributors.tolist()], 1024)[: mean.size]
        owed = sum(sums[number][0].astype(np.float64) + lefts[number].double().numpy() for sums, lefts, _ in found)
        left = sum(lefts[number + 1].double().numpy() for _, lefts, _ in found)
        assert np.abs(counts * mean.astype(np.float64) + left - owed).max() < 1e-5
        largest = max(largest, float(np.abs(left).max()))
    assert largest > 1e-4, "there is no residual: the test proves nothing"
    assert [stats["delivered"] for _, _, stats in found] == [0.5 if lacks else 1.0, 1.0, 1.0]


@pytest.mark.parametrize("options", [{}, {"fragments": 2, "fragment_sync_delay": 2, "fragment_update_alpha": 0.5}])
@pytest.mark.parametrize("saved_at", [EVERY, EVERY + 1, 2 * EVERY + 3])
def test_a_restored_run_makes_the_same_steps(options: dict[str, Any], saved_at: int) -> None:
    last = 4 * EVERY + 2

    def train(comm: Communicator) -> tuple[torch.Tensor, bytes]:
        replica, stream = Replica(comm, **options), io.BytesIO()
        for number in range(1, last + 1):
            replica.step(number)
            if number == saved_at:
                state = {"model": replica.model.state_dict(), "inner": replica.inner.state_dict()}
                torch.save({**state, "diloco": replica.diloco.state_dict()}, stream)
        return torch.cat([replica.parameters(), replica.shared()]), stream.getvalue()

    found = run(train)
    assert any(each.any() for each in load(found[0][1])["diloco"]["residuals"]["0"].values())

    def restore(comm: Communicator) -> tuple[torch.Tensor, torch.Tensor]:
        states = [load(found[comm.rank][1]), load(found[comm.rank][1])]
        for residual in states[1]["diloco"]["residuals"][str(comm.rank)].values():
            residual.zero_()
        after = []
        for state in states:
            replica = Replica(comm, **options)
            replica.model.load_state_dict(state["model"])
            replica.inner.load_state_dict(state["inner"])
            replica.diloco.load_state_dict(state["diloco"])
            for number in range(saved_at + 1, last + 1):
                replica.step(number)
            after.append(torch.cat([replica.parameters(), replica.shared()]))
        return after[0], after[1]

    for (went_on, _), (restored, without) in zip(found, run(restore), strict=True):
        assert torch.equal(restored, went_on)
        assert not torch.equal(without, went_on), "the error feedback was of no account: the test proves nothing"


def load(data: bytes) -> Any:
    return torch.load(io.BytesIO(data), weights_only=True)


def test_complex_parameters_keep_their_imaginary_part() -> None:
    def work(comm: Communicator) -> torch.Tensor:
        model = nn.ParameterList([nn.Parameter(torch.full((5,), 1 + 2j))])
        diloco = DiLoCo(model, comm, sync_every=1, outer_optimizer=lambda each: torch.optim.SGD(each, lr=1.0))
        with torch.no_grad():
            model[0].add_(3j if comm.rank else -1)
        diloco.step()
        with diloco.global_parameters():
            return model[0].detach().clone()

    for found in run(work, codec="fixed"):
        # WORKERS - 1 ranks add 3j, and one takes 1 away.
        torch.testing.assert_close(found, torch.full((5,), 1 + 2j + ((WORKERS - 1) * 3j - 1) / WORKERS))


def test_the_end_synchronises_what_had_steps_since() -> None:
    def work(comm: Communicator) -> tuple[int, int, torch.Tensor]:
        replica = Replica(comm, fragments=2, fragment_sync_delay=1, fragment_update_alpha=0.5)
        for number in range(1, 2 * EVERY + 1):
            replica.step(number)
        before = replica.diloco.allreduces  # the last one is on its way, and had its steps
        replica.diloco.finish()
        after = replica.diloco.allreduces
        replica.diloco.finish()
        assert replica.diloco.allreduces == after
        return before, after, replica.parameters()

    found = run(work)
    assert {(before, after) for before, after, _ in found} == {(4, 5)}
    assert all(torch.equal(each, found[0][2]) for _, _, each in found)


def test_replicas_that_began_differently_are_an_error_on_all() -> None:
    def work(comm: Communicator) -> str:
        replica = Replica(comm)
        if comm.rank == 2:
            with torch.no_grad():
                next(replica.model.parameters())[0, 0] += 1e-3
            replica.diloco = DiLoCo(replica.model, comm, sync_every=EVERY)
        for number in range(1, EVERY):
            replica.step(number)
        with pytest.raises(MismatchError) as error:
            replica.step(EVERY)
        return str(error.value)

    for text in run(work):
        assert "DiLoCo needs the same parameters on all replicas at the beginning (the same seed" in text


def test_options_that_differ_are_an_error_on_all() -> None:
    def work(comm: Communicator) -> None:
        replica = Replica(comm)
        replica.diloco.outer_optimizer.param_groups[0]["lr"] = 0.7 if comm.rank else 0.5
        for number in range(1, EVERY):
            replica.step(number)
        with pytest.raises(MismatchError, match="the same options and outer optimiser"):
            replica.step(EVERY)

    run(work)


def test_a_failed_synchronisation_is_as_if_it_had_not_been() -> None:
    """NaN on one rank: an error on all ranks, which names the parameter; the next synchronisation continues."""

    def work(comm: Communicator) -> tuple[str, torch.Tensor]:
        replica = Replica(comm)
        for number in range(1, 2 * EVERY):
            replica.step(number)
        state, own = replica.diloco.state_dict(), replica.parameters()
        weight = replica.model.get_parameter("2.weight")
        if comm.rank == 1:
            with torch.no_grad():
                weight[0, 0] = torch.nan
        with pytest.raises(NonFiniteError) as error:
            replica.diloco.step()
        if comm.rank == 1:
            with torch.no_grad():
                weight[0, 0] = 0.0
        else:
            assert torch.equal(replica.parameters(), own)
        after = replica.diloco.state_dict()
        assert after["sent"] is None
        left, before = (torch.cat(list(each["residuals"][str(comm.rank)].values())) for each in (after, state))
        assert torch.equal(left, before)
        for number in range(2 * EVERY + 1, 3 * EVERY + 1):
            replica.step(number)
        return str(error.value), replica.parameters()

    found = run(work)
    assert "2.weight: 1 of 1200" in found[1][0]
    assert all(torch.equal(each, found[0][1]) for _, each in found)


def test_a_state_of_another_model_is_refused() -> None:
    def work(comm: Communicator) -> None:
        replica = Replica(comm, fragments=2)
        state = replica.diloco.state_dict()
        with pytest.raises(ValueError, match="state of version 0"):
            replica.diloco.load_shared_state_dict({**state, "version": 0})
        with pytest.raises(ValueError, match="its fragments differs"):
            Replica(comm).diloco.load_state_dict(state)
        other = DiLoCo(nn.Linear(3, 3), comm, sync_every=2, fragments=2)
        with pytest.raises(ValueError, match="another model or other fragments"):
            other.load_state_dict(state)

    run(work)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sync_every": 1, "fragments": 2}, "a step for each"),
        ({"sync_every": 8, "fragments": 2, "fragment_sync_delay": 5}, "fragment_sync_delay=5: 0 to 4"),
        ({"sync_every": 8, "fragment_sync_delay": 8}, "below sync_every"),
        ({"sync_every": 8, "fragment_update_alpha": 1.0}, "fragment_update_alpha=1.0: 0 up to"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], message: str) -> None:
    def work(comm: Communicator) -> None:
        with pytest.raises(ValueError, match=message):
            DiLoCo(make_model(), comm, **options)

    run(work)


def test_torchs_defaults_reach_no_buffer(other_defaults: None) -> None:
    def work(comm: Communicator) -> torch.Tensor:
        # Of the device "meta" no value can be read: a buffer that follows the default would fail.
        with torch.device("meta"):
            replica = Replica(comm)
        for number in range(2 * EVERY):
            inner_step(replica.model, replica.inner, comm.rank, number)
            with torch.device("meta"):
                replica.diloco.step()
        with torch.device("meta"):
            return replica.shared()

    found = run(work)
    assert all(torch.equal(each, found[0]) for each in found)
    assert found[0].dtype == torch.float32
