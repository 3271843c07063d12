# SPDX-License-Identifier: Apache-2.0
"""Run tests through ptf's own command against a switch that is already up."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from hopsum_base.owned_folder import OwnedFolder
from hopsum_topologies.errors import TopologyError
from hopsum_topologies.process import ManagedProcess
from hopsum_topologies.ptf.case_results import Result, append_result, read_results
from hopsum_topologies.ptf.ptf_switches import PtfTarget

# Of all cases on bmv2 on an overloaded machine, and of the slowest one.
_RUN_S: Final = 1200.0
_CASE_S: Final = 120


class RunnerError(RuntimeError):
    """The cases could not be run at all."""


def ptf_command() -> list[str]:
    """Return the command of ptf. Raises RunnerError when ptf is not installed."""
    script = shutil.which("ptf", path=os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])))
    if script is None or importlib.util.find_spec("ptf") is None:
        raise RunnerError(f"ptf is not installed for {sys.executable}; pip install 'hopsum[ptf]'")
    return [sys.executable, script]


def list_cases(chosen: Sequence[str], folder: Path) -> list[str]:
    """Return the names `module.Class` of the cases in `folder` that are in `chosen` (modules or cases, empty: all).

    Runs ptf. Raises RunnerError: there are none, a module cannot be imported, or ptf is not installed.
    """
    with OwnedFolder("ptf") as logs:
        command = [*ptf_command(), "--test-dir", str(folder), "--log-file", f"{logs}/log", "--list-test-names"]
        done = subprocess.run([*command, *chosen], capture_output=True, text=True, check=False)
    names = [line for line in done.stdout.splitlines() if "." in line and " " not in line]
    if "No module named 'p4runtime_sh'" in done.stderr:
        raise RunnerError(
            f"the tests in {folder} need p4runtime-shell, which pins old packages: in an environment of its own, "
            "pip install 'hopsum[ptf,shell]'"
        )
    if done.returncode != 0 or not names:
        raise RunnerError(f"ptf finds no cases for {list(chosen) or 'all'} in {folder}:\n{done.stdout}{done.stderr}")
    return names


@contextmanager
def log_folder(wanted: Path | None) -> Iterator[Path]:
    """Yield a folder for logs: `wanted`, as an absolute path, or for None a temporary one that the block's end removes.

    A missing folder is made. The results of an earlier run are removed.
    """
    if wanted is None:
        with OwnedFolder("ptf") as folder:
            yield folder
        return
    wanted.mkdir(parents=True, exist_ok=True)
    (wanted / "results").unlink(missing_ok=True)
    yield wanted.absolute()


def run_cases(
    target: PtfTarget,
    cases: Sequence[str],
    logs: Path,
    *,
    folder: Path,
    parameters: Mapping[str, object] | None = None,
) -> tuple[int, list[Result]]:
    """Run cases on a target. Return ptf's exit status and the results.

    The status is 1 too when the cases take more than 20 minutes, and 0 when the target skips all cases. A case gets an
    error after two minutes. Raises RunnerError when ptf is not installed.

    Args:
        cases: names as from `list_cases`.
        logs: a folder, which gets ptf's log, its output and the results.
        folder: the folder of the tests.
        parameters: test parameters besides target, address, device_id, ports and results, which tests read with ptf's
            testutils.
    """
    # Skipped cases get their result here, since ptf never sees them.
    lines = logs / "results"
    for case in cases:
        if case in target.skips:
            append_result(lines, Result(case, "skipped", target.skips[case]))
    running = [case for case in cases if case not in target.skips]
    if not running:
        return 0, read_results(lines, cases)
    given = {
        "target": target.name,
        "address": target.address,
        "device_id": target.device_id,
        "ports": sorted(target.interfaces),
        "results": str(lines),
        **(parameters or {}),
    }
    command = [*ptf_command(), "--test-dir", str(folder), "--allow-user", "--log-file", str(logs / "ptf.log")]
    command += ["--debug", "info", "--qlen", "1000", "--test-case-timeout", str(_CASE_S)]
    command += ["--test-params", ";".join(f"{key}={value!r}" for key, value in given.items())]
    for port, interface in target.interfaces.items():
        command += ["--interface", f"{port}@{interface}"]
    command += [*target.platform_arguments, *running]
    # Cases that ended before a time-out have their line in `results`. The others count as not run.
    process = ManagedProcess(command, logs / "output", namespace=target.namespace)
    try:
        process.wait_for(lambda: not process.running(), "an end of the cases", _RUN_S)
        status = process.stop()
    except TopologyError:
        status = 1
    _note_others(logs / "output", lines, running)
    return status, read_results(lines, cases)


def _note_others(output: Path, lines: Path, cases: Sequence[str]) -> None:
    """Write the results of tests that are no `ReportedTest`, from ptf's own words, if ptf came to its last line."""
    text = output.read_text(errors="replace") if output.is_file() else ""
    if re.search(r"^Ran \d+ tests? in ", text, re.MULTILINE) is None:
        return
    for result in read_results(lines, cases):
        if result.outcome == "not run":
            failed = re.search(rf"^(FAIL|ERROR): {re.escape(result.case)}\b", text, re.MULTILINE)
            append_result(lines, Result(result.case, "ok" if failed is None else "FAILED"))
