# SPDX-License-Identifier: Apache-2.0
"""DiLoCo whose matrices travel as factors: books, failures, checkpoints, and a replica that is replaced.

Books balance: the sum of the ranks' pseudo-gradients = ranks * the means that were applied + the sum of the residuals.
"""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from threading import Event
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch

from hopsum.agent import MismatchError
from hopsum.codec.interface import NonFiniteError
from hopsum.connection import connect
from hopsum.errors import AllReduceError, WorkersReplacedError
from hopsum.torch import DiLoCo

from ..rpc.test_generations import WAIT_S, Served, vanish
from ..rpc.test_generations import connect as connect_to
from .low_rank_world import WHOLE, ScriptedNetwork, require_same
from .test_diloco import EVERY, flat, inner_step, make_model, run
from .test_diloco_sites import Site
from .test_recovery import served as served

torch.set_num_threads(1)
LOCAL_SGD = {"outer_optimizer": lambda parameters: torch.optim.SGD(parameters, lr=1.0)}
"""The mean of the replicas: what the global parameters lose in a synchronisation is the mean."""
LOW_RANK = {"low_rank": 2, "low_rank_start": 1}
MATRICES = {"0.weight", "2.weight"}
"""Of 40 x 6 and 30 x 40. The factors of 4.weight, 2 x 30, would have more than half of its elements."""
ROUNDING = 2e-6


class Replica:
    """A replica whose parameters are moved by the test, so that its pseudo-gradients are known."""

    def __init__(self, comm: Any, **options: Any) -> None:
        self.comm, self.model = comm, make_model()
        self.diloco = DiLoCo(self.model, comm, sync_every=1, **{**LOCAL_SGD, **LOW_RANK, **options})

    def move(self, number: int) -> dict[str, torch.Tensor]:
        """Change the parameters, and return the pseudo-gradient."""
        generator = torch.Generator().manual_seed(100 * number + self.comm.rank)
        before = self.shared()
        with torch.no_grad():
            for each in self.model.parameters():
                each.add_(torch.randn(each.shape, generator=generator), alpha=0.1)
        return {name: before[name] - each.detach().double() for name, each in self.model.named_parameters()}

    def shared(self) -> dict[str, torch.Tensor]:
        with self.diloco.global_parameters():
            return {name: each.detach().double() for name, each in self.model.named_parameters()}

    def residuals(self) -> dict[str, torch.Tensor]:
        return self.diloco.state_dict()["residuals"][self.diloco.owner]

    def factors(self) -> dict[str, torch.Tensor]:
        return self.diloco.state_dict()["factors"]


@pytest.mark.parametrize("codec", [WHOLE, "fixed", "uhc"])
@pytest.mark.parametrize("options", [{}, {"fragments": 2, "sync_every": 2}, {"low_rank_start": 0}])
def test_books_balance(codec: str, options: dict[str, Any]) -> None:
    """The first synchronisation of a fragment is whole, those after it are of low rank."""
    rounds = 5

    def work(comm: Any) -> Any:
        replica, sent, applied = Replica(comm), {}, {}
        every = options.get("sync_every", 1)
        replica.diloco = DiLoCo(replica.model, comm, **{"sync_every": every, **LOCAL_SGD, **LOW_RANK, **options})
        for number in range(rounds * every):
            before = replica.shared()
            replica.move(number)
            local = {name: each.detach().double().clone() for name, each in replica.model.named_parameters()}
            replica.diloco.step()
            after = replica.shared()
            for name in before:
                if not torch.equal(before[name], after[name]):
                    sent[name] = sent.get(name, 0) + before[name] - local[name]
                    applied[name] = applied.get(name, 0) + before[name] - after[name]
        return sent, applied, replica.residuals(), replica.factors(), replica.diloco.allreduces

    found = run(work, codec=codec)
    for sent, applied, residuals, factors, _ in found:
        assert set(sent) == set(applied) == set(residuals)
        assert set(factors) == MATRICES
        require_same(factors, found[0][3])
    largest = 0.0
    for name in found[0][0]:
        owed = sum(sent[name] for sent, *_ in found) - len(found) * found[0][1][name]
        left = sum(residuals[name].double() for _, _, residuals, _, _ in found)
        torch.testing.assert_close(owed.flatten(), left, rtol=0, atol=ROUNDING * 50)
        largest = max(largest, float(left.abs().max()) if name in MATRICES else 0.0)
    assert largest > 0.05, "there is no residual: the test proves nothing"
    # P, Q, and the vectors; a fragment that is sent whole is one vector.
    fragments = options.get("fragments", 1)
    whole = fragments * options.get("low_rank_start", 1)
    assert found[0][4] == whole + 3 * (rounds * fragments - whole)


