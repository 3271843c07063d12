# SPDX-License-Identifier: Apache-2.0
"""The contents of a section, apart from their form: words, tables, plots, and the samples of its claims."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import isfinite


@dataclass(frozen=True, slots=True)
class ShownTable:
    """Rows of text below their heads. The first column is what a row is about."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Series:
    """A line of a plot."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    reach: Sequence[float] = ()
    """Half of the interval of each point. An empty list stands for none."""
    reference: bool = False
    """Dashed, without points: a formula, a bound, a published value."""

    @classmethod
    def of(cls, name: str, points: Iterable[tuple[float, ...]]) -> Series:
        """Return the line through points (x, y) or (x, y, reach), in order of x. Raises ValueError without any."""
        x, y, *reach = zip(*sorted(points), strict=True)
        return cls(name, x, y, reach[0] if reach else ())


@dataclass(frozen=True, slots=True)
class Plot:
    """A figure. `name` is that of its file."""

    name: str
    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True, slots=True)
class BarSeries:
    """Bars of one colour, one for each group."""

    name: str
    heights: Sequence[float | None]
    """None where a group has no bar."""
    low: Sequence[float | None]
    high: Sequence[float | None]
    """The interval of each bar. None where it has none."""


@dataclass(frozen=True, slots=True)
class BarChart:
    """A figure of bars beside each other in groups. `name` is that of its file."""

    name: str
    title: str
    groups: Sequence[str]
    y_label: str
    series: Sequence[BarSeries]
    level: float
    """A dashed line across all bars."""
    level_name: str


@dataclass(frozen=True, slots=True)
class Shown:
    """A section's part of the page."""

    words: Sequence[str]
    """Paragraphs: what was done, and how to read it."""
    tables: Sequence[ShownTable] = ()
    plots: Sequence[Plot] = ()
    samples: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """The samples by claim, one per seed, or none for what was not run."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """The reasons by claim why it has no samples, or one that is not finite, should that be so."""


def fingerprint(plot: Plot | BarChart) -> str:
    """Return what tells a plot from others: names and figures in four digits, as a hash."""

    def rounded(value: object) -> object:
        if isinstance(value, dict):
            return {key: rounded(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [rounded(each) for each in value]
        return f"{value:.4g}" if isinstance(value, float) else value

    return hashlib.sha256(repr(rounded(asdict(plot))).encode()).hexdigest()[:16]


def figure(value: float | None, digits: int = 3) -> str:
    """Return a number in few digits: 0.0123, 12.3, 1,230, 1.2e-9, or a hyphen for none."""
    if value is None or not isfinite(value):
        return "-" if value is None else str(value)
    if value == 0:
        return "0"
    if not 1e-4 <= abs(value) < 1e7:
        return f"{value:.{digits - 1}e}".replace("e-0", "e-").replace("e+0", "e")
    rounded = float(f"{value:.{digits}g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 10 ** (digits - 1) else f"{value:#.{digits}g}".rstrip(".")
