# SPDX-License-Identifier: Apache-2.0
"""Transports through a change of generation on loopback, the oracle behind a socket: sealed and resumed by other
threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import numpy as np
import pytest
from numpy.typing import NDArray

from hopsum.errors import HopsumError, WorkersReplacedError
from hopsum.protocol.worker import AllReduceDone, Membership, Timing
from hopsum.protocol.worker_state import WorkerPhase
from hopsum.transport.side_channel import GenerationKey, SideChannel
from hopsum.transport.state_exchange import StateMovedError
from hopsum.transport.transport import Peers, Transport
from hopsum.transport.udp_link import UdpLink
from hopsum_oracle.aggregator import Aggregator
from hopsum_wire import Op
from hopsum_wire.generations import Resume

from ...support.server import LOCALHOST, UdpSwitch, job_for
from ..protocol.change_world import decide

pytestmark = pytest.mark.system
SLOTS, RANKS = 4, 3
FAST = Timing(retransmit_s=0.02, backoff=1.5, retransmit_max_s=0.2, deadline_s=60.0, retransmit_min_s=0.01)
WAIT_S = 60.0
CHUNKS = 40
STATE = bytes(range(256)) * 4000


def key_of(generation: int) -> bytes:
    return bytes([generation]) * 32


class Member:
    """One rank's worker, and its program: the same all-reduces one after the other, in a thread."""

    def __init__(self, job: Job, rank: int, resume: Resume | None = None) -> None:
        self.job, self.rank = job, rank
        self.link = UdpLink((LOCALHOST, 0), job.switch.address)
        self.channel = SideChannel(rank, GenerationKey(job.generation, key_of(job.generation)), (LOCALHOST, 0))
        self.resume = resume
        self.done: dict[int, AllReduceDone] = {}
        self.failure: BaseException | None = None

    def open(self) -> None:
        membership = Membership(self.job.generation, self.rank, RANKS, SLOTS)
        peers = Peers(self.channel, self.job.addresses, linger_s=30.0, resume=self.resume)
        self.transport = Transport(self.link, membership, FAST, peers)

    def start(self, until: int) -> None:
        self.thread = threading.Thread(target=self._run, args=(until,))
        self.thread.start()

    def _run(self, until: int) -> None:
        """Run all-reduces up to a position."""
        transport = self.transport
        try:
            while (first := transport.worker.stream.end) < until:
                with self.job.changing:  # nothing is submitted while the generation is sealed
                    transport.submit(Op.ADD32, given(self.rank, first))
                while first not in self.done:
                    self._step(first)
                self.job.note()
        except BaseException as failure:
            self.failure = failure
        self.job.note()

    def _step(self, first: int) -> None:
        for event in self.transport.step(0.5):
            if not isinstance(event, AllReduceDone):
                raise event.error
            self.done[first] = event

    def join(self) -> None:
        self.thread.join(WAIT_S)
        assert not self.thread.is_alive()


class Job:
    """A switch and three members; all is closed with the stack."""

    def __init__(self, stack: ExitStack) -> None:
        self.stack, self.generation = stack, 7
        self.switch = stack.enter_context(UdpSwitch(Aggregator()))
        self.moved = threading.Condition()
        self.changing = threading.Lock()
        self.members = [Member(self, rank) for rank in range(RANKS)]
        self.addresses = {member.rank: member.channel.address for member in self.members}
        for member in self.members:
            self.open(member)
        self.admit()

    def open(self, member: Member) -> None:
        member.open()
        self.stack.callback(member.transport.close, linger=False)

    def admit(self) -> None:
        locals_ = [member.link.local for member in self.members]
        self.switch.aggregator.add_job(
            job_for(locals_, generation=self.generation, slots=SLOTS, table=tuple(range(16)))
        )

    def note(self) -> None:
        with self.moved:
            self.moved.notify_all()

    def wait(self, holds: Callable[[], bool]) -> None:
        with self.moved:
            for _ in range(int(WAIT_S / 0.01)):
                if holds():
                    return
                self.moved.wait(0.01)
        pytest.fail(f"not within {WAIT_S} s")

    def change(self, newcomer: int | None = None) -> Resume:
        """Lose the switch's memory and perhaps a member, and go on in another generation."""
        with self.changing:
            return self._change(newcomer)

    def _change(self, newcomer: int | None) -> Resume:
        self.switch.aggregator = Aggregator()
        staying = [member for member in self.members if member.rank != newcomer]
        reports = {member.rank: member.transport.seal() for member in staying}
        assert {member.transport.seal() for member in staying} == set(reports.values()), "sealed is sealed"
        self.generation += 1
        news = [] if newcomer is None else [newcomer]
        resume = decide(reports, news, self.generation, SLOTS, None)
        if newcomer is not None:
            self.members[newcomer] = Member(self, newcomer, resume)
            self.addresses = {member.rank: member.channel.address for member in self.members}
            self.open(self.members[newcomer])
        for member in staying:
            member.transport.resume(self.generation, self.addresses, resume, key=key_of(self.generation))
        self.admit()
        return resume


def given(rank: int, first: int) -> NDArray[np.uint8]:
    values = np.random.default_rng([rank, first]).integers(0, 1 << 30, (CHUNKS, 256), dtype=np.uint32)
    return values.astype(">u4").view(np.uint8)


