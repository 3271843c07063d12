# SPDX-License-Identifier: Apache-2.0
"""`hopsum table solve`: the best table of a given size and truncation.

A coordinate of N(0, 1) beyond t_p is truncated, which happens with probability p. Code z stands for
-t_p + 2 t_p T[z] / G. The table is the one of least rounding error, solved exactly.
"""

from __future__ import annotations

import argparse
import json
from typing import Final

from rich.console import Console
from rich.table import Table

from hopsum.codec import CodecError, LookupTable
from hopsum.codec.lookup_table import MAX_BITS, cell_errors, optimal_table, rounding_error, truncation_error
from hopsum_base.units import whole

SUMMARY: Final = "the best table of a given size and truncation"
MOST_PER_TRUNCATED: Final = 1e12
"""Coordinates of which one is truncated, at most."""
_BAR: Final = 24


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `hopsum table solve`."""
    parser.add_argument(
        "--bits", type=whole(1, MAX_BITS), default=4, help="bits of a code, 1 to 8 (default %(default)s)"
    )
    parser.add_argument(
        "--granularity", type=whole(1), required=True, metavar="G", help="granularity, the table's last value"
    )
    parser.add_argument(
        "--truncation",
        type=share,
        required=True,
        metavar="P",
        help="share p of the coordinates that are truncated, such as 1/512",
    )


def run(options: argparse.Namespace) -> int:
    """Solve the table, print it, and return 0. Raises SystemExit(2) for arguments that do not fit."""
    if not 1 / MOST_PER_TRUNCATED <= options.truncation < 1:
        options.parser.error(
            f"--truncation {options.truncation:g}: a share below 1, such as 1/32, and at least 1/{MOST_PER_TRUNCATED:g}"
        )
    try:
        values = optimal_table(options.granularity, options.truncation, options.bits)
    except CodecError as error:
        options.parser.error(str(error))
    table = LookupTable(values, options.truncation)
    if options.json:
        print(json.dumps({"table": values, "mse": rounding_error(values, table.bound), "t_p": table.bound}))
    else:
        show(table, Console())
    return 0


def share(text: str) -> float:
    """Return the value of "1/512" or "0.001953125". Raises ValueError for other texts, which argparse reports."""
    numerator, slash, denominator = text.partition("/")
    try:
        return float(numerator) / float(denominator) if slash else float(numerator)
    except ZeroDivisionError:
        raise ValueError(text) from None


def show(table: LookupTable, console: Console) -> None:
    """Print the table's values, the error of the gap below each as a bar, and the errors in all."""
    errors = cell_errors(table.values, table.bound)
    rows = Table(title=f"granularity {table.granularity}, p = 1/{1 / table.truncated:g}", title_justify="left")
    for name in ("code", "T", "value", "error below"):
        rows.add_column(name, justify="right", no_wrap=True)
    rows.add_column("", no_wrap=True)
    for code, value in enumerate(table.values):
        point = table.bound * (2 * value / table.granularity - 1)
        error = errors[code - 1] if code else 0.0
        # A gap with the least error still shows one character.
        bar = "█" * max(round(_BAR * error / errors.max()), 1) if code else ""
        rows.add_row(str(code), str(value), f"{point:+.4f}", f"{error:.3e}" if code else "", bar)
    console.print(rows)
    rounding, truncation = rounding_error(table.values, table.bound), truncation_error(table.bound)
    console.print(f"t_p {table.bound:.6f}; of unit variance: rounding {rounding:.6f}, truncation {truncation:.6f}")
