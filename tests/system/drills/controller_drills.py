# SPDX-License-Identifier: Apache-2.0
"""Drills in which the controller dies, stops, moves, is kept busy, has a rival, another time, or a full disk."""

from __future__ import annotations

import errno
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from hopsum.rpc.channel import Channel, ControllerAddress, ControllerError
from hopsum_topologies.free_port import free_port

from .controller_probe import SLOTS, Probe, beats, edit, refusal
from .drill import (
    PATIENCE_S,
    DrillContext,
    DrillError,
    DrillReport,
    DrillSkipped,
    await_that,
    first_sign,
    require_within,
)
from .drill_testbed import LEASE_S, DrillTestbed, await_ready, controller_command, drill_testbed
from .journal import mass, replicas_equal
from .small_disk import small_disk, tmpfs_unavailable
from .training_job import MARGIN_S, TrainingJob

PAUSES_S: Final = (20.0, 60.0)
PAUSED_LEASE_S: Final = 15.0
"""A controller's default, and shorter than both pauses."""
_SMALL: Final = 0.2
"""A run of a scale below 1 has pauses and a lease of that share."""
_PACE_S: Final = 0.05
_VICTIM: Final = "victim"
_KILLED_LEASE_S: Final = 120.0
"""The lease of the job that trains. Its workers are hardly heard while controllers die."""
_LIFE_S: Final = 0.3
"""The time within which the controller dies: about that of the life of a job."""
_CHURNS, _LATER = "aaa", "zzz"
"""The job that is joined again and again, which is the first by name, and the job that is to start meanwhile."""
_CHURN_LEASE_S: Final = 60.0
_CHURN_THREADS: Final = 4
_CHURN_JOINS: Final = 20
"""The joins before anything is asked of the controller."""
_TRAINERS: Final = 2
_RIVAL, _AGAIN = 2, 3
"""Election ids: of the second controller, and of the first when it has the switch again."""
_HOUR_S: Final = 3600.0
_FIRST_HOURS: Final = (5.0, -7.0, 240.0, -240.0)
_MONTH_HOURS: Final = 24.0 * 30
"""The largest of the random jumps of the clock, each way."""
_JOBS_MAX: Final = 60
_FULL: Final = "is full; make room on the disk"
_BLOCK_BYTES: Final = 4096


def down(context: DrillContext) -> DrillReport:
    """Kill the controller: jobs continue without it, and it has them again when back, under the same generation."""
    with drill_testbed(context, seats=context.seats_for(3)) as testbed:
        training = TrainingJob(testbed, "train", 3)
        training.train(20)
        testbed.signal("controller", signal.SIGKILL)
        training.train(60)
        at_s = testbed.happened("controller started again")
        testbed.start_controller()
        testbed.report.took(training.keeps_places() - at_s, "all ranks heard again")
        training.train(20)
        training.finish()
        training.require_results(generations=1)
        training.judge(bits=True)
    return testbed.report


def paused(context: DrillContext) -> DrillReport:
    """Stop the controller for longer than a lease, twice: it gives nobody up, and the job continues meanwhile."""
    share = 1.0 if context.scale >= 1 else _SMALL
    lease_s, pauses_s = share * PAUSED_LEASE_S, [share * pause_s for pause_s in PAUSES_S]
    with drill_testbed(context, seats=context.seats_for(3), lease_s=lease_s) as testbed:
        training = TrainingJob(testbed, "train", 3, pace_s=_PACE_S)
        training.train(10)
        heard_s = 0.0
        for pause_s in pauses_s:
            testbed.signal("controller", signal.SIGSTOP)
            time.sleep(pause_s)
            again_s = testbed.signal("controller", signal.SIGCONT)
            heard_s = max(heard_s, training.keeps_places() - again_s)
            time.sleep(lease_s)  # a place that was lost shows by then
            training.keeps_places()
        training.train(10)
        training.finish()
        training.require_results(generations=1)
        testbed.report.took(heard_s, "all ranks heard again, from when the controller went on")
        training.judge(bits=True)
    return testbed.report


