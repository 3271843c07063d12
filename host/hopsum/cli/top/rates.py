# SPDX-License-Identifier: Apache-2.0
"""What two looks at a controller say together: each switch and job with its rates, and who is behind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hopsum.diagnosis.looks import Look, Values, grown, said, stall

PACKETS = ("added", "completed", "duplicate", "answered", "stale", "fault")
STATISTICS = ("allreduces", "elements", "retransmits", "bytes_sent", "bytes_received")


def document(before: Look, after: Look) -> dict[str, Any]:
    """Return switches and jobs of the later look, with `rates` a second since the earlier one, fit for JSON.

    A job also has `behind`: the ranks that it waits for, if it stands still.
    """
    seconds = after.at_s - before.at_s
    return {
        "seconds": seconds,
        "switches": [_switch(before.switch(switch["name"]), switch, seconds) for switch in after.switches],
        "jobs": [_job(before.job(job["name"]), job, seconds) for job in after.jobs],
    }


def _switch(before: Values | None, after: Values, seconds: float) -> dict[str, Any]:
    drops = {} if before is None or not before["drops"] else grown(before["drops"], after["drops"])
    return {**after, "rates": _per_second({name: count for name, count in drops.items() if count}, seconds)}


def _job(before: Values | None, after: Values, seconds: float) -> dict[str, Any]:
    if before is None or before["epoch"] != after["epoch"]:
        return {**after, "rates": {}, "behind": []}
    packets = grown(before["counters"], after["counters"]) if before["counters"] else {}
    rates = {name: packets[name] for name in PACKETS if name in packets}
    moved = said(before, after)
    sums = {
        name: sum(counts.get(name, 0.0) for counts in moved.values())
        for name in STATISTICS
        if any(name in counts for counts in moved.values())
    }
    if "allreduces" in sums:  # each is one of the job
        sums["allreduces"] /= len(moved)
    standing = stall(before, after, seconds)
    behind = [] if standing is None else list(standing.behind)
    return {**after, "rates": _per_second({**rates, **sums}, seconds), "behind": behind}


def _per_second(counts: Mapping[str, float], seconds: float) -> dict[str, float]:
    return {name: count / seconds for name, count in counts.items()} if seconds > 0 else {}
