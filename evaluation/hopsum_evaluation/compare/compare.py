# SPDX-License-Identifier: Apache-2.0
"""`hopsum codec compare`: error of the mean against bits per element, every method.

On gradients of the demo's model (one minibatch per worker) and on Gaussian, heavy-tailed and sparse vectors, for
several numbers of workers. Bits are those of payloads with ranges, index and side information, without headers.
Prints tables and the method of least error at equal bits, and writes error-bits-KIND and error-workers-KIND as PNG and
SVG.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from hopsum.codec import CodecError, codec_names
from hopsum.codec.arguments import codec_argument
from hopsum_base.shown import name_hint
from hopsum_base.units import format_number, list_of, one_of, real, whole
from hopsum_evaluation.bench.timing import machine, source_commit, versions
from hopsum_evaluation.charts import Plot, Series, write_chart
from hopsum_evaluation.command_options import figure_table
from hopsum_evaluation.compare.measure import AGREEMENT_SE, AGREEMENT_SHARE, Cell, ComparisonPlan, measure_all
from hopsum_evaluation.compare.methods import CANDIDATES, MethodCandidate, codec_candidate
from hopsum_evaluation.compare.vectors import TITLES, VECTORS, recorded_origin
from hopsum_wire import MAX_WORKERS

ELEMENTS = 1 << 14
STEPS = 6
LEAST_ELEMENTS = 1024
WORKERS = (1, 2, 4, 8, 16, 32)
EXACT = 1e-9
"""NMSE up to which a method is exact but for the rounding of float32. Plots leave exact methods out."""
PLOTTED = (
    "thc", "thc:bits=3", "thc:bits=2", "thc:rounding=stochastic", "thc-published", "two-shot:bits=4", "uhc",
    "srk 16 levels", "svk", "terngrad", "top 10 %",
)  # fmt: skip
"""Methods in the plots of error against workers."""
BUDGETS = (2.5, 3.5, 4.5, 6.5, 8.5, 16.5)
"""Bits per element in the busier direction: results of 2, 3 and 4 bits, two-shot of 4 bits by 4 workers, lanes of 8 and
16 bits, with their ranges."""
OUT = Path("codec-compare")


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    # argparse formats help texts with %, and labels have percent signs.
    names = ", ".join(_OTHERS).replace("%", "%%")
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
        type=list_of(whole(1, MAX_WORKERS)),
        default=WORKERS,
        metavar="N,...",
        help="numbers of workers (default 1,2,4,8,16,32)",
    )
    parser.add_argument(
        "--vectors", type=list_of(one_of(VECTORS)), default=VECTORS, metavar="KIND,...", help=_said(VECTORS)
    )
    parser.add_argument(
        "--codecs",
        type=list_of(method_argument),
        metavar="NAME,...",
        help=f"methods to compare (default: all): codecs as connect takes them, thc:bits=2 for one; {names}",
    )
    parser.add_argument(
        "--identical", action="store_true", help="give all workers the same vector, and compare with theory"
    )
    parser.add_argument(
        "--steps", type=whole(2), default=STEPS, help="number of all-reduces per figure (default %(default)s)"
    )
    parser.add_argument(
        "--scale",
        type=real(0, 4096, above=True),
        default=1.0,
        help=f"factor of the {ELEMENTS} elements (default %(default)s)",
    )
    parser.add_argument("--seed", type=whole(0), default=1, help="seed of the vectors (default %(default)s)")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run the command: measure, print tables or JSON, write plots. Return 0 if measurement agrees with theory, else 1.

    Returns 1 too when plots are wanted and matplotlib is missing.
    """
    parser = build_parser()
    options = parser.parse_args(arguments)
    plan = _plan(parser, options)
    if not options.no_plots and not find_spec("matplotlib"):
        print("hopsum codec compare: plots need matplotlib: pip install 'hopsum[plot]'; or --no-plots", file=sys.stderr)
        return 1
    start = time.perf_counter()
    cells = _follow(plan, Console(stderr=True))
    plots = [] if options.no_plots else _plot(cells, options.output_dir)
    report = as_json(cells, plan, plots, time.perf_counter() - start)
    if options.json:
        print(json.dumps(report))
    else:
        show(cells, plan, Console())
        for path in plots:
            print(path)
    # None is no verdict: no formula is known for the method, or vectors differ.
    return 1 if any(cell.agrees is False for cell in cells) else 0


