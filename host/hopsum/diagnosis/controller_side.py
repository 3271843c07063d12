# SPDX-License-Identifier: Apache-2.0
"""The checks of a controller, its switches and jobs, from two looks at it: why does a job not begin, or hang?

    check       fails when
    controller  it gives no answer, or refuses the administrator's calls
    job         the one that was asked for is not there
    switches    one does not answer, or refuses what is written
    program     one runs another program than ours (cookie)
    primary     another controller is a switch's primary client
    entries     between the looks somebody else changed entries on a switch
    members     workers wait for ranks that have not joined
    joins       the same, and joins with the right token were refused (wire version, address, rank)
    leases      members are given up, or about to be
    quorum      fewer workers are left in an epoch than complete a sum
    epochs      an epoch began between the looks, of a job that had one
    writing     the switch does not do what a job's state wants
    slots       agents send again, and nothing is completed: names the ranks that send nothing
    drops       the program dropped packets between the looks, by reason
    clock       an epoch, which is the time when it began, lies in the future

All of them are made from what the controller says; no packet is sent to a switch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from hopsum.diagnosis import job_checks, switchboard_checks
from hopsum.diagnosis.rows import Report, Row, failed, passed, skipped
from hopsum_wire.watch.looks import Look, look_apart_s

_LONGEST_S: Final = 30.0
_SHORTEST_S: Final = 1.0
_Check = Callable[[Look, Look], Row]
_OF_SWITCHES: Final[dict[str, _Check]] = {
    "switches": switchboard_checks.check_switches,
    "program": switchboard_checks.check_program,
    "primary": switchboard_checks.check_primary,
    "entries": switchboard_checks.check_entries,
}
OF_JOBS: Final[dict[str, _Check]] = {
    "members": job_checks.check_members,
    "joins": job_checks.check_joins,
    "leases": job_checks.check_leases,
    "quorum": job_checks.check_quorum,
    "epochs": job_checks.check_epochs,
    "writing": job_checks.check_writing,
    "slots": job_checks.check_slots,
}
CHECKS: Final = ("controller", "job", *_OF_SWITCHES, *OF_JOBS, "drops", "clock")


def apart_s(look: Look) -> float:
    """Return how long after a first look the second one is best taken, in seconds: every member is heard meanwhile."""
    wanted = max((look_apart_s(job) for job in look.jobs if job["state"] == "running"), default=_SHORTEST_S)
    return min(max(wanted * 1.1, _SHORTEST_S), _LONGEST_S)


def examine_controller(before: Look, after: Look, *, where: str, now_s: float, job: str | None = None) -> Report:
    """Make all checks.

    Args:
        where: the controller's address, for people.
        now_s: unix seconds on this host.
        job: look at this one and its switches only.
    """
    report = Report(f"controller at {where}" + (f", job {job!r}" if job else ""))
    report.rows.append(passed("controller", f"answers for {len(after.switches)} switches and {len(after.jobs)} jobs"))
    if job is not None:
        report.rows.append(_find(after, job))
        if not report.good:
            left = CHECKS[CHECKS.index("job") + 1 :]
            report.rows += [skipped(check, "nothing to be learnt without the job") for check in left]
            return report
        before, after = _only(before, job), _only(after, job)
    report.rows += [check(before, after) for check in (*_OF_SWITCHES.values(), *OF_JOBS.values())]
    report.rows += [switchboard_checks.check_drops(before, after), job_checks.check_clock(after, now_s)]
    return report


def no_controller(where: str, error: str, fix: str) -> Report:
    """Return the report of a controller that did not answer, or refused."""
    rows = [failed("controller", error, fix)]
    rows += [skipped(check, "nothing to be learnt without the controller") for check in CHECKS[1:]]
    return Report(f"controller at {where}", rows)


def _find(look: Look, job: str) -> Row:
    found = look.job(job)
    if found is None:
        others = ", ".join(str(each["name"]) for each in look.jobs) or "none"
        fix = "make it (hopsum job create), or give the name of one that is there"
        return failed("job", f"no job {job!r}; there are: {others}", fix)
    on = f"switch{'es' if found['parts'] else ''} {found['switch']}"
    told = f"{found['state']} on {on}, {found['workers']} workers, {found['slots']} slots"
    facts = {"state": found["state"], "epoch": found["epoch"], "switch": found["switch"]}
    return passed("job", told + (f", epoch {found['epoch']}" if found["epoch"] else ""), facts)


def _only(look: Look, job: str) -> Look:
    found = look.job(job)
    if found is None:  # it came, or went, between the looks
        return Look(look.at_s, look.switches, ())
    names = [part["switch"] for part in found["parts"]] or [found["switch"]]
    return Look(look.at_s, [each for each in look.switches if each["name"] in names], [found])
