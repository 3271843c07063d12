# SPDX-License-Identifier: Apache-2.0
"""The figures of a report as SVG: colours of Okabe, Ito and Tol, markers that differ, references dashed and grey."""

from __future__ import annotations

import io
from itertools import cycle, pairwise
from textwrap import wrap
from typing import Any, Final

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from hopsum_evaluation.report.shown import Plot, Series

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
_SETTINGS: Final[dict[Any, Any]] = {
    "svg.hashsalt": "hopsum",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
}


def draw_svg(plot: Plot) -> str:
    """Return a plot as an SVG document, the same for the same plot and version of matplotlib."""
    buffer = io.StringIO()
    with mpl.rc_context(_SETTINGS):
        draw(plot).savefig(buffer, format="svg", metadata={"Date": None, "Title": plot.title})
    return buffer.getvalue()


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
