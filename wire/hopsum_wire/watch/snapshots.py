# SPDX-License-Identifier: Apache-2.0
"""Snapshots of a controller: the deltas between two of them, and the ranks that a job waits for.

Switches and jobs are as `hopsum_wire.control.values.message_to_dict` gives them. The statistics of a rank are as old as
its last heartbeat, so two snapshots must lie some time apart before they say anything of ranks: half a lease has a
heartbeat of everybody.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from hopsum_wire.watch.heartbeat import latency_s

Values = Mapping[str, Any]
NEWS_S: Final = 0.2
"""Two heartbeats are further apart. What is less is the same one, seen over a network that is not always as fast."""
OLD_REFUSAL_S: Final = 600.0
STRAGGLER_FACTOR: Final = 2.0
STRAGGLER_S: Final = 0.002
"""The least factor, and the least seconds, by which the all-reduces of others take longer than a straggler's own."""


@dataclass(frozen=True, slots=True)
class ControllerSnapshot:
    """The state of a controller at a time, in seconds of a clock that never goes back."""

    at_s: float
    switches: Sequence[Values]
    jobs: Sequence[Values]
    """Running ones with their counters."""
    notices: Sequence[str] = ()
    """Troubles of the controller itself."""

    def switch(self, name: str) -> Values | None:
        """Return the switch of a name, None when there is none."""
        return next((switch for switch in self.switches if switch["name"] == name), None)

    def job(self, name: str) -> Values | None:
        """Return the job of a name, None when there is none."""
        return next((job for job in self.jobs if job["name"] == name), None)


@dataclass(frozen=True, slots=True)
class Stall:
    """A job that makes no progress between two snapshots: workers retransmit, and nothing is completed."""

    behind: tuple[int, ...]
    """Ranks that have sent nothing in the meantime, or none where all send."""
    waiting: tuple[int, ...]
    """Ranks that send again."""
    gone: tuple[int, ...]
    """Ranks that have left the generation, or were evicted."""
    seconds: float


