# SPDX-License-Identifier: Apache-2.0
"""Workers and oracle together over a bad network: the sums are numpy's, and every rule is needed for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from hopsum.protocol.stream_state import StreamState
from hopsum.protocol.worker import Worker
from hopsum.protocol.worker_state import AllReduce
from hopsum_oracle import admission, aggregator, decision
from hopsum_oracle.admission import Admitted, Packet
from hopsum_oracle.decision import LaneAction, PacketClass
from hopsum_oracle.switch_config import JobConfig
from hopsum_wire import Drop, Event, Header

from .jobs import OF_TREES
from .network import Weather, scenario

pytestmark = pytest.mark.system
SEEDS = range(40)
SEEDS_MAX = 400
"""A rule that only matters when two ops happen to be the same takes more than 40 scenarios to be missed."""
Patch = pytest.MonkeyPatch


@pytest.mark.parametrize("seed", SEEDS)
def test_every_worker_gets_numpys_sums(seed: int) -> None:
    scenario(seed)


def test_a_good_network_needs_no_second_try() -> None:
    for generation in scenario(1, Weather(drop=0, duplicate=0, straggle=0, delay_s=0.001)):
        for each in generation.workers:
            assert each.statistics.retransmits == 0
            assert each.statistics.results == each.statistics.updates == each.stream.end


def test_the_network_was_bad() -> None:
    """Else the tests above say nothing: all that can happen with quorum n happened."""
    events: Counter[Event] = Counter()
    drops: Counter[Drop] = Counter()
    retransmits = duplicates = stale = foreign = 0
    for seed in SEEDS:
        switch = scenario(seed)[-1].switch
        drops.update(switch.drops)
        for (_, event), count in switch.job_events.items():
            events[event] += count
        for generation in scenario(seed):
            for each in generation.workers:
                retransmits += each.statistics.retransmits
                duplicates += each.statistics.duplicates
                stale += each.statistics.stale_ignored
                foreign += each.statistics.ignored[Drop.UNKNOWN_GENERATION]
    assert set(events) == set(Event) - OF_TREES - {Event.FAULT, Event.PROBED}
    assert set(drops) == {Drop.UNKNOWN_GENERATION}
    assert min(retransmits, duplicates, stale, foreign) > 0


def dup_check(patch: Patch) -> None:
    patch.setattr(decision, "is_repeat", lambda copy, update: False)


def reset_all(patch: Patch) -> None:
    row = decision.TABLE[PacketClass.NEW]
    patch.setitem(decision.TABLE, PacketClass.NEW, row._replace(lanes=LaneAction.ADD))


def generation_tag(patch: Patch) -> None:
    def by_round(copy: decision.Copy, update: decision.Update) -> bool:
        return update.round > copy.round

    patch.setattr(decision, "is_new", by_round)
    patch.setattr(aggregator, "is_new", by_round)


def close(patch: Patch) -> None:
    row = decision.TABLE[PacketClass.COMPLETE]
    patch.setitem(decision.TABLE, PacketClass.COMPLETE, row._replace(lanes=LaneAction.ADD))


def answer_dup(patch: Patch) -> None:
    row = decision.TABLE[PacketClass.COMPLETE]
    patch.setitem(decision.TABLE, PacketClass.COMPLETE, row._replace(reply=decision.Reply.NONE))


def generation_switch(patch: Patch) -> None:
    def any_generation(packet: Packet, jobs: dict[int, JobConfig]) -> Admitted | Drop:
        (job,) = jobs.values()
        return admission.admit(packet, {packet.header.generation: job})

    patch.setattr(aggregator, "admit", any_generation)


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


@pytest.mark.parametrize(
    "take_away",
    [
        dup_check,
        reset_all,
        generation_tag,
        close,
        answer_dup,
        generation_switch,
        generation_worker,
        in_order,
        frozen_payload,
        first_stays,
        stale_match,
    ],
)
def test_a_rule_less_is_found(take_away: Callable[[Patch], None], monkeypatch: Patch) -> None:
    take_away(monkeypatch)
    for seed in range(SEEDS_MAX):
        try:
            scenario(seed)
        except AssertionError:
            return
    pytest.fail(f"{take_away.__name__} was not missed in {SEEDS_MAX} scenarios")
