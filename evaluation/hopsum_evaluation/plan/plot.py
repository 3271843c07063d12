# SPDX-License-Identifier: Apache-2.0
"""The figure of `hopsum plan`: how much faster a step is than with ring fp32, against link rate or workers.

A panel for each aggregator, with the ring in fp16 in all of them. A codec has a colour. Dotted: a step that is all
computing, which nothing exceeds. A ring marks the job that was asked about.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from hopsum.plan import PlanError, PlannedJob
from hopsum_evaluation.plan.forecast import Forecast, Predict, refusals, ring_methods, summed_methods, with_workers
from hopsum_evaluation.plan.units import said_rate, said_time
from hopsum_wire import MAX_WORKERS

_COLOURS: Final = {
    "thc": "#0072B2", "thc:result_bits=6": "#56B4E9", "thc:bits=2": "#D55E00", "uhc": "#E69F00", "fixed": "#CC79A7",
    "lossless": "#009E73", "fp16": "#000000",
}  # fmt: skip
_OTHER: Final = "#999999"
"""The colour of a codec with other options."""
_TITLES: Final = {
    "switch": "summed by a switch as fast as its links (assumed)",
    "embedded": "embedded switch, a link per worker",
    "server": "embedded switch behind one link (server)",
    "hosts": "embedded switch on every host (hosts)",
    "": "rings",
}
_GREY: Final = "#666666"
_RATES: Final = tuple(10 ** (7 + step / 16) for step in range(65))
"""10 Mbit/s to 100 Gbit/s."""
_WORKERS: Final = tuple(worker for worker in (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64) if worker <= MAX_WORKERS)
_DASHED: Final = {"uhc": (0, (4, 3))}
"""Sends as much as thc, as a rule: both are seen."""
_LABEL_GAP: Final = 0.05
_DPI: Final = 110

Point = tuple[float, float]


def write_plot(found: Forecast, against: str, path: Path) -> None:
    """Write the figure. `against` is "rate" or "workers". Raises PlanError when the file cannot be written."""
    figure = draw(found, against)
    try:
        figure.savefig(path, dpi=_DPI)
    except OSError as error:
        raise PlanError(f"--plot {path}: {error.strerror}") from error


def draw(found: Forecast, against: str) -> Figure:
    """Return the figure."""
    job = found.job
    aggregators = list(dict.fromkeys(method.split()[0] for method in found.wins))
    codecs = list(dict.fromkeys(method.split()[1] for method in found.wins))
    jobs = _rates(job) if against == "rate" else _workers(job)
    asked = job.link_bits_per_s if against == "rate" else job.workers
    rings = ring_methods(found.costs)
    figure = Figure(figsize=(4.4 * max(1, len(aggregators)) + 0.5, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(_title(job, against), fontsize=11)
    panels = figure.subplots(1, max(1, len(aggregators)), sharey=True, squeeze=False)[0]
    bound = _bound(jobs, rings["ring fp32"])
    drawn = [_curves(jobs, found, aggregator, codecs) for aggregator in aggregators or [""]]
    heights = [y for curves in drawn for points in curves.values() for _, y in points]
    limits = (min(*heights, 1.0) / 1.1, max(*heights, 1.0) * 1.2)
    for panel, aggregator, curves in zip(panels, aggregators or [""], drawn, strict=True):
        _fill(panel, curves, bound, limits, asked)
        panel.set_title(_TITLES[aggregator], fontsize=10)
        panel.set_xlabel("rate of a worker's link" if against == "rate" else "workers", fontsize=9)
        _ticks(panel, against)
    panels[0].set_ylabel("step: times as fast as with ring fp32", fontsize=9)
    return figure


def _rates(job: PlannedJob) -> list[tuple[float, PlannedJob]]:
    return [(rate, replace(job, link_bits_per_s=rate)) for rate in _RATES]


def _workers(job: PlannedJob) -> list[tuple[float, PlannedJob]]:
    return [(workers, with_workers(job, workers)) for workers in _WORKERS]


def _curves(
    jobs: Sequence[tuple[float, PlannedJob]], found: Forecast, aggregator: str, codecs: Sequence[str]
) -> dict[str, list[Point]]:
    """Return the curves of a panel by the name at their end."""
    rings = ring_methods(found.costs)
    summed = summed_methods(found.costs, codecs, [aggregator]) if aggregator else {}
    methods = {name.split()[1]: predict for name, predict in (rings | summed).items() if name != "ring fp32"}
    return {name: _speedups(jobs, name, predict, rings["ring fp32"]) for name, predict in methods.items()}


def _speedups(jobs: Sequence[tuple[float, PlannedJob]], codec: str, ours: Predict, ring: Predict) -> list[Point]:
    """Return the curve of a method, without jobs that its codec cannot have."""
    possible = [(x, job) for x, job in jobs if codec == "fp16" or not refusals(job.workers, [codec])]
    return [(x, ring(job).step_s / ours(job).step_s) for x, job in possible]


def _bound(jobs: Sequence[tuple[float, PlannedJob]], ring: Predict) -> list[Point]:
    """Return the speed-up of a step that is all computing."""
    return [(x, ring(job).step_s / job.compute_s) for x, job in jobs if job.compute_s]


def _title(job: PlannedJob, against: str) -> str:
    overlapped = f", {job.overlap:.0%} of it overlapped" if job.overlap else ""
    links = f"links of {said_rate(job.link_bits_per_s)}" if against == "workers" else f"{job.workers} workers"
    return f"{job.elements:,} gradients, {links}, computing {said_time(job.compute_s)}{overlapped}: predicted steps"


def _fill(
    panel: Any, curves: dict[str, list[Point]], bound: list[Point], limits: tuple[float, float], asked: float
) -> None:
    """Draw curves, their names, the bound and the job that was asked about."""
    panel.set_xscale("log")
    panel.set_yscale("log", base=2)
    panel.set_ylim(*limits)
    panel.axhline(1, color=_GREY, linewidth=0.7)
    if bound:
        panel.plot(*zip(*bound, strict=True), color=_GREY, linestyle=":", linewidth=1.1)
    axes = panel.transData + panel.transAxes.inverted()
    ends = []
    for name, points in curves.items():
        colour = _COLOURS.get(name, _OTHER)
        style = {"color": colour, "linestyle": _DASHED.get(name, "-")}
        panel.plot(*zip(*points, strict=True), **style, linewidth=1.6)
        panel.plot(*_nearest(points, asked), marker="o", markersize=5, color=colour, markerfacecolor="white")
        ends.append((float(axes.transform(points[-1])[1]), name, points[-1]))
    ends.sort()
    for place, (_, name, point) in zip(spread([end[0] for end in ends], _LABEL_GAP), ends, strict=True):
        panel.annotate(
            name, point, xytext=(1.03, place), textcoords="axes fraction", fontsize=8, color=_COLOURS.get(name, _OTHER),
            va="center", annotation_clip=False,
        )  # fmt: skip
    panel.grid(visible=True, linewidth=0.4, color="#DDDDDD")
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)


def _nearest(points: Sequence[Point], asked: float) -> tuple[list[float], list[float]]:
    """Return the point to mark, none if what was asked is outside of the curve."""
    if not points or not points[0][0] <= asked <= points[-1][0]:
        return [], []
    x, y = min(points, key=lambda point: abs(point[0] / asked - 1))
    return [x], [y]


def _ticks(panel: Any, against: str) -> None:
    say: Callable[[float, int], str] = (lambda x, _: said_rate(x)) if against == "rate" else (lambda x, _: f"{x:g}")
    panel.xaxis.set_major_formatter(FuncFormatter(say))
    panel.xaxis.set_minor_formatter(NullFormatter())
    panel.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    if against == "workers":
        panel.set_xticks([2.0**power for power in range(1, 7)])
        panel.minorticks_off()
    panel.tick_params(labelsize=8)
    for label in panel.get_xticklabels():
        label.set_rotation(30)


def spread(heights: Sequence[float], gap: float = 0.075) -> list[float]:
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
    return max(0.0, sum(group) / len(group) - gap * (len(group) - 1) / 2)
