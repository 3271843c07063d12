# SPDX-License-Identifier: Apache-2.0
"""One record of a trace as a readable block of text. Long numbers and frames are shortened."""

from __future__ import annotations

from typing import Any

Record = dict[str, Any]

_FRAME_DIGITS = 128
_HEX_DIGITS = 20  # of a number shown in full
_FIRST_DIGITS, _LAST_DIGITS = 8, 8


def render(record: Record) -> str:
    """Return the block: a line for the packet, then indented lines for its events."""
    lines = [f"packet {record['packet']}: port {record['port']}, {record['bytes']} bytes, {record['now_us']} us"]
    lines.append(f"  frame {_frame(record['frame'])}")
    for step in record["steps"]:
        lines += _STEPS[step["step"]](step)
    if record.get("failed"):
        lines.append("  the engine failed here: its log has the reason")
    return "\n".join(lines)


def shortened(number: str) -> str:
    """Return a hexadecimal number, 0x in front, with its middle left out if it is long."""
    digits = number[2:]
    if len(digits) <= _HEX_DIGITS:
        return number
    return f"0x{digits[:_FIRST_DIGITS]}..{digits[-_LAST_DIGITS:]} ({len(digits)} digits)"


def _frame(text: str) -> str:
    return text if len(text) <= _FRAME_DIGITS else f"{text[:_FRAME_DIGITS]}.. ({len(text) // 2} bytes)"


def _parser(parser: Record) -> list[str]:
    path = " -> ".join(parser["path"]) or "no state"
    if parser["error"] is None:  # broken off, or a second parse for a clone
        return [f"  parser {path}", *(f"    {_event(event)}" for event in parser["events"])]
    error = "" if parser["error"] == "NoError" else f", error {parser['error']}"
    lines = [f"  parser {path}{error}", *(f"    {_event(event)}" for event in parser["events"])]
    lines.append(f"  headers {' '.join(parser['headers']) or 'none'}")
    if parser["wrong_checksums"]:
        lines.append(f"  wrong checksums {' '.join(parser['wrong_checksums'])}")
    return lines


def _ingress(ingress: Record) -> list[str]:
    lines = ["  ingress", *(f"    {_event(event)}" for event in ingress["events"])]
    if "multicast" in ingress:
        lines.append(f"  {_multicast(ingress['multicast'])}")
    if "dropped" in ingress:
        lines.append(f"  {_dropped(ingress['dropped'])}")
    return lines


def _event(event: Record) -> str:
    return _EVENTS[next(iter(event))](event)


def _condition(event: Record) -> str:
    return f"if {event['condition']}{_at(event)}: {str(event['holds']).lower()}{_values(event)}"


def _branch(event: Record) -> str:
    return f"if in {event['branch']}{_at(event)}: {str(event['holds']).lower()}{_values(event)}"


def _values(event: Record) -> str:
    values = ", ".join(f"{name}={shortened(value)}" for name, value in event.get("values", {}).items())
    return f" [{values}]" if values else ""


def _assign(event: Record) -> str:
    return f"assign {event['assign']}{_at(event)}: {shortened(event['old'])} -> {shortened(event['new'])}"


def _validity(event: Record) -> str:
    return f"header {event['validity']} {'valid' if event['valid'] else 'invalid'}{_at(event)}"


def _invalid_read(event: Record) -> str:
    place = f"read {event['invalid_read']}{_at(event)}"
    return f"{place}: the header is invalid; {shortened(event['value'])} here, undefined in P4"


def _statements(event: Record) -> str:
    return f"statements{_at(event)}: {event['action']}()"


def _call(event: Record) -> str:
    return f"call {event['call']}{_at(event)}"


def _table(event: Record) -> str:
    text = f"table {event['table']}"
    if "key" in event:
        key = ", ".join(f"{name}={shortened(value)}" for name, value in event["key"].items())
        text += f" [{key}] " + (f"hit entry {event['entry']}" if event["hit"] else "miss")
    if event["action"] is None:
        return f"{text}: no action"
    params = ", ".join(f"{name}={shortened(value)}" for name, value in event["params"].items())
    return f"{text}: {event['action']}({params})"


def _read(event: Record) -> str:
    return f"read {event['read']}[{event['index']}]: {shortened(event['value'])}"


def _write(event: Record) -> str:
    return f"write {event['write']}[{event['index']}]: {shortened(event['old'])} -> {shortened(event['new'])}"


def _count(event: Record) -> str:
    sides = (f"{unit} {event[unit][0]} -> {event[unit][1]}" for unit in ("packets", "bytes") if unit in event)
    return f"count {event['count']}[{event['index']}]: {', '.join(sides)}"


def _outside(event: Record) -> str:
    place = f"{event['access']} {event['outside']}[{event['index']}]{_at(event)}"
    return f"{place}: index out of range, there are {event['size']} cells, 0..{event['size'] - 1}; nothing happens"


def _mark_to_drop(event: Record) -> str:
    return f"mark_to_drop in {event['mark_to_drop']}{_at(event)}"


def _at(event: Record) -> str:
    return f" ({event['source']})" if event["source"] else ""


def _clone(event: Record) -> str:
    return f"clone to session {event['clone']}: {_replicas(event)}"


def _digest(event: Record) -> str:
    return f"digest {event['digest']}({', '.join(map(shortened, event['values']))})"


def _again(event: Record) -> str:
    return f"{event['again']}: the packet starts again"


def _too_many_turns(event: Record) -> str:
    del event
    return "dropped: this packet has come round or was cloned too often"


def _out_of_steps(event: Record) -> str:
    del event
    return "dropped: this frame has gone round loops of the program too often"


def _multicast(group: Record) -> str:
    return f"multicast group {group['group']}: {_replicas(group)}"


def _replicas(group: Record) -> str:
    copies = ", ".join(f"port {port} instance {instance}" for port, instance in group["replicas"])
    return copies or "no replicas, no copies"


def _dropped(drop: Record) -> str:
    if drop["by"] == "priority":
        return "dropped: the priority is not 0 and there is one queue"
    if drop["action"] is None:
        return f"dropped in {drop['by']}: the program set egress_spec to the drop port"
    return f"dropped in {drop['by']}: mark_to_drop in {drop['action']}{_at(drop)}"


def _copy(copy: Record) -> list[str]:
    lines = [f"  copy to port {copy['port']}, instance {copy['instance']}"]
    lines += [f"    {_event(event)}" for event in copy["events"]]
    if "dropped" in copy:
        lines.append(f"    {_dropped(copy['dropped'])}")
    elif "sent" in copy:
        if "not_emitted" in copy:
            lines.append(f"    valid, and not emitted by the deparser: {', '.join(copy['not_emitted'])}")
        lines.append(f"    sent {copy['sent']} bytes: {_frame(copy['frame'])}")
    return lines


_STEPS = {"parser": _parser, "ingress": _ingress, "copy": _copy}
_EVENTS = {
    "condition": _condition,
    "branch": _branch,
    "assign": _assign,
    "validity": _validity,
    "invalid_read": _invalid_read,
    "statements": _statements,
    "call": _call,
    "table": _table,
    "read": _read,
    "write": _write,
    "count": _count,
    "outside": _outside,
    "mark_to_drop": _mark_to_drop,
    "log": lambda event: f"log {event['log']!r}",
    "clone": _clone,
    "digest": _digest,
    "again": _again,
    "too_many_turns": _too_many_turns,
    "out_of_steps": _out_of_steps,
}
