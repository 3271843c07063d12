# SPDX-License-Identifier: Apache-2.0
"""DONE is told seldom: nobody waits for it, whatever becomes of the worker that owes it.

Rank 0 of two is a transport at a switch whose quorum is one. It sums alone, and keeps all results until rank 1 is
proved to hold them. Rank 1 is a side channel in the test's hands, or a transport.
"""

from __future__ import annotations

import queue
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hopsum.protocol.peer_messages import PeerKind, PeerMessage
from hopsum.protocol.repair import RepairPolicy
from hopsum.protocol.worker import Membership, Timing
from hopsum.transport.shard import Peers, Shard
from hopsum.transport.side_channel import GenerationKey, SideChannel
from hopsum.transport.transport import Transport
from hopsum.transport.udp_link import UdpLink
from hopsum_oracle.aggregator import Aggregator
from hopsum_wire import Op

from ...support.processes import await_that
from ...support.server import LOCALHOST, UdpSwitch, job_for

GENERATION, SLOTS = 7, 4
KEY = GenerationKey(GENERATION, bytes(range(32)))
FAST = Timing(retransmit_s=0.02, backoff=1.5, retransmit_max_s=0.2, deadline_s=60.0)
# A straggler is given up on after longer than a test may take.
PATIENT = RepairPolicy(straggler_s=3600.0)
NARROW = replace(PATIENT, unproved_max=1)
WAIT_S = 60.0


class Pair:
    """The two ranks."""

    def __init__(self, stack: ExitStack, policy: RepairPolicy) -> None:
        aggregator = Aggregator()
        switch = stack.enter_context(UdpSwitch(aggregator))
        self.links = [UdpLink((LOCALHOST, 0), switch.address) for _ in range(2)]
        config = job_for(
            [link.local for link in self.links], generation=GENERATION, slots=SLOTS, table=tuple(range(16))
        )
        aggregator.add_job(replace(config, quorum=1))
        self.channels = [SideChannel(rank, KEY, (LOCALHOST, 0)) for rank in range(2)]
        for part in (*self.links, *self.channels):
            stack.callback(part.close)
        self.addresses = {rank: channel.address for rank, channel in enumerate(self.channels)}
        self.transport = self.open(0, policy)
        stack.callback(self.transport.close)
        self.heard = queue.Queue[PeerMessage]()

    def open(self, rank: int, policy: RepairPolicy) -> Transport:
        peers = Peers(self.channels[rank], self.addresses, policy, linger_s=0.2)
        return Transport([Shard(self.links[rank], Membership(GENERATION, rank, 2, SLOTS), FAST, peers)])

    def start_peer(self) -> SideChannel:
        """Let rank 1 be a channel without a worker."""
        self.channels[1].start(self.addresses, self.heard.put)
        return self.channels[1]

    def next_message(self, kind: PeerKind) -> PeerMessage:
        """Return the next message of a kind that rank 1 heard."""
        while True:
            message = self.heard.get(timeout=WAIT_S)
            if message.kind is kind:
                return message

    def sum(self, times: int = 1) -> None:
        for _ in range(times):
            self.transport.allreduce(Op.ADD32, np.zeros((1, 1024), np.uint8))

    @property
    def shard(self) -> Shard:
        return self.transport.shards[0]

    @property
    def kept(self) -> int:
        repair = self.shard.worker.repair
        with self.shard.lock:
            return len(repair.store)


class Call:
    """A call in a thread of its own."""

    def __init__(self, pair: Pair) -> None:
        self._failures: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, args=(pair,))
        self._thread.start()

    def _run(self, pair: Pair) -> None:
        try:
            pair.sum()
        except BaseException as failure:
            self._failures.append(failure)

    @property
    def waits(self) -> bool:
        return self._thread.is_alive()

    def end(self) -> None:
        self._thread.join(WAIT_S)
        assert not self.waits
        assert not self._failures


def done(position: int) -> PeerMessage:
    return PeerMessage(PeerKind.DONE, 1, GENERATION, value=position)


