# SPDX-License-Identifier: Apache-2.0
"""The load of `hopsum bench dataplane` against the oracle: it believes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import numpy as np
import pytest

from hopsum.transport.udp_link import UdpLink
from hopsum_evaluation.bench.made_datagrams import Pool, WrongResultError, make_pool
from hopsum_evaluation.bench.socket_load import Load
from hopsum_oracle.aggregator import Aggregator

from ...support.server import LOCALHOST, UdpSwitch, job_for

pytestmark = pytest.mark.system
TABLE = (0, 1, 2, 3, 5, 7, 9, 11, 13, 15, 18, 21, 24, 27, 29, 30)
GENERATION, SLOTS, WORKERS = 7, 6, 3
SECONDS = 0.2


@contextmanager
def load(change: Callable[[Pool], Pool]) -> Iterator[Load]:
    """Start the oracle and the load on it; `change` is what the load expects instead."""
    with ExitStack() as stack:
        # The oracle must know the workers' addresses, and they its address: it learns theirs later.
        switch = UdpSwitch(Aggregator())
        links = [UdpLink((LOCALHOST, 0), switch.address) for _ in range(WORKERS)]
        for link in links:
            stack.callback(link.close)
        job = job_for([link.local for link in links], generation=GENERATION, slots=SLOTS, table=TABLE)
        switch.aggregator = Aggregator(jobs=(job,))
        stack.enter_context(switch)
        pool = make_pool(GENERATION, WORKERS, SLOTS, TABLE, seed=3)
        yield Load(links, change(pool), resend_s=0.05)


def one_bit_off(pool: Pool) -> Pool:
    return replace(pool, sums=pool.sums ^ np.eye(*pool.sums.shape, dtype=np.uint64))


def another_generation(pool: Pool) -> Pool:
    return replace(pool, generation=GENERATION + 1)


@pytest.mark.parametrize("change", [one_bit_off, another_generation])
def test_a_wrong_result_is_no_result(change: Callable[[Pool], Pool]) -> None:
    with load(change) as loaded, pytest.raises(WrongResultError):
        loaded.run(SECONDS)
