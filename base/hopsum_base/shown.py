# SPDX-License-Identifier: Apache-2.0
"""Words of peers for logs and terminals, words after a name that is unknown, and for ranks that differ."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Final

_UNTOLD: Final = "(not told)"
_SHOWN_MAX: Final = 4
"""Groups of ranks with equal values that one message has."""


def escape_controls(text: str) -> str:
    """Return a text as one line that a terminal shows and does not obey: control characters are escaped."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def shorten(text: str, most: int) -> str:
    """Return a text of `most` characters at most: whole sentences of a longer one, or whole words and three dots.

    A sentence or a word that is longer than half of that is cut.
    """
    if len(text) <= most:
        return text
    sentences = text[:most].rfind(". ") + 1
    if sentences > most // 2:
        return text[:sentences]
    words = text[: most - 4].rfind(" ")
    return f"{text[: words if words > most // 2 else most - 4]} ..."


def name_hint(name: str, names: Iterable[str]) -> str:
    """Return a hint for an unknown name, "did you mean NAME?" with the nearest of `names`, or a list of all of them."""
    names = list(names)
    near = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"


def name_ranks(ranks: Iterable[int]) -> str:
    """Return ranks in words: `rank 3`, or `ranks 0, 1, 2`."""
    listed = [str(rank) for rank in ranks]
    return f"rank{'s' if len(listed) > 1 else ''} {', '.join(listed)}"


def describe_differences(told: Mapping[int, Mapping[str, str]]) -> str:
    """Return the settings in which ranks differ, with each value and the ranks that have it. Empty if none differ.

    Args:
        told: the settings of each rank.
    """
    names = sorted({name for each in told.values() for name in each})
    names = [name for name in names if len({each.get(name) for each in told.values()}) > 1]
    alike: dict[str, list[int]] = {}
    for rank in sorted(told):
        text = ", ".join(f"{name} {told[rank].get(name, _UNTOLD)}" for name in names)
        alike.setdefault(text, []).append(rank)
    if not names:
        return ""
    texts = [f"{name_ranks(ranks)} {'have' if len(ranks) > 1 else 'has'} {text}" for text, ranks in alike.items()]
    more = f"; and {len(texts) - _SHOWN_MAX} more differ" if len(texts) > _SHOWN_MAX else ""
    return f"{'; '.join(texts[:_SHOWN_MAX])}{more}: all ranks need the same"
