# SPDX-License-Identifier: Apache-2.0
"""Decisions against a model that has sets of positions in the place of runs."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsum_controlplane.cluster.decision import (
    MAX_DECIDED,
    MAX_POSITION,
    MAX_RUNS,
    NAMED,
    Report,
    check_decision_size,
    decide,
    decided_runs,
)
from hopsum_controlplane.errors import InvalidRequestError
from hopsum_wire.generations import Decided, Resume

END = 60


def runs_of(positions: set[int]) -> tuple[tuple[int, int], ...]:
    """Return sorted runs; every other pair that touches is left apart, as a worker may report it."""
    runs: list[tuple[int, int]] = []
    for position in sorted(positions):
        if runs and runs[-1][1] == position and position % 7:
            runs[-1] = (runs[-1][0], position + 1)
        else:
            runs.append((position, position + 1))
    return tuple(runs)


@st.composite
def reports(draw: st.DrawFn) -> dict[int, Report]:
    found = {}
    for rank in draw(st.sets(st.integers(0, 63), max_size=7)):
        held = draw(st.sets(st.integers(0, END - 1), max_size=END))
        end = draw(st.integers(max(held, default=0) + bool(held), END))
        generation, delivered, begun = draw(st.integers(5, 9)), draw(st.integers(0, end)), draw(st.integers(0, 9))
        found[rank] = Report(generation, delivered, end, runs_of(held), begun)
    return found


def positions(report: Report) -> set[int]:
    return {position for first, end in report.held for position in range(first, end)}


def check_decided(decided: tuple[Decided, ...], told: dict[int, Report], base: int) -> None:
    holders: dict[int, set[int]] = {}
    for rank, report in told.items():
        for position in positions(report):
            if position >= base:
                holders.setdefault(position, set()).add(rank)
    named: dict[int, tuple[int, ...]] = {}
    before = base
    for run in decided:
        assert before <= run.first < run.end
        named |= dict.fromkeys(range(run.first, run.end), run.ranks)
        before = run.end
    assert named.keys() == holders.keys()
    for position, ranks in named.items():
        assert ranks == tuple(sorted(holders[position]))[:NAMED]
    for one, next_one in pairwise(decided):
        assert one.end < next_one.first or one.ranks != next_one.ranks, "these are one run"


@settings(max_examples=400, deadline=None, derandomize=True)
@given(reports(), st.sets(st.integers(0, 63), max_size=3), st.integers(1, 20), st.none() | st.integers(5, 9))
def test_as_the_sets_say(told: dict[int, Report], new: set[int], slots: int, last: int | None) -> None:
    new -= told.keys()
    before = None if last is None else Resume(0, 17, last, 3, (62, 63), ())
    for report in told.values():
        report.check()
    found = decide(told, new, slots=slots, generation=10, before=before)
    if not told:
        assert found is None
        return
    assert found is not None
    lowest = min(report.delivered_to for report in told.values())
    assert found.base % slots == 0
    assert found.base <= lowest < found.base + slots
    check_decided(found.decided, told, found.base)
    missed = last is not None and any(report.generation < last for report in told.values())
    carried = {62, 63} if missed else set()
    assert set(found.replaced) == new | carried
    assert list(found.replaced) == sorted(found.replaced)
    if new:
        assert found.start == max(report.submitted_to for report in told.values())
        assert found.allreduces == max(report.allreduces_begun for report in told.values())
        assert found.start_generation == 10
    else:
        assert (found.start, found.start_generation, found.allreduces) == ((17, last, 3) if missed else (None, 0, None))


def test_the_first_generation_has_no_newcomers() -> None:
    assert decide({}, {0, 1}, slots=16, generation=10, before=None) is None


def test_many_runs_are_joined_where_one_worker_holds_them() -> None:
    everything = Report(7, 0, 9000, ((0, 9000),), 0)
    odd = Report(7, 0, 9000, tuple((first, first + 1) for first in range(1, 8001, 2)), 0)
    assert len(decided_runs({0: everything, 1: replace(odd, held=odd.held[:500])}, 0)) == 1001
    assert decided_runs({0: everything, 1: odd}, 0) == (Decided(0, 9000, (0,)),)
    assert decided_runs({1: odd}, 0) == tuple(Decided(first, end, (1,)) for first, end in odd.held)


def test_more_than_can_be_told_is_refused() -> None:
    span = 3 * MAX_RUNS * 2
    told = {
        rank: Report(7, 0, span, tuple((first, first + 1) for first in range(rank * 2, span, 6)), 0)
        for rank in range(3)
    }
    for report in told.values():
        report.check()
    check_decision_size({0: told[0], 1: told[1]}, 16)
    with pytest.raises(InvalidRequestError, match=f"{3 * MAX_RUNS} runs of results together .* at most {MAX_DECIDED}"):
        check_decision_size(told, 16)
    whole = replace(told[2], held=((0, span),))  # who holds them all is named for all
    check_decision_size({**told, 2: whole}, 16)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"generation": 0}, r"generation 0; generations are 1 \.\. 4294967295"),
        ({"generation": 1 << 32}, "generation 4294967296"),
        ({"delivered_to": 41}, "delivered to 41, submitted to 40"),
        ({"delivered_to": -1}, "delivered to -1"),
        ({"submitted_to": MAX_POSITION + 1}, f"submitted to {MAX_POSITION + 1}"),
        ({"allreduces_begun": -1}, "-1 all-reduces"),
        ({"held": ((0, 41),)}, r"a run of results 0 \.\. 41 after 0, submitted to 40"),
        ({"held": ((5, 5),)}, r"a run of results 5 \.\. 5"),
        ({"held": ((5, 9), (8, 10))}, r"8 \.\. 10 after 9"),
        ({"held": ((9, 10), (2, 3))}, r"2 \.\. 3 after 10"),
        ({"held": ((-1, 3),)}, r"-1 \.\. 3"),
        ({"held": ((0, 1),) * (MAX_RUNS + 1)}, f"{MAX_RUNS + 1} runs of results; join those that touch: at most"),
    ],
)
def test_reports_that_cannot_be(changes: dict[str, object], message: str) -> None:
    right = Report(7, 20, 40, ((3, 5), (5, 9), (39, 40)), 2)
    right.check()
    with pytest.raises(InvalidRequestError, match=f"report: .*{message}"):
        replace(right, **changes).check()  # type: ignore[arg-type]
