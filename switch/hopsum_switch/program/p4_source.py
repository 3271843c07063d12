# SPDX-License-Identifier: Apache-2.0
"""Places in the P4 source, and the objects that came from them."""

from __future__ import annotations

from msgspec import Struct, field


class SourceInfo(Struct, frozen=True):
    """Position and text of a P4 construct, as the compiler recorded it."""

    file: str = field(name="filename")
    line: int
    column: int
    fragment: str = field(name="source_fragment")

    def __str__(self) -> str:
        return f"{self.file}({self.line}): {self.fragment}"


def at(source: SourceInfo | None) -> str:
    """Return " at FILE(LINE): TEXT" for the end of an error message, or a note that the compiler left no position."""
    return f" at {source}" if source is not None else " (no source position in the JSON)"
