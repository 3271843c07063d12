# SPDX-License-Identifier: Apache-2.0
"""`hopsum table search`: the Pareto front of a job, expected error against workers that a lane holds.

Searched are all granularities G whose sum of N workers fits a lane, each with its best truncated fraction 1/P.
Expected NMSE is that of the mean of N equal inputs. With error feedback that of one worker, which bounds the
residual. The last row of the front is the default of such a job.
"""

from __future__ import annotations

import argparse
import json
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from hopsum.codec import CodecError, LookupTable
from hopsum.codec.lookup_table import MAX_BITS, MAX_LANE_BITS, best_table, expected_nmse, pareto_front
from hopsum_base.units import whole
from hopsum_evaluation.baselines.thc_published import PUBLISHED

SUMMARY: Final = "the Pareto front of a job: expected error against workers that a lane holds"
_SHOWN_BITS: Final = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `hopsum table search`."""
    parser.add_argument("--workers", type=whole(1), required=True, metavar="N", help="number of workers of the job")
    parser.add_argument(
        "--bits", type=whole(1, MAX_BITS), default=4, help="bits of a code, 1 to 8 (default %(default)s)"
    )
    parser.add_argument(
        "--lane-bits", type=whole(1, MAX_LANE_BITS), default=8, help="bits of a sum (default %(default)s)"
    )
    parser.add_argument(
        "--error-feedback",
        action="store_true",
        help="table of workers with error feedback, which send truncated parts later",
    )


def run(options: argparse.Namespace) -> int:
    """Search the tables, print the front, and return 0. Raises SystemExit(2) for numbers that no table fits."""
    try:
        with Console(stderr=True).status("searching tables ..."):
            report = search(options.bits, options.workers, options.lane_bits, options.error_feedback)
    except CodecError as error:
        options.parser.error(str(error))
    if options.json:
        print(json.dumps(report))
    else:
        show(report, Console())
    return 0


def search(bits: int, workers: int, lane_bits: int, error_feedback: bool) -> dict[str, Any]:
    """Search the Pareto front of a job, and return it as the object of --json. It may take seconds.

    The rows of `front` and `published` are objects, the latter None where the published table does not fit. Raises
    CodecError as `best_table`.
    """
    default = best_table(workers, lane_bits, bits, error_feedback)
    lane_max = (1 << lane_bits) - 1
    # With error feedback a worker's own error bounds its residual; without it roundings average out over workers.
    counted = 1 if error_feedback else workers
    front = [point.table for point in pareto_front(bits, workers, lane_bits, error_feedback)]
    # The published table is shown for comparison only where its sum fits the lane.
    fits = bits == PUBLISHED.bits and workers * PUBLISHED.granularity <= lane_max
    return {
        "bits": bits,
        "workers": workers,
        "lane_bits": lane_bits,
        "error_feedback": error_feedback,
        "front": [_row(table, counted, lane_max) | {"default": table == default} for table in front],
        "published": _row(PUBLISHED, counted, lane_max) if fits else None,
    }


def _row(table: LookupTable, counted: int, lane_max: int) -> dict[str, Any]:
    return {
        "granularity": table.granularity,
        "truncation": table.truncated,
        "t_p": table.bound,
        "expected_nmse": expected_nmse(table, counted),
        "workers_per_lane": lane_max // table.granularity,
        "table": list(table.values),
    }


def show(report: dict[str, Any], console: Console) -> None:
    """Print the front of a `search`, then the published table, then the values of both up to 4 bits."""
    feedback = "with" if report["error_feedback"] else "without"
    job = f"{report['bits']} bits, {report['workers']} workers, {report['lane_bits']}-bit lanes"
    grid = Table(title=f"{job}, {feedback} error feedback", title_justify="left")
    for name in ("", "g", "1/p", "t_p", "expected NMSE", "workers per lane"):
        grid.add_column(name, justify="right", no_wrap=True)
    for row in report["front"]:
        grid.add_row("default" if row["default"] else "", *_cells(row))
    published = [report["published"]] if report["published"] else []
    for row in published:
        grid.add_section()
        grid.add_row("published", *_cells(row))
    console.print(grid)
    if report["bits"] > _SHOWN_BITS:
        console.print("--json prints the tables")
        return
    for row in report["front"] + published:
        console.print(f"g = {row['granularity']:3}  T = {' '.join(map(str, row['table']))}", highlight=False)
    if report["bits"] == PUBLISHED.bits and not published:
        lane_max = (1 << report["lane_bits"]) - 1
        granularity = PUBLISHED.granularity
        console.print(f"the published default does not fit: {report['workers']} * {granularity} > {lane_max}")


def _cells(row: dict[str, Any]) -> list[str]:
    return [
        str(row["granularity"]),
        f"{1 / row['truncation']:.1f}",
        f"{row['t_p']:.4f}",
        f"{row['expected_nmse']:.4g}",
        str(row["workers_per_lane"]),
    ]