def test_bytes_are_those_of_factors() -> None:
    def work(comm: Any) -> tuple[float, float]:
        both = []
        for options in (LOW_RANK, {"low_rank": None}):
            replica = Replica(comm, **{**options, "low_rank_start": 0})
            for number in range(3):
                replica.move(number)
                replica.diloco.step()
            stats = replica.diloco.compression_stats()
            assert stats["elements"] == 3 * flat(replica.model).numel()
            both.append(stats["allreduces"])
        return both[0], both[1]

    assert run(work) == [(9, 3)] * 3


@pytest.mark.parametrize("vector", [0, 1, 2], ids=["P", "the vectors", "Q"])
@pytest.mark.parametrize("error", [WorkersReplacedError("rank 1 was replaced", (1,)), AllReduceError("lost")])
def test_a_synchronisation_that_fails_is_as_if_it_had_not_been(vector: int, error: Exception) -> None:
    """Whatever the error is, and whichever of the three sums has it; the next one delivers all that is owed."""
    network = ScriptedNetwork(2)
    replicas = [Replica(comm, low_rank_start=0) for comm in network.communicators]
    moved: list[dict[str, torch.Tensor]] = []

    def step(number: int) -> list[BaseException | None]:
        for each in replicas:
            each.move(number)
        with ThreadPoolExecutor(2) as pool:
            return [each.exception() for each in [pool.submit(each.diloco.step) for each in replicas]]

    assert step(0) == [None, None]
    before = [(each.residuals(), each.factors(), each.shared()) for each in replicas]
    network.errors[3 + vector] = error
    assert step(1) == [error, error]
    network.errors.clear()
    for each, (residuals, factors, shared) in zip(replicas, before, strict=True):
        require_same(each.residuals(), residuals)
        require_same(each.factors(), factors)
        require_same(each.shared(), shared)
    owed = {name: sum(each[0][name].double() for each in before) for name in before[0][0]}
    for each in replicas:
        each.move(2)
        local = {name: value.detach().double() for name, value in each.model.named_parameters()}
        moved.append({name: before[0][2][name] - value for name, value in local.items()})
    with ThreadPoolExecutor(2) as pool:
        assert [each.exception() for each in [pool.submit(each.diloco.step) for each in replicas]] == [None, None]
    for name in owed:
        applied = 2 * (before[0][2][name] - replicas[0].shared()[name])
        expected = owed[name] + sum(each[name] for each in moved).flatten() - applied.flatten()
        left = sum(each.residuals()[name].double() for each in replicas)
        torch.testing.assert_close(left, expected, rtol=0, atol=ROUNDING * 10)


def test_nan_on_one_replica_is_an_error_on_all() -> None:
    def work(comm: Any) -> str:
        replica = Replica(comm, low_rank_start=0)
        replica.move(0)
        replica.diloco.step()
        before = replica.residuals(), replica.factors()
        if comm.rank == 1:
            with torch.no_grad():
                replica.model.get_parameter("2.weight")[0, 0] = torch.nan
        with pytest.raises(NonFiniteError) as error:
            replica.diloco.step()
        require_same(replica.residuals(), before[0])
        require_same(replica.factors(), before[1])
        return str(error.value)

    assert "2.weight" in run(work)[1]


