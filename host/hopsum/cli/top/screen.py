# SPDX-License-Identifier: Apache-2.0
"""Switches and jobs as tables for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group
from rich.markup import escape
from rich.table import Table

from hopsum.wire import MAX_WORKERS

_COLOURS = {"running": "green", "forming": "yellow", "installing": "yellow", "changing": "red", "ending": "dim"}
_UNITS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
_SHOWN_RANKS = 8
_WIDE = 150
_ONLY_WIDE = ("epoch", "slots", "packets/s", "dup/s", "stale/s", "elements/s", "latency", "NMSE")


def screen(document: Mapping[str, Any], width: int = _WIDE) -> Group:
    """Return what is shown of a document of `rates`: two tables, and a line for each thing that is wrong.

    `width` is that of the terminal: a narrow one has fewer columns.
    """
    notes = [
        *(
            f"[red]switch {escape(each['name'])}:[/] {escape(each['trouble'])}"
            for each in document["switches"]
            if each["trouble"]
        ),
        *(note for job in document["jobs"] for note in _notes(job)),
    ]
    return Group(_switches(document), _jobs(document, width >= _WIDE), *notes)


def amount(value: float | None) -> str:
    """Return a rate with three digits and a unit: 12.3k; - for one that is not known."""
    if value is None:
        return "-"
    for size, unit in _UNITS:
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def duration(seconds: float | None) -> str:
    """Return a time with three digits and a unit: 1.23ms; - for one that is not known."""
    if seconds is None:
        return "-"
    return f"{seconds:.3g}s" if seconds >= 1 else f"{1e3 * seconds:.3g}ms"


def _switches(document: Mapping[str, Any]) -> Table:
    table = Table(title="switches", title_justify="left", box=None, pad_edge=False)
    for column in ("switch", "driver", "state", "jobs", "slots", "largest free", "audits", "put right", "drops/s"):
        table.add_column(column)
    for switch in document["switches"]:
        state = "[green]up[/]" if switch["reachable"] else f"[red]{switch['trouble_kind'] or 'down'}[/]"
        drops = ", ".join(f"{reason} {amount(rate)}" for reason, rate in switch["rates"].items())
        table.add_row(
            escape(switch["name"]),
            escape(switch["driver"]),
            state,
            str(switch["jobs"]),
            f"{switch['slots_used']}/{switch['slots']}",
            str(switch["slots_largest_free"]),
            str(switch["audits"]),
            str(switch["put_right"]),
            drops or "0",
        )
    return table


def _jobs(document: Mapping[str, Any], wide: bool) -> Table:
    table = Table(title="jobs", title_justify="left", box=None, pad_edge=False)
    rows = [_job(job) for job in document["jobs"]]
    shown = [column for column in (rows[0] if rows else ()) if wide or column not in _ONLY_WIDE]
    for column in shown:
        table.add_column(column)
    for row in rows:
        table.add_row(*(row[column] for column in shown))
    return table


def _job(job: Mapping[str, Any]) -> dict[str, str]:
    rates = job["rates"]
    inside = sum(member["phase"] in ("in", "waiting") for member in job["members"] if member["rank"] < MAX_WORKERS)
    return {
        "job": escape(job["name"]),
        "switch": escape(job["switch"]),
        "state": f"[{_COLOURS.get(job['state'], 'red')}]{job['state']}[/]",
        "epoch": str(job["epoch"] or "-"),
        "slots": str(job["slots"]),
        "workers": f"{inside}/{job['workers']}",
        "sums/s": amount(rates.get("completed")),
        "packets/s": amount(rates.get("added")),
        "dup/s": amount(rates.get("duplicate")),
        "stale/s": amount(rates.get("stale")),
        "all-reduces/s": amount(rates.get("allreduces")),
        "elements/s": amount(rates.get("elements")),
        "latency": duration(job["latency_s"]),
        "NMSE": "-" if job["nmse"] is None else f"{job['nmse']:.2g}",
        "again/s": amount(rates.get("retransmits")),
        "behind": _ranks(job["behind"]) or (f"{_ranks(job['late'])} late" if job["late"] else ""),
    }


def _notes(job: Mapping[str, Any]) -> list[str]:
    name = f"job {escape(job['name'])}:"
    notes = []
    if job["missing_ranks"]:
        notes.append(f"[yellow]{name}[/] waits for {_ranks(job['missing_ranks'])} of {job['workers']} to join")
        if job["last_refusal"]:
            notes.append(
                f"[yellow]{name}[/] {job['joins_refused']} joins refused, the last: {escape(job['last_refusal'])}"
            )
    lost = [member["rank"] for member in job["members"] if member["phase"] == "lost" and member["rank"] < MAX_WORKERS]
    if lost and job["state"] == "running":
        notes.append(
            f"[yellow]{name}[/] goes on without {_ranks(lost)}, silent for {job['lease_s']:g} s; "
            f"a quorum is {job['quorum']} of {job['workers']}"
        )
    if job["trouble"]:
        notes.append(f"[red]{name}[/] {escape(job['trouble'])}")
    if job["reason"] and job["state"] != "running":
        notes.append(f"[yellow]{name}[/] its last epoch ended: {escape(job['reason'])}")
    return notes


def _ranks(ranks: list[int]) -> str:
    if not ranks:
        return ""
    more = f" and {len(ranks) - _SHOWN_RANKS} more" if len(ranks) > _SHOWN_RANKS else ""
    return f"rank {', '.join(map(str, ranks[:_SHOWN_RANKS]))}{more}"
