# SPDX-License-Identifier: Apache-2.0
"""Workers with peers, oracles, and a controller as small as one can be, over a seeded bad network. Simulated time.

A channel between workers is in order and delayed, and now and then a connection breaks and takes with it what was on
the way. A stalled worker does not run its timers, and what the switch sends it is lost; what peers send it waits.

A fault takes another generation: a switch that restarts, or a worker that is replaced. The controller removes the old
generation, has everybody seal, each at its own time, decides, and lets everybody resume, each at its own time; the
switch admits the new generation at any time from then on. A fault may come at any moment of that, and all begins again.
What a worker submits at a position depends on the position, on its rank and on which worker of that rank it is, so that
every sum can be told.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopsum.errors import WorkersReplacedError
from hopsum.protocol.peer_messages import PeerKind, PeerMessage
from hopsum.protocol.worker import AllReduceDone, AllReduceFailed, Membership, RepairPolicy, Timing, Worker
from hopsum_oracle.aggregator import Aggregator, AggregatorConfig
from hopsum_wire import Op
from hopsum_wire.generations import Decided, Resume, Sealed
from hopsum_wire.payload import lanes

from .contributions import Values, draw, result_of
from .jobs import job
from .simulated_network import Fabric, Network, jobs_of

TIMING = Timing(retransmit_s=0.02, backoff=1.5, retransmit_max_s=0.2, deadline_s=600.0, retransmit_min_s=0.01)
POLICY = RepairPolicy(ask_after=2, unproved_max=2, straggler_s=500.0)
# DONE is told seldom: after half of so many all-reduces, or of so many bytes.
SELDOM = RepairPolicy(ask_after=2, unproved_max=12, unproved_bytes=24 << 10, straggler_s=500.0)
LAG_S = 0.2
"""Within this time after each other workers hear of a change, of a generation."""
PEER_DELAY_S = 0.01
LEAVE_EVERY_S = 0.1
LOOKS = 0.25
"""Probability that a program reads results early, each time that it is served."""


@dataclass(frozen=True)
class Plan:
    """The size of a job, and the mishaps that it meets."""

    loss: float = 0.1
    duplicate: float = 0.1
    straggle: float = 0.03
    delay_s: float = 0.01
    workers: int = 3
    racks: tuple[int, ...] = ()
    """Workers below each leaf, whose sum is `workers`. None: there is one switch."""
    slots: int = 2
    ops: tuple[Op, ...] = (Op.ADD32, Op.MAX32, Op.OR)
    positions: int = 60
    ahead: int = 2
    """All-reduces that a worker has submitted at a time."""
    filled_late: bool = True
    """Payloads may come some time after they were submitted."""
    timing: Timing = TIMING
    policy: RepairPolicy | None = POLICY
    """None: no worker has peers, and there are no faults."""
    quorum_below: int = 0
    """Workers that a sum does not wait for. In a tree leaves that it does not wait for."""
    leaf_quorum: int = 0
    """Of each leaf. 0: all."""
    min_quorum: int = 1
    """With FLUSH."""
    breaks: float = 0.02
    """Probability that a message between peers is lost with its connection."""
    stall_s: float = 0.3
    """How long one worker is stalled in each generation."""
    faults: int = 0
    replaced: float = 0.4
    """Probability that a fault takes a worker; else the switch restarts."""
    goes_without: float = 0.0
    """Probability that a generation begins without a rank that has no worker (M1, M2)."""
    steps: int = 60_000

    @property
    def ranks_below(self) -> tuple[tuple[int, ...], ...]:
        """Consecutive ranks below each leaf."""
        ends = np.cumsum(self.racks, dtype=int).tolist()
        return tuple(tuple(range(end - size, end)) for end, size in zip(ends, self.racks, strict=True))

    def fewest(self, workers: int) -> int:
        """Return how many of so many workers a sum has at least."""
        if self.timing.flush_after_s is not None:
            return min(self.min_quorum, *self.racks) if self.racks else self.min_quorum
        if not self.racks:
            return max(1, workers - self.quorum_below)
        below = min(self.racks)
        return (len(self.racks) - self.quorum_below) * min(self.leaf_quorum or below, below)


CALM: dict[str, Any] = {
    "loss": 0.0, "duplicate": 0.0, "straggle": 0.0, "delay_s": 0.001, "stall_s": 0.0, "filled_late": False
}  # fmt: skip
"""Of a plan in which nothing is sent twice."""


class Unfilled(NamedTuple):
    """The payloads of an all-reduce that a worker does not have yet."""

    handle: int
    payloads: NDArray[np.uint8]


@dataclass
class EarlyBook:
    """The results that one worker holds, by handle: none changes before the end, unless it was discarded."""

    read: dict[int, tuple[NDArray[np.bool_], NDArray[np.uint8], NDArray[np.uint64]]] = field(default_factory=dict)
    checked: int = 0
    discarded: int = 0

    def look(self, worker: Worker) -> None:
        """Read what is here of all that is in progress."""
        for reduce in worker.state.active:
            if reduce.discarded:
                self.discarded += self.read.pop(reduce.handle, None) is not None
                reduce.discarded = False
            self._compare(reduce.handle, reduce.results, reduce.contributors)
            self.read[reduce.handle] = (reduce.held.copy(), reduce.results.copy(), reduce.contributors.copy())

    def end(self, done: AllReduceDone) -> None:
        """Compare what was read with the results in the end."""
        self._compare(done.handle, done.results, done.contributors)
        self.checked += self.read.pop(done.handle, None) is not None

    def _compare(self, handle: int, results: NDArray[np.uint8], contributors: NDArray[np.uint64]) -> None:
        if handle in self.read:
            held, before, whose = self.read[handle]
            assert np.array_equal(results[held], before[held])
            assert np.array_equal(contributors[held], whose[held])


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
    stalled_until: float = 0.0
    leaves_at: float = 0.0
    handles: dict[int, int] = field(default_factory=dict)
    """By handle, the first position."""
    outcomes: dict[int, AllReduceDone | AllReduceFailed] = field(default_factory=dict)
    """By first position."""
    unfilled: list[Unfilled] = field(default_factory=list)
    book: EarlyBook = field(default_factory=EarlyBook)


def decide(
    reports: dict[int, Sealed], newcomers: list[int], generation: int, slots: int, before: Resume | None
) -> Resume:
    """Return how a generation continues.

    before: the Resume of a generation with newcomers that not everybody has begun, else None.
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


