# SPDX-License-Identifier: Apache-2.0
"""The compiled loop of a worker does to it exactly what the Python worker does.

Two workers get the same inputs at the same times from a network that loses, copies, reorders and forges. One takes
trains by the kernel as far as the kernel takes them, the other each datagram alone. All that they say and know must be
the same afterwards.
"""

from __future__ import annotations

import random
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from itertools import groupby
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba")

import numba

from hopsum.protocol.congestion import CongestionWindow
from hopsum.protocol.repair import RepairPolicy
from hopsum.protocol.worker import AllReduceDone, AllReduceFailed, Membership, Timing, Worker
from hopsum.transport import worker_kernel, worker_layout, worker_loop
from hopsum.transport.link import BATCH_DATAGRAMS, RECEIVE_BYTES
from hopsum.transport.offload import PLAIN
from hopsum.transport.shard import Shard
from hopsum.transport.sharded_allreduce import ShardedAllReduce, ShardedAllReduces
from hopsum.transport.transport import Transport
from hopsum.transport.udp_link import UdpLink
from hopsum_wire import Kind, Op, split_datagram, up_bytes

from .codes import Codes
from .results import result_of
from .twins import COUNTED, OPS, OPTIONS, STEPS, Twins

loop_at = worker_kernel.loop_at
NO_WAKER = SimpleNamespace(fd=-1)
SEEDS = 60
GENERATION, WORKERS = 7, 3


# Not `kernel`, which is kept on disk: it would not follow a change of the compiled loop.
@numba.njit(nogil=True)  # type: ignore[untyped-decorator]
def handle_batch(address: int) -> None:
    """Do what the kernel does after a receive."""
    loop = loop_at(address)
    worker_kernel.reset(loop)
    worker_kernel.handle_batch(loop, worker_kernel.shard_in(loop.shards, 0))


@numba.njit(nogil=True)  # type: ignore[untyped-decorator]
def use_time(address: int) -> None:
    """Do what the kernel does once while no datagram is there, at the time `now`."""
    loop = loop_at(address)
    worker_kernel.reset(loop)
    if worker_kernel.encode_batch(loop):
        worker_kernel.choose(worker_kernel.shard_in(loop.shards, 0))
    else:
        worker_kernel.decode_any(loop)


def sharded_of(worker: Worker, handle: int, codes: Codes | None = None) -> ShardedAllReduce:
    """Return an all-reduce that a worker has just got, as the transport of one shard has it."""
    reduce = worker.state.active[-1]
    assert reduce.handle == handle
    return ShardedAllReduce(handle, reduce.places, codes, {0: reduce}, 1)  # type: ignore[arg-type]


