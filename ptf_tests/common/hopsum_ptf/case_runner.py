# SPDX-License-Identifier: Apache-2.0
"""The command `ptf_tests/run`: run the data-plane cases on one target or on all, and print the table case x target."""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from hopsum_ptf.targets import TARGETS
from hopsum_topologies import TopologyError
from hopsum_topologies.ptf import ptf_command
from hopsum_topologies.ptf.case_results import Result, format_table, format_totals, read_results
from hopsum_topologies.ptf.ptf_command import RunnerError, log_folder, run_cases

ROOT: Final = Path(__file__).resolve().parents[3]
CASES: Final = ROOT / "ptf_tests" / "cases"


def list_cases(chosen: Sequence[str] = (), folder: Path = CASES) -> list[str]:
    """Return the names `module.Class` of the `chosen` modules or cases. Empty: all cases of `folder`.

    Runs ptf. Raises RunnerError when there are none, or ptf is missing.
    """
    return ptf_command.list_cases(chosen, folder)


def case_summaries(folder: Path = CASES) -> Iterator[tuple[str, str]]:
    """Yield name and first line of the docstring of every class in the case modules, in the order of the files.

    The line is empty for a class without a docstring.
    """
    for path in sorted(folder.glob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                yield f"{path.stem}.{node.name}", (ast.get_docstring(node) or "").partition("\n")[0]


def main(arguments: Sequence[str]) -> int:
    """Run the command and print the table. Return 0, 1 if a case failed, or 2 if the cases could not be run at all."""
    parser = argparse.ArgumentParser(prog="ptf_tests/run", description="Run the data-plane cases.")
    parser.add_argument("cases", nargs="*", help="modules or module.Class (default: all)")
    parser.add_argument("--target", choices=list(TARGETS), help="target (default: every target that can run here)")
    parser.add_argument("--list", action="store_true", help="list the cases with their meanings and leave")
    parser.add_argument("--record", type=Path, help="write a recording of every case that passes to this folder")
    parser.add_argument("--logs", type=Path, help="keep the logs of the target in this folder")
    parser.add_argument("--folder", type=Path, default=CASES, help="folder of the cases (default %(default)s)")
    options = parser.parse_args(arguments)
    if options.target is None and (options.record or options.logs):
        parser.error("--record and --logs are for one target: give --target")
    try:
        cases = list_cases(options.cases, options.folder)
        if options.list:
            said = dict(case_summaries(options.folder))
            print("\n".join(f"{case:45} {said.get(case, '')}".rstrip() for case in cases))
            return 0
        return _run_one(options, cases) if options.target else _run_all(cases, options.folder)
    except (RunnerError, TopologyError) as error:
        print(f"{options.target or 'ptf_tests/run'}: {error}", file=sys.stderr)
        return 2


def _run_one(options: argparse.Namespace, cases: Sequence[str]) -> int:
    target = TARGETS[options.target]
    record = {"record": str(options.record) if options.record else ""}
    with log_folder(options.logs) as logs, target.start() as switch:
        status, results = run_cases(switch, cases, logs, folder=options.folder, parameters=record)
        # The output of ptf is long, and tells nothing where all cases pass.
        if status != 0:
            print((logs / "output").read_text(errors="replace"))
    print(format_table({options.target: results}))
    print(format_totals(options.target, results))
    # The embedded switch has no excuse: what it skips would be proved by nothing that runs everywhere.
    allowed = {"ok", "skipped"} if target.skips_allowed else {"ok"}
    return status or int(any(result.outcome not in allowed for result in results))


def _run_all(cases: list[str], case_folder: Path) -> int:
    """Run every target as a command of its own, which prints its output only if it fails."""
    columns: dict[str, list[Result]] = {}
    failed = 0
    with TemporaryDirectory(prefix="hopsum-ptf-") as folder:
        for name, target in TARGETS.items():
            reason = target.unavailable()
            if reason is not None:
                columns[name] = [Result(case, "skipped", reason) for case in cases]
                continue
            print(f"==> {len(cases)} data-plane cases on {name}", flush=True)
            logs = Path(folder) / name
            # A process for each target: ptf keeps its data plane in module variables, which cannot be opened twice.
            command = [sys.executable, str(ROOT / "ptf_tests" / "run"), "--target", name, "--logs", str(logs)]
            command += ["--folder", str(case_folder), *cases]
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
            if done.returncode != 0:
                print(done.stdout)
                failed = failed or done.returncode
            columns[name] = read_results(logs / "results", cases)
    print(format_table(columns))
    for name, results in columns.items():
        print(format_totals(name, results))
    return failed
