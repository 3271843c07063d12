# SPDX-License-Identifier: Apache-2.0
"""The switch: hopsum.protocol.decision.decide itself over multisets, and the rules around it as mutations of it.

A mutation takes a decide function and returns one that lacks a rule. `step` applies one packet to one copy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from hopsum.protocol.decision import FINAL, Copy, Decision, Lanes, Reply, Situation, Update, decide, situation
from hopsum.wire import Event

from .config import Config
from .state import Cell, Content, Kind, Packet, Values, Violation

Decide = Callable[[Copy, Update, int, int], Decision]
"""(copy, update, quorum, min_quorum) -> decision."""
BEYOND: Final = 65
"""A quorum that is never reached."""


def real(copy: Copy, update: Update, quorum: int, min_quorum: int) -> Decision:
    """Call the project's decision table."""
    return decide(copy, update, quorum=quorum, min_quorum=min_quorum)


def _epoch_tag(rest: Decide) -> Decide:
    def mutated(copy: Copy, update: Update, quorum: int, min_quorum: int) -> Decision:
        decided = rest(copy._replace(epoch=update.epoch), update, quorum, min_quorum)
        return decided._replace(copy=copy) if decided.reply is Reply.STALE_TO_SENDER else decided

    return mutated


def _reset_all(rest: Decide) -> Decide:
    def mutated(copy: Copy, update: Update, quorum: int, min_quorum: int) -> Decision:
        decided = rest(copy, update, quorum, min_quorum)
        return decided._replace(lanes=Lanes.ADD) if decided.lanes is Lanes.WRITE else decided

    return mutated


def _dup_check(rest: Decide) -> Decide:
    def mutated(copy: Copy, update: Update, quorum: int, min_quorum: int) -> Decision:
        return rest(copy._replace(seen=copy.seen & ~update.bit), update, quorum, min_quorum)

    return mutated


def _close(rest: Decide) -> Decide:
    def mutated(copy: Copy, update: Update, quorum: int, min_quorum: int) -> Decision:
        decided = rest(copy, update, quorum, min_quorum)
        if situation(copy, update) is not Situation.COMPLETE or copy.contributors & update.bit:
            return decided
        return decided._replace(copy=_with_bit(decided.copy, update), lanes=Lanes.ADD)

    return mutated


def _or_with_add(rest: Decide) -> Decide:
    def mutated(copy: Copy, update: Update, quorum: int, min_quorum: int) -> Decision:
        decided = rest(copy, update, quorum, min_quorum)
        if situation(copy, update) is not Situation.COMPLETE:
            return decided
        return decided._replace(copy=_with_bit(decided.copy, update))

    return mutated


def _with_bit(copy: Copy, update: Update) -> Copy:
    return copy._replace(contributors=copy.contributors | update.bit)


def _count_ge(rest: Decide) -> Decide:
    def mutated(copy: Copy, update: Update, quorum: int, min_quorum: int) -> Decision:
        collecting = rest(copy, update, BEYOND, BEYOND)
        return rest(copy, update, quorum, min_quorum) if collecting.copy.ctr == quorum else collecting

    return mutated


def _reply_less(missing: Reply) -> Callable[[Decide], Decide]:
    def mutation(rest: Decide) -> Decide:
        def mutated(copy: Copy, update: Update, quorum: int, min_quorum: int) -> Decision:
            decided = rest(copy, update, quorum, min_quorum)
            return decided._replace(reply=Reply.NONE) if decided.reply is missing else decided

        return mutated

    return mutation


def _old_apart(rest: Decide) -> Decide:
    def mutated(copy: Copy, update: Update, quorum: int, min_quorum: int) -> Decision:
        if situation(copy, update) is Situation.OLD:
            update = update._replace(round=copy.round)
        return rest(copy, update, quorum, min_quorum)

    return mutated


def _flush_round(rest: Decide) -> Decide:
    def mutated(copy: Copy, update: Update, quorum: int, min_quorum: int) -> Decision:
        old = situation(copy, update) is Situation.OLD
        if old and update.flush and copy.ctr != FINAL and copy.ctr >= min_quorum:
            return Decision(copy._replace(ctr=FINAL), Lanes.KEEP, Reply.RESULT_TO_ALL, (Event.COMPLETED,))
        return rest(copy, update, quorum, min_quorum)

    return mutated


