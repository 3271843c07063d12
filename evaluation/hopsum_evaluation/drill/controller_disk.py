# SPDX-License-Identifier: Apache-2.0
"""The disk under the controller's database is full for a while: a small tmpfs of its own, in a mount namespace."""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from hopsum.rpc.errors import ControllerError
from hopsum_evaluation.drill.base import DrillContext, DrillError, DrillReport, await_that, needs_nothing
from hopsum_evaluation.drill.controller_probe import SLOTS, Probe, beats, refusal
from hopsum_evaluation.drill.testbed import LEASE_S, DrillTestbed, drill_testbed
from hopsum_evaluation.drill.training_job import TrainingJob
from hopsum_evaluation.drill.workers import judge, seats_for

NAME: Final = "controller-disk-full"
_TRAINERS: Final = 2
_PACE_S: Final = 0.05
_DISK_BYTES: Final = 8 << 20
_BLOCK_BYTES: Final = 4096
_CLONE_NEWNS: Final = 0x20000
_JOBS_MAX: Final = 60
_FULL: Final = "is full; make room on the disk"


def needs_tmpfs(target: str) -> str:
    """Return why no small disk can be made here, an empty string when it can."""
    if reason := needs_nothing(target):
        return reason
    if os.geteuid() != 0:
        return "a tmpfs needs root"
    probe = "from hopsum_evaluation.drill.controller_disk import small_disk; from pathlib import Path; "
    probe += "import sys; small_disk(Path(sys.argv[1])).__enter__()"
    command = [sys.executable, "-c", probe, os.fspath(Path(__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else f"no tmpfs can be mounted: {done.stderr.strip().splitlines()[-1]}"


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """Have a tmpfs for the block: this thread, and what it starts, for whom it is the last thing mounted.

    Raises OSError.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS) != 0:
        raise OSError(ctypes.get_errno(), "unshare: " + os.strerror(ctypes.get_errno()))
    for words in (["--make-rprivate", "/"], ["-t", "tmpfs", "-o", f"size={_DISK_BYTES}", "hopsum", os.fspath(folder)]):
        done = subprocess.run(["mount", *words], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise OSError(done.returncode, f"mount {words}: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", os.fspath(folder)], capture_output=True, check=False)


def disk_full(context: DrillContext) -> DrillReport:
    """Fill the disk: what has to be written is refused, running jobs go on, and all goes on when there is room."""
    disk = context.folder / "disk"
    disk.mkdir()
    (context.folder / "state.sqlite").symlink_to(disk / "state.sqlite")
    with small_disk(disk), drill_testbed(context, NAME, seats=seats_for(context, _TRAINERS)) as testbed:
        training = TrainingJob(testbed, "train", _TRAINERS, pace_s=_PACE_S, codec="fixed")
        training.train(5)
        silent = Probe(testbed, "silent", LEASE_S)
        silent.generation(stay=True)
        full_s = _fill(testbed, disk)
        jobs = _refused(testbed, full_s)
        before = training.steps(0)
        overdue = lambda: testbed.now() > full_s + 1.5 * LEASE_S  # noqa: E731
        await_that(overdue, f"the end of the lease of {silent.name}")
        for _ in range(context.steps(2)):
            beats(testbed, training)
            _nothing_changed(testbed, jobs)
        full = training.steps(0) - before
        testbed.happened("room on the disk")
        (disk / "ballast").unlink()
        _recovered(testbed, training, silent)
        training.finish()
        report = testbed.report
        report.recovered = f"{full} steps on a full disk; with room again a job was made, and an overdue lease ended"
        report.numbers["steps_while_full"] = full
        judge(testbed, training)
        with testbed.operator() as operator:
            for job in operator.jobs():
                operator.delete(job.name)
    return report


def _fill(testbed: DrillTestbed, disk: Path) -> float:
    """Fill the disk up to the last block. Return when."""
    with (disk / "ballast").open("wb", buffering=0) as ballast:
        for size in (1 << 20, _BLOCK_BYTES):  # large pieces first, then what is left of the last one
            try:
                while ballast.write(bytes(size)):
                    pass
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
    return testbed.happened("disk full")


def _refused(testbed: DrillTestbed, full_s: float) -> dict[str, int]:
    """Make jobs until one is refused: the room that the database holds is not used up at once. Return all jobs."""
    with testbed.operator() as operator:
        for number in range(_JOBS_MAX):
            try:
                operator.create(f"job{number}", 1, 1)
            except ControllerError as error:
                if _FULL not in str(error):
                    raise DrillError(f"refused, but not for a full disk: {error}") from error
                break
        else:
            raise DrillError(f"{_JOBS_MAX} jobs were made on a full disk")
        testbed.report.detected_ms = 1e3 * (testbed.now() - full_s)
        testbed.report.detected = f"a job is refused, after {number} that had room in the database's log"
        refusal(lambda: operator.create("more", 1, 1), _FULL)
        refusal(lambda: operator.delete("silent"), _FULL)
        testbed.report.numbers = {"refused": 3}
        return {job.name: job.generation for job in operator.jobs()}


def _nothing_changed(testbed: DrillTestbed, jobs: dict[str, int]) -> None:
    with testbed.operator() as operator:
        found = {job.name: job.generation for job in operator.jobs()}
        if found != jobs:
            raise DrillError(f"jobs and generations on a full disk: {found}, before it {jobs}")
        refusal(lambda: operator.create("more", 1, 1), _FULL)
        used = operator.switches()[0].slots_used
        if used != 2 * SLOTS + len(jobs) - 2:
            raise DrillError(f"{used} slots in use with jobs {sorted(jobs)}")


def _recovered(testbed: DrillTestbed, training: TrainingJob, silent: Probe) -> None:
    with testbed.operator() as operator:
        operator.create("more", 1, 1)
        over = lambda: not operator.job(silent.name).generation  # noqa: E731
        await_that(over, f"the end of the generation of {silent.name}, whose lease is over")
        if "lease" not in operator.job(silent.name).reason:
            raise DrillError(f"the generation of {silent.name} ended because of {operator.job(silent.name).reason!r}")
    beats(testbed, training)
