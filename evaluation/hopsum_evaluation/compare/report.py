# SPDX-License-Identifier: Apache-2.0
"""The report of `hopsum codec compare`: one JSON object for programs, a table per kind of vectors for people."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, log10
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from hopsum_evaluation.bench.timing import commit, machine, versions
from hopsum_evaluation.compare.measure import AGREEMENT_SE, AGREEMENT_SHARE, Cell, ComparisonPlan
from hopsum_evaluation.compare.vectors import TITLES, recorded_origin

WIDE = 120
"""Columns of a terminal that has room for standard errors."""
TINY = 1e-9
"""The error below which narrow tables stop to tell errors apart."""
_EMPTY = "-"


def as_json(cells: Sequence[Cell], plan: ComparisonPlan, plots: Sequence[Path], seconds: float) -> dict[str, Any]:
    """Return what --json prints."""
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
        "commit": commit(),
    }


def _cell(cell: Cell) -> dict[str, Any]:
    bits = cell.bits
    return {
        "vectors": cell.vectors,
        "method": cell.method,
        "family": cell.family,
        "variant": cell.variant,
        "workers": cell.workers,
        "nmse": cell.nmse,
        "nmse_se": cell.nmse_se,
        "bits_up": None if bits is None else bits.up,
        "bits_down": None if bits is None else bits.down,
        "bits_up_padding": None if bits is None else bits.up_padding,
        "theory": cell.theory,
        "theory_se": cell.theory_se,
        "agrees": cell.agrees,
        "reason": cell.reason,
    }


def show(cells: Sequence[Cell], plan: ComparisonPlan, console: Console) -> None:
    """Print the tables, and below them why some cells are empty."""
    for kind in plan.vectors:
        console.print(_table([cell for cell in cells if cell.vectors == kind], plan, kind, console.width >= WIDE))
    for line in _reasons(cells):
        console.print(line, highlight=False)
    error = " 2.84(3)e-3 is 2.84e-3 with standard error 0.03e-3." if console.width >= WIDE else ""
    console.print(
        f"NMSE of the mean over {plan.steps} all-reduces.{error} Bits per element and worker, in payloads: ranges, "
        "index and side information included, headers and the filling of the last chunk not.",
        highlight=False,
    )
    if plan.identical:
        console.print(
            f"theory: yes where measurement and formula differ by at most {AGREEMENT_SE:.0f} standard errors, or "
            f"{AGREEMENT_SHARE:.0%}.",
            highlight=False,
        )


def _table(cells: Sequence[Cell], plan: ComparisonPlan, kind: str, wide: bool) -> Table:
    whose = "all workers have the same vector" if plan.identical else "one vector per worker"
    table = Table(title=f"{TITLES[kind]}; {whose}", title_justify="left", box=box.SIMPLE_HEAD, padding=0)
    table.add_column("", no_wrap=True)
    down = wide or not plan.identical  # 80 columns have room for one of them
    for name in ("up", *(["down"] if down else []), *(f"n = {workers}" for workers in plan.workers)):
        table.add_column(name, justify="right", no_wrap=True)
    if plan.identical:
        table.add_column("theory", no_wrap=True)
    for candidate in plan.candidates:
        row = [cell for cell in cells if cell.method == candidate.label]
        ups = [cell.bits.up for cell in row if cell.bits is not None]
        downs = [cell.bits.down for cell in row if cell.bits is not None]
        figures = [_nmse(cell, wide) for cell in row]
        verdict = [_verdict(row)] if plan.identical else []
        bits = [_span(ups), *([_span(downs)] if down else [])]
        table.add_row(candidate.label, *bits, *figures, *verdict)
    return table


def _nmse(cell: Cell, wide: bool) -> str:
    if cell.nmse is None or cell.nmse_se is None:
        return _EMPTY
    if cell.nmse == 0.0:
        return "0"
    if wide:
        return with_error(cell.nmse, cell.nmse_se)
    return f"<{TINY:.0e}".replace("e-0", "e-") if cell.nmse < TINY else short(cell.nmse)


def short(value: float) -> str:
    """Return two digits of a value that is not negative: 2.8e-3, or 0 for 0."""
    if value == 0.0:
        return "0"
    digits, _, exponent = f"{value:.1e}".partition("e")
    if int(exponent) not in (-1, 0, 1):
        return f"{digits}e{int(exponent)}"
    return f"{value:.0f}" if value >= 10 else f"{value:#.2g}"


def with_error(value: float, se: float) -> str:
    """Return a positive value with its standard error in units of its last digit: 2.84(3)e-3, or 1.41e-19 without."""
    exponent = floor(log10(value))
    scaled, error = value / 10.0**exponent, se / 10.0**exponent
    if error < 1e-3:
        text = f"{scaled:.2f}"
    else:
        digits = max(0, -floor(log10(float(f"{error:.0e}"))))
        text = f"{scaled:.{digits}f}({max(1, round(error * 10**digits))})"
    return text if exponent == 0 else f"{text}e{exponent}"


def _span(values: Sequence[float]) -> str:
    """Return the least and the greatest of some bits, or one figure where they look the same."""
    if not values:
        return _EMPTY
    low, high = f"{min(values):.2g}", f"{max(values):.2g}"
    return f"{values[0]:.2f}" if low == high else f"{low}-{high}"


def _verdict(row: Sequence[Cell]) -> str:
    """Return whether theory holds for all numbers of workers, or nothing where there is no theory."""
    wrong = [str(cell.workers) for cell in row if cell.agrees is False]
    if wrong:
        return f"[red]NO: n = {', '.join(wrong)}[/]"
    return "[green]yes[/]" if any(cell.agrees for cell in row) else ""


def _reasons(cells: Sequence[Cell]) -> list[str]:
    """Return a line per reason, with the methods, workers and vectors that it holds for."""
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