def moved(context: DrillContext) -> DrillReport:
    """Restore a backup elsewhere: a job of it is adopted, a later one is shown and continues until somebody decides."""
    with drill_testbed(context, seats=context.seats_for(5)) as testbed:
        known = TrainingJob(testbed, "train", 3)
        known.train(10)
        backup = context.folder / "backup.sqlite"
        _back_up(testbed, backup)
        late = TrainingJob(testbed, "late", 2, first_seat=3)
        late.train(10)
        testbed.signal("controller", signal.SIGKILL)
        elsewhere = context.folder / "elsewhere" / "state.sqlite"
        elsewhere.parent.mkdir()
        shutil.copy(backup, elsewhere)
        testbed.write_config(database=elsewhere)
        at_s = testbed.happened("another controller started with the backup")
        testbed.start_controller()
        testbed.report.took(known.all_heard() - at_s, "all ranks of the job in the backup heard again")
        (generation,) = late.generations()
        shown = lambda: f"generation {generation}" in testbed.condition()  # noqa: E731
        await_that(shown, "the later job's generation in the switch's condition")
        known.train(20)
        late.train(20)
        late.finish()
        testbed.processes["controller"].stop()
        testbed.happened("the controller started with --remove-existing --yes")
        testbed.start_controller("--remove-existing", "--yes")
        await_that(lambda: not testbed.condition(), "a switch without a condition")
        known.train(10)
        known.finish()
        for training in (known, late):
            training.require_results(generations=1)
        for check in (replicas_equal(late.journals()), mass(late.journals()).check):
            if not check.ok:
                raise DrillError(f"job {late.job}: {check.why}")
        known.judge()
    return testbed.report


def standby(context: DrillContext) -> DrillReport:
    """Kill the controller next to a standby, which has the database at once, adopts the job, and hears all ranks."""
    with drill_testbed(context, seats=context.seats_for(3)) as testbed:
        training = TrainingJob(testbed, "train", 3)
        training.train(10)
        process = testbed.start("standby", [*controller_command(context.folder / "cluster.toml"), "--standby"])
        waits = lambda: "standby: another controller has" in process.log_text()  # noqa: E731
        await_that(waits, "a standby that waits", alive=process)
        testbed.happened("a standby started")
        killed_s = testbed.signal("controller", signal.SIGKILL)
        testbed.processes["controller"] = testbed.processes.pop("standby")
        await_ready(process)
        testbed.report.took(testbed.now() - killed_s, "the standby served, from the first one's death")
        sign = "all ranks heard by the second controller, from the first one's death"
        testbed.report.took(training.all_heard() - killed_s, sign)
        training.train(20)
        training.finish()
        training.require_results(generations=1)
        training.judge()
    return testbed.report


def killed_in_writes(context: DrillContext) -> DrillReport:
    """Kill the controller at random moments of a job's life: the next one makes the switch as its database says.

    In tests/controlplane/cluster/test_random_histories.py it dies at every single write, in one process and with a
    switch in memory.
    """
    with drill_testbed(context, seats=context.seats_for(_TRAINERS), lease_s=_KILLED_LEASE_S) as testbed:
        training = TrainingJob(testbed, "train", _TRAINERS, pace_s=_PACE_S, codec="fixed")
        training.train(5)
        chance = random.Random(context.seed)
        longest_s = 0.0
        for _ in range(context.steps(20)):
            life = threading.Thread(target=_live_and_die, args=(testbed,), daemon=True)
            life.start()
            time.sleep(chance.uniform(0.0, _LIFE_S))
            at_s = testbed.signal("controller", signal.SIGKILL)
            testbed.start_controller()
            longest_s = max(longest_s, testbed.now() - at_s)
            life.join()
            _require_audited(testbed)
        training.finish()
        training.require_results(generations=1)
        testbed.report.took(longest_s, "the next controller served, the slowest of all")
        training.judge()
        with testbed.operator() as operator, suppress(ControllerError):
            operator.delete(_VICTIM)
    return testbed.report


