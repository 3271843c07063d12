# SPDX-License-Identifier: Apache-2.0
"""Workers with peers on loopback, the oracle behind a socket: who was away gets the results from the others."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from hopsum.errors import FellBehindError, HopsumError
from hopsum.protocol.peer_messages import PeerKind, PeerMessage
from hopsum.protocol.worker import AllReduceDone, Membership, RepairPolicy, Timing
from hopsum.transport.link import DatagramLink
from hopsum.transport.scapy_link import ScapyLink
from hopsum.transport.side_channel import GenerationKey, SideChannel
from hopsum.transport.transport import Peers, Transport
from hopsum.transport.udp_link import UdpLink
from hopsum_oracle.aggregator import Aggregator
from hopsum_wire import Op

from ...support.server import LOCALHOST, UdpSwitch, job_for
from .lossy import LossyLink, Mishaps

GENERATION, SLOTS, RANKS = 7, 4, 3
KEY = GenerationKey(GENERATION, bytes(range(32)))
FAST = Timing(retransmit_s=0.02, backoff=1.5, retransmit_max_s=0.2, deadline_s=60.0, retransmit_min_s=0.01)
WAIT_S = 60.0
UNION = {Op.ADD32: np.add, Op.MAX32: np.maximum}
TASKS = ((Op.MAX32, 9), (Op.ADD32, 60), (Op.MAX32, 5), (Op.ADD32, 30))


class Job:
    """A switch and three workers; all is closed with the stack."""

    def __init__(
        self,
        stack: ExitStack,
        *,
        quorum: int,
        mishaps: Mishaps | None = None,
        timing: Timing = FAST,
        policy: RepairPolicy | None = None,
        linger_s: float = 30.0,
        make_link: type[UdpLink] | type[ScapyLink] = UdpLink,
    ) -> None:
        aggregator = Aggregator()
        self.switch = stack.enter_context(UdpSwitch(aggregator))
        self.links = [make_link((LOCALHOST, 0), self.switch.address) for _ in range(RANKS)]
        job = job_for([link.local for link in self.links], generation=GENERATION, slots=SLOTS, table=tuple(range(16)))
        aggregator.add_job(replace(job, quorum=quorum))
        channels = [SideChannel(rank, KEY, (LOCALHOST, 0)) for rank in range(RANKS)]
        peers = {rank: channel.address for rank, channel in enumerate(channels)}
        self.transports = []
        for rank, (link, channel) in enumerate(zip(self.links, channels, strict=True)):
            rng = random.Random(f"repair {rank}")
            wrapped: DatagramLink = link if mishaps is None else LossyLink(link, mishaps, rng)
            membership = Membership(GENERATION, rank, RANKS, SLOTS)
            those = Peers(channel, peers, policy or RepairPolicy(), linger_s)
            self.transports.append(Transport(wrapped, membership, timing, those))
        self.given = [
            np.random.default_rng(index).integers(0, 1 << 31, (RANKS, chunks, 256), dtype=np.uint32)
            for index, (_, chunks) in enumerate(TASKS)
        ]
        self.done: list[list[AllReduceDone]] = [[] for _ in range(RANKS)]
        self.failures: dict[int, BaseException] = {}
        self.moved = threading.Condition()
        self._threads: list[threading.Thread] = []
        stack.callback(self.end)

    def start(self, rank: int) -> None:
        """Run all all-reduces of a rank in a thread, and then leave."""
        thread = threading.Thread(target=self._run, args=(rank,))
        thread.start()
        self._threads.append(thread)

    def _run(self, rank: int) -> None:
        try:
            with self.transports[rank] as transport:
                for (op, _), given in zip(TASKS, self.given, strict=True):
                    done = transport.allreduce(op, given[rank].astype(">u4").view(np.uint8))
                    with self.moved:
                        self.done[rank].append(done)
                        self.moved.notify_all()
        except BaseException as failure:
            with self.moved:
                self.failures[rank] = failure
                self.moved.notify_all()

    def wait(self, holds: Callable[[], bool]) -> None:
        with self.moved:
            assert self.moved.wait_for(lambda: holds() or bool(self.failures), WAIT_S)

    def away(self, rank: int) -> None:
        """What the switch sent to a rank so far is lost."""
        while self.links[rank].receive(0.0):
            pass

    def end(self) -> None:
        for thread in self._threads:
            thread.join(timeout=WAIT_S)
            assert not thread.is_alive()

    def check(self) -> None:
        """All ranks have the same, and it is the sum of the contributors."""
        self.end()
        assert not self.failures, self.failures
        for index, (op, _) in enumerate(TASKS):
            events = [done[index] for done in self.done]
            for event in events[1:]:
                np.testing.assert_array_equal(event.results, events[0].results)
                np.testing.assert_array_equal(event.contributors, events[0].contributors)
            expected = summed(op, self.given[index], events[0].contributors)
            np.testing.assert_array_equal(events[0].results.view(">u4"), expected)


def summed(op: int, given: NDArray[np.uint32], contributors: NDArray[np.uint64]) -> NDArray[np.uint32]:
    rows = []
    for chunk, bitmap in enumerate(contributors):
        inside = [rank for rank in range(RANKS) if int(bitmap) >> rank & 1]
        rows.append(UNION[Op(op)].reduce(given[inside, chunk], axis=0, dtype=np.uint32))
    return np.array(rows)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_nobody_is_away(stack: ExitStack) -> None:
    job = Job(stack, quorum=RANKS)
    for rank in range(RANKS):
        job.start(rank)
    job.check()
    assert all((event.contributors == 0b111).all() for event in job.done[0])
    assert all(transport.worker.repair.everybody_left for transport in job.transports if transport.worker.repair)
    assert sum(transport.statistics.side.closed.total() for transport in job.transports) == 0


@pytest.mark.parametrize("make_link", [UdpLink, ScapyLink])
@pytest.mark.parametrize("mishaps", [None, Mishaps(drop=0.1, duplicate=0.1, reorder=0.1)])
def test_one_is_away_for_many_rounds(
    stack: ExitStack, mishaps: Mishaps | None, make_link: type[UdpLink] | type[ScapyLink]
) -> None:
    """Ranges and sums of two all-reduces; the third waits for it."""
    job = Job(stack, quorum=RANKS - 1, mishaps=mishaps, make_link=make_link)
    for rank in (0, 1):
        job.start(rank)
    job.wait(lambda: min(len(job.done[0]), len(job.done[1])) == 2)
    job.away(2)
    job.start(2)
    job.check()
    statistics = job.transports[2].worker.statistics
    assert statistics.repaired > 40, "69 chunks, of which the switch still had eight"
    assert statistics.srtt_s is not None
    for event in job.done[2][:2]:
        assert (event.contributors == 0b011).all()


def test_one_is_slow_and_the_others_flush(stack: ExitStack) -> None:
    job = Job(stack, quorum=RANKS, timing=replace(FAST, flush_after_s=0.1))
    for rank in (0, 1):
        job.start(rank)
    job.wait(lambda: min(len(job.done[0]), len(job.done[1])) == 2)
    job.away(2)
    job.start(2)
    job.check()
    assert job.transports[0].worker.statistics.flushes > 0
    assert job.transports[2].worker.statistics.repaired > 40


def test_one_is_away_for_too_long(stack: ExitStack) -> None:
    """The others give it up; it is told so, and they go on."""
    job = Job(stack, quorum=RANKS - 1, policy=RepairPolicy(straggler_s=0.2), linger_s=2.0)
    for rank in (0, 1):
        job.start(rank)
    job.wait(lambda: min(len(job.done[0]), len(job.done[1])) == len(TASKS))
    job.away(2)
    job.start(2)
    job.end()
    assert [type(failure) for failure in job.failures.values()] == [FellBehindError]
    assert "rank 2 fell behind in generation 7" in str(job.failures[2])
    assert job.transports[0].worker.statistics.given_up == 0b100


def test_a_side_channel_that_broke_is_said(stack: ExitStack) -> None:
    job = Job(stack, quorum=RANKS, linger_s=0.2)
    for transport in job.transports[1:]:
        stack.callback(transport.close)
    broken = job.transports[0]
    broken.worker.receive_peer = None  # type: ignore[method-assign,assignment]
    heard = threading.Event()
    job.transports[1]._peers.channel.send(0, PeerMessage(PeerKind.PROGRESS_QUERY, 1, GENERATION))
    while broken._peers.channel.failure is None:
        heard.wait(0.005)
    with broken, pytest.raises(HopsumError, match="the side channel of rank 0 has ended: 'NoneType'"):
        broken.allreduce(Op.ADD32, np.zeros((1, 1024), np.uint8))


def test_peers_without_an_address(stack: ExitStack) -> None:
    channel = SideChannel(0, KEY, (LOCALHOST, 0))
    stack.callback(channel.close)
    link = UdpLink((LOCALHOST, 0), (LOCALHOST, 1))
    stack.callback(link.close)
    with pytest.raises(ValueError, match=r"no side channel address for ranks \[2\] of 3 workers"):
        Transport(link, Membership(7, 0, 3, 4), peers=Peers(channel, {1: (LOCALHOST, 1)}))