class LoopTwins(Twins):
    """Twins of which the second takes trains by the kernel, which also makes payloads and reads sums."""

    def __init__(self, rng: random.Random, **options: Any) -> None:
        self.codes: dict[int, Codes] = {}
        super().__init__(rng, **options)
        link = SimpleNamespace(
            fileno=lambda: -1, waker=NO_WAKER, offload=PLAIN, buffer=np.zeros(RECEIVE_BYTES, np.uint8), statistics=None
        )
        self.loop = worker_loop.WorkerLoop(worker_kernel, [(link, self.one.membership.slots)])  # type: ignore[list-item]
        self.memory = self.loop.shards[0]
        self.all_sharded = ShardedAllReduces()
        if rng.random() < 0.3:  # a window that a loss has halved
            for worker in (self.one, self.fast):
                worker.queue.congestion = CongestionWindow(worker.membership.slots)
                worker.queue.congestion.on_loss(0.0)

    def submit(self) -> None:
        handles = self.fast._handles
        if self.rng.random() < 0.5:
            super().submit()
        else:
            rng, op = self.rng, self.rng.choice(OPS)
            chunks, before = rng.choice([1, 2, 40, 200]), self.one.stream.end
            generator = np.random.default_rng(rng.getrandbits(32))
            payloads = generator.integers(0, 256, (chunks, up_bytes(op)), dtype=np.uint8)
            self.both("submit", op, payloads, now=self.now, ready=0)
            if self.one.stream.end > before:
                self.ops += [op] * chunks
                self.codes[self.one._handles] = Codes(payloads, op)
        handle = self.fast._handles
        if handle > handles and self.fast.state.active and self.fast.state.active[-1].handle == handle:
            sharded = sharded_of(self.fast, handle, self.codes.get(handle))
            self.all_sharded.add(sharded, [handle])

    def fill(self) -> None:
        """Let payloads come, sometimes those that the kernel could make."""
        mine = [reduce for reduce in self.one.state.active if reduce.handle in self.codes]
        active = [reduce for reduce in mine if reduce.ready < len(reduce.held)]
        if not active or self.rng.random() < 0.5:
            super().fill()
            return
        reduce = self.rng.choice(active)
        self.both("fill", reduce.handle, self.codes[reduce.handle].encode_part())

    @property
    def can_run_compiled(self) -> bool:
        return self.loop.can_run_compiled([self.fast], self.all_sharded)

    def copy_in(self) -> int:
        """Let the kernel have the second twin, at this time."""
        for sharded in self.all_sharded.by_handle.values():
            sharded.forget_discarded()
        address = self.loop.copy_in([self.fast], self.all_sharded, 0.0)
        self.memory.state.now = self.now
        return address

    def use_time(self) -> None:
        """Let the kernel make payloads or read sums; the first twin is filled with the same."""
        if not self.can_run_compiled:
            return
        read = sum(codes.stream.taken for codes in self.codes.values())
        use_time(self.copy_in())
        unsent = self.memory.unsent(self.fast)
        self.loop.copy_out([self.fast], self.all_sharded)
        for mine, other in zip(self.one.state.active, self.fast.state.active, strict=True):
            if mine.ready < other.ready:
                self.one.fill(mine.handle, self.codes[mine.handle].source[mine.ready : other.ready])
                self.met["made by the kernel"] += 1
        self.met["read by the kernel"] += sum(codes.stream.taken for codes in self.codes.values()) > read
        self.send_after(unsent)

    def read(self) -> None:
        """Read sums in Python, as the transport does where the loop does not run."""
        for sharded in self.all_sharded.by_handle.values():
            sharded.forget_discarded()
            end = min(sharded.readable, sharded.taken + self.rng.choice([1, 7, 32]))
            if sharded.coder is not None and end > sharded.taken:
                sharded.read(end)
                self.met["read in Python"] += 1

    def told(self, worker: Worker) -> list[AllReduceDone | AllReduceFailed]:
        ends = super().told(worker)
        if worker is self.fast:
            for event in ends:
                self.all_sharded.at_shards.pop((0, event.handle), None)
                sharded = self.all_sharded.by_handle.pop(event.handle, None)
                if sharded is not None and sharded.coder is not None and isinstance(event, AllReduceDone):
                    sharded.forget_discarded()
                    self.codes[event.handle].check(event)
        return ends

    def receive(self) -> None:
        """Let some of what is on the way arrive, in trains."""
        self.arrive()
        for _ in range(self.rng.choice([0, 1, 4])):
            self.use_time()
        if self.rng.random() < 0.2:
            self.read()

    def arrive(self) -> None:
        rng = self.rng
        arrived = self.arrivals()
        for _, run in groupby(arrived, len):
            train = list(run)
            while train:
                cut = rng.choice([1, 7, 62])
                self.take(train[:cut])
                train = train[cut:]

    def arrivals(self) -> list[bytes]:
        """Return what arrives now: mostly in order, some of it lost, late, copied or forged."""
        rng = self.rng
        take = rng.choice([1, 3, 30, 100, len(self.in_flight)])
        arrived, self.in_flight = self.in_flight[:take], self.in_flight[take:]
        arrived = [datagram for datagram in arrived if rng.random() < 1 - 0.03 * self.storm]
        arrived += [datagram for datagram in arrived if rng.random() < 0.05 * self.storm]
        if rng.random() < 0.3 and self.storm:
            late = [datagram for datagram in arrived if rng.random() < 0.1]
            arrived = [datagram for datagram in arrived if datagram not in late]
            self.in_flight += late
        if rng.random() < 0.3 * self.storm:
            rng.shuffle(arrived)
        elif rng.random() < 0.5:
            arrived.sort(key=lambda datagram: (len(datagram), datagram[12:16], datagram[6:8]))
        if rng.random() < 0.02:  # a switch whose other workers submitted something else
            arrived = [datagram[:3] + bytes([rng.choice(OPS)]) + datagram[4:] for datagram in arrived]
        return arrived

    def take(self, train: list[bytes]) -> None:
        """Give a train to both: what the kernel takes of it to the kernel, and the rest to the Python worker."""
        worker, state = self.fast, self.memory.state
        size = len(train[0])
        taken, unsent = 0, []
        if size % 8 == 0 and self.can_run_compiled:
            address = self.copy_in()
            data = np.frombuffer(b"".join(train), np.uint8)
            self.memory.link.buffer[: len(data)] = data
            state.rest, state.received, state.segment = 0, len(data), size
            handle_batch(address)
            unsent = self.memory.unsent(worker)
            self.loop.copy_out([worker], self.all_sharded)
            self.memory.link.buffer[: len(data)] = 0xEE
            taken = state.rest // size
            if taken:
                worker.watch.absences.on_datagram()
            self.met["taken"] += taken
            self.met["in a narrow window"] += taken > 0 and state.window < state.slots
        for datagram in train[:taken]:
            self.one.receive_datagram(datagram, self.now)
        self.send_after(unsent)
        if not taken:  # as the transport, which continues in Python then
            taken = 1
            for each in (self.one, self.fast):
                each.receive_datagram(train[0], self.now)
            self.send_after([])
        if train[taken:]:
            self.take(train[taken:])

    def send_after(self, unsent: list[Any]) -> None:
        """Take what both send: the second has what the kernel chose, and then what the Python worker does."""
        sent = [bytes(datagram) for datagram in self.one.datagrams_to_send(self.now)]
        batches = [*unsent, *self.fast.segments_to_send(self.now)]
        found = [row.tobytes() for rows in batches for row in rows]
        assert sent == found
        for datagram in sent:
            self.in_flight += self.replies(split_datagram(datagram)[0])

    def compare(self) -> None:
        one, rows = self.one.queue, self.fast.queue
        for name, mine, other in zip(one.arrays._fields, one.arrays, rows.arrays, strict=True):
            assert np.array_equal(mine, other), name
        for names, of in (
            (("in_flight", "measured_at"), lambda queue: queue),
            (("size", "results", "halved_at"), lambda queue: queue.congestion),
            (("srtt_s", "rttvar_s", "rto_s"), lambda queue: queue.rtt),
        ):
            for name in names:
                assert getattr(of(one), name) == getattr(of(rows), name), name
        super().compare()


