# SPDX-License-Identifier: Apache-2.0
"""Controls: tables, conditions and action calls as nodes that return the number of the next one."""

from __future__ import annotations

from collections.abc import Callable

from ..program.ir import ActionNodeIR, ConditionalIR, KeyIR, MeterIR, NodeIR, PipelineIR, TableIR
from ..program.ir_expressions import BoolToInt, FieldRef, IsValid
from ..state.entry_lookup import Entry
from ..state.meter import GREEN
from ..state.table_store import TableState, TableStore
from .actions import ActionFunction, compile_action
from .expressions import ExpressionWriter, compile_condition, compile_function
from .observed import expression_writer, named_values, observed_call, observed_condition, observed_table
from .observer import Observer
from .packet import PacketState, ValueLayout, store
from .primitives import Environment

END = -1

Node = Callable[[PacketState], int]
KeyFunction = Callable[[list[int]], tuple[int, ...]]


class BoundControl:
    """Ingress or egress of a program, ready to run on packets."""

    def __init__(self, ir: PipelineIR, tables: TableStore, environment: Environment) -> None:
        self._numbers = {name: number for number, name in enumerate(ir.nodes)}
        self._actions: dict[int, ActionFunction] = {}
        self._environment = environment
        self._first = self._number(ir.init)
        self._nodes = [self._bind(node, tables) for node in ir.nodes.values()]
        if environment.observer is not None:
            nodes = zip(ir.nodes.values(), self._nodes, strict=True)
            self._nodes = [self._observe(node, run, tables, environment.observer) for node, run in nodes]

    def run(self, packet: PacketState) -> None:
        """Run the control on a packet until its end or an exit. A packet that has exited does not run."""
        nodes, number = self._nodes, self._first
        while number != END and not packet.exited:
            number = nodes[number](packet)

    def _number(self, name: str | None) -> int:
        return END if name is None else self._numbers[name]

    def _bind(self, node: NodeIR, tables: TableStore) -> Node:
        if isinstance(node, ConditionalIR):
            return self._conditional(node)
        if isinstance(node, ActionNodeIR):
            return self._action_node(node)
        return self._table(node, tables[node.name])

    def _observe(self, node: NodeIR, run: Node, tables: TableStore, observer: Observer) -> Node:
        layout, writer = self._environment.layout, expression_writer(self._environment, node.source)
        if isinstance(node, ConditionalIR):
            holds = compile_condition(node.condition, writer, node.name)
            named = named_values(node.condition, layout, observer)
            yes, no = self._number(node.on_true), self._number(node.on_false)
            return observed_condition(node, holds, named, yes, no, observer)
        if isinstance(node, ActionNodeIR):
            return observed_call(node, run, observer)
        key = compile_key(node.keys, layout, writer, node.name) if node.keys else None
        return observed_table(node, run, key, tables[node.name], observer)

    def _conditional(self, node: ConditionalIR) -> Node:
        holds = compile_condition(node.condition, ExpressionWriter(self._environment.layout), node.name)
        yes, no = self._number(node.on_true), self._number(node.on_false)
        return lambda packet: yes if holds(packet.values) else no

    def _action_node(self, node: ActionNodeIR) -> Node:
        run, following = compile_action(node.action, self._environment), self._number(node.next)

        def call(packet: PacketState) -> int:
            run(packet, ())
            return following

        return call

    def _table(self, ir: TableIR, state: TableState) -> Node:
        for action in ir.runnable:
            self._actions[action.id] = compile_action(action, self._environment)
        actions = self._actions
        by_action = {action: self._number(name) for action, name in ir.by_action.items()}
        on_hit = self._number(ir.on_hit) if ir.branches_on_hit else None
        on_miss = self._number(ir.on_miss) if ir.branches_on_miss else None
        base_next = self._number(ir.on_miss if ir.branches_on_miss else ir.base_next)
        layout = self._environment.layout
        key = compile_key(ir.keys, layout, ExpressionWriter(layout), ir.name) if ir.keys else None
        counts, meter = ir.with_counters, _direct_meter(ir.direct_meter)

        def apply(packet: PacketState) -> int:
            entry = state.lookup(key(packet.values)) if key is not None else None
            if entry is not None:
                # A default action has no entry, and so no direct counter, as in bmv2.
                if counts:
                    entry.packets += 1
                    entry.bytes += packet.received
                if meter is not None:
                    meter(packet, entry)
                call, following = entry.call, on_hit
            elif state.default is None:
                return base_next
            else:
                call, following = state.default, on_miss
            actions[call.action.id](packet, call.args)
            return by_action[call.action.id] if following is None else following

        return apply


def _direct_meter(ir: MeterIR | None) -> Callable[[PacketState, Entry], None] | None:
    if ir is None or ir.target is None:
        return None
    target, counts_bytes = ir.target, ir.counts_bytes

    def execute(packet: PacketState, entry: Entry) -> None:
        amount = packet.received if counts_bytes else 1
        colour = GREEN if entry.meter is None else entry.meter.execute(packet.now_us, amount)
        store(packet.values, target, colour)

    return execute


def compile_key(keys: tuple[KeyIR, ...], layout: ValueLayout, writer: ExpressionWriter, name: str) -> KeyFunction:
    """Return a function from values to a table's key. Fields of invalid headers count as 0. `writer` is a new one."""
    targets = (key.target.operand for key in keys if isinstance(key.target, BoolToInt))
    asked = {target.header.name for target in targets if isinstance(target, IsValid)}
    parts = [_key_source(key, writer, layout, asked) for key in keys]
    return compile_function(name, "v", [*writer.lines, f"return ({', '.join(parts)},)"], writer.namespace)


def _key_source(key: KeyIR, writer: ExpressionWriter, layout: ValueLayout, asked: set[str]) -> str:
    text = writer.data(key.target)
    mask = (1 << key.bits) - 1 if key.mask is None else key.mask
    if key.mask is not None or key.target.type.signed:
        text = f"({text} & {mask:#x})"
    if key.header is None or not isinstance(key.target, FieldRef):
        return text
    # A table whose key has the header's validity too knows what it matches: nobody has to be told.
    absent = "0" if key.header.name in asked else writer.absent(key.target.field)
    return f"({text} if v[{layout.valid(key.header)}] else {absent})"
