#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Run on a machine with a CUDA GPU what other machines skip, and record all of it in one JSON file.

    python tools/record_cuda.py [--out gpu-record.json]         also: make test-cuda

    tests      those of codecs, all-reduces and ranks that need CUDA: tests/host/torch_codec and torch_device
    bench      the codec's kernels beside copies of as many bytes (hopsum_evaluation.torch.bench)

`--device cpu` rehearses: the tests are skipped, the rest measures nothing worth knowing. Status 1 if anything failed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree as ET

import torch

ROOT: Final = Path(__file__).resolve().parents[1]
RANKS: Final = "tests/host/torch_device/test_ranks.py"
TESTS: Final = (
    "tests/host/torch_codec/test_cuda.py",
    "tests/host/torch_device/test_cuda.py",
    RANKS,
    f"--deselect={RANKS}::test_every_way_of_training[gloo-cpu]",
)


def main() -> int:
    """Run, write the record, print its short form; return 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("gpu-record.json"), help="the file (default %(default)s)")
    parser.add_argument("--device", default="cuda", help="cuda, or cpu for a rehearsal (default %(default)s)")
    parser.add_argument("--small", action="store_true", help="few elements")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error(
            f"torch {torch.__version__} sees no CUDA device: --device cpu rehearses. A torch that ends in +cpu "
            "never sees one: install the CUDA build of this version into the environment"
        )
    record: dict[str, Any] = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "gpu": gpus()}
    record["tests"] = run_tests(may_skip=options.device == "cpu")
    small = ["--elements", "4096", "--runs", "5"] if options.small else []
    record["bench"] = run_module("hopsum_evaluation.torch.bench", ["--device", options.device, *small])
    options.out.write_text(json.dumps(record, indent=1) + "\n")
    show(record, options.out)
    return 0 if all("failed" not in record[name] for name in ("tests", "bench")) else 1


def gpus() -> list[str]:
    """Return names, drivers and memories as nvidia-smi tells them; an empty list without it."""
    asked = "--query-gpu=name,driver_version,memory.total,power.limit"
    try:
        done = subprocess.run(
            ["nvidia-smi", asked, "--format=csv,noheader"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return []
    return done.stdout.splitlines()


def run_tests(*, may_skip: bool) -> dict[str, Any]:
    """Return how many tests passed and were skipped, with reasons; `failed` if any failed, or all were skipped."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tests.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={path}", *TESTS]
        done = subprocess.run(command, cwd=ROOT, env=environment, check=False)
        cases = list(ET.parse(path).iter("testcase")) if path.exists() else []
    reasons = sorted({each.get("message", "") for case in cases for each in case.iter("skipped")})
    skipped = sum(case.find("skipped") is not None for case in cases)
    failed = [
        case.get("name", "") for case in cases if case.find("failure") is not None or case.find("error") is not None
    ]
    found: dict[str, Any] = {"passed": len(cases) - skipped - len(failed), "skipped": skipped, "reasons": reasons}
    if failed or done.returncode not in (0, 5) or not cases:
        found["failed"] = failed or [f"pytest ended with status {done.returncode}"]
    elif not found["passed"] and not may_skip:
        found["failed"] = ["all tests were skipped"]
    return found


def run_module(module: str, arguments: list[str]) -> dict[str, Any]:
    """Return what a module prints as JSON; `failed` if it ends with an error, which is on stderr."""
    # In a process of its own: a kernel that fails can leave CUDA unusable for the rest of a process.
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    try:
        found: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        found = {}
    return found | ({"failed": f"{module} ended with status {done.returncode}"} if done.returncode or not found else {})


def show(record: dict[str, Any], path: Path) -> None:
    """Print the record's short form."""
    print(f"{', '.join(record['gpu']) or 'no GPU'}; written to {path}")
    for name in ("tests", "bench"):
        if "failed" in record[name]:
            print(f"  {name}: FAILED: {record[name]['failed']}")
    print(f"  tests: {record['tests']['passed']} passed, {record['tests']['skipped']} skipped")
    for name, phase in record["bench"].get("phases", {}).items():
        print(f"  {name}: {phase['elements_per_s'] / 1e9:.3g} G elements/s, {phase['share_of_copy']:.2f} of a copy")
    for each in record["bench"].get("all_reduces", []):
        print(f"  all-reduce of {each['elements']:,} elements without a network: {1e3 * each['s']:.3g} ms")


if __name__ == "__main__":
    sys.exit(main())