def _plan(parser: argparse.ArgumentParser, options: argparse.Namespace) -> ComparisonPlan:
    elements = round(ELEMENTS * options.scale)
    if elements < LEAST_ELEMENTS:
        parser.error(f"--scale {options.scale:g}: at least {LEAST_ELEMENTS} elements, not {elements}")
    candidates = _chosen(parser, options)
    return ComparisonPlan(
        candidates, options.vectors, options.workers, elements, options.steps, options.seed, options.identical
    )


def method_argument(text: str) -> tuple[MethodCandidate, ...]:
    """Return the candidates of a name in --codecs: one of a codec or method, several of a family of other methods.

    A codec is spelled as `connect(codec=)` takes it. Raises ArgumentTypeError for an unknown name.
    """
    if text.partition(":")[0] in codec_names():
        codec_argument(text)
        known = {each.label: each for each in CANDIDATES}
        return (known[text] if text in known else codec_candidate(text),)
    if text not in _OTHERS:
        raise argparse.ArgumentTypeError(f"{text!r:.80}: no codec, and no other method; {name_hint(text, _NAMED)}")
    return tuple(each for each in CANDIDATES if text in (each.label, each.family) and each.label in _OTHERS)


_OTHERS: Final = tuple(
    dict.fromkeys(
        name
        for each in CANDIDATES
        if each.label.partition(":")[0] not in codec_names()
        for name in (each.family, each.label)
    )
)
"""Methods that are no codecs, and their families."""
_NAMED: Final = (*(each.label for each in CANDIDATES if each.label not in _OTHERS), *_OTHERS)


def _chosen(parser: argparse.ArgumentParser, options: argparse.Namespace) -> tuple[MethodCandidate, ...]:
    """Return the methods that are compared: each once, and none that no job of these workers can have."""
    if options.codecs is None:
        return CANDIDATES
    chosen = dict.fromkeys(each for named in options.codecs for each in named)
    for each in chosen:
        refused = [_refusal(each, workers) for workers in options.workers]
        if each.label not in _OTHERS and all(refused):
            parser.error(f"argument --codecs: {refused[0]}")
    return tuple(chosen)


def _refusal(candidate: MethodCandidate, workers: int) -> str | None:
    """Return why a method cannot be made for so many workers."""
    try:
        candidate.make(workers)
    except CodecError as error:
        return str(error)
    return None


