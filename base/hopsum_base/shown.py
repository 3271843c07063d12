# SPDX-License-Identifier: Apache-2.0
"""Words of peers for logs and terminals, and words after a name that is unknown."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def shown(text: str) -> str:
    """Return a text as one line that a terminal shows and does not obey: control characters are escaped."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def nearest(name: str, names: Iterable[str]) -> str:
    """Word a hint after an unknown name: the nearest of `names`, or all of them."""
    names = list(names)
    near = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"