class World:
    """One job, from its first position to its last; `run` ends when every worker has been through all of it."""

    def __init__(
        self, seed: int, plan: Plan, make_switch: Callable[[AggregatorConfig], Aggregator] = Aggregator
    ) -> None:
        self.seed, self.plan, self.rng = seed, plan, random.Random(seed)
        self.fill_rng = random.Random(seed)
        self.network = Network(self.rng, plan.loss, plan.duplicate, plan.straggle, plan.delay_s)
        self.fabric = Fabric(self.network, plan.ranks_below, self._at_worker, make_switch)
        self.generation = 6
        self.change = 0
        """Counts changes: what an interrupted one had still to do is not done."""
        self.faults_left = plan.faults
        self.interrupted = 0
        self._said: list[tuple[int, PeerMessage]] = []
        """Every result that a worker sent to another one, with its receiver."""
        self._given: dict[tuple[int, int, int], tuple[Values, NDArray[np.uint8]]] = {}
        self._arrives_at: dict[tuple[int, int], float] = {}
        self.begin_anew()
        time = 0.0
        for _ in range(plan.faults):
            time += self.rng.random() * self.rng.choice([LAG_S, 2 * LAG_S, 1.0, 3.0])
            self.network.later(time, self._fault)

    def begin_anew(self) -> None:
        """End the job and begin it with workers that know nothing, on the same registers, with what was on its way.

        What workers sent to each other before comes once more, at any time.
        """
        plan = self.plan
        self.fabric.remove()
        self.seats = [Seat(rank) for rank in range(plan.workers)]
        self.reports: dict[int, Sealed | None] = {}
        self.pending: Resume | None = None
        """Of a generation with newcomers that somebody may not have begun."""
        self.begins: dict[int, list[int]] = {rank: [0] for rank in range(plan.workers)}
        """By rank, where its workers began."""
        self.absent: frozenset[int] = frozenset()
        self.members: set[frozenset[int]] = set()
        """The workers of each generation so far."""
        for to, message in self._said:
            self.network.later(self.network.now + self.rng.uniform(0, 1), partial(self._hear, to, message))
        self._said = []
        self._given = {}
        self._begin(None, list(range(plan.workers)))

    # ---- the controller -------------------------------------------------------------------------------

    def _fault(self) -> None:
        """Let something happen that takes another generation."""
        self.faults_left -= 1
        if self.rng.random() < self.plan.replaced:
            self._kill(self.rng.choice(self.seats))
        else:
            self.fabric.restart()
        self.fabric.remove()
        self.change += 1
        self.reports = {}
        for seat in self.seats:
            self._soon(partial(self._report, seat))

    def _kill(self, seat: Seat) -> None:
        others = [other for other in self.seats if other is not seat and other.worker is not None]
        if not others:  # somebody has to know the job
            return
        self.seats[seat.rank] = Seat(seat.rank, seat.incarnation + 1)

    def _soon(self, what: partial[None]) -> None:
        """Do a step of this change some time from now, unless another one has begun then. Of no change: now."""
        change = self.change

        def do() -> None:
            if change == self.change:
                what()

        if not change:
            do()
            return
        self.network.later(self.network.now + self.rng.choice([0.02, 1.0]) * self.rng.uniform(0, LAG_S), do)

    def _report(self, seat: Seat) -> None:
        worker = self.seats[seat.rank].worker
        self.reports[seat.rank] = None if worker is None else worker.seal()
        if len(self.reports) == len(self.seats):
            self._decide()

    def _decide(self) -> None:
        reports = {rank: report for rank, report in self.reports.items() if report is not None}
        newcomers = sorted(set(range(self.plan.workers)) - set(reports))
        if self.pending is not None and all(seat.entered == self.generation for seat in self.present):
            self.pending = None
        self.absent = frozenset(rank for rank in newcomers if self.rng.random() < self.plan.goes_without)
        newcomers = [rank for rank in newcomers if rank not in self.absent]
        self.interrupted += any(report.generation != self.generation for report in reports.values())
        resume = decide(reports, newcomers, self.generation + 1, self.plan.slots, self.pending)
        self.pending = resume if resume.start is not None else None
        self._begin(resume, newcomers)

    def _begin(self, resume: Resume | None, newcomers: list[int]) -> None:
        plan = self.plan
        self.generation += 1
        self.members.add(frozenset(seat.rank for seat in self.present))
        if plan.racks:
            jobs = jobs_of(
                self.generation, plan.ranks_below, slots=plan.slots, quorum=len(plan.racks) - plan.quorum_below,
                leaf_quorum=plan.leaf_quorum, min_quorum=plan.min_quorum,
            )  # fmt: skip
        else:
            quorum = max(1, len(self.present) - plan.quorum_below)
            one = job(
                self.generation, plan.workers, slots=plan.slots, quorum=quorum, min_quorum=min(plan.min_quorum, quorum)
            )
            jobs = [replace(one, workers=tuple(each for each in one.workers if each.rank not in self.absent))]
        self._soon(partial(self.fabric.admit, jobs))
        for seat in self.present:
            self._soon(partial(self._enter, seat.rank, self.generation, resume, seat.rank in newcomers))
        slow = self.rng.choice(self.present).rank
        self.network.later(self.network.now + self.rng.uniform(0, 0.05), partial(self._stall, slow))

    def _enter(self, rank: int, generation: int, resume: Resume | None, is_new: bool) -> None:
        plan, seat = self.plan, self.seats[rank]
        if is_new:
            own = Membership(generation, rank, plan.workers, plan.slots, absent=self.absent)
            seat.worker = Worker(own, plan.timing, repair=plan.policy, resume=resume)
            seat.begin = seat.worker.stream.end
            self.begins[rank] += [seat.begin] * (seat.incarnation - len(self.begins[rank]) + 1)
            self.begins[rank][seat.incarnation] = seat.begin
        elif resume is not None and seat.worker is not None:
            seat.worker.resume(generation, resume, self.network.now, absent=self.absent)
        seat.resume, seat.entered = resume, generation

    def _stall(self, rank: int) -> None:
        self.seats[rank].stalled_until = self.network.now + self.plan.stall_s

    # ---- the workers ----------------------------------------------------------------------------------

    @property
    def present(self) -> list[Seat]:
        """Return the seats of this generation's workers."""
        return [seat for seat in self.seats if seat.rank not in self.absent]

    @property
    def workers(self) -> list[Worker]:
        """Return who is there."""
        return [seat.worker for seat in self.seats if seat.worker is not None]

    @property
    def is_done(self) -> bool:
        """Whether nothing is still to happen, and all have been through all of the stream and have left."""
        if self.faults_left or any(seat.entered != self.generation for seat in self.present):
            return False
        return all(self._has_all(seat) and self._is_left(seat) for seat in self.present)

    def _has_all(self, seat: Seat) -> bool:
        worker, handles = seat.worker, len(seat.handles)
        if worker is None or not worker.runs:
            return False
        return worker.stream.end >= self.plan.positions and len(seat.outcomes) == handles

    def _is_left(self, seat: Seat) -> bool:
        """Whether all others have said LEAVE to a worker. Where there are faults none does."""
        repair = None if seat.worker is None else seat.worker.repair
        return bool(self.plan.faults) or repair is None or not repair.has_peers or repair.all_left

    def run(self) -> None:
        for _ in range(self.plan.steps):
            timers = [timer for seat in self.seats for timer in self._serve(seat)]
            if self.is_done:
                return
            self.network.step(min(timers, default=None))
            for seat in self.seats:
                if seat.worker is not None and not self._is_stalled(seat):
                    seat.worker.handle_timer(self.network.now)
        raise AssertionError(f"not done after {self.plan.steps} steps: {[len(seat.outcomes) for seat in self.seats]}")

    def _is_stalled(self, seat: Seat) -> bool:
        return self.network.now < seat.stalled_until

    def _serve(self, seat: Seat) -> list[float]:
        """Take the events of a worker, submit what comes next, send what it wants; return when to come back."""
        if seat.worker is None:
            return []
        if self._is_stalled(seat):
            return [seat.stalled_until]
        each, now = seat.worker, self.network.now
        if self.fill_rng.random() < LOOKS:
            seat.book.look(each)
        while (event := each.next_event()) is not None:
            if isinstance(event, AllReduceDone):
                seat.book.end(event)
            assert isinstance(event, AllReduceDone) or isinstance(event.error, WorkersReplacedError), (
                f"rank {seat.rank}: {event.error}"
            )
            assert seat.handles[event.handle] not in seat.outcomes, "one end each"
            seat.outcomes[seat.handles[event.handle]] = event
        again = [now + 0.02] if self._submit(seat, each) or self._fill(seat, each) else []
        if each.repair.has_peers and not self.plan.faults and self._has_all(seat):
            if now >= seat.leaves_at:
                each.repair.leave(finished=True)
                seat.leaves_at = now + LEAVE_EVERY_S
            again.append(seat.leaves_at)
        for datagram in each.datagrams_to_send(now):
            self.network.send(partial(self.fabric.from_worker, seat.rank, bytes(datagram)))
        for to, message in each.messages_to_peers():
            self._say(to, message)
        # What may be told later has half a chance only: then the next DONE takes its place, or a question brings it.
        if (done := each.done_for_peers()) is not None and self.rng.random() < 0.5:
            for to in range(self.plan.workers):
                if to != seat.rank:
                    self._say(to, done)
        timer = each.get_timer()
        return again if timer is None else [*again, timer]

    def _submit(self, seat: Seat, each: Worker) -> bool:
        """Submit what comes next; say whether the program has still to continue with newcomers."""
        if not each.runs:
            return False
        while each.stream.end < self.plan.positions and len(seat.handles) - len(seat.outcomes) < self.plan.ahead:
            first = each.stream.end
            op, chunks = self.shape(first)
            given = [self.given(op, seat.rank, seat.incarnation, first + at)[1] for at in range(chunks)]
            payloads = np.concatenate(given)
            ready = self.fill_rng.choice([chunks, chunks // 2, chunks - 1]) if self.plan.filled_late else chunks
            try:
                handle = each.submit(op, payloads, now=self.network.now, ready=ready)
            except WorkersReplacedError:
                assert seat.resume is not None
                if self.rng.random() < 0.7:
                    return True
                each.resume_at(each.join_point.generation, each.join_point.start)
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
        """Return op and chunks of the all-reduce at a position: the same on all ranks."""
        rng = random.Random(f"{self.seed} {first}")
        return rng.choice(self.plan.ops), rng.randint(1, 9)

    def given(self, op: Op, rank: int, incarnation: int, position: int) -> tuple[Values, NDArray[np.uint8]]:
        """Return a contribution: its lanes or codes, and its payload."""
        key = rank, incarnation, position
        if key not in self._given:
            self._given[key] = draw(op, 1, np.random.default_rng([self.seed, self.generation, *key]))
        return self._given[key]

    def _at_worker(self, rank: int, reply: bytes) -> None:
        """Deliver to the worker that has that rank now."""
        seat = self.seats[rank]
        if seat.worker is not None and not self._is_stalled(seat):
            seat.worker.receive_datagram(reply, self.network.now)

    def _say(self, to: int, message: PeerMessage) -> None:
        if message.kind is PeerKind.FOUND and not self.plan.faults:
            self._said.append((to, message))
        if self.rng.random() < self.plan.breaks:
            return
        way = (message.sender, to)
        arrival = max(self._arrives_at.get(way, 0.0), self.network.now + self.rng.uniform(0, PEER_DELAY_S))
        self._arrives_at[way] = arrival
        self.network.later(arrival, partial(self._hear, to, message))

    def _hear(self, to: int, message: PeerMessage) -> None:
        seat = self.seats[to]
        if self._is_stalled(seat):
            self.network.later(seat.stalled_until, partial(self._hear, to, message))
        elif seat.worker is not None:
            seat.worker.receive_peer(PeerMessage.unpack(message.pack()), self.network.now)

    # ---- laws -----------------------------------------------------------------------------------------

    def check(self) -> None:
        """What living workers have is the same, all-reduce by all-reduce, and each sum is that of its contributors."""
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
        got = lanes(op, event.results).astype(np.uint32)
        assert len(got) == chunks
        least = min(map(self.plan.fewest, map(len, self.members)))
        all_are_in = all(self.plan.fewest(len(members)) == len(members) for members in self.members)
        for chunk, contributors in enumerate(event.contributors.tolist()):
            inside = [rank for rank in range(self.plan.workers) if contributors >> rank & 1]
            assert len(inside) >= least, f"position {first + chunk}: {inside}"
            assert not all_are_in or frozenset(inside) in self.members, f"position {first + chunk}: {inside}"
            given = [self.given(op, rank, self._incarnation(rank, first + chunk), first + chunk) for rank in inside]
            expected = result_of(op, np.array([values[0] for values, _ in given]))
            assert np.array_equal(got[chunk], expected), f"position {first + chunk}: the sum of {inside}"

    def _incarnation(self, rank: int, position: int) -> int:
        return max(number for number, begin in enumerate(self.begins[rank]) if begin <= position)


def world_of(seed: int, plan: Plan, make_switch: Callable[[AggregatorConfig], Aggregator] = Aggregator) -> World:
    """Run a job to its end, through its faults, and check what its workers have."""
    world = World(seed, plan, make_switch)
    world.run()
    world.check()
    return world