def test_a_worker_that_is_held_back_continues_when_it_is_told(stack: ExitStack) -> None:
    """The DONE ends its wait for the network: no other datagram comes, and its timers are far away."""
    pair = Pair(stack, NARROW)
    peer = pair.start_peer()
    pair.sum()
    second = Call(pair)
    pair.next_message(PeerKind.PROGRESS_QUERY)
    assert second.waits
    peer.broadcast(done(1))
    second.end()
    peer.broadcast(done(2))
    await_that(lambda: not pair.kept)


def test_an_idle_worker_drops_what_is_proved(stack: ExitStack) -> None:
    """Nobody calls it: the channel's thread does it."""
    pair = Pair(stack, PATIENT)
    peer = pair.start_peer()
    pair.sum(3)
    assert pair.next_message(PeerKind.DONE).value > 0
    assert pair.kept == 3
    peer.broadcast(done(2))
    await_that(lambda: pair.kept == 1)


def test_done_does_not_end_a_wait_for_the_network(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is taken at the next step, which something else begins."""
    pair = Pair(stack, PATIENT)
    peer = pair.start_peer()
    pair.sum(2)
    woken = []
    wake = pair.shard.wake
    monkeypatch.setattr(pair.shard, "wake", lambda: (woken.append(1), wake()))
    pair.shard.lock.acquire()
    try:
        peer.broadcast(done(2))
        await_that(lambda: bool(pair.shard._dones))
    finally:
        pair.shard.lock.release()
    pair.sum()
    assert pair.kept == 1
    assert not woken


def test_done_that_comes_during_the_last_step_is_taken(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(stack, PATIENT)
    hand_over = pair.shard.hand_over

    def hear_meanwhile(*arrived: Any, **how: Any) -> None:
        hand_over(*arrived, **how)
        if pair.kept:
            with ThreadPoolExecutor(1) as channel:
                channel.submit(pair.shard._on_message, done(1)).result()

    monkeypatch.setattr(pair.shard, "hand_over", hear_meanwhile)
    pair.sum()
    assert not pair.kept


@pytest.mark.parametrize("how", ["closes", "dies"])
def test_a_worker_that_is_gone_before_it_told_holds_nobody_up(stack: ExitStack, how: str) -> None:
    """One that closes says that it needs nothing. Of one that dies so much is kept as the policy allows."""
    pair = Pair(stack, PATIENT)
    other = pair.open(1, PATIENT)
    other.allreduce(Op.ADD32, np.zeros((1, 1024), np.uint8))
    pair.sum()
    if how == "closes":
        other.close(linger=False)
        stack.callback(pair.channels[1].close)
        await_that(lambda: not pair.kept)
    else:
        pair.channels[1].close()
    pair.sum(100)
    if how == "closes":
        assert pair.kept == 0
    else:
        assert pair.kept >= 100


def test_a_worker_that_dies_is_given_up_elsewhere(stack: ExitStack) -> None:
    """The controller says so, and the worker that is held back for it continues."""
    pair = Pair(stack, NARROW)
    pair.start_peer()
    pair.sum()
    second = Call(pair)
    pair.next_message(PeerKind.PROGRESS_QUERY)
    pair.channels[1].close()
    assert second.waits
    pair.shard.on_ranks_lost(GENERATION, [1])
    second.end()
    pair.shard.close(linger=False)
    pair.shard.on_ranks_lost(GENERATION, [1])  # the thread of the lease may be later than the end


def test_a_worker_that_pauses_is_asked(stack: ExitStack) -> None:
    """Its threads pause before it told. After the pause it answers, and nobody waits for the next DONE."""
    pair = Pair(stack, NARROW)
    other = pair.open(1, PATIENT)
    stack.callback(other.close)
    # It holds what the worker and its channel need.
    with other.shards[0].lock:
        pair.sum()
        second = Call(pair)
        await_that(lambda: pair.transport.statistics.side.messages_sent > 1)
        assert second.waits
    other.allreduce(Op.ADD32, np.zeros((1, 1024), np.uint8))
    second.end()
