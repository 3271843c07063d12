# SPDX-License-Identifier: Apache-2.0
"""The program as the engine runs it: every name resolved, every width known, expressions as typed trees.

Two consumers read it: the reference interpreter and the native code generator. Nothing here refers to the
JSON it came from. Objects are immutable and refer to each other directly (a field reference holds its
`FieldIR`, a table its `ActionIR`s). Only control-flow successors are names, since they may form any graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum

from .ir_expressions import BoolExpr, DataExpr, FieldIR, HeaderIR, IrNode, VariableIR
from .p4_source import SourceInfo

# Objects that actions and parsers name: stacks, field lists, digests, counters, meters, registers, calculations.


# A metadata header of the engine's own: for each stack, how many elements are in use.
STACK_STATE = "$stacks$"


class StackIR(IrNode, frozen=True):
    """A header stack. `next` counts the elements in use. It is metadata that only the engine writes."""

    name: str
    headers: tuple[HeaderIR, ...]
    next: FieldIR


class UnionIR(IrNode, frozen=True):
    """A header union: when a member becomes valid, the others become invalid."""

    name: str
    type_name: str
    headers: tuple[HeaderIR, ...]


class FieldListIR(IrNode, frozen=True):
    """Metadata that is preserved for a packet that is copied or starts again. All other metadata is reset."""

    id: int
    fields: tuple[FieldIR, ...]


class DigestIR(IrNode, frozen=True):
    """A digest: the members of one type of message for the controller, and their widths."""

    id: int
    name: str
    members: tuple[DataExpr, ...]
    bits: tuple[int, ...]
    source: SourceInfo | None


class MeterIR(IrNode, frozen=True):
    """Two-rate meters. A direct one has a table. A hit there stores the colour of the entry's meter in `target`."""

    name: str
    id: int
    size: int
    counts_bytes: bool
    table: str | None
    target: FieldIR | None
    source: SourceInfo | None


class CounterIR(IrNode, frozen=True):
    """A counter array. `table` is set for a direct counter, whose cells are that table's entries."""

    name: str
    id: int
    size: int
    table: str | None
    source: SourceInfo | None


class RegisterIR(IrNode, frozen=True):
    """A register array. Cells hold unsigned values of `bits` bits."""

    name: str
    id: int
    size: int
    bits: int
    source: SourceInfo | None


CellArray = CounterIR | MeterIR | RegisterIR
"""An array of cells. An index selects one cell."""
INDEX_OUT_OF_RANGE = "index_out_of_range"
"""The kind under which engines count an index outside such an array (`Engine.faults`)."""
INVALID_HEADER_READ = "invalid_header_read"
"""The kind under which an interpreter with an observer counts reads of fields of invalid headers (`Engine.faults`)."""


class CalculationInput(IrNode, frozen=True):
    """One piece of a calculation's input: a field, a whole header, or a constant of `bits` bits."""

    field: FieldIR | None
    header: HeaderIR | None
    constant: int
    bits: int


class CalculationIR(IrNode, frozen=True):
    """A checksum or hash over fields, headers, constants and maybe the payload. Invalid headers are skipped."""

    name: str
    algorithm: str
    inputs: tuple[CalculationInput, ...]
    with_payload: bool


# Actions: parameters and a list of operations with jumps.


class ParamIR(IrNode, frozen=True):
    """The name and width of one parameter of an action."""

    name: str
    bits: int


class Operation(IrNode, frozen=True):
    """One operation of an action's body, of one of the classes from here to `NoOp`."""


class Assign(Operation, frozen=True):
    """Store a value, wrapped to the field's width."""

    target: FieldIR
    value: DataExpr


class AssignHeader(Operation, frozen=True):
    """Copy validity and, if valid, all fields."""

    target: HeaderIR
    value: HeaderIR


class AddHeader(Operation, frozen=True):
    """Make an invalid header valid, with all fields 0. A valid header does not change."""

    header: HeaderIR


class RemoveHeader(Operation, frozen=True):
    """Make a header invalid. Its fields keep their values."""

    header: HeaderIR


