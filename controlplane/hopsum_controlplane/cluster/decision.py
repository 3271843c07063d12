# SPDX-License-Identifier: Apache-2.0
"""The decision how a job's stream continues in a new generation, from the workers' reports of the last one.

It is pure (rules E2, E3, E4)::


    base       no position before it is of interest: the lowest that somebody has not delivered, down to a multiple of
               the slots, so that rounds begin at 1 again (N4)
    decided    results that stay: what anybody holds, with some who do. Everything else is summed again
    start      with newcomers, who have no report: where their streams begin. Behind everything that any other worker
               has submitted, so all workers agree on what comes there. What is before it and not decided is void

    too late   who lacks what another delivered and nobody has any more, as who had it gave up on stragglers: what is
               summed again would be a second result. So it is out, and may come back as a newcomer

A worker may miss the generation that had newcomers, because it ended before the worker was notified. It must void
what the others voided there: as long as such a worker is left, the `start` goes with every decision.

Positions are those of the job's stream, which go on from generation to generation. Runs of them are first .. end - 1.
The slots
are those that workers use: as many as their window.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from hopsum_controlplane.errors import InvalidRequestError
from hopsum_controlplane.resource_allocator import MAX_GENERATION
from hopsum_wire.generations import Decided, Resume, Sealed

MAX_RUNS = 4096
"""The most runs in one report. Results are missing in the window only, which has as many positions as the job has
slots."""
MAX_DECIDED = 8192
"""Runs in one decision, which is told in one message."""
MAX_POSITION = (1 << 63) - 1
NAMED = 4
"""The largest number of holders of a run that are named."""
_FEW = 1024
"""The number of decided runs above which neighbours with any common holder are joined: fewer holders are named then."""

Run = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Report(Sealed):
    """The report of a worker on a generation that it has sealed, as the controller takes it from a JOIN."""

    allreduces_begun: int = 0
    """All-reduces of vectors that the worker has begun since the job's first generation, told with shard 0."""
    # Narrowed, so that what the database returns equals what a JOIN said.
    further_shards: tuple[Report, ...] = field(default=(), kw_only=True)

    def check(self) -> None:
        """Raise InvalidRequestError naming the first thing that is wrong, with its numbers."""
        if not 1 <= self.generation <= MAX_GENERATION:
            raise _wrong(f"generation {self.generation}", f"generations are 1 .. {MAX_GENERATION}")
        if not 0 <= self.delivered_to <= self.submitted_to <= MAX_POSITION:
            what = f"positions delivered to {self.delivered_to}, submitted to {self.submitted_to}"
            raise _wrong(what, f"0 <= delivered_to <= submitted_to <= {MAX_POSITION}")
        if not 0 <= self.allreduces_begun <= MAX_POSITION:
            raise _wrong(f"{self.allreduces_begun} all-reduces", f"they are 0 .. {MAX_POSITION}")
        if len(self.held) > MAX_RUNS:
            raise _wrong(f"{len(self.held)} runs of results", f"join those that touch: at most {MAX_RUNS}")
        before = 0
        for first, end in self.held:
            if not before <= first < end <= self.submitted_to:
                what = f"a run of results {first} .. {end} after {before}, submitted to {self.submitted_to}"
                raise _wrong(what, "runs are sorted, disjoint, not empty, and submitted")
            before = end
        for shard in self.further_shards:
            Report.of(shard).check()
            if shard.generation != self.generation or shard.further_shards:
                raise _wrong(f"generation {shard.generation} at a shard, {self.generation} at shard 0", "name one")

    @classmethod
    def of(cls, sealed: Sealed) -> Report:
        """Return a report without the count of all-reduces."""
        positions = (sealed.generation, sealed.delivered_to, sealed.submitted_to)
        return cls(*positions, sealed.held, further_shards=tuple(map(cls.of, sealed.further_shards)))

    def at(self, shard: int) -> Report:
        """Return the part of the report for one shard, with the count of all-reduces."""
        held = self if shard == 0 else self.further_shards[shard - 1]
        return Report(held.generation, held.delivered_to, held.submitted_to, held.held, self.allreduces_begun)


def decide(
    reports: Mapping[int, Report], newcomers: Collection[int], *, slots: int, generation: int, before: Resume | None
) -> Resume | None:
    """Decide how a job's stream continues in `generation`, from reports by rank and the ranks without a report.

    `before` is how the last generation that ran with newcomers went on, None when there was none. Returns None
    without any report: the stream begins at 0. Every shard's stream is decided by itself. Newcomers begin at all of
    them after the same all-reduce, since a worker submits to all shards or to none.
    """
    if not reports:
        return None
    first, *further = [
        _decide(of_shard, newcomers, slots, generation, past) for of_shard, past in _by_shard(reports, before)
    ]
    return replace(first, further_shards=tuple(further))


def _by_shard(
    reports: Mapping[int, Report], resume: Resume | None = None
) -> list[tuple[dict[int, Report], Resume | None]]:
    """Split reports, and a decision of the past, into those of each shard."""
    shards = 1 + len(next(iter(reports.values())).further_shards)
    past = [None] * shards if resume is None else [replace(resume, further_shards=()), *resume.further_shards]
    return [({rank: report.at(n) for rank, report in reports.items()}, past[n]) for n in range(shards)]


