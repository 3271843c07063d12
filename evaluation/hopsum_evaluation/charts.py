# SPDX-License-Identifier: Apache-2.0
"""Charts of the evaluation: lines and bars as plain values, and their drawings as PNG and SVG by matplotlib.

Colours are those of Okabe, Ito and Tol, which the colour-blind tell apart. Each line has a marker of its own too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import cycle, pairwise
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#882255",
                   "#999933", "#332288")  # fmt: skip
_MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")
_GREYS: Final = ("#555555", "#999999")
_MOST_TICKS: Final = 8
_APART: Final = 1.4
"""Least ratio of neighbouring ticks of a logarithmic axis at which their labels do not touch."""
_DECADES: Final = 100
"""Least ratio of both ends of a logarithmic axis for ticks at powers of ten. Below, they are at powers of two."""
_TITLE_WIDTH: Final = 62
_INCHES: Final = (6.4, 3.8)
_GROUP_INCHES: Final = 0.62
"""Height of a group of bars, and of the title and margins of a panel."""
_PANEL_INCHES: Final = 0.55
_DPI: Final = 110
_GROUP: Final = 0.8
"""Width of all bars of a group. Groups are 1 apart."""
_BAR: Final = 0.85
"""Width of a bar, as a share of its place in the group."""
# Without the salt and without a date two drawings of the same figures differ.
_SETTINGS: Final[dict[Any, Any]] = {
    "svg.hashsalt": "hopsum",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
}


@dataclass(frozen=True, slots=True)
class Series:
    """A line of a plot."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    reach: Sequence[float] = ()
    """Half of the interval of each point. Empty for a line without intervals."""
    reference: bool = False
    """Dashed, without points: a formula, a bound, a published value."""

    @classmethod
    def from_points(cls, name: str, points: Iterable[tuple[float, ...]]) -> Series:
        """Make the line through points (x, y) or (x, y, reach), in order of x. Raises ValueError without any."""
        x, y, *reach = zip(*sorted(points), strict=True)
        return cls(name, x, y, reach[0] if reach else ())


@dataclass(frozen=True, slots=True)
class Plot:
    """A figure of lines. `name` is the name of its files, without a suffix."""

    name: str
    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True, slots=True)
class BarSeries:
    """Bars of one colour, one for each group: their lengths, and both ends of their intervals.

    None: the group has no such bar, or the bar no interval.
    """

    name: str
    values: Sequence[float | None]
    low: Sequence[float | None]
    high: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class BarPanel:
    """Groups of bars below each other, under a title of their own."""

    title: str
    groups: Sequence[str]
    series: Sequence[BarSeries]


@dataclass(frozen=True, slots=True)
class BarChart:
    """A figure of panels, one below the other, with one axis of values. `name` is the name of its files."""

    name: str
    title: str
    panels: Sequence[BarPanel]
    level: float
    """Value of a dashed line across all bars."""
    level_name: str


def write_chart(chart: Plot | BarChart, folder: Path) -> list[Path]:
    """Draw a chart into an existing folder, as PNG and SVG. Return both paths.

    Raises OSError, and ModuleNotFoundError without matplotlib.
    """
    import matplotlib as mpl

    paths = [folder / f"{chart.name}.{kind}" for kind in ("png", "svg")]
    with mpl.rc_context(_SETTINGS):
        figure = draw_bars(chart) if isinstance(chart, BarChart) else draw_lines(chart)
        figure.savefig(paths[0], dpi=_DPI)
        figure.savefig(paths[1], metadata={"Date": None, "Title": chart.title})
    # matplotlib leaves spaces at the ends of lines, which git complains of.
    paths[1].write_text("".join(f"{line.rstrip()}\n" for line in paths[1].read_text().splitlines()))
    return paths


