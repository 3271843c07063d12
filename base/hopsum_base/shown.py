# SPDX-License-Identifier: Apache-2.0
"""The words of a peer, for logs and terminals."""

from __future__ import annotations


def shown(text: str) -> str:
    """Return a text as one line that a terminal shows and does not obey: control characters are escaped."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
