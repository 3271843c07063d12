# SPDX-License-Identifier: Apache-2.0
"""`hopsum codec compare`: error of the mean against bits per element, every method.

On gradients of the demo's model (one minibatch per worker) and on Gaussian, heavy-tailed and sparse vectors, for
several numbers of workers. Bits are those of payloads with ranges, index and side information, without headers.
Prints tables, and writes nmse-against-bits and thc-variants as PNG and SVG.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from hopsum_evaluation.compare.candidates import CANDIDATES
from hopsum_evaluation.compare.measure import Cell, ComparisonPlan, measure_all
from hopsum_evaluation.compare.methods import MethodCandidate
from hopsum_evaluation.compare.report import as_json, show
from hopsum_evaluation.compare.vectors import VECTORS
from hopsum_wire import MAX_WORKERS

ELEMENTS = 1 << 14
STEPS = 6
LEAST_ELEMENTS = 1024
WORKERS = (1, 2, 4, 8, 16, 32)
OUT = Path("codec-compare")

_Item = TypeVar("_Item")


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    every = dict.fromkeys(name for each in CANDIDATES for name in (each.family, each.label) if name)
    names = ", ".join(every).replace("%", "%%")  # argparse formats help
    parser = argparse.ArgumentParser(
        prog="hopsum codec compare",
        description=(__doc__ or "").partition(": ")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else on stdout")
    parser.add_argument(
        "--output-dir", type=Path, default=OUT, metavar="DIR", help="folder for the plots (default %(default)s)"
    )
    parser.add_argument("--no-plots", action="store_true", help="no plots; matplotlib is not needed")
    parser.add_argument(
        "--workers",
        type=_list_of(_workers),
        default=WORKERS,
        metavar="N,...",
        help="numbers of workers (default 1,2,4,8,16,32)",
    )
    parser.add_argument("--vectors", type=_list_of(_kind), default=VECTORS, metavar="KIND,...", help=_said(VECTORS))
    parser.add_argument(
        "--codecs", default="", metavar="NAME,...", help=f"methods or families to compare (default: all), of {names}"
    )
    parser.add_argument(
        "--identical", action="store_true", help="give all workers the same vector, and compare with theory"
    )
    parser.add_argument(
        "--steps", type=int, default=STEPS, help="number of all-reduces per figure (default %(default)s)"
    )
    parser.add_argument(
        "--scale", type=float, default=1.0, help=f"factor of the {ELEMENTS} elements (default %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of the vectors (default %(default)s)")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Measure, print, plot. Return 0 if measurement agrees with theory wherever they are compared."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    plan = _plan(parser, options)
    if not options.no_plots and not find_spec("matplotlib"):
        print("hopsum codec compare: plots need matplotlib: pip install 'hopsum[plot]'; or --no-plots", file=sys.stderr)
        return 1
    start = time.perf_counter()
    cells = _follow(plan, Console(stderr=True))
    plots = [] if options.no_plots else _plot(cells, plan, options.output_dir)
    report = as_json(cells, plan, plots, time.perf_counter() - start)
    if options.json:
        print(json.dumps(report))
    else:
        show(cells, plan, Console())
        for path in plots:
            print(path)
    return 1 if any(cell.agrees is False for cell in cells) else 0


def _plan(parser: argparse.ArgumentParser, options: argparse.Namespace) -> ComparisonPlan:
    elements = round(ELEMENTS * options.scale)
    if elements < LEAST_ELEMENTS or options.steps < 2 or options.seed < 0:
        parser.error(
            f"at least {LEAST_ELEMENTS} elements, 2 steps and seed 0, not {elements}, {options.steps}, {options.seed}"
        )
    candidates = _chosen(parser, options.codecs)
    return ComparisonPlan(
        candidates, options.vectors, options.workers, elements, options.steps, options.seed, options.identical
    )


def _chosen(parser: argparse.ArgumentParser, text: str) -> tuple[MethodCandidate, ...]:
    """Return the methods that a comma-separated list of labels and families names, in their usual order."""
    wanted = {name.strip() for name in text.split(",")} - {""}
    unknown = wanted - {each.label for each in CANDIDATES} - {each.family for each in CANDIDATES}
    if unknown:
        parser.error(f"--codecs {', '.join(sorted(unknown))}: none of {', '.join(each.label for each in CANDIDATES)}")
    return tuple(each for each in CANDIDATES if not wanted or {each.label, each.family} & wanted)


def _follow(plan: ComparisonPlan, console: Console) -> list[Cell]:
    """Measure with a progress bar."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=plan.cells)
        cells = []
        for cell in measure_all(plan):
            cells.append(cell)
            progress.update(task, advance=1, description=f"{cell.vectors}, {cell.workers} workers")
    return cells


def _plot(cells: Sequence[Cell], plan: ComparisonPlan, folder: Path) -> list[Path]:
    from hopsum_evaluation.compare.plot import write_plots

    folder.mkdir(parents=True, exist_ok=True)
    return write_plots(cells, plan, folder)


def _list_of(read: Callable[[str], _Item]) -> Callable[[str], tuple[_Item, ...]]:
    """Return a reader of comma-separated items, each once."""
    return lambda text: tuple(dict.fromkeys(read(item.strip()) for item in text.split(",")))


def _workers(text: str) -> int:
    workers = int(text) if text.isdigit() else 0
    if not 1 <= workers <= MAX_WORKERS:
        raise argparse.ArgumentTypeError(f"{text!r} workers: 1 to {MAX_WORKERS}")
    return workers


def _kind(text: str) -> str:
    if text not in VECTORS:
        raise argparse.ArgumentTypeError(f"{text!r}: one of {', '.join(VECTORS)}")
    return text


def _said(defaults: Sequence[object]) -> str:
    return f"(default {','.join(str(each) for each in defaults)})"
