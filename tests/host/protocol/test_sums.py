# SPDX-License-Identifier: Apache-2.0
"""The oracle against a naive sum over the history (witness.py): loss, duplication, reordering, delay; generations that
follow each other on the same registers; crashes; quorum n, n - 1, FLUSH. And a mutant of the oracle is always caught.

TEST_SCALE (make test SCALE=...) multiplies the number of histories.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hopsum_oracle import admission, aggregator, registers
from hopsum_oracle.admission import Admitted, Packet
from hopsum_oracle.aggregator import Aggregator, JobConfig, OutputPacket, PacketOutcome
from hopsum_oracle.decision import Copy, Decision, LaneAction, Update, decide
from hopsum_wire import HOPSUM_BYTES, Drop, Event, Header, Kind, Op
from hopsum_wire.payload import SHAPES

from ...system.model.switch import MUTATIONS, real
from .generations import Mode, World
from .jobs import TABLES
from .network import scenario
from .witness import Reply as Sent
from .witness import Witness, codes_of, narrow_codes

pytestmark = pytest.mark.system
SCALE = int(os.environ.get("TEST_SCALE", "1"))
SEEDS = range(6 * SCALE)
GENERATIONS = 4
MODES = {
    "quorum-n": Mode(),
    "quorum-n-1": Mode(below=1),
    "flush": Mode(flush=0.1),
    "flush-quorum-n-1": Mode(below=1, flush=0.1),
    "one-silent": Mode(flush=0.3, silent=True),
}
Patch = pytest.MonkeyPatch


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("op", sorted(SHAPES), ids=lambda op: Op(op).name)
def test_every_result_is_the_naive_sum(op: int, mode: str) -> None:
    for seed in SEEDS:
        World(seed, op, MODES[mode]).run(GENERATIONS)


@pytest.mark.parametrize("mode", MODES)
def test_ops_may_differ_from_round_to_round(mode: str) -> None:
    for seed in SEEDS:
        World(seed, None, MODES[mode]).run(GENERATIONS)


@pytest.mark.parametrize("mode", MODES)
def test_frames_too(mode: str) -> None:
    for seed in SEEDS:
        World(seed, None, MODES[mode], as_frames=True).run(GENERATIONS)


def test_the_histories_have_everything() -> None:
    """Else the tests above say nothing."""
    events: Counter[Event] = Counter()
    drops: Counter[Drop] = Counter()
    sizes: Counter[tuple[str, int]] = Counter()
    for mode in MODES:
        for seed in range(6):
            world = World(seed, Op.ADD32, MODES[mode])
            world.run(GENERATIONS)
            drops.update(world.switch.drops)
            for (_, event), count in world.switch.job_events.items():
                events[event] += count
            for key, inside in world.witness.inside.items():
                if key in world.witness.results:
                    sizes[mode, len(inside)] += 1
    assert {Event.ADDED, Event.COMPLETED, Event.DUPLICATE, Event.ANSWERED, Event.STALE} <= set(events)
    assert Event.FAULT not in events, "with workers that keep W1, a copy that collects is never overwritten"
    assert set(drops) == {Drop.UNKNOWN_GENERATION}
    assert {inside for mode, inside in sizes if mode == "quorum-n"} == {2, 3, 4}
    assert {inside for mode, inside in sizes if mode == "quorum-n-1"} == {1, 2, 3}
    assert {inside for mode, inside in sizes if mode == "flush"} == {1, 2, 3, 4}


class Watched(Aggregator):
    """The oracle with a witness beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.witness = Witness(TABLES)

    def receive(self, port: int, src_ip: int, src_udp_port: int, payload: bytes | memoryview) -> PacketOutcome:
        outcome = super().receive(port, src_ip, src_udp_port, payload)
        header, data = Header.unpack(payload), bytes(payload[HOPSUM_BYTES:])
        if header.kind != Kind.UPDATE:
            return outcome
        self.witness.sent(header, data)
        replies = [Sent(output.worker.rank, output.header, output.payload) for output in outcome.outputs]
        self.witness.arrived(self.jobs.get(header.generation), header, replies)
        return outcome


@pytest.mark.parametrize("seed", range(8 * SCALE))
def test_under_real_workers(seed: int) -> None:
    """hopsum.protocol.worker over the same network, two generations, quorum n."""
    switch = Watched()
    scenario(seed, switch=switch)
    assert switch.witness.results


def test_the_naive_order_of_codes() -> None:
    """Byte j of a group of 512 codes: code j above code j + 256; with 16-bit lanes, four codes 128 apart in a word."""
    eight = codes_of(bytes([0x12, 0x34] + [0] * 510), 1)
    assert [int(eight[at]) for at in (0, 256, 1, 257)] == [1, 2, 3, 4]
    assert [int(codes_of(bytes([0] * 256 + [0x56] + [0] * 255), 1)[at]) for at in (512, 768)] == [5, 6]
    sixteen = codes_of(bytes([0x12, 0x34, 0x50] + [0] * 253), 2)
    assert [int(sixteen[at]) for at in (0, 128, 256, 384, 1)] == [1, 2, 3, 4, 5]
    two = narrow_codes(bytes([0b11100100, 0b01]) + bytes(254), 2)
    assert [int(two[at]) for at in (0, 256, 512, 768, 1, 769)] == [3, 2, 1, 0, 0, 1]
    three = narrow_codes(bytes([0b11_101_110]) + bytes(255) + bytes([0b11_011_100]) + bytes(127), 3)
    assert [int(three[at]) for at in (0, 256, 512, 640, 768, 896)] == [6, 5, 4, 3, 7, 4]


