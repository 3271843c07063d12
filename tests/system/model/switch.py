# SPDX-License-Identifier: Apache-2.0
"""The switch: hopsum_oracle.decision.decide itself over multisets, and the rules around it as mutations of it.

A mutation takes a decide function and returns one that lacks a rule. `step` applies one packet to one copy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from hopsum_oracle.decision import (
    CLOSED,
    FINAL,
    Copy,
    Decision,
    LaneAction,
    PacketClass,
    Reply,
    Update,
    decide,
    decide_at_leaf,
    packet_class,
)
from hopsum_oracle.leaf import decide_on_result
from hopsum_wire import Event

from .config import Config
from .state import Cell, Content, Kind, Packet, RuleError, Values

Decide = Callable[[Copy, Update, int, int], Decision]
"""(copy, update, quorum, min_quorum) -> decision."""
BEYOND: Final = 65
"""A quorum that is never reached."""


def real(copy: Copy, update: Update, quorum: int, min_quorum: int) -> Decision:
    """Call the project's decision table."""
    return decide(copy, update, quorum=quorum, min_quorum=min_quorum)


def real_leaf(copy: Copy, update: Update, quorum: int, min_quorum: int) -> Decision:
    """Call the project's decision table of a leaf."""
    return decide_at_leaf(copy, update, quorum=quorum, min_quorum=min_quorum)


def _generation_tag(rest: Decide) -> Decide:
    def mutated(copy: Copy, update: Update, quorum: int, min_quorum: int) -> Decision:
        decided = rest(copy._replace(generation=update.generation), update, quorum, min_quorum)
        return decided._replace(copy=copy) if decided.reply is Reply.STALE_TO_SENDER else decided

    return mutated


def _reset_all(rest: Decide) -> Decide:
    def mutated(copy: Copy, update: Update, quorum: int, min_quorum: int) -> Decision:
        decided = rest(copy, update, quorum, min_quorum)
        return decided._replace(lanes=LaneAction.ADD) if decided.lanes is LaneAction.WRITE else decided

    return mutated


def _dup_check(rest: Decide) -> Decide:
    def mutated(copy: Copy, update: Update, quorum: int, min_quorum: int) -> Decision:
        return rest(copy._replace(seen=copy.seen & ~update.bit), update, quorum, min_quorum)

    return mutated


def _close(rest: Decide) -> Decide:
    def mutated(copy: Copy, update: Update, quorum: int, min_quorum: int) -> Decision:
        decided = rest(copy, update, quorum, min_quorum)
        if packet_class(copy, update) is not PacketClass.COMPLETE or copy.contributors & update.bit:
            return decided
        return decided._replace(copy=_with_bit(decided.copy, update), lanes=LaneAction.ADD)

    return mutated


def _or_with_add(rest: Decide) -> Decide:
    def mutated(copy: Copy, update: Update, quorum: int, min_quorum: int) -> Decision:
        decided = rest(copy, update, quorum, min_quorum)
        if packet_class(copy, update) is not PacketClass.COMPLETE:
            return decided
        return decided._replace(copy=_with_bit(decided.copy, update))

    return mutated


def _with_bit(copy: Copy, update: Update) -> Copy:
    return copy._replace(contributors=copy.contributors | update.contributors)


def _partial_once(rest: Decide) -> Decide:
    def mutated(copy: Copy, update: Update, quorum: int, min_quorum: int) -> Decision:
        decided = rest(copy, update, quorum, min_quorum)
        if not update.inside or packet_class(copy, update) not in (PacketClass.REPEAT, PacketClass.COMPLETE):
            return decided
        return decided._replace(copy=_with_bit(decided.copy, update))

    return mutated


def _leaf_resend(rest: Decide) -> Decide:
    def mutated(copy: Copy, update: Update, quorum: int, min_quorum: int) -> Decision:
        decided = rest(copy, update, quorum, min_quorum)
        return decided._replace(reply=Reply.NONE) if packet_class(copy, update) is PacketClass.CLOSED else decided

    return mutated


def _close_on_flush(rest: Decide) -> Decide:
    def mutated(copy: Copy, update: Update, quorum: int, min_quorum: int) -> Decision:
        decided = rest(copy, update, quorum, min_quorum)
        if decided.reply is not Reply.PARTIAL_TO_PARENT or packet_class(copy, update) is PacketClass.CLOSED:
            return decided
        collecting = rest(copy, update, BEYOND, BEYOND).copy
        return decided if collecting.ctr >= quorum else decided._replace(copy=collecting)

    return mutated


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
        if packet_class(copy, update) is PacketClass.OLD:
            update = update._replace(round=copy.round)
        return rest(copy, update, quorum, min_quorum)

    return mutated


def _flush_round(rest: Decide) -> Decide:
    def mutated(copy: Copy, update: Update, quorum: int, min_quorum: int) -> Decision:
        old = packet_class(copy, update) is PacketClass.OLD
        if old and update.flush and copy.ctr != FINAL and copy.ctr >= min_quorum:
            return Decision(copy._replace(ctr=FINAL), LaneAction.KEEP, Reply.RESULT_TO_ALL, (Event.COMPLETED,))
        return rest(copy, update, quorum, min_quorum)

    return mutated


def _flush_dup(rest: Decide) -> Decide:
    def mutated(copy: Copy, update: Update, quorum: int, min_quorum: int) -> Decision:
        repeat = packet_class(copy, update) is PacketClass.REPEAT
        return rest(copy, update._replace(flush=update.flush and not repeat), quorum, min_quorum)

    return mutated


def _min_quorum(rest: Decide) -> Decide:
    def mutated(copy: Copy, update: Update, quorum: int, min_quorum: int) -> Decision:
        return rest(copy, update, quorum, 1)

    return mutated


