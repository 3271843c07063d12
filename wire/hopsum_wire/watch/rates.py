# SPDX-License-Identifier: Apache-2.0
"""The rates of each switch and job between two snapshots of a controller, and the ranks that are behind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hopsum_wire import Op
from hopsum_wire.watch.heartbeat import FP32_BYTES, codes_name, latency_s, nmse, ring_share, wait_share
from hopsum_wire.watch.snapshots import (
    ControllerSnapshot,
    Stall,
    Values,
    counter_growth,
    delta_seconds,
    find_stall,
    find_stragglers,
    sort_by_health,
    stat_deltas,
)

PACKETS = ("added", "completed", "duplicate", "answered", "stale", "fault")
STATISTICS = ("allreduces", "elements", "retransmits", "bytes_sent", "bytes_received")


def document(before: ControllerSnapshot, after: ControllerSnapshot) -> dict[str, Any]:
    """Return switches, jobs and notices of the later snapshot, with `rates` a second since the earlier one, for JSON.

    Jobs that need somebody come first (`sort_by_health`). Rates of a switch's counters are over the time between the
    snapshots, rates of a rank's statistics over that between its heartbeats. A rate that is not known yet is left out:
    no heartbeat came between the snapshots.

    A job also has `behind`, the ranks that it waits for if it makes no progress; `late`, those that come last to its
    all-reduces; `codes`, lanes a second by op; `latency_s`, the mean time of an all-reduce; `nmse` (see
    `hopsum_wire.watch.heartbeat`); `ratio_up` and `ratio_down`, the bytes of the summed vectors as float32 over the
    bytes of UDP payload that were sent, and received; `wait_share`, the share of training steps spent waiting for
    all-reduces; `ring_share`, bytes at the workers' interfaces divided by those of a ring of float32. The last six are
    None where no heartbeat has the numbers. Members have `rates`, `latency_s` and `nmse` of their own, and `silent_s`,
    the seconds since their last heartbeat, None without a lease.

    The health of a job that makes no progress is `stalled`, also where all its ranks are there. A job whose all-reduces
    continue is `degraded` at worst.
    """
    seconds = after.at_s - before.at_s
    return {
        "seconds": seconds,
        "notices": list(after.notices),
        "switches": [_switch(before.switch(switch["name"]), switch, seconds) for switch in after.switches],
        "jobs": sort_by_health(_job(before.job(job["name"]), job, seconds) for job in after.jobs),
    }


def _switch(before: Values | None, after: Values, seconds: float) -> dict[str, Any]:
    drops = {} if before is None or not before["drops"] else counter_growth(before["drops"], after["drops"])
    return {**after, "rates": _per_second({name: count for name, count in drops.items() if count}, seconds)}


def _job(before: Values | None, after: Values, seconds: float) -> dict[str, Any]:
    if before is None or before["generation"] != after["generation"]:
        before = {**after, "counters": {}, "members": []}
    packets = counter_growth(before["counters"], after["counters"]) if before["counters"] else {}
    rates = {name: packets[name] for name in PACKETS if name in packets}
    moved = stat_deltas(before, after)
    sums = _summed(moved)
    speeds = {rank: _per_second(moved[rank], over_s) for rank, over_s in delta_seconds(before, after, seconds).items()}
    speed = _summed(speeds) if len(speeds) == len(moved) else {}
    shown = {name: speed[name] for name in STATISTICS if name in speed}
    # Every rank counts the same all-reduces, so the sum over ranks counts each n times.
    if "allreduces" in shown:
        shown["allreduces"] /= len(speeds)
    stalled = find_stall(before, after, seconds)
    health, reason = _health(after, stalled, sums.get("allreduces", 0.0) > 0)
    return {
        **after,
        "health": health,
        "health_reason": reason,
        "rates": {**_per_second(rates, seconds), **shown},
        "codes": {op.name.lower(): speed[name] for op in Op if speed.get(name := codes_name(op))},
        "latency_s": latency_s(sums),
        "nmse": nmse(sums),
        "ratio_up": _ratio(sums, "bytes_sent"),
        "ratio_down": _ratio(sums, "bytes_received"),
        "wait_share": wait_share(sums),
        "ring_share": ring_share(sums, after["workers"]),
        "behind": [] if stalled is None else list(stalled.behind),
        "late": list(find_stragglers(before, after)),
        "members": [
            _member(member, moved.get(member["rank"], {}), speeds.get(member["rank"], {}), after)
            for member in after["members"]
        ],
    }


def _health(job: Values, stalled: Stall | None, moves: bool) -> tuple[str, str]:
    """Return the controller's word on a job's health and its reason, or what two snapshots know better."""
    if stalled is not None and job["health"] != "stalled":
        if stalled.behind:
            ranks = ", ".join(map(str, stalled.behind))
            found = f"it makes no progress: the others wait for rank{'s' if len(stalled.behind) > 1 else ''} {ranks}"
        else:
            found = f"it makes no progress: nothing was complete in {stalled.seconds:.0f} s, though ranks retransmit"
        return "stalled", "; ".join(filter(None, (found, job["health_reason"])))
    if job["health"] == "stalled" and job["state"] == "running" and moves:
        return "degraded", job["health_reason"]
    return job["health"], job["health_reason"]


def _member(member: Values, moved: Mapping[str, float], speed: Mapping[str, float], job: Values) -> dict[str, Any]:
    left_s, heard_s = member["lease_left_s"], member["heartbeat_age_s"]
    silent_s = heard_s if heard_s is not None or left_s is None else max(job["lease_s"] - left_s, 0.0)
    return {
        **member,
        "rates": {name: speed[name] for name in STATISTICS if name in speed},
        "latency_s": latency_s(moved),
        "nmse": nmse(moved),
        "silent_s": None if left_s is None else silent_s,
    }


def _ratio(sums: Mapping[str, float], name: str) -> float | None:
    """Return the bytes of the vectors as float32 over the bytes on the wire, or None where these are not known."""
    counted_bytes = sums.get(name, 0.0)
    return FP32_BYTES * sums.get("elements", 0.0) / counted_bytes if counted_bytes > 0 else None


def _summed(moved: Mapping[int, Mapping[str, float]]) -> dict[str, float]:
    """Add up, over ranks, each count that any rank told."""
    names = dict.fromkeys(name for counts in moved.values() for name in counts)
    return {name: sum(counts.get(name, 0.0) for counts in moved.values()) for name in names}


def _per_second(counts: Mapping[str, float], seconds: float) -> dict[str, float]:
    return {name: count / seconds for name, count in counts.items()} if seconds > 0 else {}
