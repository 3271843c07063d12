# SPDX-License-Identifier: Apache-2.0
"""`hopsum plan paper`: the synchronous-SGD model of Homomorphic Parameter Compression (arXiv 1711.10123).

AlexNet's 233 MB on gigabit Ethernet as published, its figures 4 (a), 5 (a), 6 and 7 (a), (b), its table of gzip beside
what gzip makes of a gradient of ours on this machine, and where our codecs stand: rho and h. C, the seconds of a
minibatch on one node, is not published: --minibatch says it, and each line which C it needs. The figures of the
second model (STREET) need its size, which is not published either.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from hopsum.plan import Costs, PlanError, SynchronousSgd
from hopsum.plan.paper import ALEXNET_BYTES, ALEXNET_ITERATIONS, GIGABIT_ETHERNET_BYTES_PER_S, PUBLISHED_TABLE
from hopsum_evaluation.bench.timing import machine
from hopsum_evaluation.plan.arguments import costs_of, require_plot
from hopsum_evaluation.plan.gzip_cost import GzipCost, measure_gzip
from hopsum_evaluation.plan.paper_findings import SHOWN_WORKERS, Calibrated, as_json, calibrated, claims
from hopsum_evaluation.plan.units import rate_bits_per_s, said_rate, said_time, size_bytes, time_s

MINIBATCH_S = 0.2
"""Ours: below the 0.233 s that one of the publication's statements needs."""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of this word."""
    parser = argparse.ArgumentParser(
        prog="hopsum plan paper",
        description=(__doc__ or "").partition("\n\n")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--weights",
        type=size_bytes,
        default=ALEXNET_BYTES,
        metavar="SIZE",
        help="size of the weights, W in the paper (default 233MB)",
    )
    parser.add_argument(
        "--minibatch",
        type=time_s,
        default=MINIBATCH_S,
        metavar="TIME",
        help=f"time of a minibatch, C (default {said_time(MINIBATCH_S)})",
    )
    parser.add_argument(
        "--iterations",
        type=float,
        default=ALEXNET_ITERATIONS,
        metavar="N",
        help="number of iterations, i (default %(default)s)",
    )
    parser.add_argument(
        "--rate", type=rate_bits_per_s, default=8 * GIGABIT_ETHERNET_BYTES_PER_S, metavar="RATE",
        help="rate of the network, chi (default 1gbit)",
    )  # fmt: skip
    parser.add_argument(
        "--costs", type=Path, metavar="FILE", help="file of `hopsum plan --calibrate` with the costs of our codecs"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else on stdout")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="file for the figures, PNG or SVG by its name")
    parser.set_defaults(calibrate=None)
    return parser


def main(arguments: Sequence[str]) -> int:
    """Compute, measure gzip, print and plot. Return 0 unless a statement is not reproduced with this C."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    try:
        require_plot(options.plot)
        job = SynchronousSgd(options.weights, options.minibatch, options.iterations, options.rate / 8)
        costs = costs_of(options)
        own = measure_gzip()
        plots = _plot(job, costs, own, options.plot)
    except PlanError as error:
        parser.error(str(error))
    if options.json:
        print(json.dumps(as_json(job, costs, own, plots) | {"machine": machine()}))
    else:
        show(job, costs, own, Console())
        for path in plots:
            print(path)
    return 0 if all(claim.reproduced for claim in claims(job)) else 1


def show(job: SynchronousSgd, costs: Costs, own: GzipCost, console: Console) -> None:
    """Print statements, gzip and codecs."""
    console.print(
        f"W = {job.weights_bytes / 1e6:,.0f} MB, chi = {said_rate(8 * job.bytes_per_s)}, i = {job.iterations:g}, "
        f"C = {said_time(job.minibatch_s)} (not published)", highlight=False,
    )  # fmt: skip
    table = _table("statements of the publication", "published", "model", "needs", "")
    for claim in claims(job):
        verdict = "reproduced" if claim.reproduced else "[red]not reproduced"
        table.add_row(claim.claim, claim.published, claim.ours, claim.condition, verdict)
    console.print(table)
    console.print(_gzip(job, own))
    console.print(_codecs(calibrated(job, costs)))
    console.print(
        "rho: the larger way, whole frames; h: 1 + M (encoding + decoding) / (i C); r: least with "
        "h <= r - rho M^2 W / (i C chi); by a switch: T_inf without the factor M, which is not the publication's.",
        highlight=False,
    )
    where = machine()
    console.print(f"gzip measured on {where['processor']}, load {where['load_1min']}", highlight=False)


def _gzip(job: SynchronousSgd, own: GzipCost) -> Table:
    table = _table("gzip", "bytes", "ratio", "compress", "decompress", "MB/s", "MB/s")
    for name, size, ratio, compress_s, decompress_s in PUBLISHED_TABLE:
        table.add_row(f"published: {name}", *_gzip_row(size, ratio, compress_s, decompress_s))
    size, ratio = own.size_bytes, own.size_bytes / own.compressed_bytes
    table.add_row("here: gradients, recorded", *_gzip_row(size, ratio, own.compress_s, own.decompress_s))
    ours = own.of(job.weights_bytes)
    table.add_row("here, for W", *_gzip_row(job.weights_bytes, 1 / ours.ratio, ours.compress_s, ours.decompress_s))
    return table


def _gzip_row(size: float, ratio: float, compress_s: float, decompress_s: float) -> list[str]:
    speeds = [f"{size / 1e6 / seconds:,.1f}" for seconds in (compress_s, decompress_s)]
    said = f"{size / 1e9:.3g} GB" if size >= 1e9 else f"{size / 1e6:.3g} MB"
    return [said, f"{ratio:.3f}", f"{compress_s:,.3f} s", f"{decompress_s:,.3f} s", *speeds]


def _codecs(rows: Sequence[Calibrated]) -> Table:
    table = _table(f"our codecs, M = {SHOWN_WORKERS}", "rho up", "rho down", "h", "r", "speed-up", "by a switch")
    for row in rows:
        figures = (row.ratio_up, row.ratio_down, row.overhead, row.least_slack, row.speedup, row.switch_speedup)
        table.add_row(row.codec, *(f"{figure:.3g}" for figure in figures))
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("")
    for name in columns:
        table.add_column(name, justify="right")
    return table


def _plot(job: SynchronousSgd, costs: Costs, own: GzipCost, path: Path | None) -> list[str]:
    if path is None:
        return []
    from hopsum_evaluation.plan.paper_plot import write_plot

    write_plot(job, calibrated(job, costs), own.of(job.weights_bytes), path)
    return [str(path)]
