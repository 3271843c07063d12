# SPDX-License-Identifier: Apache-2.0
"""Switches and jobs as tables for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from hopsum_wire.watch.snapshots import ago, health_tone, join_was_refused, state_in_words, switch_path

COLOURS = {"good": "green", "quiet": "dim", "wait": "yellow", "bad": "red"}
"""The colours by `hopsum_wire.watch.snapshots.health_tone`."""
_UNITS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
_SHOWN_RANKS = 8
_WIDE = 175
_GAP = 2
_LEFT_OUT = {
    "switches": ("repaired", "audits", "largest free", "driver", "jobs"),
    "jobs": (
        *(
            "slots",
            "stale/s",
            "dup/s",
            "NMSE",
            "packets/s",
            "generation",
            "fp32 up/down",
            "of a ring",
            "elements/s",
            "latency",
            "retransmits/s",
        ),
        *("switch", "sums/s", "waiting"),
    ),
}
"""Columns that a terminal lacks that is too narrow for all, the first one first."""


def screen(document: Mapping[str, Any], width: int = _WIDE, *, left_out: int = 0) -> Group:
    """Return the screen of a `hopsum_wire.watch.rates.document`: two tables, and a line for each problem.

    Args:
        width: that of the terminal; a narrow one has fewer columns.
        left_out: number of the controller's jobs that are not in the document.
    """
    notes = [
        *(f"[red]controller:[/] {escape(each)}" for each in document["notices"]),
        *(
            f"[red]{escape(each['name'])}:[/] {escape(each['condition'])}"
            for each in document["switches"]
            if each["condition"]
        ),
        *(note for job in document["jobs"] for note in _notes(job)),
    ]
    return Group(
        _table("switches", [_switch(each) for each in document["switches"]], width),
        _table("jobs", [_job(each) for each in document["jobs"]], width),
        *([f"[dim]{left_out} more, not asked for[/]"] if left_out else []),
        *notes,
    )


def amount(value: float | None) -> str:
    """Return a rate with three digits and a unit: 12.3k, or - for an unknown one."""
    if value is None:
        return "-"
    for size, unit in _UNITS:
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def duration(seconds: float | None) -> str:
    """Return a time with three digits and a unit: 1.23ms, or - for an unknown one."""
    if seconds is None:
        return "-"
    return f"{seconds:.3g}s" if seconds >= 1 else f"{1e3 * seconds:.3g}ms"


def _table(title: str, rows: Sequence[Mapping[str, str]], width: int) -> Table:
    """Return rows as a table of as many columns as fit. A text that is longer than its column is continued below."""
    # Widths of the texts as shown: markup has no width.
    wide = {
        column: max(len(column), *(Text.from_markup(row[column]).cell_len for row in rows))
        for column in (rows[0] if rows else ())
    }
    for column in _LEFT_OUT[title]:
        if sum(wide.values()) + _GAP * (len(wide) - 1) <= width:
            break
        wide.pop(column, None)
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column in wide:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(row[column] for column in wide))
    return table


def _switch(switch: Mapping[str, Any]) -> dict[str, str]:
    kind = (switch["condition_reason"] or "down").replace("_", " ")
    drops = ", ".join(f"{reason} {amount(rate)}" for reason, rate in switch["rates"].items())
    return {
        "switch": escape(switch["name"]),
        "driver": escape(switch["driver"]),
        "state": "[green]up[/]" if switch["reachable"] else f"[red]{kind}[/]",
        "jobs": str(switch["jobs"]),
        "slots": f"{switch['slots_used']}/{switch['slots']}",
        "largest free": str(switch["slots_largest_free"]),
        "audits": str(switch["audits"]),
        "repaired": str(switch["entries_repaired"]),
        "drops/s": drops or "0",
    }


def _job(job: Mapping[str, Any]) -> dict[str, str]:
    rates = job["rates"]
    inside = sum(member["phase"] in ("in", "waiting") for member in job["members"])
    return {
        "job": escape(job["name"]),
        "switch": escape(switch_path(job["switches"], job["shards"])),
        "state": f"[{COLOURS[health_tone(job)]}]{escape(state_in_words(job))}[/]",
        "generation": str(job["generation"] or "-"),
        "slots": str(job["slots"]),
        "workers": f"{inside}/{job['workers']}",
        "sums/s": amount(rates.get("completed")),
        "packets/s": amount(rates.get("added")),
        "dup/s": amount(rates.get("duplicate")),
        "stale/s": amount(rates.get("stale")),
        "all-reduces/s": amount(rates.get("allreduces")),
        "elements/s": amount(rates.get("elements")),
        "fp32 up/down": _ratios(job),
        "of a ring": "-" if job["ring_share"] is None else f"{job['ring_share']:.2g}x",
        "waiting": "-" if job["wait_share"] is None else f"{100 * job['wait_share']:.0f}%",
        "latency": duration(job["latency_s"]),
        "NMSE": "-" if job["nmse"] is None else f"{job['nmse']:.2g}",
        "retransmits/s": amount(rates.get("retransmits")),
        "straggler": _ranks(job["behind"]) or (f"{_ranks(job['late'])} late" if job["late"] else ""),
    }


def _ratios(job: Mapping[str, Any]) -> str:
    """Return how many times fewer bytes than float32 go up and down: 6.9x/3.7x."""
    if not job["rates"].get("elements") or job["ratio_up"] is None or job["ratio_down"] is None:
        return "-"
    return f"{job['ratio_up']:.2g}x/{job['ratio_down']:.2g}x"


def _notes(job: Mapping[str, Any]) -> list[str]:
    name = f"job {escape(job['name'])}:"
    notes = []
    if job["health"] not in ("healthy", "idle"):
        notes.append(f"[{COLOURS[health_tone(job)]}]{name}[/] {escape(job['health_reason'])}")
    if join_was_refused(job):
        notes.append(
            f"[yellow]{name}[/] {job['joins_refused']} joins refused, the last {ago(job['last_refusal_age_s'])}: "
            f"{escape(job['last_refusal'])}"
        )
    # A stalled job has its line already: its reason names the ranks.
    lost = [member["rank"] for member in job["members"] if member["phase"] == "lost"]
    if lost and job["state"] == "running" and job["health"] != "stalled":
        quorum = f"a quorum is {job['quorum']} of {job['workers']}"
        notes.append(f"[yellow]{name}[/] continues without {_ranks(lost)}; {quorum}")
    return notes


def _ranks(ranks: list[int]) -> str:
    if not ranks:
        return ""
    more = f" and {len(ranks) - _SHOWN_RANKS} more" if len(ranks) > _SHOWN_RANKS else ""
    return f"rank {', '.join(map(str, ranks[:_SHOWN_RANKS]))}{more}"