def two_controllers(context: DrillContext) -> DrillReport:
    """Let a second controller take the switch: the first notices, says so, and changes nothing any more."""
    with drill_testbed(context, seats=context.seats_for(_TRAINERS), lease_s=60.0) as testbed:
        training = TrainingJob(testbed, "train", _TRAINERS, pace_s=_PACE_S, codec="fixed")
        training.train(5)
        other = Probe(testbed, "other", 60.0)
        other.generation(stay=True)
        _same_database_is_refused(testbed)
        _start_rival(testbed)
        _require_deposed(testbed, other)
        training.train(20)
        testbed.happened("end of the second controller")
        if (status := testbed.processes["rival"].stop()) != 0:
            raise DrillError(f"the second controller ended with {status}")
        # Mastership does not come back by itself: the other one may have changed entries.
        _require_deposed(testbed, other)
        config = context.folder / "cluster.toml"
        edit(config, config, ("[[switch]]", f"[[switch]]\nelection_id = {_AGAIN}"))
        testbed.processes["controller"].stop()
        testbed.happened("first controller started again, with the highest election id")
        testbed.start_controller()
        await_that(lambda: not testbed.condition(), "a switch without a condition")
        with testbed.operator() as operator:
            gone = lambda: [job.name for job in operator.jobs()] == ["train"]  # noqa: E731
            await_that(gone, f"the end of job {other.name}, which was deleted meanwhile")
        training.train(5)
        training.finish()
        training.judge()
    return testbed.report


def clock_jumps(context: DrillContext) -> DrillReport:
    """Turn the controller's clock back and forward, and restart it in the past: no generation twice, no lease ends."""
    with drill_testbed(context, seats=context.seats_for(_TRAINERS)) as testbed:
        clock = context.folder / "offset"
        _set_clock(clock, 0.0)
        testbed.processes["controller"].stop()
        _start_skewed(testbed, clock)
        training = TrainingJob(testbed, "train", _TRAINERS, pace_s=_PACE_S, codec="fixed")
        training.train(5)
        probe = Probe(testbed, "probe", LEASE_S)
        generations = [probe.generation()]
        chance = random.Random(context.seed)
        for number in range(context.steps(6)):
            jump = chance.uniform(-_MONTH_HOURS, _MONTH_HOURS)
            hours = _FIRST_HOURS[number] if number < len(_FIRST_HOURS) else jump
            testbed.happened(f"clock {hours:+.0f} h from the machine's")
            _set_clock(clock, hours * _HOUR_S)
            beats(testbed, training)
            generations.append(probe.generation())
            if number == 1:
                testbed.signal("controller", signal.SIGKILL)
                _start_skewed(testbed, clock)
        training.finish()
        training.require_results(generations=1)
        if sorted(set(generations)) != generations or set(training.generations()) & set(generations):
            raise DrillError(f"generations came again: {generations}, {training.generations()} of the other job")
        with testbed.operator() as operator:
            operator.delete(probe.name)
        training.judge()
    return testbed.report


def disk_full(context: DrillContext) -> DrillReport:
    """Fill the disk: what has to be written is refused, running jobs continue, and all continues when there is room."""
    if reason := tmpfs_unavailable():
        raise DrillSkipped(reason)
    disk = context.folder / "disk"
    disk.mkdir()
    (context.folder / "state.sqlite").symlink_to(disk / "state.sqlite")
    with small_disk(disk), drill_testbed(context, seats=context.seats_for(_TRAINERS)) as testbed:
        training = TrainingJob(testbed, "train", _TRAINERS, pace_s=_PACE_S, codec="fixed")
        training.train(5)
        silent = Probe(testbed, "silent", LEASE_S)
        silent.generation(stay=True)
        full_s = _fill(testbed, disk)
        jobs = _refused(testbed, full_s)
        overdue = lambda: testbed.now() > full_s + 1.5 * LEASE_S  # noqa: E731
        await_that(overdue, f"the end of the lease of {silent.name}")
        for _ in range(context.steps(2)):
            beats(testbed, training)
            _require_unchanged(testbed, jobs)
        testbed.happened("room on the disk")
        (disk / "ballast").unlink()
        with testbed.operator() as operator:
            operator.create("more", 1, 1)
            over = lambda: not operator.job(silent.name).generation  # noqa: E731
            await_that(over, f"the end of the generation of {silent.name}, whose lease is over")
            if "lease" not in (found := operator.job(silent.name).reason):
                raise DrillError(f"the generation of {silent.name} ended because of {found!r}")
        beats(testbed, training)
        training.finish()
        training.judge()
        with testbed.operator() as operator:
            for job in operator.jobs():
                operator.delete(job.name)
    return testbed.report


