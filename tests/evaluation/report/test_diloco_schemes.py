# SPDX-License-Identifier: Apache-2.0
"""DiLoCo as a scheme in fp32: gloo's means as a communicator; gloo is made up, ranks are threads of one process."""

from __future__ import annotations

import threading
from contextlib import ExitStack

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from hopsum.codec import ErrorFeedback
from hopsum_evaluation.report.accuracy_plan import DiLoCoSetting
from hopsum_evaluation.report.diloco import GlooMeans, make_diloco

pytestmark = pytest.mark.system
WORKERS, TIMEOUT_S = 3, 60


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> list[GlooMeans]:
    """Return communicators whose groups are numbers, and which add in a meeting of all."""
    all_here, brought, numbers = threading.Barrier(WORKERS), [torch.empty(0)] * WORKERS, iter(range(WORKERS))

    def all_reduce(tensor: torch.Tensor, group: int) -> None:
        brought[group] = tensor.clone()
        all_here.wait(TIMEOUT_S)
        tensor.copy_(torch.stack(brought).sum(0))
        all_here.wait(TIMEOUT_S)

    groups = iter(range(WORKERS))
    monkeypatch.setattr(dist, "new_group", lambda **_: next(groups))
    monkeypatch.setattr(dist, "get_rank", lambda: next(numbers))
    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    return [GlooMeans(WORKERS) for _ in range(WORKERS)]


def test_means_are_exact_and_leave_nothing_behind(ranks: list[GlooMeans]) -> None:
    with ExitStack() as stack:
        for rank in ranks:
            stack.enter_context(rank)
        feedbacks = [ErrorFeedback(1000) for _ in ranks]
        for step in range(2):
            sent = [np.random.default_rng((step, rank)).standard_normal(1000).astype(np.float32) for rank in range(3)]
            given = zip(ranks, sent, feedbacks, strict=True)
            futures = [rank.submit(x.copy(), feedback=feedback) for rank, x, feedback in given]
            for future in futures:
                result = future.result(TIMEOUT_S)
                np.testing.assert_allclose(result.mean, np.mean(sent, axis=0), atol=1e-6)
                assert result.contributors.tolist() == [0b111]
        assert ranks[0].statistics.allreduces == 2


def test_replicas_are_equal_after_a_synchronisation(ranks: list[GlooMeans]) -> None:
    torch.manual_seed(2)
    first = nn.Linear(30, 20)
    networks = [nn.Linear(30, 20) for _ in ranks]
    for network in networks:
        network.load_state_dict(first.state_dict())

    def work(rank: int) -> None:
        with ranks[rank] as comm:
            diloco = make_diloco(networks[rank], comm, DiLoCoSetting(sync_every=2, fragments=2))
            for _ in range(2):
                with torch.no_grad():
                    networks[rank].weight += 0.1 * (rank + 1)
                diloco.step()
            diloco.finish()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    for network in networks[1:]:
        assert torch.equal(network.weight, networks[0].weight)
    assert not torch.equal(networks[0].weight, first.weight)
