# SPDX-License-Identifier: Apache-2.0
"""Checks of a controller's jobs, from two snapshots of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from hopsum.diagnosis.rows import CheckRow, failed, passed, skipped
from hopsum.protocol.deadline_prober import name_ranks
from hopsum_wire.watch.snapshots import (
    ControllerSnapshot,
    Stall,
    Values,
    grown,
    refused_now,
    stall,
    stat_deltas,
    workers_of,
)
from hopsum_wire.watch.words import ago, switch_path

_QUIET: Final = 1 / 3
"""Share of a lease that is left when a heartbeat has been missed: they come at least three times in one."""
_AHEAD_S: Final = 60.0


def check_members(before: ControllerSnapshot, after: ControllerSnapshot) -> CheckRow:
    """Check that no worker waits for others to join."""
    check = "members"
    short = [job for job in after.jobs if job["missing_ranks"] and (_there(job) or len(after.jobs) == 1)]
    if not short:
        return passed(check, f"no rank waits for others in {len(after.jobs)} jobs")
    told = "; ".join(
        f"job {job['name']!r} waits for {name_ranks(job['missing_ranks'])}; there are {_there(job)} of {job['workers']}"
        for job in short
    )
    because = "".join(
        f" Its last generation ended {ago(job['ended_age_s'])}: {job['reason']}." for job in short if job["reason"]
    )
    fix = f"start these ranks, or see in their logs why they do not join.{because}"
    return failed(check, told, fix, {"missing": {job["name"]: job["missing_ranks"] for job in short}})


def check_joins(before: ControllerSnapshot, after: ControllerSnapshot) -> CheckRow:
    """Check that no rank is missing because it was refused."""
    check = "joins"
    refused = [job for job in after.jobs if job["joins_refused"]]
    missing = [job for job in refused if refused_now(job)]
    if missing:
        told = "; ".join(_refusals(job) for job in missing)
        fix = "do what the refusal says, and start that worker again"
        return failed(check, told, fix, {"refused": {job["name"]: job["joins_refused"] for job in missing}})
    versions = {
        job["name"]: sorted({member["version"] for member in job["members"] if member["version"]}) for job in after.jobs
    }
    mixed = {name: found for name, found in versions.items() if len(found) > 1}
    advice = "".join(f"job {name!r} has workers of hopsum {', '.join(found)}. " for name, found in mixed.items())
    over = "; ".join(f"{_refusals(job)}: that is over" for job in refused)
    return passed(check, over or "none refused", {"versions": versions}, advice=advice.strip())


def _refusals(job: Values) -> str:
    when = ago(job["last_refusal_age_s"])
    return f"job {job['name']!r}: {job['joins_refused']} refused, the last {when}: {job['last_refusal']}"


def check_leases(before: ControllerSnapshot, after: ControllerSnapshot) -> CheckRow:
    """Check that no member is evicted, or about to be. A running job with a quorum goes on without it."""
    check = "leases"
    lost = [(job, member) for job in after.jobs for member in job["members"] if member["phase"] == "lost"]
    quiet = [
        (job, member)
        for job in after.jobs
        for member in job["members"]
        if member["lease_left_s"] is not None and member["lease_left_s"] < job["lease_s"] * _QUIET
    ]
    facts = {"lost": _by_job(lost), "quiet": _by_job(quiet)}
    fix = "see whether the process runs and reaches the controller; started again it takes its rank back"
    ended = [(job, member) for job, member in lost if job["state"] != "running"]
    if ended:
        return failed(check, _given_up(ended), fix, facts)
    if quiet:
        told = "; ".join(
            f"rank {member['rank']} of job {job['name']!r} at {_at(member)} has missed heartbeats: evicted in "
            f"{member['lease_left_s']:.1f} s"
            for job, member in quiet
        )
        return failed(check, told, fix, facts)
    left = [member["lease_left_s"] for job in after.jobs for member in job["members"]]
    held = [each for each in left if each is not None]
    told = f"{len(held)} held" + (f", the shortest for {min(held):.1f} s" if held else "")
    advice = f"{_given_up(lost)}, and the job continues without: {fix}" if lost else ""
    return passed(check, told, facts, advice=advice)


def check_quorum(before: ControllerSnapshot, after: ControllerSnapshot) -> CheckRow:
    """Check that enough workers are left in each generation."""
    check, running = "quorum", _running(after)
    short = [job for job in running if len(workers_of(job, "in")) < job["quorum"]]
    if not short:
        return passed(check, f"in reach in {len(running)} running jobs")
    told = "; ".join(
        f"job {job['name']!r}: {len(workers_of(job, 'in'))} workers are left in generation {job['generation']}, "
        f"its quorum is {job['quorum']}; {_gone(job)}"
        for job in short
    )
    fix = "no sum can be complete: stop the others too and start all ranks again, or make the job with a lower quorum"
    return failed(check, told, fix, {"jobs": [job["name"] for job in short]})


def check_generations(before: ControllerSnapshot, after: ControllerSnapshot) -> CheckRow:
    """Check that no job goes from one generation to the next."""
    check, changing = "generations", {}
    for job in after.jobs:
        earlier = before.job(job["name"])
        begun = 0 if earlier is None else job["generations_begun"] - earlier["generations_begun"]
        if begun > 0 and earlier is not None and earlier["generations_begun"] > 0:
            changing[job["name"]] = begun
    if changing:
        told = "; ".join(f"job {name!r} began {count}" for name, count in changing.items())
        why = "; ".join(str(job["reason"]) for job in after.jobs if job["name"] in changing and job["reason"])
        fix = (
            f"the last one ended because {why or 'of what the log says'}. Two workers with one rank take it from each "
            "other; a worker that crashes and is started again ends the generation each time"
        )
        return failed(check, f"in {after.at_s - before.at_s:.1f} s {told}", fix, {"begun": changing})
    most = max(after.jobs, key=lambda job: int(job["generations_begun"]), default=None)
    told = f"none began in {after.at_s - before.at_s:.1f} s"
    if most is not None:
        told += f", most since the controller's start: {most['generations_begun']} of job {most['name']!r}"
    return passed(check, told)


def check_writing(before: ControllerSnapshot, after: ControllerSnapshot) -> CheckRow:
    """Check that the switches do what the states of jobs want."""
    check = "writing"
    stuck = [job for job in after.jobs if job["condition"]]
    if not stuck:
        return passed(check, "the switches do what the jobs' states want")
    told = "; ".join(f"job {job['name']!r}, {job['state']}: {job['condition']}" for job in stuck)
    where = ", ".join(sorted({switch_path(job["switches"], job["shards"]) for job in stuck}))
    fix = f"see to switch {where}; the controller keeps trying"
    return failed(check, told, fix, {"jobs": [job["name"] for job in stuck]})


def check_slots(before: ControllerSnapshot, after: ControllerSnapshot) -> CheckRow:
    """Check that no job stands still while its agents send again."""
    check, seconds = "slots", after.at_s - before.at_s
    pairs = [(earlier, job) for job in _running(after) if (earlier := before.job(job["name"])) is not None]
    heard = [(earlier, job) for earlier, job in pairs if any(stat_deltas(earlier, job).values())]
    if not heard:
        return skipped(check, "no running job whose agents say what they send")
    stalled = {job["name"]: found for earlier, job in heard if (found := stall(earlier, job, seconds)) is not None}
    if not stalled:
        done = sum(grown(earlier["counters"], job["counters"]).get("completed", 0) for earlier, job in heard)
        return passed(check, f"{done:g} completed in {seconds:.1f} s; no rank retransmits without an end")
    told = "; ".join(
        f"job {name!r}: for {found.seconds:.1f} s nothing is complete, " + _why_still(found)
        for name, found in stalled.items()
    )
    fix = "; ".join(_stalled_fix(job, stalled[job["name"]]) for _, job in heard if job["name"] in stalled)
    return failed(check, told, fix, {"behind": {name: list(found.behind) for name, found in stalled.items()}})


def _why_still(found: Stall) -> str:
    if found.behind:
        return f"and {name_ranks(found.behind)} sent nothing"
    if found.gone:
        return f"and {name_ranks(found.gone)} {'is' if len(found.gone) == 1 else 'are'} gone"
    return "though all ranks send"


def _gone(job: Values) -> str:
    """Say who left the generation, or was evicted and why."""
    told = [
        f"rank {member['rank']} at {_at(member)} "
        + ("has left" if member["phase"] == "left" else f"was evicted: {member['reason']}")
        for member in workers_of(job, "left", "lost")
    ]
    return "; ".join(told) or "no rank has left"


def _stalled_fix(job: Values, found: Stall) -> str:
    if not found.behind and found.gone:
        return f"job {job['name']!r}: see quorum: start {name_ranks(found.gone)} again, and the others if they ended"
    if not found.behind:
        return (
            f"job {job['name']!r}: datagrams do not arrive, or replies do not come back: see drops, and run hopsum "
            "doctor on a worker's host"
        )
    late = ", ".join(
        f"rank {member['rank']} at {_at(member)}" for member in job["members"] if member["rank"] in found.behind
    )
    return f"look at {late}: busy with something else, stopped, or in another all-reduce"


def check_clock(after: ControllerSnapshot, now_s: float) -> CheckRow:
    """Check that no generation, which is the time when it began, lies in the future of this host."""
    check = "clock"
    ahead = {job["name"]: job["generation"] - now_s for job in after.jobs if job["generation"] > now_s + _AHEAD_S}
    if not ahead:
        return passed(check, "no generation is ahead of this host's clock")
    told = "; ".join(
        f"the generation of job {name!r} is {ahead[name]:.0f} s ahead of this host's clock" for name in ahead
    )
    fix = (
        "one of the clocks is wrong, the controller's or this host's: set it. Generations go on from the highest "
        "that was used, but certificates of TLS are checked against the clock"
    )
    return failed(check, told, fix, {"ahead_s": ahead})


def _given_up(lost: Iterable[tuple[Values, Values]]) -> str:
    return "; ".join(
        f"rank {member['rank']} of job {job['name']!r} at {_at(member)} was evicted: {member['reason']}"
        for job, member in lost
    )


def _there(job: Values) -> int:
    return int(job["workers"]) - len(job["missing_ranks"])


def _running(snapshot: ControllerSnapshot) -> list[Values]:
    return [job for job in snapshot.jobs if job["state"] == "running"]


def _at(member: Values) -> str:
    endpoint = member["endpoint"] or {}
    return f"{endpoint.get('ip', '?')}:{endpoint.get('udp_port', '?')}"


def _by_job(found: Iterable[tuple[Any, Any]]) -> dict[str, list[int]]:
    ranks: dict[str, list[int]] = {}
    for job, member in found:
        ranks.setdefault(job["name"], []).append(member["rank"])
    return ranks
