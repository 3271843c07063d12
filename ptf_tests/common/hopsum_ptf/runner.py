# SPDX-License-Identifier: Apache-2.0
"""The command of a target folder: run the data-plane cases there and show the table case x target."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

from hopsum_controlplane.artifacts import compiled_program
from hopsum_ptf.testbed import PORTS
from hopsum_topologies import TopologyError
from hopsum_topologies.ptf import runner
from hopsum_topologies.ptf.results import format_table, format_totals
from hopsum_topologies.ptf.runner import RunnerError, log_folder, run_cases
from hopsum_topologies.ptf.switches import SWITCHES, PtfTarget

ROOT = Path(__file__).resolve().parents[3]
CASES = ROOT / "ptf_tests" / "cases"


def list_cases(chosen: Sequence[str] = (), folder: Path = CASES) -> list[str]:
    """Return the names `module.Class` of the `chosen` cases. `chosen` has modules or cases. Empty: all cases."""
    return runner.list_cases(chosen, folder)


def start_switch(name: str) -> Callable[[], AbstractContextManager[PtfTarget]]:
    """Return the function that starts the target of this name, with our program and the testbed's ports."""
    return partial(SWITCHES[name], compiled_program(), PORTS)


def main(name: str, start: Callable[[], AbstractContextManager[PtfTarget]], *, skips_are_failures: bool) -> int:
    """Run the command of one target folder. Return the exit status.

    `start` is a context manager that brings the switch up and takes it down again.
    """
    parser = argparse.ArgumentParser(description=f"Run the data-plane cases on the {name} target.")
    parser.add_argument("cases", nargs="*", help="modules or module.Class; none: all")
    parser.add_argument("--list", action="store_true", help="list the cases and leave")
    parser.add_argument("--record", type=Path, help="write a recording of every case that passes to this folder")
    parser.add_argument("--logs", type=Path, help="keep the logs in this folder")
    parser.add_argument("--folder", type=Path, default=CASES, help="where the cases are")
    options = parser.parse_args()
    try:
        cases = list_cases(options.cases, options.folder)
        if options.list:
            print("\n".join(cases))
            return 0
        record = {"record": str(options.record) if options.record else ""}
        with log_folder(options.logs) as logs, start() as target:
            status, results = run_cases(target, cases, logs, folder=options.folder, parameters=record)
            if status != 0:
                print((logs / "output").read_text(errors="replace"))
    except (RunnerError, TopologyError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2
    print(format_table({name: results}))
    print(format_totals(name, results))
    allowed = {"ok"} if skips_are_failures else {"ok", "skipped"}
    return status or int(any(result.outcome not in allowed for result in results))
