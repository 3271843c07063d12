# SPDX-License-Identifier: Apache-2.0
"""Lookup tables: code z stands for the value -t + 2 t T[z]/g of a coordinate with distribution N(0, 1).

A coordinate beyond t is truncated. One between two values of the table is rounded to one of them, without
bias. The best table minimises the integral of (q_hi(a) - a)(a - q_lo(a)) phi(a) over -t < a < t, where q_lo and
q_hi are a's neighbours (Li et al., "THC", NSDI 2024).

    lookup_table   what a table is, the error to expect of it, the best one of given g and t
    table_solver   the exact solution
    table_search   g and t for a job

This module has the names of all three.
"""

from __future__ import annotations

from hopsum.codec.lookup_table import (
    SWITCH_GRANULARITY,
    LookupTable,
    cell_errors,
    expected_nmse,
    optimal_table,
    require_switch_table,
    rounding_error,
    truncation_bound,
    truncation_error,
)
from hopsum.codec.table_search import (
    PAIRED_BITS,
    TablePoint,
    best_table,
    even_table,
    most_workers,
    paired_table,
    pareto_front,
)

__all__ = [
    "PAIRED_BITS",
    "SWITCH_GRANULARITY",
    "LookupTable",
    "TablePoint",
    "best_table",
    "cell_errors",
    "even_table",
    "expected_nmse",
    "most_workers",
    "optimal_table",
    "paired_table",
    "pareto_front",
    "require_switch_table",
    "rounding_error",
    "truncation_bound",
    "truncation_error",
]
