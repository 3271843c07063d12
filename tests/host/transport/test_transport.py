# SPDX-License-Identifier: Apache-2.0
"""UDP transport on loopback, against the oracle behind a socket; also over lossy links."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hopsum.errors import AllReduceTimeoutError, GenerationEndedError, HopsumError
from hopsum.protocol.peer_messages import PeerKind, PeerMessage
from hopsum.protocol.worker import AllReduceDone, Membership, Timing
from hopsum.transport.scapy_link import ScapyLink
from hopsum.transport.shard import Peers, Shard
from hopsum.transport.side_channel import GenerationKey, SideChannel
from hopsum.transport.transport import Transport
from hopsum.transport.udp_link import UdpLink
from hopsum_oracle.aggregator import Aggregator
from hopsum_topologies.free_port import free_port
from hopsum_wire import Drop, Op, up_bytes
from hopsum_wire.payload import lanes

from ...support.server import LOCALHOST, UdpSwitch, job_for
from .lossy import LossyLink, Mishaps, WrappedLink
from .results import result_of

TABLE = tuple(range(16))
GENERATION, SLOTS = 7, 4
KEY = GenerationKey(GENERATION, bytes(range(32)))
FAST = Timing(retransmit_s=0.02, backoff=1.5, retransmit_max_s=0.2, deadline_s=60.0)


def together(transports: list[Transport], call: Callable[[Transport], AllReduceDone]) -> list[AllReduceDone]:
    """Make the same call on every rank at once; return the results by rank, raise the first failure."""
    results: dict[int, AllReduceDone] = {}
    failures: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            results[rank] = call(transports[rank])
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(transports))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=90)
    assert not any(thread.is_alive() for thread in threads)
    if failures:
        raise failures[0]
    return [results[rank] for rank in range(len(transports))]


def start(
    stack: ExitStack,
    workers: int,
    *,
    mishaps: Mishaps | None = None,
    timing: Timing = FAST,
    make_link: type[UdpLink] | type[ScapyLink] = UdpLink,
) -> tuple[UdpSwitch, list[Transport]]:
    """Start a switch and its workers on free ports; all is closed with the stack."""
    aggregator = Aggregator()
    switch = stack.enter_context(UdpSwitch(aggregator))
    links = [make_link((LOCALHOST, 0), switch.address) for _ in range(workers)]
    aggregator.add_job(job_for([link.local for link in links], generation=GENERATION, slots=SLOTS, table=TABLE))
    transports = []
    for rank, link in enumerate(links):
        wrapped = link if mishaps is None else LossyLink(link, mishaps, random.Random(rank))
        membership = Membership(GENERATION, rank, workers, SLOTS)
        transports.append(stack.enter_context(Transport([Shard(wrapped, membership, timing)])))
    return switch, transports


def sum_words(transports: list[Transport], chunks: int, seed: int) -> None:
    """One ADD32 all-reduce; every rank must have numpy's sum."""
    words = np.random.default_rng(seed).integers(0, 2**32, (len(transports), chunks, 256), dtype=np.uint32)
    payloads = words.astype(">u4").view(np.uint8)
    results = together(
        transports, lambda each: each.allreduce(Op.ADD32, payloads[each.shards[0].worker.membership.rank])
    )
    for result in results:
        np.testing.assert_array_equal(lanes(Op.ADD32, result.results), words.sum(axis=0, dtype=np.uint32))
        assert (result.contributors == (1 << len(transports)) - 1).all()


class SingleFile(WrappedLink):
    """A link that hands over one datagram at a time."""

    def __init__(self, link: UdpLink) -> None:
        super().__init__(link)
        self._here: list[bytes] = []

    def receive(self, timeout_s: float) -> list[bytes]:
        """Return the next datagram."""
        self._here = self._here or [bytes(datagram) for datagram in self._link.receive(timeout_s)]
        return [self._here.pop(0)] if self._here else []


@pytest.mark.parametrize("kind", [UdpLink, SingleFile], ids=["compiled", "reference"])
def test_results_that_lie_in_the_socket_are_not_asked_for_again(kind: type[UdpLink] | type[SingleFile]) -> None:
    """A worker that waited longer for a processor than its timers run finds both: due timers, and the results."""
    chunks, timing = 40, Timing(retransmit_s=0.05, deadline_s=60.0)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as switch:
        switch.bind((LOCALHOST, 0))
        link = UdpLink((LOCALHOST, 0), switch.getsockname(), gso="off")
        wrapped = link if kind is UdpLink else SingleFile(link)
        with Transport([Shard(wrapped, Membership(GENERATION, 0, 1, 2 * chunks), timing)]) as transport:
            transport.submit(Op.ADD32, np.zeros((chunks, up_bytes(Op.ADD32)), np.uint8))
            transport.step(0.0)
            switch.settimeout(60)
            updates = [switch.recv(65535) for _ in range(chunks)]
            for update in updates:
                switch.sendto(result_of(update), link.local)
            time.sleep(2 * timing.retransmit_s)
            events = [event for _ in range(2 * chunks) for event in transport.step(0.0)]
            assert len(events) == 1
            assert transport.statistics.worker.retransmits == 0


def test_sums_of_three_workers(stack: ExitStack) -> None:
    patient = Timing(retransmit_s=30.0, retransmit_max_s=30.0, deadline_s=60.0)  # a slow machine is no loss
    switch, transports = start(stack, 3, timing=patient)
    for seed, chunks in enumerate([1, 9, 4]):
        sum_words(transports, chunks, seed)
    for transport in transports:
        statistics = transport.statistics
        assert statistics.worker.updates == 14
        assert statistics.link.datagrams_sent == 14 + statistics.worker.retransmits
        assert statistics.link.bytes_sent == statistics.link.datagrams_sent * 1056
        assert statistics.link.bytes_received == statistics.link.datagrams_received * 1056
        assert not statistics.worker.ignored
    assert not switch.aggregator.drops


