# SPDX-License-Identifier: Apache-2.0
"""Buckets whose sums are done before the call that begins them returns: the other threads may be that fast."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
from torch import nn

from hopsum.communicator import AllReduceResult, SocketTraffic
from hopsum.torch.buckets import Sender
from hopsum.torch.residuals import Residuals
from hopsum.torch.step import PortionSum, Step

MEAN = 7.0


class InstantAgent:
    """Its mean is there at once; the feedback keeps everything but what was delivered."""

    rank = 0

    def submit(self, x: np.ndarray, *, feedback: Any, out: np.ndarray, **_: Any) -> Future[AllReduceResult]:
        feedback.compensate(x)
        out[:] = MEAN
        mean = out
        feedback.commit(mean)
        future: Future[AllReduceResult] = Future()
        future.set_result(AllReduceResult(mean, np.zeros(0, np.uint64), False, SocketTraffic(), 0.0))
        return future


class InstantGroup:
    """The only rank."""

    def mean(self, x: torch.Tensor) -> torch.futures.Future[Any]:
        return self.any(x)

    def any(self, flags: torch.Tensor) -> torch.futures.Future[Any]:
        future: torch.futures.Future[Any] = torch.futures.Future()
        future.set_result([flags])
        return future


class OneBucket:
    def __init__(self, module: nn.Module, gradients: torch.Tensor) -> None:
        self._parameters, self._gradients = list(module.parameters()), gradients

    def buffer(self) -> torch.Tensor:
        return self._gradients

    def parameters(self) -> list[torch.Tensor]:
        return list(self._parameters)

    def index(self) -> int:
        return 0

    def is_last(self) -> bool:
        return True


@pytest.mark.parametrize("plain", [(), ("bias",)])
def test_whether_a_parameter_has_a_gradient_is_seen_before_its_mean(plain: tuple[str, ...]) -> None:
    module, residuals = nn.Linear(3, 1), Residuals()
    residuals.load({"weight": np.full(3, 2, np.float32), "bias": np.full(1, 5, np.float32)})
    sender = Sender(
        agent=InstantAgent(),  # type: ignore[arg-type]
        names={parameter: name for name, parameter in module.named_parameters()},
        plain=frozenset(plain),
        group=InstantGroup(),  # type: ignore[arg-type]
        drops_unused=True,
        residuals=residuals,
        error_feedback=True,
        on_nonfinite="raise",
    )
    gradients, step, sums = torch.tensor([1.0, 0.0, 1.0, 0.0]), Step(residuals.clear), list[PortionSum]()
    sender.send(OneBucket(module, gradients), step, sums, number=0, compress=True)
    step.complete()
    assert step.over.result() is False
    for each in sums:
        each.portion.scatter(each.x)
    assert gradients.tolist() == [MEAN, MEAN, MEAN, 0]
    left = {name: each.tolist() for name, each in residuals.as_dict().items()}
    assert left == {"weight": [1 + 2 - MEAN, 2 - MEAN, 1 + 2 - MEAN], "bias": [5]}
