# SPDX-License-Identifier: Apache-2.0
"""`hopsum selftest` tells the truth on both targets, says which worker failed, and leaves nothing behind."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from hopsum_evaluation.selftest.worker import work
from hopsum_topologies.bmv2 import bmv2_unavailable
from hopsum_topologies.seat import Seat
from hopsum_topologies.worker_pool import WorkerDiedError, WorkerPool

COMMAND = [sys.executable, "-m", "hopsum_cli.main"]
DEADLINE_S = 300.0


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=DEADLINE_S, check=False)


@pytest.mark.parametrize("target", ["native", "bmv2"])
def test_sums_are_numpys_and_counts_as_the_switch(target: str) -> None:
    if target == "bmv2" and (reason := bmv2_unavailable()):
        pytest.skip(reason)
    done = run("selftest", "--target", target, "--workers", "3", "--elements", "5000", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["equal"], report["replicas_equal"], report["counters_agree"]) == (True, True, True)
    chunks = {name: found["chunks"] for name, found in report["ops"].items()}
    narrow = dict.fromkeys(("ADD8", "LOOKUP_ADD8", "OR"), 5)
    wide = {"LOOKUP_ADD16": 10} if target == "native" else {}  # bmv2 has no room for what its result grows by
    assert chunks == {**narrow, **wide, "ADD16": 10, "ADD32": 20, "MAX32": 20}
    assert report["switch_events"]["added"] == 3 * sum(chunks.values())
    assert report["switch_events"]["completed"] == sum(chunks.values())
    # 40 bytes of header below and in hopsum's own layer are not counted here: UDP payloads are
    assert report["bytes_up"] >= 3 * (60 * (32 + 1024) + 5 * (32 + 512) + sum(wide.values()) * (32 + 256))


def test_sum_refuses_more_workers_than_a_lane_holds() -> None:
    done = run("selftest", "--workers", "16")
    assert done.returncode == 2
    assert "--workers 16: 1 to 15" in done.stderr


def test_a_failed_worker_is_named_with_its_traceback() -> None:
    seats = [
        Seat(0, 1, "02:00:00:00:01:01", "127.0.0.1", ("127.0.0.1", 9)),
        Seat(1, 1, "02:00:00:00:01:01", "192.0.2.1", ("127.0.0.1", 9)),  # no address of this host
    ]
    with WorkerPool(seats, work, None) as pool, pytest.raises(WorkerDiedError, match=r"(?s)worker 1 failed:.*OSError"):
        pool.gather("bound")
    assert not any(process.is_alive() for process in pool.processes)


def test_a_killed_command_leaves_no_process_behind() -> None:
    from processes import assert_killed_command_leaves_nothing

    # the switch, multiprocessing's resource tracker, four workers
    assert_killed_command_leaves_nothing(["selftest", "--elements", "20000000"], 6)