def expected(first: int) -> NDArray[np.uint32]:
    total: NDArray[np.uint32] = sum(given(rank, first).view(">u4").astype(np.uint32) for rank in range(RANKS))
    return total


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_the_switch_forgets_while_all_reduces_run(stack: ExitStack) -> None:
    job = Job(stack)
    for member in job.members[:2]:
        member.start(8 * CHUNKS)
    job.wait(lambda: all(member.transport.worker.statistics.updates >= SLOTS for member in job.members[:2]))
    listening = [member.channel.address for member in job.members]
    job.change()
    job.members[2].start(8 * CHUNKS)
    job.wait(lambda: len(job.members[0].done) >= 2)
    job.change()
    job.change()
    for member in job.members:
        member.join()
        assert member.failure is None
        assert sorted(member.done) == list(range(0, 8 * CHUNKS, CHUNKS))
        for first, event in member.done.items():
            np.testing.assert_array_equal(event.results.view(">u4"), expected(first))
            assert (event.contributors == 0b111).all()
    assert [member.channel.address for member in job.members] == listening
    assert all(member.transport.worker.membership.generation == 10 for member in job.members)
    assert all(not member.transport.statistics.side.closed for member in job.members)


def test_a_member_is_replaced_and_gets_the_state(stack: ExitStack) -> None:
    job = Job(stack)
    for member in job.members:
        member.start(2 * CHUNKS)
    for member in job.members:
        member.join()
    staying = job.members[:2]
    for member in staying:
        member.start(4 * CHUNKS)
    job.wait(lambda: all(member.transport.worker.stream.end == 3 * CHUNKS for member in staying))
    job.members[2].transport.close(linger=False)
    resume = job.change(newcomer=2)
    assert (resume.start, resume.replaced) == (3 * CHUNKS, (2,))
    for member in staying:
        member.join()
        assert isinstance(member.failure, WorkersReplacedError)
        assert member.failure.ranks == (2,)
        with pytest.raises(WorkersReplacedError, match=r"rank 2 was replaced.*in generation 8"):
            member.transport.submit(Op.ADD32, given(member.rank, 0))
    newcomer = job.members[2]
    with pytest.raises(HopsumError, match=r"rank 2 has not got the state .* within 0\.3 s: no worker has offered"):
        newcomer.transport.fetch_state(8, 0.3)
    states: list[bytes] = []
    fetching = threading.Thread(target=lambda: states.append(newcomer.transport.fetch_state(8, WAIT_S)))
    fetching.start()
    for member in staying:
        member.transport.offer_state(STATE, 8, {2: 8})
        member.transport.go_on(8, 3 * CHUNKS)
        member.failure = None
        member.start(5 * CHUNKS)
    fetching.join(WAIT_S)
    assert states == [STATE]
    newcomer.start(5 * CHUNKS)
    for member in job.members:
        member.join()
        assert member.failure is None
    for first in (3 * CHUNKS, 4 * CHUNKS):
        for member in job.members:
            np.testing.assert_array_equal(member.done[first].results.view(">u4"), expected(first))
    assert 2 * CHUNKS not in newcomer.done
    assert len(staying[0].transport._states._offers) == 0, "taken"


def test_a_state_that_nobody_offers_any_more(stack: ExitStack) -> None:
    """A newcomer waits for a state, and others are replaced meanwhile."""
    job = Job(stack)
    job.members[2].transport.close(linger=False)
    job.change(newcomer=2)
    failures: list[BaseException] = []

    def fetch() -> None:
        try:
            job.members[2].transport.fetch_state(8, WAIT_S)
        except StateMovedError as failure:
            failures.append(failure)

    waiting = threading.Thread(target=fetch)
    waiting.start()
    job.members[1].transport.close(linger=False)
    job.change(newcomer=1)
    waiting.join(WAIT_S)
    assert [str(failure) for failure in failures] == [
        "rank 2 waits for a state of generation 8, and others began since"
    ]


def test_closing_ends_a_wait_for_a_state(stack: ExitStack) -> None:
    job = Job(stack)
    failures: list[BaseException] = []

    def fetch() -> None:
        try:
            job.members[0].transport.fetch_state(7, WAIT_S)
        except HopsumError as failure:
            failures.append(failure)

    waiting = threading.Thread(target=fetch)
    waiting.start()
    job.members[0].transport.close(linger=False)
    waiting.join(WAIT_S)
    (failure,) = failures
    assert str(failure) == "rank 0 was closed while it waited for the state of another worker"


def test_a_change_that_does_not_fit_changes_nothing(stack: ExitStack) -> None:
    job = Job(stack)
    transport, fits = job.members[0].transport, Resume(0, None, 0, None, (), ())
    with pytest.raises(ValueError, match="once it is sealed"):
        transport.resume(8, job.addresses, fits, key=key_of(8))
    report = transport.seal()
    with pytest.raises(ValueError, match=r"no side channel address for ranks \[2\]"):
        transport.resume(8, {1: (LOCALHOST, 1)}, fits, key=key_of(8))
    with pytest.raises(ValueError, match="a multiple of the slots"):
        transport.resume(8, job.addresses, Resume(2, None, 0, None, (), ()), key=key_of(8))
    assert transport.seal() == report
    assert (transport.worker.phase, transport.worker.membership.generation) == (WorkerPhase.SEALED, 7)
    transport.resume(8, job.addresses, fits, key=key_of(8))
    assert (transport.worker.phase, transport.worker.membership.generation) == (WorkerPhase.RUN, 8)
