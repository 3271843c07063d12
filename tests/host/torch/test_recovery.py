# SPDX-License-Identifier: Apache-2.0
"""State dicts for newcomers: a job whose workers are replaced trains on, with the same parameters on all ranks."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pickle import UnpicklingError
from threading import Event
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch

import hopsum
from hopsum.agent import Communicator
from hopsum.codec import make_codec
from hopsum.errors import HopsumError
from hopsum.serial.memory import MemoryCommunicator
from hopsum.torch import StateDictRecovery

from ..rpc.desk import desk_service
from ..rpc.test_generations import WAIT_S, Served, connect, vanish

ELEMENTS, STEPS = 400, 6


@pytest.fixture
def served() -> Iterator[Served]:
    with desk_service() as served:
        yield served


class Program:
    """A model of one parameter, trained by momentum."""

    def __init__(self, comm: Communicator) -> None:
        self.comm, self.step, self.loads = comm, 0, 0
        self.weight = torch.nn.Parameter(torch.zeros(ELEMENTS))
        self.optimizer = torch.optim.SGD([self.weight], lr=0.1, momentum=0.9)
        self.recovery = StateDictRecovery(comm, load_state_dict=self.load, state_dict=self.save, wait_s=WAIT_S)

    def save(self) -> dict[str, Any]:
        return {"weight": self.weight.detach(), "optimizer": self.optimizer.state_dict(), "step": self.step}

    def load(self, state: dict[str, Any]) -> None:
        self.loads += 1
        with torch.no_grad():
            self.weight.copy_(state["weight"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = state["step"]

    def train(self, steps: int, ready: Event | None = None) -> list[tuple[int, ...]]:
        """Train up to a step; return the ranks that were replaced, try by try."""
        tries = []
        while self.step < steps:
            with self.recovery:
                gradient = np.full(ELEMENTS, self.comm.rank + self.step + 1, np.float32)
                future = self.comm.submit(gradient)
                if ready is not None:
                    ready.set()
                self.weight.grad = torch.from_numpy(future.result(WAIT_S).mean.copy())
                self.optimizer.step()
                self.step += 1
            tries.append(self.recovery.replaced_ranks)
        return tries


def expected(steps: int) -> torch.Tensor:
    """Return the weights of a training of two ranks without any failure."""
    weight = torch.nn.Parameter(torch.zeros(ELEMENTS))
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
    for step in range(steps):
        weight.grad = torch.full((ELEMENTS,), step + 1.5)
        optimizer.step()
    return weight.detach()


def test_a_newcomer_trains_on_where_the_others_are(served: Served) -> None:
    desk, service = served
    with ThreadPoolExecutor(2) as pool:
        staying, leaving = pool.map(lambda rank: Program(connect(service, rank)), range(2))
        half = pool.submit(leaving.train, STEPS // 2)
        assert staying.train(STEPS // 2) == [()] * (STEPS // 2) == half.result(WAIT_S)
        under_way = Event()
        rest = pool.submit(staying.train, STEPS, under_way)  # the other rank is gone before it takes part
        assert under_way.wait(WAIT_S)
        vanish(leaving.comm)  # type: ignore[arg-type]
        desk.end("rank 1 was silent", lost=1)
        newcomer = Program(connect(service, 1))
        assert (newcomer.loads, newcomer.step) == (1, STEPS // 2)
        assert newcomer.train(STEPS) == [()] * (STEPS // 2)
        assert rest.result(WAIT_S) == [(1,), *[()] * (STEPS // 2)]
        list(pool.map(lambda each: each.comm.close(), (staying, newcomer)))
    assert torch.equal(staying.weight, newcomer.weight)
    torch.testing.assert_close(newcomer.weight.detach(), expected(STEPS), rtol=1e-5, atol=1e-5)


def test_other_errors_pass() -> None:
    codec = make_codec("fixed", workers=1, backend="numpy")
    comm = MemoryCommunicator("recovery", 0, codec=codec, settings={}, seed=0, deadline_s=WAIT_S)
    with comm:
        program = Program(comm)
        assert program.loads == 0
        with pytest.raises(HopsumError, match="something else"), program.recovery:
            raise HopsumError("something else")
        assert program.train(2) == [(), ()]
        assert hopsum.allreduce(np.ones(3, np.float32), comm).tolist() == [1, 1, 1]


def test_a_state_is_data_and_nothing_else(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A member's word is not run: weights_only refuses what is no tensor, number, text, list or dict."""
    _, service = served
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda rank: connect(service, rank), range(2))
        monkeypatch.setattr(type(first), "is_newcomer", property(lambda comm: comm is first))
        monkeypatch.setattr(type(first), "fetch_state", lambda comm, wait_s: _pickled())
        with pytest.raises(UnpicklingError):
            StateDictRecovery(first, load_state_dict=lambda state: None, state_dict=dict)
        list(pool.map(lambda comm: comm.close(), (first, second)))


def _pickled() -> bytes:
    stream = io.BytesIO()
    torch.save({"run": os.getcwd}, stream)
    return stream.getvalue()