class ShiftStack(Operation, frozen=True):
    """push_front(by) or, if `by` is negative, pop_front(-by): the elements move, those that enter are invalid."""

    stack: StackIR
    by: int


class AssignStack(Operation, frozen=True):
    """Copy a stack: element by element as `AssignHeader`, and how many are in use."""

    target: StackIR
    value: StackIR


class AssignElement(Operation, frozen=True):
    """Store a value, wrapped to their width, into one of several fields of one shape; nothing outside the index."""

    targets: tuple[FieldIR, ...]
    index: DataExpr
    value: DataExpr


class AssignUnion(Operation, frozen=True):
    """Copy a union, member by member as `AssignHeader`."""

    target: UnionIR
    value: UnionIR


class AssignVariable(Operation, frozen=True):
    """Copy a variable-length field with its length."""

    target: VariableIR
    value: VariableIR


class LogMessage(Operation, frozen=True):
    """Write a line to the log. The values go between the parts of the text."""

    parts: tuple[str, ...]
    values: tuple[DataExpr, ...]


class Clone(Operation, frozen=True):
    """Have a copy made at the end of the control for a clone session. The last call holds."""

    session: DataExpr
    preserved: FieldListIR


class SendDigest(Operation, frozen=True):
    """After ingress, send the members' present values to the controller. The last call holds, and egress sends none."""

    digest: DigestIR


class Resubmit(Operation, frozen=True):
    """After ingress, start again with the frame as received. Of several calls the last one counts.

    The fields `preserved` keep their values.
    """

    preserved: FieldListIR


class Recirculate(Operation, frozen=True):
    """After egress, start again with the frame as emitted. The last call holds."""

    preserved: FieldListIR


class ExecuteMeter(Operation, frozen=True):
    """Store a meter's colour (0 green, 1 yellow, 2 red). An index outside the array does nothing."""

    meter: MeterIR
    index: DataExpr
    target: FieldIR


class MarkToDrop(Operation, frozen=True):
    """Set the egress port to the drop port and clear the multicast group."""

    egress_spec: FieldIR
    mcast_grp: FieldIR | None


class Exit(Operation, frozen=True):
    """End the control after the running action."""


class Truncate(Operation, frozen=True):
    """Cut the emitted frame to at most `length` bytes. The smallest of several cuts holds."""

    length: DataExpr


class RegisterRead(Operation, frozen=True):
    """Read a cell. An index outside the array leaves the field as it is."""

    target: FieldIR
    register: RegisterIR
    index: DataExpr


class RegisterWrite(Operation, frozen=True):
    """Write a cell. An index outside the array writes nothing."""

    register: RegisterIR
    index: DataExpr
    value: DataExpr


class Count(Operation, frozen=True):
    """Count the packet and its bytes as received. An index outside the array counts nothing."""

    counter: CounterIR
    index: DataExpr


class Hash(Operation, frozen=True):
    """target = base + hash mod size, in 64 bits. A size of 0 acts as 1."""

    target: FieldIR
    base: DataExpr
    calculation: CalculationIR
    size: DataExpr


class RandomUniform(Operation, frozen=True):
    """Store a random integer in [low, high], or nothing if low > high."""

    target: FieldIR
    low: DataExpr
    high: DataExpr


class Jump(Operation, frozen=True):
    """Continue at operation `to` of the action, counted from 0. The number of operations means the end."""

    to: int


class JumpIfZero(Operation, frozen=True):
    """Continue at operation `to` if the value is 0, else at the next operation."""

    value: DataExpr
    to: int


class NoOp(Operation, frozen=True):
    """No operation. It keeps jump targets in place."""


class ActionIR(IrNode, frozen=True):
    """An action. `sources` has one element per element of `body`."""

    name: str
    id: int
    params: tuple[ParamIR, ...]
    body: tuple[Operation, ...]
    sources: tuple[SourceInfo | None, ...]
    source: SourceInfo | None


# The parser: states of operations, each ending in a transition.


class Lookahead(IrNode, frozen=True):
    """`bits` bits that start `offset` bits after the read position."""

    offset: int
    bits: int


