# SPDX-License-Identifier: Apache-2.0
"""The times of steps on a clock that the test moves, and what says whether hopsum helps."""

from __future__ import annotations

import gc
import logging
from contextlib import ExitStack

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
from torch import nn

from hopsum.agent import AllReduceResult
from hopsum.agent.allreduce_results import SocketTraffic, heartbeat_counts
from hopsum.config import ConfigError
from hopsum.errors import RankLeftError
from hopsum.torch import HopsumState, hopsum_hook
from hopsum.torch.step import is_switch_loss
from hopsum.torch.step_times import StepTimes, steps_to_compare
from hopsum_wire.membership import MembershipError
from hopsum_wire.watch.heartbeat import wait_share

from ...support.clock import FakeClock
from ..agent.cluster import PATIENT, Cluster
from .test_hook import Bucket

HEADERS = 14 + 20 + 8


def result(seconds: float, sent: int, received: int) -> AllReduceResult:
    traffic = SocketTraffic(1, 1, 0, sent - HEADERS, received - HEADERS)
    return AllReduceResult(np.zeros(0, np.float32), np.zeros(0, np.uint64), False, traffic, seconds)


def test_waiting_and_a_ring_at_the_same_rate() -> None:
    clock = FakeClock()
    times = StepTimes(clock)
    begun = []
    for _ in range(2):
        begun.append(times.begin_step())
        clock.now_s += 1.0
        times.end_allreduce(result(0.5, 1000, 2000), 2000)
        times.note_last_bucket()
        clock.now_s += 3.0
        times.end_allreduce(result(3.5, 3000, 2000), 2000)  # half a second of it during the first one
        times.end_step()
        clock.now_s += 2.0
    assert begun == [None, (6.0, 3.0)]
    scalars = times.scalars(4)
    assert scalars["step_s"] == 6.0
    assert scalars["wait_s"] == 3.0
    assert scalars["rate_bits_per_s"] == 8 * 8000 / 7.0
    assert scalars["bytes_by_ring_fp32"] == pytest.approx(8000 / (1.5 * 4 * 8000))
    assert scalars["bytes_by_ring_bf16"] == 2 * scalars["bytes_by_ring_fp32"]
    assert scalars["ring_fp32_s"] == pytest.approx(3.5 * 6)
    assert scalars["ring_bf16_s"] == pytest.approx(3.5 * 3)
    line = times.format_line(2, 4)
    measured, _, estimate = line.partition("; estimate: ")
    told = "step 2: 6000.0 ms, of which 3000.0 ms waiting for the network; 0.17 of the bytes of a ring in fp32, "
    assert measured == told + "0.33 in bf16"
    assert estimate.startswith(
        "at this rate (0 Mbit/s) a ring takes 21000.0 ms in fp32 and 10500.0 in bf16, less where"
    )
    line = times.format_line(2, 4, {"thc": 6.0, "process group": 4.5})
    assert line == f"{measured}; measured: 6000.0 ms by thc, 4500.0 ms by process group"


def test_steps_through_the_process_group_change_no_figure_of_hopsum() -> None:
    """As after method="auto", HOPSUM_COMPARE or start_iter: the ring's time was divided by all steps."""
    clock = FakeClock()
    times = StepTimes(clock)
    assert "; none of the steps went through hopsum;" in times.format_line(0, 2)
    found = []
    for step in range(4):
        times.begin_step()
        clock.now_s += 1.0
        if step < 2:
            times.end_allreduce(result(0.5, 1000, 1000), 2000)
        times.note_last_bucket()
        times.end_step()
        found.append(times.scalars(2)["ring_fp32_s"])
    assert found == [found[0]] * 4
    assert "; 2 of the steps went through hopsum, with " in times.format_line(4, 2)


def test_a_step_that_was_given_up_is_not_told() -> None:
    clock = FakeClock()
    times = StepTimes(clock)
    times.begin_step()
    clock.now_s += 1.0
    assert times.begin_step() is None
    times.note_last_bucket()
    times.end_step()
    clock.now_s += 2.0
    assert times.begin_step() == (2.0, 0.0)


def test_heartbeats_have_the_steps_of_the_hook() -> None:
    with ExitStack() as stack:
        agent = Cluster(stack, 1).agent(0, "thc")
        module = nn.Linear(40, 30)
        state = HopsumState(agent, module)
        for _ in range(3):
            bucket = Bucket(module, ["weight", "bias"], torch.ones(1230))
            hopsum_hook(state, bucket).wait()  # type: ignore[arg-type]
        told = heartbeat_counts(agent.statistics)
    assert told["steps"] == 2, "the last one is not over before the next begins"
    assert 0 < told["wait_seconds"] <= told["step_seconds"]
    share = wait_share(told)
    assert share is not None
    assert 0 < share <= 1


def test_rank_0_alone_tells_the_times_now_and_then(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    # An earlier test may have set the level of all of hopsum.
    caplog.set_level(logging.WARNING, "hopsum.torch.state")
    with ExitStack() as stack:
        agents, module = Cluster(stack, 2).agents("thc", PATIENT), nn.Linear(40, 30)
        states = [HopsumState(agent, module, log_every=2) for agent in agents]
        for _ in range(5):
            buckets = [Bucket(module, ["weight", "bias"], torch.ones(1230)) for _ in states]
            futures = [hopsum_hook(state, bucket) for state, bucket in zip(states, buckets, strict=True)]  # type: ignore[arg-type]
            for future in futures:
                future.wait()
    lines = [line for line in capsys.readouterr().err.splitlines() if "waiting for the network" in line]
    assert [line.split(":")[1] for line in lines] == [" step 2", " step 4"]


def test_before_there_is_anything_to_tell() -> None:
    assert all(np.isnan(value) for value in StepTimes().scalars(2).values())


def test_the_variable_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    assert steps_to_compare() == 0
    monkeypatch.setenv("HOPSUM_COMPARE", "12")
    assert steps_to_compare() == 12
    monkeypatch.setenv("HOPSUM_COMPARE", "yes")
    with pytest.raises(ConfigError, match="HOPSUM_COMPARE='yes': the number of steps to measure each way"):
        steps_to_compare()


def test_a_hook_that_was_never_called_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with ExitStack() as stack, caplog.at_level(logging.WARNING, "hopsum.torch.state"):
        agent = Cluster(stack, 2).agent(0, "thc")
        state = HopsumState(agent, nn.Linear(3, 2))
        del state
        gc.collect()
    assert "rank 0: a HopsumState was made and its hook was never called" in caplog.text


def test_falling_back_needs_a_process_group() -> None:
    with ExitStack() as stack:
        agent = Cluster(stack, 2).agent(0, "thc")
        with pytest.raises(ValueError, match="on_switch_lost='fall_back' and HOPSUM_COMPARE average through torch's"):
            HopsumState(agent, nn.Linear(3, 2), on_switch_lost="fall_back")
        with pytest.raises(ValueError, match="on_switch_lost='gloo': one of raise, fall_back"):
            HopsumState(agent, nn.Linear(3, 2), on_switch_lost="gloo")  # type: ignore[arg-type]


def test_a_job_that_ended_by_another_rank_is_lost_for_all_of_them() -> None:
    """A rank that lost the switch leaves, and the others' job ends with it: they all fall back."""
    assert is_switch_loss(MembershipError("rank 2 left unfinished: AllReduceTimeoutError"))
    assert not is_switch_loss(RankLeftError("rank 2 has finished"))
    assert not is_switch_loss(ValueError("my own bug"))
