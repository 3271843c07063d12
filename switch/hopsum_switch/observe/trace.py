# SPDX-License-Identifier: Apache-2.0
"""The trace: a block of text for each packet, which says what the program did with it. Long numbers are shortened."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import TextIO

from ..interp.observer import Observer
from ..interp.v1model import TOO_MANY_TURNS
from ..program import ir as p4
from ..program.frame_budget import OUT_OF_STEPS
from ..program.ir_expressions import FieldIR, HeaderIR
from ..program.p4_source import SourceInfo
from ..state.copies import PortCopy
from ..state.entry_lookup import Entry

_FRAME_DIGITS = 128
_HEX_DIGITS = 20  # of a number shown in full
_FIRST_DIGITS, _LAST_DIGITS = 8, 8
_MOST_STATES = 64  # of the parser: a cycle of it may take 131,072 steps
_log = logging.getLogger("hopsum_switch.trace")

_BOUNDS = {
    TOO_MANY_TURNS: "dropped: this packet has come round or was cloned too often",
    OUT_OF_STEPS: "dropped: this frame has gone round loops of the program too often",
}


class Trace(Observer):
    """An observer that hands the text of every packet to `take`: a line for it, then indented lines for its events."""

    def __init__(self, take: Callable[[str], None], *, values: bool = False) -> None:
        """`values`: add assignments and the values in conditions to the text."""
        self.values = values
        self._take = take
        self._packets = 0
        self._lines: list[str] = []
        self._path: list[str] = []
        """The states of the parser's line, which is rewritten with each state: the first _MOST_STATES of them."""
        self._states = 0
        """All states so far of the parser's line."""
        self._path_at = -1
        """The place of the parser's line while the parser is at work, else -1."""
        self._mark = ""
        """The last mark_to_drop of the control under way."""

    def packet_begins(self, port: int, frame: bytes, now_us: int) -> None:
        # Lines that are still here belong to a packet on which the engine raised.
        self.close()
        self._packets += 1
        self._path_at = -1
        self._add(f"packet {self._packets}: port {port}, {len(frame)} bytes, {now_us} us", 0)
        self._add(f"frame {_frame(frame)}", 1)

    def packet_ends(self) -> None:
        lines, self._lines = self._lines, []
        self._take("\n".join(lines))

    def close(self) -> None:
        """Hand over the text of a packet on which the engine failed, if there is one. The trace remains usable."""
        if self._lines:
            self._add("the engine failed here: its log has the reason", 1)
            self.packet_ends()

    def state_entered(self, state: p4.StateIR) -> None:
        self._begin_parser()
        self._states += 1
        if self._states <= _MOST_STATES:
            self._path.append(state.name)
        more = self._states - len(self._path)
        self._lines[self._path_at] = f"  parser {' -> '.join(self._path)}" + (f" and {more:,} more" if more else "")

    def parsed(self, error: str, headers: Sequence[str], wrong_checksums: Sequence[str]) -> None:
        self._begin_parser()
        if error != "NoError":
            self._lines[self._path_at] += f", error {error}"
        self._add(f"headers {' '.join(headers) or 'none'}", 1)
        if wrong_checksums:
            self._add(f"wrong checksums {' '.join(wrong_checksums)}", 1)
        self._begin("ingress")

    def condition_met(self, node: p4.ConditionalIR, holds: bool, values: Mapping[str, int | bool]) -> None:
        self._add(f"if {node.name}{_at(node.source)}: {_outcome(holds, values)}")

    def branched(self, action: str, source: SourceInfo | None, holds: bool, values: Mapping[str, int | bool]) -> None:
        self._add(f"if in {action}{_at(source)}: {_outcome(holds, values)}")

    def assigned(self, field: FieldIR, old: int, new: int, source: SourceInfo | None) -> None:
        self._add(f"assign {field.qualified}{_at(source)}: {shorten_number(old)} -> {shorten_number(new)}")

    def validity_set(self, header: HeaderIR, valid: bool, source: SourceInfo | None) -> None:
        self._add(f"header {header.name} {'valid' if valid else 'invalid'}{_at(source)}")

    def invalid_header_read(self, field: FieldIR, value: int, source: SourceInfo | None) -> None:
        found = f"{shorten_number(value)} here, undefined in P4"
        self._add(f"read {field.qualified}{_at(source)}: the header is invalid; {found}")

    def action_called(self, node: p4.ActionNodeIR) -> None:
        self._add(f"call {node.action.name}{_at(node.source)}")

    def table_applied(
        self, table: p4.TableIR, key: tuple[int, ...] | None, entry: Entry | None, call: p4.ActionCall | None
    ) -> None:
        if _is_made_by_compiler(table) and call is not None:
            self._add(f"statements{_at(table.source)}: {call.action.name}()")
            return
        text = f"table {table.name}"
        if key is not None:
            parts = _named((part.name for part in table.keys), key)
            text += f" [{parts}] " + ("miss" if entry is None else f"hit entry {entry.handle}")
        if call is None:
            self._add(f"{text}: no action")
        else:
            self._add(f"{text}: {call.action.name}({_named((each.name for each in call.action.params), call.args)})")

    def register_read(self, register: p4.RegisterIR, index: int, value: int) -> None:
        self._add(f"read {register.name}[{index}]: {shorten_number(value)}")

    def register_written(self, register: p4.RegisterIR, index: int, old: int, new: int) -> None:
        self._add(f"write {register.name}[{index}]: {shorten_number(old)} -> {shorten_number(new)}")

    def counter_written(self, counter: p4.CounterIR, unit: str, index: int, old: int, new: int) -> None:
        cell, told = f"    count {counter.name}[{index}]: ", f"{unit} {old} -> {new}"
        # A counter of packets and bytes tells of its units one after the other: the second one joins the first.
        last = self._lines[-1]
        if last.startswith(cell) and f"{unit} " not in last.removeprefix(cell):
            self._lines[-1] += f", {told}"
        else:
            self._lines.append(cell + told)

    def index_out_of_range(self, access: str, array: p4.CellArray, index: int, source: SourceInfo | None) -> None:
        what = f"index out of range, there are {array.size} cells, 0..{array.size - 1}; nothing happens"
        self._add(f"{access} {array.name}[{index}]{_at(source)}: {what}")

    def marked_to_drop(self, action: str, source: SourceInfo | None) -> None:
        self._mark = f"mark_to_drop in {action}{_at(source)}"
        self._add(self._mark)

    def logged(self, text: str) -> None:
        self._add(f"log {text!r}")

    def multicast(self, group: int, replicas: Sequence[PortCopy]) -> None:
        self._add(f"multicast group {group}: {_replicas(replicas)}", 1)

    def cloned(self, session: int, replicas: Sequence[PortCopy]) -> None:
        self._add(f"clone to session {session}: {_replicas(replicas)}")

    def digest_sent(self, digest: p4.DigestIR, values: Sequence[int]) -> None:
        self._add(f"digest {digest.name}({', '.join(map(shorten_number, values))})")

    def starts_again(self, kind: str) -> None:
        self._add(f"{kind}: the packet starts again")
        self._path_at = -1

    def copy_begins(self, port: int, instance: int) -> None:
        self._begin(f"copy to port {port}, instance {instance}")

    def dropped(self, reason: str) -> None:
        if reason in _BOUNDS:
            self._add(_BOUNDS[reason])
        elif reason == "priority":
            self._add("dropped: the priority is not 0 and there is one queue")
        else:
            why = self._mark or "the program set egress_spec to the drop port"
            self._add(f"dropped in {reason}: {why}", 1 if reason == "ingress" else 2)

    def not_emitted(self, headers: Sequence[str]) -> None:
        self._add(f"valid, and not emitted by the deparser: {', '.join(headers)}")

    def sent(self, port: int, frame: bytes) -> None:
        self._add(f"sent {len(frame)} bytes: {_frame(frame)}")

    def _add(self, text: str, depth: int = 2) -> None:
        self._lines.append("  " * depth + text)

    def _begin(self, control: str) -> None:
        """Begin the lines of a control."""
        self._path_at, self._mark = -1, ""
        self._add(control, 1)

    def _begin_parser(self) -> None:
        """Begin the parser's line, unless the parser is at work."""
        if self._path_at < 0:
            self._path_at, self._path, self._states = len(self._lines), [], 0
            self._add("parser no state", 1)


