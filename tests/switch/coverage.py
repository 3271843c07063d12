# SPDX-License-Identifier: Apache-2.0
"""Coverage of a program: the parts that packets have met, and the parts that they have not.

The parts, as they are named::

  state NAME                      a parser state
  transition NAME -> NAME         from state to state (`accept` ends parsing)
  table NAME: ACTION              an action that the table has run, by an entry or by default
  table NAME: hit / miss          of tables with a key
  call ACTION                     an action that a control calls without a table
  condition PLACE: true / false   an `if` of a control, by its place in the source (by its name if it has none)
  drop ACTION PLACE               a mark_to_drop
  counter NAME[INDEX]             a cell of an indexed counter of at most 64 cells: small ones number reasons and events

One `Coverage` may watch several engines of one program.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from hopsum_switch.interp.observer import Observer
from hopsum_switch.program import ir as p4
from hopsum_switch.program.p4_source import SourceInfo
from hopsum_switch.state.entry_lookup import Entry

# A larger counter counts objects, such as slots or hosts, and no packet trace meets all of them.
MAX_COUNTER_CELLS = 64


class Coverage(Observer):
    """Collects the parts that packets meet."""

    def __init__(self, program: p4.ProgramIR) -> None:
        self._parts = tuple(dict.fromkeys(_parts(program)))
        self._met: set[str] = set()

    def parts(self) -> tuple[str, ...]:
        """Return all parts of the program, in its order."""
        return self._parts

    def met(self) -> tuple[str, ...]:
        """Return the parts that were met, in the program's order."""
        return tuple(part for part in self._parts if part in self._met)

    def missed(self) -> tuple[str, ...]:
        """Return the parts that were not met, in the program's order."""
        return tuple(part for part in self._parts if part not in self._met)

    def state_entered(self, state: p4.StateIR) -> None:
        self._met.add(_state(state))

    def state_left(self, state: p4.StateIR, following: str | None) -> None:
        self._met.add(_transition(state, following))

    def condition_met(self, node: p4.ConditionalIR, holds: bool, values: Mapping[str, int | bool]) -> None:
        self._met.add(_condition(node, holds))

    def action_called(self, node: p4.ActionNodeIR) -> None:
        self._met.add(_call(node))

    def table_applied(
        self, table: p4.TableIR, key: tuple[int, ...] | None, entry: Entry | None, call: p4.ActionCall | None
    ) -> None:
        if key is not None:
            self._met.add(_table(table, "miss" if entry is None else "hit"))
        if call is not None:
            self._met.add(_table(table, call.action.name))

    def counter_written(self, counter: p4.CounterIR, unit: str, index: int, old: int, new: int) -> None:
        if counter.size <= MAX_COUNTER_CELLS:
            self._met.add(_cell(counter, index))

    def marked_to_drop(self, action: str, source: SourceInfo | None) -> None:
        self._met.add(_drop(action, source))


def _parts(program: p4.ProgramIR) -> Iterator[str]:
    for state in program.parser.states.values():
        yield _state(state)
        for following in (*(case.next for case in state.cases), state.default):
            yield _transition(state, following)
    for pipeline in (program.ingress, program.egress):
        for node in pipeline.nodes.values():
            yield from _node_parts(node)
    for counter in program.counters.values():
        if counter.table is None and counter.size <= MAX_COUNTER_CELLS:
            yield from (_cell(counter, index) for index in range(counter.size))


def _node_parts(node: p4.NodeIR) -> Iterator[str]:
    if isinstance(node, p4.ConditionalIR):
        yield from (_condition(node, holds) for holds in (True, False))
        return
    if isinstance(node, p4.ActionNodeIR):
        yield _call(node)
        yield from _drops(node.action)
        return
    if node.keys:
        yield from (_table(node, outcome) for outcome in ("hit", "miss"))
    for action in _runnable(node):
        yield _table(node, action.name)
        yield from _drops(action)


def _runnable(table: p4.TableIR) -> Sequence[p4.ActionIR]:
    """Return the actions that a table can run, whatever the control plane writes."""
    default = [] if table.default is None else [table.default.action]
    fixed = bool(default) and (table.const_default_action or table.const_default_entry)
    # The control plane may insert every action of the table, and make each one the default.
    if table.keys and not table.immutable:
        return table.runnable
    entries = [entry.call.action for entry in table.const_entries]
    return [*entries, *(default if fixed else table.runnable)]


def _drops(action: p4.ActionIR) -> Iterator[str]:
    for operation, source in zip(action.body, action.sources, strict=True):
        if isinstance(operation, p4.MarkToDrop):
            yield _drop(action.name, source)


# Names of parts: an event and the list of all parts must give the same one.
_state = "state {0.name}".format
_call = "call {0.action.name}".format
_table = "table {0.name}: {1}".format
_cell = "counter {0.name}[{1}]".format


def _transition(state: p4.StateIR, following: str | None) -> str:
    return f"transition {state.name} -> {following or 'accept'}"


def _condition(node: p4.ConditionalIR, holds: bool) -> str:
    return f"condition {node.source or node.name}: {str(holds).lower()}"


def _drop(action: str, source: SourceInfo | None) -> str:
    return f"drop {action}" if source is None else f"drop {action} {source}"
