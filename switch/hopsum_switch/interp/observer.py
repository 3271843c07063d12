# SPDX-License-Identifier: Apache-2.0
"""The base class of traces and coverage: an interpreter calls it for each event of a packet.

An interpreter without an observer is built without any of the calls. With an observer, every call below is made at the
moment that its name says. The order of one packet::

    packet_begins
        state_entered, state_left ...           one pair per parser state (the last state_left may be missing)
        parsed
        events of the ingress control
        cloned                                  if ingress clones (the states of a second parse come before it)
        digest_sent                             if ingress has called digest()
        starts_again (resubmitted), dropped, multicast, or nothing (unicast)
        copy_begins, events of the egress control, cloned if egress clones, then one of dropped, sent and
        starts_again (recirculated)                                             once per copy
        ... and from the first state on for each packet that starts again
    packet_ends

A frame that has no steps left (`program.frame_budget`) is reported as dropped at once, and packet_ends follows.

Events are `condition_met`, `action_called`, `table_applied` and, from inside of actions (and of parser states),
`register_read`, `register_written`, `counter_written`, `index_out_of_range`, `marked_to_drop` and `logged`.
`invalid_header_read` comes from any expression, before the event of the construct around it.
An observer with `values` also gets `branched`, `assigned` and `validity_set`.
If the interpreter raises, `packet_ends` is missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..program import ir as p4
from ..program.ir_expressions import FieldIR, HeaderIR
from ..program.p4_source import SourceInfo
from ..state.copies import PortCopy
from ..state.entry_lookup import Entry


class Observer:
    """An observer that ignores all events. Override the methods of interest. They must not change their arguments."""

    values = False
    """Flag: the observer is notified of assignments and branches inside actions. The flag is read once, when an
    interpreter is built."""

    def packet_begins(self, port: int, frame: bytes, now_us: int) -> None:
        """The switch has received a frame."""

    def packet_ends(self) -> None:
        """All copies of a received frame have left or were dropped."""

    def state_entered(self, state: p4.StateIR) -> None:
        """The parser enters a state."""

    def state_left(self, state: p4.StateIR, following: str | None) -> None:
        """A state has chosen the next one (None: parsing ends)."""

    def parsed(self, error: str, headers: Sequence[str], wrong_checksums: Sequence[str]) -> None:
        """Parsing has ended with an error (`NoError` if none), these headers are valid, these checksums wrong."""

    def condition_met(self, node: p4.ConditionalIR, holds: bool, values: Mapping[str, int | bool]) -> None:
        """An `if` of a control has been evaluated.

        `values` has the fields that the condition names, and as bool the validity of headers (`h.isValid()`). It is
        empty for an observer without `values`.
        """

    def action_called(self, node: p4.ActionNodeIR) -> None:
        """A control calls an action without a table."""

    def table_applied(
        self, table: p4.TableIR, key: tuple[int, ...] | None, entry: Entry | None, call: p4.ActionCall | None
    ) -> None:
        """A table is about to run `call` (None: nothing): of `entry`, or the default one if that is None.

        `key` holds one value per key field and is None in tables without a key.
        """

    def register_read(self, register: p4.RegisterIR, index: int, value: int) -> None:
        """The program has read a cell of a register."""

    def register_written(self, register: p4.RegisterIR, index: int, old: int, new: int) -> None:
        """The program has written a cell of a register."""

    def counter_written(self, counter: p4.CounterIR, unit: str, index: int, old: int, new: int) -> None:
        """One side of a cell (`unit`: packets or bytes) of an indexed counter has been added to."""

    def index_out_of_range(self, access: str, array: p4.CellArray, index: int, source: SourceInfo | None) -> None:
        """An index is outside an array, so nothing happens. `access` is read, write, count or execute (a meter)."""

    def invalid_header_read(self, field: FieldIR, value: int, source: SourceInfo | None) -> None:
        """An expression has read a field of an invalid header and found `value`, which P4 leaves undefined."""

    def branched(self, action: str, source: SourceInfo | None, holds: bool, values: Mapping[str, int | bool]) -> None:
        """An `if` inside an action has been evaluated. See `condition_met` for `values`."""

    def assigned(self, field: FieldIR, old: int, new: int, source: SourceInfo | None) -> None:
        """The program has stored a value into a field."""

    def validity_set(self, header: HeaderIR, valid: bool, source: SourceInfo | None) -> None:
        """A header has become valid or invalid, by the parser's extract not counted."""

    def marked_to_drop(self, action: str, source: SourceInfo | None) -> None:
        """An action has run mark_to_drop. A later assignment may still undo it."""

    def logged(self, text: str) -> None:
        """The program has called log_msg()."""

    def multicast(self, group: int, replicas: Sequence[PortCopy]) -> None:
        """The packet is copied to a group's replicas (none if the group is unknown)."""

    def cloned(self, session: int, replicas: Sequence[PortCopy]) -> None:
        """The packet is cloned to a session's replicas (none if there is no such session)."""

    def digest_sent(self, digest: p4.DigestIR, values: Sequence[int]) -> None:
        """The program sends a digest. This call comes whether or not the digest is configured."""

    def starts_again(self, kind: str) -> None:
        """The packet will be parsed again. `kind` is resubmitted or recirculated."""

    def copy_begins(self, port: int, instance: int) -> None:
        """A copy starts towards a port. `instance` is the replica's number (0 in unicast)."""

    def dropped(self, reason: str) -> None:
        """The packet, or the copy that has begun, goes no further.

        `reason` is one of: ingress or egress (that control left the packet to the drop port), priority (it is not 0),
        turns (too many restarts or clones in egress, while the packet itself may continue), or steps (too many steps in
        loops, and the whole frame ends).
        """

    def not_emitted(self, headers: Sequence[str]) -> None:
        """The copy that leaves has valid headers that the deparser does not emit."""

    def sent(self, port: int, frame: bytes) -> None:
        """The copy leaves the switch as a frame through a port."""
