# SPDX-License-Identifier: Apache-2.0
"""The checks of a controller, its switches and jobs, from two snapshots of it: why does a job not begin, or hang?

    check       fails when
    controller  it gives no answer, or refuses the administrator's calls
    job         the one that was asked for is not there
    switches    one does not answer, or refuses what is written
    program     one runs another program than ours (cookie)
    primary     another controller is a switch's primary client
    entries     between the snapshots somebody else changed entries on a switch
    members     workers wait for ranks that have not joined
    joins       the same, and joins with the right token were refused (wire version, address, rank)
    leases      members are evicted, or about to be
    quorum      fewer workers are left in a generation than complete a sum
    generations      a generation began between the snapshots, of a job that had one
    writing     the switch does not do what a job's state wants
    slots       agents send again, and nothing is completed: names the ranks that send nothing
    drops       the program dropped packets between the snapshots, by reason
    clock       a generation, which is the time when it began, lies in the future

All of them are made from what the controller says. No packet is sent to a switch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from hopsum.diagnosis import controller_switch_checks, job_checks
from hopsum.diagnosis.rows import CheckRow, DiagnosisReport, failed, passed, skipped
from hopsum_wire.watch.snapshots import ControllerSnapshot, snapshots_apart_s
from hopsum_wire.watch.words import switch_path

_LONGEST_S: Final = 30.0
_SHORTEST_S: Final = 1.0
_Check = Callable[[ControllerSnapshot, ControllerSnapshot], CheckRow]
_OF_SWITCHES: Final[dict[str, _Check]] = {
    "switches": controller_switch_checks.check_switches,
    "program": controller_switch_checks.check_program,
    "primary": controller_switch_checks.check_primary,
    "entries": controller_switch_checks.check_entries,
}
OF_JOBS: Final[dict[str, _Check]] = {
    "members": job_checks.check_members,
    "joins": job_checks.check_joins,
    "leases": job_checks.check_leases,
    "quorum": job_checks.check_quorum,
    "generations": job_checks.check_generations,
    "writing": job_checks.check_writing,
    "slots": job_checks.check_slots,
}
CHECKS: Final = ("controller", "job", *_OF_SWITCHES, *OF_JOBS, "drops", "clock")


def apart_s(snapshot: ControllerSnapshot) -> float:
    """Return the seconds between two snapshots that are best: every member is heard in between."""
    wanted = max((snapshots_apart_s(job) for job in snapshot.jobs if job["state"] == "running"), default=_SHORTEST_S)
    return min(max(wanted * 1.1, _SHORTEST_S), _LONGEST_S)


def examine_controller(
    before: ControllerSnapshot, after: ControllerSnapshot, *, where: str, now_s: float, job: str | None = None
) -> DiagnosisReport:
    """Make all checks.

    Args:
        where: the controller's address, for people.
        now_s: unix seconds on this host.
        job: look at this one and its switches only.
    """
    report = DiagnosisReport(f"controller at {where}" + (f", job {job!r}" if job else ""))
    report.rows.append(passed("controller", f"answers for {len(after.switches)} switches and {len(after.jobs)} jobs"))
    if job is not None:
        report.rows.append(_find(after, job))
        if not report.good:
            left = CHECKS[CHECKS.index("job") + 1 :]
            report.rows += [skipped(check, "nothing to be learnt without the job") for check in left]
            return report
        before, after = _only(before, job), _only(after, job)
    report.rows += [check(before, after) for check in (*_OF_SWITCHES.values(), *OF_JOBS.values())]
    report.rows += [controller_switch_checks.check_drops(before, after), job_checks.check_clock(after, now_s)]
    return report


def no_controller(where: str, error: str, fix: str) -> DiagnosisReport:
    """Return the report of a controller that did not answer, or refused."""
    rows = [failed("controller", error, fix)]
    rows += [skipped(check, "nothing to be learnt without the controller") for check in CHECKS[1:]]
    return DiagnosisReport(f"controller at {where}", rows)


def _find(snapshot: ControllerSnapshot, job: str) -> CheckRow:
    found = snapshot.job(job)
    if found is None:
        others = ", ".join(str(each["name"]) for each in snapshot.jobs) or "none"
        fix = "make it (hopsum job create), or give the name of one that is there"
        return failed("job", f"no job {job!r}; there are: {others}", fix)
    on = f"switch{'es' if found['parts'] else ''} {switch_path(found['switches'], found['shards'])}"
    told = f"{found['state']} on {on}, {found['workers']} workers, {found['slots']} slots"
    facts = {"state": found["state"], "generation": found["generation"], "switches": found["switches"]}
    return passed("job", told + (f", generation {found['generation']}" if found["generation"] else ""), facts)


def _only(snapshot: ControllerSnapshot, job: str) -> ControllerSnapshot:
    found = snapshot.job(job)
    if found is None:  # it came, or went, between the snapshots
        return ControllerSnapshot(snapshot.at_s, snapshot.switches, ())
    names = found["switches"]
    return ControllerSnapshot(snapshot.at_s, [each for each in snapshot.switches if each["name"] in names], [found])
