# SPDX-License-Identifier: Apache-2.0
"""The typed mirror to IR: everything resolved, everything unsupported refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from ..errors import ProgramError
from . import ir as p4
from . import p4c_json as js
from .ir_expressions import FieldIR
from .lower_actions import lower_action, lower_primitive
from .lower_declarations import (
    declare_digests,
    declare_field_lists,
    declare_headers,
    declare_meters,
    declare_stacks,
    declare_state,
    declare_unions,
    lower_checksum,
)
from .lower_expressions import (
    VALIDITY_FIELD,
    ExpressionContext,
    ProgramScope,
    lower_bool,
    lower_data,
    lower_element,
    lower_header,
)
from .p4_source import SourceInfo, at
from .unsupported import unsupported_error

T = TypeVar("T")

# Controls of the mirror to IR: tables, conditions, action calls.

_KINDS = {kind.value: kind for kind in p4.MatchKind}
_HIT, _MISS = "__HIT__", "__MISS__"


def lower_pipeline(pipeline: js.PipelineJson, scope: ProgramScope) -> p4.PipelineIR:
    """Return one control, its expressions and actions resolved in `scope`. A node names the next one.

    Raises ProgramError, also for any pipeline with an action profile.
    """
    for profile in pipeline.action_profiles:
        raise unsupported_error("action profile", profile.name, profile.source)
    nodes: dict[str, p4.NodeIR] = {}
    for table in pipeline.tables:
        nodes[table.name] = _table(table, scope)
    for conditional in pipeline.conditionals:
        condition = lower_bool(conditional.expression, ExpressionContext(scope, (), conditional.source))
        nodes[conditional.name] = p4.ConditionalIR(
            conditional.name, condition, conditional.true_next, conditional.false_next, conditional.source
        )
    for call in pipeline.action_calls:
        action = scope.actions_by_id.find(call.action_id, call.source)
        nodes[call.name] = p4.ActionNodeIR(call.name, action, call.next_node, call.source)
    return p4.PipelineIR(pipeline.name, pipeline.init_table, nodes)


def _table(table: js.TableJson, scope: ProgramScope) -> p4.TableIR:
    _refuse_table(table)
    permitted = [scope.actions_by_id.find(number, table.source) for number in table.action_ids]
    actions = {action.name: action for action in permitted}
    keys = tuple(_key(key, scope, table.source) for key in table.key)
    direct = [c.name for c in scope.counters.values() if c.table == table.name]
    default = table.default_entry
    # p4c writes either __HIT__ and __MISS__ (a table in a condition) or one successor for each action.
    branches = _HIT in table.next_tables or _MISS in table.next_tables
    entries = table.entries
    return p4.TableIR(
        name=table.name,
        id=table.id,
        match_kind=_KINDS[table.match_type],
        keys=keys,
        max_size=table.max_size,
        actions=actions,
        default=None if default is None else _call(default, scope, table.source),
        const_default_action=default is not None and default.action_const,
        const_default_entry=default is not None and default.action_entry_const,
        const_entries=_entries(table, keys, scope),
        immutable=entries is not None,
        # Idle timeouts look at the counts of entries.
        with_counters=table.with_counters or table.support_timeout,
        direct_counter=direct[0] if direct else None,
        direct_meter=_direct_meter(table, scope),
        by_action={} if branches else _successors(table, actions),
        branches_on_hit=branches,
        on_hit=table.next_tables.get(_HIT),
        branches_on_miss=branches,
        on_miss=table.next_tables.get(_MISS),
        base_next=table.base_default_next,
        source=table.source,
    )


def _direct_meter(table: js.TableJson, scope: ProgramScope) -> p4.MeterIR | None:
    if table.direct_meters is None:
        return None
    meter = scope.meters.find(table.direct_meters, table.source)
    if meter.table != table.name:
        raise ProgramError(f"table {table.name}: the meter {meter.name} is not its own{at(table.source)}")
    return meter


def _refuse_table(table: js.TableJson) -> None:
    if table.type != "simple":
        raise unsupported_error("action profile", f"table {table.name} of type {table.type}", table.source)
    for kind in (table.match_type, *(key.match_type for key in table.key)):
        if kind not in _KINDS:
            raise unsupported_error("match kind", f"{kind} in table {table.name}", table.source)


def _successors(table: js.TableJson, actions: Mapping[str, p4.ActionIR]) -> dict[int, str | None]:
    missing = [name for name in actions if name not in table.next_tables]
    if missing:
        raise ProgramError(f"table {table.name}: no successor for action {missing[0]}{at(table.source)}")
    return {action.id: table.next_tables[name] for name, action in actions.items()}


def _key(key: js.KeyJson, scope: ProgramScope, source: SourceInfo | None) -> p4.KeyIR:
    place = ExpressionContext(scope, (), source)
    if isinstance(key.target, js.ExpressionOperand):
        element = lower_element(key.target, place)
        if element is None:
            raise unsupported_error("expression", f"operator {key.target.op} as a key", source)
        name, bits = key.name or key.target.op, element[0][0].bits
        return p4.KeyIR(name, _KINDS[key.match_type], lower_data(key.target, place), bits, None, key.mask)
    if not isinstance(key.target, js.FieldOperand):  # a header has match type valid, which was refused
        raise ProgramError(f"a key of match type {key.match_type} is not a field{at(source)}")
    name = key.name or f"{key.target.header}.{key.target.field}"
    target = lower_data(key.target, place)
    header = scope.headers.find(key.target.header, source)
    # Validity can always be read. A field of an invalid header reads 0 in a key, as in bmv2.
    always = header.metadata or key.target.field == VALIDITY_FIELD
    bits = 1 if key.target.field == VALIDITY_FIELD else scope.field(key.target, source).bits
    return p4.KeyIR(name, _KINDS[key.match_type], target, bits, None if always else header, key.mask)


def _call(entry: js.ActionEntryJson, scope: ProgramScope, source: SourceInfo | None) -> p4.ActionCall:
    action = scope.actions_by_id.find(entry.action_id, source)
    if len(entry.action_data) != len(action.params):
        raise ProgramError(
            f"{action.name}: {len(entry.action_data)} arguments for {len(action.params)} parameters{at(source)}"
        )
    return p4.ActionCall(action, entry.action_data)


def _value(match: js.MatchJson, key: p4.KeyIR, source: SourceInfo | None) -> tuple[int, int]:
    """Pair the value with its mask, prefix length or end. Bits that do not matter are cleared."""
    numbers: dict[p4.MatchKind, tuple[int | None, int | None]] = {
        p4.MatchKind.EXACT: (match.key, 0),
        p4.MatchKind.LPM: (match.key, match.prefix_length),
        p4.MatchKind.TERNARY: (match.key, match.mask),
        p4.MatchKind.RANGE: (match.start, match.end),
    }
    value, second = numbers[key.kind]
    if value is None or second is None:
        raise ProgramError(f"a constant entry has no {key.kind.value} match for key {key.name}{at(source)}")
    if key.kind is p4.MatchKind.TERNARY:
        value &= second
    if key.kind is p4.MatchKind.LPM:
        ignored = max(key.bits - second, 0)
        value = value >> ignored << ignored
    return value, second


def _entries(table: js.TableJson, keys: tuple[p4.KeyIR, ...], scope: ProgramScope) -> tuple[p4.ConstEntryIR, ...]:
    entries = table.entries or ()
    # The JSON numbers entries from 1, and the smaller number wins. P4 has the larger one win, and the last entry 1: so
    # does p4c write them for P4Runtime. Priorities that the source gives are not in the JSON.
    above = 1 + max((entry.priority for entry in entries), default=0)
    return tuple(_entry(entry, above - entry.priority, table, keys, scope) for entry in entries)


def _entry(
    entry: js.EntryJson, priority: int, table: js.TableJson, keys: tuple[p4.KeyIR, ...], scope: ProgramScope
) -> p4.ConstEntryIR:
    if len(entry.match_key) != len(keys):
        found = f"{len(entry.match_key)} of {len(keys)} keys"
        raise ProgramError(f"table {table.name}: an entry has {found}{at(table.source)}")
    # Exact and lpm tables have no priorities. The format writes one for them all the same.
    ordered = table.match_type in (p4.MatchKind.TERNARY.value, p4.MatchKind.RANGE.value)
    source = entry.source or table.source
    values = tuple(_value(m, key, source) for m, key in zip(entry.match_key, keys, strict=True))
    return p4.ConstEntryIR(values, _call(entry.action_entry, scope, source), priority if ordered else 0)


# Parser states of the mirror to IR.


def lower_parser(parser: js.ParserJson, scope: ProgramScope) -> p4.ParserIR:
    """Return the parser with all names resolved. Raises: ProgramError."""
    states = {state.name: _state(state, scope) for state in parser.parse_states}
    return p4.ParserIR(parser.name, parser.init_state, states)


def _state(state: js.ParseStateJson, scope: ProgramScope) -> p4.StateIR:
    key = tuple(_key_part(part, ExpressionContext(scope, (), state.source)) for part in state.transition_key)
    key_bits = sum(8 * p4.padded_bytes(part.bits) for part in key)
    cases = tuple(_cases(state, key_bits))
    defaults = [t.next_state for t in state.transitions if t.type == "default"]
    ops = tuple(_op(op, scope, state) for op in state.parser_ops)
    return p4.StateIR(state.name, ops, key, cases, defaults[0] if defaults else None, state.source)


def _cases(state: js.ParseStateJson, key_bits: int) -> Iterator[p4.TransitionCase]:
    for transition in state.transitions:
        if transition.type == "default":
            continue
        if transition.type == "parse_vset":
            raise unsupported_error("value set", f"transition of state {state.name}", state.source)
        yield _case(transition, state, key_bits)


def _case(transition: js.TransitionJson, state: js.ParseStateJson, key_bits: int) -> p4.TransitionCase:
    if transition.type != "hexstr":
        raise unsupported_error("parser operation", f"transition {transition.type} of state {state.name}", state.source)
    # Each piece of a key is padded to whole bytes at the left, so values and masks are wider than the fields.
    everything = (1 << key_bits) - 1
    mask = everything if transition.mask is None else transition.mask
    try:
        value = int(transition.value or "", 16)
    except ValueError:
        raise ProgramError(
            f"state {state.name}: the value {transition.value!r} of a transition is not hexadecimal{at(state.source)}"
        ) from None
    if value & ~everything or mask & ~everything:
        raise ProgramError(f"state {state.name}: a transition is wider than its key{at(state.source)}")
    return p4.TransitionCase(value & mask, mask, transition.next_state)


def _key_part(part: js.Operand, place: ExpressionContext) -> p4.KeyPart:
    if isinstance(part, js.FieldOperand):
        return p4.KeyPart(place.scope.field(part, place.source))
    if isinstance(part, js.LookaheadOperand):
        return p4.KeyPart(p4.Lookahead(part.offset, part.bits))
    if isinstance(part, js.StackFieldOperand):
        value = lower_data(part, place)
        return p4.KeyPart(p4.Computed(value, value.type.bits))
    lower_data(part, place)  # refuses unsupported operands by their own name
    raise ProgramError(f"transition key that is neither field nor lookahead{at(place.source)}")


def _op(op: js.PrimitiveJson, scope: ProgramScope, state: js.ParseStateJson) -> p4.ParserOp:
    place = ExpressionContext(scope, (), op.source or state.source)
    if op.op == "extract_VL":
        return _extract_variable(op, place)
    if op.op == "primitive":
        call = _arg(op, 0, place)
        if not isinstance(call, js.PrimitiveJson):
            raise ProgramError(f"parser operation primitive without a primitive{at(place.source)}")
        return p4.Perform(lower_primitive(call, scope))
    if op.op == "extract":
        return _extract(op, place)
    if op.op == "set":
        return _set(op, place)
    if op.op == "verify":
        return p4.Verify(lower_bool(_arg(op, 0, place), place), lower_data(_arg(op, 1, place), place))
    if op.op == "advance":
        return p4.Advance(lower_data(_arg(op, 0, place), place))
    raise unsupported_error("parser operation", f"{op.op} in state {state.name}", place.source)


def _extract(op: js.PrimitiveJson, place: ExpressionContext) -> p4.ParserOp:
    target = _arg(op, 0, place)
    if isinstance(target, js.NamedOperand) and target.type == "header_stack":
        return p4.ExtractNext(place.scope.stacks.find(target.name, place.source))
    if isinstance(target, js.OtherOperand):
        construct = "header union" if target.type == "union_stack" else "operand"
        raise unsupported_error(construct, f"extract to {target.type}", place.source)
    header = lower_header(target, place)
    if header.variable is not None:
        raise unsupported_error("varbit", f"extract of {header.name} without a length", place.source)
    return p4.Extract(header)


def _extract_variable(op: js.PrimitiveJson, place: ExpressionContext) -> p4.ParserOp:
    target = _arg(op, 0, place)
    if not isinstance(target, js.NamedOperand) or target.type != "header":
        raise unsupported_error("varbit", "extract with a length to something else than a header", place.source)
    header = lower_header(target, place)
    if header.variable is None:
        raise ProgramError(f"{header.name} has no variable-length field{at(place.source)}")
    return p4.ExtractVariable(header, header.variable, lower_data(_arg(op, 1, place), place))


def _set(op: js.PrimitiveJson, place: ExpressionContext) -> p4.ParserOp:
    target, value = _target(_arg(op, 0, place), place), _arg(op, 1, place)
    if isinstance(value, js.LookaheadOperand):
        return p4.SetLookahead(target, p4.Lookahead(value.offset, value.bits))
    return p4.SetField(target, lower_data(value, place))


def _target(operand: js.Operand, place: ExpressionContext) -> FieldIR:
    if not isinstance(operand, js.FieldOperand):
        raise ProgramError(f"the parser sets something that is not a field{at(place.source)}")
    if operand.field == VALIDITY_FIELD:
        raise unsupported_error("validity write", f"{operand.header}.{operand.field}", place.source)
    return place.scope.field(operand, place.source)


def _arg(op: js.PrimitiveJson, index: int, place: ExpressionContext) -> js.Operand:
    if index >= len(op.parameters):
        raise ProgramError(f"parser operation {op.op} lacks argument {index + 1}{at(place.source)}")
    return op.parameters[index]


# Sections of the file that are refused whole, if they list anything.
_REFUSED_SECTIONS = {"header_union_stacks": "header union", "parse_vsets": "value set", "extern_instances": "extern"}


def lower(program: js.ProgramJson, digest: str) -> p4.ProgramIR:
    """Return the program with all names resolved. Raises: ProgramError."""
    for section, construct in _REFUSED_SECTIONS.items():
        for item in getattr(program, section):
            raise unsupported_error(construct, item.name or section, item.source)
    # The order is that of the references: headers, what is made of headers, state, actions, then the controls that call
    # them.
    scope = ProgramScope()
    declare_headers(program, scope)
    declare_stacks(program, scope)
    declare_unions(program, scope)
    declare_field_lists(program, scope)
    declare_digests(program, scope)
    declare_meters(program, scope)
    declare_state(program, scope)
    for action in program.actions:
        scope.actions_by_id[action.id] = lower_action(action, scope)
    pipelines = {p.name: lower_pipeline(p, scope) for p in program.pipelines}
    return p4.ProgramIR(
        name=program.program or "",
        digest=digest,
        headers=scope.headers,
        fields=tuple(scope.fields.values()),
        errors=dict(program.errors),
        parser=lower_parser(_only(program.parsers, "parsers"), scope),
        ingress=_pipeline(pipelines, "ingress"),
        egress=_pipeline(pipelines, "egress"),
        deparser=_deparser(program, scope),
        tables=_tables(pipelines),
        actions={a.name: a for a in reversed(scope.actions_by_id.values())},
        stacks=scope.stacks,
        unions=scope.unions,
        counters=scope.counters,
        digests={digest.name: digest for digest in scope.digests.values()},
        meters=scope.meters,
        registers=scope.registers,
        calculations=scope.calculations,
        checksums=tuple(lower_checksum(c, scope) for c in program.checksums),
        standard=scope.standard,
    )


def _pipeline(pipelines: dict[str, p4.PipelineIR], name: str) -> p4.PipelineIR:
    if name not in pipelines:
        raise ProgramError(f"the program has no {name} control; compile it with --arch v1model")
    return pipelines[name]


def _only(blocks: Sequence[T], kind: str) -> T:
    if len(blocks) != 1:
        raise ProgramError(f"the program has {len(blocks)} {kind}, 1 needed; use --arch v1model")
    return blocks[0]


def _deparser(program: js.ProgramJson, scope: ProgramScope) -> p4.DeparserIR:
    deparser = _only(program.deparsers, "deparsers")
    for primitive in deparser.primitives:
        raise unsupported_error("primitive", f"{primitive.op} in the deparser", primitive.source)
    return p4.DeparserIR(tuple(scope.headers.find(name, None) for name in deparser.order))


def _tables(pipelines: dict[str, p4.PipelineIR]) -> dict[str, p4.TableIR]:
    nodes = [node for pipeline in pipelines.values() for node in pipeline.nodes.values()]
    return {node.name: node for node in nodes if isinstance(node, p4.TableIR)}
