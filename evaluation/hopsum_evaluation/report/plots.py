# SPDX-License-Identifier: Apache-2.0
"""The figures of a report as SVG: colours of Okabe, Ito and Tol, markers that differ, references dashed and grey."""

from __future__ import annotations

import io
from collections.abc import Sequence
from itertools import cycle, pairwise
from textwrap import wrap
from typing import Any, Final

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from hopsum_evaluation.report.shown import BarChart, BarSeries, Plot, Series, fingerprint

_COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#882255",
                   "#999933", "#332288")  # fmt: skip
_MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")
_GREYS: Final = ("#555555", "#999999")
_MOST_TICKS: Final = 8
_APART: Final = 1.4
"""Ratio of neighbours from which on their labels do not touch."""
_DECADES: Final = 100
"""A logarithmic axis of less than so much has ticks at powers of two."""
_PLAIN: Final = FuncFormatter(lambda x, _: f"{x:g}")
_TITLE_WIDTH: Final = 62
_INCHES: Final = (6.4, 3.8)
_GROUP: Final = 0.8
"""The width of all bars of a group, where groups are 1 apart."""
_BAR: Final = 0.85
"""The width of a bar, of the place that it has."""
_SETTINGS: Final[dict[Any, Any]] = {
    "svg.hashsalt": "hopsum",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
}


def draw_svg(plot: Plot | BarChart) -> str:
    """Return a plot as an SVG document, the same for the same plot and version of matplotlib.

    Its metadata have the fingerprint of what is drawn.
    """
    buffer = io.StringIO()
    metadata = {"Date": None, "Title": plot.title, "Identifier": fingerprint(plot)}
    with mpl.rc_context(_SETTINGS):
        made = draw_bars(plot) if isinstance(plot, BarChart) else draw(plot)
        made.savefig(buffer, format="svg", metadata=metadata)
    return "".join(f"{line.rstrip()}\n" for line in buffer.getvalue().splitlines())


def draw(plot: Plot) -> Figure:
    """Return a plot as a figure. Points whose y is not positive are left out where y is logarithmic."""
    made = Figure(figsize=_INCHES, layout="constrained")
    FigureCanvasAgg(made)
    axes = made.subplots()
    styles, greys = cycle(zip(_COLOURS, _MARKERS, strict=True)), cycle(_GREYS)
    for series in plot.series:
        _add(axes, series, plot, *(("", "") if series.reference else next(styles)), next(greys))
    if plot.log_x:
        axes.set_xscale("log")
        ticks = sorted({x for series in plot.series if not series.reference for x in series.x})
        if 1 < len(ticks) <= _MOST_TICKS and all(right >= _APART * left for left, right in pairwise(ticks)):
            axes.set_xticks(ticks)
            axes.xaxis.set_minor_formatter(NullFormatter())
            axes.xaxis.set_major_formatter(_PLAIN)
        elif len(ticks) > 1 and ticks[-1] < _DECADES * ticks[0]:
            axes.xaxis.set_major_locator(LogLocator(base=2))
            axes.xaxis.set_minor_formatter(NullFormatter())
            axes.xaxis.set_major_formatter(_PLAIN)
    if plot.log_y:
        axes.set_yscale("log")
    axes.set_title("\n".join(wrap(plot.title, _TITLE_WIDTH)), fontsize=10)
    axes.set_xlabel(plot.x_label)
    axes.set_ylabel(plot.y_label)
    axes.grid(visible=True, color="#dddddd", linewidth=0.5)
    axes.set_axisbelow(True)
    made.legend(loc="outside right upper", fontsize=8, frameon=False)
    return made


def draw_bars(chart: BarChart) -> Figure:
    """Return a chart of bars as a figure, each bar with its height above it, and with its interval where it has one."""
    made = Figure(figsize=_INCHES, layout="constrained")
    FigureCanvasAgg(made)
    axes = made.subplots()
    width = _GROUP / max(len(chart.series), 1)
    for number, series in enumerate(chart.series):
        middle = (number - (len(chart.series) - 1) / 2) * width
        _add_bars(axes, series, [place + middle for place in range(len(chart.groups))], width, _COLOURS[number])
    axes.axhline(chart.level, color=_GREYS[0], linestyle="--", linewidth=1, label=chart.level_name)
    axes.set_xticks(range(len(chart.groups)), chart.groups)
    axes.set_ylim(bottom=0)
    axes.set_title("\n".join(wrap(chart.title, _TITLE_WIDTH)), fontsize=10)
    axes.set_ylabel(chart.y_label)
    axes.grid(visible=True, axis="y", color="#dddddd", linewidth=0.5)
    axes.set_axisbelow(True)
    made.legend(loc="outside lower center", fontsize=8, frameon=False, ncols=2)
    return made


def _add_bars(axes: Any, series: BarSeries, places: Sequence[float], width: float, colour: str) -> None:
    label = series.name
    for place, height, low, high in zip(places, series.heights, series.low, series.high, strict=True):
        if height is None:
            continue
        axes.bar(place, height, _BAR * width, color=colour, label=label)
        label = "_nolegend_"
        top = height if high is None else max(height, high)
        if low is not None and high is not None:
            axes.errorbar(place, height, yerr=[[height - low], [high - height]], fmt="none", ecolor="#222222",
                          elinewidth=0.9, capsize=3)  # fmt: skip
        axes.annotate(f"{height:.2f}", (place, top), (0, 3), textcoords="offset points", ha="center", fontsize=8)


def _add(axes: Any, series: Series, plot: Plot, colour: str, marker: str, grey: str) -> None:
    kept = [place for place, y in enumerate(series.y) if y > 0 or not plot.log_y]
    x, y = ([values[place] for place in kept] for values in (series.x, series.y))
    if series.reference:
        axes.plot(x, y, color=grey, linestyle="--", linewidth=1, label=series.name)
        return
    reach = [series.reach[place] for place in kept] if series.reach else None
    axes.errorbar(
        x, y, yerr=reach, color=colour, marker=marker, markersize=4, linewidth=1.2, elinewidth=0.8, capsize=2,
        label=series.name,
    )  # fmt: skip
