# SPDX-License-Identifier: Apache-2.0
"""Prometheus's text format, version 0.0.4.

The switch has one of its own: it and the control plane know nothing of each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many of `count` were no more than each bound, from the lowest on, without infinity; `total` is their sum."""

    within: Mapping[float, float]
    count: float
    total: float


@dataclass(frozen=True)
class Family:
    """All values of one name; counters end in `_total`. `labels` tell one value from the others."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    samples: dict[tuple[str, ...], float] = field(default_factory=dict)
    histograms: dict[tuple[str, ...], Histogram] = field(default_factory=dict)

    def add(self, value: float, *labels: str) -> None:
        """Add a value; an int stays exact. Raises ValueError for more or fewer labels than the family has."""
        self._require(labels)
        self.samples[labels] = value

    def observe(self, histogram: Histogram, *labels: str) -> None:
        """Add a histogram. Raises ValueError for more or fewer labels than the family has."""
        self._require(labels)
        self.histograms[labels] = histogram

    def _require(self, labels: tuple[str, ...]) -> None:
        if len(labels) != len(self.labels):
            raise ValueError(f"{self.name} has the labels {self.labels}, not {labels}")


def expose(families: Iterable[Family]) -> str:
    """Return the text that a scrape gets: families without values are left out."""
    lines = []
    for family in families:
        if family.samples or family.histograms:
            lines.append(f"# HELP {family.name} {_escape_help(family.help)}")
            lines.append(f"# TYPE {family.name} {family.kind}")
            for values, value in family.samples.items():
                lines.append(f"{family.name}{_labels(family.labels, values)} {value!r}")
            for values, told in family.histograms.items():
                lines += _histogram(family, values, told)
    return "\n".join(lines) + "\n"


def _histogram(family: Family, values: tuple[str, ...], told: Histogram) -> Iterator[str]:
    buckets = {f"{bound:g}": number for bound, number in told.within.items()}
    for bound, number in {**buckets, "+Inf": told.count}.items():
        yield f"{family.name}_bucket{_labels((*family.labels, 'le'), (*values, bound))} {number!r}"
    yield f"{family.name}_sum{_labels(family.labels, values)} {told.total!r}"
    yield f"{family.name}_count{_labels(family.labels, values)} {told.count!r}"


def _labels(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    shown = ",".join(f'{name}="{_escape_label(value)}"' for name, value in zip(names, values, strict=True))
    return f"{{{shown}}}" if shown else ""


def _escape_label(text: str) -> str:
    return _escape_help(text).replace('"', '\\"')


def _escape_help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")
