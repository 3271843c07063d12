# SPDX-License-Identifier: Apache-2.0
"""docs/protocol.md says what the table, the searches and the traces are now (`make generate` rewrites it)."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from hopsum_oracle.decision import TABLE, Copy, PacketClass, Reply, Update, _closes, decide, packet_class

from .document import BLOCK, CLOSES, LANES, MEETS, PAGE, PARTS, REGISTERS, REPLIES, rewritten
from .switch import BEYOND

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