# ---- mutants of the oracle ------------------------------------------------------------------------------


def table_without(rule: str) -> Callable[[Patch], None]:
    """Return a patch: the oracle's decision table without one of the model's rules."""
    mutated = MUTATIONS[rule](real)

    def patch_it(patch: Patch) -> None:
        def less(copy: Copy, update: Update, *, quorum: int, min_quorum: int) -> Decision:
            return mutated(copy, update, quorum, min_quorum)

        patch.setattr(aggregator, "decide", less)

    return patch_it


def generation_switch(patch: Patch) -> None:
    """Any generation is taken for the admitted one."""

    def any_generation(packet: Packet, *switch_and_jobs: Any) -> Admitted | Drop:
        *switch, jobs = switch_and_jobs
        one: list[JobConfig] = list(jobs.values())
        return admission.admit(packet, *switch, {packet.header.generation: one[0]})

    patch.setattr(aggregator, "admit", any_generation)


def late_contributors(patch: Patch) -> None:
    """A reply names everybody that was seen, late ones too."""

    def all_seen(copy: Copy, update: Update, *, quorum: int, min_quorum: int) -> Decision:
        decided = decide(copy, update, quorum=quorum, min_quorum=min_quorum)
        return decided._replace(copy=decided.copy._replace(contributors=decided.copy.seen))

    patch.setattr(aggregator, "decide", all_seen)


def early_completion(patch: Patch) -> None:
    """One contribution too few completes a round."""

    def hasty(copy: Copy, update: Update, *, quorum: int, min_quorum: int) -> Decision:
        return decide(copy, update, quorum=max(1, quorum - 1), min_quorum=min_quorum)

    patch.setattr(aggregator, "decide", hasty)


def carrying_lanes(patch: Patch) -> None:
    """Every op adds 32-bit words: small lanes carry, maxima are sums."""

    def add_words(op: int, held: NDArray[Any], arrived: NDArray[Any]) -> None:
        np.add(held.view(">u4"), arrived.view(">u4"), out=held.view(">u4"))

    patch.setattr(registers, "combine", add_words)


def forgotten_write(patch: Patch) -> None:
    """Zeros in the registers of a new round, where its first packet should be."""
    apply = registers.Registers.apply

    def forget(self: registers.Registers, index: int, op: int, action: LaneAction, payload: NDArray[np.uint8]) -> None:
        apply(self, index, op, action, payload * np.uint8(action is not LaneAction.WRITE))

    patch.setattr(registers.Registers, "apply", forget)


def replies(change: Callable[[tuple[OutputPacket, ...]], tuple[OutputPacket, ...]]) -> Callable[[Patch], None]:
    """Return a patch: what leaves the switch is changed at the last moment."""

    def patch_it(patch: Patch) -> None:
        right = Aggregator._replies

        def wrong(self: Aggregator, admitted: Admitted, decision: Decision, index: int) -> tuple[OutputPacket, ...]:
            return change(right(self, admitted, decision, index))

        patch.setattr(Aggregator, "_replies", wrong)

    return patch_it


def held_is_asked(outputs: tuple[OutputPacket, ...]) -> tuple[OutputPacket, ...]:
    return tuple(
        output._replace(header=replace(output.header, held=output.header.round))
        if output.header.kind == Kind.STALE
        else output
        for output in outputs
    )


def last_one_missing(outputs: tuple[OutputPacket, ...]) -> tuple[OutputPacket, ...]:
    return outputs[:-1] if len(outputs) > 1 else outputs


UNSEEN = {"count_ge", "partial_once", "leaf_resend", "close_on_flush"}
"""A rule about a quorum that changes in flight, which no job's does; rules of trees, see test_trees."""
MUTANTS: dict[str, Callable[[Patch], None]] = {
    **{rule: table_without(rule) for rule in MUTATIONS if rule not in UNSEEN},
    "generation_switch": generation_switch,
    "late_contributors": late_contributors,
    "early_completion": early_completion,
    "carrying_lanes": carrying_lanes,
    "forgotten_write": forgotten_write,
    "held_is_asked": replies(held_is_asked),
    "last_one_missing": replies(last_one_missing),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_is_caught(mutant: str, monkeypatch: Patch) -> None:
    MUTANTS[mutant](monkeypatch)
    for seed in range(8):
        for mode in MODES.values():
            try:
                World(seed, None, mode).run(GENERATIONS)
            except AssertionError:
                return
    pytest.fail(f"{mutant} was not missed")
