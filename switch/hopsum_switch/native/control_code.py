# SPDX-License-Identifier: Apache-2.0
"""Controls: one block per node. Tables are searched in arrays that `native_engine` keeps."""

from __future__ import annotations

from collections.abc import Mapping

from llvmlite import ir

from ..program.frame_budget import action_has_loop
from ..program.ir import ActionIR, ActionNodeIR, ConditionalIR, Exit, KeyIR, MatchKind, PipelineIR, TableIR
from .function_scope import I1, I64, PTR, FunctionScope, Unit, Value, word
from .memory_layout import RECORD_HEADER, WORD_BITS, TableWord, Word, argument_places, key_words, record_words
from .only_interpreted import unsupported_error
from .operation_code import Operations

# Fibonacci hashing: 2**64 divided by the golden ratio. `native_engine` fills the slots by the same function.
HASH_FACTOR = 0x9E3779B97F4A7C15
HASH_SHIFT = 32


def write_control(unit: Unit, name: str, pipeline: PipelineIR) -> Value:
    """Write the function that runs a control on a packet, and its actions. Return it. Raises: UnsupportedError."""
    actions = {}
    for action in pipeline.runnable():
        if action.id not in actions:
            actions[action.id] = _write_action(unit, action)
    function = unit.declare(name, ir.VoidType(), [PTR, PTR])
    _Control(unit, FunctionScope(unit, function), pipeline, actions).write()
    return function


def _is_fixed(table: TableIR) -> bool:
    """Return whether a table does one thing whatever the control plane writes."""
    if table.keys or table.default is None or table.default.action.params:
        return False
    return table.const_default_action or table.const_default_entry


def _write_action(unit: Unit, action: ActionIR) -> Value:
    name = f"action{action.id}"
    if name in unit.functions:
        return unit.functions[name]
    function = unit.declare(name, ir.VoidType(), [PTR, PTR, PTR])
    scope = FunctionScope(unit, function, argument_places(action))
    scope.where = action.name
    Operations(scope).write_all(action.body)
    scope.builder.ret_void()
    return function


