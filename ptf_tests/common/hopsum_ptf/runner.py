# SPDX-License-Identifier: Apache-2.0
"""Run cases through ptf's own command against a switch that is already up, and show the table case x target."""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from hopsum_ptf.results import Result, append_result, format_table, format_totals, read_results
from hopsum_topologies import TopologyError
from hopsum_topologies.process import ManagedProcess

ROOT = Path(__file__).resolve().parents[3]
CASES = ROOT / "ptf_tests" / "cases"
_RUN_S = 1200.0
_CASE_S = 120


@dataclass(frozen=True)
class PtfTarget:
    """A running switch as ptf sees it: ports, the platform that reaches them, the namespace to run in."""

    name: str
    address: str
    device_id: int
    interfaces: Mapping[int, str]
    platform_arguments: Sequence[str] = ()
    namespace: str | None = None
    skips: Mapping[str, str] = field(default_factory=dict)
    """Reasons by case, for cases about what the target's program does not have: they are not run."""


class RunnerError(RuntimeError):
    """The cases could not be run at all."""


def ptf_command() -> list[str]:
    """Return how ptf is started here. Raises RunnerError when it is not installed."""
    script = shutil.which("ptf", path=os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])))
    if script is None or importlib.util.find_spec("ptf") is None:
        raise RunnerError(f"ptf is not installed for {sys.executable}; install hopsum[dev]")
    return [sys.executable, script]


def list_cases(chosen: Sequence[str] = (), folder: Path = CASES) -> list[str]:
    """Return the names `module.Class` of the cases that `chosen` (modules or cases; none: all) stands for."""
    with TemporaryDirectory(prefix="hopsum-ptf-") as logs:
        command = [*ptf_command(), "--test-dir", str(folder), "--log-file", f"{logs}/log", "--list-test-names"]
        done = subprocess.run([*command, *chosen], capture_output=True, text=True, check=False)
    names = [line for line in done.stdout.splitlines() if "." in line and " " not in line]
    if done.returncode != 0 or not names:
        raise RunnerError(f"ptf finds no cases for {list(chosen) or 'all'}:\n{done.stdout}{done.stderr}")
    return names


def run_cases(
    target: PtfTarget, chosen: Sequence[str], logs: Path, *, record: Path | None = None, folder: Path = CASES
) -> tuple[int, list[Result]]:
    """Run cases on a target; return ptf's exit status and the results. `logs` is a folder."""
    cases = list_cases(chosen, folder)
    lines = logs / "results"
    for case in cases:
        if case in target.skips:
            append_result(lines, Result(case, "skipped", target.skips[case]))
    running = [case for case in cases if case not in target.skips]
    if not running:
        return 0, read_results(lines, cases)
    parameters = {
        "target": target.name,
        "address": target.address,
        "device_id": target.device_id,
        "ports": sorted(target.interfaces),
        "results": str(lines),
        "record": str(record) if record else "",
    }
    command = [*ptf_command(), "--test-dir", str(folder), "--allow-user", "--log-file", str(logs / "ptf.log")]
    command += ["--debug", "info", "--qlen", "1000", "--test-case-timeout", str(_CASE_S)]
    command += ["--test-params", ";".join(f"{key}={value!r}" for key, value in parameters.items())]
    for port, interface in target.interfaces.items():
        command += ["--interface", f"{port}@{interface}"]
    command += [*target.platform_arguments, *running]
    output = logs / "output"
    process = ManagedProcess(command, output, namespace=target.namespace)
    try:
        process.wait_for(lambda: not process.running(), "an end of the cases", _RUN_S)
        status = process.stop()
    except TopologyError:
        status = 1
    return status, read_results(lines, cases)


@contextmanager
def _log_folder(wanted: Path | None) -> Iterator[Path]:
    if wanted is not None:
        wanted.mkdir(parents=True, exist_ok=True)
        (wanted / "results").unlink(missing_ok=True)
        yield wanted.resolve()
        return
    with TemporaryDirectory(prefix="hopsum-ptf-") as folder:
        yield Path(folder)


def main(name: str, start: Callable[[], AbstractContextManager[PtfTarget]], *, skips_are_failures: bool) -> int:
    """Run the command of one target folder; return the exit status.

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
        if options.list:
            print("\n".join(list_cases(options.cases, options.folder)))
            return 0
        with _log_folder(options.logs) as logs, start() as target:
            status, results = run_cases(target, options.cases, logs, record=options.record, folder=options.folder)
            if status != 0:
                print((logs / "output").read_text(errors="replace"))
    except (RunnerError, TopologyError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2
    print(format_table({name: results}))
    print(format_totals(name, results))
    allowed = {"ok"} if skips_are_failures else {"ok", "skipped"}
    return status or int(any(result.outcome not in allowed for result in results))
