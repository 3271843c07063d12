# SPDX-License-Identifier: Apache-2.0
"""Top-k as a DDP hook: what is sent, what stays, and whose it is when buckets change; several ranks made up in one."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from hopsum_evaluation.report import topk
from hopsum_evaluation.report.topk import TopKState, largest, topk_hook

pytestmark = pytest.mark.system


@dataclass
class Bucket:
    """As DDP hands it out: the gradients of parameters, one after the other."""

    of: list[torch.Tensor]
    flat: torch.Tensor

    def parameters(self) -> list[torch.Tensor]:
        return self.of

    def buffer(self) -> torch.Tensor:
        return self.flat


class Gathered:
    """An all-gather that is over; other ranks sent what was set before."""

    others: list[torch.Tensor]

    def __init__(self, found: list[torch.Tensor], sent: torch.Tensor, *, async_op: bool) -> None:
        assert async_op
        self.sent = sent
        for place, message in zip(found, [sent, *self.others], strict=True):
            place.copy_(message)

    def get_future(self) -> torch.futures.Future[None]:
        future: torch.futures.Future[None] = torch.futures.Future()
        future.set_result(None)
        return future


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> type[Gathered]:
    """The other ranks; none until `others` is set."""
    monkeypatch.setattr(Gathered, "others", [], raising=False)
    monkeypatch.setattr(topk.dist, "get_world_size", lambda: 1 + len(Gathered.others))
    monkeypatch.setattr(topk.dist, "all_gather", Gathered)
    return Gathered


def message(elements: dict[int, float]) -> torch.Tensor:
    indices = torch.tensor(list(elements), dtype=torch.int32)
    return torch.stack([indices, torch.tensor(list(elements.values())).view(torch.int32)])


def mean(state: TopKState, *gradients: list[float], parameters: list[torch.Tensor]) -> list[list[float]]:
    """Return what the hook makes of a bucket of these parameters' gradients."""
    flat = torch.tensor([value for each in gradients for value in each])
    found = topk_hook(state, Bucket(parameters, flat)).wait()
    assert found is flat  # in place, as DDP expects
    return [each.tolist() for each in found.split([len(each) for each in gradients])]


def test_the_largest_are_sent_and_there_is_always_one() -> None:
    x = torch.tensor([0.1, -7.0, 3.0, 0.0, -2.0])
    assert sorted(largest(x, 0.4).tolist()) == [1, 2]
    assert largest(x, 0.01).tolist() == [1]
    assert len(largest(torch.randn(1000))) == 100


def test_the_mean_is_that_of_what_all_ranks_sent(ranks: type[Gathered]) -> None:
    ranks.others = [message({3: 6.0, 0: -3.0}), message({1: 9.0, 3: 1.0})]
    parameters = [torch.zeros(4)]
    state = TopKState(0.5)
    assert mean(state, [3.0, -12.0, 1.0, 2.0], parameters=parameters) == [[0.0, -1.0, 0.0, pytest.approx(7 / 3)]]
    assert state.residuals[parameters[0]].tolist() == [0.0, 0.0, 1.0, 2.0]


@pytest.mark.usefixtures("ranks")
def test_what_was_not_sent_follows_its_parameter_into_other_buckets() -> None:
    first, second = torch.zeros(2), torch.zeros(2)
    state = TopKState(0.5)
    assert mean(state, [5.0, 1.0], [4.0, 2.0], parameters=[first, second]) == [[5.0, 0.0], [4.0, 0.0]]
    assert mean(state, [0.0, 1.5], [0.0, 0.0], parameters=[second, first]) == [[0.0, 3.5], [0.0, 1.0]]
    assert not any(each.any() for each in state.residuals.values())


@pytest.mark.usefixtures("ranks")
def test_nothing_is_lost_in_the_long_run() -> None:
    """All means and the last residual are all gradients; without error feedback the small ones would never be sent."""
    parameter, state = torch.zeros(50), TopKState(0.1)
    generator = torch.Generator().manual_seed(3)
    given, sent = torch.zeros(50), torch.zeros(50)
    for _ in range(60):
        gradient = torch.randn(50, generator=generator) + 0.2
        given += gradient
        sent += topk_hook(state, Bucket([parameter], gradient.clone())).wait()
    torch.testing.assert_close(sent + state.residuals[parameter], given)
    assert (sent != 0).all()