def _decide(
    reports: Mapping[int, Report], newcomers: Collection[int], slots: int, generation: int, before: Resume | None
) -> Resume:
    """Decide how the stream of one shard continues."""
    base = base_of(reports.values(), slots)
    decided = decided_runs(reports, base)
    # A worker that missed the generation with newcomers has not voided what the others voided there.
    missed = before is not None and any(report.generation < before.start_generation for report in reports.values())
    carried = before if missed else None
    if newcomers:
        # Behind everything that anybody has submitted: only there do all workers agree on what comes.
        start = max(report.submitted_to for report in reports.values())
        allreduces = max(report.allreduces_begun for report in reports.values())
        replaced = {*newcomers, *(carried.replaced if carried is not None else ())}
        return Resume(base, start, generation, allreduces, tuple(sorted(replaced)), decided)
    if carried is not None:
        return Resume(base, carried.start, carried.start_generation, carried.allreduces, carried.replaced, decided)
    return Resume(base, None, 0, None, (), decided)


def base_of(reports: Iterable[Report], slots: int) -> int:
    """Return the lowest position that some worker has not delivered, down to a multiple of the slots."""
    # A multiple of the slots, so that the first round of the new generation is round 1 in every slot (rule N4).
    return min(report.delivered_to for report in reports) // slots * slots


def decided_runs(reports: Mapping[int, Report], base: int) -> tuple[Decided, ...]:
    """Return the runs that any worker holds from `base` on, each with up to NAMED of its lowest holders."""
    pieces = list(_pieces(reports, base))
    # Runs with the same named holders are joined: they say the same. Where too many are left, any common holder will
    # do.
    exact = _joined(pieces, lambda a, b: a & b if _named(a) == _named(b) else 0)
    found = exact if len(exact) <= _FEW else _joined(pieces, lambda a, b: a & b)
    return tuple(Decided(first, end, _named(holders)) for first, end, holders in found)


def too_late(reports: Mapping[int, Report], before: Resume | None) -> tuple[int, ...]:
    """Return the ranks that lack a result for good, at any shard. `before` is as in `decide`."""
    if not reports:
        return ()
    return tuple(sorted({rank for each in _by_shard(reports, before) for rank in _too_late(*each)}))


def _too_late(reports: Mapping[int, Report], before: Resume | None) -> tuple[int, ...]:
    # Only positions between the slowest and the fastest worker can be lacking for good.
    lowest = min(report.delivered_to for report in reports.values())
    highest = max(report.delivered_to for report in reports.values())
    summed = [(0, MAX_POSITION)]
    # Positions that were void in `before` count as delivered, though nobody holds a result of them.
    if before is not None and before.start is not None:
        summed = [*((run.first, run.end) for run in before.decided), (before.start, MAX_POSITION)]
    lost = _last_of(_gaps(decided_runs(reports, lowest), lowest, highest), summed)
    return tuple(sorted(rank for rank, report in reports.items() if report.delivered_to <= lost))


def _gaps(decided: Iterable[Decided], first: int, end: int) -> list[Run]:
    """Return the runs of first .. end - 1 that are not decided."""
    gaps = []
    for run in decided:
        if first < min(run.first, end):
            gaps.append((first, min(run.first, end)))
        first = max(first, run.end)
    return [*gaps, (first, end)] if first < end else gaps


def _last_of(some: Sequence[Run], others: Sequence[Run]) -> int:
    """Return the last position that is in a run of both, which are sorted, or -1 for none."""
    starts = [first for first, _ in others]
    for first, end in reversed(some):
        at = bisect_left(starts, end) - 1
        if at >= 0 and others[at][1] > first:
            return min(end, others[at][1]) - 1
    return -1


def check_together(reports: Mapping[int, Report], slots: int) -> None:
    """Raise InvalidRequestError when more runs of a shard would be decided than one message tells."""
    for of_shard, _ in _by_shard(reports):
        # Runs are only ever joined: fewer runs held than the limit need no look.
        if sum(len(report.held) for report in of_shard.values()) <= MAX_DECIDED:
            continue
        decided = len(decided_runs(of_shard, base_of(of_shard.values(), slots)))
        if decided > MAX_DECIDED:
            what = f"{decided} runs of results together with those of {len(reports) - 1} other workers"
            raise _wrong(what, f"at most {MAX_DECIDED} can be told: join without a report, as a newcomer")


_Piece = tuple[int, int, int]
"""First, end, and the holders: bit r for rank r."""


def _pieces(reports: Mapping[int, Report], base: int) -> Iterator[_Piece]:
    """Yield, in their order, the longest runs that the same workers hold."""
    # The end of a run sorts before the beginning of one that touches it: False before True.
    events: list[tuple[int, bool, int]] = []
    for rank, report in reports.items():
        for first, end in report.held:
            if end > base:
                events += [(max(first, base), True, 1 << rank), (end, False, 1 << rank)]
    holders, since = 0, 0
    for position, begins, bit in sorted(events):
        if holders and position > since:
            yield since, position, holders
        holders, since = (holders | bit if begins else holders & ~bit), position


def _joined(pieces: Iterable[_Piece], common: Callable[[int, int], int]) -> list[_Piece]:
    """Return the pieces with those that touch joined, where there are holders that they have in `common`."""
    joined: list[_Piece] = []
    for first, end, holders in pieces:
        both = common(joined[-1][2], holders) if joined and joined[-1][1] == first else 0
        if both:
            joined[-1] = (joined[-1][0], end, both)
        else:
            joined.append((first, end, holders))
    return joined


def _named(holders: int) -> tuple[int, ...]:
    return tuple(islice((rank for rank in range(holders.bit_length()) if holders >> rank & 1), NAMED))


def _wrong(what: str, hint: str) -> InvalidRequestError:
    return InvalidRequestError(f"report: {what}", hint=hint)
