# SPDX-License-Identifier: Apache-2.0
"""Two looks at a controller: what has moved between them, and who keeps a job waiting.

Switches and jobs are as `hopsum.rpc.jobs.as_values` gives them. What agents say is as old as their last heartbeat, so
two looks must lie some time apart before anything can be said of ranks: half a lease has a heartbeat of everybody.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hopsum.wire import MAX_WORKERS

Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Look:
    """What a controller said at a time, in seconds of a clock that never goes back."""

    at_s: float
    switches: Sequence[Values]
    jobs: Sequence[Values]
    """Running ones with their counters."""

    def switch(self, name: str) -> Values | None:
        """Return the switch of a name, None when there is none."""
        return next((switch for switch in self.switches if switch["name"] == name), None)

    def job(self, name: str) -> Values | None:
        """Return the job of a name, None when there is none."""
        return next((job for job in self.jobs if job["name"] == name), None)


@dataclass(frozen=True, slots=True)
class Stall:
    """A job of which agents send again and nothing is completed."""

    behind: tuple[int, ...]
    """Ranks that have sent nothing in the meantime; none where all send."""
    waiting: tuple[int, ...]
    """Ranks that send again."""
    seconds: float


def grown(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Return by how much counters have grown; one that began anew has grown by what it is."""
    return {name: now - was if now >= (was := before.get(name, 0)) else now for name, now in after.items()}


def workers_of(job: Values, *phases: str) -> list[Values]:
    """Return the members of these phases that are workers."""
    return [member for member in job["members"] if member["phase"] in phases and member["rank"] < MAX_WORKERS]


def said(before: Values, after: Values) -> dict[int, dict[str, float]]:
    """Return by rank how much the statistics have grown of workers that were in the same epoch at both looks."""
    if before["epoch"] != after["epoch"]:
        return {}
    earlier = {member["rank"]: member["statistics"] for member in workers_of(before, "in")}
    return {
        member["rank"]: grown(earlier[member["rank"]], member["statistics"])
        for member in workers_of(after, "in")
        if member["rank"] in earlier
    }


def look_apart_s(job: Values) -> float:
    """Return how far two looks must lie apart to hold a heartbeat of every member, in seconds."""
    return float(job["lease_s"]) / 2


def stall(before: Values, after: Values, seconds: float) -> Stall | None:
    """Return how a job stands still, if it does: two looks at it that lie `seconds` apart."""
    moved = said(before, after)
    if after["state"] != "running" or not moved or seconds < look_apart_s(after):
        return None
    packets = grown(before["counters"], after["counters"])
    waiting = tuple(rank for rank, counts in moved.items() if counts.get("retransmits"))
    if not waiting or packets.get("completed") or any(counts.get("allreduces") for counts in moved.values()):
        return None
    behind = tuple(rank for rank, counts in moved.items() if not counts.get("datagrams_sent"))
    return Stall(behind, waiting, seconds)
