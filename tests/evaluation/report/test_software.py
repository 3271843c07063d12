# SPDX-License-Identifier: Apache-2.0
"""Software parameter servers come to the means of a switch, bit by bit; gloo is made up: ranks in one process."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from hopsum.codec import make_codec
from hopsum.codec.simulate import simulate_allreduce
from hopsum_evaluation.report.software import SoftwareServers

pytestmark = pytest.mark.system
WORKERS = 3
TIMEOUT_S = 60


class Meeting:
    """Collective operations of ranks that are threads; a rank's process group is its number."""

    def __init__(self) -> None:
        self.brought: list[torch.Tensor] = [torch.empty(0)] * WORKERS
        self.ranks = iter(range(WORKERS))
        self.all_here = threading.Barrier(WORKERS)

    def all_to_all_single(self, got: torch.Tensor, sent: torch.Tensor, group: int) -> None:
        for place, brought in zip(got, self.phase(sent, group), strict=True):
            place.copy_(brought[group])

    def all_gather(self, found: list[torch.Tensor], mine: torch.Tensor, group: int) -> None:
        for place, brought in zip(found, self.phase(mine, group), strict=True):
            place.copy_(brought)

    def phase(self, mine: torch.Tensor, rank: int) -> list[torch.Tensor]:
        self.brought[rank] = mine.clone()
        self.all_here.wait(TIMEOUT_S)
        found = list(self.brought)
        self.all_here.wait(TIMEOUT_S)
        return found


@pytest.fixture
def meeting(monkeypatch: pytest.MonkeyPatch) -> Meeting:
    made, numbers = Meeting(), iter(range(WORKERS))
    monkeypatch.setattr(dist, "new_group", lambda **_: next(made.ranks))
    monkeypatch.setattr(dist, "get_rank", lambda: next(numbers))
    monkeypatch.setattr(dist, "all_to_all_single", made.all_to_all_single)
    monkeypatch.setattr(dist, "all_gather", made.all_gather)
    return made


@pytest.mark.usefixtures("meeting")
@pytest.mark.parametrize(
    ("codec", "options"),
    [("thc", {}), ("thc", {"lane_bits": 16}), ("uhc", {}), ("fixed", {}), ("lossless", {})],
    ids=lambda each: str(each),
)
def test_means_are_those_of_a_switch(codec: str, options: dict[str, Any]) -> None:
    rng = np.random.default_rng(5)
    with ExitStack() as stack:
        ranks = [
            stack.enter_context(SoftwareServers(make_codec(codec, workers=WORKERS, backend="numpy", **options), seed=9))
            for _ in range(WORKERS)
        ]
        for elements in (10, 5000):  # fewer chunks than servers, and chunks that servers share unequally
            vectors = [rng.standard_normal(elements).astype(np.float32) for _ in ranks]
            futures = [rank.submit(x.copy(), step=4) for rank, x in zip(ranks, vectors, strict=True)]
            found = [each.result(TIMEOUT_S) for each in futures]
            wanted = simulate_allreduce(
                make_codec(codec, workers=WORKERS, backend="numpy", **options), vectors, seed=9, step=4
            )
            assert wanted is not None
            for rank, result in enumerate(found):
                assert result.mean.tobytes() == wanted[rank].tobytes()
                assert set(result.contributors.tolist()) == {0b111}