class Extract(IrNode, frozen=True):
    """Read a header and make it valid."""

    header: HeaderIR


class ExtractVariable(IrNode, frozen=True):
    """Read a header whose variable-length field has `bits` bits, a multiple of 8.

    HeaderTooShort if that is more than the field holds.
    """

    header: HeaderIR
    variable: VariableIR
    bits: DataExpr


class ExtractNext(IrNode, frozen=True):
    """Read the next element of a stack. The error is StackOutOfBounds if all elements are in use."""

    stack: StackIR


class SetField(IrNode, frozen=True):
    """Store an expression into a field."""

    target: FieldIR
    value: DataExpr


class SetLookahead(IrNode, frozen=True):
    """Store bits that stay unread into a field."""

    target: FieldIR
    value: Lookahead


class Verify(IrNode, frozen=True):
    """Stop with an error unless the condition holds."""

    condition: BoolExpr
    error: DataExpr


class Advance(IrNode, frozen=True):
    """Skip bits. The number must be a multiple of 8."""

    bits: DataExpr


class Perform(IrNode, frozen=True):
    """An operation that actions have too."""

    operation: Operation


ParserOp = Extract | ExtractVariable | ExtractNext | SetField | SetLookahead | Verify | Advance | Perform


class Computed(IrNode, frozen=True):
    """The low `bits` bits of an expression."""

    value: DataExpr
    bits: int


def padded_bytes(bits: int) -> int:
    """Round the width of a piece of a transition key up to whole bytes."""
    return (bits + 7) // 8


class KeyPart(IrNode, frozen=True):
    """One piece of a transition key, padded at the left to whole bytes."""

    value: FieldIR | Lookahead | Computed

    @property
    def bits(self) -> int:
        """The width in bits, without padding."""
        return self.value.bits


class TransitionCase(IrNode, frozen=True):
    """A transition that is taken if key & mask == value. Value and mask cover the whole padded key."""

    value: int
    mask: int
    next: str | None


class StateIR(IrNode, frozen=True):
    """One state of the parser. Cases are tried in order, then `default` (None: parsing ends)."""

    name: str
    ops: tuple[ParserOp, ...]
    key: tuple[KeyPart, ...]
    cases: tuple[TransitionCase, ...]
    default: str | None
    source: SourceInfo | None


class ParserIR(IrNode, frozen=True):
    """All states. With `init` None the parser accepts every frame and reads no byte."""

    name: str
    init: str | None
    states: Mapping[str, StateIR]


class MatchKind(Enum):
    """The match kind of one key field."""

    EXACT = "exact"
    LPM = "lpm"
    TERNARY = "ternary"
    RANGE = "range"


class KeyIR(IrNode, frozen=True):
    """One key field of a table. `mask` is ANDed to the field before matching."""

    name: str
    kind: MatchKind
    target: DataExpr
    bits: int
    header: HeaderIR | None  # the key reads 0 while this header is invalid; None: always readable
    mask: int | None


class ActionCall(IrNode, frozen=True):
    """An action with its arguments, in the order of its parameters."""

    action: ActionIR
    args: tuple[int, ...]


class ConstEntryIR(IrNode, frozen=True):
    """An entry of the P4 source, with one (value, mask or prefix length or high bound) pair per key."""

    values: tuple[tuple[int, int], ...]
    call: ActionCall
    priority: int  # P4Runtime's sense: larger wins; 0 in exact and lpm tables