def _flush_dup(rest: Decide) -> Decide:
    def mutated(copy: Copy, update: Update, quorum: int, min_quorum: int) -> Decision:
        repeat = situation(copy, update) is Situation.REPEAT
        return rest(copy, update._replace(flush=update.flush and not repeat), quorum, min_quorum)

    return mutated


def _min_quorum(rest: Decide) -> Decide:
    def mutated(copy: Copy, update: Update, quorum: int, min_quorum: int) -> Decision:
        return rest(copy, update, quorum, 1)

    return mutated


MUTATIONS: Final[dict[str, Callable[[Decide], Decide]]] = {
    "epoch_tag": _epoch_tag,
    "reset_all": _reset_all,
    "dup_check": _dup_check,
    "close": _close,
    "or_with_add": _or_with_add,
    "count_ge": _count_ge,
    "answer_dup": _reply_less(Reply.RESULT_TO_SENDER),
    "old_apart": _old_apart,
    "answer_old": _reply_less(Reply.STALE_TO_SENDER),
    "flush_round": _flush_round,
    "flush_dup": _flush_dup,
    "min_quorum": _min_quorum,
}
"""By the rule that they take away."""


def deciding(config: Config) -> Decide:
    """Return the decision table without the rules that are off."""
    function: Decide = real
    for name in sorted(config.off & MUTATIONS.keys()):
        function = MUTATIONS[name](function)
    return function


def step(config: Config, decide_: Decide, quorum: int, cell: Cell, packet: Packet) -> tuple[Cell, Packet | None]:
    """Apply one admitted UPDATE to a copy: the copy after it and the packet that leaves.

    Raises:
        Violation: sum, quorum or late.
    """
    update = Update(packet.epoch, packet.round, 1 << packet.worker, packet.flush)
    decided = decide_(cell.copy, update, quorum, config.min_quorum)
    same_tag = decided.copy[:2] == cell.copy[:2]
    values = {
        Lanes.KEEP: cell.values,
        Lanes.WRITE: packet.content.values,
        Lanes.ADD: added(cell.values, packet.content.values),
    }[decided.lanes]
    after = Cell(canonical(decided.copy), values, cell.truth if same_tag else packet.truth)
    if cell.truth is not None and packet.truth < cell.truth and after != cell:
        _violated(config, "late", f"{packet.truth} changes a copy of {cell.truth}")
    out = _reply(decided, after, packet)
    if out is not None and out.kind is Kind.RESULT:
        _check_result(config, quorum, out)
    return after, out


def canonical(copy: Copy) -> Copy:
    """Forget `seen` of a complete copy: the table reads it only while collecting (test_rules checks that)."""
    return copy._replace(seen=copy.contributors) if copy.ctr == FINAL else copy


def added(held: Values, arrived: Values) -> Values:
    """Return the sum of two sums."""
    return tuple(sorted(held + arrived))


def _reply(decided: Decision, after: Cell, packet: Packet) -> Packet | None:
    if decided.reply is Reply.NONE:
        return None
    content = Content(decided.copy.contributors, after.values)
    if decided.reply is Reply.STALE_TO_SENDER:
        content = content._replace(values=())
        return packet._replace(kind=Kind.STALE, flush=False, content=content, held=decided.copy.round)
    assert after.truth is not None
    return packet._replace(
        kind=Kind.RESULT, worker=-1, epoch=after.copy.epoch, round=after.copy.round, flush=False, content=content,
        truth=after.truth,
    )  # fmt: skip


def _check_result(config: Config, quorum: int, result: Packet) -> None:
    contributors, values = result.content
    ranks = [one.worker for one in values]
    if len(set(ranks)) != len(ranks):
        _violated(config, "sum", f"a worker is counted twice in {ranks}")
    if sum(1 << rank for rank in ranks) != contributors:
        _violated(config, "sum", f"contributors {contributors:b} is not who was summed, {ranks}")
    if len({one.chunk for one in values}) > 1:
        _violated(config, "sum", f"chunks {sorted({one.chunk for one in values})} are mixed")
    if len(ranks) < (min(config.min_quorum, quorum) if config.flush else quorum):
        _violated(config, "quorum", f"a round is complete with {ranks}")


def _violated(config: Config, kind: str, text: str) -> None:
    if kind in config.checks:
        raise Violation(kind, text)