def counter_growth(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Return the growth of each counter in `after`. A counter that is new, or smaller than before, began anew at 0."""
    return {name: now - was if now >= (was := before.get(name, 0)) else now for name, now in after.items()}


def workers_in_phase(job: Values, *phases: str) -> list[Values]:
    """Return the workers of a job that are in one of `phases`."""
    return [member for member in job["members"] if member["phase"] in phases]


def stat_deltas(before: Values, after: Values) -> dict[int, dict[str, float]]:
    """Return by rank the growth of the statistics of workers that were in the same generation at both snapshots.

    It is empty if the job's generation has changed.

    Args:
        before, after: the same job in both snapshots.
    """
    if before["generation"] != after["generation"]:
        return {}
    earlier = {member["rank"]: member["statistics"] for member in workers_in_phase(before, "in")}
    return {
        member["rank"]: counter_growth(earlier[member["rank"]], member["statistics"])
        for member in workers_in_phase(after, "in")
        if member["rank"] in earlier
    }


def delta_seconds(before: Values, after: Values, seconds: float) -> dict[int, float]:
    """Return by rank the seconds over which its `stat_deltas` came about. Ranks without news are left out.

    A worker's statistics are of its last heartbeat. So these are the seconds between its last heartbeats at both
    snapshots, which are `seconds` apart. The first heartbeat counts from the beginning of the generation. A worker
    whose heartbeat was due in the meantime, and did not come, has all `seconds`.
    """
    earlier = {member["rank"]: member["heartbeat_age_s"] for member in workers_in_phase(before, "in")}
    found = {}
    for member in workers_in_phase(after, "in"):
        rank, age_s = member["rank"], member["heartbeat_age_s"]
        if rank not in earlier or before["generation"] != after["generation"]:
            continue
        since_s = after["begun_age_s"] if earlier[rank] is None else earlier[rank] + seconds
        if age_s is not None and since_s is not None and since_s - age_s > NEWS_S:
            found[rank] = since_s - age_s
        elif seconds >= snapshots_apart_s(after):
            found[rank] = seconds
    return found


def rates_are_known(before: ControllerSnapshot, after: ControllerSnapshot) -> bool:
    """Return whether rates of all ranks that were in a running job at both snapshots are known."""
    pairs = [(earlier, job) for job in after.jobs if (earlier := before.job(job["name"])) is not None]
    seconds = after.at_s - before.at_s
    return all(
        delta_seconds(earlier, job, seconds).keys() >= stat_deltas(earlier, job).keys() for earlier, job in pairs
    )


def join_was_refused(job: Values) -> bool:
    """Return whether ranks of a job are missing, perhaps because a join was refused lately.

    A refusal does not count once a generation has begun after it, or after OLD_REFUSAL_S where nobody waits for those
    ranks.
    """
    age_s, begun_s = job["last_refusal_age_s"], job["begun_age_s"]
    if age_s is None or not job["missing_ranks"] or (begun_s is not None and begun_s <= age_s):
        return False
    return age_s < OLD_REFUSAL_S or bool(workers_in_phase(job, "waiting", "over"))


def snapshots_apart_s(job: Values) -> float:
    """Return the least seconds between two snapshots such that every member has sent a heartbeat between them."""
    return float(job["lease_s"]) / 2


def find_stall(before: Values, after: Values, seconds: float) -> Stall | None:
    """Return the stall of a job between two snapshots, `seconds` apart; None if there is none, or it is not known.

    A job stalls where workers retransmit and nothing is completed. It is not known where the job does not run, its
    generation has changed, or the snapshots are less than `snapshots_apart_s` apart.
    """
    moved = stat_deltas(before, after)
    if after["state"] != "running" or not moved or seconds < snapshots_apart_s(after):
        return None
    packets = counter_growth(before["counters"], after["counters"])
    waiting = tuple(rank for rank, counts in moved.items() if counts.get("retransmits"))
    if not waiting or packets.get("completed") or any(counts.get("allreduces") for counts in moved.values()):
        return None
    behind = tuple(rank for rank, counts in moved.items() if not counts.get("datagrams_sent"))
    gone = tuple(int(member["rank"]) for member in workers_in_phase(after, "left", "lost"))
    return Stall(behind, waiting, gone, seconds)


def find_stragglers(before: Values, after: Values) -> tuple[int, ...]:
    """Return the ranks that come last to the all-reduces of a job that makes progress; empty if none does.

    All ranks have the mean at about the same time. So the others wait for the last rank, which waits for nobody: its
    all-reduces take less than half of the median of the others, and at least 2 ms less. A rank that is slow between the
    first and the last datagram of an all-reduce is not found.
    """
    took_s = {
        rank: taken for rank, counts in stat_deltas(before, after).items() if (taken := latency_s(counts)) is not None
    }
    found = []
    for rank, own_s in took_s.items():
        others_s = [taken for other, taken in took_s.items() if other != rank]
        if others_s and median(others_s) > max(STRAGGLER_FACTOR * own_s, own_s + STRAGGLER_S):
            found.append(rank)
    return tuple(found)


TONES: Final = {"healthy": "good", "idle": "quiet", "waiting": "wait", "failed": "wait", "degraded": "bad"}
"""The tone of each health. `stalled` is bad, and so is a word that this version does not know."""
_FIRST: Final = ("stalled", "degraded", "failed", "healthy", "waiting", "idle")
_UNITS: Final = ((86400, "days"), (3600, "h"), (60, "min"))
_TWO: Final = 2


def ago(seconds: float | None) -> str:
    """Return the time since an event in words, "6 min ago", or "at an unknown time" for None."""
    if seconds is None:
        return "at an unknown time"
    for size, unit in _UNITS:
        if seconds >= _TWO * size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def sort_by_health(jobs: Iterable[Values]) -> list[Values]:
    """Return jobs in a new list by health, then by name: stalled, degraded, failed, healthy, waiting, idle.

    A health that this version does not know comes first.
    """

    def place(job: Values) -> tuple[int, str]:
        # A word that this version does not know may be something wrong.
        return _FIRST.index(job["health"]) if job["health"] in _FIRST else -1, job["name"]

    return sorted(jobs, key=place)


def matches_words(job: Values, words: Iterable[str]) -> bool:
    """Return whether each of some words is a part of a job's name, state or health; capitals do not matter."""
    text = f"{job['name']} {job['state']} {job['health']}".lower()
    return all(word.lower() in text for word in words)


def health_tone(job: Mapping[str, Any]) -> str:
    """Return the tone in which to show a job's health: good, quiet, wait or bad; bad for an unknown health."""
    return TONES.get(job["health"], "bad")


def state_in_words(job: Mapping[str, Any]) -> str:
    """Return a job's state in words, with its health unless that is healthy: "running, stalled"."""
    return str(job["state"]) if job["health"] == "healthy" else f"{job['state']}, {job['health']}"


def switch_path(switches: Sequence[str], shards: int) -> str:
    """Return the switches of a job in words: its one switch, `LEAF, LEAF, then SPINE`, or `SHARD + SHARD`."""
    if shards > 1:
        return " + ".join(switches)
    *leaves, top = switches
    return f"{', '.join(leaves)}, then {top}" if leaves else top
