# SPDX-License-Identifier: Apache-2.0
"""A worker of an elastic job dies and another one takes its place, while matrices travel as factors.

At a real controller and switch. In every synchronisation the ranks that took part balance their books: the sum of
pseudo-gradients and of residuals before = their number * the mean + the sum of residuals after.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch

from hopsum.codec import job_tables, make_codec
from hopsum.torch import DiLoCo, StateDictRecovery
from hopsum_controlplane import JobSpec

from ...support.processes import await_that
from ...support.restartable_controller import SLOTS, RestartableController
from ...support.restartable_controller import controller as controller
from .low_rank_world import WHOLE, require_same
from .test_diloco import flat, make_model

pytestmark = pytest.mark.system
WAIT_S, NAME, WORKERS = 60.0, "train", 3
ROUNDING = 2e-5


class GoneError(Exception):
    """The end of a worker."""


class Replica(threading.Thread):
    """A replica that trains until it is told to end, or to vanish between two synchronisations."""

    def __init__(self, controller: RestartableController, token: str, rank: int) -> None:
        super().__init__(name=f"rank {rank}")
        self.rank, self.gone, self.goal = rank, threading.Event(), threading.Event()
        self.last_step = 0
        self.done: dict[int, dict[str, torch.Tensor]] = {}
        """By step: what was sent, the mean, and residuals before and after."""
        self.replaced: list[int] = []
        self.error: BaseException | None = None
        self.diloco: DiLoCo | None = None
        self.begun_with: dict[str, torch.Tensor] | None = None
        """A newcomer's factors at its start."""
        self.model = make_model()
        self._controller, self._token = controller, token

    @property
    def steps(self) -> int:
        return 0 if self.diloco is None else self.diloco.steps

    def run(self) -> None:
        try:
            with self._controller.connect(NAME, self._token, self.rank, codec=WHOLE, backend="auto") as comm:
                self._train(comm)
        except GoneError:
            pass
        except BaseException as error:
            self.error = error

    def _train(self, comm: Any) -> None:
        diloco = DiLoCo(
            self.model, comm, sync_every=1, low_rank=2, outer_optimizer=lambda each: torch.optim.SGD(each, lr=1.0)
        )
        recovery = StateDictRecovery(
            comm,
            load_state_dict=diloco.load_shared_state_dict,  # type: ignore[arg-type]
            state_dict=diloco.shared_state_dict,  # type: ignore[arg-type]
            wait_s=WAIT_S,
        )
        if comm.is_newcomer:
            self.begun_with = diloco.shared_state_dict()["factors"]
        self.diloco = diloco
        noise = torch.Generator().manual_seed(self.rank)
        while not (self.goal.is_set() and diloco.steps >= self.last_step):
            if self.gone.is_set():
                raise GoneError
            with torch.no_grad():
                for each in self.model.parameters():
                    each.add_(torch.randn(each.shape, generator=noise), alpha=0.1)
            begun, owed, local = self._shared(), self._residual(), flat(self.model).double()
            with recovery:
                diloco.step()
                mean = begun - self._shared()
                self.done[diloco.steps] = {
                    "sent": begun - local, "mean": mean, "before": owed, "after": self._residual()
                }  # fmt: skip
            if recovery.replaced_ranks:
                assert torch.equal(self._residual(), owed), "the synchronisation is as if it had not been"
                self.replaced += recovery.replaced_ranks

    def _shared(self) -> torch.Tensor:
        assert self.diloco is not None
        with self.diloco.global_parameters():
            return flat(self.model).double()

    def _residual(self) -> torch.Tensor:
        assert self.diloco is not None
        held = self.diloco.state_dict()["residuals"][self.diloco.owner]
        parts = [held.get(name, torch.zeros(each.numel())) for name, each in self.model.named_parameters()]
        return torch.cat(parts).double()


@pytest.fixture
def token(controller: RestartableController) -> Iterator[str]:
    with controller.running() as cluster:
        tables = job_tables(make_codec(WHOLE, workers=WORKERS))
        yield cluster.create_job(
            JobSpec(NAME, ranks=WORKERS, slots=SLOTS, tables=tables, min_workers=1, replace_s=0.3)
        ).token


def trains(replicas: list[Replica]) -> None:
    for each in replicas:
        before = each.steps
        await_that(lambda each=each, before=before: each.steps > before + 3 or each.error is not None, WAIT_S)
        assert each.error is None, each.error


def test_the_books_balance_over_a_replaced_worker(controller: RestartableController, token: str) -> None:
    lives = [Replica(controller, token, rank) for rank in range(WORKERS)]
    live = list(lives)
    try:
        for each in live:
            each.start()
        trains(live)
        for _ in range(2):
            lost = live.pop()
            lost.gone.set()
            lost.join(WAIT_S)
            trains(live)
            newcomer = Replica(controller, token, lost.rank)
            newcomer.start()
            lives.append(newcomer)
            live.append(newcomer)
            trains(live)
    finally:
        last = max(each.steps for each in live) + 100
        for each in live:
            each.last_step = last
            each.goal.set()
        for each in live:
            each.join(WAIT_S)
    assert [each.error for each in lives] == [None] * len(lives)
    assert live[0].replaced.count(WORKERS - 1) == 2, "no rank was replaced: the test proves nothing"
    assert live[-1].begun_with
    assert set(live[-1].begun_with) == {"0.weight", "2.weight"}
    for each in live[1:]:
        assert torch.equal(flat(live[0].model), flat(each.model))
        assert live[0].diloco is not None
        assert each.diloco is not None
        require_same(live[0].diloco.shared_state_dict()["factors"], each.diloco.shared_state_dict()["factors"])
    sizes = set()
    for step in sorted({step for each in lives for step in each.done}):
        books = [each.done[step] for each in lives if step in each.done]
        sizes.add(len(books))
        owed = sum(each["sent"] + each["before"] - each["after"] for each in books)
        assert all(torch.equal(each["mean"], books[0]["mean"]) for each in books)
        torch.testing.assert_close(owed, len(books) * books[0]["mean"], rtol=0, atol=ROUNDING)
    assert {WORKERS - 1, WORKERS} <= sizes
