# SPDX-License-Identifier: Apache-2.0
"""The figures of `hopsum codec compare`, in colours of Okabe, Ito and Tol, which the colour-blind tell apart.

`draw_methods`: NMSE against bits per element, a panel per kind of vectors (rows) and number of workers (columns). A
family has a colour, a marker, and its name at the right. A line joins those of its methods that no other of them
beats with fewer bits. `draw_variants`: NMSE of thc's variants against workers, a panel per kind of vectors.

What is below FLOOR or above CEILING is drawn there, hollow, and its name says the value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from hopsum_evaluation.compare.measure import Cell, ComparisonPlan
from hopsum_evaluation.compare.report import short
from hopsum_evaluation.compare.vectors import TITLES

FLOOR, CEILING = 1e-6, 10.0
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7F7F7F",
            "#882255", "#999933", "#332288", "#44AA99")  # fmt: skip
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "h", "p")
_GREY = "#666666"
_LABEL_GAP = 0.075
"""Least distance between labels, in heights of a panel."""
_PANEL_INCHES = (3.5, 2.7)
_LABEL_SIZE = 8
_DPI = 110


class PlotLine(NamedTuple):
    """Points of one name."""

    name: str
    points: Sequence[tuple[float, float]]
    """The points in order of x."""
    joined: Sequence[tuple[float, float]]
    """Those of them that a line joins. The name is at the last."""
    style: Mapping[str, str]


def write_plots(cells: Sequence[Cell], plan: ComparisonPlan, folder: Path) -> list[Path]:
    """Write the figures as PNG and SVG into an existing folder. Return their paths."""
    figures = {"nmse-against-bits": draw_methods(cells, plan)}
    if any(candidate.variant for candidate in plan.candidates):
        figures["thc-variants"] = draw_variants(cells, plan)
    paths = []
    for name, figure in figures.items():
        for kind in ("png", "svg"):
            paths.append(folder / f"{name}.{kind}")
            figure.savefig(paths[-1], dpi=_DPI)
    return paths


def draw_methods(cells: Sequence[Cell], plan: ComparisonPlan) -> Figure:
    """Return the figure of error against bits."""
    rows, columns = len(plan.vectors), len(plan.workers)
    figure, panels = _figure(rows, columns, f"Error of the mean against bits sent; {_whose(plan)}")
    styles = _styles([candidate.family for candidate in plan.candidates])
    bits = [cell.bits.up for cell in cells if cell.bits is not None and cell.family]
    for row, kind in enumerate(plan.vectors):
        for column, workers in enumerate(plan.workers):
            panel = panels[row][column]
            here = [cell for cell in cells if cell.vectors == kind and cell.workers == workers]
            lines = [_line(family, [(c, c.bits.up) for c in here if c.family == family and c.bits], style, best=True)
                     for family, style in styles.items()]  # fmt: skip
            _fill(panel, lines, bits, (FLOOR, CEILING))
            if row == 0:
                panel.set_title("1 worker" if workers == 1 else f"{workers} workers", fontsize=11)
            if row == rows - 1:
                panel.set_xlabel("bits per element, up", fontsize=9)
        panels[row][0].set_ylabel(f"{TITLES[kind]}\nNMSE of the mean", fontsize=10)
    return figure


def draw_variants(cells: Sequence[Cell], plan: ComparisonPlan) -> Figure:
    """Return the figure of thc's variants against workers."""
    figure, panels = _figure(1, len(plan.vectors), f"Variants of thc, error of the mean; {_whose(plan)}")
    styles = _styles([candidate.variant for candidate in plan.candidates])
    errors = [min(max(cell.nmse, FLOOR), CEILING) for cell in cells if cell.variant and cell.nmse is not None]
    limits = (min(errors, default=FLOOR), max(errors, default=CEILING))
    for panel, kind in zip(panels[0], plan.vectors, strict=True):
        here = [cell for cell in cells if cell.vectors == kind]
        lines = [_line(variant, [(cell, cell.workers) for cell in here if cell.variant == variant], style)
                 for variant, style in styles.items()]  # fmt: skip
        _fill(panel, lines, plan.workers, limits)
        panel.set_title(TITLES[kind], fontsize=11)
        panel.set_xlabel("workers", fontsize=9)
    panels[0][0].set_ylabel("NMSE of the mean", fontsize=10)
    return figure


def _figure(rows: int, columns: int, title: str) -> tuple[Figure, Any]:
    width, height = _PANEL_INCHES
    figure = Figure(figsize=(width * columns + 0.6, height * rows + 0.9), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(
        f"{title}.  Hollow, on a dotted line: beyond {short(FLOOR)} or {short(CEILING)}, see the figure at its name.",
        fontsize=11,
    )
    return figure, figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)


