# SPDX-License-Identifier: Apache-2.0
"""Parts of programs that the frames of all cases met, added up by kind."""

from __future__ import annotations

from collections import Counter

from hopsum_switch.observe.coverage import Coverage

KINDS = ("state", "transition", "hit or miss", "table action", "call", "condition", "drop", "counter")


class Summary:
    """Parts met and parts there, over many programs."""

    def __init__(self) -> None:
        self._met: Counter[str] = Counter()
        self._there: Counter[str] = Counter()
        self.programs = self.frames = self.mutations = self.sent = 0

    def add(self, coverage: Coverage) -> None:
        """Add one program."""
        self._met.update(map(_kind, coverage.met()))
        self._there.update(map(_kind, coverage.parts()))
        self.programs += 1

    def share(self, kind: str) -> float:
        """Return which part of a kind was met, 0 to 1."""
        return self._met[kind] / self._there[kind]

    def report(self) -> str:
        """Return one line on the frames and one per kind of part."""
        head = f"{self.programs} programs, {self.frames} frames, {self.mutations} of them mutations, {self.sent} sent"
        lines = [f"  {kind}: {self._met[kind]} of {self._there[kind]}" for kind in KINDS]
        return "\n".join([head, *lines])


def _kind(part: str) -> str:
    kind = part.partition(" ")[0]
    if kind != "table":
        return kind
    return "hit or miss" if part.endswith((": hit", ": miss")) else "table action"
