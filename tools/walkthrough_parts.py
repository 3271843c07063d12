# SPDX-License-Identifier: Apache-2.0
"""Pieces of the walk-through page: quotes of the P4 sources, packets, traces and entries."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from ipaddress import IPv4Address
from pathlib import Path
from textwrap import dedent, wrap
from typing import Any, Final

from hopsum_cli.packet.layers import text_of
from hopsum_controlplane.entries import TableEntry
from hopsum_switch.observe.trace import Record
from hopsum_switch.observe.trace_text import render
from hopsum_wire import JOB_EVENTS, Event
from hopsum_wire.scapy import Ether

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = "p4/v1model"
WIDTH: Final = 88
"""The width of a line of a trace. The page shows so many characters without scrolling."""
SHOWN_VALUES: Final = "HopsumIngress.aggregate.values0"
"""The register of values that the page shows. The others do the same, each to a quarter of the lanes."""

_CONTROL = re.compile(r"^control (\w+)\(")


class QuoteError(Exception):
    """A source lacks a text that the page quotes, or has it more than once. The message names the text."""


def quote(file: str, begin: str, end: str | None = None) -> list[str]:
    """Return a comment that says where, and the lines from the one with `begin` to the next one with `end`.

    `begin` must be in one line of the file only. Without `end` that line is all. Raises QuoteError.
    """
    lines = (ROOT / PROGRAM / file).read_text(encoding="utf-8").splitlines()
    found = [number for number, line in enumerate(lines) if begin in line]
    if len(found) != 1:
        raise QuoteError(f"{PROGRAM}/{file}: {len(found)} lines have {begin!r}; the page quotes the only one")
    first = found[0]
    last = first if end is None else next((n for n in range(first, len(lines)) if end in lines[n]), None)
    if last is None:
        raise QuoteError(f"{PROGRAM}/{file}: no line has {end!r} after line {first + 1}, which has {begin!r}")
    where = f"line {first + 1}" if first == last else f"lines {first + 1} to {last + 1}"
    body = dedent("\n".join(lines[first : last + 1])).splitlines()
    return [f"// {PROGRAM}/{file}, {where}{_control(lines[:first])}", *body]


def _control(before: Sequence[str]) -> str:
    names = [match[1] for line in before if (match := _CONTROL.match(line))]
    return f", control {names[-1]}" if names else ""


def packet_lines(frame: bytes) -> list[str]:
    """Return a frame as scapy shows it."""
    return text_of(Ether(frame)).splitlines()


def changed_lines(frame: bytes, other: bytes) -> list[str]:
    """Return those lines of a frame that are not the same in the other, each layer under its heading."""
    lines: list[str] = []
    heading: list[str] = []
    for line, before in zip(packet_lines(frame), packet_lines(other), strict=True):
        if line.startswith("###["):
            heading = [line]
        elif line != before:
            lines += [*heading, line]
            heading = []
    return lines


def trace_lines(record: Record, *, without: Collection[str] = ()) -> list[str]:
    """Return the switch's actions on a packet: hits, except in the tables `without`, writes, counts and copies."""
    steps = [_pruned(step, without) for step in record["steps"] if step["step"] != "parser"]
    lines = render({**record, "steps": steps}).splitlines()[2:]
    return [part for line in lines for part in _folded(_short(line[2:]))]


def _pruned(step: Record, without: Collection[str]) -> Record:
    events = [_without_bytes(event) for event in step["events"] if _matters(event, without)]
    return {**step, "events": events}


def _matters(event: Record, without: Collection[str]) -> bool:
    if "table" in event:
        return bool(event.get("hit")) and event["table"].rpartition(".")[2] not in without
    register = event.get("read") or event.get("write", "")
    if ".aggregate." in register or "read" in event:
        return bool(register == SHOWN_VALUES)
    return "write" in event or "count" in event


def _without_bytes(event: Record) -> Record:
    """Leave out bytes: the program's counters are of packets."""
    return {name: value for name, value in event.items() if name != "bytes"}


def _short(line: str) -> str:
    """Return a line without repetitions, and with the names of events."""
    line = re.sub(r"\bHopsum(In|E)gress\.", "", line)
    line = re.sub(r"(sent \d+ bytes): .*| \(\d+ digits\)", r"\1", line)
    return re.sub(r"job_events\[(\d+)\]", lambda match: f"{match[0]} ({_event(int(match[1]))})", line)


def _folded(line: str) -> list[str]:
    """Return the text on one line, or on two where it is too long. The text after the second line is left out."""
    indent = " " * (len(line) - len(line.lstrip()))
    return wrap(
        line.strip(),
        WIDTH,
        initial_indent=indent,
        subsequent_indent=f"{indent}    ",
        max_lines=2,
        placeholder=" ...)",
        break_long_words=False,
    )


def _event(cell: int) -> str:
    return Event(cell % JOB_EVENTS).name


def decided(record: Record) -> str:
    """Return the action of table `decide`."""
    (event,) = [event for event in _events(record) if str(event.get("table", "")).endswith(".decide")]
    return str(event["action"]).rpartition(".")[2]


def _events(record: Record) -> Iterator[dict[str, Any]]:
    for step in record["steps"]:
        yield from step["events"]


def entry_text(entry: TableEntry, values: Sequence[int]) -> tuple[str, str]:
    """Return key and action of an entry in readable form. `values` is the job's table, for `lookup`."""
    action = f"`{entry.action}`: "
    if entry.table == "lookup":
        return _named(entry.match), f"{action}{' '.join(map(str, values))}"
    params = {name: value for name, value in entry.params.items() if not name.startswith("src_")}
    return _named(entry.match), action + _named(params)


def _named(values: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {_value(name, value)}" for name, value in values.items())


def _value(name: str, value: int) -> str:
    if name.endswith("mac"):
        return value.to_bytes(6, "big").hex(":")
    if name == "address" or name.endswith("_ip"):
        return str(IPv4Address(value))
    return str(value)
