# SPDX-License-Identifier: Apache-2.0
"""A way that loses datagrams which were sent together, and says nothing: a job sends them one by one."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from contextlib import ExitStack

import numpy as np
import pytest

from hopsum.protocol.worker import Membership, Timing
from hopsum.transport.offload import probe_offload
from hopsum.transport.segment_trial import AGAIN_S, MANY, SegmentTrial
from hopsum.transport.shard import Shard
from hopsum.transport.transport import Transport
from hopsum.transport.udp_link import UdpLink
from hopsum_oracle.aggregator import Aggregator
from hopsum_wire import Op

from ...support.server import LOCALHOST, UdpSwitch, job_for
from ...support.trains import loses

KERNEL = probe_offload()
Loss = Callable[[bool, int], float]
"""The part of datagrams that a way loses, sent together or not, in a round."""


def outcome(loss: Loss, window: int, rounds: int = 2000) -> tuple[SegmentTrial, int]:
    """Return the trial of a worker that sends a window of datagrams in each round, and the results it has then."""
    trial, rng = SegmentTrial(), random.Random(window)
    results = again = owed = 0
    for number in range(rounds):
        again += owed
        arrived = sum(rng.random() >= loss(trial.together, number) for _ in range(window))
        results, owed = results + arrived, window - arrived
        trial.look(results, again, owed, 0.1 * number)
    return trial, results


@pytest.mark.parametrize("window", [2, 64, 512])
@pytest.mark.parametrize("lost", [1.0, 0.5])
def test_what_is_lost_together_and_arrives_singly_is_sent_singly(lost: float, window: int) -> None:
    trial, results = outcome(lambda together, _: lost if together else 0.0, window)
    assert trial.has_ended
    assert not trial.together
    assert results > window * 2000 - 4 * MANY - 64 * window, "found out within some rounds"


@pytest.mark.parametrize("window", [2, 64, 512])
@pytest.mark.parametrize(
    "loss",
    [
        pytest.param(lambda _, __: 0.05, id="some are lost either way"),
        pytest.param(lambda _, __: 0.4, id="many are lost either way"),
        pytest.param(lambda _, __: 1.0, id="all are lost either way: results sent together, or another rank's"),
        pytest.param(lambda _, number: float(number % 500 < 7), id="a rank comes late now and then"),
        pytest.param(lambda _, number: float(number % 3 < 1), id="a rank comes late each time"),
    ],
)
def test_other_losses_are_not_blamed_on_sending_together(loss: Loss, window: int) -> None:
    trial, _ = outcome(loss, window)
    assert not trial.has_ended


def test_a_verdict_ends_by_itself_each_time_later() -> None:
    """A way that was bad for a minute, by chance, costs speed for ten, and a card that eats trains costs little."""
    trial, now, results, again, ends = SegmentTrial(), 0.0, 0, 0, []
    while len(ends) < 3:
        had_ended, now = trial.has_ended, now + 0.1
        arrived = 0 if trial.together else 64
        results, again = results + arrived, again + 64 - arrived
        trial.look(results, again, 64 - arrived, now)
        if trial.has_ended and not had_ended:
            began = now
        elif had_ended and not trial.has_ended:
            assert trial.together
            ends.append(round(now - began))
    assert ends == [AGAIN_S, 2 * AGAIN_S, 4 * AGAIN_S]


@pytest.mark.skipif(not KERNEL.segment, reason="this kernel has no UDP_SEGMENT")
@pytest.mark.parametrize("compiled", ["wait", "0"])
@pytest.mark.parametrize("eats_at", [0, 2], ids=["from the start", "in the middle of a job"])
def test_a_job_behind_a_way_that_eats_trains(
    stack: ExitStack, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, compiled: str, eats_at: int
) -> None:
    monkeypatch.setenv("HOPSUM_COMPILED", compiled)
    caplog.set_level(logging.WARNING, "hopsum.transport.udp_link")
    aggregator, state = Aggregator(), [not eats_at]
    switch = stack.enter_context(UdpSwitch(aggregator))
    near, far = stack.enter_context(loses(switch.address, lambda size, each: size > each and state[0]))
    link = UdpLink((LOCALHOST, 0), near)
    timing = Timing(retransmit_s=0.02, retransmit_max_s=0.1, deadline_s=60.0)
    aggregator.add_job(job_for([far], generation=9, slots=64, table=None))
    with Transport([Shard(link, Membership(9, 0, 1, 64), timing)]) as transport:
        for turn in range(10):
            state[0] = state[0] or turn == eats_at
            done = transport.allreduce(Op.ADD32, np.full((300, 1024), turn, np.uint8))
            assert (done.results == turn).all()
        assert not link.offload.segment
    lines = [record.getMessage() for record in caplog.records if "sent together" in record.getMessage()]
    assert len(lines) == 1, lines
    assert "are lost, those sent one by one arrive" in lines[0]
    assert "hopsum doctor" in lines[0]
