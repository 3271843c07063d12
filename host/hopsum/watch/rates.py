# SPDX-License-Identifier: Apache-2.0
"""What two looks at a controller say together: each switch and job with its rates, and who is behind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hopsum.watch.heartbeat import codes_name, latency_s, nmse
from hopsum.watch.looks import Look, Values, grown, late, said, stall
from hopsum.wire import Op

PACKETS = ("added", "completed", "duplicate", "answered", "stale", "fault")
STATISTICS = ("allreduces", "elements", "retransmits", "bytes_sent", "bytes_received")


def document(before: Look, after: Look) -> dict[str, Any]:
    """Return switches and jobs of the later look, with `rates` a second since the earlier one, fit for JSON.

    A job also has `behind`, the ranks that it waits for if it stands still; `late`, those that come last to its
    all-reduces; `codes`, lanes a second by op; `latency_s`, the mean time of an all-reduce; and `nmse` (see
    `hopsum.watch.heartbeat`), both None where nobody told. Members have `rates`, `latency_s` and `nmse` of their own,
    and `silent_s`, the seconds since they were heard, None without a lease.
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
        before = {**after, "counters": {}, "members": []}
    packets = grown(before["counters"], after["counters"]) if before["counters"] else {}
    rates = {name: packets[name] for name in PACKETS if name in packets}
    moved = said(before, after)
    sums = _summed(moved)
    shown = {name: sums[name] for name in STATISTICS if name in sums}
    if "allreduces" in shown:  # each is one of the job
        shown["allreduces"] /= len(moved)
    standing = stall(before, after, seconds)
    codes = {op.name.lower(): sums[name] for op in Op if sums.get(name := codes_name(op))}
    return {
        **after,
        "rates": _per_second({**rates, **shown}, seconds),
        "codes": _per_second(codes, seconds),
        "latency_s": latency_s(sums),
        "nmse": nmse(sums),
        "behind": [] if standing is None else list(standing.behind),
        "late": list(late(before, after)),
        "members": [_member(member, moved.get(member["rank"], {}), after, seconds) for member in after["members"]],
    }


def _member(member: Values, moved: Mapping[str, float], job: Values, seconds: float) -> dict[str, Any]:
    left_s = member["lease_left_s"]
    return {
        **member,
        "rates": _per_second({name: moved[name] for name in STATISTICS if name in moved}, seconds),
        "latency_s": latency_s(moved),
        "nmse": nmse(moved),
        "silent_s": None if left_s is None else max(job["lease_s"] - left_s, 0.0),
    }


def _summed(moved: Mapping[int, Mapping[str, float]]) -> dict[str, float]:
    """Return the sum over ranks of each count that anybody told."""
    sums: dict[str, float] = {}
    for counts in moved.values():
        for name, count in counts.items():
            sums[name] = sums.get(name, 0.0) + count
    return sums


def _per_second(counts: Mapping[str, float], seconds: float) -> dict[str, float]:
    return {name: count / seconds for name, count in counts.items()} if seconds > 0 else {}
