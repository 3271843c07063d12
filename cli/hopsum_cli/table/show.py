# SPDX-License-Identifier: Apache-2.0
"""`hopsum table show`: the table of a job with a codec, and the values of requantised results.

Levels: the coordinate that a code stands for, in units of the block's range, and the value that the switch adds. With
thc's dither these levels are even, and a receiver adds the distance of the sender's dither.

Results: where the switch looks sums up again, a code stands for the sums between two thresholds. A receiver takes the
value of a code from the class of the block. A class is known by the block's energy, the sum of (2 code - 2^BITS + 1)^2
over its codes. It stands for a mean whose root mean square is this share of the range, 1 for equal vectors,
1/sqrt(N) for independent ones, and less for vectors of unlike norms.
"""

from __future__ import annotations

import argparse
import json
from itertools import pairwise
from typing import Any, Final

import numpy as np
from rich.console import Console
from rich.table import Table

from hopsum.codec import CodecError, make_codec
from hopsum.codec.arguments import check_codec, switch_codec_argument
from hopsum.codec.dither import CLASSES, Dither
from hopsum.codec.thc import LookupTableCodec
from hopsum_base.units import whole
from hopsum_evaluation.expected_error import expected_normal_nmse
from hopsum_wire import MAX_WORKERS

SUMMARY: Final = "the table of a job with a codec, and the values of requantised results"
_HALF_LANES: Final = 64
"""The upper seven bits of a lane of 0."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `hopsum table show`."""
    parser.add_argument(
        "--workers", type=whole(1, MAX_WORKERS), required=True, metavar="N", help="number of workers of the job"
    )
    parser.add_argument(
        "--codec", type=switch_codec_argument, default="thc", help="codec of the job (default %(default)s)"
    )
    parser.add_argument(
        "--contributors", type=whole(1), metavar="C", help="workers in a sum, of which values are shown (default: all)"
    )


def run(options: argparse.Namespace) -> int:
    """Make the codec, print its table, and return 0. Raises SystemExit(2) for arguments that do not fit."""
    contributors = options.contributors or options.workers
    if contributors > options.workers:
        options.parser.error(f"argument --contributors: {contributors}: 1 to {options.workers}, the workers")
    check_codec(options.parser, options.codec, options.workers)
    try:
        report = describe(options.codec, options.workers, contributors)
    except CodecError as error:
        options.parser.error(f"argument --codec: {error}")
    if options.json:
        print(json.dumps(report))
    else:
        show(report, Console())
    return 0


def describe(name: str, workers: int, contributors: int) -> dict[str, Any]:
    """Return the table of a job with codec `name` as the object of --json.

    `contributors` are the workers in a sum, for the values of requantised results. Raises CodecError for a codec
    without a lookup table, and as `make_codec`.
    """
    codec = make_codec(name, workers=workers, backend="numpy")
    if not isinstance(codec, LookupTableCodec) or codec.lookup is None:
        raise CodecError(f"codec {name} has no lookup table")
    codes = len(codec.table.values)
    report = {
        "codec": name,
        "workers": workers,
        "operation": codec.op.name,
        "granularity": codec.granularity,
        "t_p": codec.bound,
        "levels": [codec.bound * (2 * value / codec.granularity - 1) for value in codec.table.values],
        "lanes": list(codec.lookup[:codes]),
        "expected_nmse": expected_normal_nmse(codec),
    }
    dither = codec.dither
    if dither is not None and dither.results is not None:
        report |= _results(codec, dither, contributors)
    return report


def _results(codec: LookupTableCodec, dither: Dither, contributors: int) -> dict[str, Any]:
    """Make the part of the object for results that are looked up again."""
    assert codec.lookup is not None
    assert dither.results is not None
    cells = 1 << codec.result_bits
    # A value is of a sum: over its workers it is a coordinate of the mean.
    scale = 2 * codec.bound / codec.granularity / (contributors * dither.unit)
    values = scale * dither.results.values[contributors, :, :cells].astype(np.float64)
    energies = [*dither.results.bounds[contributors].tolist(), 0]
    return {
        "contributors": contributors,
        "thresholds": list(codec.lookup[cells:]),
        "classes": [
            {"share": 2.0 ** (-number / 4), "least_energy": energies[number], "values": values[number].tolist()}
            for number in range(CLASSES)
        ],
    }


def show(report: dict[str, Any], console: Console) -> None:
    """Print the levels of a `describe`, and the values of results by class where results are requantised."""
    console.print(f"{report['codec']}, {report['workers']} workers: {report['operation']}", highlight=False)
    grid = Table()
    for name in ("code", "level", "lane"):
        grid.add_column(name, justify="right", no_wrap=True)
    for code, (level, lane) in enumerate(zip(report["levels"], report["lanes"], strict=True)):
        grid.add_row(str(code), f"{level:+.4f}", str(lane))
    console.print(grid)
    if "classes" in report:
        console.print(
            f"results of {report['contributors']} workers: a code's lanes, its value by class", highlight=False
        )
        console.print(_result_table(report))
        console.print("class: root mean square of the mean over the range; --json has all classes", highlight=False)
        console.print("energy: the least of a block of the class", highlight=False)
    console.print(f"expected NMSE of equal normal vectors: {report['expected_nmse']:.4g}", highlight=False)


def _result_table(report: dict[str, Any]) -> Table:
    # Only where norms differ, or vectors cancel each other, the mean is smaller than that of independent vectors.
    least = report["contributors"] ** -0.5 * (1 - 1e-9)
    shown = [each for each in report["classes"] if each["share"] >= least]
    grid = Table(padding=0)
    grid.add_column("code", justify="right", no_wrap=True)
    grid.add_column("lanes", justify="right", no_wrap=True)
    for each in shown:
        grid.add_column(f"{each['share']:.2f}", justify="right", no_wrap=True)
    most = report["contributors"] * max(report["lanes"])
    ends = [-most, *(2 * (threshold - _HALF_LANES) for threshold in report["thresholds"]), most + 1]
    for code, (first, after) in enumerate(pairwise(ends)):
        # Sums of few contributors do not reach the outer codes.
        reached = -most < after and first <= most and first < after
        lanes = f"{max(first, -most)}..{min(after - 1, most)}" if reached else "-"
        grid.add_row(str(code), lanes, *(f"{each['values'][code]:+.3f}" if reached else "-" for each in shown))
    grid.add_section()
    grid.add_row("energy", "", *(f"{each['least_energy']:,}" for each in shown))
    return grid