class _Control:
    def __init__(self, unit: Unit, scope: FunctionScope, pipeline: PipelineIR, actions: Mapping[int, Value]) -> None:
        self._scope = scope
        self._pipeline = pipeline
        self._actions = actions
        self._operations = Operations(scope)
        self._end = scope.block("done")
        self._blocks = {name: scope.block("node") for name in pipeline.nodes}

    def write(self) -> None:
        scope = self._scope
        self._go_unless_exited(self._target(self._pipeline.init))
        for name, node in self._pipeline.nodes.items():
            scope.where = name
            scope.start(self._blocks[name])
            if isinstance(node, ConditionalIR):
                condition = self._operations.integers.condition(node.condition)
                scope.builder.cbranch(condition, self._target(node.on_true), self._target(node.on_false))
            elif isinstance(node, ActionNodeIR):
                self._call(node.action, scope.state)
                self._after(node.action, node.next)
            else:
                self._table(node)
        scope.start(self._end)
        scope.builder.ret_void()

    def _target(self, name: str | None) -> Value:
        return self._end if name is None else self._blocks[name]

    def _go_unless_exited(self, target: Value) -> None:
        exited = self._scope.builder.icmp_unsigned("!=", self._scope.get(Word.EXITED), word(0))
        self._scope.builder.cbranch(exited, self._end, target)

    def _call(self, action: ActionIR, args: Value) -> None:
        self._scope.builder.call(self._actions[action.id], [self._scope.state, self._scope.control, args])

    def _after(self, action: ActionIR, following: str | None) -> None:
        if action_has_loop(action) or any(isinstance(op, Exit) for op in action.body):
            self._go_unless_exited(self._target(following))
        else:
            self._scope.builder.branch(self._target(following))

    def _table(self, table: TableIR) -> None:
        builder = self._scope.builder
        if table.direct_meter is not None:
            raise unsupported_error("meter", table.direct_meter.name, table.source)
        # p4c makes such a table of every statement between two tables. It needs neither search nor dispatch.
        if _is_fixed(table):
            assert table.default is not None
            self._call(table.default.action, self._scope.state)
            following = table.on_miss if table.branches_on_miss else table.by_action.get(table.default.action.id)
            self._after(table.default.action, following)
            return
        words = self._scope.layout.table(table.name)
        default = self._scope.shared(words + TableWord.DEFAULT)
        if not table.keys:
            self._dispatch(table, default, hit=False)
            return
        count = self._scope.shared(words + TableWord.COUNT)
        number = _Search(self._scope, table, self._key(table)).find(count)
        hit, miss = self._scope.block("hit"), self._scope.block("miss")
        builder.cbranch(builder.icmp_unsigned("<", number, count), hit, miss)
        self._scope.start(hit)
        if table.with_counters:
            self._count(words, number)
        self._dispatch(table, number, hit=True)
        self._scope.start(miss)
        self._dispatch(table, default, hit=False)

    def _count(self, words: int, number: Value) -> None:
        scope, builder = self._scope, self._scope.builder
        base, at = scope.address(words + TableWord.HITS), builder.shl(number, word(1))
        for offset, amount in ((at, word(1)), (builder.add(at, word(1)), scope.get(Word.RECEIVED))):
            scope.store(builder.add(scope.load(base, offset), amount), base, offset)

    def _dispatch(self, table: TableIR, number: Value, *, hit: bool) -> None:
        """Run the action of a record and continue with its successor."""
        scope, builder = self._scope, self._scope.builder
        records = scope.address(scope.layout.table(table.name) + TableWord.RECORDS)
        record = scope.at(records, builder.mul(number, word(record_words(table))))
        no_action = table.on_miss if table.branches_on_miss else table.base_next
        actions = {action.id: action for action in table.runnable}
        choice = builder.switch(scope.load(record, 0), self._target(None if hit else no_action))
        branches = table.branches_on_hit if hit else table.branches_on_miss
        following = table.on_hit if hit else table.on_miss
        for action_id, action in actions.items():
            block = scope.block("action")
            choice.add_case(word(action_id), block)
            scope.start(block)
            self._call(action, scope.at(record, RECORD_HEADER))
            self._after(action, following if branches else table.by_action.get(action_id))

    def _key(self, table: TableIR) -> list[Value]:
        return [part for key in table.keys for part in self._key_field(key)]

    def _key_field(self, key: KeyIR) -> list[Value]:
        scope, builder = self._scope, self._scope.builder
        width = -(-key.bits // WORD_BITS) * WORD_BITS
        value = self._operations.integers.low(key.target, width)
        mask = (1 << key.bits) - 1 if key.mask is None else key.mask & (1 << width) - 1
        value = builder.and_(value, ir.Constant(value.type, mask))
        if key.header is not None:
            value = builder.select(scope.is_valid(key.header), value, ir.Constant(value.type, 0))
        shifted = (builder.lshr(value, ir.Constant(value.type, at)) for at in range(0, width, WORD_BITS))
        return [builder.trunc(part, I64) if width > WORD_BITS else part for part in shifted]


class _Search:
    """Writer of one search. The result is a record number, or the number of entries if none matches."""

    def __init__(self, scope: FunctionScope, table: TableIR, key: list[Value]) -> None:
        self._scope = scope
        self._table = table
        self._key = key
        words = scope.layout.table(table.name)
        self._keys = scope.address(words + TableWord.KEYS)
        self._slots = scope.address(words + TableWord.SLOTS)
        self._mask = scope.shared(words + TableWord.SLOT_MASK)

    def find(self, count: Value) -> Value:
        if self._table.match_kind is MatchKind.EXACT:
            return self._hashed(count)
        return self._scanned(count)

    def _hashed(self, count: Value) -> Value:
        """Probe from the key's slot on until it or an empty slot is found."""
        scope, builder = self._scope, self._scope.builder
        first = builder.and_(self._hash(), self._mask)
        before, probe, check, again, end = (
            builder.block,
            *(scope.block(name) for name in ("probe", "check", "again", "found")),
        )
        builder.branch(probe)
        scope.start(probe)
        # The number of slots is a power of two, at least twice the entries, so an empty slot ends every search.
        slot = builder.phi(I64)
        slot.add_incoming(first, before)
        record = builder.sub(scope.load(self._slots, slot), word(1))
        builder.cbranch(builder.icmp_unsigned("==", record, word(-1)), end, check)
        scope.start(check)
        base = builder.mul(record, word(len(self._key)))
        builder.cbranch(self._equal(base), end, again)
        scope.start(again)
        slot.add_incoming(builder.and_(builder.add(slot, word(1)), self._mask), again)
        builder.branch(probe)
        scope.start(end)
        result = builder.phi(I64)
        result.add_incoming(count, probe)
        result.add_incoming(record, check)
        return result

    def _hash(self) -> Value:
        builder, value = self._scope.builder, word(0)
        for part in self._key:
            value = builder.mul(builder.xor(value, part), word(HASH_FACTOR))
            value = builder.xor(value, builder.lshr(value, word(HASH_SHIFT)))
        return value

    def _equal(self, base: Value) -> Value:
        scope, builder = self._scope, self._scope.builder
        same = ir.Constant(I1, 1)
        for number, part in enumerate(self._key):
            stored = scope.load(self._keys, builder.add(base, word(number)))
            same = builder.and_(same, builder.icmp_unsigned("==", stored, part))
        return same

    def _scanned(self, count: Value) -> Value:
        """Try entries in order. Each is a pair of words per word of the key."""
        scope, builder = self._scope, self._scope.builder
        before, test, body, again, end = (
            builder.block,
            *(scope.block(name) for name in ("test", "entry", "again", "found")),
        )
        builder.branch(test)
        scope.start(test)
        number = builder.phi(I64)
        number.add_incoming(word(0), before)
        builder.cbranch(builder.icmp_unsigned("<", number, count), body, end)
        scope.start(body)
        builder.cbranch(self._matches(builder.mul(number, word(2 * len(self._key)))), end, again)
        scope.start(again)
        number.add_incoming(builder.add(number, word(1)), again)
        builder.branch(test)
        scope.start(end)
        return number

    def _matches(self, base: Value) -> Value:
        scope, builder = self._scope, self._scope.builder
        kinds = [key.kind for key, n in zip(self._table.keys, key_words(self._table), strict=True) for _ in range(n)]
        for key, n in zip(self._table.keys, key_words(self._table), strict=True):
            if key.kind is MatchKind.RANGE and n > 1:
                raise unsupported_error("range key", f"{self._table.name}.{key.name}", self._table.source)
        all_match = ir.Constant(I1, 1)
        for number, (kind, part) in enumerate(zip(kinds, self._key, strict=True)):
            first = scope.load(self._keys, builder.add(base, word(2 * number)))
            second = scope.load(self._keys, builder.add(base, word(2 * number + 1)))
            if kind is MatchKind.RANGE:
                low, high = builder.icmp_unsigned("<=", first, part), builder.icmp_unsigned("<=", part, second)
                match = builder.and_(low, high)
            else:
                match = builder.icmp_unsigned("==", builder.and_(part, second), first)
            all_match = builder.and_(all_match, match)
        return all_match
