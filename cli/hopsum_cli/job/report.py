# SPDX-License-Identifier: Apache-2.0
"""Jobs as tables for people. A job is what `hopsum_wire.control.values.message_to_dict` makes of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hopsum_cli.top.screen import COLOURS
from hopsum_wire.watch.snapshots import ago, health_tone, state_in_words, switch_path, workers_in_phase


def print_jobs(jobs: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Print a table with a row for each job, and below it the reason for each job that is neither healthy nor idle."""
    if not jobs:
        console.print("no jobs")
        return
    table = Table(box=None, pad_edge=False)
    for title in ("job", "state", "switch", "slots", "workers", "generation"):
        table.add_column(title, overflow="fold")
    for job in jobs:
        on = switch_path(job["switches"], job["shards"])
        row = (job["name"], on, _slots(job), _workers(job), str(job["generation"] or "-"))
        name, *rest = map(escape, row)
        table.add_row(name, _state(job), *rest)
    console.print(table)
    for job in jobs:
        if job["health"] not in ("healthy", "idle"):
            told = f"{escape(job['name'])}:[/] {escape(job['health_reason'])}"
            console.print(f"[{COLOURS[health_tone(job)]}]{told}", soft_wrap=not console.is_terminal)


def print_job(job: Mapping[str, Any], console: Console) -> None:
    """Print one job: its facts, its members, the counters of its switches, and its events."""
    about = Table(show_header=False, box=None, pad_edge=False)
    for what, value in _facts(job):
        about.add_row(what, value)
    console.print(about)
    if job["members"]:
        console.print(_members(job["members"]))
        for member in job["members"]:
            if member["reason"]:
                console.print(f"rank {member['rank']} was evicted: {escape(member['reason'])}")
    if job["counters"]:
        console.print(_counted(job))
    if job["events"]:
        console.print(_events(job["events"]))


def _events(events: Sequence[Mapping[str, Any]]) -> Table:
    """Return the events, the last one at the bottom."""
    table = Table("event", "last seen", "reason", "message", box=None, pad_edge=False)
    for each in events:
        colour = "yellow" if each["type"] == "Warning" else "default"
        seen = ago(each["age_s"]) + (f" ({each['count']} times)" if each["count"] > 1 else "")
        kind, last, reason, message = map(escape, (each["type"], seen, each["reason"], each["message"]))
        table.add_row(f"[{colour}]{kind}[/]", last, reason, message)
    return table


def _counted(job: Mapping[str, Any]) -> Table:
    """Make the table of packets by event, with a column for each switch of a tree or of shards."""
    # A job at one switch has no parts: its counters are the job's own.
    by_switch = {part["switch"]: part["counters"] for part in job["parts"]} or {"packets": job["counters"]}
    table = Table(f"counted by the switch{'es' if job['parts'] else ''}", box=None, pad_edge=False)
    for title in by_switch:
        table.add_column(escape(title), justify="right")
    # Leaves and spine count different events: a row for each event of any switch, in their order.
    for event in dict.fromkeys(event for counters in by_switch.values() for event in counters):
        counts = [counters.get(event) for counters in by_switch.values()]
        table.add_row(escape(event), *("-" if count is None else f"{count:,}" for count in counts))
    return table


def _facts(job: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "job", escape(job["name"])
    yield "state", _state(job)
    for number, (switch, part) in enumerate(zip(job["switches"], job["parts"] or [job], strict=True)):
        title = f"shard {number}" if job["shards"] > 1 else "switch"
        yield title, escape(f"{switch}, slots {_slots(part)}, job index {part['job_index']}")
    yield "workers", f"{_workers(job)}, quorum {job['quorum']}, at least {job['min_quorum']} when one asks"
    if 0 < job["min_workers"] < job["workers"]:
        yield "continues", f"without lost workers, while {job['min_workers']} are there"
    if job["codec"]:
        yield "codec", escape(f"{job['codec']} {job['codec_options']}".strip())
    yield "lease", f"{job['lease_s']:g} s"
    yield "generation", str(job["generation"] or "none")
    if job["health_reason"]:
        yield job["health"], escape(job["health_reason"])
    if job["reason"]:
        when = "" if job["ended_age_s"] is None else f"{ago(job['ended_age_s'])}, "
        yield "last ended", escape(f"{when}because {job['reason']}")
    if job["last_refusal"]:
        told = f"{job['joins_refused']} joins, the last {ago(job['last_refusal_age_s'])}: {job['last_refusal']}"
        yield "refused", escape(told)


def _members(members: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for title in ("rank", "member", "address", "port", "lease", "all-reduces", "retransmits", "version"):
        words = title in ("member", "address", "version")
        table.add_column(title, justify="left" if words else "right", no_wrap=title == "address")
    for member in members:
        left_s, told = member["lease_left_s"], member["statistics"]
        at = member["endpoint"]
        table.add_row(
            str(member["rank"]),
            member["phase"],
            escape(f"{at['ip']}:{at['udp_port']}"),
            str(member["port"]),
            "-" if left_s is None else f"{left_s:.1f} s",
            *(f"{told[name]:,.0f}" if name in told else "-" for name in ("allreduces", "retransmits")),
            escape(member["version"]),
        )
    return table


def _state(job: Mapping[str, Any]) -> str:
    return f"[{COLOURS[health_tone(job)]}]{escape(state_in_words(job))}[/]"


def _slots(job: Mapping[str, Any]) -> str:
    return f"{job['slot_base']}-{job['slot_base'] + job['slots'] - 1}"


def _workers(job: Mapping[str, Any]) -> str:
    """Return how many workers are there of how many: in the generation, or waiting for the next one."""
    return f"{len(workers_in_phase(job, 'in', 'waiting'))}/{job['workers']}"