@pytest.mark.parametrize("kind", OPTIONS)
def test_a_train_by_the_kernel_is_its_datagrams_one_by_one(kind: str) -> None:
    met: Counter[str] = Counter()
    for seed in range(SEEDS):
        twins = LoopTwins(random.Random(f"worker loop {kind} {seed}"), **OPTIONS[kind])
        twins.submit()
        twins.send()
        for _ in range(STEPS):
            twins.step()
        met += twins.met
        met["discarded"] += twins.book.discarded
        for name in COUNTED:
            met[name] += getattr(twins.fast.statistics, name)
        met.update({f"ignored {reason.name}": count for reason, count in twins.fast.statistics.ignored.items()})
    expected = {"made by the kernel", "read by the kernel", "read in Python"}
    expected |= {"AllReduceDone", "in a narrow window", "results", "duplicates", "retransmits", "flushes"}
    expected |= {"AllReduceFailed"} if kind == "fail" else {"repaired", "served", "changes", "discarded"}
    reasons = ("BAD_VERSION", "BAD_KIND", "BAD_OP", "BAD_LENGTH", "UNKNOWN_GENERATION", "UNKNOWN_WORKER", "BAD_SLOT",
               "BAD_ROUND", "BAD_VALUE", "OP_MISMATCH")  # fmt: skip
    expected |= {"stale_ignored", *(f"ignored {reason}" for reason in reasons)}
    assert not {name for name in expected if not met[name]}, met
    assert met["taken"] > met["results"] / 4, met  # else the comparison says little


