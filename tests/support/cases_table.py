# SPDX-License-Identifier: Apache-2.0
"""The table of the data-plane cases, from what tests that ran them recorded, in whichever process."""

from __future__ import annotations

from collections.abc import Iterable

from hopsum_topologies.ptf.case_results import Result, format_table, format_totals

CASES_ON = "data-plane cases on "
"""Before the target's name: the property of a test that holds (case, outcome, reason) of each case."""


def cases_table(properties: Iterable[tuple[str, list[tuple[str, str, str]]]]) -> str:
    """Return one column per target and a line of totals each, as `make ptf` prints them; "" if no case ran."""
    found = [(name.removeprefix(CASES_ON), rows) for name, rows in properties if name.startswith(CASES_ON)]
    columns = {target: [Result(*row) for row in rows] for target, rows in found}
    totals = [format_totals(target, results) for target, results in columns.items()]
    return "\n".join([format_table(columns), *totals]) if columns else ""