def _whose(plan: ComparisonPlan) -> str:
    return "all workers have the same vector" if plan.identical else "each worker has a vector of its own"


def _styles(names: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return colour and marker by name. Methods without a name are not in the figure."""
    looks = zip([name for name in dict.fromkeys(names) if name], cycle(_COLOURS), cycle(_MARKERS), strict=False)
    return {name: {"color": colour, "marker": marker} for name, colour, marker in looks}


def _line(name: str, cells: Sequence[tuple[Cell, float]], style: Mapping[str, str], *, best: bool = False) -> PlotLine:
    """Return the line of some cells and their x.

    With `best` it joins only points lower than all to the left of them.
    """
    points = sorted((x, cell.nmse) for cell, x in cells if cell.nmse is not None)
    joined = [point for place, point in enumerate(points) if all(point[1] < left[1] for left in points[:place])]
    return PlotLine(name, points, joined if best else points, style)


def _fill(panel: Any, lines: Sequence[PlotLine], xs: Sequence[float], limits: tuple[float, float]) -> None:
    """Set up a panel, whose x are among xs and whose y is between limits, and draw lines and their names."""
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    low, high = min(xs, default=1.0), max(xs, default=32.0)
    panel.set_xlim(low / 1.3, high * 1.3)
    panel.set_ylim(limits[0] / 2, limits[1] * 2)
    ticks = [2.0**power for power in range(-3, 7) if low / 1.2 <= 2.0**power <= high * 1.2]
    panel.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    panel.minorticks_off()
    panel.tick_params(labelsize=8)
    panel.grid(visible=True, linewidth=0.4, color="#DDDDDD")
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)
    for limit in (FLOOR, CEILING):
        panel.axhline(limit, linestyle=":", linewidth=0.9, color=_GREY)
    used = [line for line in lines if line.points]
    for line in used:
        _draw(panel, line)
    _name(panel, used)


def _draw(panel: Any, line: PlotLine) -> None:
    """Draw points and their line. Points out of range are on the limit, hollow."""
    panel.plot(*zip(*map(_shown, line.joined), strict=True), color=line.style["color"], linewidth=1.2)
    shown = [_shown(point) for point in line.points]
    inside = [point for point, (_, y) in zip(shown, line.points, strict=True) if point[1] == y]
    beyond = [point for point, (_, y) in zip(shown, line.points, strict=True) if point[1] != y]
    for points, fill in ((inside, line.style["color"]), (beyond, "white")):
        if points:
            panel.plot(*zip(*points, strict=True), **line.style, linestyle="", markersize=4.5, markerfacecolor=fill)


def _shown(point: tuple[float, float]) -> tuple[float, float]:
    return point[0], min(max(point[1], FLOOR), CEILING)


def _name(panel: Any, lines: Sequence[PlotLine]) -> None:
    """Write names at the right of the panel, in order of height, each with a thin line to its last point."""
    axes = panel.transData + panel.transAxes.inverted()
    ends = []
    for line in lines:
        y = line.joined[-1][1]
        x, seen = _shown(line.joined[-1])
        text = line.name if seen == y else f"{line.name} {short(y)}"
        ends.append((float(axes.transform((x, seen))[1]), text, (x, seen), line.style["color"]))
    ends.sort(key=lambda end: end[:2])
    for place, (_, text, point, colour) in zip(spread([end[0] for end in ends]), ends, strict=True):
        panel.annotate(
            text, point, xytext=(1.06, place), textcoords="axes fraction", fontsize=_LABEL_SIZE, color=colour,
            va="center", annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.4, "shrinkA": 0, "shrinkB": 2},
        )  # fmt: skip


def spread(heights: Sequence[float], gap: float = _LABEL_GAP) -> list[float]:
    """Return places for labels that want these heights, ascending: at least a gap apart, and as near as that allows.

    Labels that would overlap form a group around the mean of what they want, as long as groups overlap.
    None is below 0.
    """
    groups: list[list[float]] = []
    for height in heights:
        groups.append([height])
        while len(groups) > 1 and _bottom(groups[-1], gap) < _bottom(groups[-2], gap) + len(groups[-2]) * gap:
            groups[-2:] = [groups[-2] + groups[-1]]
    return [_bottom(group, gap) + gap * place for group in groups for place in range(len(group))]


def _bottom(group: Sequence[float], gap: float) -> float:
    return max(0.0, float(np.mean(group)) - gap * (len(group) - 1) / 2)