class Bench:
    """A worker of one shard, its loop, and the vectors in progress."""

    def __init__(self, worker: Worker, link: Any, kernel: Any = worker_kernel) -> None:
        self.worker = worker
        self.loop = worker_loop.WorkerLoop(kernel, [(link, worker.membership.slots)])
        self.all_sharded = ShardedAllReduces()

    def submit(self, payloads: Any, codes: Codes | None = None) -> None:
        ready = len(payloads) if codes is None else 0
        handle = self.worker.submit(Op.ADD32, payloads, now=time.monotonic(), ready=ready)
        sharded = sharded_of(self.worker, handle, codes)
        self.all_sharded.add(sharded, [handle])

    def run(self, limit_at: float) -> list[Any]:
        (unsent,) = self.loop.run([self.worker], self.all_sharded, limit_at)
        return unsent


def codes_of(chunks: int) -> Codes:
    return Codes(np.full((chunks, up_bytes(Op.ADD32)), 7, np.uint8), Op.ADD32)


@pytest.fixture
def silent() -> Iterator[tuple[str, int]]:
    """The address of a switch that answers nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as switch:
        switch.bind(("127.0.0.1", 0))
        yield switch.getsockname()


def test_a_vector_that_waits_for_peers_ends_the_loops_wait(silent: tuple[str, int]) -> None:
    """Until it has a payload, the worker does not know that peers hold it back, and DONEs would wake nobody (R2)."""
    own, policy = Membership(GENERATION, 0, WORKERS, 4), RepairPolicy(unproved_least=1, unproved_max=1)
    worker = Worker(own, Timing(retransmit_s=1e3, retransmit_max_s=1e3, deadline_s=1e4), repair=policy)
    with closing(UdpLink(("127.0.0.1", 0), silent)) as link:
        bench, codes = Bench(worker, link), codes_of(200)
        bench.submit(np.zeros((1, up_bytes(Op.ADD32)), np.uint8))
        bench.submit(codes.source, codes)
        # Far beyond any test's limit: only an end of the wait by itself returns.
        assert not bench.run(time.monotonic() + 1e5)
        assert worker.waits_for_peers
        assert worker.state.active[1].ready == worker_layout.BATCH_CHUNKS


def test_the_loop_leaves_the_vector_of_an_aborted_reduction_alone(silent: tuple[str, int]) -> None:
    """It is the error feedback's residual by then."""
    worker = Worker(Membership(GENERATION, 0, WORKERS, 4), Timing(deadline_s=1e4))
    with closing(UdpLink(("127.0.0.1", 0), silent)) as link:
        bench, codes = Bench(worker, link), codes_of(200)
        bench.submit(codes.source, codes)
        bench.run(time.monotonic() + 0.05)
        reduce = worker.state.active[0]
        made = reduce.ready
        assert made >= worker_layout.BATCH_CHUNKS
        reduce.held[:50], reduce.missing = True, 150
        codes.stream.run = None
        bench.run(time.monotonic() + 0.05)
        assert (codes.stream.taken, reduce.ready) == (0, made)


def test_a_send_that_the_kernel_has_no_room_for_waits_for_room() -> None:
    """A datagram socket of the Unix domain takes only so many datagrams that nobody has read."""
    chunks, slots = 300, 40
    mine, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with mine, other:
        for end in (mine, other):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        with closing(UdpLink(("127.0.0.1", 0), ("127.0.0.1", 9), gso="off")) as udp:
            link = SimpleNamespace(
                fileno=mine.fileno, waker=udp.waker, offload=PLAIN, buffer=udp.buffer, statistics=udp.statistics,
                outage=udp.outage,
            )  # fmt: skip
            worker = Worker(Membership(GENERATION, 0, 1, slots), Timing(retransmit_s=1e6, retransmit_max_s=1e6))
            bench = Bench(worker, link)
            bench.submit(np.zeros((chunks, up_bytes(Op.ADD32)), np.uint8))
            waiting = [bytes(datagram) for datagram in worker.datagrams_to_send(0.0)]

            def answer() -> None:
                """Answer a window of UPDATEs without reading what comes in return, then the next window."""
                updates, answered = waiting, 0
                while answered < chunks:
                    for update in updates:
                        other.send(result_of(update))
                    answered += len(updates)
                    updates = [other.recv(65535) for _ in range(min(slots, chunks - answered))]
                udp.wake()

            thread = threading.Thread(target=answer)
            thread.start()
            limit_at, unsent = time.monotonic() + 60, []
            while worker.state.active and time.monotonic() < limit_at:
                unsent += bench.run(limit_at)
            thread.join(60)
        assert not unsent
        done = worker.next_event()
        assert isinstance(done, AllReduceDone)
        assert done.results[:, 0].tolist() == [position % slots for position in range(chunks)]