def test_scapy_packets_that_are_lost_and_doubled(stack: ExitStack) -> None:
    _, transports = start(stack, 2, mishaps=Mishaps(drop=0.15, duplicate=0.1, reorder=0.1), make_link=ScapyLink)
    for seed in range(2):
        sum_words(transports, 10, seed)
    assert sum(transport.statistics.worker.retransmits for transport in transports) > 0


def alone(stack: ExitStack, switch: tuple[str, int]) -> Transport:
    timing = Timing(retransmit_s=0.01, retransmit_max_s=0.05, deadline_s=0.3)
    membership = Membership(9, 0, 2, 1, switch=f"switch {switch[0]}:{switch[1]}")
    return stack.enter_context(Transport([Shard(UdpLink((LOCALHOST, 0), switch), membership, timing)]))


def test_nobody_listens(stack: ExitStack) -> None:
    address = (LOCALHOST, free_port(socket.SOCK_DGRAM))
    transport = alone(stack, address)
    with pytest.raises(AllReduceTimeoutError) as raised:
        transport.allreduce(Op.ADD32, np.zeros((2, 1024), np.uint8))
    assert f"no result from switch 127.0.0.1:{address[1]} within " in str(raised.value)
    assert "generation 9, rank 0, slot 0, round 1, UPDATE sent " in str(raised.value)
    assert "x 'port unreachable'" in str(raised.value)
    assert transport.statistics.link.unreachable > 0
    with pytest.raises(GenerationEndedError, match="generation 9 has ended: no result from"):
        transport.allreduce(Op.ADD32, np.zeros((2, 1024), np.uint8))


def test_a_switch_that_does_not_know_the_generation(stack: ExitStack) -> None:
    with UdpSwitch(Aggregator()) as switch:
        transport = alone(stack, switch.address)
        with pytest.raises(AllReduceTimeoutError, match=r"nothing came back\. 1 of 1 chunks"):
            transport.allreduce(Op.ADD32, np.zeros((1, 1024), np.uint8))
    assert switch.aggregator.drops == {Drop.UNKNOWN_GENERATION: transport.statistics.link.datagrams_sent}


def test_strangers_do_not_come_through(stack: ExitStack) -> None:
    _, (transport,) = start(stack, 1)
    link = transport.shards[0].link
    assert isinstance(link, UdpLink)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.sendto(b"hello", link.local)
    sum_words([transport], 2, 1)
    assert not transport.statistics.worker.ignored


def test_a_side_channel_that_broke_is_said(stack: ExitStack) -> None:
    switch = stack.enter_context(UdpSwitch(Aggregator()))
    channels = [SideChannel(rank, KEY, (LOCALHOST, 0)) for rank in range(2)]
    addresses = {rank: channel.address for rank, channel in enumerate(channels)}
    shards = [
        Shard(
            UdpLink((LOCALHOST, 0), switch.address),
            Membership(GENERATION, rank, 2, SLOTS),
            FAST,
            Peers(channel, addresses, linger_s=0.2),
        )
        for rank, channel in enumerate(channels)
    ]
    broken = Transport(shards[:1])
    stack.callback(shards[1].close)
    shards[0].worker.receive_peer = None  # type: ignore[method-assign,assignment]
    heard = threading.Event()
    channels[1].send_all([(0, PeerMessage(PeerKind.PROGRESS_QUERY, 1, GENERATION))])
    while channels[0].failure is None:
        heard.wait(0.005)
    with broken, pytest.raises(HopsumError, match="the side channel of rank 0 has ended: 'NoneType'"):
        broken.allreduce(Op.ADD32, np.zeros((1, 1024), np.uint8))


def test_peers_without_an_address(stack: ExitStack) -> None:
    channel = SideChannel(0, KEY, (LOCALHOST, 0))
    stack.callback(channel.close)
    link = UdpLink((LOCALHOST, 0), (LOCALHOST, 1))
    stack.callback(link.close)
    with pytest.raises(ValueError, match=r"no side channel address for ranks \[2\] of 3 workers"):
        Shard(link, Membership(GENERATION, 0, 3, SLOTS), peers=Peers(channel, {1: (LOCALHOST, 1)}))


def test_a_worker_that_closes_says_so_seldom_however_many_others_close() -> None:
    """All ranks say to all that they leave, for each shard: one answer to each would be the square of them again."""
    shard = Shard.__new__(Shard)
    left: list[float] = []
    everybody = SimpleNamespace(all_left=False, leave=lambda finished: left.append(time.monotonic()))
    worker = SimpleNamespace(
        repair=everybody, statistics=SimpleNamespace(updates=1), membership=SimpleNamespace(rank=0)
    )
    fakes: Any = {"worker": worker, "_linger_s": 0.5, "_changed": threading.Condition(), "flush_messages": lambda: None}
    vars(shard).update(fakes)
    over = threading.Event()

    def tell() -> None:
        while not over.is_set():
            with shard._changed:
                shard._changed.notify_all()

    others = threading.Thread(target=tell)
    others.start()
    shard._close_channel(SimpleNamespace(failure=None), linger=True)  # type: ignore[arg-type]
    over.set()
    others.join()
    assert 1 <= len(left) <= 3
