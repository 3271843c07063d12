# SPDX-License-Identifier: Apache-2.0
"""The oracle under workers, against a naive sum over the history (witness.py): loss, duplication, reordering, delay;
jobs that follow each other on the same registers; quorum n, n - 1, FLUSH. Without a rule of either a sum is wrong.

TEST_SCALE (make test SCALE=...) multiplies the number of histories.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hopsum.protocol.stream_state import StreamState
from hopsum.protocol.worker import Worker
from hopsum.protocol.worker_state import AllReduce
from hopsum_oracle import admission, aggregator, registers
from hopsum_oracle.admission import AdmittedPacket, Packet
from hopsum_oracle.aggregator import Aggregator, AggregatorConfig, JobConfig, OutputPacket, PacketOutcome
from hopsum_oracle.decision import Copy, Decision, LaneAction, Update, decide
from hopsum_oracle.frame_aggregator import FrameAggregator
from hopsum_wire import HOPSUM_BYTES, Drop, Event, Header, Kind, Op
from hopsum_wire.frames import FramePath, build_frame
from hopsum_wire.payload import SHAPES

from ...support.jobs import OF_TREES, TABLES, worker
from ...support.world import CALM, TIMING, Plan, World, world_of
from ...system.model.switch import MUTATIONS, real
from .witness import Reply as Sent
from .witness import Witness, codes_of, narrow_codes

pytestmark = pytest.mark.system
SCALE = int(os.environ.get("TEST_SCALE", "1"))
SEEDS = range(6 * SCALE)
SEEDS_MAX = 400
"""A rule that only matters when two ops happen to be the same takes many histories to be missed."""
FLUSHING = replace(TIMING, flush_after_s=0.1)
MODES: dict[str, dict[str, Any]] = {
    "quorum-n": {"policy": None},
    "quorum-n-1": {"quorum_below": 1},
    "flush": {"timing": FLUSHING},
    "flush-quorum-n-1": {"timing": FLUSHING, "quorum_below": 1},
    "one-silent": {"timing": FLUSHING, "stall_s": 2.0},
}
Patch = pytest.MonkeyPatch


def plan_of(seed: int, mode: str, ops: tuple[Op, ...] = tuple(Op)) -> Plan:
    rng = random.Random(seed)
    workers = rng.randint(2, 4)
    plan = Plan(
        workers=workers, slots=rng.randint(1, 3), ahead=rng.randint(1, 3), min_quorum=rng.randint(1, workers - 1)
    )
    return replace(plan, ops=ops, positions=8, **MODES[mode])


class Watched(FrameAggregator):
    """The oracle, and a witness of all that it does."""

    def __init__(self, switch: AggregatorConfig) -> None:
        super().__init__(switch)
        self.witness = Witness(TABLES)

    def receive(self, port: int, src_ip: int, src_udp_port: int, payload: bytes | memoryview) -> PacketOutcome:
        header, data = Header.unpack(payload), bytes(payload[HOPSUM_BYTES:])
        outcome = self.outcome_of(port, src_ip, src_udp_port, header, data)
        if header.kind != Kind.UPDATE:
            return outcome
        self.witness.sent(header, data)
        replies = [Sent(output.worker.rank, output.header, output.payload) for output in outcome.outputs]
        self.witness.arrived(self.jobs.get(header.generation), header, replies)
        return outcome

    def outcome_of(self, port: int, src_ip: int, src_udp_port: int, header: Header, data: bytes) -> PacketOutcome:
        return super().receive(port, src_ip, src_udp_port, header.pack() + data)


class Framed(Watched):
    """The same, where each datagram comes and leaves in an Ethernet frame."""

    def outcome_of(self, port: int, src_ip: int, src_udp_port: int, header: Header, data: bytes) -> PacketOutcome:
        own = worker(header.worker)
        path = FramePath(own.mac, self.switch.mac, src_ip, self.switch.ip, src_udp_port)
        outcome, frames = self.explain_frame(port, build_frame(path, header, data))
        for (out, frame), output in zip(frames, outcome.outputs, strict=True):
            assert (out, frame[:6]) == (output.worker.port, output.worker.mac.to_bytes(6, "big"))
            assert (Header.unpack(frame[42:]), frame[74:]) == (output.header, output.payload)
        return outcome


def history(seed: int, plan: Plan, make_switch: Callable[[AggregatorConfig], Watched] = Watched) -> World:
    """Run two jobs on the same slots, the second into the leftovers of the first."""
    world = world_of(seed, plan, make_switch)
    world.begin_anew()
    world.run()
    world.check()
    return world


@cache
def mixed_history(seed: int, mode: str) -> World:
    return history(seed, plan_of(seed, mode))


@pytest.mark.parametrize("op", sorted(SHAPES), ids=lambda op: Op(op).name)
def test_every_result_is_the_naive_sum(op: int) -> None:
    for seed, mode in enumerate(MODES):
        for more in range(SCALE):
            history(seed + len(MODES) * more, plan_of(seed + more, mode, (Op(op),)))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", SEEDS)
def test_ops_may_differ_from_round_to_round(seed: int, mode: str) -> None:
    mixed_history(seed, mode)


@pytest.mark.parametrize("mode", MODES)
def test_frames_too(mode: str) -> None:
    history(1, plan_of(1, mode), Framed)


def test_a_good_network_needs_no_second_try() -> None:
    plan = replace(plan_of(1, "quorum-n"), **CALM)
    for each in world_of(1, plan).workers:
        assert each.statistics.retransmits == 0
        assert each.statistics.results == each.statistics.updates == each.stream.end


def test_the_histories_have_everything() -> None:
    """Else the tests above say nothing."""
    met: Counter[str] = Counter()
    drops: Counter[Drop] = Counter()
    events: dict[str, set[Event]] = {}
    sizes: dict[str, set[int]] = {}
    for mode in MODES:
        for world in (mixed_history(seed, mode) for seed in SEEDS):
            (switch,) = world.fabric.switches
            assert isinstance(switch, Watched)
            drops.update(switch.drops)
            events.setdefault(mode, set()).update(event for _, event in switch.job_events)
            inside = switch.witness.inside
            sizes.setdefault(mode, set()).update(len(inside[key]) for key in switch.witness.results)
            for each in world.workers:
                met["retransmits"] += each.statistics.retransmits
                met["duplicates"] += each.statistics.duplicates
                met["stale"] += each.statistics.stale_ignored
                met["of another job"] += each.statistics.ignored[Drop.UNKNOWN_GENERATION]
                met["repaired"] += each.statistics.repaired
    assert events["quorum-n"] == set(Event) - OF_TREES - {Event.FAULT, Event.PROBED}
    assert not any(Event.FAULT in of for of in events.values()), "a copy that collects is never overwritten (W1)"
    assert set(drops) == {Drop.UNKNOWN_GENERATION}
    assert min(met[name] for name in ("retransmits", "duplicates", "stale", "of another job", "repaired")) > 0, met
    assert sizes["quorum-n"] == {2, 3, 4}
    assert sizes["quorum-n-1"] == {1, 2, 3}
    assert sizes["flush"] == {1, 2, 3, 4}


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


# ---- rules taken away --------------------------------------------------------------------------------


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

    def any_generation(packet: Packet, *switch_and_jobs: Any) -> AdmittedPacket | Drop:
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

        def wrong(
            self: Aggregator, admitted: AdmittedPacket, decision: Decision, index: int
        ) -> tuple[OutputPacket, ...]:
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


def generation_worker(patch: Patch) -> None:
    position = StreamState.position_of

    def any_generation(self: StreamState, header: Header, values: memoryview) -> int:
        return position(self, replace(header, generation=self._own.generation), values)

    patch.setattr(StreamState, "position_of", any_generation)


def in_order(patch: Patch) -> None:
    """Send every position as soon as it is submitted: no window."""
    submitted = StreamState.on_submitted

    def open_everything(self: StreamState, reduce: AllReduce, now: float) -> None:
        submitted(self, reduce, now)
        for position in range(reduce.first, reduce.end):
            self._queue.open(position)

    patch.setattr(StreamState, "on_submitted", open_everything)


def frozen_payload(patch: Patch) -> None:
    """Encode again before every transmission."""
    to_send = Worker.datagrams_to_send

    def reencoded(self: Worker, now: float) -> list[memoryview]:
        views = to_send(self, now)
        if not self.statistics.retransmits:
            return views
        changed = [np.frombuffer(view, np.uint8).copy() for view in views]
        for datagram in changed:
            datagram[-1] ^= 1
        return [memoryview(datagram) for datagram in changed]

    patch.setattr(Worker, "datagrams_to_send", reencoded)


def first_stays(patch: Patch) -> None:
    """A second RESULT for the same position is counted as progress."""
    patch.setattr(StreamState, "is_held", lambda self, position, reduce: reduce is None and position < self.stream.end)


def stale_match(patch: Patch) -> None:
    """Any STALE is taken for the round that its slot waits for."""
    on_stale = Worker._on_stale

    def current(self: Worker, header: Header, position: int, now: float) -> None:
        on_stale(self, header, self.state.open_position[header.slot], now)

    patch.setattr(Worker, "_on_stale", current)


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
def test_a_mutant_of_the_oracle_is_caught(mutant: str, monkeypatch: Patch) -> None:
    MUTANTS[mutant](monkeypatch)
    for seed in range(8):
        for mode in MODES:
            try:
                history(seed, plan_of(seed, mode))
            except AssertionError:
                return
    pytest.fail(f"{mutant} was not missed")


@pytest.mark.parametrize("take_away", [generation_worker, in_order, frozen_payload, first_stays, stale_match])
def test_a_worker_with_a_rule_less_is_found(take_away: Callable[[Patch], None], monkeypatch: Patch) -> None:
    take_away(monkeypatch)
    for seed in range(SEEDS_MAX):
        try:
            history(seed, plan_of(seed, "quorum-n"))
        except AssertionError:
            return
    pytest.fail(f"{take_away.__name__} was not missed in {SEEDS_MAX} histories")
