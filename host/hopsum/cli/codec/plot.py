# SPDX-License-Identifier: Apache-2.0
"""The figure of `hopsum codec compare`: a panel per kind of vectors (rows) and number of workers (columns).

Each family has a colour (Okabe and Ito's, which the colour-blind tell apart), a marker, and its name beside its last
point in every panel; methods of one family are joined by a line in order of their bits. Errors below the floor,
which only float32 itself makes, are drawn at the floor.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from hopsum.cli.codec.measure import Cell, Plan
from hopsum.cli.codec.vectors import TITLES

FLOOR = 1e-9
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7F7F7F")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "h", "p")
_GREY = "#666666"
_LABEL_GAP = 0.062
"""Least distance between labels, in heights of a panel."""
_PANEL_INCHES = (3.1, 2.7)


def write_plots(cells: Sequence[Cell], plan: Plan, folder: Path) -> list[Path]:
    """Write nmse-against-bits.png and .svg into an existing folder; return their paths."""
    figure = draw(cells, plan)
    paths = [folder / f"nmse-against-bits.{kind}" for kind in ("png", "svg")]
    for path in paths:
        figure.savefig(path, dpi=130)
    return paths


def draw(cells: Sequence[Cell], plan: Plan) -> Figure:
    """Return the figure."""
    rows, columns = len(plan.vectors), len(plan.workers)
    width, height = _PANEL_INCHES
    figure = Figure(figsize=(width * columns + 1.2, height * rows + 1.1), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    styles = _styles(plan)
    for row, kind in enumerate(plan.vectors):
        for column, workers in enumerate(plan.workers):
            panel = panels[row][column]
            _set_up(panel, cells)
            here = [cell for cell in cells if cell.vectors == kind and cell.workers == workers]
            _panel(panel, here, styles)
            if row == 0:
                panel.set_title("1 worker" if workers == 1 else f"{workers} workers", fontsize=11)
            if row == rows - 1:
                panel.set_xlabel("bits per element, up", fontsize=9)
        panels[row][0].set_ylabel(f"{TITLES[kind]}\nNMSE of the mean", fontsize=10)
    whose = "all workers have the same vector" if plan.identical else "each worker has a vector of its own"
    figure.suptitle(
        f"Error of the mean against bits sent; {whose}. Dotted: floor, {FLOOR:.0e}; what is exact is drawn on it.",
        fontsize=12,
    )
    return figure


def _styles(plan: Plan) -> dict[str, dict[str, str]]:
    families = dict.fromkeys(candidate.family for candidate in plan.candidates)
    looks = zip(families, cycle(_COLOURS), cycle(_MARKERS), strict=False)
    return {family: {"color": colour, "marker": marker} for family, colour, marker in looks}


def _set_up(panel: Any, cells: Sequence[Cell]) -> None:
    """Set the axes, which all panels share."""
    bits = [cell.bits.up for cell in cells if cell.bits is not None]
    errors = [max(cell.nmse, FLOOR) for cell in cells if cell.nmse is not None]
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    panel.set_xlim(min(bits, default=1) / 1.5, max(bits, default=32) * 4.5)  # room for labels
    panel.set_ylim(FLOOR / 6, max([*errors, 1.0]) * 6)
    ticks = [2.0**power for power in range(-3, 6) if min(bits, default=1) / 1.5 <= 2.0**power <= 32]
    panel.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    panel.minorticks_off()
    panel.tick_params(labelsize=8)
    panel.grid(visible=True, linewidth=0.4, color="#DDDDDD")
    panel.axhline(FLOOR, linestyle=":", linewidth=0.9, color=_GREY)
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)


def _panel(panel: Any, cells: Sequence[Cell], styles: dict[str, dict[str, str]]) -> None:
    """Draw the families of one panel, and their names."""
    ends = []
    for family, style in styles.items():
        points = sorted(
            (cell.bits.up, max(cell.nmse, FLOOR))
            for cell in cells
            if cell.family == family and cell.bits is not None and cell.nmse is not None
        )
        if points:
            panel.plot(*zip(*points, strict=True), **style, linewidth=1.2, markersize=4.5, markeredgewidth=0)
            ends.append((*points[-1], family, style["color"]))
    for x, y, family, colour, place in _spread(panel, ends):
        panel.annotate(
            family, (x, y), xytext=(x * 1.25, place), fontsize=7, color=colour, va="center",
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.4, "shrinkA": 0, "shrinkB": 2},
        )  # fmt: skip


def _spread(panel: Any, ends: Sequence[tuple[float, float, str, str]]) -> list[tuple[float, float, str, str, float]]:
    """Return ends with a height for each label: its own, or moved up until it clears those below it."""
    axes = panel.transData + panel.transAxes.inverted()
    placed: list[tuple[float, float]] = []
    found = []
    for x, y, family, colour in sorted(ends, key=lambda end: end[1]):
        across, height = axes.transform((x, y))
        for other_across, other in sorted(placed, key=lambda each: each[1]):
            near = abs(other_across - across) < _LABEL_GAP * 5
            if near and abs(other - height) < _LABEL_GAP:
                height = other + _LABEL_GAP
        placed.append((across, height))
        found.append((x, y, family, colour, float(axes.inverted().transform((across, height))[1])))
    return found
