# SPDX-License-Identifier: Apache-2.0
"""Vectors over several shards: each chunk goes to its switch, and its sum comes to its place."""

from __future__ import annotations

import random
import socket
import sys
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba")

from hopsum.codec.backends import NotCompiledError
from hopsum.errors import GenerationEndedError
from hopsum.protocol.worker import AllReduceDone, AllReduceFailed, Membership, Timing, Worker
from hopsum.protocol.worker_state import AllReduce, places_for
from hopsum.transport import worker_loop
from hopsum.transport.shard import Shard
from hopsum.transport.sharded_allreduce import CodecWork, ShardedAllReduce, next_work
from hopsum.transport.transport import Transport
from hopsum.transport.udp_link import UdpLink
from hopsum_wire import HOPSUM_BYTES, Header, Op, up_bytes

from .codes import RANGE_BYTES, Codes
from .results import result_of

WAIT_S = 90
SLOTS = 8


class EchoSwitch:
    """A switch of one worker: the sum of a contribution is the contribution. It loses, repeats and reorders."""

    def __init__(self, seed: str, storm: float) -> None:
        self.rng, self.storm = random.Random(seed), storm
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.address: tuple[str, int] = self.socket.getsockname()
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def _serve(self) -> None:
        late: list[bytes] = []
        while (update := self.socket.recvfrom(65535)) and update[0]:
            data, peer = update
            answer = result_of(data)[:HOPSUM_BYTES] + data[HOPSUM_BYTES:]
            draw = self.rng.random()
            if draw < 0.1 * self.storm:
                continue
            if draw < 0.2 * self.storm:
                late.append(answer)
                continue
            answers = [answer] * (2 if draw < 0.3 * self.storm else 1)
            for each in (*answers, *late):
                self.socket.sendto(each, peer)
            late.clear()

    def close(self) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
            end.sendto(b"", self.address)
        self.thread.join(WAIT_S)
        self.socket.close()


def transport_of(stack: ExitStack, shards: int, seed: str, storm: float, timing: Timing | None = None) -> Transport:
    timing = timing or Timing(retransmit_s=0.02, retransmit_max_s=0.1, deadline_s=WAIT_S)
    ends: list[Shard] = []
    for number in range(shards):
        switch = EchoSwitch(f"{seed} {number}", storm)
        stack.callback(switch.close)
        link = UdpLink(("127.0.0.1", 0), switch.address, gso="off" if number % 2 else "auto")
        ends.append(Shard(link, Membership(7, 0, 1, SLOTS), timing, lock=ends[0].lock if ends else None))
    return stack.enter_context(Transport(ends))


def played(stack: ExitStack, shards: int = 1, retransmit_s: float = WAIT_S) -> tuple[Transport, list[socket.socket]]:
    """Return a transport, and the sockets of its switches, which the test plays."""
    ends: list[Shard] = []
    switches = [stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) for _ in range(shards)]
    timing = Timing(retransmit_s=retransmit_s, retransmit_max_s=WAIT_S, deadline_s=2 * WAIT_S)
    for switch in switches:
        switch.bind(("127.0.0.1", 0))
        link = UdpLink(("127.0.0.1", 0), switch.getsockname(), gso="off")
        ends.append(Shard(link, Membership(7, 0, 1, SLOTS), timing, lock=ends[0].lock if ends else None))
    return stack.enter_context(Transport(ends)), switches


