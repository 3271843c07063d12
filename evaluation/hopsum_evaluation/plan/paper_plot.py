# SPDX-License-Identifier: Apache-2.0
"""The figures of `hopsum plan paper`: those of the publication that its text suffices for, and our codecs beside."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from hopsum_evaluation.plan.paper_model import (
    PUBLISHED_GZIP,
    PUBLISHED_RATIOS,
    PUBLISHED_WORKERS,
    SHOWN_WORKERS,
    Calibrated,
    Repeated,
    SynchronousSgd,
)
from hopsum_evaluation.plan.traffic import PlanError
from hopsum_evaluation.units import said_rate, said_time

_BARS: Final = (1, 2, 4, 8, 12, 16, 20, 25)
_OVERHEADS: Final = tuple(1 + step / 10 for step in range(11))
_COMPUTE, _TRANSFER, _CODEC, _IDEAL, _VANILLA = "#0072B2", "#D55E00", "#999999", "#E69F00", "#CC3311"
_RATIO_COLOURS: Final = {0.2: "#009E73", 0.5: "#882255"}
_GREY: Final = "#666666"
_NEAR: Final = 0.02
_DPI: Final = 100


def write_plot(job: SynchronousSgd, codecs: Sequence[Calibrated], own: Repeated, path: Path) -> None:
    """Write the figures. Raises PlanError when the file cannot be written."""
    figure = draw(job, codecs, own)
    try:
        figure.savefig(path, dpi=_DPI)
    except OSError as error:
        raise PlanError(f"--plot {path}: {error.strerror}") from error


def draw(job: SynchronousSgd, codecs: Sequence[Calibrated], own: Repeated) -> Figure:
    """Return the figures: `own` is our gzip, for all of W."""
    figure = Figure(figsize=(18, 8.4), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(
        f"Homomorphic Parameter Compression, its model: W = {job.weights_bytes / 1e6:,.0f} MB, "
        f"{said_rate(8 * job.bytes_per_s)}, {job.iterations:g} iterations of C = {said_time(job.minibatch_s)} "
        "(C is ours)",
        fontsize=12,
    )
    (a, b, c, d), (e, f, g, h) = figure.subplots(2, 4)
    _stacked(a, "Fig. 4 (a): one update, vanilla", job, 1.0, 1.0, None)
    _stacked(b, "Fig. 5 (a): gzip at every update", job, PUBLISHED_GZIP.ratio, 1.0, PUBLISHED_GZIP)
    _speedups(c, job, codecs)
    _totals(d, job, own)
    _overheads(e, job, 0.2)
    _overheads(f, job, 0.5)
    _stacked(g, "Fig. 7 (b): h = 1.3, rho = 0.2", job, 0.2, 1.3, None)
    _bound(h, job, codecs)
    for panel in (a, b, c, d, e, f, g, h):
        panel.grid(visible=True, axis="y", linewidth=0.4, color="#DDDDDD")
        panel.set_axisbelow(True)
        panel.tick_params(labelsize=8)
        for side in ("top", "right"):
            panel.spines[side].set_visible(False)
    return figure


def _stacked(panel: Any, title: str, job: SynchronousSgd, ratio: float, overhead: float, gzip: Repeated | None) -> None:
    """Draw one update for several M: computing, transfer, and what a repeated compression adds."""
    places = np.arange(len(_BARS))
    compute = np.array([job.compute_s(m, overhead) for m in _BARS])
    # A single worker sends nothing. The formula alone would charge a transfer.
    transfer = np.array([job.transfer_s(m, ratio) if m > 1 else 0.0 for m in _BARS])
    panel.bar(places, compute, color=_COMPUTE, label="T_cmt")
    panel.bar(places, transfer, bottom=compute, color=_TRANSFER, label="T_inf")
    if gzip is not None:
        codec = np.array([gzip.codec_s(m) if m > 1 else 0.0 for m in _BARS])
        panel.bar(places, codec, bottom=compute + transfer, color=_CODEC, label="(de)compressing")
    panel.axhline(job.single_node_s, color=_GREY, linewidth=0.8, linestyle=":")
    panel.set_xticks(places, [str(m) for m in _BARS])
    _label(panel, title, "workers M (1: sends nothing)", "seconds of an update")


def _speedups(panel: Any, job: SynchronousSgd, codecs: Sequence[Calibrated]) -> None:
    """Draw figure 6 (a), as far again as the published cluster goes, and our thc."""
    workers = range(1, 2 * PUBLISHED_WORKERS + 1)
    panel.plot(workers, workers, color=_IDEAL, linestyle=":", label="ideal")
    panel.plot(workers, [job.speedup(m) for m in workers], color=_IDEAL, linestyle="--", label="vanilla")
    for ratio in PUBLISHED_RATIOS:
        curve = [job.speedup(m, ratio) for m in workers]
        panel.plot(workers, curve, color=_RATIO_COLOURS[ratio], label=f"rho = {ratio:g}, h = 1")
    thc = next(codec for codec in codecs if codec.codec == "thc")
    codec_s = (thc.overhead - 1) * job.compute_s(SHOWN_WORKERS)
    # A server takes one vector after the other, so transfer grows with M. Through a switch it does not: power 0.
    for label, power, style in (("ours: thc, server", 1, "-."), ("ours: thc, switch", 0, "-")):
        seconds = [job.compute_s(m) + codec_s + job.transfer_s(m**power, thc.ratio) for m in workers]
        panel.plot(workers, job.single_node_s / np.array(seconds), color="#000000", linestyle=style, label=label)
    panel.axvline(PUBLISHED_WORKERS, color=_GREY, linewidth=0.8, linestyle=":")
    # The ideal line would squeeze all others: it is cut at the published cluster.
    panel.set_ylim(0, 1.1 * PUBLISHED_WORKERS)
    _label(panel, "Fig. 6 (a): speed-up over one node", "workers M (dotted: the published cluster)", "times")


def _totals(panel: Any, job: SynchronousSgd, own: Repeated) -> None:
    """Draw figure 7 (a) per update: the total is a multiple of it, and its number of updates is not published."""
    workers = range(2, PUBLISHED_WORKERS + 1)
    curves = {
        "gzip, published": (_CODEC, "-", [PUBLISHED_GZIP.update_s(job, m) for m in workers]),
        "gzip, measured here": (_CODEC, "--", [own.update_s(job, m) for m in workers]),
        "vanilla": (_VANILLA, "-", [job.update_s(m) for m in workers]),
        "rho = 0.2, h = 1.3": (_RATIO_COLOURS[0.2], "-", [job.update_s(m, 0.2, 1.3) for m in workers]),
    }
    for name, (colour, style, seconds) in curves.items():
        panel.plot(workers, np.array(seconds) / job.single_node_s, color=colour, linestyle=style, label=name)
    panel.axhline(1, color=_GREY, linewidth=0.8, linestyle=":")
    panel.set_ylim(bottom=0)
    _label(panel, "Fig. 7 (a): training time over one node's", "workers M", "times")


def _overheads(panel: Any, job: SynchronousSgd, ratio: float) -> None:
    """Draw figure 6 (b) or (c): an update of SHOWN_WORKERS for h from 1 to 2."""
    places = np.arange(len(_OVERHEADS))
    compute = np.array([job.compute_s(SHOWN_WORKERS, h) for h in _OVERHEADS])
    transfer = np.full(len(_OVERHEADS), job.transfer_s(SHOWN_WORKERS, ratio))
    panel.bar(places, compute, color=_COMPUTE, label="T_cmt")
    panel.bar(places, transfer, bottom=compute, color=_TRANSFER, label="T_inf")
    panel.axhline(job.compute_s(SHOWN_WORKERS), color=_IDEAL, linestyle=":", label="ideal")
    panel.axhline(job.update_s(SHOWN_WORKERS), color=_VANILLA, label="vanilla")
    panel.set_xticks(places, [f"{h:.1f}" for h in _OVERHEADS])
    panel.set_ylim(0, 1.35 * job.update_s(SHOWN_WORKERS))
    part = "b" if ratio == PUBLISHED_RATIOS[0] else "c"
    _label(panel, f"Fig. 6 ({part}): M = {SHOWN_WORKERS}, rho = {ratio:g}", "h", "seconds of an update", "upper center")


def _bound(panel: Any, job: SynchronousSgd, codecs: Sequence[Calibrated]) -> None:
    """Draw the bound on h against rho for some speed-ups, and our codecs."""
    ratios = np.linspace(0, 1.1, 50)
    for speedup in (2, 4, 8):
        slack = SHOWN_WORKERS / speedup
        bound = [job.overhead_bound(SHOWN_WORKERS, ratio, slack) for ratio in ratios]
        panel.plot(ratios, bound, color=_GREY, linewidth=1)
        at = next((x for x, y in zip(ratios, bound, strict=True) if y < 1.6), None)
        if at is not None:
            panel.annotate(f"x {speedup}", (at, 1.6), fontsize=8, color=_GREY, ha="left")
    highest = max(2.0, *(codec.overhead for codec in codecs)) + 0.15
    for place, names in _points(codecs).items():
        panel.plot(*place, marker="o", color=_COMPUTE)
        panel.annotate(", ".join(names), place, xytext=(4, 4), textcoords="offset points", fontsize=8)
    panel.set_xlim(0, 1.15)
    panel.set_ylim(0.9, highest)
    panel.set_title(f"h <= r - rho M² W / (i C chi), M = {SHOWN_WORKERS}; points: ours", fontsize=10)
    panel.set_xlabel("rho (lines: as fast as so many single nodes)", fontsize=9)
    panel.set_ylabel("h", fontsize=9)


def _points(codecs: Sequence[Calibrated]) -> dict[tuple[float, float], list[str]]:
    """Return names by place, those that cannot be told apart together."""
    found: dict[tuple[float, float], list[str]] = {}
    for codec in codecs:
        # Names of codecs at one place would cover each other.
        near = [place for place in found if np.hypot(place[0] - codec.ratio, place[1] - codec.overhead) < _NEAR]
        found.setdefault(near[0] if near else (codec.ratio, codec.overhead), []).append(codec.codec)
    return found


def _label(panel: Any, title: str, x: str, y: str, where: str = "best") -> None:
    panel.set_title(title, fontsize=10)
    panel.set_xlabel(x, fontsize=9)
    panel.set_ylabel(y, fontsize=9)
    panel.legend(fontsize=7, frameon=False, loc=where)
