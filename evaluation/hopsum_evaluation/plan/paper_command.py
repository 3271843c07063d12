# SPDX-License-Identifier: Apache-2.0
"""`hopsum plan paper`: the synchronous-SGD model of Homomorphic Parameter Compression (arXiv 1711.10123).

AlexNet's 233 MB on gigabit Ethernet as published, its figures 4 (a), 5 (a), 6 and 7 (a), (b) (--json), and its table of
gzip. C, the seconds of a minibatch on one node, is not published: --minibatch says it, and each line which C it needs.
The figures of the second model (STREET) need its size, which is not published either.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from hopsum_base.units import format_rate, format_time, rate_bits_per_s, real, size_bytes, time_s
from hopsum_evaluation.plan.paper_model import (
    ALEXNET_BYTES,
    ALEXNET_ITERATIONS,
    GIGABIT_ETHERNET_BYTES_PER_S,
    PUBLISHED_GZIP,
    PUBLISHED_RATIOS,
    PUBLISHED_TABLE,
    PUBLISHED_WORKERS,
    SHOWN_WORKERS,
    RepeatedCompression,
    SynchronousSgd,
    claims,
)
from hopsum_evaluation.plan.traffic import PlanError

MINIBATCH_S = 0.2
"""Ours: below the 0.233 s that one of the publication's statements needs."""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
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
        help=f"time of a minibatch, C (default {format_time(MINIBATCH_S)})",
    )
    parser.add_argument(
        "--iterations",
        type=real(0, above=True),
        default=ALEXNET_ITERATIONS,
        metavar="N",
        help="number of iterations, i (default %(default)s)",
    )
    parser.add_argument(
        "--rate", type=rate_bits_per_s, default=8 * GIGABIT_ETHERNET_BYTES_PER_S, metavar="RATE",
        help="rate of the network, chi (default 1gbit)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else on stdout")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run the command: compute, print tables or JSON. Return 0 if all statements are reproduced with this C, else 1."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    try:
        job = SynchronousSgd(options.weights, options.minibatch, options.iterations, options.rate / 8)
    except PlanError as error:
        parser.error(str(error))
    if options.json:
        print(json.dumps(as_json(job)))
    else:
        show(job, Console())
    return 0 if all(claim.reproduced for claim in claims(job)) else 1


def show(job: SynchronousSgd, console: Console) -> None:
    """Print each statement of the publication with the model's figure and verdict, and the published table of gzip."""
    console.print(
        f"W = {job.weights_bytes / 1e6:,.0f} MB, chi = {format_rate(8 * job.bytes_per_s)}, i = {job.iterations:g}, "
        f"C = {format_time(job.minibatch_s)} (not published)", highlight=False,
    )  # fmt: skip
    table = _table("statements of the publication", "published", "model", "needs", "")
    for claim in claims(job):
        verdict = "reproduced" if claim.reproduced else "[red]not reproduced"
        table.add_row(claim.claim, claim.published, claim.ours, claim.condition, verdict)
    console.print(table)
    console.print(_gzip())


def _gzip() -> Table:
    table = _table("gzip, published", "bytes", "ratio", "compress", "decompress", "MB/s", "MB/s")
    for name, size, ratio, compress_s, decompress_s in PUBLISHED_TABLE:
        speeds = [f"{size / 1e6 / seconds:,.1f}" for seconds in (compress_s, decompress_s)]
        said = f"{size / 1e9:.3g} GB" if size >= 1e9 else f"{size / 1e6:.3g} MB"
        table.add_row(name, said, f"{ratio:.3f}", f"{compress_s:,.3f} s", f"{decompress_s:,.3f} s", *speeds)
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("")
    for name in columns:
        table.add_column(name, justify="right")
    return table


def as_json(job: SynchronousSgd) -> dict[str, Any]:
    """Return the report of --json: curves up to twice the published cluster, claims, gzip."""
    # As far again as the published cluster goes.
    workers = list(range(1, 2 * PUBLISHED_WORKERS + 1))
    return {
        "job": asdict(job),
        "workers": workers,
        "compute_s": [job.compute_s(m) for m in workers],
        "transfer_s": {_rho(rho): [job.transfer_s(m, rho) for m in workers] for rho in (1.0, *PUBLISHED_RATIOS)},
        "speedup": {_rho(rho): [job.speedup(m, rho) for m in workers] for rho in (1.0, *PUBLISHED_RATIOS)},
        "bound_workers": SHOWN_WORKERS,
        "overhead_bound": {_rho(rho): _bounds(job, rho) for rho in (1.0, *PUBLISHED_RATIOS)},
        "gzip_published": PUBLISHED_GZIP._asdict() | {"update_s": _updates(job, PUBLISHED_GZIP, workers)},
        "claims": [asdict(claim) for claim in claims(job)],
    }


def _bounds(job: SynchronousSgd, ratio: float) -> list[float]:
    """Return the most h for r = 1, 2 and so on, up to r = M: no faster than the single node."""
    return [job.overhead_bound(SHOWN_WORKERS, ratio, slack) for slack in range(1, SHOWN_WORKERS + 1)]


def _updates(job: SynchronousSgd, gzip: RepeatedCompression, workers: list[int]) -> list[float]:
    return [gzip.update_s(job, m) for m in workers]


def _rho(ratio: float) -> str:
    return f"{ratio:g}"