def job_churn(context: DrillContext) -> DrillReport:
    """Join one job again and again: another one starts in time, and a third outlives its switch."""
    with drill_testbed(context, seats=context.seats_for(2)) as testbed:
        training = TrainingJob(testbed, "train", 2, pace_s=_PACE_S)
        training.train(10)
        (generation,) = training.generations()
        later = Probe(testbed, _LATER, _CHURN_LEASE_S)
        with _churning(Probe(testbed, _CHURNS, _CHURN_LEASE_S)) as joins:
            await_that(lambda: len(joins) >= _CHURN_JOINS, f"{_CHURN_JOINS} joins of job {_CHURNS}")
            began_s = testbed.happened(f"job {_LATER} is joined, while {_CHURNS} is all the time")
            later.generation()
            started_s = testbed.now() - began_s
            healed_s = _restart_switch(training, generation)
        training.train(10)
        training.finish()
        bound_s = testbed.lease_s + MARGIN_S
        require_within(f"job {_LATER} had started", started_s, bound_s)
        require_within("the other job went on on the restarted switch", healed_s, bound_s)
        testbed.report.took(started_s, f"a generation of job {_LATER}, from when it was joined")
        testbed.report.took(healed_s, "the job that trains went on, from the restart of the switch")
        with testbed.operator() as operator:
            operator.delete(_CHURNS)
            operator.delete(_LATER)
        training.judge()
    return testbed.report


def _live_and_die(testbed: DrillTestbed) -> None:
    """Make a job, let it have a generation, and delete it. The controller dies meanwhile."""
    with suppress(ControllerError, DrillError), testbed.operator() as operator:
        if _VICTIM in [job.name for job in operator.jobs()]:
            operator.delete(_VICTIM)
        Probe(testbed, _VICTIM, LEASE_S).generation()
        operator.delete(_VICTIM)


def _require_audited(testbed: DrillTestbed) -> None:
    """Wait until this controller has compared its switch with the database. Raises DrillError for a difference."""
    with testbed.operator() as operator:
        await_that(lambda: operator.switches()[0].audits, "audit of the switch")
        (switch,) = operator.switches()
    if switch.condition or switch.findings:
        raise DrillError(f"switch and database differ: {switch.condition} {'; '.join(switch.findings)}")


