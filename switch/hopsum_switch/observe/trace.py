# SPDX-License-Identifier: Apache-2.0
"""The trace: what a program did with each packet, as records, and as text for people."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Any, TextIO

from ..interp.observer import Observer
from ..interp.v1model import TOO_MANY_TURNS
from ..program import ir as p4
from ..program.frame_budget import OUT_OF_STEPS
from ..program.ir_expressions import FieldIR, HeaderIR
from ..program.p4_source import SourceInfo
from ..state.copies import PortCopy
from ..state.entry_lookup import Entry

# One record of a trace as a readable block of text. Long numbers and frames are shortened.

Record = dict[str, Any]

# The text is for terminals. The record has every number and frame in full.
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
        group = ingress["multicast"]
        lines.append(f"  multicast group {group['group']}: {_replicas(group)}")
    if "dropped" in ingress:
        lines.append(f"  {_dropped(ingress['dropped'])}")
    return lines


def _event(event: Record) -> str:
    # The first key of an event is its kind, and has the name of the object that the event is about.
    return _EVENTS[next(iter(event))](event)


def _outcome(event: Record) -> str:
    return str(event["holds"]).lower() + _values(event)


def _values(event: Record) -> str:
    values = ", ".join(f"{name}={shortened(value)}" for name, value in event.get("values", {}).items())
    return f" [{values}]" if values else ""


def _change(event: Record) -> str:
    return f"{shortened(event['old'])} -> {shortened(event['new'])}"


def _table(event: Record) -> str:
    text = f"table {event['table']}"
    if "key" in event:
        key = ", ".join(f"{name}={shortened(value)}" for name, value in event["key"].items())
        text += f" [{key}] " + (f"hit entry {event['entry']}" if event["hit"] else "miss")
    if event["action"] is None:
        return f"{text}: no action"
    params = ", ".join(f"{name}={shortened(value)}" for name, value in event["params"].items())
    return f"{text}: {event['action']}({params})"


def _count(event: Record) -> str:
    sides = (f"{unit} {event[unit][0]} -> {event[unit][1]}" for unit in ("packets", "bytes") if unit in event)
    return f"count {event['count']}[{event['index']}]: {', '.join(sides)}"


def _at(event: Record) -> str:
    return f" ({event['source']})" if event["source"] else ""


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
_EVENTS: dict[str, Callable[[Record], str]] = {
    "condition": lambda event: f"if {event['condition']}{_at(event)}: {_outcome(event)}",
    "branch": lambda event: f"if in {event['branch']}{_at(event)}: {_outcome(event)}",
    "assign": lambda event: f"assign {event['assign']}{_at(event)}: {_change(event)}",
    "validity": lambda event: f"header {event['validity']} {'valid' if event['valid'] else 'invalid'}{_at(event)}",
    "invalid_read": lambda event: (
        f"read {event['invalid_read']}{_at(event)}: the header is invalid; {shortened(event['value'])} here,"
        " undefined in P4"
    ),
    "statements": lambda event: f"statements{_at(event)}: {event['action']}()",
    "call": lambda event: f"call {event['call']}{_at(event)}",
    "table": _table,
    "read": lambda event: f"read {event['read']}[{event['index']}]: {shortened(event['value'])}",
    "write": lambda event: f"write {event['write']}[{event['index']}]: {_change(event)}",
    "count": _count,
    "outside": lambda event: (
        f"{event['access']} {event['outside']}[{event['index']}]{_at(event)}: index out of range, there are"
        f" {event['size']} cells, 0..{event['size'] - 1}; nothing happens"
    ),
    "mark_to_drop": lambda event: f"mark_to_drop in {event['mark_to_drop']}{_at(event)}",
    "log": lambda event: f"log {event['log']!r}",
    "clone": lambda event: f"clone to session {event['clone']}: {_replicas(event)}",
    "digest": lambda event: f"digest {event['digest']}({', '.join(map(shortened, event['values']))})",
    "again": lambda event: f"{event['again']}: the packet starts again",
    "too_many_turns": lambda _: "dropped: this packet has come round or was cloned too often",
    "out_of_steps": lambda _: "dropped: this frame has gone round loops of the program too often",
}
_log = logging.getLogger("hopsum_switch.trace")

_BOUNDS = {TOO_MANY_TURNS: "too_many_turns", OUT_OF_STEPS: "out_of_steps"}


class Trace(Observer):
    """Hands a record of every packet to `take`."""

    def __init__(self, take: Callable[[Record], None], *, values: bool = False) -> None:
        """Tell of assignments and the values in conditions too, if `values`."""
        self.values = values
        self._take = take
        self._packets = 0
        self._record: Record | None = None
        self._steps: list[Record] = []
        self._parsing = False  # whether the last step is a parser's that goes on

    def packet_begins(self, port: int, frame: bytes, now_us: int) -> None:
        # A record that is still open belongs to a packet on which the engine raised.
        self._hand_over_failed()
        self._packets += 1
        self._steps = []
        self._parsing = False
        self._record = {
            "packet": self._packets,
            "port": port,
            "bytes": len(frame),
            "now_us": now_us,
            "frame": frame.hex(),
            "steps": self._steps,
        }

    def packet_ends(self) -> None:
        assert self._record is not None, "no packet has begun"
        record, self._record = self._record, None
        self._take(record)

    def close(self) -> None:
        """Hand over the record of a packet on which the engine failed."""
        self._hand_over_failed()

    def state_entered(self, state: p4.StateIR) -> None:
        self._parser()["path"].append(state.name)

    def parsed(self, error: str, headers: Sequence[str], wrong_checksums: Sequence[str]) -> None:
        self._parser().update(error=error, headers=list(headers), wrong_checksums=list(wrong_checksums))
        self._start({"step": "ingress", "events": []})

    def condition_met(self, node: p4.ConditionalIR, holds: bool, values: Mapping[str, int | bool]) -> None:
        event: Record = {"condition": node.name, "source": _place(node.source), "holds": holds}
        self._note({**event, "values": _shown(values)} if self.values else event)

    def branched(self, action: str, source: SourceInfo | None, holds: bool, values: Mapping[str, int | bool]) -> None:
        self._note({"branch": action, "source": _place(source), "holds": holds, "values": _shown(values)})

    def assigned(self, field: FieldIR, old: int, new: int, source: SourceInfo | None) -> None:
        self._note({"assign": field.qualified, "old": hex(old), "new": hex(new), "source": _place(source)})

    def validity_set(self, header: HeaderIR, valid: bool, source: SourceInfo | None) -> None:
        self._note({"validity": header.name, "valid": valid, "source": _place(source)})

    def invalid_header_read(self, field: FieldIR, value: int, source: SourceInfo | None) -> None:
        self._note({"invalid_read": field.qualified, "value": hex(value), "source": _place(source)})

    def action_called(self, node: p4.ActionNodeIR) -> None:
        self._note({"call": node.action.name, "source": _place(node.source)})

    def table_applied(
        self, table: p4.TableIR, key: tuple[int, ...] | None, entry: Entry | None, call: p4.ActionCall | None
    ) -> None:
        if _is_made_by_compiler(table) and call is not None:
            self._note({"statements": table.name, "source": _place(table.source), "action": call.action.name})
            return
        event: Record = {"table": table.name}
        if key is not None:
            event["key"] = {part.name: hex(value) for part, value in zip(table.keys, key, strict=True)}
            event["hit"] = entry is not None
        if entry is not None:
            event["entry"] = entry.handle
        event["action"] = None if call is None else call.action.name
        params = () if call is None else zip(call.action.params, call.args, strict=True)
        event["params"] = {param.name: hex(value) for param, value in params}
        self._note(event)

    def register_read(self, register: p4.RegisterIR, index: int, value: int) -> None:
        self._note({"read": register.name, "index": index, "value": hex(value)})

    def register_written(self, register: p4.RegisterIR, index: int, old: int, new: int) -> None:
        self._note({"write": register.name, "index": index, "old": hex(old), "new": hex(new)})

    def counter_written(self, counter: p4.CounterIR, unit: str, index: int, old: int, new: int) -> None:
        events = self._steps[-1]["events"]
        last = events[-1] if events else {}
        # A counter of packets and bytes tells of its units one after the other.
        if (last.get("count"), last.get("index")) == (counter.name, index) and unit not in last:
            last[unit] = [old, new]
        else:
            self._note({"count": counter.name, "index": index, unit: [old, new]})

    def index_out_of_range(self, access: str, array: p4.CellArray, index: int, source: SourceInfo | None) -> None:
        place = {"size": array.size, "source": _place(source)}
        self._note({"outside": array.name, "access": access, "index": index, **place})

    def marked_to_drop(self, action: str, source: SourceInfo | None) -> None:
        self._note({"mark_to_drop": action, "source": _place(source)})

    def logged(self, text: str) -> None:
        self._note({"log": text})

    def multicast(self, group: int, replicas: Sequence[PortCopy]) -> None:
        self._last("ingress")["multicast"] = {"group": group, "replicas": [list(replica) for replica in replicas]}

    def cloned(self, session: int, replicas: Sequence[PortCopy]) -> None:
        self._note({"clone": session, "replicas": [list(replica) for replica in replicas]})

    def digest_sent(self, digest: p4.DigestIR, values: Sequence[int]) -> None:
        self._note({"digest": digest.name, "values": [hex(value) for value in values]})

    def starts_again(self, kind: str) -> None:
        self._note({"again": kind})
        self._parsing = False

    def copy_begins(self, port: int, instance: int) -> None:
        self._start({"step": "copy", "port": port, "instance": instance, "events": []})

    def dropped(self, reason: str) -> None:
        if reason in _BOUNDS:
            self._note({_BOUNDS[reason]: True})
            return
        step = self._last("ingress" if reason == "ingress" else "copy")
        marks = [event for event in step["events"] if "mark_to_drop" in event]
        last = marks[-1] if marks else {"mark_to_drop": None, "source": None}
        step["dropped"] = {"by": reason, "action": last["mark_to_drop"], "source": last["source"]}

    def not_emitted(self, headers: Sequence[str]) -> None:
        self._steps[-1]["not_emitted"] = list(headers)

    def sent(self, port: int, frame: bytes) -> None:
        self._steps[-1].update(sent=len(frame), frame=frame.hex())

    def _parser(self) -> Record:
        """Return the parser's step, a new one if none is under way."""
        if not self._parsing:
            self._start(
                {"step": "parser", "path": [], "error": None, "headers": [], "wrong_checksums": [], "events": []}
            )
            self._parsing = True
        return self._steps[-1]

    def _start(self, step: Record) -> None:
        self._steps.append(step)
        self._parsing = False

    def _last(self, kind: str) -> Record:
        return next(step for step in reversed(self._steps) if step["step"] == kind)

    def _note(self, event: Record) -> None:
        self._steps[-1]["events"].append(event)

    def _hand_over_failed(self) -> None:
        record, self._record = self._record, None
        if record is not None:
            self._take({**record, "failed": True})


