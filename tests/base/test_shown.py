# SPDX-License-Identifier: Apache-2.0
"""Words for ranks that differ, and texts that are too long."""

from __future__ import annotations

import pytest

from hopsum_base.shown import describe_differences, shorten


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({}, ""),
        ({0: {"seed": "1"}, 3: {"seed": "1"}}, ""),
        ({0: {"seed": "1", "codec": "thc"}, 3: {"seed": "2", "codec": "thc"}}, "rank 0 has seed 1; rank 3 has seed 2"),
        (
            {2: {"seed": "1"}, 0: {"seed": "1"}, 1: {"seed": "1", "version": "9"}},
            "ranks 0, 2 have version (not told); rank 1 has version 9",
        ),
        (
            {rank: {"seed": str(rank)} for rank in range(6)},
            "rank 0 has seed 0; rank 1 has seed 1; rank 2 has seed 2; rank 3 has seed 3; and 2 more differ",
        ),
    ],
)
def test_the_ranks_that_differ_are_named_with_what_differs(told: dict[int, dict[str, str]], words: str) -> None:
    assert describe_differences(told) == (f"{words}: all ranks need the same" if words else "")


def test_a_long_text_ends_with_a_sentence_or_a_word() -> None:
    assert shorten("It ended. See why.", 18) == "It ended. See why."
    assert shorten("It has ended. See why.", 18) == "It has ended."
    assert shorten("A. A sentence of many words", 18) == "A. A sentence ..."
    assert shorten("x" * 40, 18) == "x" * 14 + " ..."
