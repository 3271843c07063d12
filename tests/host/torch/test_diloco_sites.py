# SPDX-License-Identifier: Apache-2.0
"""DiLoCo over an embedded switch: the example, and a site that is replaced."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch

from hopsum.torch import DiLoCo, StateDictRecovery

from ..rpc.test_generations import WAIT_S, Served, connect, vanish
from .test_diloco import EVERY, flat, inner_step, make_model
from .test_recovery import served as served

pytestmark = pytest.mark.system


class Site:
    """A replica whose loop survives the loss of another one."""

    def __init__(self, comm: Any, **options: Any) -> None:
        self.comm, self.model = comm, make_model()
        self.inner = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.diloco = DiLoCo(self.model, comm, sync_every=EVERY, **options)
        self.recovery = StateDictRecovery(
            comm,
            load_state_dict=self.diloco.load_shared_state_dict,  # type: ignore[arg-type]
            state_dict=self.diloco.shared_state_dict,  # type: ignore[arg-type]
            wait_s=WAIT_S,
        )

    def train(self, steps: int, at_sync: Event | None = None) -> list[tuple[int, int]]:
        """Train up to a step; return the steps in which a rank was replaced, and its number."""
        replaced = []
        while self.diloco.steps < steps:
            number = self.diloco.steps + 1
            inner_step(self.model, self.inner, self.comm.rank, number)
            if at_sync is not None and number % EVERY == 0:
                at_sync.set()
            with self.recovery:
                self.diloco.step()
            replaced += [(number, rank) for rank in self.recovery.replaced_ranks]
        return replaced


def test_a_site_that_is_replaced_begins_where_the_others_are(served: Served) -> None:
    """The survivor keeps its steps, and the next synchronisation has the newcomer in it."""
    desk, service = served
    with ThreadPoolExecutor(2) as pool:
        staying, leaving = pool.map(lambda rank: Site(connect(service, rank)), range(2))
        half = pool.submit(leaving.train, 2 * EVERY - 1)
        assert staying.train(2 * EVERY - 1) == [] == half.result(WAIT_S)
        at_sync = Event()
        rest = pool.submit(staying.train, 4 * EVERY, at_sync)
        assert at_sync.wait(WAIT_S)
        vanish(leaving.comm)
        desk.end("rank 1 was silent", lost=1)
        newcomer = Site(connect(service, 1))
        assert newcomer.diloco.steps == 2 * EVERY
        with newcomer.diloco.global_parameters():
            begun = flat(newcomer.model)
        assert torch.equal(flat(newcomer.model), begun)
        assert newcomer.train(4 * EVERY) == []
        assert rest.result(WAIT_S) == [(2 * EVERY, 1)]
        list(pool.map(lambda site: site.comm.close(), (staying, newcomer)))
    assert not torch.equal(begun, flat(make_model()))
    assert torch.equal(flat(staying.model), flat(newcomer.model))
