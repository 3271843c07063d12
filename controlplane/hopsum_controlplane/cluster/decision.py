# SPDX-License-Identifier: Apache-2.0
"""The decision about a job's stream in a new generation, from the workers' reports of the last one.

A pure function (rules E2, E3, E4) of the reports::

    base       the lowest position that some worker has not delivered, rounded down to a multiple of the slots, so that
               rounds begin at 1 again (N4)
    decided    positions whose result any worker holds, with some of the holders. All others are summed again
    start      with newcomers, which have no report: the first position of their streams, after all positions that any
               other worker has submitted, so that all workers agree on the positions from there on. Positions before
               it that are not decided are void

    too late   workers that lack a result which another worker delivered and no worker holds any more. A new sum would
               be a second, different result, so these workers are evicted, and may join as newcomers

A worker may miss the generation with newcomers, because that ended before the worker was notified. It must void the
positions that the others voided there: while such a worker is left, every decision has the `start`.

Positions continue from generation to generation. A run of positions is first .. end - 1. The slots are those in the
workers' window.
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
"""Most runs in one report. Results are missing only in the window, which has as many positions as the job has slots."""
MAX_DECIDED = 8192
"""Most runs in one decision, which is sent in one message."""
MAX_POSITION = (1 << 63) - 1
NAMED = 4
"""Most holders of a run in a decision."""
_FEW = 1024
"""The number of decided runs above which neighbours with any common holder are joined, which names fewer holders."""

Run = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Report(Sealed):
    """The report of a worker about a generation that it has sealed, from its JOIN."""

    allreduces_begun: int = 0
    """The number of all-reduces that the worker has begun since the job's first generation, in shard 0's report."""
    # Narrowed, so that a report from the database equals the report of the JOIN.
    further_shards: tuple[Report, ...] = field(default=(), kw_only=True)

    def check(self) -> None:
        """Raise InvalidRequestError for the first error, with its numbers."""
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
            Report.from_sealed(shard).check()
            if shard.generation != self.generation or shard.further_shards:
                raise _wrong(f"generation {shard.generation} at a shard, {self.generation} at shard 0", "name one")

    @classmethod
    def from_sealed(cls, sealed: Sealed) -> Report:
        """Return a Report with the positions and results of `sealed` at all shards, and 0 all-reduces."""
        positions = (sealed.generation, sealed.delivered_to, sealed.submitted_to)
        return cls(*positions, sealed.held, further_shards=tuple(map(cls.from_sealed, sealed.further_shards)))

    def for_shard(self, shard: int) -> Report:
        """Return the part of the report for one shard, without further shards, with shard 0's count of all-reduces."""
        held = self if shard == 0 else self.further_shards[shard - 1]
        return Report(held.generation, held.delivered_to, held.submitted_to, held.held, self.allreduces_begun)


def decide(
    reports: Mapping[int, Report], newcomers: Collection[int], *, slots: int, generation: int, before: Resume | None
) -> Resume | None:
    """Return the continuation of a job's stream in `generation`, from reports by rank and the ranks without a report.

    `before` is the continuation of the last generation with newcomers, None without one. Returns None without any
    report: the stream begins at 0. Each shard's stream has its own decision. Newcomers begin at all shards after the
    same all-reduce, because a worker submits to all shards or to none.
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
    return [({rank: report.for_shard(n) for rank, report in reports.items()}, past[n]) for n in range(shards)]


def _decide(
    reports: Mapping[int, Report], newcomers: Collection[int], slots: int, generation: int, before: Resume | None
) -> Resume:
    """Return the continuation of one shard's stream."""
    base = base_of(reports.values(), slots)
    decided = decided_runs(reports, base)
    # A worker that missed the generation with newcomers has not voided what the others voided there.
    missed = before is not None and any(report.generation < before.start_generation for report in reports.values())
    carried = before if missed else None
    if newcomers:
        # After all submitted positions: only from there on do all workers agree on the positions.
        start = max(report.submitted_to for report in reports.values())
        allreduces = max(report.allreduces_begun for report in reports.values())
        replaced = {*newcomers, *(carried.replaced if carried is not None else ())}
        return Resume(base, start, generation, allreduces, tuple(sorted(replaced)), decided)
    if carried is not None:
        return Resume(base, carried.start, carried.start_generation, carried.allreduces, carried.replaced, decided)
    return Resume(base, None, 0, None, (), decided)


def base_of(reports: Iterable[Report], slots: int) -> int:
    """Return the lowest position that some worker has not delivered, rounded down to a multiple of `slots`.

    There has to be a report. `slots` is the workers' window.
    """
    # A multiple of the slots, so that the first round of the new generation is round 1 in every slot (rule N4).
    return min(report.delivered_to for report in reports) // slots * slots


def decided_runs(reports: Mapping[int, Report], base: int) -> tuple[Decided, ...]:
    """Return the runs of positions from `base` on that any worker holds, in order, each with up to NAMED holders.

    The holders are ranks, the lowest first, and hold all of the run.
    """
    pieces = list(_pieces(reports, base))
    # Runs with the same named holders are joined. If too many are left, any common holder suffices.
    exact = _joined(pieces, lambda a, b: a & b if _named(a) == _named(b) else 0)
    found = exact if len(exact) <= _FEW else _joined(pieces, lambda a, b: a & b)
    return tuple(Decided(first, end, _named(holders)) for first, end, holders in found)


def laggard_ranks(reports: Mapping[int, Report], before: Resume | None) -> tuple[int, ...]:
    """Return, sorted, the ranks that are too late: at a shard they lack a result that another worker delivered.

    No worker holds that result any more.
    `before` is as in `decide`.
    """
    if not reports:
        return ()
    return tuple(sorted({rank for each in _by_shard(reports, before) for rank in _laggard_ranks(*each)}))


def _laggard_ranks(reports: Mapping[int, Report], before: Resume | None) -> tuple[int, ...]:
    # Only positions between the slowest and the fastest worker can be lost.
    lowest = min(report.delivered_to for report in reports.values())
    highest = max(report.delivered_to for report in reports.values())
    summed = [(0, MAX_POSITION)]
    # Positions that were void in `before` count as delivered, though no worker holds their results.
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


def check_decision_size(reports: Mapping[int, Report], slots: int) -> None:
    """Raise InvalidRequestError if a shard's decision would have more than MAX_DECIDED runs.

    There has to be a report. `slots` is the workers' window.
    """
    for of_shard, _ in _by_shard(reports):
        # Decided runs are never more than held runs.
        if sum(len(report.held) for report in of_shard.values()) <= MAX_DECIDED:
            continue
        decided = len(decided_runs(of_shard, base_of(of_shard.values(), slots)))
        if decided > MAX_DECIDED:
            what = f"{decided} runs of results together with those of {len(reports) - 1} other workers"
            raise _wrong(what, f"at most {MAX_DECIDED} can be told: join without a report, as a newcomer")


_Piece = tuple[int, int, int]
"""First, end, and the holders: bit r for rank r."""


def _pieces(reports: Mapping[int, Report], base: int) -> Iterator[_Piece]:
    """Yield, in order, the longest runs that the same workers hold."""
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
