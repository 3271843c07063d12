# SPDX-License-Identifier: Apache-2.0
"""Every rule is needed, every state within the bounds holds them, and docs/protocol.md says what the model says.

Without a rule, the violation named for it is found. With it, the same search finds none.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from typing import Any

import pytest

from hopsum_oracle.decision import (
    FINAL,
    TABLE,
    CloseThreshold,
    Copy,
    Decision,
    LaneAction,
    PacketClass,
    Reply,
    Update,
    _closes,
    decide,
    packet_class,
)

from .cases import BREACHES, WHOLE, Breach, Whole
from .config import CHECKS, make
from .document import BLOCK, CLOSES, LANES, MEETS, PAGE, PARTS, REGISTERS, REPLIES, rewritten
from .rules import NOT_NEEDED, RULES
from .search import Search, explore
from .switch import BEYOND, MUTATIONS, Decide, real_leaf
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
        (PacketClass.REPEAT, {"lanes": LaneAction.ADD, "closes": CloseThreshold.AT_NEED}, "sum", "w0>U1 w0>U1"),
        (PacketClass.FIRST, {"closes": CloseThreshold.NEVER}, "live", "| lost"),
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


STALE_PAGE = "docs/protocol.md is stale: make generate"


def test_the_page_has_every_part() -> None:
    assert {block[2] for block in BLOCK.finditer(PAGE.read_text())} == set(PARTS)


@pytest.mark.parametrize("part", PARTS)
def test_the_page_is_fresh(part: str) -> None:
    page = PAGE.read_text()
    assert rewritten(page, {part: PARTS[part]}) == page, STALE_PAGE


def test_words_for_everything() -> None:
    assert set(MEETS) == set(TABLE) == set(PacketClass)
    for row in TABLE.values():
        assert row.lanes in LANES
        assert row.closes in CLOSES
        assert row.reply in set(REPLIES)
    others = {Reply.RESULT_TO_ALL, Reply.STALE_TO_ALL}
    assert set(REPLIES) == set(Reply) - others, "what closing means, and what a leaf does with STALE from above"


def test_what_the_thresholds_mean() -> None:
    """CLOSES in words, against the function: quorum 3, min_quorum 2."""
    at = {
        closes: [(ctr, flush) for ctr in (1, 2, 3) for flush in (False, True) if _closes(closes, ctr, flush, 3, 2)]
        for closes in CLOSES
    }
    assert list(at.values()) == [[(2, True), (3, False), (3, True)], [(2, True), (3, True)], []]


REGISTERS_AFTER: dict[PacketClass, Callable[[Copy, Update], Copy]] = {
    PacketClass.NEW: lambda copy, update: Copy(update.generation, update.round, update.bit, 1, update.bit),
    PacketClass.FIRST: lambda copy, update: copy._replace(
        seen=copy.seen | update.bit, contributors=copy.contributors | update.bit, ctr=copy.ctr + 1
    ),
    PacketClass.REPEAT: lambda copy, update: copy,
    PacketClass.COMPLETE: lambda copy, update: copy._replace(seen=copy.seen | update.bit),
    PacketClass.CLOSED: lambda copy, update: copy._replace(seen=copy.seen | update.bit),
    PacketClass.OLD: lambda copy, update: copy,
}
"""The column of the registers, as functions. No copy closes here."""


def test_what_the_registers_become() -> None:
    met = set()
    for generation, round_, seen, ctr, rank in itertools.product(
        (1, 2), (1, 3, 5), (1, 3), (1, 2, 254, 255), (0, 1, 2)
    ):
        copy, update = Copy(1, 3, seen, ctr, seen), Update(generation, round_, 1 << rank)
        after = decide(copy, update, quorum=BEYOND, min_quorum=BEYOND).copy
        which = packet_class(copy, update)
        assert after == REGISTERS_AFTER[which](copy, update), REGISTERS[which]
        met.add(which)
    assert met == set(REGISTERS)


# TEST_SCALE above 1 (make test SCALE=2) adds the large searches: 1.8 million states, some minutes.
CASES = [case for case in WHOLE if SCALE > 1 or not case.large]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.modes}-n{case.config.n}-{case.states}")
def test_every_state(case: Whole) -> None:
    found = explore(case.config)
    assert found.violation is None, f"{found.violation}: {found.trace}"
    assert (found.states, found.transitions) == (case.states, case.transitions)