def codes_of(chunks: int, seed: int) -> Codes:
    rng = np.random.default_rng(seed)
    return Codes(rng.integers(0, 256, (chunks, up_bytes(Op.ADD32)), dtype=np.uint8), Op.ADD32)


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "reference"])
@pytest.mark.parametrize("storm", [0.0, 1.0])
@pytest.mark.parametrize("shards", [1, 2, 5])
def test_sums_come_to_their_places(
    stack: ExitStack, shards: int, storm: float, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some vectors have all payloads at once, others get codes made and read on the way; several are in progress."""
    monkeypatch.setattr("hopsum.transport.sharded_allreduce.PART_CHUNKS", 16)
    if not compiled:
        monkeypatch.setenv("HOPSUM_COMPILED", "0")
    transport = transport_of(stack, shards, f"{shards} {storm}", storm)
    assert transport.has_loop is compiled
    waiting: dict[int, tuple[Codes, bool]] = {}
    read_early = 0
    until = time.monotonic() + WAIT_S
    for number, chunks in enumerate([1, shards, shards + 1, 300, 64, 300]):
        codes, streams = codes_of(chunks, number), number % 2 == 1
        coder: Any = codes if streams else None
        given = np.zeros_like(codes.source) if streams else codes.source
        waiting[transport.submit(Op.ADD32, given, coder=coder)] = codes, streams
    while waiting:
        assert time.monotonic() < until
        for event in transport.step(1.0):
            codes, streams = waiting.pop(event.handle)
            assert isinstance(event, AllReduceDone)
            np.testing.assert_array_equal(event.results, codes.source)
            if streams:
                codes.check(event)
                read_early += codes.stream.taken
    assert read_early > 64
    assert transport.statistics.worker.results == transport.statistics.worker.updates
    assert bool(transport.statistics.worker.retransmits) or not storm


@pytest.mark.parametrize(("compiled", "storm", "agrees"), [(1, 0, 1), (1, 1, 1), (1, 0, 0), (0, 1, 1)])
@pytest.mark.parametrize("shards", [1, 2, 5])
def test_codes_begin_once_the_ranges_before_them_are_summed(
    stack: ExitStack, shards: int, compiled: int, storm: float, agrees: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Machine code begins in the same call, unless the sums are not as it expects; then Python, as in the reference."""
    monkeypatch.setenv("HOPSUM_COMPILED", "wait" if compiled else "0")
    patient = None if storm else Timing(retransmit_s=WAIT_S, retransmit_max_s=WAIT_S, deadline_s=2 * WAIT_S)
    transport = transport_of(stack, shards, f"ranges {shards} {storm}", storm, patient)
    begun, until = 0, time.monotonic() + WAIT_S
    for number, (ranges, chunks) in enumerate([(1, 1), (1, 300), (3, 64), (9, 300)]):
        sums = np.random.default_rng(number).integers(0, 256, (ranges, RANGE_BYTES), dtype=np.uint8)
        left = {transport.submit(Op.MAX32, part) for part in (sums[:1], sums[1:]) if len(part)}
        source, told = codes_of(chunks, number).source, sums if agrees else sums ^ 1
        codes: Any = Codes(source, Op.ADD32, told)
        given = {"ranges": sorted(left), "lanes_before": 8}
        handle = transport.submit(Op.ADD32, np.zeros_like(source), coder=codes, **given)
        done = None
        while done is None:
            for event in transport.step(WAIT_S):
                assert isinstance(event, AllReduceDone)
                left.discard(event.handle)
                if event.handle == handle:
                    done = event
                elif not left:
                    begun += codes.stream.begun
                    codes.stream.begun = True
        np.testing.assert_array_equal(done.results, source)
        codes.check(done)
    assert time.monotonic() < until, "no step waits for a timer"
    assert begun == (4 if compiled and agrees else 0) or storm


@pytest.mark.parametrize(("shards", "fails"), [(1, "on_part"), (2, "on_part"), (2, "encode_part")])
def test_a_vector_whose_coder_failed_has_one_end(
    stack: ExitStack, shards: int, fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The network may still have all payloads, and another vector behind them."""
    monkeypatch.setattr("hopsum.transport.sharded_allreduce.PART_CHUNKS", 16)
    monkeypatch.setenv("HOPSUM_COMPILED", "0")
    transport = transport_of(stack, shards, "fails", 0.0)
    codes: Any = codes_of(100, 1)
    codes.stream.encoded = 100 if fails == "on_part" else 0

    def no_room(*given: Any) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(codes, fails, no_room)
    handles = [transport.submit(Op.ADD32, codes.source, coder=codes), transport.submit(Op.ADD32, codes.source)]
    ends: list[AllReduceDone | AllReduceFailed] = []
    # Without its payloads the first one holds the second back.
    while not ends or (fails == "on_part" and ends[-1].handle != handles[1]):
        ends += transport.step(1.0)
    assert isinstance(ends[0], AllReduceFailed)
    assert isinstance(ends[0].error, MemoryError)
    assert [end.handle for end in ends] == handles[: len(ends)]


def test_results_that_come_when_datagrams_are_due_again_are_the_compiled_loops(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python takes a hundred times as long for each."""
    taken: list[Any] = []
    transport, switches = played(stack, 2, retransmit_s=0.02)
    monkeypatch.setattr(Worker, "receive_datagram", lambda worker, *given: taken.append(given))
    handle = transport.submit(Op.ADD32, codes_of(2 * SLOTS, 0).source)
    until = time.monotonic() + WAIT_S
    while not any(shard.worker.queue.again for shard in transport.shards):
        assert time.monotonic() < until
        transport.step(0.1)
    for switch in switches:
        for _ in range(SLOTS):
            update, peer = switch.recvfrom(65535)
            switch.sendto(result_of(update), peer)
    events: list[Any] = []
    while not events:
        assert time.monotonic() < until
        events = transport.step(0.1)
    assert [(type(event), event.handle) for event in events] == [(AllReduceDone, handle)]
    assert transport.statistics.worker.retransmits
    assert not taken


def test_a_vector_that_one_shard_refuses_is_not_in_progress(stack: ExitStack) -> None:
    """Shard 0 has taken it. What becomes of it there is no event: nobody has a handle of it."""
    transport = transport_of(stack, 2, "refused", 0.0)
    transport.shards[1].worker.seal()
    with pytest.raises(GenerationEndedError):
        transport.submit(Op.ADD32, codes_of(2, 1).source)
    transport.shards[0].worker.handle_timer(time.monotonic() + 2 * WAIT_S)
    assert transport.step(0.0) == []


def test_a_vector_whose_sum_was_here_first_is_not_waited_for(stack: ExitStack) -> None:
    """The other ranks are ahead: its result comes before it is submitted. An earlier vector is still in progress."""
    transport, (switch,) = played(stack)
    source = codes_of(1, 1).source
    transport.submit(Op.ADD32, source)
    transport.step(0.0)
    update, peer = switch.recvfrom(65535)
    switch.sendto(replace(Header.unpack(result_of(update)), slot=1).pack() + update[HOPSUM_BYTES:], peer)
    while not transport.shards[0].worker.state.early:
        assert transport.step(0.1) == []
    second = transport.submit(Op.ADD32, source)
    begun = time.monotonic()
    (event,) = transport.step(WAIT_S)
    assert event.handle == second
    assert time.monotonic() - begun < WAIT_S / 2


@pytest.mark.parametrize("compiled", ["0", "wait"])
def test_sums_that_come_before_codes_begin_are_not_read(
    stack: ExitStack, compiled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quorum has them without this rank, whose sum of ranges was lost."""
    monkeypatch.setenv("HOPSUM_COMPILED", compiled)
    monkeypatch.setattr("hopsum.transport.sharded_allreduce.PART_CHUNKS", 1)
    transport, (switch,) = played(stack)
    sums = np.zeros((1, RANGE_BYTES), np.uint8)
    codes: Any = Codes(codes_of(2, 1).source, Op.ADD32, sums)
    ranges = transport.submit(Op.MAX32, sums)
    transport.submit(Op.ADD32, np.zeros_like(codes.source), coder=codes, ranges=(ranges,), lanes_before=8)
    transport.step(0.0)
    update, peer = switch.recvfrom(65535)
    early = replace(Header.unpack(result_of(update)), op=Op.ADD32, slot=1)
    switch.sendto(early.pack() + update[HOPSUM_BYTES:], peer)
    while not transport.statistics.worker.results:
        assert transport.step(0.1) == []
    assert transport.step(0.1) == []
    assert codes.stream.taken == 0


def test_a_transport_gets_its_loop_once_it_is_compiled(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums are in progress in Python meanwhile."""
    asked: list[Any] = []
    monkeypatch.setenv("HOPSUM_COMPILED", "1")
    monkeypatch.setattr(
        "hopsum.transport.worker_loop.compile_ahead", lambda _, arguments, then, what: asked.append(then)
    )
    real = worker_loop.compiled_kernel

    def nothing_is_cached() -> None:
        raise NotCompiledError("serve")

    monkeypatch.setattr(worker_loop, "compiled_kernel", nothing_is_cached)
    transports = [transport_of(stack, 2, f"later {number}", 0.0) for number in range(2)]
    assert len(asked) == 1, "one process compiles for all"
    transport = transports[0]
    for number in range(6):
        source = codes_of(300, number).source
        handle = transport.submit(Op.ADD32, source)
        if number == 3:
            monkeypatch.setattr(worker_loop, "compiled_kernel", real)
            asked.pop()()
        done: list[Any] = []
        while not done:
            done = transport.step(1.0)
        assert [event.handle for event in done] == [handle]
        np.testing.assert_array_equal(done[0].results, source)
        assert transport.has_loop is (number >= 3)


def test_sums_that_come_as_a_side_channel_ends_are_told(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    transport = transport_of(stack, 1, "ends", 0.0)
    (shard,) = transport.shards

    def end_with_the_sum() -> None:
        assert not shard.worker.state.events

    monkeypatch.setattr(shard, "require_open", end_with_the_sum)
    handle = transport.submit(Op.ADD32, codes_of(1, 1).source)
    while not (events := transport.step(1.0)):
        pass
    assert [event.handle for event in events] == [handle]


def test_shards_with_two_locks_are_refused(stack: ExitStack) -> None:
    """A thread that seals one of them would not be kept apart from a step."""
    first, second = (transport_of(stack, 1, "locks", 0.0).shards[0] for _ in range(2))
    with pytest.raises(ValueError, match="one lock"):
        Transport([first, second])


def calls_of(stack: ExitStack, shards: int) -> int:
    """Return the calls of functions in Python that one vector makes, with a chunk for each shard."""
    transport, switches = played(stack, shards)
    source, times, counts = codes_of(shards, 0).source, 4, list[int]()

    def answer() -> None:
        for switch in switches * times:
            update, peer = switch.recvfrom(65535)
            switch.sendto(result_of(update), peer)

    def count(_: Any, event: str, __: Any) -> None:
        counts[-1] += event == "call"

    thread = threading.Thread(target=answer)
    thread.start()
    for _ in range(times):
        counts.append(0)
        sys.setprofile(count)
        try:
            transport.allreduce(Op.ADD32, source)
        finally:
            sys.setprofile(None)
    thread.join(WAIT_S)
    # The first one fills caches. One that waits for a processor for a second takes a further step.
    return min(counts)


def test_a_further_shard_costs_few_calls(stack: ExitStack) -> None:
    """A host of a job with as many shards as hosts would else spend more and more on each vector."""
    assert calls_of(stack, 8) - calls_of(stack, 2) <= 6 * 60


def sharded_of(chunks: int, codes: Codes | None) -> ShardedAllReduce:
    """Return a vector of one shard, which has no worker."""
    places = places_for(Op.ADD32, chunks)
    datagrams = np.zeros((chunks, HOPSUM_BYTES + up_bytes(Op.ADD32)), np.uint8)
    reduce = AllReduce(1, Op.ADD32, 0, datagrams, 0.0, 1.0, 0, places)
    return ShardedAllReduce(1, places, codes, {0: reduce}, 1)  # type: ignore[arg-type]


def hold(sharded: ShardedAllReduce, chunks: slice) -> None:
    """Let results come."""
    (reduce,) = sharded.reduces.values()
    sharded.places.held[chunks] = True
    reduce.missing = int(np.count_nonzero(~sharded.places.held))


def test_python_makes_codes_for_an_idle_network_first_and_reads_what_is_here_without_a_gap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hopsum.transport.sharded_allreduce.PART_CHUNKS", 4)
    monkeypatch.setattr("hopsum.transport.sharded_allreduce.PARTS_MAX", 100)
    codes = codes_of(100, 1)
    sharded = sharded_of(100, codes)
    assert next_work([sharded], 8, by_machine=False) == CodecWork(sharded, "encode")
    assert next_work([sharded], 8, by_machine=True) is None, "there is machine code"
    codes.stream.encoded = 40
    hold(sharded, slice(1, 12))
    assert next_work([sharded], 8, by_machine=False) == CodecWork(sharded, "encode"), "the first sum is missing"
    hold(sharded, slice(0, 1))
    assert next_work([sharded], 8, by_machine=False) == CodecWork(sharded, "read", 12)
    assert next_work([sharded], 20, by_machine=False) == CodecWork(sharded, "encode"), "a window may be sent already"
    sharded.read(12)
    hold(sharded, slice(12, 15))
    codes.stream.encoded = 100
    assert next_work([sharded], 8, by_machine=False) is None, "too few for a part"


def test_sums_that_a_change_of_generation_discards_are_read_again() -> None:
    codes = codes_of(100, 1)
    sharded = sharded_of(100, codes)
    (reduce,) = sharded.reduces.values()
    hold(sharded, slice(0, 50))
    sharded.read(30)
    reduce.discard(np.arange(100) >= 60)
    sharded.forget_discarded()
    assert sharded.taken == codes.stream.taken == 30, "nothing that is here was discarded"
    reduce.discard(np.arange(100) == 29)
    sharded.forget_discarded()
    assert sharded.taken == codes.stream.taken == 0
    assert sharded.readable == 29
    sharded.forget_discarded()
