# SPDX-License-Identifier: Apache-2.0
"""Controls of the mirror to IR: tables, conditions, action calls."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import ProgramError
from .ir import (
    ActionCall,
    ActionNodeIR,
    ConditionalIR,
    ConstEntryIR,
    KeyIR,
    MatchKind,
    NodeIR,
    PipelineIR,
    TableIR,
)
from .ir_actions import ActionIR
from .ir_objects import MeterIR
from .lower_expressions import lower_bool, lower_data, lower_element
from .p4c_json import (
    ActionEntryJson,
    EntryJson,
    ExpressionOperand,
    FieldOperand,
    KeyJson,
    MatchJson,
    PipelineJson,
    TableJson,
)
from .scope import VALIDITY_FIELD, ExpressionContext, ProgramScope
from .source import SourceInfo, at
from .unsupported import refuse

# The JSON's priorities run the other way round; the two senses are exchanged through this number.
PRIORITY_PIVOT = 2**31 - 1

_KINDS = {kind.value: kind for kind in MatchKind}
_HIT, _MISS = "__HIT__", "__MISS__"


def lower_pipeline(pipeline: PipelineJson, scope: ProgramScope) -> PipelineIR:
    """Return one control with all names resolved. Raises: ProgramError."""
    for profile in pipeline.action_profiles:
        raise refuse("action profile", profile.name, profile.source)
    nodes: dict[str, NodeIR] = {}
    for table in pipeline.tables:
        nodes[table.name] = _table(table, scope)
    for conditional in pipeline.conditionals:
        condition = lower_bool(conditional.expression, ExpressionContext(scope, (), conditional.source))
        nodes[conditional.name] = ConditionalIR(
            conditional.name, condition, conditional.true_next, conditional.false_next, conditional.source
        )
    for call in pipeline.action_calls:
        action = scope.action(call.action_id, call.source)
        nodes[call.name] = ActionNodeIR(call.name, action, call.next_node, call.source)
    return PipelineIR(pipeline.name, pipeline.init_table, nodes)


def _table(table: TableJson, scope: ProgramScope) -> TableIR:
    _refuse_table(table)
    actions = {scope.action(i, table.source).name: scope.action(i, table.source) for i in table.action_ids}
    keys = tuple(_key(key, scope, table.source) for key in table.key)
    direct = [c.name for c in scope.counters.values() if c.table == table.name]
    default = table.default_entry
    branches = _HIT in table.next_tables or _MISS in table.next_tables
    entries = table.entries
    return TableIR(
        name=table.name,
        id=table.id,
        match_kind=_KINDS[table.match_type],
        keys=keys,
        max_size=table.max_size,
        actions=actions,
        default=None if default is None else _call(default, scope, table.source),
        const_default_action=default is not None and default.action_const,
        const_default_entry=default is not None and default.action_entry_const,
        const_entries=tuple(_entry(e, table, keys, scope) for e in entries or ()),
        immutable=entries is not None,
        with_counters=table.with_counters,
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


def _direct_meter(table: TableJson, scope: ProgramScope) -> MeterIR | None:
    if table.direct_meters is None:
        return None
    meter = scope.meter(table.direct_meters, table.source)
    if meter.table != table.name:
        raise ProgramError(f"table {table.name}: the meter {meter.name} is not its own{at(table.source)}")
    return meter


def _refuse_table(table: TableJson) -> None:
    if table.type != "simple":
        raise refuse("action profile", f"table {table.name} of type {table.type}", table.source)
    for kind in (table.match_type, *(key.match_type for key in table.key)):
        if kind not in _KINDS:
            raise refuse("match kind", f"{kind} in table {table.name}", table.source)


def _successors(table: TableJson, actions: Mapping[str, ActionIR]) -> dict[int, str | None]:
    missing = [name for name in actions if name not in table.next_tables]
    if missing:
        raise ProgramError(f"table {table.name}: no successor for action {missing[0]}{at(table.source)}")
    return {action.id: table.next_tables[name] for name, action in actions.items()}


def _key(key: KeyJson, scope: ProgramScope, source: SourceInfo | None) -> KeyIR:
    place = ExpressionContext(scope, (), source)
    if isinstance(key.target, ExpressionOperand):
        element = lower_element(key.target, place)
        if element is None:
            raise refuse("expression", f"operator {key.target.op} as a key", source)
        name, bits = key.name or key.target.op, element[0][0].bits
        return KeyIR(name, _KINDS[key.match_type], lower_data(key.target, place), bits, None, key.mask)
    if not isinstance(key.target, FieldOperand):  # a header has match type valid, which was refused
        raise ProgramError(f"a key of match type {key.match_type} is not a field{at(source)}")
    name = key.name or f"{key.target.header}.{key.target.field}"
    target = lower_data(key.target, place)
    header = scope.header(key.target.header, source)
    always = header.metadata or key.target.field == VALIDITY_FIELD
    bits = 1 if key.target.field == VALIDITY_FIELD else scope.field(key.target, source).bits
    return KeyIR(name, _KINDS[key.match_type], target, bits, None if always else header, key.mask)


def _call(entry: ActionEntryJson, scope: ProgramScope, source: SourceInfo | None) -> ActionCall:
    action = scope.action(entry.action_id, source)
    if len(entry.action_data) != len(action.params):
        raise ProgramError(
            f"{action.name}: {len(entry.action_data)} arguments for {len(action.params)} parameters{at(source)}"
        )
    return ActionCall(action, entry.action_data)


def _value(match: MatchJson, key: KeyIR, source: SourceInfo | None) -> tuple[int, int]:
    """Pair the value with its mask, prefix length or end. Bits that do not matter are cleared."""
    numbers: dict[MatchKind, tuple[int | None, int | None]] = {
        MatchKind.EXACT: (match.key, 0),
        MatchKind.LPM: (match.key, match.prefix_length),
        MatchKind.TERNARY: (match.key, match.mask),
        MatchKind.RANGE: (match.start, match.end),
    }
    value, second = numbers[key.kind]
    if value is None or second is None:
        raise ProgramError(f"a constant entry has no {key.kind.value} match for key {key.name}{at(source)}")
    if key.kind is MatchKind.TERNARY:
        value &= second
    if key.kind is MatchKind.LPM:
        ignored = max(key.bits - second, 0)
        value = value >> ignored << ignored
    return value, second


def _entry(entry: EntryJson, table: TableJson, keys: tuple[KeyIR, ...], scope: ProgramScope) -> ConstEntryIR:
    if len(entry.match_key) != len(keys):
        found = f"{len(entry.match_key)} of {len(keys)} keys"
        raise ProgramError(f"table {table.name}: an entry has {found}{at(table.source)}")
    ordered = table.match_type in (MatchKind.TERNARY.value, MatchKind.RANGE.value)
    priority = PRIORITY_PIVOT - entry.priority if ordered else 0
    source = entry.source or table.source
    values = tuple(_value(m, key, source) for m, key in zip(entry.match_key, keys, strict=True))
    return ConstEntryIR(values, _call(entry.action_entry, scope, source), priority)