class TraceWriter:
    """Writer of records to a text stream, each at once. It reports the first failure and then writes no more."""

    def __init__(self, stream: TextIO) -> None:
        """Write blocks of text. The stream stays the caller's."""
        self._stream: TextIO | None = stream

    def __call__(self, record: Record) -> None:
        """Write the record of one packet to the stream."""
        if self._stream is None:
            return
        try:
            self._stream.write(render(record) + "\n")
            # At once: a trace is read while the switch runs, and after it was killed.
            self._stream.flush()
        except OSError as error:
            # The traffic goes on: a full disk must not stop a switch.
            self._stream = None
            _log.error("the trace ends at packet %d: %s", record["packet"], error)


@contextmanager
def trace_to(target: str, *, values: bool = False) -> Iterator[Trace]:
    """Trace into the file `target`, which is emptied first, or to stderr if it is `-`. `values` as `Trace` has it.

    Raises OSError: the file cannot be opened.
    """
    with ExitStack() as stack:
        stream = sys.stderr if target == "-" else stack.enter_context(open(target, "w", encoding="utf-8"))
        yield stack.enter_context(closing(Trace(TraceWriter(stream), values=values)))


def _is_made_by_compiler(table: p4.TableIR) -> bool:
    """Return whether p4c has made a table for statements: such a name has no control in front, and there is no key."""
    return table.name.startswith("tbl_") and not table.keys and "." not in table.name


def _shown(values: Mapping[str, int | bool]) -> dict[str, str]:
    return {name: str(v).lower() if isinstance(v, bool) else hex(v) for name, v in values.items()}


def _place(source: SourceInfo | None) -> str | None:
    return None if source is None else str(source)
