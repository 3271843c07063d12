# SPDX-License-Identifier: Apache-2.0
"""The report of the self-test: a table for people, and one JSON object for programs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from hopsum_evaluation.selftest.vectors import Exercise

SHOWN = 5
"""Elements printed of a vector."""


@dataclass(frozen=True, slots=True)
class Sum:
    """One exercise, done."""

    exercise: Exercise
    chunks: int
    equal: bool
    replicas_equal: bool
    elements_per_s: float
    first: list[NDArray[np.uint32]]
    """The first elements of every rank's vector, then of the switch's sum, then of numpy's."""


@dataclass(slots=True)
class SelftestReport:
    """Everything that is printed."""

    target: str
    where: str
    workers: int
    elements: int
    seed: int
    sums: list[Sum] = field(default_factory=list)
    packets_up: int = 0
    packets_down: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    retransmits: int = 0
    events: dict[str, int] = field(default_factory=dict)
    drops: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def equal(self) -> bool:
        """Whether every sum is numpy's."""
        return bool(self.sums) and all(result.equal for result in self.sums)

    @property
    def replicas_equal(self) -> bool:
        """Whether all workers hold the same bytes."""
        return bool(self.sums) and all(result.replicas_equal for result in self.sums)

    @property
    def counters_agree(self) -> bool:
        """Whether the switch counted what the workers did: every chunk once, every packet somewhere."""
        chunks = sum(result.chunks for result in self.sums)
        arrived = sum(self.events[name] for name in ("added", "duplicate", "answered", "stale", "probed"))
        return (
            self.events["added"] == chunks * self.workers
            and self.events["completed"] == chunks
            and self.events["fault"] == 0
            and arrived + sum(self.drops.values()) == self.packets_up
        )

    @property
    def good(self) -> bool:
        """Whether all of it is as it should be."""
        return self.equal and self.replicas_equal and self.counters_agree

    def as_json(self) -> dict[str, Any]:
        """Return the object that --json prints."""
        return {
            "target": self.target,
            "workers": self.workers,
            "elements": self.elements,
            "seed": self.seed,
            "equal": self.equal,
            "replicas_equal": self.replicas_equal,
            "counters_agree": self.counters_agree,
            "ops": {
                result.exercise.op.name: {
                    "chunks": result.chunks,
                    "equal": result.equal,
                    "elements_per_s": round(result.elements_per_s),
                }
                for result in self.sums
            },
            "packets": self.packets_up + self.packets_down,
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
            "retransmits": self.retransmits,
            "switch_events": self.events,
            "switch_drops": self.drops,
            "seconds": round(self.seconds, 3),
        }

    def print(self, console: Console) -> None:
        """Print the tables."""
        for result in self.sums:
            console.print(self._numbers(result))
        console.print(self._summary())
        console.print(self._counters())
        verdict = "[bold green]all sums equal numpy's, bit for bit" if self.good else "[bold red]something differs"
        console.print(f"{verdict}[/]  ({self.where}; {self.seconds:.1f} s)")

    def _numbers(self, result: Sum) -> Table:
        table = Table(title=f"{result.exercise.op.name}: {result.exercise.title}", title_justify="left")
        table.add_column("")
        for index in range(SHOWN):
            table.add_column(f"[{index}]", justify="right")
        labels = [*(f"worker {rank}" for rank in range(self.workers)), "switch", "numpy"]
        for label, vector in zip(labels, result.first, strict=True):
            numbers = vector.view(result.exercise.shown_as)
            shown = [f"{v:,.4f}" if numbers.dtype == np.float32 else f"{v:,}" for v in numbers]
            table.add_row(label, *shown, style="bold" if label == "switch" else None)
            if label == f"worker {self.workers - 1}":
                table.add_section()
        return table

    def _summary(self) -> Table:
        table = Table(title=f"{self.workers} workers, {self.elements:,} elements each", title_justify="left")
        table.add_column("op")
        for name in ("chunks", "is numpy's", "same on all", "elements/s"):
            table.add_column(name, justify="right")
        for result in self.sums:
            table.add_row(
                result.exercise.op.name,
                f"{result.chunks:,}",
                _yes(result.equal),
                _yes(result.replicas_equal),
                f"{result.elements_per_s:,.0f}",
            )
        return table

    def _counters(self) -> Table:
        table = Table(title="what was counted", title_justify="left", show_header=False)
        table.add_column()
        table.add_column(justify="right")
        table.add_row("workers: packets sent", f"{self.packets_up:,}")
        table.add_row("workers: of them retransmissions", f"{self.retransmits:,}")
        table.add_section()
        for name, words in _EVENT_WORDS.items():
            table.add_row(f"switch: {words}", f"{self.events[name]:,}")
        for name, count in self.drops.items():
            table.add_row(f"switch: dropped, {name.replace('_', ' ')}", f"{count:,}")
        table.add_section()
        table.add_row("both agree", _yes(self.counters_agree))
        return table


_EVENT_WORDS = {
    "added": "contributions added",
    "completed": "rounds completed",
    "duplicate": "duplicates of a round in progress",
    "answered": "duplicates answered with the result",
    "stale": "packets of an older round",
}


def _yes(value: bool) -> str:
    return "[green]yes[/]" if value else "[red]NO[/]"
