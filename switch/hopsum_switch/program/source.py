# SPDX-License-Identifier: Apache-2.0
"""Places in the P4 source, and the objects that came from them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SourceInfo:
    """Position and text of a P4 construct, as the compiler recorded it."""

    file: str
    line: int
    column: int
    fragment: str

    def __str__(self) -> str:
        return f"{self.file}({self.line}): {self.fragment}"


def at(source: SourceInfo | None) -> str:
    """Return " at FILE(LINE): TEXT", or a remark that the compiler left no position."""
    return f" at {source}" if source is not None else " (no source position in the JSON)"