def _back_up(testbed: DrillTestbed, path: Path) -> None:
    """Take a backup by the operator's command. Raises DrillError."""
    command = [sys.executable, "-m", "hopsum_cli.main", "controller", "backup", str(path)]
    at = ["--controller", testbed.network.controller_address, "--no-tls"]
    token = ["--admin-token-file", str(testbed.context.folder / "admin.token")]
    done = subprocess.run([*command, *at, *token], capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    if done.returncode:
        raise DrillError(f"no backup: {done.stderr.strip()}")
    testbed.happened(f"backup taken: {done.stdout.strip()}")


def _same_database_is_refused(testbed: DrillTestbed) -> None:
    """Start a second controller on the same database, which ends it."""
    folder = testbed.context.folder
    edit(folder / "cluster.toml", folder / "second.toml", _elsewhere(testbed))
    testbed.happened("second controller with the same database")
    process = testbed.start("second", controller_command(folder / "second.toml"))
    await_that(lambda: not process.running(), "the end of a controller whose database another one has")
    if (status := process.stop()) != 1 or "another controller has it" not in process.log_text():
        raise DrillError(f"a second controller on the same database ended with {status}: {process.log_text()[-500:]}")


def _start_rival(testbed: DrillTestbed) -> None:
    """Start a controller with its own database and a higher election id, and wait until both log the conflict."""
    folder = testbed.context.folder
    election = ("[[switch]]", f"[[switch]]\nelection_id = {_RIVAL}")
    edit(
        folder / "cluster.toml", folder / "rival.toml", _elsewhere(testbed), ("state.sqlite", "rival.sqlite"), election
    )
    process = testbed.start("rival", controller_command(folder / "rival.toml"))
    began_s = testbed.happened("second controller with a database of its own and a higher election id")
    noticed = lambda: testbed.now() if "primary" in testbed.condition() else None  # noqa: E731
    noticed_s = first_sign(noticed, "sign of another primary client")
    testbed.report.took(noticed_s - began_s, "the first says that another client is primary, from the second's start")
    await_ready(process)
    found = lambda: "the database does not have generation" in process.log_text()  # noqa: E731
    await_that(found, "a second controller that sees the first one's entries", alive=process)


def _require_deposed(testbed: DrillTestbed, other: Probe) -> None:
    """Check that the first controller refuses to write, and says why."""
    with testbed.operator() as operator:
        refusal(lambda: operator.create("more", 1, SLOTS), "primary")
        refusal(lambda: operator.delete(other.name), "primary")
        (state,) = [job.switches[0] for job in operator.jobs() if job.name == other.name]
        if not state:
            raise DrillError("the job whose entries could not be removed has no switch any more")


def _elsewhere(testbed: DrillTestbed) -> tuple[str, str]:
    """Return the change of a configuration that gives a second controller another port."""
    address = testbed.network.controller_address
    return address, f"{address.rpartition(':')[0]}:{free_port()}"


def _set_clock(clock: Path, offset_s: float) -> None:
    made = clock.with_suffix(".new")
    made.write_text(str(offset_s), encoding="utf-8")
    made.replace(clock)


def _start_skewed(testbed: DrillTestbed, clock: Path) -> None:
    """Start a controller with that clock, in place of the testbed's."""
    command = [sys.executable, "-m", "drills.skewed_controller", str(testbed.context.folder / "cluster.toml")]
    await_ready(testbed.start("controller", [*command, str(clock)]))


def _fill(testbed: DrillTestbed, disk: Path) -> float:
    """Fill the disk up to the last block. Return the time."""
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
    """Make jobs until one is refused, since the database's log has room for some. Return generations by job."""
    with testbed.operator() as operator:
        made = 0
        while (refused := _attempt(lambda: operator.create(f"job{made}", 1, 1))) is None:  # noqa: B023
            made += 1
            if made == _JOBS_MAX:
                raise DrillError(f"{_JOBS_MAX} jobs were made on a full disk")
        if _FULL not in refused:
            raise DrillError(f"refused, but not for a full disk: {refused}")
        sign = f"a job is refused, after {made} that had room in the database's log"
        testbed.report.took(testbed.now() - full_s, sign)
        refusal(lambda: operator.create("more", 1, 1), _FULL)
        refusal(lambda: operator.delete("silent"), _FULL)
        return {job.name: job.generation for job in operator.jobs()}


def _attempt(ask: Callable[[], object]) -> str | None:
    try:
        ask()
    except ControllerError as error:
        return str(error)
    return None


def _require_unchanged(testbed: DrillTestbed, jobs: dict[str, int]) -> None:
    with testbed.operator() as operator:
        found = {job.name: job.generation for job in operator.jobs()}
        if found != jobs:
            raise DrillError(f"jobs and generations on a full disk: {found}, before it {jobs}")
        refusal(lambda: operator.create("more", 1, 1), _FULL)
        used = operator.switches()[0].slots_used
        if used != 2 * SLOTS + len(jobs) - 2:
            raise DrillError(f"{used} slots in use with jobs {sorted(jobs)}")


def _restart_switch(training: TrainingJob, generation: int) -> float:
    """Start the switch again, empty. Return the seconds until the job that trains continued there."""
    training.testbed.signal("switch", signal.SIGKILL)
    training.testbed.start_switch()
    restarted_s = training.testbed.happened("switch started again, empty")
    return training.continues_after(generation) - restarted_s


@contextmanager
def _churning(probe: Probe) -> Iterator[list[float]]:
    """Join a job again and again for the block, and yield when it was joined. Raises DrillError."""
    joined: list[float] = []
    failed: list[BaseException] = []
    ending = threading.Event()

    def churn() -> None:
        try:
            with Channel(ControllerAddress.of(probe.address, tls=False)) as channel:
                while not ending.is_set():
                    with suppress(ControllerError):  # too many at a time, or told to wait
                        probe.join(channel)
                        joined.append(time.monotonic())
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=churn, name="churn", daemon=True) for _ in range(_CHURN_THREADS)]
    for thread in threads:
        thread.start()
    try:
        yield joined
    finally:
        ending.set()
        for thread in threads:
            thread.join()
    if failed:
        raise DrillError(f"joining again and again failed: {failed[0]}")