@pytest.mark.parametrize("options", [{}, {"fragments": 2, "fragment_sync_delay": 2, "fragment_update_alpha": 0.5}])
@pytest.mark.parametrize("saved_at", [2 * EVERY, 2 * EVERY + 3])
def test_a_restored_run_makes_the_same_steps(options: dict[str, Any], saved_at: int) -> None:
    """Also where a fragment was on its way. Without factors the bases would be others."""
    last = 4 * EVERY + 2

    def begin(comm: Any) -> tuple[Any, Any, DiLoCo]:
        model = make_model()
        inner = torch.optim.AdamW(model.parameters(), lr=0.01)
        return model, inner, DiLoCo(model, comm, sync_every=EVERY, **LOW_RANK, **options)

    def train(comm: Any) -> tuple[torch.Tensor, bytes]:
        (model, inner, diloco), stream = begin(comm), io.BytesIO()
        for number in range(1, last + 1):
            inner_step(model, inner, comm.rank, number)
            diloco.step()
            if number == saved_at:
                state = {"model": model.state_dict(), "inner": inner.state_dict(), "diloco": diloco.state_dict()}
                torch.save(state, stream)
        return flat(model), stream.getvalue()

    found = run(train)

    def restore(comm: Any, *, factored: bool) -> torch.Tensor:
        state = torch.load(io.BytesIO(found[comm.rank][1]), weights_only=True)
        if not factored:
            del state["diloco"]["factors"]
        model, inner, diloco = begin(comm)
        model.load_state_dict(state["model"])
        inner.load_state_dict(state["inner"])
        diloco.load_state_dict(state["diloco"])
        for number in range(saved_at + 1, last + 1):
            inner_step(model, inner, comm.rank, number)
            diloco.step()
        return flat(model)

    # A group of its own for each: a fragment is on its way at the end, and ranks leave it at different sums.
    restored, without = (run(partial(restore, factored=factored)) for factored in (True, False))
    for (went_on, _), same, other in zip(found, restored, without, strict=True):
        assert torch.equal(same, went_on)
        assert not torch.equal(other, went_on), "the factors were of no account: the test proves nothing"


def test_replicas_with_another_rank_of_factors_hear_of_it() -> None:
    def work(comm: Any) -> None:
        replica = Replica(comm, low_rank=1 if comm.rank else 2)
        replica.move(0)
        with pytest.raises(MismatchError, match="the same options"):
            replica.diloco.step()

    run(work)


def test_options_that_are_refused(stack: ExitStack) -> None:
    comm = stack.enter_context(connect("memory://low-rank-diloco?workers=1", rank=0, codec="thc"))
    for options, message in (
        ({"low_rank": 0}, "low_rank=0: a whole number, 1 or more"),
        ({"low_rank": 2, "low_rank_start": -1}, "low_rank_start=-1"),
        ({"low_rank": 2, "error_feedback": False}, "low_rank=2 with error_feedback=False"),
        ({"low_rank": 90}, "low_rank=90 pays for no parameter: .*take low_rank=8 or less"),
    ):
        with pytest.raises(ValueError, match=message):
            DiLoCo(make_model(), comm, sync_every=1, **options)  # type: ignore[arg-type]


@pytest.mark.system
def test_a_replica_that_is_replaced_gets_the_factors(served: Served) -> None:
    """A site dies before a synchronisation. The newcomer's bases are those of the others, and replicas end equal."""
    desk, service = served
    with ThreadPoolExecutor(2) as pool:
        staying, leaving = pool.map(lambda rank: Site(connect_to(service, rank), **LOW_RANK), range(2))
        half = pool.submit(leaving.train, 3 * EVERY - 1)
        assert staying.train(3 * EVERY - 1) == [] == half.result(WAIT_S)
        before = staying.diloco.state_dict()
        assert set(before["factors"]) == MATRICES
        at_sync = Event()
        rest = pool.submit(staying.train, 5 * EVERY, at_sync)
        assert at_sync.wait(WAIT_S)
        vanish(leaving.comm)
        desk.end("rank 1 was silent", lost=1)
        newcomer = Site(connect_to(service, 1), **LOW_RANK)
        require_same(newcomer.diloco.state_dict()["factors"], before["factors"])
        assert newcomer.train(5 * EVERY) == []
        assert rest.result(WAIT_S) == [(3 * EVERY, 1)]
        list(pool.map(lambda site: site.comm.close(), (staying, newcomer)))
    assert torch.equal(flat(staying.model), flat(newcomer.model))
    require_same(newcomer.diloco.state_dict()["factors"], staying.diloco.state_dict()["factors"])