class TraceWriter:
    """Writer of packets' texts to a stream, each at once. It logs the first failure and then writes no more."""

    def __init__(self, stream: TextIO) -> None:
        """Write blocks of text. The stream stays the caller's."""
        self._stream: TextIO | None = stream
        self._packets = 0

    def __call__(self, text: str) -> None:
        """Write the text of one packet to the stream, or nothing after a failure."""
        self._packets += 1
        if self._stream is None:
            return
        try:
            self._stream.write(text + "\n")
            # At once: a trace is read while the switch runs, and after it was killed.
            self._stream.flush()
        except OSError as error:
            # The traffic continues: a full disk must not stop a switch.
            self._stream = None
            _log.error("the trace ends at packet %d: %s", self._packets, error)


@contextmanager
def trace_to(target: str, *, values: bool = False) -> Iterator[Trace]:
    """Yield a trace into the file `target`, which is emptied first, or to stderr for `-`. `values` as `Trace` has it.

    Raises OSError: the file cannot be opened.
    """
    with ExitStack() as stack:
        stream = sys.stderr if target == "-" else stack.enter_context(open(target, "w", encoding="utf-8"))
        yield stack.enter_context(closing(Trace(TraceWriter(stream), values=values)))


def shorten_number(value: int) -> str:
    """Return a number as hexadecimal text with 0x, without its middle if it has more than 20 digits."""
    digits = f"{value:x}"
    if len(digits) <= _HEX_DIGITS:
        return f"0x{digits}"
    return f"0x{digits[:_FIRST_DIGITS]}..{digits[-_LAST_DIGITS:]} ({len(digits)} digits)"


def _frame(frame: bytes) -> str:
    text = frame.hex()
    return text if len(text) <= _FRAME_DIGITS else f"{text[:_FRAME_DIGITS]}.. ({len(frame)} bytes)"


def _outcome(holds: bool, values: Mapping[str, int | bool]) -> str:
    told = (f"{name}={str(v).lower() if isinstance(v, bool) else shorten_number(v)}" for name, v in values.items())
    return str(holds).lower() + (f" [{', '.join(told)}]" if values else "")


def _named(names: Iterator[str], values: Sequence[int]) -> str:
    return ", ".join(f"{name}={shorten_number(value)}" for name, value in zip(names, values, strict=True))


def _replicas(replicas: Sequence[PortCopy]) -> str:
    copies = ", ".join(f"port {port} instance {instance}" for port, instance in replicas)
    return copies or "no replicas, no copies"


def _at(source: SourceInfo | None) -> str:
    return "" if source is None else f" ({source})"


def _is_made_by_compiler(table: p4.TableIR) -> bool:
    """Return whether p4c has made a table for statements: such a name has no control in front, and there is no key."""
    return table.name.startswith("tbl_") and not table.keys and "." not in table.name