class TableIR(IrNode, frozen=True):
    """A match-action table and where control goes after it.

    Successors: after a hit `on_hit` if `branches_on_hit`, else `by_action[action id]`. After a miss
    `on_miss` if `branches_on_miss`, else `by_action` of the default action, else `base_next`.
    """

    name: str
    id: int
    match_kind: MatchKind  # of the whole table: the strongest of its keys
    keys: tuple[KeyIR, ...]
    max_size: int
    actions: Mapping[str, ActionIR]
    default: ActionCall | None
    const_default_action: bool  # the control plane may not choose another default action
    const_default_entry: bool  # ... nor other arguments
    const_entries: tuple[ConstEntryIR, ...]
    immutable: bool  # entries are in the source; the control plane may write some only where P4Info says so
    with_counters: bool  # entries count their packets, for a direct counter or for idle timeouts
    direct_counter: str | None
    direct_meter: MeterIR | None
    by_action: Mapping[int, str | None]
    branches_on_hit: bool
    on_hit: str | None
    branches_on_miss: bool
    on_miss: str | None
    base_next: str | None
    source: SourceInfo | None

    @property
    def needs_priority(self) -> bool:
        """Flag: entries have a priority (ternary and range tables)."""
        return self.match_kind in (MatchKind.TERNARY, MatchKind.RANGE)

    @property
    def runnable(self) -> list[ActionIR]:
        """Return the actions that packets may run here: those of entries, and the program's default action."""
        return [*self.actions.values(), *([] if self.default is None else [self.default.action])]


class ConditionalIR(IrNode, frozen=True):
    """A node of a control: an `if`, with the nodes after each outcome."""

    name: str
    condition: BoolExpr
    on_true: str | None
    on_false: str | None
    source: SourceInfo | None


class ActionNodeIR(IrNode, frozen=True):
    """An action called from a control without a table."""

    name: str
    action: ActionIR
    next: str | None
    source: SourceInfo | None


NodeIR = TableIR | ConditionalIR | ActionNodeIR


class PipelineIR(IrNode, frozen=True):
    """One control (ingress or egress): a graph of nodes. `init` None is an empty control."""

    name: str
    init: str | None
    nodes: Mapping[str, NodeIR]

    def runnable(self) -> Iterator[ActionIR]:
        """Yield the actions that packets may run in this control, some of them several times."""
        for node in self.nodes.values():
            if isinstance(node, TableIR):
                yield from node.runnable
            elif isinstance(node, ActionNodeIR):
                yield node.action


class ChecksumIR(IrNode, frozen=True):
    """A checksum field that the parser verifies, the deparser updates, or both."""

    name: str
    target: FieldIR
    header: HeaderIR
    calculation: CalculationIR
    condition: BoolExpr | None
    verify: bool
    update: bool


class DeparserIR(IrNode, frozen=True):
    """Headers in the order in which the valid ones are emitted."""

    order: tuple[HeaderIR, ...]


class ProgramIR(IrNode, frozen=True):
    """A loaded and verified program. Mappings are by fully qualified P4 name.

    `actions` holds one of the possibly several copies the compiler made of an action. Look an action of a
    table up in `TableIR.actions`. `standard` maps the architecture's names of metadata fields
    (``standard_metadata.egress_spec``, ``intrinsic_metadata.mcast_grp``...) to the program's fields.
    """

    name: str
    digest: str  # SHA-256 of the JSON text, in hex
    headers: Mapping[str, HeaderIR]
    fields: tuple[FieldIR, ...]  # by slot
    errors: Mapping[str, int]
    parser: ParserIR
    ingress: PipelineIR
    egress: PipelineIR
    deparser: DeparserIR
    tables: Mapping[str, TableIR]
    actions: Mapping[str, ActionIR]
    stacks: Mapping[str, StackIR]
    unions: Mapping[str, UnionIR]
    counters: Mapping[str, CounterIR]
    digests: Mapping[str, DigestIR]
    meters: Mapping[str, MeterIR]
    registers: Mapping[str, RegisterIR]
    calculations: Mapping[str, CalculationIR]
    checksums: tuple[ChecksumIR, ...]
    standard: Mapping[str, FieldIR]

    def siblings(self, header: HeaderIR) -> tuple[HeaderIR, ...]:
        """Return the headers that become invalid when `header` becomes valid: the others of its union, or none."""
        for union in self.unions.values():
            if any(member.name == header.name for member in union.headers):
                return tuple(member for member in union.headers if member.name != header.name)
        return ()

    def field(self, header: str, name: str) -> FieldIR:
        """Return a field by header instance and member name. Raises: KeyError."""
        for candidate in self.headers[header].fields:
            if candidate.name == name:
                return candidate
        raise KeyError(f"{header}.{name}")
