# SPDX-License-Identifier: Apache-2.0
"""Every rule is needed: without it, the violation named for it is found; with it, the same search finds none."""

from __future__ import annotations

import itertools
import os
from typing import Any

import pytest

from hopsum_oracle.decision import (
    FINAL,
    TABLE,
    Closes,
    Copy,
    Decision,
    LaneAction,
    PacketClass,
    Reply,
    Update,
    decide,
    packet_class,
)

from .cases import BREACHES, WHOLE, Breach
from .config import CHECKS, make
from .rules import NOT_NEEDED, RULES
from .search import Search, explore
from .switch import MUTATIONS, Decide, real_leaf
from .world import World

SCALE = int(os.environ.get("TEST_SCALE", "1"))
DEPTH_FACTOR = 2
"""The states that a search with the rule visits, as a multiple of those that the one without it needed."""
SEARCHES = [pytest.param(breach, id=f"{RULES[breach.rule].letter}-{breach.rule}-{breach.kind}") for breach in BREACHES]


def test_every_rule_has_its_search() -> None:
    assert {breach.rule for breach in BREACHES} == set(RULES) - NOT_NEEDED
    assert {rule for case in WHOLE for rule in case.config.off} >= NOT_NEEDED
    assert set(MUTATIONS) < set(RULES)


def test_every_check_finds_something() -> None:
    assert {breach.kind for breach in BREACHES} == set(CHECKS)


@pytest.mark.parametrize("breach", SEARCHES)
def test_without_the_rule(breach: Breach) -> None:
    found = explore(breach.config)
    print(f"{RULES[breach.rule].letter} without {breach.rule}: {found.trace}")
    assert found.violation is not None, f"{found.states} states and no violation without {breach.rule}"
    assert found.violation.kind == breach.kind
    assert found.trace.endswith("| lost") == (breach.kind == "live")


@pytest.mark.parametrize("breach", SEARCHES)
def test_with_the_rule(breach: Breach) -> None:
    """TEST_SCALE visits so many times as many states; most of these searches end before."""
    enough = explore(breach.config).states * DEPTH_FACTOR * SCALE
    found = explore(breach.mended, max(enough, 1000))
    assert found.violation is None, f"{found.violation}: {found.trace}"


@pytest.mark.parametrize(
    ("packet_class", "change", "kind", "trace"),
    [
        (PacketClass.COMPLETE, {"reply": Reply.NONE}, "live", "w0>U1 w1>U1 | lost"),
        (PacketClass.REPEAT, {"lanes": LaneAction.ADD, "closes": Closes.AT_NEED}, "sum", "w0>U1 w0>U1"),
        (PacketClass.FIRST, {"closes": Closes.NEVER}, "live", "| lost"),
    ],
)
def test_the_model_runs_on_the_real_table(
    packet_class: PacketClass, change: dict[str, Any], kind: str, trace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TABLE, packet_class, TABLE[packet_class]._replace(**change))
    found = Search(World(make("A", 2, 2))).run()
    assert found.violation is not None
    assert (found.violation.kind, found.trace) == (kind, trace)


def adding_when_closed(rest: Decide) -> Decide:
    """A closed leaf adds who is new to it, and sends the larger sum up; who is in already gets the sum sent again."""

    def mutated(copy: Copy, update: Update, quorum: int, min_quorum: int) -> Decision:
        if packet_class(copy, update) is not PacketClass.CLOSED or copy.contributors & update.bit:
            return rest(copy, update, quorum, min_quorum)
        inside = copy.contributors | update.contributors
        return rest(copy, update, quorum, min_quorum)._replace(
            copy=copy._replace(contributors=inside), lanes=LaneAction.ADD
        )

    return mutated


@pytest.mark.parametrize("options", [{"leaf_quorum": 1}, {"flush": 0b1111}], ids=str)
def test_a_closed_leaf_that_adds_is_harmless(options: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """In every state, for its parent takes one sum of it (T4): who looks at the leaf finds it, as cases of PTF do."""
    config = make("T", 4, 1, **options)
    right = explore(config)
    monkeypatch.setattr("tests.system.model.switch.real_leaf", adding_when_closed(real_leaf))
    found = Search(World(config)).run()
    assert found.violation is None
    assert found.complete
    assert found.states > right.states, "there were late ones"


def test_a_complete_copy_is_decided_without_seen() -> None:
    """The reason why the model may forget `seen` there (switch.canonical)."""
    for seen, other, contributors, round_, generation, rank, flush in itertools.product(
        range(8), range(8), (1, 3, 7), (1, 3, 5), (1, 2), range(3), (False, True)
    ):
        update = Update(generation, round_, 1 << rank, flush)
        copies = [Copy(1, 3, bits, FINAL, contributors) for bits in (seen, other)]
        one, two = (decide(copy, update, quorum=2, min_quorum=1) for copy in copies)
        assert one._replace(copy=one.copy._replace(seen=0)) == two._replace(copy=two.copy._replace(seen=0))


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match=r"unknown \['no_such_rule'\]"):
        make(off=("no_such_rule",))
