# SPDX-License-Identifier: Apache-2.0
"""The demo tells the truth on both targets, says which worker failed, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hopsum.cli.demo.command import Crew, WorkerDied
from hopsum.cli.demo.worker import Seat
from hopsum_topologies.bmv2 import bmv2_unavailable

COMMAND = [sys.executable, "-m", "hopsum.cli.main"]
DEADLINE_S = 60.0


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=DEADLINE_S, check=False)


@pytest.mark.parametrize("target", ["native", "bmv2"])
def test_demo_sums_as_numpy_and_counts_as_the_switch(target: str) -> None:
    if target == "bmv2" and (reason := bmv2_unavailable()):
        pytest.skip(reason)
    done = run("demo", "--target", target, "--workers", "3", "--elements", "5000", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["equal"], report["replicas_equal"], report["counters_agree"]) == (True, True, True)
    chunks = {name: found["chunks"] for name, found in report["ops"].items()}
    assert chunks == {"ADD32": 20, "LOOKUP_ADD8": 5, "MAX32": 20}
    assert report["switch_events"]["added"] == 3 * 45
    assert report["switch_events"]["completed"] == 45
    # 40 bytes of header below and in hopsum's own layer are not counted here: UDP payloads are
    assert report["bytes_up"] >= 3 * (40 * (32 + 1024) + 5 * (32 + 512))


def test_demo_refuses_more_workers_than_a_lane_holds() -> None:
    done = run("demo", "--workers", "16")
    assert done.returncode == 2
    assert "--workers 16: 1 to 15" in done.stderr


def test_a_failed_worker_is_named_with_its_traceback() -> None:
    seats = [
        Seat(0, 1, "02:00:00:00:01:01", "127.0.0.1", ("127.0.0.1", 9)),
        Seat(1, 1, "02:00:00:00:01:01", "192.0.2.1", ("127.0.0.1", 9)),  # no address of this host
    ]
    with Crew(seats) as crew, pytest.raises(WorkerDied, match=r"(?s)worker 1 failed:.*OSError"):
        crew.gather("bound")
    assert not any(process.is_alive() for process in crew.processes)


def test_a_killed_demo_leaves_no_process_behind() -> None:
    command = [*COMMAND, "demo", "--elements", "20000000"]
    demo = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        # the switch, multiprocessing's resource tracker, four workers
        _await(lambda: len(_descendants(demo.pid)) >= 6, "the demo's processes")
        children = _descendants(demo.pid)
    finally:
        demo.send_signal(signal.SIGKILL)
        demo.wait()
    _await(lambda: not any(_alive(child) for child in children), "the end of the demo's processes")


def _await(condition: object, what: str) -> None:
    give_up = time.monotonic() + DEADLINE_S
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < give_up, f"no {what} in {DEADLINE_S:.0f} s"
        time.sleep(0.05)


def _descendants(pid: int) -> set[int]:
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        parents[int(path.parent.name)] = int(fields[1])
    found: set[int] = set()
    while more := {child for child, parent in parents.items() if parent in found | {pid}} - found:
        found |= more
    return found


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z" and os.getpid() != pid
    except OSError:
        return False