MUTATIONS: Final[dict[str, Callable[[Decide], Decide]]] = {
    "generation_tag": _generation_tag,
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
    "partial_once": _partial_once,
    "leaf_resend": _leaf_resend,
    "close_on_flush": _close_on_flush,
}
"""By the rule that they take away."""


def deciding(config: Config, node: int = 0) -> Decide:
    """Return the decision table of a switch without the rules that are off."""
    function: Decide = real_leaf if node else real
    for name in sorted(config.off & MUTATIONS.keys()):
        function = MUTATIONS[name](function)
    return function


def step(config: Config, decide_: Decide, quorum: int, cell: Cell, packet: Packet) -> tuple[Cell, Packet | None]:
    """Apply one admitted UPDATE or PARTIAL to a copy: the copy after it and the packet that leaves.

    Raises:
        RuleError: sum, quorum or late.
    """
    inside = packet.content.contributors if packet.kind is Kind.PARTIAL else 0
    update = Update(packet.generation, packet.round, 1 << packet.worker, packet.flush, inside)
    decided = decide_(cell.copy, update, quorum, config.min_quorum)
    same_tag = decided.copy[:2] == cell.copy[:2]
    values = {
        LaneAction.KEEP: cell.values,
        LaneAction.WRITE: packet.content.values,
        LaneAction.ADD: added(cell.values, packet.content.values),
    }[decided.lanes]
    lookups = cell.lookups if decided.lanes is LaneAction.KEEP else 0
    after = Cell(canonical(decided.copy), values, cell.truth if same_tag else packet.truth, lookups)
    _check_late(config, cell, packet, after)
    out = _reply(config, decided, after, packet)
    if out is not None and out.kind is Kind.RESULT:
        _check_result(config, out)
        after, out = _looked_up(config, after, out)
    return after, out


def _looked_up(config: Config, cell: Cell, result: Packet) -> tuple[Cell, Packet]:
    """Return the copy and the RESULT of it, which a root looks up again."""
    if not config.requantizes or (result.node and config.on("root_looks_up")):
        return cell, result
    content = result.content._replace(lookups=result.content.lookups + 1)
    if not config.on("held_sums"):
        cell = cell._replace(lookups=content.lookups)
    return cell, result._replace(content=content)


def step_from_above(config: Config, node: int, cell: Cell, packet: Packet) -> tuple[Cell, Packet | None]:
    """Apply a RESULT of the spine to a copy of a leaf: the copy after it and the packet that leaves.

    Raises:
        RuleError: sum, quorum or late.
    """
    result = Update(packet.generation, packet.round, 0, False, packet.content.contributors)
    if not config.on("leaf_match") and cell.copy.generation == packet.generation:
        result = result._replace(round=cell.copy.round)
    decided = decide_on_result(cell.copy, result)
    if decided.reply is Reply.NONE:
        return cell, None
    copy = decided.copy
    same = cell.copy[:2] == copy[:2]
    if not config.on("leaf_final_bitmap") and same:
        copy = copy._replace(contributors=cell.copy.contributors)
    stays = same and not config.on("leaf_match")
    truth = cell.truth if stays else packet.truth
    after = Cell(canonical(copy), packet.content.values, truth, packet.content.lookups)
    _check_late(config, cell, packet, after)
    content = Content(copy.contributors, after.values, after.lookups)
    assert truth is not None
    out = packet._replace(round=copy.round, content=content, truth=truth, node=node)
    _check_result(config, out)
    return after, out


def _check_late(config: Config, cell: Cell, packet: Packet, after: Cell) -> None:
    if cell.truth is not None and packet.truth < cell.truth and after != cell:
        _violated(config, "late", f"{packet.truth} changes a copy of {cell.truth}")


def canonical(copy: Copy) -> Copy:
    """Forget `seen` of a copy that is complete or closed: the table reads it only while collecting (test_rules)."""
    return copy._replace(seen=copy.contributors) if copy.ctr in (FINAL, CLOSED) else copy


def added(held: Values, arrived: Values) -> Values:
    """Return the sum of two sums."""
    return tuple(sorted(held + arrived))


def _reply(config: Config, decided: Decision, after: Cell, packet: Packet) -> Packet | None:
    if decided.reply is Reply.NONE:
        return None
    content = Content(decided.copy.contributors, after.values, after.lookups)
    if decided.reply is Reply.STALE_TO_SENDER:
        content = content._replace(values=())
        return packet._replace(kind=Kind.STALE, flush=False, content=content, held=decided.copy.round)
    assert after.truth is not None
    said = packet._replace(generation=after.copy.generation, round=after.copy.round, content=content, truth=after.truth)
    if decided.reply is Reply.PARTIAL_TO_PARENT:
        return said._replace(kind=Kind.PARTIAL, worker=config.children(packet.node)[0], node=0)
    return said._replace(kind=Kind.RESULT, worker=-1, flush=False)


def _check_result(config: Config, result: Packet) -> None:
    contributors, values, _ = result.content
    ranks = [one.worker for one in values]
    if len(set(ranks)) != len(ranks):
        _violated(config, "sum", f"a worker is counted twice in {ranks}")
    if sum(1 << rank for rank in ranks) != contributors:
        _violated(config, "sum", f"contributors {contributors:b} is not who was summed, {ranks}")
    if len({one.chunk for one in values}) > 1:
        _violated(config, "sum", f"chunks {sorted({one.chunk for one in values})} are mixed")
    if len(ranks) < config.fewest:
        _violated(config, "quorum", f"a round is complete with {ranks}")


def _violated(config: Config, kind: str, text: str) -> None:
    if kind in config.checks:
        raise RuleError(kind, text)
