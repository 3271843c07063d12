# SPDX-License-Identifier: Apache-2.0
"""The load of `hopsum bench dataplane` against the oracle: it loses nothing, and believes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from hopsum.transport.udp_link import UdpLink
from hopsum_evaluation.bench.made_datagrams import VARIANTS, Pool, WrongResultError, make_pool
from hopsum_evaluation.bench.socket_load import Load
from hopsum_oracle.aggregator import Aggregator
from hopsum_wire import Event

from ...support.server import LOCALHOST, UdpSwitch, job_for

pytestmark = pytest.mark.system
TABLE = (0, 1, 2, 3, 5, 7, 9, 11, 13, 15, 18, 21, 24, 27, 29, 30)
GENERATION, SLOTS, WORKERS = 7, 6, 3
SECONDS = 0.2


class LosingLink(UdpLink):
    """Loses every tenth datagram, in the order of sending."""

    sent = 0
    lost = 0

    def send_rows(self, datagrams: NDArray[np.uint8]) -> None:
        numbers = self.sent + np.arange(len(datagrams))
        self.sent += len(datagrams)
        kept = datagrams[numbers % 10 != 9]
        self.lost += len(datagrams) - len(kept)
        if len(kept):
            super().send_rows(kept)


@contextmanager
def load(
    kind: type[UdpLink], change: Callable[[Pool], Pool] = lambda pool: pool
) -> Iterator[tuple[Load, Aggregator, list[UdpLink]]]:
    """Start the oracle and the load on it; `change` is what the load expects instead."""
    with ExitStack() as stack:
        # The oracle must know the workers' addresses, and they its address: it learns theirs later.
        switch = UdpSwitch(Aggregator())
        links = [kind((LOCALHOST, 0), switch.address) for _ in range(WORKERS)]
        for link in links:
            stack.callback(link.close)
        job = job_for([link.local for link in links], generation=GENERATION, slots=SLOTS, table=TABLE)
        switch.aggregator = Aggregator(jobs=(job,))
        stack.enter_context(switch)
        pool = make_pool(GENERATION, WORKERS, SLOTS, TABLE, seed=3)
        yield Load(links, change(pool), resend_s=0.05), switch.aggregator, links


def test_every_update_brings_its_result() -> None:
    with load(UdpLink) as (loaded, oracle, links):
        tallies = [loaded.run(SECONDS) for _ in range(2)]
    updates = sum(tally.updates for tally in tallies)
    assert updates >= WORKERS * SLOTS * VARIANTS
    assert sum(tally.sends for tally in tallies) == sum(link.statistics.sends for link in links)
    completed = oracle.job_events[0, Event.COMPLETED]
    assert completed * WORKERS == updates == oracle.job_events[0, Event.ADDED]
    assert not oracle.job_events[0, Event.FAULT]


def test_what_is_lost_is_sent_again_and_counted() -> None:
    with load(LosingLink) as (loaded, oracle, links):
        tally = loaded.run(SECONDS)
    lost = sum(link.lost for link in links if isinstance(link, LosingLink))
    assert tally.retransmits >= lost > 0
    assert tally.updates == oracle.job_events[0, Event.ADDED]
    assert oracle.job_events[0, Event.COMPLETED] * WORKERS == tally.updates


def one_bit_off(pool: Pool) -> Pool:
    return replace(pool, sums=pool.sums ^ np.eye(*pool.sums.shape, dtype=np.uint64))


def another_generation(pool: Pool) -> Pool:
    return replace(pool, generation=GENERATION + 1)


@pytest.mark.parametrize("change", [one_bit_off, another_generation])
def test_a_wrong_result_is_no_result(change: Callable[[Pool], Pool]) -> None:
    with load(UdpLink, change) as (loaded, _, _links), pytest.raises(WrongResultError):
        loaded.run(SECONDS)