def draw_lines(plot: Plot) -> Figure:
    """Draw a plot and return its figure. Points whose y is not positive are left out where y is logarithmic."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    made, axes = _figure(plot.title)
    styles, greys = cycle(zip(_COLOURS, _MARKERS, strict=True)), cycle(_GREYS)
    for series in plot.series:
        _add_line(axes, series, plot, *(("", "") if series.reference else next(styles)), next(greys))
    if plot.log_x:
        axes.set_xscale("log")
        # A reference line may have many points, none of which was measured.
        ticks = sorted({x for series in plot.series if not series.reference for x in series.x})
        few = 1 < len(ticks) <= _MOST_TICKS and all(right >= _APART * left for left, right in pairwise(ticks))
        if few:
            axes.set_xticks(ticks)
        elif len(ticks) > 1 and ticks[-1] < _DECADES * ticks[0]:
            axes.xaxis.set_major_locator(LogLocator(base=2))
            few = True
        if few:
            axes.xaxis.set_minor_formatter(NullFormatter())
            axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    if plot.log_y:
        axes.set_yscale("log")
    axes.set_xlabel(plot.x_label)
    axes.set_ylabel(plot.y_label)
    axes.grid(visible=True, color="#dddddd", linewidth=0.5)
    made.legend(loc="outside right upper", fontsize=8, frameon=False)
    return made


def draw_bars(chart: BarChart) -> Figure:
    """Draw a chart of bars and return its figure: each bar has its value at its end, and its interval, if any."""
    made = _empty_figure(
        (_INCHES[0], _PANEL_INCHES * len(chart.panels) + sum(_GROUP_INCHES * len(each.groups) for each in chart.panels))
    )
    made.suptitle("\n".join(wrap(chart.title, _TITLE_WIDTH)), fontsize=10)
    heights = [len(panel.groups) for panel in chart.panels]
    every = made.subplots(len(heights), sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for axes, panel in zip(every, chart.panels, strict=True):
        width = _GROUP / max(len(panel.series), 1)
        for number, series in enumerate(panel.series):
            middle = (number - (len(panel.series) - 1) / 2) * width
            _add_bars(axes, series, [place + middle for place in range(len(panel.groups))], width, _COLOURS[number])
        axes.axvline(chart.level, color=_GREYS[0], linestyle="--", linewidth=1, label=chart.level_name)
        axes.set_title(panel.title, fontsize=9, loc="left")
        axes.set_yticks(range(len(panel.groups)), panel.groups)
        axes.invert_yaxis()
        axes.set_xlim(left=0)
        axes.set_axisbelow(True)
        axes.grid(visible=True, axis="x", color="#dddddd", linewidth=0.5)
    # Room for the figures at the ends of the bars.
    every[0].set_xlim(right=1.12 * max(axes.dataLim.x1 for axes in every))
    handles, labels = every[0].get_legend_handles_labels()
    made.legend(handles, labels, loc="outside lower center", fontsize=8, frameon=False, ncols=2)
    return made


def _empty_figure(inches: tuple[float, float]) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    made = Figure(figsize=inches, layout="constrained")
    # A canvas without a window: pyplot would keep figures, and choose a back end by the display.
    FigureCanvasAgg(made)
    return made


def _figure(title: str) -> tuple[Figure, Any]:
    made = _empty_figure(_INCHES)
    axes = made.subplots()
    axes.set_title("\n".join(wrap(title, _TITLE_WIDTH)), fontsize=10)
    axes.set_axisbelow(True)
    return made, axes


def _add_bars(axes: Any, series: BarSeries, places: Sequence[float], width: float, colour: str) -> None:
    label = series.name
    for place, length, low, high in zip(places, series.values, series.low, series.high, strict=True):
        if length is None:
            continue
        axes.barh(place, length, _BAR * width, color=colour, label=label)
        # matplotlib leaves labels with an underscore out: one entry of the legend for all bars of a colour.
        label = "_nolegend_"
        end = length if high is None else max(length, high)
        if low is not None and high is not None:
            axes.errorbar(length, place, xerr=[[length - low], [high - length]], fmt="none", ecolor="#222222",
                          elinewidth=0.9, capsize=2)  # fmt: skip
        axes.annotate(f"{length:.2g}" if length < 10 else f"{length:.0f}", (end, place), (3, 0),
                      textcoords="offset points", va="center", fontsize=7)  # fmt: skip


def _add_line(axes: Any, series: Series, plot: Plot, colour: str, marker: str, grey: str) -> None:
    kept = [place for place, y in enumerate(series.y) if y > 0 or not plot.log_y]
    x = [series.x[place] for place in kept]
    y = [series.y[place] for place in kept]
    if series.reference:
        axes.plot(x, y, color=grey, linestyle="--", linewidth=1, label=series.name)
        return
    reach = [series.reach[place] for place in kept] if series.reach else None
    axes.errorbar(
        x, y, yerr=reach, color=colour, marker=marker, markersize=4, linewidth=1.2, elinewidth=0.8, capsize=2,
        label=series.name,
    )  # fmt: skip
