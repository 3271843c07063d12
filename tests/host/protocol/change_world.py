# SPDX-License-Identifier: Apache-2.0
"""Workers through changes of generation on a bad network: the switch restarts, members are replaced, changes
interrupted.

The controller here is as small as one can be: it removes the old generation, has everybody seal, each at its own time,
decides, and lets everybody resume, each at its own time; the switch admits the new generation at any time from then on.
A fault may come at any moment of that, and all begins again. What a worker submits at a position depends on the
position, on its rank and on which worker of that rank it is, so that every sum can be told.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from hopsum.errors import WorkersReplacedError
from hopsum.protocol.peer_messages import PeerMessage
from hopsum.protocol.worker import AllReduceDone, AllReduceFailed, Membership, RepairPolicy, Worker
from hopsum_oracle.aggregator import Aggregator
from hopsum_wire import Op
from hopsum_wire.generations import Decided, Resume, Sealed

from .early import EarlyBook, Unfilled
from .jobs import job
from .network import Network, Weather
from .repair_world import PEER_DELAY_S, POLICY, STEPS_MAX, TIMING, UNION

LAG_S = 0.2
"""Within this time after each other workers hear of a change, of a generation, and stand still."""


@dataclass(frozen=True)
class Plan:
    """What happens to a job."""

    loss: float
    workers: int = 3
    slots: int = 2
    quorum_below: int = 0
    flush_after_s: float | None = None
    faults: int = 3
    replaced: float = 0.4
    """Probability that a fault takes a worker; else the switch restarts."""
    positions: int = 60
    policy: RepairPolicy = POLICY
    breaks: float = 0.02
    goes_without: float = 0.0
    """Probability that a generation begins without a rank that has no worker (M1, M2)."""


@dataclass
class Seat:
    """A rank, and who has it now."""

    rank: int
    incarnation: int = 0
    worker: Worker | None = None
    begin: int = 0
    resume: Resume | None = None
    entered: int = 0
    """The last generation that its worker began."""
    stands_to: float = 0.0
    handles: dict[int, int] = field(default_factory=dict)
    """By handle, the first position."""
    outcomes: dict[int, AllReduceDone | AllReduceFailed] = field(default_factory=dict)
    """By first position."""
    unfilled: list[Unfilled] = field(default_factory=list)
    book: EarlyBook = field(default_factory=EarlyBook)


def decide(
    reports: dict[int, Sealed], newcomers: list[int], generation: int, slots: int, before: Resume | None
) -> Resume:
    """Return how a generation goes on; `before`: of a generation with newcomers that not everybody has begun, else
    None.
    """
    base = min(report.delivered_to for report in reports.values()) // slots * slots
    holders: dict[int, list[int]] = {}
    for rank, report in sorted(reports.items()):
        for first, end in report.held:
            for position in range(max(first, base), end):
                holders.setdefault(position, []).append(rank)
    runs: list[Decided] = []
    for position, ranks in sorted(holders.items()):
        if runs and runs[-1].end == position and runs[-1].ranks == tuple(ranks):
            runs[-1] = Decided(runs[-1].first, position + 1, tuple(ranks))
        else:
            runs.append(Decided(position, position + 1, tuple(ranks)))
    if newcomers:
        start = max(report.submitted_to for report in reports.values())
        return Resume(base, start, generation, 0, tuple(newcomers), tuple(runs))
    if before is None:
        return Resume(base, None, 0, None, (), tuple(runs))
    return Resume(base, before.start, before.start_generation, before.allreduces, before.replaced, tuple(runs))


class ChangeWorld:
    """One job, from its first position to its last; `run` ends when every worker has been through all of it."""

    def __init__(self, seed: int, plan: Plan) -> None:
        self.seed, self.plan, self.rng = seed, plan, random.Random(seed)
        self.fill_rng = random.Random(seed)
        self.network = Network(self.rng, Weather(drop=plan.loss, duplicate=0.1))
        self.switch = Aggregator()
        self.seats = [Seat(rank) for rank in range(plan.workers)]
        self.generation = 6
        self.change = 0
        """Counts changes: what an interrupted one had still to do is not done."""
        self.faults_left = plan.faults
        self.reports: dict[int, Sealed | None] = {}
        self.pending: Resume | None = None
        """Of a generation with newcomers that somebody may not have begun."""
        self.begins: dict[int, list[int]] = {rank: [0] for rank in range(plan.workers)}
        """By rank, where its workers began."""
        self.absent: frozenset[int] = frozenset()
        self.members: set[frozenset[int]] = set()
        """The workers of each generation so far."""
        self.interrupted = 0
        self._arrives_at: dict[tuple[int, int], float] = {}
        self._begin(None, sorted(range(plan.workers)))
        time = 0.0 if plan.replaced else LAG_S  # who has not begun when the first generation ends begins as a newcomer
        for _ in range(plan.faults):
            time += self.rng.random() * self.rng.choice([LAG_S, 2 * LAG_S, 1.0, 3.0])
            self.network.later(time, self._fault)

    # ---- the controller -------------------------------------------------------------------------------

    def _fault(self) -> None:
        """Let something happen that takes another generation."""
        self.faults_left -= 1
        if self.rng.random() < self.plan.replaced:
            self._kill(self.rng.choice(self.seats))
        else:
            self.switch = Aggregator()
        for old in list(self.switch.jobs):
            self.switch.remove_job(old)
        self.change += 1
        self.reports = {}
        for seat in self.seats:
            self._soon(partial(self._report, seat))

    def _kill(self, seat: Seat) -> None:
        others = [other for other in self.seats if other is not seat and other.worker is not None]
        if not others:  # somebody has to know the job
            return
        seat.worker, seat.outcomes, seat.handles, seat.entered = None, {}, {}, 0
        seat.unfilled, seat.book = [], EarlyBook()
        seat.incarnation += 1

    def _soon(self, what: partial[None]) -> None:
        """Do a step of this change some time from now, unless another one has begun then."""
        change = self.change

        def do() -> None:
            if change == self.change:
                what()

        self.network.later(self.network.now + self.rng.choice([0.02, 1.0]) * self.rng.uniform(0, LAG_S), do)

    def _report(self, seat: Seat) -> None:
        self.reports[seat.rank] = None if seat.worker is None else seat.worker.seal()
        if len(self.reports) == len(self.seats):
            self._decide()

    def _decide(self) -> None:
        reports = {rank: report for rank, report in self.reports.items() if report is not None}
        newcomers = sorted(set(range(self.plan.workers)) - set(reports))
        if self.pending is not None and all(seat.entered == self.generation for seat in self.present):
            self.pending = None
        if not reports:  # a fault before anybody began
            self._begin(None, newcomers)
            return
        self.absent = frozenset(rank for rank in newcomers if self.rng.random() < self.plan.goes_without)
        newcomers = [rank for rank in newcomers if rank not in self.absent]
        self.interrupted += any(report.generation != self.generation for report in reports.values())
        resume = decide(reports, newcomers, self.generation + 1, self.plan.slots, self.pending)
        self.pending = resume if resume.start is not None else None
        self._begin(resume, newcomers)

    def _begin(self, resume: Resume | None, newcomers: list[int]) -> None:
        self.generation += 1
        self.members.add(frozenset(seat.rank for seat in self.present))
        for seat in self.present:
            self._soon(partial(self._enter, seat, self.generation, resume, seat.rank in newcomers))
        quorum = max(1, len(self.present) - self.plan.quorum_below)
        admitted = job(self.generation, self.plan.workers, slots=self.plan.slots, quorum=quorum)
        admitted = replace(admitted, workers=tuple(each for each in admitted.workers if each.rank not in self.absent))
        self._soon(partial(self.switch.add_job, admitted))

    def _enter(self, seat: Seat, generation: int, resume: Resume | None, is_new: bool) -> None:
        now = self.network.now
        if is_new:
            own = Membership(generation, seat.rank, self.plan.workers, self.plan.slots, absent=self.absent)
            timing = replace(TIMING, flush_after_s=self.plan.flush_after_s)
            seat.worker = Worker(own, timing, repair=self.plan.policy, resume=resume)
            seat.begin = seat.worker.stream.end
            self.begins[seat.rank] += [seat.begin] * (seat.incarnation - len(self.begins[seat.rank]) + 1)
            self.begins[seat.rank][seat.incarnation] = seat.begin
        elif resume is not None and seat.worker is not None:
            seat.worker.resume(generation, resume, now, absent=self.absent)
        seat.resume, seat.entered = resume, generation
        if self.rng.random() < 0.3:
            seat.stands_to = now + self.rng.uniform(0, 3 * LAG_S)

    # ---- the workers ----------------------------------------------------------------------------------

    @property
    def present(self) -> list[Seat]:
        """Return the seats of this generation's workers."""
        return [seat for seat in self.seats if seat.rank not in self.absent]

    @property
    def goes_on(self) -> bool:
        """Something is still to happen, or some worker has not been through all of the stream."""
        if self.faults_left or any(seat.entered != self.generation for seat in self.present):
            return True
        return any(
            seat.worker is None
            or not seat.worker.runs
            or seat.worker.stream.end < self.plan.positions
            or len(seat.outcomes) < len(seat.handles)
            for seat in self.present
        )

    def run(self) -> None:
        for _ in range(STEPS_MAX):
            timers = [timer for seat in self.seats for timer in self._serve(seat)]
            if not self.goes_on:
                return
            self.network.step(min(timers, default=None))
            for seat in self.seats:
                if seat.worker is not None and not self._stands(seat):
                    seat.worker.handle_timer(self.network.now)
        raise AssertionError(f"not done after {STEPS_MAX} steps: {[len(seat.outcomes) for seat in self.seats]}")

    def _stands(self, seat: Seat) -> bool:
        return self.network.now < seat.stands_to

    def _serve(self, seat: Seat) -> list[float]:
        """Take the events of a worker, submit what comes next, send what it wants; return when to come back."""
        if seat.worker is None:
            return []
        if self._stands(seat):
            return [seat.stands_to]
        each, now = seat.worker, self.network.now
        seat.book.look(each)
        while (event := each.next_event()) is not None:
            if isinstance(event, AllReduceDone):
                seat.book.end(event)
            assert isinstance(event, AllReduceDone) or isinstance(event.error, WorkersReplacedError), event.error
            assert seat.handles[event.handle] not in seat.outcomes, "one end each"
            seat.outcomes[seat.handles[event.handle]] = event
        again = [now + 0.02] if self._submit(seat, each) or self._fill(seat, each) else []
        for datagram in each.datagrams_to_send(now):
            self.network.send(partial(self._at_switch, seat.rank, bytes(datagram)))
        for to, message in each.messages_to_peers():
            self._say(to, message)
        if (done := each.done_for_peers()) is not None and self.rng.random() < 0.5:  # see repair_world.py
            for to in range(self.plan.workers):
                if to != seat.rank:
                    self._say(to, done)
        timer = each.get_timer()
        return again if timer is None else [*again, timer]

    def _submit(self, seat: Seat, each: Worker) -> bool:
        """Submit what comes next; say whether the program has still to go on with newcomers."""
        if not each.runs:
            return False
        while each.stream.end < self.plan.positions and len(seat.handles) - len(seat.outcomes) < 2:
            first = each.stream.end
            op, chunks = self.shape(first)
            given = np.array([self.given(seat.rank, seat.incarnation, first + at) for at in range(chunks)])
            payloads = given.astype(">u4").view(np.uint8)
            ready = self.fill_rng.choice([chunks, chunks // 2, chunks - 1])
            try:
                handle = each.submit(op, payloads, now=self.network.now, ready=ready)
            except WorkersReplacedError:
                assert seat.resume is not None
                if self.rng.random() < 0.7:
                    return True
                each.go_on(each.join_point.generation, each.join_point.start)
            else:
                seat.handles[handle] = first
                if ready < chunks:
                    seat.unfilled.append(Unfilled(handle, payloads[ready:]))
        return False

    def _fill(self, seat: Seat, each: Worker) -> bool:
        """Let payloads come that were not there; say whether some are still to come."""
        if each.runs and seat.unfilled and self.fill_rng.random() < 0.7:
            handle, payloads = seat.unfilled.pop(0)
            chunks = self.fill_rng.randint(1, len(payloads))
            each.fill(handle, payloads[:chunks])
            if len(payloads) > chunks:
                seat.unfilled.insert(0, Unfilled(handle, payloads[chunks:]))
        return bool(seat.unfilled)

    def shape(self, first: int) -> tuple[Op, int]:
        """Return op and chunks of the exchange at a position: the same on all ranks."""
        rng = random.Random(f"{self.seed} {first}")
        return rng.choice(list(UNION)), rng.randint(1, 9)

    def given(self, rank: int, incarnation: int, position: int) -> NDArray[np.uint32]:
        """Return a contribution."""
        number = random.Random(f"{self.seed} {rank} {incarnation} {position}").getrandbits(31)
        return np.full(256, number, np.uint32)

    def _at_switch(self, rank: int, data: bytes) -> None:
        self.network.through(self.switch, rank, data, self._at_host)

    def _at_host(self, rank: int, reply: bytes) -> None:
        seat = self.seats[rank]
        if seat.worker is not None and not self._stands(seat):
            seat.worker.receive_datagram(reply, self.network.now)

    def _say(self, to: int, message: PeerMessage) -> None:
        if self.rng.random() < self.plan.breaks:
            return
        way = (message.sender, to)
        arrival = max(self._arrives_at.get(way, 0.0), self.network.now + self.rng.uniform(0, PEER_DELAY_S))
        self._arrives_at[way] = arrival
        self.network.later(arrival, partial(self._hear, to, message))

    def _hear(self, to: int, message: PeerMessage) -> None:
        seat = self.seats[to]
        if self._stands(seat):
            self.network.later(seat.stands_to, partial(self._hear, to, message))
        elif seat.worker is not None:
            seat.worker.receive_peer(PeerMessage.unpack(message.pack()), self.network.now)

    # ---- laws -----------------------------------------------------------------------------------------

    def check(self) -> None:
        """What living workers have is the same, exchange by exchange, and each sum is that of its contributors."""
        for first in sorted({first for seat in self.seats for first in seat.outcomes}):
            here = [seat for seat in self.present if seat.begin <= first]
            outcomes = [seat.outcomes.get(first) for seat in here]
            kinds = {type(outcome).__name__ for outcome in outcomes}
            assert len(kinds) == 1, f"position {first}: ranks {[seat.rank for seat in here]} have {kinds}"
            done = [outcome for outcome in outcomes if isinstance(outcome, AllReduceDone)]
            for event in done:
                assert np.array_equal(event.contributors, done[0].contributors), f"position {first}: contributors"
                assert np.array_equal(event.results, done[0].results), f"position {first}: results"
            if done:
                self._check_sums(first, done[0])

    def _check_sums(self, first: int, event: AllReduceDone) -> None:
        op, chunks = self.shape(first)
        lanes = event.results.view(">u4").astype(np.uint32)
        assert len(lanes) == chunks
        fewest = min(len(members) for members in self.members)
        least = 1 if self.plan.flush_after_s is not None else max(1, fewest - self.plan.quorum_below)
        all_are_in = self.plan.flush_after_s is None and not self.plan.quorum_below
        for chunk, contributors in enumerate(event.contributors.tolist()):
            inside = [rank for rank in range(self.plan.workers) if contributors >> rank & 1]
            assert len(inside) >= least, f"position {first + chunk}: {inside}"
            assert not all_are_in or frozenset(inside) in self.members, f"position {first + chunk}: {inside}"
            given = [self.given(rank, self._incarnation(rank, first + chunk), first + chunk) for rank in inside]
            expected = UNION[op].reduce(given, axis=0, dtype=np.uint32)
            assert np.array_equal(lanes[chunk], expected), f"position {first + chunk}: the sum of {inside}"

    def _incarnation(self, rank: int, position: int) -> int:
        return max(number for number, begin in enumerate(self.begins[rank]) if begin <= position)


def change_scenario(seed: int, plan: Plan) -> ChangeWorld:
    """Run a job through its faults, and check what its workers have."""
    world = ChangeWorld(seed, plan)
    world.run()
    world.check()
    return world