def test_a_thread_that_needs_the_worker_does_not_wait_for_the_network() -> None:
    """Nothing ends the loop's wait here for a thousand seconds but the thread that wants to probe."""
    timing = Timing(retransmit_s=1e3, retransmit_max_s=1e3, deadline_s=1e4)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as switch:
        switch.bind(("127.0.0.1", 0))
        link = UdpLink(("127.0.0.1", 0), switch.getsockname())
        shard = Shard(link, Membership(GENERATION, 0, WORKERS, 4), timing)
        with Transport([shard]) as transport:
            transport.submit(Op.ADD32, np.zeros((4, up_bytes(Op.ADD32)), np.uint8))
            over = threading.Event()

            def serve() -> None:
                while not over.is_set():
                    transport.step(1e3)

            waits = threading.Thread(target=serve)
            waits.start()
            switch.settimeout(60)
            kinds = {split_datagram(switch.recv(65535))[0].kind for _ in range(4)}
            shard.probe()
            transport.wake()  # it is sent at the next step
            kinds.add(split_datagram(switch.recv(65535))[0].kind)
            over.set()
            transport.wake()
            waits.join(60)
            assert not waits.is_alive()
        assert kinds == {Kind.UPDATE, Kind.PROBE}


class Alarm(BaseException):
    """The error of a signal handler."""


@pytest.mark.parametrize(("raises", "calls_most"), [(False, BATCH_DATAGRAMS), (True, 1)])
def test_a_flood_keeps_nobody_from_timers_and_signals(raises: bool, calls_most: int) -> None:
    """The socket always has one more datagram that the kernel leaves to Python."""
    calls = 0

    def serve(_: Any) -> None:
        nonlocal calls
        calls += 1
        assert calls <= calls_most
        state = bench.loop.shards[0].state
        state.rest, state.received, state.segment = 0, 64, 64
        bench.loop.loop.stop = state.ended = worker_layout.STOP_REST
        if raises:
            raise Alarm

    worker = Worker(Membership(GENERATION, 0, 1, 4))
    with closing(UdpLink(("127.0.0.1", 0), ("127.0.0.1", 9))) as link:
        bench = Bench(worker, link, SimpleNamespace(serve=serve))
        bench.submit(np.zeros((2, up_bytes(Op.ADD32)), np.uint8))
        bench.run(time.monotonic() + 1e3)
    assert isinstance(bench.loop.interrupt, Alarm) is raises
    assert sum(worker.statistics.ignored.values()) == calls


def test_other_links_and_the_environment_have_no_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(UdpLink(("127.0.0.1", 0), ("127.0.0.1", 9))) as link:
        assert worker_loop.worker_loop([(link, 4)]) is not None
        assert worker_loop.worker_loop([(link, 4), (object(), 4)]) is None
        monkeypatch.setenv("HOPSUM_COMPILED", "0")
        assert worker_loop.worker_loop([(link, 4)]) is None


def test_the_python_worker_remains_where_the_loop_does_not_compile(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "hopsum.transport.worker_kernel", None)
    with closing(UdpLink(("127.0.0.1", 0), ("127.0.0.1", 9))) as link:
        assert worker_loop.worker_loop([(link, 4)]) is None
    assert "the Python worker is used" in caplog.text


def test_machine_code_of_another_layout_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_layout, "FINGERPRINT", worker_layout.FINGERPRINT + 1)
    with closing(UdpLink(("127.0.0.1", 0), ("127.0.0.1", 9))) as link:
        bench = Bench(Worker(Membership(GENERATION, 0, 1, 4)), link)
        bench.submit(np.zeros((2, up_bytes(Op.ADD32)), np.uint8))
        with pytest.raises(RuntimeError, match="__pycache__"):
            bench.run(0.0)