def _follow(plan: ComparisonPlan, console: Console) -> list[Cell]:
    """Measure with a progress bar."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=plan.cell_count)
        cells = []
        for cell in measure_all(plan):
            cells.append(cell)
            progress.update(task, advance=1, description=f"{cell.vectors}, {cell.workers} workers")
    return cells


def _plot(cells: Sequence[Cell], folder: Path) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    return [path for plot in error_plots([_cell(cell) for cell in cells], TITLES) for path in write_chart(plot, folder)]


def error_plots(cells: Sequence[dict[str, Any]], titles: Mapping[str, str]) -> list[Plot]:
    """Return plots of the errors of cells, two for each kind of vectors, in the order of kinds. Writes no file.

    cells: as `as_json` makes them.
    titles: words for each kind of vectors.
    """
    # From the cells, not from the options: a report that is read again has no options.
    kinds = dict.fromkeys(cell["vectors"] for cell in cells)
    found = []
    for kind in kinds:
        # Exact methods would stretch the logarithmic axis by many decades.
        here = [cell for cell in cells if cell["vectors"] == kind and (cell["nmse"] or 0) > EXACT]
        found += [_against_bits(here, kind, titles[kind]), _against_workers(here, kind, titles[kind])]
    return found


def _against_bits(cells: Sequence[dict[str, Any]], kind: str, title: str) -> Plot:
    workers = sorted({cell["workers"] for cell in cells})
    # The second of the numbers of workers: a single worker has no sum.
    shown_at = workers[:2][-1] if workers else 0
    # A line for each family: its members differ in bits, and the line shows what a bit buys.
    families: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for cell in cells:
        if cell["workers"] == shown_at and cell["family"]:
            families[cell["family"]].append((cell["bits_up"], cell["nmse"]))
    series = [Series.from_points(name, points) for name, points in families.items()]
    words = f"Error against bits, {title}, {shown_at} workers"
    return Plot(f"error-bits-{kind}", words, "bits per element, up", "NMSE of the mean", series, True, True)


def _against_workers(cells: Sequence[dict[str, Any]], kind: str, title: str) -> Plot:
    methods: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for cell in cells:
        if cell["method"] in PLOTTED:
            methods[cell["method"]].append((cell["workers"], cell["nmse"]))
    series = [Series.from_points(name, points) for name, points in methods.items()]
    words = f"Error against workers, {title}"
    return Plot(f"error-workers-{kind}", words, "workers", "NMSE of the mean", series, True, True)


def _said(defaults: Sequence[object]) -> str:
    return f"(default {','.join(str(each) for each in defaults)})"


def least_errors(cells: Sequence[dict[str, Any]]) -> tuple[int, dict[str, list[str]]]:
    """Return a number of workers and, by kind of vectors, the method of least error within each of BUDGETS, in words.

    The number is the least above 2 that was measured, or the greatest. A budget in which no method fits has "-".

    cells: as `as_json` makes them.
    """
    # More than two workers: with fewer, two-shot and rings send much less for each element.
    numbers = {cell["workers"] for cell in cells}
    workers = min(numbers - {1, 2}, default=max(numbers))
    found: dict[str, list[str]] = {}
    for kind in dict.fromkeys(cell["vectors"] for cell in cells):
        here = [cell for cell in cells if (cell["vectors"], cell["workers"]) == (kind, workers)]
        found[kind] = [_least(here, most) for most in BUDGETS]
    return workers, found


def _least(cells: Sequence[dict[str, Any]], most_bits: float) -> str:
    # The busier direction decides: a link carries both at the same time.
    fit = [
        (cell["nmse"], cell["method"])
        for cell in cells
        if cell["nmse"] is not None and max(cell["bits_up"], cell["bits_down"]) <= most_bits
    ]
    return f"{min(fit)[1]} ({format_number(min(fit)[0], 2)})" if fit else _EMPTY


TINY = 1e-9
"""The error below which tables stop to tell errors apart."""
_EMPTY = "-"


def as_json(cells: Sequence[Cell], plan: ComparisonPlan, plots: Sequence[Path], seconds: float) -> dict[str, Any]:
    """Return the object of --json. `plots` are the files that were written, `seconds` the time of the run."""
    return {
        "cells": [_cell(cell) for cell in cells],
        "methods": [candidate.label for candidate in plan.candidates],
        "vectors": list(plan.vectors),
        "workers": list(plan.workers),
        "identical": plan.identical,
        "elements": plan.elements,
        "steps": plan.steps,
        "seed": plan.seed,
        "gradients": recorded_origin(),
        "plots": [str(path) for path in plots],
        "seconds": round(seconds, 2),
        "machine": machine(),
        "versions": versions("hopsum", "numpy", "numba", "matplotlib", "constriction"),
        "commit": source_commit(),
    }


def _cell(cell: Cell) -> dict[str, Any]:
    return {**asdict(cell), "agrees": cell.agrees}


def show(cells: Sequence[Cell], plan: ComparisonPlan, console: Console) -> None:
    """Print a table for each kind of vectors, the methods of least error, and the reasons for empty cells."""
    for kind in plan.vectors:
        console.print(_table([cell for cell in cells if cell.vectors == kind], plan, kind))
    console.print(_least_table(cells))
    for line in _reasons(cells):
        console.print(line, highlight=False)
    console.print(
        f"NMSE of the mean over {plan.steps} all-reduces; --json has standard errors. Bits per element and worker, in "
        "payloads: ranges, index and side information included, headers and the filling of the last chunk not.",
        highlight=False,
    )
    if plan.identical:
        console.print(
            f"theory: yes where measurement and formula differ by at most {AGREEMENT_SE:.0f} standard errors, or "
            f"{AGREEMENT_SHARE:.0%}.",
            highlight=False,
        )


def _table(cells: Sequence[Cell], plan: ComparisonPlan, kind: str) -> Table:
    whose = "all workers have the same vector" if plan.identical else "one vector per worker"
    # 80 columns have room for the bits down or for the column of theory, not for both.
    down = not plan.identical
    columns = ("up", *(["down"] if down else []), *(f"n = {workers}" for workers in plan.workers))
    table = figure_table(f"{TITLES[kind]}; {whose}", *columns)
    # A codec with options is as long as half of 80 columns: its name is folded, and no figure.
    table.columns[0].no_wrap, table.columns[0].overflow = False, "fold"
    if plan.identical:
        table.add_column("theory", no_wrap=True)
    for candidate in plan.candidates:
        row = [cell for cell in cells if cell.method == candidate.label]
        ups = [cell.bits_up for cell in row if cell.bits_up is not None]
        downs = [cell.bits_down for cell in row if cell.bits_down is not None]
        figures = [_nmse(cell) for cell in row]
        verdict = [_verdict(row)] if plan.identical else []
        bits = [_span(ups), *([_span(downs)] if down else [])]
        table.add_row(candidate.label, *bits, *figures, *verdict)
    return table


def _least_table(cells: Sequence[Cell]) -> Table:
    workers, found = least_errors([_cell(cell) for cell in cells])
    table = Table(title=f"least error by bits of the busier direction, {workers} workers", title_justify="left",
                  box=box.SIMPLE_HEAD, padding=0)  # fmt: skip
    table.add_column("at most", justify="right", no_wrap=True)
    for kind in found:
        table.add_column(TITLES[kind])
    for budget, methods in zip(BUDGETS, zip(*found.values(), strict=True), strict=True):
        table.add_row(f"{budget:g} bits", *methods)
    return table


def _nmse(cell: Cell) -> str:
    if cell.nmse is None:
        return _EMPTY
    return format_number(cell.nmse, 2) if cell.nmse == 0.0 or cell.nmse >= TINY else f"<{TINY:.0e}".replace("e-0", "e-")


def _span(values: Sequence[float]) -> str:
    """Write the least and the greatest of some bits, or one figure where both round alike."""
    if not values:
        return _EMPTY
    low, high = f"{min(values):.2g}", f"{max(values):.2g}"
    return f"{values[0]:.2f}" if low == high else f"{low}-{high}"


def _verdict(row: Sequence[Cell]) -> str:
    """Write whether theory holds for all numbers of workers. Empty where no theory is known."""
    wrong = [str(cell.workers) for cell in row if cell.agrees is False]
    if wrong:
        return f"[red]NO: n = {', '.join(wrong)}[/]"
    return "[green]yes[/]" if any(cell.agrees for cell in row) else ""


def _reasons(cells: Sequence[Cell]) -> list[str]:
    """Write a line for each reason, with the methods, workers and vectors that it holds for."""
    found: dict[str, list[Cell]] = {}
    for cell in cells:
        if cell.reason is not None:
            found.setdefault(cell.reason, []).append(cell)
    lines = []
    for reason, empty in found.items():
        methods = ", ".join(dict.fromkeys(cell.method for cell in empty))
        workers = ", ".join(str(n) for n in sorted({cell.workers for cell in empty}))
        kinds = dict.fromkeys(cell.vectors for cell in empty)
        where = "" if set(kinds) == {cell.vectors for cell in cells} else f" ({', '.join(TITLES[k] for k in kinds)})"
        lines.append(f"{_EMPTY} {methods}; n = {workers}{where}: {reason}")
    return lines
